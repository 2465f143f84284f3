package mcpjson

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tailscale/hujson"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// A draft is a server while its members are read.
type draft struct {
	*parser
	*entry
	kind     string // transport: stdio, http or ""
	command  []Value
	args     []Value
	env      []Setting
	cwd      Value
	url      Value
	httpURL  Value
	headers  []Setting
	timeout  time.Duration
	expose   []string
	skipNote *draftNote // why the server is left out; nil if it is not
	notes    []draftNote
	unknown  []string // unknown members
}

// A draftNote is a note about the server. It is dropped if the server is left out.
type draftNote struct {
	offset int
	text   string
}

func (d *draft) note(offset int, text string) {
	d.notes = append(d.notes, draftNote{offset, text})
}

// skip leaves the server out. The note has the first reason.
func (d *draft) skip(offset int, reason string) {
	if d.skipNote == nil {
		d.skipNote = &draftNote{offset, "left out: " + reason}
	}
}

// parseServer reads a server. It returns nil if the server is left out.
func (p *parser) parseServer(e *entry, v hujson.Value) (*Server, error) {
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return nil, p.errorf(v.StartOffset, "server %q is not a JSON object", e.key)
	}
	d := &draft{parser: p, entry: e}
	disabled, err := d.isDisabled(object)
	if err != nil {
		return nil, err
	}
	if disabled {
		p.note(e.offset, e.key, "left out, because the file disables it")
		return nil, nil
	}
	for _, m := range object.Members {
		if err := d.read(text(m.Name), m.Value); err != nil {
			return nil, err
		}
	}
	var server *Server
	if d.skipNote == nil {
		if server, err = d.server(); err != nil {
			return nil, err
		}
	}
	if d.skipNote != nil {
		p.note(d.skipNote.offset, e.key, d.skipNote.text)
		return nil, nil
	}
	for _, note := range d.notes {
		p.note(note.offset, e.key, note.text)
	}
	return server, nil
}

// isDisabled reports whether the file disables the server.
func (d *draft) isDisabled(object *hujson.Object) (bool, error) {
	disabled := false
	for _, name := range []string{"disabled", "enabled"} {
		v := member(object, name)
		if v == nil || kind(*v) == 'n' {
			continue
		}
		if kind(*v) != 't' && kind(*v) != 'f' {
			return false, d.typeError(name, *v, "true or false")
		}
		disabled = disabled || (kind(*v) == 't') == (name == "disabled")
	}
	return disabled, nil
}

// clientMembers are members that only matter to the client of the file.
var clientMembers = []string{
	"disabled", "enabled", "alwaysAllow", "autoApprove", "trust", "description", "icon", "name", "displayName", "title",
	"gallery", "version", "dev", "watchPaths", "alwaysLoad", "comment", "_comment", "$schema",
}

// unsupportedMembers are the notes about members that are not imported.
var unsupportedMembers = map[string]string{
	"envFile":        "envFile: not read; set its variables in env",
	"oauth":          "oauth: not imported; see oauth in the block of a server, and caddy mcp login",
	"auth":           "auth: not imported; see oauth in the block of a server, and caddy mcp login",
	"headersHelper":  "headersHelper: not run; set the headers with request_header",
	"sandbox":        "sandbox: not imported; the server runs without it",
	"sandboxEnabled": "sandboxEnabled: not imported; the server runs without it",
}

// Members that restrict which parts of the server clients may use.
var (
	allowLists = []string{"tools", "includeTools", "enabledTools", "enabled_tools", "allowedTools", "allowed_tools"}
	denyLists  = []string{
		"excludeTools", "disabledTools", "disabled_tools", "disabled_prompts", "disabled_resources",
		"disabled_resourceTemplates",
	}
)

