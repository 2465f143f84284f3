// Package mcpjson reads the JSON files in which MCP clients list their servers: .mcp.json of Claude
// Code, claude_desktop_config.json, mcp.json of Cursor and VS Code, and those of other clients.
// They differ in the names of members and in the syntax of variables. A member that a gateway does
// not support becomes a note.
package mcpjson

import (
	"bytes"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tailscale/hujson"
)

const (
	// MaxSize is the maximum size of a file in bytes.
	MaxSize = 1 << 20

	maxServers  = 1000
	maxBrackets = 100_000 // bounds the depth of the JSON, and so the stack of its parser
	maxNotes    = 100
)

// A File is the content of a file: its servers, and notes about it.
type File struct {
	Servers []*Server
	Notes   []*Note
}

// A Server is an MCP server of a file: a command or a URL.
type Server struct {
	Name    string // letters, digits, - and _
	Line    int    // line in the file
	Command []Value
	Env     []Setting // for the command, in the order of the file
	Dir     Value     // working directory of the command; nil if the file has none
	URL     Value
	Headers []Setting // for the URL
	Timeout time.Duration
	Expose  []string // only tools to show; nil for all
}

// Values yields all values of the server.
func (s *Server) Values() iter.Seq[Value] {
	values := append(slices.Clone(s.Command), s.Dir, s.URL)
	for _, setting := range slices.Concat(s.Env, s.Headers) {
		values = append(values, setting.Value)
	}
	return slices.Values(values)
}

// A Setting is a value with a name.
type Setting struct {
	Name  string
	Value Value
}

// A Note describes a part of a file that is not imported, or that differs.
type Note struct {
	Line    int      // line in the first server
	Servers []string // names in the file; none if the note is about the whole file
	Text    string
}

func (n *Note) String() string {
	if len(n.Servers) == 0 {
		return n.Text
	}
	return strings.Join(n.Servers, ", ") + ": " + n.Text
}

// Parse reads a file. Comments and trailing commas are allowed. name is the name of the file in
// errors. path is its absolute path, the base of relative paths and ${workspaceFolder}. home is the
// home folder of the user.
func Parse(data []byte, name, path, home string) (*File, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	p := &parser{data: data, name: name, path: path, home: home, file: new(File), inputs: map[string]*string{}}
	switch {
	case len(data) > MaxSize:
		return nil, fmt.Errorf("%s: the file has more than %d bytes", name, MaxSize)
	case bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > maxBrackets:
		return nil, fmt.Errorf("%s: the file has more than %d brackets", name, maxBrackets)
	}
	root, err := hujson.Parse(data)
	if err != nil {
		var invalid error
		root, invalid = hujson.Parse(append(slices.Clip(data), '\n')) // for a comment in the last line
		if invalid != nil {
			return nil, p.syntaxError(err)
		}
	}
	if err := p.parse(root); err != nil {
		return nil, err
	}
	return p.file, nil
}

// A parser reads one file.
type parser struct {
	data []byte
	name string
	path string
	home string
	file *File

	inputs   map[string]*string // default values of VS Code inputs by id
	opencode bool               // {env:NAME} is a variable
	gemini   bool               // $NAME is a variable, and timeouts are in milliseconds
	hub      bool               // an empty variable takes its value from the environment
}

func (p *parser) parse(root hujson.Value) error {
	object, ok := root.Value.(*hujson.Object)
	if !ok {
		return p.errorf(root.StartOffset, "the file is not a JSON object")
	}
	list, err := p.findServers(root, object)
	if err != nil {
		return err
	}
	if len(list.Members) > maxServers {
		return fmt.Errorf("%s: the file has more than %d servers", p.name, maxServers)
	}
	p.readInputs(object)
	p.detectDialect(list)
	if member(object, "mcpServers") != nil && member(object, "mcp") != nil {
		p.note(0, "", "mcp: ignored, because the file has mcpServers; if it excludes servers, remove them there")
	}
	p.noteRules(object)
	lines := map[string]int{}
	named := map[string]*entry{}
	for _, m := range list.Members {
		e := &entry{key: text(m.Name), offset: m.Name.StartOffset}
		if line, defined := lines[e.key]; defined {
			return p.errorf(e.offset, "server %q is already defined at line %d", e.key, line)
		}
		lines[e.key] = p.line(e.offset)
		server, err := p.parseServer(e, m.Value)
		if err != nil {
			return err
		}
		if server == nil {
			continue
		}
		if other := named[server.Name]; other != nil {
			return p.errorf(e.offset, "servers %q and %q both become %s; rename one of them", other.key, e.key, server.Name)
		}
		named[server.Name] = e
		p.file.Servers = append(p.file.Servers, server)
	}
	return nil
}

// An entry is the position of a server in the file.
type entry struct {
	key    string
	offset int
}

