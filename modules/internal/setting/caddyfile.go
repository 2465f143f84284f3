// Package setting reads settings from the Caddyfile and the environment, the same way
// and with the same errors for all modules.
package setting

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// A Line reads the arguments, and the block, of one subdirective. When it is called,
// d.Val() is the name of the subdirective.
type Line func(d *caddyfile.Dispenser) error

// Lines are the subdirectives of a block, by name.
type Lines map[string]Line

// Unknown in Lines is for all names that Lines does not have. By default, these are
// refused.
const Unknown = ""

// Words returns the names of the subdirectives, in order.
func (l Lines) Words() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l)), func(name string) bool { return name == Unknown })
}

// Block reads a block. A subdirective may occur once, except for those in repeatable.
func Block(d *caddyfile.Dispenser, lines Lines, repeatable ...string) error {
	return Checked(d, lines, func() error { return nil }, repeatable...)
}

// Checked reads a block as Block does, and then checks what was read. The error of the check
// names a subdirective first, and is reported at the line of that; without such a line, at that
// of the directive.
func Checked(d *caddyfile.Dispenser, lines Lines, check func() error, repeatable ...string) error {
	directive, written := d.Token(), map[string]caddyfile.Token{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		line, known := lines[name]
		if !known {
			line = lines[Unknown]
		}
		_, seen := written[name]
		switch {
		case line == nil:
			return Refused(d, lines.Words(), nil)
		case known && seen && !slices.Contains(repeatable, name):
			return d.Errf("%s is given twice", name)
		}
		written[name] = d.Token()
		if err := line(d); err != nil {
			return err
		}
	}
	if err := check(); err != nil {
		return At(lineOf(err, written, directive), err)
	}
	return nil
}

// lineOf returns the token of the first subdirective that an error names, or else the directive.
func lineOf(err error, written map[string]caddyfile.Token, directive caddyfile.Token) caddyfile.Token {
	for word := range strings.FieldsSeq(err.Error()) {
		if token, ok := written[strings.Trim(word, `:,;"`)]; ok {
			return token
		}
	}
	return directive
}

// CheckCopy returns a check for Checked. It runs checks that fill in defaults on a deep copy of a configuration, in
// order, and returns the first error.
func CheckCopy[T any](config *T, checks ...func(*T) error) func() error {
	return func() error {
		copied := new(T)
		if err := json.Unmarshal(caddyconfig.JSON(config, nil), copied); err != nil {
			return err
		}
		for _, check := range checks {
			if err := check(copied); err != nil {
				return err
			}
		}
		return nil
	}
}

// At returns an error with the file and line of a token.
func At(token caddyfile.Token, err error) error {
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return d.WrapErr(err)
}

// Check reads a line, and then checks what was read. The error of the check names the
// subdirective.
func Check(line Line, check func() error) Line {
	return func(d *caddyfile.Dispenser) error {
		at := d.Token()
		if err := line(d); err != nil {
			return err
		}
		if err := check(); err != nil {
			return At(at, err)
		}
		return nil
	}
}

// Expected returns the error about a line with other arguments than it takes. It does not repeat
// them: they may be secrets.
func Expected(d *caddyfile.Dispenser, name, arguments string) error {
	return d.Errf("%s: expected \"%s\"", name, strings.TrimSpace(name+" "+arguments))
}

// Guest reads a line that names a module, such as "backend heuristic". The error about an unknown
// name lists those that there are; kind says what they are.
func Guest(d *caddyfile.Dispenser, namespace, kind string) (name string, module caddyfile.Unmarshaler, err error) {
	line := d.Val()
	if !d.NextArg() {
		return "", nil, Expected(d, line, "<"+kind+">")
	}
	name = d.Val()
	if _, err := caddy.GetModule(namespace + "." + name); err != nil {
		return "", nil, d.Errf("%s: unknown %s %q; expected %s", line, kind, name, oneOf(guests(namespace)))
	}
	module, err = caddyfile.UnmarshalModule(d, namespace+"."+name)
	return name, module, err
}

func guests(namespace string) (names []string) {
	for _, module := range caddy.GetModules(namespace) {
		names = append(names, module.ID.Name())
	}
	return names
}

