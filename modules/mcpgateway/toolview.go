package mcpgateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// ToolOverride changes how clients see a tool, and the calls of the tool that the server gets. It
// applies at every endpoint. It does not change other texts that mention the tool.
type ToolOverride struct {
	// The name of the tool for clients: up to 128 letters, digits, _, - and dots. Clients cannot use
	// the server's name for it. If the server has another tool with the new name, clients can neither
	// see nor call that one. Default: the server's name for it
	Rename string `json:"rename,omitempty"`

	// The description. Default: the server's
	Describe string `json:"describe,omitempty"`

	// The title. Default: the server's
	Title string `json:"title,omitempty"`

	// The annotations that clients and rules use: read_only, destructive, idempotent or open_world. A
	// destructive tool is not read_only. Default: the server's
	Annotate map[string]bool `json:"annotate,omitempty"`

	// Values for arguments, by name. Clients do not see these arguments, and the server gets these
	// values whatever a client sends. In strings, placeholders such as {env.NAME} and {file.path} are
	// replaced when the configuration is loaded. Names ignore upper and lower case. Default: none
	FixedArguments map[string]json.RawMessage `json:"fixed_arguments,omitempty"`

	// Names of arguments that clients do not see and the server does not get. Default: none
	HiddenArguments []string `json:"hidden_arguments,omitempty"`
}

// parseTool parses a tool block. Syntax:
//
//	tool <name> {
//		rename    <name>
//		describe  <text>
//		annotate  title <text>
//		annotate  read_only | destructive | idempotent | open_world [on | off]
//		arguments fixed <name> <value>
//		arguments hidden <names...>
//	}
//
// A value that is not valid JSON is a string.
func parseTool(s *Server) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		var name string
		if !d.AllArgs(&name) {
			return setting.Expected(d, "tool", "<name>")
		}
		if s.Tools[name] != nil {
			return d.Errf("tool %s is given twice", name)
		}
		t := new(ToolOverride)
		if s.Tools == nil {
			s.Tools = map[string]*ToolOverride{}
		}
		s.Tools[name] = t
		return setting.BlockChecked(d, setting.Lines{
			"rename":    setting.Text(&t.Rename),
			"describe":  setting.Text(&t.Describe),
			"annotate":  t.parseAnnotation,
			"arguments": t.parseArguments,
		}, func() error {
			o, err := t.override(name, nil)
			if err == nil {
				_, err = toolview.NewOverrides([]*toolview.Override{o})
			}
			return err
		}, "annotate", "arguments")
	}
}

// parseAnnotation parses an annotate line.
func (t *ToolOverride) parseAnnotation(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return setting.Expected(d, "annotate", "title <text> | <annotation> [on | off]")
	}
	name := d.Val()
	if name == "title" {
		if t.Title != "" {
			return d.Errf("annotate: title is given twice")
		}
		return setting.Text(&t.Title)(d)
	}
	if _, given := t.Annotate[name]; given {
		return d.Errf("annotate: %s is given twice", name)
	}
	var on bool
	if err := setting.Switch(&on)(d); err != nil {
		return err
	}
	if t.Annotate == nil {
		t.Annotate = map[string]bool{}
	}
	t.Annotate[name] = on
	return nil
}

// parseArguments parses an arguments line.
func (t *ToolOverride) parseArguments(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	switch {
	case len(args) == 3 && args[0] == "fixed":
		if _, given := t.FixedArguments[args[1]]; given {
			return d.Errf("arguments: %s is given twice", args[1])
		}
		value := json.RawMessage(args[2])
		if !json.Valid(value) {
			value = jsonrpc.Quote(args[2])
		}
		if t.FixedArguments == nil {
			t.FixedArguments = map[string]json.RawMessage{}
		}
		t.FixedArguments[args[1]] = value
	case len(args) > 1 && args[0] == "hidden":
		t.HiddenArguments = append(t.HiddenArguments, args[1:]...)
	default:
		return setting.Expected(d, "arguments", "fixed <name> <value> | hidden <names...>")
	}
	return nil
}

// newOverrides validates the overrides of the server and converts them for internal/gateway. If
// repl is nil, placeholders are not replaced.
func (s *Server) newOverrides(repl *caddy.Replacer) (*toolview.Overrides, error) {
	var all []*toolview.Override
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		o, err := s.Tools[name].override(name, repl)
		if err != nil {
			return nil, err
		}
		if s.OAuth != nil && o.Name == gateway.LoginTool {
			return nil, fmt.Errorf("tool %s: rename: %s is reserved for the login tool", name, o.Name)
		}
		all = append(all, o)
	}
	return toolview.NewOverrides(all)
}

// toolName matches valid names of tools.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// override validates the override of a tool and converts it for internal/gateway.
func (t *ToolOverride) override(tool string, repl *caddy.Replacer) (*toolview.Override, error) {
	o := &toolview.Override{Tool: tool}
	err := t.fill(o, repl)
	if err != nil {
		return nil, fmt.Errorf("tool %s: %w", tool, err)
	}
	return o, nil
}