// read reads a member of the server. null counts as absent.
func (d *draft) read(name string, v hujson.Value) (err error) {
	if kind(v) == 'n' {
		return nil
	}
	switch name {
	case "command":
		if kind(v) == '[' {
			d.command, err = d.list(name, v)
			return err
		}
		var command Value
		command, err = d.value(name, v)
		d.command = []Value{command}
	case "args":
		d.args, err = d.list(name, v)
	case "env", "environment":
		d.env, err = d.settings(name, v, d.checkVariable)
	case "cwd":
		d.cwd, err = d.value(name, v)
	case "url", "serverUrl":
		d.url, err = d.value(name, v)
	case "httpUrl":
		d.httpURL, err = d.value(name, v)
	case "headers":
		d.headers, err = d.settings(name, v, d.checkHeader)
	case "type", "transport", "transportType":
		err = d.readKind(name, v)
	case "timeout":
		d.readTimeout(v)
	default:
		d.readOther(name, v)
	}
	return err
}

// readOther reads a member that does not describe the connection.
func (d *draft) readOther(name string, v hujson.Value) {
	switch {
	case slices.Contains(allowLists, name):
		d.readAllowed(name, v)
	case slices.Contains(denyLists, name):
		d.readDenied(name, v)
	default:
		d.ignore(name, v)
	}
}

// ignore notes a member that is not imported, unless it only matters to the client or has no
// effect. A misspelled allow or deny list must not expose all tools, so the server is left out
// then.
func (d *draft) ignore(name string, v hujson.Value) {
	if slices.Contains(clientMembers, name) {
		return
	}
	note, known := unsupportedMembers[name]
	if meant := words.Closest(name, slices.Concat(allowLists, denyLists)); meant != "" && !known {
		d.skip(v.StartOffset, Printable(name)+": unknown, probably "+meant)
		return
	}
	array, isArray := v.Value.(*hujson.Array)
	if kind(v) == 'f' || isArray && len(array.Elements) == 0 {
		return
	}
	if !known {
		d.unknown = append(d.unknown, Printable(name))
		note = Printable(name) + ": unknown, ignored"
	}
	d.note(v.StartOffset, note)
}

func (d *draft) readKind(name string, v hujson.Value) error {
	if kind(v) != '"' {
		return d.typeError(name, v, "a string")
	}
	switch text(v) {
	case "stdio", "local":
		d.kind = "stdio"
	case "http", "https", "streamable-http", "streamableHttp", "streamable_http", "sse", "remote":
		d.kind = "http"
	default:
		d.skip(v.StartOffset, fmt.Sprintf("unsupported %s %q", name, Printable(text(v))))
	}
	return nil
}

