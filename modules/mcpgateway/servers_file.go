package mcpgateway

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// readServers returns the servers in a file of an MCP client, as if server lines had configured
// them, and notes on settings that the gateway ignores. Notes and errors name the file and the
// line.
func readServers(content []byte, path string) (servers []*Server, notes []string, err error) {
	file, err := parseServersFile(content, path)
	if err != nil {
		return nil, nil, err
	}
	if servers, err = file.newServers(); err != nil {
		return nil, nil, err
	}
	for _, note := range file.Notes {
		notes = append(notes, file.linePrefix(note.Line)+note.String())
	}
	return servers, notes, nil
}

// A serversFile is a file of an MCP client.
type serversFile struct {
	*mcpjson.File
	path string // absolute
}

// parseServersFile parses a file of an MCP client. The path may be relative to the current
// directory. It need not exist.
func parseServersFile(content []byte, path string) (*serversFile, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	home, _ := os.UserHomeDir() // "" if it is unknown
	file, err := mcpjson.Parse(content, path, home)
	return &serversFile{file, path}, err
}

// linePrefix returns the position of a line, as a prefix of messages.
func (f *serversFile) linePrefix(line int) string {
	return fmt.Sprintf("%s:%d: ", f.path, line)
}

// newServers returns the servers of the file. It adds notes on environment variables that are not
// set.
func (f *serversFile) newServers() (servers []*Server, err error) {
	for _, listed := range f.Servers {
		s := &Server{Name: listed.Name, Timeout: caddy.Duration(listed.Timeout), Expose: listed.Expose}
		// With an empty variable, a command could use other files, and a URL could name another host.
		needed := append([]mcpjson.Value{listed.URL, listed.Dir}, listed.Command...)
		if len(unset(needed...)) > 0 {
			f.noteUnset(listed, "left out, because its command or URL needs ", needed...)
			continue
		}
		if listed.URL == nil {
			s.proxyToChild(newChild(listed))
		} else {
			s.setHeaders(listed.Headers)
			if err := f.setURL(s, listed); err != nil {
				return nil, err
			}
		}
		f.noteUnset(listed, "needs ", slices.Collect(listed.Values())...)
		servers = append(servers, s)
	}
	return servers, nil
}

// setURL adds a reverse_proxy to the URL of the listed server.
func (f *serversFile) setURL(s *Server, listed *mcpjson.Server) error {
	address, _ := listed.URL.Resolve(os.LookupEnv)
	if err := s.proxyToURL(escapeURL.Replace(address)); err != nil {
		return fmt.Errorf("%sserver %s: %w", f.linePrefix(listed.Line), listed.Name, err)
	}
	return nil
}

// checkURLs checks all URLs without variables. Variables are known only where the servers run.
func (f *serversFile) checkURLs() error {
	for _, listed := range f.Servers {
		if _, known := listed.URL.Literal(); !known || listed.URL == nil {
			continue
		}
		if err := f.setURL(new(Server), listed); err != nil {
			return err
		}
	}
	return nil
}

// noteUnset adds a note if environment variables in the values are not set.
func (f *serversFile) noteUnset(s *mcpjson.Server, needs string, values ...mcpjson.Value) {
	names := unset(values...)
	if len(names) == 0 {
		return
	}
	text := needs + "environment variables that are not set: " + strings.Join(names, ", ")
	f.Notes = append(f.Notes, &mcpjson.Note{Line: s.Line, Servers: []string{s.Name}, Text: text})
}

// unset returns the environment variables in values that are not set.
func unset(values ...mcpjson.Value) (names []string) {
	for _, v := range values {
		_, unset := v.Resolve(os.LookupEnv)
		names = append(names, unset...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// newChild returns the transport of a server with a command.
func newChild(s *mcpjson.Server) *mcpstdio.Transport {
	child := &mcpstdio.Transport{Dir: placeholders(s.Dir)}
	for _, arg := range s.Command {
		child.Command = append(child.Command, placeholders(arg))
	}
	for _, variable := range s.Env {
		if child.Env == nil {
			child.Env = map[string]string{}
		}
		child.Env[variable.Name] = placeholders(variable.Value)
	}
	return child
}

// setHeaders adds a route that sets request headers, as request_header does.
func (s *Server) setHeaders(settings []mcpjson.Setting) {
	var route caddyhttp.Route
	for _, header := range settings {
		set := http.Header{}
		set.Set(header.Name, placeholders(header.Value))
		handler := headers.Handler{Request: &headers.HeaderOps{Set: set}}
		route.HandlersRaw = append(route.HandlersRaw, caddyconfig.JSONModuleObject(handler, "handler", "headers", nil))
	}
	if len(route.HandlersRaw) > 0 {
		s.Routes = append(s.Routes, route)
	}
}

var (
	escapePlaceholders = strings.NewReplacer("{", `\{`, "}", `\}`)
	escapeURL          = strings.NewReplacer("{", "%7B", "}", "%7D")
)

// placeholders returns a value for a field in which Caddy replaces placeholders. Variables become
// placeholders, so that secrets stay in the environment. Other text is escaped. A variable is
// replaced here if it is not set and has a default, or if it follows a backslash, which would
// escape the placeholder.
func placeholders(v mcpjson.Value) string {
	var b strings.Builder
	for _, part := range v {
		value, _ := mcpjson.Value{part}.Resolve(os.LookupEnv)
		isDefault := part.Default != nil && os.Getenv(part.Env) == ""
		if part.Env != "" && !isDefault && !strings.HasSuffix(b.String(), `\`) {
			b.WriteString("{env." + part.Env + "}")
		} else {
			b.WriteString(escapePlaceholders.Replace(value))
		}
	}
	return b.String()
}
