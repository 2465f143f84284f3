package mcpgateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
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
	name string // absolute path, or "standard input"
}

// parseServersFile parses a file of an MCP client. The path may be relative to the current
// directory; - is standard input. The file need not exist.
func parseServersFile(content []byte, path string) (*serversFile, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	name := absolute
	if path == "-" {
		name = "standard input"
	}
	home, _ := os.UserHomeDir() // "" if it is unknown
	file, err := mcpjson.Parse(content, name, absolute, home)
	return &serversFile{file, name}, err
}

// linePrefix returns the position of a line, as a prefix of messages.
func (f *serversFile) linePrefix(line int) string {
	return fmt.Sprintf("%s:%d: ", f.name, line)
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

func init() {
	caddyconfig.RegisterAdapter("mcp", serversAdapter{})
}

// A serversAdapter turns a file in which an MCP client lists its servers into a Caddy
// configuration: a gateway at http://127.0.0.1:8080/mcp and the console, with the settings of
// `caddy mcp import`.
type serversAdapter struct{}

// Adapt implements caddyconfig.Adapter.
func (serversAdapter) Adapt(body []byte, options map[string]any) ([]byte, []caddyconfig.Warning, error) {
	path, _ := options["filename"].(string)
	gateway, warnings, err := newFileGateway(body, path)
	if err != nil {
		return nil, nil, err
	}
	type object = map[string]any
	site := object{
		"listen": []string{"127.0.0.1:8080"},
		"routes": []any{object{"handle": []any{
			object{"handler": "mcp_console"}, caddyconfig.JSONModuleObject(gateway, "handler", "mcp_gateway", nil),
		}}},
	}
	config, err := json.Marshal(object{"apps": object{"http": object{"servers": object{"srv0": site}}}})
	return config, warnings, err
}

// newFileGateway returns the configuration of a gateway with the servers of a file. The gateway
// follows changes of the file, and logs the notes on it. If path is empty or -, the content comes
// from standard input, and its servers become part of the configuration.
func newFileGateway(content []byte, path string) (h *Handler, warnings []caddyconfig.Warning, err error) {
	h = &Handler{
		Separator: "__",
		Mask:      &observationmask.Handler{JSON: true, KeepMedia: true, Recover: new(observationmask.Recover)},
		Focus:     new(Focus),
	}
	path = cmp.Or(path, "-")
	file, err := parseServersFile(content, path)
	if err != nil {
		return nil, nil, err
	}
	servers, err := file.newServers()
	switch {
	case err != nil:
		return nil, nil, err
	case path != "-":
		h.ServersFrom = []string{escapePlaceholders.Replace(file.name)}
		return h, nil, nil
	}
	h.Servers = servers
	for _, note := range file.Notes {
		warnings = append(warnings, caddyconfig.Warning{File: "stdin", Line: note.Line, Message: note.String()})
	}
	return h, warnings, nil
}

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
			file.name, s.Variable, s.Member, s.Server))
	}
	if len(file.Servers) == 0 {
		return "", notes, fmt.Errorf("%s: no servers to import", file.name)
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
	p.comment("Servers of %s, by caddy mcp import.", filepath.Base(p.file.name))
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

// Interface guard
var _ caddyconfig.Adapter = serversAdapter{}