// oneOf returns words as a sentence has them: a, b or c.
func oneOf(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Argument reads one argument. The error of parse need not name the subdirective.
func Argument[T any](field *T, parse func(arg string) (T, error)) Line {
	return argument(field, "<value>", parse)
}

// argument reads one argument. The form says what it is.
func argument[T any](field *T, form string, parse func(arg string) (T, error)) Line {
	return func(d *caddyfile.Dispenser) (err error) {
		name := d.Val()
		var arg string
		if !d.AllArgs(&arg) {
			return Expected(d, name, form)
		}
		if *field, err = parse(arg); err != nil {
			return d.Errf("%s: %w", name, err)
		}
		return nil
	}
}

// Number reads a whole number.
func Number(field *int) Line { return argument(field, "<number>", number) }

// NotNegative reads a whole number from 0.
func NotNegative(field *int) Line {
	return argument(field, "<number>", func(arg string) (int, error) {
		n, err := number(arg)
		if err == nil && n < 0 {
			err = fmt.Errorf("%d is negative", n)
		}
		return n, err
	})
}

func number(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", arg)
	}
	return n, nil
}

// Positive reads a whole number above 0.
func Positive(field *int) Line {
	return argument(field, "<number>", func(arg string) (int, error) {
		n, err := number(arg)
		if err == nil && n <= 0 {
			err = fmt.Errorf("%d is not positive", n)
		}
		return n, err
	})
}

// Duration reads a positive duration.
func Duration(field *caddy.Duration) Line {
	return argument(field, "<duration>", func(arg string) (caddy.Duration, error) {
		duration, err := ParseDuration(arg)
		if err == nil && duration <= 0 {
			err = fmt.Errorf("%s is not positive", arg)
		}
		return caddy.Duration(duration), err
	})
}

// ParseDuration parses a duration. Its errors say how one is written.
func ParseDuration(arg string) (time.Duration, error) {
	duration, err := caddy.ParseDuration(arg)
	if err == nil {
		return duration, nil
	}
	if _, err := strconv.ParseFloat(arg, 64); err == nil {
		return 0, fmt.Errorf("%q has no unit; write %sms or %ss", arg, arg, arg)
	}
	return 0, fmt.Errorf("%q is not a duration such as 500ms, 30s or 5m", arg)
}

// Size reads a size, such as 8MiB.
func Size(field *int64) Line {
	return argument(field, "<size>", func(arg string) (int64, error) {
		size, err := humanize.ParseBytes(arg)
		if err != nil || size > 1<<40 {
			return 0, fmt.Errorf("%q is not a size such as 8MiB", arg)
		}
		return int64(size), nil
	})
}

// Name reads a text that may be empty, for none.
func Name(field *string) Line {
	return argument(field, "<name>", func(arg string) (string, error) { return arg, nil })
}

// Text reads a text that is not empty.
func Text(field *string) Line {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		if !d.AllArgs(field) {
			return Expected(d, name, "<text>")
		}
		if *field == "" {
			return d.Errf("%s is empty", name)
		}
		return nil
	}
}

// Secret reads a text that must not appear in errors.
func Secret(field *string) Line {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		args := d.RemainingArgs()
		if len(args) != 1 {
			return Expected(d, name, "<"+name[strings.LastIndexByte(name, '_')+1:]+">")
		}
		if args[0] == "" {
			return d.Errf("%s is empty", name)
		}
		*field = args[0]
		return nil
	}
}

// List appends one or more arguments. The error about none calls them by their kind.
func List(field *[]string, kind ...string) Line {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		args := d.RemainingArgs()
		if len(args) == 0 {
			return Expected(d, name, "<"+cmp.Or(strings.Join(kind, " "), "values")+"...>")
		}
		*field = append(*field, args...)
		return nil
	}
}

// Switch reads on or off. Without an argument it is on.
func Switch(field *bool) Line {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		args := d.RemainingArgs()
		switch {
		case len(args) == 0:
			*field = true
		case len(args) == 1 && (args[0] == "on" || args[0] == "true"):
			*field = true
		case len(args) == 1 && (args[0] == "off" || args[0] == "false"):
			*field = false
		default:
			return d.Errf("%s is on or off, not %q", name, strings.Join(args, " "))
		}
		return nil
	}
}

// Optional reads a field that is nil unless it is set.
func Optional[T any](field **T, line func(*T) Line) Line {
	return func(d *caddyfile.Dispenser) error {
		*field = new(T)
		return line(*field)(d)
	}
}

// NotZero reads a field for which 0 means the default, so that it cannot be set.
func NotZero[T comparable](field *T, line func(*T) Line, refusal string) Line {
	return func(d *caddyfile.Dispenser) error {
		if err := line(field)(d); err != nil {
			return err
		}
		if *field == *new(T) {
			return d.Err(refusal)
		}
		return nil
	}
}
