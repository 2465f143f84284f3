package mcpgateway

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
)

// ImportServers returns a Caddyfile with the servers of a file of an MCP client. The notes name
// settings that it ignores, and variables to set. Unless secrets is true, environment variables
// replace texts that look like secrets. A file without servers is an error, with notes.
func ImportServers(content []byte, path, gateway string, secrets bool) (caddyfile string, notes []string, err error) {
	file, err := parseServersFile(content, path)
	if err != nil {
		return "", nil, err
	}
	if err := file.checkURLs(); err != nil {
		return "", nil, err
	}
	var hidden []mcpjson.Secret
	if !secrets {
		hidden = file.HideSecrets()
	}
	caddyfile = (&caddyfilePrinter{gateway: gateway, file: file, secrets: hidden}).print()
	for _, note := range file.Notes {
		notes = append(notes, file.linePrefix(note.Line)+note.String())
	}
	for _, s := range hidden {
		notes = append(notes, fmt.Sprintf("%s: set %s to the value in the file: %s of %s",
			file.path, s.Variable, s.Member, s.Server))
	}
	if len(file.Servers) == 0 {
		return "", notes, fmt.Errorf("%s: no servers to import", file.path)
	}
	return caddyfile, notes, nil
}

// A caddyfilePrinter writes the servers of a file as a Caddyfile.
type caddyfilePrinter struct {
	gateway string // name of the gateway, or ""
	file    *serversFile
	secrets []mcpjson.Secret // replaced by environment variables

	strings.Builder
}

func (p *caddyfilePrinter) print() string {
	var servers strings.Builder
	for _, s := range p.file.Servers {
		servers.WriteString(p.server(s)) // before comments, because it can add notes
	}
	p.comments()
	p.WriteString(":8080 {\n\tbind 127.0.0.1\n\tmcp_console\n\tmcp_gateway {\n")
	if p.gateway != "" {
		p.WriteString("\t\tname " + quote(p.gateway) + "\n")
	}
	p.WriteString("\t\tseparator __\n\t\tmask {\n\t\t\tjson on\n\t\t}\n\t\tfocus on\n\n" + servers.String() + "\t}\n}\n")
	return p.String()
}

// comments prints the notes as comments.
func (p *caddyfilePrinter) comments() {
	p.comment("Servers of %s, by caddy mcp import.", filepath.Base(p.file.path))
	if names := p.file.Variables(); len(names) > 0 {
		p.comment("Set these environment variables: %s.", strings.Join(names, ", "))
	}
	for _, secret := range p.secrets {
		p.comment("%s has its value in the file: %s of %s.", secret.Variable, secret.Member, secret.Server)
	}
	for _, note := range p.file.Notes {
		p.comment("%s", note)
	}
}

// comment prints one comment. It breaks up {$, because Caddy replaces {$NAME} even in comments.
func (p *caddyfilePrinter) comment(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "{$", "{ $")
	p.WriteString("# " + text + "\n")
}

// server returns the server line and block.
func (p *caddyfilePrinter) server(s *mcpjson.Server) string {
	line := []string{"server", s.Name}
	var block [][]string
	if s.URL != nil {
		line = append(line, p.address(s))
	} else {
		line = append(line, "stdio")
	}
	for _, arg := range s.Command {
		line = append(line, p.value(s, arg))
	}
	if s.Timeout > 0 {
		block = append(block, []string{"timeout", s.Timeout.String()})
	}
	if len(s.Expose) > 0 {
		block = append(block, append([]string{"expose"}, s.Expose...))
	}
	if s.Dir != nil {
		block = append(block, []string{"dir", p.value(s, s.Dir)})
	}
	for _, variable := range s.Env {
		block = append(block, []string{"env", quote(escapeEnvironment(variable.Name)), p.value(s, variable.Value)})
	}
	for _, header := range s.Headers {
		block = append(block, []string{"request_header", header.Name, p.value(s, header.Value)})
	}
	text := "\t\t" + strings.Join(line, " ")
	if len(block) == 0 {
		return text + "\n"
	}
	text += " {\n"
	for _, words := range block {
		text += "\t\t\t" + strings.Join(words, " ") + "\n"
	}
	return text + "\t\t}\n"
}

// value returns a value for a field in which Caddy replaces placeholders.
func (p *caddyfilePrinter) value(s *mcpjson.Server, v mcpjson.Value) string {
	var b strings.Builder
	for _, part := range v {
		switch {
		case part.Env == "":
			b.WriteString(escapeEnvironment(escapePlaceholders.Replace(part.Text)))
		case part.Default != nil || strings.HasSuffix(b.String(), `\`): // it would escape a placeholder
			b.WriteString(p.environment(s, part))
		default:
			b.WriteString("{env." + part.Env + "}")
		}
	}
	return quote(b.String())
}

// address returns the URL of a server. Caddy replaces no placeholders in it.
func (p *caddyfilePrinter) address(s *mcpjson.Server) string {
	var b strings.Builder
	for _, part := range s.URL {
		if part.Env == "" {
			b.WriteString(escapeURL.Replace(part.Text))
		} else {
			b.WriteString(p.environment(s, part))
		}
	}
	return quote(b.String())
}

// plainDefault matches texts that can be a default in {$NAME:default} within any quotes.
var plainDefault = regexp.MustCompile("^[^{}\"`\\\\\n]*$")

// environment returns a variable that is replaced when the Caddyfile is read.
func (p *caddyfilePrinter) environment(s *mcpjson.Server, part mcpjson.Part) string {
	if part.Default == nil {
		return "{$" + part.Env + "}"
	}
	if plainDefault.MatchString(*part.Default) {
		return "{$" + part.Env + ":" + *part.Default + "}"
	}
	text := "the default of the variable " + part.Env + " cannot be written in a Caddyfile; set the variable"
	p.file.Notes = append(p.file.Notes, &mcpjson.Note{Line: s.Line, Servers: []string{s.Name}, Text: text})
	return "{$" + part.Env + "}"
}

// escapeEnvironment escapes {$, which starts a variable anywhere in a Caddyfile. {$:{} is a
// variable without a name whose default is a brace.
func escapeEnvironment(text string) string {
	return strings.ReplaceAll(text, "{$", "{$:{}$")
}

var (
	plainToken = regexp.MustCompile(`^(?:[A-Za-z0-9_./:@%+=,?&~-]|\{env\.[A-Za-z0-9_]+\})+$`)
	unquotable = regexp.MustCompile(`\\("|$)`) // cannot be written inside double quotes
)

// quote returns text as a Caddyfile token.
func quote(text string) string {
	switch {
	case plainToken.MatchString(text):
		return text
	case !strings.ContainsAny(text, "\"\\\n"):
		return `"` + text + `"`
	case !strings.Contains(text, "`"):
		return "`" + text + "`"
	case !unquotable.MatchString(text):
		return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
	}
	marker := "TEXT"
	for strings.Contains(text, marker) {
		marker += "_"
	}
	return "<<" + marker + "\n" + text + "\n" + marker
}
