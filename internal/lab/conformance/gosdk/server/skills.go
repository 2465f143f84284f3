package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Skills (SEP-2640) are resources with additional methods to find them.

const (
	skillsExtension = "io.modelcontextprotocol/skills"
	markdown        = "text/markdown"
)

// A skill has files, by path.
type skill struct {
	name, description string
	files             map[string]string
}

var skills = []skill{
	newSkill("greeting", "How to greet people", map[string]string{"references/names.md": "# Names\n"}),
	newSkill("counting", "How to count things", nil),
}

func newSkill(name, description string, files map[string]string) skill {
	s := skill{name, description, maps.Clone(files)}
	if s.files == nil {
		s.files = map[string]string{}
	}
	s.files["SKILL.md"] = fmt.Sprintf("---\nname: %s\ndescription: %s\n---\n\n# %[2]s\n", name, description)
	return s
}

// uri returns the URI of a file or directory of a skill.
func (s skill) uri(file string) string {
	return strings.TrimSuffix("skill://fixtures/"+s.name+"/"+file, "/")
}

type skillEntry struct {
	URI         string            `json:"uri"`
	Frontmatter map[string]string `json:"frontmatter"`
	Resources   []skillFile       `json:"resources"`
}

type skillFile struct {
	URI    string `json:"uri"`
	Digest string `json:"digest"`
	Size   int    `json:"size"`
}

// entry returns the entry of a skill in lists.
func (s skill) entry() skillEntry {
	entry := skillEntry{URI: s.uri("SKILL.md"), Frontmatter: map[string]string{"name": s.name,
		"description": s.description}}
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		text := s.files[file]
		digest := sha256.Sum256([]byte(text))
		entry.Resources = append(entry.Resources, skillFile{s.uri(file), "sha256:" + hex.EncodeToString(digest[:]),
			len(text)})
	}
	return entry
}

// cacheable has the members of modern results that can be cached.
type cacheable struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
	TTL        int    `json:"ttlMs"`
	CacheScope string `json:"cacheScope"`
}

var cachePolicy = cacheable{ResultType: "complete", TTL: 60_000, CacheScope: "public"}

type (
	findParams struct {
		mcp.ParamsBase
		URI    string `json:"uri,omitempty"`
		Cursor string `json:"cursor,omitempty"`
	}
	skillList struct {
		cacheable
		Skills     []skillEntry `json:"skills"`
		NextCursor string       `json:"nextCursor,omitempty"`
	}
	skillResult struct {
		cacheable
		Skill skillEntry `json:"skill"`
	}
	directory struct {
		cacheable
		Resources []*mcp.Resource `json:"resources"`
	}
)

func addSkills(server *mcp.Server) {
	for _, s := range skills {
		for file, text := range s.files {
			resource := s.resource(file)
			contents := &mcp.ResourceContents{URI: resource.URI, MIMEType: markdown, Text: text}
			server.AddResource(resource, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
			})
		}
	}
	custom(server, "skills/list", listSkills)
	custom(server, "skills/get", getSkill)
	custom(server, "resources/directory/read", readDirectory)
}

// resource returns a file of a skill as a resource.
func (s skill) resource(file string) *mcp.Resource {
	resource := &mcp.Resource{URI: s.uri(file), Name: path.Base(file), MIMEType: markdown}
	if file == "SKILL.md" {
		resource.Name, resource.Description = s.name, s.description
	}
	return resource
}

// listSkills returns one skill per page.
func listSkills(params *findParams) (*skillList, error) {
	i := slices.IndexFunc(skills, func(s skill) bool { return params.Cursor == "" || params.Cursor == s.name })
	if i < 0 {
		return nil, invalidParams("unknown cursor")
	}
	list := &skillList{cacheable: cachePolicy, Skills: []skillEntry{skills[i].entry()}}
	if i+1 < len(skills) {
		list.NextCursor = skills[i+1].name
	}
	return list, nil
}

func getSkill(params *findParams) (*skillResult, error) {
	for _, s := range skills {
		if s.uri("SKILL.md") == params.URI {
			return &skillResult{cachePolicy, s.entry()}, nil
		}
	}
	return nil, invalidParams("uri: unknown skill")
}

func readDirectory(params *findParams) (*directory, error) {
	for _, s := range skills {
		found := &directory{cacheable: cachePolicy}
		folders := map[string]bool{}
		for _, file := range slices.Sorted(maps.Keys(s.files)) {
			rest, ok := strings.CutPrefix(s.uri(file), params.URI+"/")
			if !ok {
				continue
			}
			folder, _, deeper := strings.Cut(rest, "/")
			switch {
			case !deeper:
				found.Resources = append(found.Resources, s.resource(file))
			case !folders[folder]:
				folders[folder] = true
				found.Resources = append(found.Resources, &mcp.Resource{URI: params.URI + "/" + folder, Name: folder,
					MIMEType: "inode/directory"})
			}
		}
		if found.Resources != nil {
			return found, nil
		}
	}
	return nil, invalidParams("uri: not a directory")
}

func invalidParams(message string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
}
