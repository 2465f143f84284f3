package mcpjson

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Value is a text of a file, split into literal text and variables, so that secrets stay in the
// environment.
type Value []Part

// A Part of a value is literal text or an environment variable.
type Part struct {
	Text    string
	Env     string  // name of the variable; "" for text
	Default *string // value if the variable is not set or empty; nil for none
}

// Resolve returns the text of a value, and the variables in it that are not set.
func (v Value) Resolve(lookup func(name string) (string, bool)) (text string, unset []string) {
	var b strings.Builder
	for _, part := range v {
		value, set := part.Text, true
		if part.Env != "" {
			value, set = part.lookup(lookup)
		}
		if !set {
			unset = append(unset, part.Env)
		}
		b.WriteString(value)
	}
	return b.String(), unset
}

func (p Part) lookup(lookup func(name string) (string, bool)) (value string, set bool) {
	value, set = lookup(p.Env)
	if p.Default != nil && value == "" {
		return *p.Default, true
	}
	return value, set
}

// Literal returns the text of a value without variables.
func (v Value) Literal() (text string, ok bool) {
	if slices.ContainsFunc(v, func(p Part) bool { return p.Env != "" }) {
		return "", false
	}
	text, _ = v.Resolve(nil)
	return text, true
}

// literal returns a value without variables.
func literal(text string) Value {
	return Value(nil).add(Part{Text: text})
}

// add appends a part. Adjacent texts are merged.
func (v Value) add(part Part) Value {
	last := len(v) - 1
	switch {
	case part.Env != "" && last == 0 && v[0] == (Part{}):
		return append(v[:0], part)
	case part.Env != "":
		return append(v, part)
	case part.Text == "" && len(v) > 0:
		return v
	case last >= 0 && v[last].Env == "":
		v[last].Text += part.Text
		return v
	}
	return append(v, part)
}

// Syntax of variables.
var (
	inBraces        = regexp.MustCompile(`\$\{[^}]*\}`)
	inBracesOrPlain = regexp.MustCompile(`\$\{[^}]*\}|\$[A-Za-z_][A-Za-z0-9_]*`)
	inOpencode      = regexp.MustCompile(`\{(?:env|file):[^}]*\}`)
	variableName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	editorVariable  = regexp.MustCompile(`^[A-Za-z]+:`)
	notInVariables  = regexp.MustCompile(`[^A-Z0-9]+`)
)

// expand splits a text into parts. If it contains a variable that a gateway cannot resolve, it
// returns the reason.
func (p *parser) expand(text string) (v Value, reason string) {
	pattern := inBraces
	switch {
	case p.opencode:
		pattern = inOpencode
	case p.gemini:
		pattern = inBracesOrPlain
	}
	end := 0
	for _, span := range pattern.FindAllStringIndex(text, -1) {
		v = v.add(Part{Text: text[end:span[0]]})
		part, reason := p.variable(text[span[0]:span[1]])
		if reason != "" {
			return nil, reason
		}
		v = v.add(part)
		end = span[1]
	}
	return v.add(Part{Text: text[end:]}), ""
}

// variable returns the value of a variable, which is written with its dollar sign and braces.
func (p *parser) variable(written string) (part Part, reason string) {
	name := strings.Trim(written, "${}")
	name, defaultValue, hasDefault := strings.Cut(name, ":-")
	switch name {
	case "userHome":
		return Part{Text: p.home}, ""
	case "workspaceFolder", "workspaceRoot", "cwd", "CLAUDE_PROJECT_DIR":
		return Part{Text: p.workspace()}, ""
	case "workspaceFolderBasename":
		return Part{Text: filepath.Base(p.workspace())}, ""
	case "/", "pathSeparator":
		return Part{Text: string(os.PathSeparator)}, ""
	}
	name = strings.TrimPrefix(name, "env:")
	switch id, isInput := strings.CutPrefix(name, "input:"); {
	case isInput:
		variable := "INPUT_" + toVariableName(id)
		return Part{Env: variable, Default: p.inputs[id]}, ""
	case variableName.MatchString(name) && strings.Contains(defaultValue, "${"):
		return Part{}, "${" + name + ":-…} has a variable in its default, which is not supported"
	case variableName.MatchString(name) && hasDefault:
		return Part{Env: name, Default: &defaultValue}, ""
	case variableName.MatchString(name):
		return Part{Env: name}, ""
	case strings.HasPrefix(name, "cmd:"), strings.HasPrefix(name, "command:"):
		return Part{}, "${cmd: …} is not supported: the gateway runs no commands for variables"
	case editorVariable.MatchString(name):
		return Part{}, fmt.Sprintf("only the client knows %q", Printable(written))
	}
	return Part{Text: written}, ""
}

// projectFolders are the folders of a project in which clients keep their files.
var projectFolders = []string{".vscode", ".cursor", ".roo", ".kilocode", ".gemini", ".qwen"}

// workspace returns the folder of the project that the file belongs to.
func (p *parser) workspace() string {
	folder := filepath.Dir(p.path)
	if slices.Contains(projectFolders, filepath.Base(folder)) {
		return filepath.Dir(folder)
	}
	return folder
}

// isProjectFile reports whether the file belongs to a project. Clients run its servers in the
// project folder.
func (p *parser) isProjectFile() bool {
	base := filepath.Base(p.path)
	return base == ".mcp.json" || strings.HasPrefix(base, "opencode.json") || p.workspace() != filepath.Dir(p.path)
}

// isRelative reports whether a value is a path below the workspace, not a name to look up in PATH.
func isRelative(v Value) bool {
	return len(v) > 0 && v[0].Env == "" && strings.ContainsAny(v[0].Text, "/"+string(os.PathSeparator)) &&
		!filepath.IsAbs(v[0].Text) && !strings.HasPrefix(v[0].Text, "/") && !strings.HasPrefix(v[0].Text, "~")
}

// resolvePath makes a path absolute: relative to the workspace or, with ~, to the home folder.
func (p *parser) resolvePath(v Value) Value {
	if len(v) == 0 || v[0].Env != "" {
		return v
	}
	first := v[0].Text
	switch {
	case first == "~" || strings.HasPrefix(first, "~/"):
		first = p.home + first[1:]
	case filepath.IsAbs(first):
		return v
	default:
		first = p.workspace() + string(os.PathSeparator) + strings.TrimPrefix(first, "./")
	}
	if len(v) == 1 {
		first = filepath.Clean(first)
	}
	return append(literal(first), v[1:]...)
}