// findServers returns the object that lists the servers.
func (p *parser) findServers(root hujson.Value, object *hujson.Object) (*hujson.Object, error) {
	list := member(object, "mcpServers")
	if list == nil {
		list = member(object, "servers")
	}
	if list == nil {
		if list = member(object, "mcp"); list != nil {
			inner, _ := list.Value.(*hujson.Object)
			p.opencode = p.isOpencode(object, inner)
			if inner != nil && member(inner, "servers") != nil {
				p.readInputs(inner)
				list = member(inner, "servers")
			}
		}
	}
	if list == nil {
		return nil, p.errorf(root.StartOffset, "no list of servers: mcpServers, servers or mcp is required")
	}
	found, ok := list.Value.(*hujson.Object)
	if !ok {
		return nil, p.errorf(list.StartOffset, "the list of servers is not a JSON object")
	}
	return found, nil
}

// isOpencode reports whether a file with servers in mcp belongs to opencode. Otherwise it is a
// settings file of VS Code.
func (p *parser) isOpencode(object, mcp *hujson.Object) bool {
	if strings.HasPrefix(filepath.Base(p.path), "opencode.json") {
		return true
	}
	schema := member(object, "$schema")
	return schema != nil && strings.Contains(text(*schema), "opencode") || mcp != nil && member(mcp, "servers") == nil
}

// readInputs reads the inputs that VS Code prompts users for.
func (p *parser) readInputs(object *hujson.Object) {
	list := member(object, "inputs")
	if list == nil {
		return
	}
	inputs, ok := list.Value.(*hujson.Array)
	if !ok {
		return
	}
	for _, element := range inputs.Elements {
		input, ok := element.Value.(*hujson.Object)
		if !ok || member(input, "id") == nil {
			continue
		}
		p.inputs[text(*member(input, "id"))] = nil
		defaultValue := member(input, "default")
		if defaultValue != nil && kind(*defaultValue) == '"' && !hasControl(text(*defaultValue)) {
			value := text(*defaultValue)
			p.inputs[text(*member(input, "id"))] = &value
		}
	}
}

// detectDialect finds out the dialect of the file, where dialects read the same text differently.
func (p *parser) detectDialect(list *hujson.Object) {
	folder := filepath.Base(filepath.Dir(p.path))
	p.gemini = folder == ".gemini" || folder == ".qwen"
	p.hub = folder == "mcphub" || bytes.Contains(p.data, []byte("${cmd:"))
	for _, m := range list.Members {
		server, ok := m.Value.Value.(*hujson.Object)
		if !ok {
			continue
		}
		p.gemini = p.gemini || member(server, "httpUrl") != nil
		env := member(server, "env")
		if env == nil {
			continue
		}
		if variables, ok := env.Value.(*hujson.Object); ok {
			p.hub = p.hub || slices.ContainsFunc(variables.Members, func(v hujson.ObjectMember) bool {
				return kind(v.Value) == 'n'
			})
		}
	}
}

// noteRules notes members of the whole file that restrict servers.
func (p *parser) noteRules(object *hujson.Object) {
	var names []string
	switch {
	case p.opencode:
		names = []string{"tools", "permission"}
	case p.gemini:
		names = []string{"excludeTools", "allowMCPServers", "excludeMCPServers"}
	}
	for _, name := range names {
		if v := member(object, name); v != nil && kind(*v) != 'n' {
			p.note(v.StartOffset, "", name+": ignored; if it excludes servers or tools, remove or deny them")
		}
	}
}

// note adds a note about a server. Servers with the same note share it.
func (p *parser) note(offset int, server, text string) {
	i := slices.IndexFunc(p.file.Notes, func(n *Note) bool { return n.Text == text })
	if i < 0 {
		if len(p.file.Notes) == maxNotes {
			return
		}
		p.file.Notes = append(p.file.Notes, &Note{Line: p.line(offset), Text: text})
		i = len(p.file.Notes) - 1
	}
	if server != "" && !slices.Contains(p.file.Notes[i].Servers, Printable(server)) {
		p.file.Notes[i].Servers = append(p.file.Notes[i].Servers, Printable(server))
	}
}

func (p *parser) line(offset int) int {
	return 1 + bytes.Count(p.data[:offset], []byte("\n"))
}

func (p *parser) errorf(offset int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", p.name, p.line(offset), fmt.Sprintf(format, args...))
}

// syntaxError returns an error of the JSON parser with the name and line first, like other errors.
func (p *parser) syntaxError(err error) error {
	var line, column int
	message := err.Error()
	if n, _ := fmt.Sscanf(message, "hujson: line %d, column %d:", &line, &column); n == 2 {
		_, message, _ = strings.Cut(message, fmt.Sprintf("column %d: ", column))
	}
	return fmt.Errorf("%s:%d: not JSON, at column %d: %s", p.name, line, column, Printable(message))
}

const maxPrintable = 200

// Printable makes text of a file printable on one line of a terminal, and limits its length.
func Printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\ufffd'
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > maxPrintable {
		return string(runes[:maxPrintable]) + "…"
	}
	return text
}

// member returns the value of a member, or nil. The last of several members wins, as in clients.
func member(object *hujson.Object, name string) *hujson.Value {
	for i := len(object.Members) - 1; i >= 0; i-- {
		if text(object.Members[i].Name) == name {
			return &object.Members[i].Value
		}
	}
	return nil
}

// text returns a string without its quotes, or another literal unchanged.
func text(v hujson.Value) string {
	if literal, ok := v.Value.(hujson.Literal); ok {
		return literal.String()
	}
	return ""
}

func kind(v hujson.Value) hujson.Kind { return v.Value.Kind() }