// readTimeout reads the timeout of calls, if its unit is known.
func (d *draft) readTimeout(v hujson.Value) {
	number, ok := v.Value.(hujson.Literal)
	switch milliseconds := number.Int(); {
	case ok && d.gemini && 0 < milliseconds && milliseconds < 1<<40:
		d.timeout = time.Duration(milliseconds) * time.Millisecond
	default:
		d.note(v.StartOffset,
			"timeout: not imported, because some clients count seconds and some milliseconds; see response_timeout")
	}
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// readAllowed reads a list of allowed tools. An invalid list must not expose all tools, so the
// server is left out then. With several lists, a tool must be in each.
func (d *draft) readAllowed(name string, v hujson.Value) {
	tools, ok := stringList(v)
	isWrong := func(tool string) bool { return tool != "*" && !toolName.MatchString(tool) }
	switch {
	case !ok || slices.ContainsFunc(tools, isWrong):
		d.skip(v.StartOffset, name+": must be a list of tool names")
		return
	case slices.Contains(tools, "*"):
		return
	case d.expose != nil:
		tools = slices.DeleteFunc(tools, func(tool string) bool { return !slices.Contains(d.expose, tool) })
	}
	if len(tools) == 0 {
		d.skip(v.StartOffset, name+" allows no tools")
	}
	d.expose = tools
}

// readDenied notes a list of denied tools, which is not imported.
func (d *draft) readDenied(name string, v hujson.Value) {
	denied, ok := stringList(v)
	switch {
	case !ok:
		d.skip(v.StartOffset, name+": must be a list of strings")
	case len(denied) > 0:
		d.note(v.StartOffset, name+": not imported, these stay visible; deny them to clients")
	}
}

// stringList returns the elements of a list of strings.
func stringList(v hujson.Value) (elements []string, ok bool) {
	array, ok := v.Value.(*hujson.Array)
	if !ok {
		return nil, false
	}
	for _, element := range array.Elements {
		if kind(element) != '"' {
			return nil, false
		}
		elements = append(elements, text(element))
	}
	return elements, true
}

// server builds the server from its members.
func (d *draft) server() (*Server, error) {
	if d.httpURL != nil {
		d.url = d.httpURL
		if d.kind == "" {
			d.kind = "http"
		}
	}
	switch {
	case d.kind == "" && d.command != nil && d.url != nil:
		return nil, d.errorf(d.offset, "server %q has a command and a url; set type to choose one", d.key)
	case d.kind == "" && d.command != nil:
		d.kind = "stdio"
	case d.kind == "" && d.url != nil:
		d.kind = "http"
	case d.kind == "":
		return nil, d.errorf(d.offset, "server %q has neither command nor url%s", d.key, d.unknownMembers())
	case d.kind == "stdio" && d.command == nil:
		return nil, d.errorf(d.offset, "server %q has no command", d.key)
	case d.kind == "http" && d.url == nil:
		return nil, d.errorf(d.offset, "server %q has no url", d.key)
	}
	name := cleanName(d.key)
	if name == "" {
		return nil, d.errorf(d.offset, "server %q: the name needs ASCII letters or digits; rename it", d.key)
	}
	if name != d.key {
		d.note(d.offset, "is called "+name+" in the gateway")
	}
	s := &Server{Name: name, Line: d.line(d.offset), Timeout: d.timeout, Expose: d.expose}
	if d.kind == "http" {
		s.URL, s.Headers = d.url, d.headers
		if len(d.env) > 0 {
			d.note(d.offset, "env: ignored for a server with a URL")
		}
		return s, nil
	}
	return s, d.setCommand(s)
}

// unknownMembers lists the unknown members, for the error of a server with neither command nor url.
func (d *draft) unknownMembers() string {
	if len(d.unknown) == 0 {
		return ""
	}
	return ", but " + strings.Join(d.unknown, ", ")
}

// setCommand sets the command of a server.
func (d *draft) setCommand(s *Server) error {
	if len(d.command) == 0 || d.command[0][0] == (Part{}) {
		return d.errorf(d.offset, "server %q: command is empty", d.key)
	}
	if len(d.headers) > 0 {
		d.note(d.offset, "headers: ignored for a server with a command")
	}
	program := d.command[0]
	written, _ := program.Resolve(func(string) (string, bool) { return "", false })
	if strings.ContainsAny(written, " \t") {
		const note = "command: contains a space; arguments belong in args"
		if !strings.ContainsAny(written, `/\`) { // not a path: mcp_stdio refuses it
			d.skip(d.offset, note)
			return nil
		}
		if len(d.command)+len(d.args) == 1 {
			d.note(d.offset, note)
		}
	}
	relative := isRelative(program)
	if relative || strings.HasPrefix(program[0].Text, "~/") {
		program = d.resolvePath(program)
	}
	s.Command = slices.Concat([]Value{program}, d.command[1:], d.args)
	s.Env = d.env
	empty := len(d.cwd) == 0 || d.cwd[0] == (Part{})
	switch {
	case !empty:
		s.Dir = d.resolvePath(d.cwd)
	case relative || d.isProjectFile():
		s.Dir = literal(d.workspace())
	}
	return nil
}

// list reads a list of strings.
func (d *draft) list(name string, v hujson.Value) (values []Value, err error) {
	array, ok := v.Value.(*hujson.Array)
	if !ok {
		return nil, d.typeError(name, v, "a list of strings")
	}
	for _, element := range array.Elements {
		value, err := d.value(name, element)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// settings reads an object of strings.
func (d *draft) settings(name string, v hujson.Value, check func(string, hujson.Value) error) ([]Setting, error) {
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return nil, d.typeError(name, v, "an object of strings")
	}
	var settings []Setting
	for _, m := range object.Members {
		key := text(m.Name)
		if name == "headers" && slices.Contains(protocolHeaders, strings.ToLower(key)) {
			continue
		}
		if err := check(key, m.Value); err != nil {
			return nil, err
		}
		value := Value{{Env: key}}
		if name == "headers" || !d.fromEnvironment(key, m.Value) {
			var err error
			value, err = d.value(name, m.Value)
			if err != nil {
				return nil, err
			}
		}
		settings = slices.DeleteFunc(settings, func(s Setting) bool { return s.Name == key })
		settings = append(settings, Setting{key, value})
	}
	return settings, nil
}

// fromEnvironment reports whether a variable takes its value from the environment.
func (d *draft) fromEnvironment(name string, v hujson.Value) bool {
	return kind(v) == 'n' || d.hub && kind(v) == '"' && text(v) == "" && variableName.MatchString(name)
}

// protocolHeaders are headers that the transport sets itself, regardless of the file.
var protocolHeaders = []string{"accept", "content-type", "content-length", "connection", "host"}

func (d *draft) checkVariable(name string, v hujson.Value) error {
	impossible := func(r rune) bool { return strings.ContainsRune("={}", r) || !unicode.IsPrint(r) }
	if name == "" || strings.ContainsFunc(name, impossible) {
		return d.errorf(v.StartOffset, "server %q: env: %q is not the name of a variable", d.key, name)
	}
	if kind(v) == 'n' && !variableName.MatchString(name) {
		return d.errorf(v.StartOffset, "server %q: env: %q has no value", d.key, name)
	}
	return nil
}

var headerName = regexp.MustCompile("^[A-Za-z0-9][A-Za-z0-9!#$%&'*+.^_|~-]*$")

func (d *draft) checkHeader(name string, v hujson.Value) error {
	switch {
	case !headerName.MatchString(name):
		return d.errorf(v.StartOffset, "server %q: headers: %q is not the name of a header", d.key, name)
	case kind(v) == 'n':
		return d.errorf(v.StartOffset, "server %q: headers: %s has no value", d.key, name)
	case strings.Contains(text(v), "\n"):
		return d.errorf(v.StartOffset, "server %q: headers: %s has a line break", d.key, name)
	}
	return nil
}

// value reads a string, or a number or boolean as a string.
func (d *draft) value(name string, v hujson.Value) (Value, error) {
	if _, ok := v.Value.(hujson.Literal); !ok || kind(v) == 'n' {
		return nil, d.typeError(name, v, "a string")
	}
	written := text(v)
	if hasControl(written) {
		return nil, d.errorf(v.StartOffset, "server %q: %s: contains a control character", d.key, name)
	}
	value, reason := d.expand(written)
	if reason != "" {
		d.skip(v.StartOffset, name+": "+reason)
		return nil, nil
	}
	return value, nil
}

// hasControl reports whether a text has control characters other than tabs and line breaks.
func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\n' })
}

func (d *draft) typeError(name string, v hujson.Value, want string) error {
	return d.errorf(v.StartOffset, "server %q: %s: must be %s", d.key, name, want)
}

const maxName = 46 // of the 64 characters of a tool name; 2 are the separator, 16 are left for the tool

var (
	plainName  = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	notInNames = regexp.MustCompile(`[^A-Za-z0-9_-]+`)
	underlines = regexp.MustCompile(`_{2,}`)
)

// reserved are paths of a gateway below mcp_path, which no server can have as its name.
var reserved = []string{"health", "oauth"}

// cleanName returns a name that a gateway and model APIs accept as part of a tool name. Of a path
// such as github.com/user/repo it keeps the last part.
func cleanName(name string) string {
	if !plainName.MatchString(name) || len(name) > maxName || strings.Contains(name, "__") ||
		strings.HasSuffix(name, "_") {
		name = strings.TrimRight(name, "/")
		name = name[strings.LastIndex(name, "/")+1:]
		name = underlines.ReplaceAllString(notInNames.ReplaceAllString(name, "-"), "_")
		name = strings.Trim(name, "-_")
		name = strings.TrimRight(name[:min(len(name), maxName)], "-_")
	}
	if slices.Contains(reserved, name) {
		name += "-server"
	}
	return name
}