// fill validates the changes and sets them in o.
func (t *ToolOverride) fill(o *toolview.Override, repl *caddy.Replacer) error {
	switch {
	case o.Tool == "":
		return errors.New("name is empty")
	case strings.Contains(o.Tool, mcp.Separator):
		return fmt.Errorf("name contains %s; write tool names without the server name", mcp.Separator)
	case t == nil || t.isEmpty():
		return errors.New("no changes configured")
	case t.Rename != "" && !toolName.MatchString(t.Rename):
		return fmt.Errorf("rename: %q is not a name of up to 128 letters, digits, _, - and dots", t.Rename)
	}
	o.Name, o.Description, o.Title, o.Hidden = t.Rename, t.Describe, t.Title, t.HiddenArguments
	for _, name := range slices.Sorted(maps.Keys(t.Annotate)) {
		annotation, known := mcp.ParseAnnotation(name)
		switch {
		case !known:
			return fmt.Errorf("annotate: unknown annotation %s%s; expected title, %s", name,
				words.DidYouMean(name, mcp.AnnotationNames()), strings.Join(mcp.AnnotationNames(), ", "))
		case t.Annotate[name]:
			o.On |= annotation
		default:
			o.Off |= annotation
		}
	}
	if slices.Contains(o.Hidden, "") {
		return errors.New("arguments: empty name")
	}
	for _, name := range slices.Sorted(maps.Keys(t.FixedArguments)) {
		if name == "" {
			return errors.New("arguments: empty name")
		}
		value, err := replaceTexts(t.FixedArguments[name], repl)
		if err != nil {
			return fmt.Errorf("arguments: %s: %w", name, err)
		}
		o.Fixed = append(o.Fixed, toolview.FixedArgument{Name: name, Value: value})
	}
	return nil
}

// isEmpty reports whether the override changes nothing.
func (t *ToolOverride) isEmpty() bool {
	return t.Rename == "" && t.Describe == "" && t.Title == "" &&
		len(t.Annotate)+len(t.FixedArguments)+len(t.HiddenArguments) == 0
}

// replaceTexts replaces placeholders in the strings of a JSON value. If repl is nil, it does
// nothing.
func replaceTexts(value []byte, repl *caddy.Replacer) ([]byte, error) {
	value = bytes.TrimSpace(value)
	if repl == nil || !bytes.Contains(value, []byte("{")) {
		return value, nil
	}
	var edits []jsonspan.Edit
	var failed error
	replace := func(v jsonspan.Value) {
		replaced, err := replaceTexts(value[v.Start:v.End], repl)
		failed = errors.Join(failed, err)
		edits = append(edits, jsonspan.Edit{Start: v.Start, End: v.End, New: replaced})
	}
	switch value[0] {
	case '"':
		text, err := repl.ReplaceOrErr(jsonspan.Text(value[1:len(value)-1]), true, true)
		return jsonrpc.Quote(text), err
	case '{':
		for m := range jsonspan.Members(value) {
			replace(m.Value)
		}
	case '[':
		for v := range jsonspan.Elements(value) {
			replace(v)
		}
	}
	return jsonspan.Spliced(value, edits...), failed
}

// Focus gives tools an optional argument with which clients say what they look for. A result that
// is too large is then cut to the lines or JSON items that are relevant to it, instead of to head
// and tail. Servers never get the argument. A tool that already has an argument of this name keeps
// it.
type Focus struct {
	// Do not add the argument, for example to the tools of one server. Default: false
	Off bool `json:"off,omitempty"`

	// The name of the argument: up to 64 letters, digits, _ and -. Default: focus
	Argument string `json:"argument,omitempty"`
}

// UnmarshalCaddyfile sets up the argument from Caddyfile tokens. Syntax:
//
//	focus [on|off] {
//		argument <name>
//	}
func (f *Focus) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	var on bool
	if err := setting.Switch(&on)(d); err != nil {
		return err
	}
	f.Off = !on
	return setting.BlockChecked(d, setting.Lines{
		"argument": setting.Text(&f.Argument),
	}, f.check)
}

// argumentName matches names that all model APIs accept.
var argumentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// provision converts the argument for internal/gateway. It returns nil if focus is off.
func (f *Focus) provision() (*toolview.Focus, error) {
	if !f.on() {
		return nil, nil
	}
	f.Argument = cmp.Or(f.Argument, "focus")
	if err := f.check(); err != nil {
		return nil, err
	}
	return toolview.NewFocus(f.Argument), nil
}

// check validates the name of the argument.
func (f *Focus) check() error {
	if f.Argument != "" && !argumentName.MatchString(f.Argument) {
		return fmt.Errorf("argument: %q is not a name of up to 64 letters, digits, _ and -", f.Argument)
	}
	return nil
}

// errNoMask is the error for focus without a mask.
var errNoMask = errors.New("focus: requires mask, which is missing or off")

// on reports whether tools get the argument.
func (f *Focus) on() bool { return f != nil && !f.Off }

// provisionFocus sets the focus of the server. The gateway's focus, the fallback, applies only to
// servers with a mask.
func (s *Server) provisionFocus(fallback *Focus) (err error) {
	switch {
	case s.Focus != nil:
		s.focus, err = s.Focus.provision()
	case s.hasMask && s.mask != nil:
		s.focus, err = fallback.provision()
	}
	return err
}
