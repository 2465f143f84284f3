// Package setting reads settings from the Caddyfile and the environment, with the same errors for
// all modules.
package setting

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// Directive parses a handler directive whose module T parses its own tokens.
func Directive[T any, P interface {
	*T
	caddyfile.Unmarshaler
	caddyhttp.MiddlewareHandler
}](h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := P(new(T))
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// A Line reads the arguments and the block of a subdirective. When it is called, d.Val() is the
// name of the subdirective.
type Line func(d *caddyfile.Dispenser) error

// Lines are the subdirectives of a block, by name.
type Lines map[string]Line

// Unknown is the key in Lines of a Line for all other names. Without it, unknown names are an
// error.
const Unknown = ""

// Words returns the names of the subdirectives, in order.
func (l Lines) Words() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l)), func(name string) bool { return name == Unknown })
}

// Block reads a block. A subdirective may occur only once, unless repeatable contains it.
func Block(d *caddyfile.Dispenser, lines Lines, repeatable ...string) error {
	return BlockChecked(d, lines, func() error { return nil }, repeatable...)
}

// BlockChecked reads a block like Block, and then calls check. If the error of check names a
// subdirective, it is reported at that line, else at the line of the directive.
func BlockChecked(d *caddyfile.Dispenser, lines Lines, check func() error, repeatable ...string) error {
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
			return UnknownSubdirective(d, lines.Words(), nil)
		case known && seen && !slices.Contains(repeatable, name):
			return d.Errf("%s is given twice", name)
		}
		written[name] = d.Token()
		if err := line(d); err != nil {
			return err
		}
	}
	if err := check(); err != nil {
		return ErrorAt(tokenOf(err, written, directive), err)
	}
	return nil
}

// tokenOf returns the token of the first subdirective that an error names, or else the directive.
func tokenOf(err error, written map[string]caddyfile.Token, directive caddyfile.Token) caddyfile.Token {
	for word := range strings.FieldsSeq(err.Error()) {
		if token, ok := written[strings.Trim(word, `:,;"`)]; ok {
			return token
		}
	}
	return directive
}

// CheckCopy returns a check for BlockChecked. It runs checks on a deep copy of a configuration, in
// order, and returns the first error. So checks may set defaults.
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

// ErrorAt returns an error with the file and line of a token.
func ErrorAt(token caddyfile.Token, err error) error {
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return d.WrapErr(err)
}

// Check reads a line and then calls check. Its error is reported at that line, and must name the
// subdirective.
func Check(line Line, check func() error) Line {
	return func(d *caddyfile.Dispenser) error {
		token := d.Token()
		if err := line(d); err != nil {
			return err
		}
		if err := check(); err != nil {
			return ErrorAt(token, err)
		}
		return nil
	}
}

// Expected returns the error for a line with wrong arguments. It does not repeat them, because they
// may be secrets.
func Expected(d *caddyfile.Dispenser, name, arguments string) error {
	return d.Errf("%s: expected \"%s\"", name, strings.TrimSpace(name+" "+arguments))
}

// Module reads a line that names a module, such as "backend heuristic". kind is the word for
// modules of the namespace in errors. The error for an unknown name lists them, and the other names
// that the caller accepts.
func Module(
	d *caddyfile.Dispenser, namespace, kind string, others ...string,
) (name string, module caddyfile.Unmarshaler, err error) {
	line := d.Val()
	if !d.NextArg() {
		return "", nil, Expected(d, line, "<"+kind+">")
	}
	name = d.Val()
	if _, err := caddy.GetModule(namespace + "." + name); err != nil {
		known := append(moduleNames(namespace), others...)
		return "", nil, d.Errf("%s: unknown %s %q; expected %s", line, kind, name, oneOf(known))
	}
	module, err = caddyfile.UnmarshalModule(d, namespace+"."+name)
	return name, module, err
}

// moduleNames returns the names of the modules in a namespace.
func moduleNames(namespace string) (names []string) {
	for _, module := range caddy.GetModules(namespace) {
		names = append(names, module.ID.Name())
	}
	return names
}

// oneOf joins words: a, b or c.
func oneOf(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Argument reads one argument. The errors of parse need not name the subdirective.
func Argument[T any](field *T, parse func(arg string) (T, error)) Line {
	return argument(field, "<value>", parse)
}

// argument reads one argument. form describes it in errors.
func argument[T any](field *T, form string, parse func(arg string) (T, error)) Line {
	return func(d *caddyfile.Dispenser) (err error) {
		name := d.Val()
		var arg string
		if !d.AllArgs(&arg) {
			return Expected(d, name, form)
		}
		*field, err = parse(arg)
		if err != nil {
			return d.Errf("%s: %w", name, err)
		}
		return nil
	}
}

// Number reads a whole number.
func Number(field *int) Line { return number(field, math.MinInt, "") }

// NotNegative reads a whole number of at least 0.
func NotNegative(field *int) Line { return number(field, 0, "negative") }

// Positive reads a whole number above 0.
func Positive(field *int) Line { return number(field, 1, "not positive") }

// number reads a whole number of at least low. problem is the word for lower ones.
func number(field *int, low int, problem string) Line {
	return argument(field, "<number>", func(arg string) (int, error) {
		n, err := strconv.Atoi(arg)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not a whole number", arg)
		case n < low:
			return n, fmt.Errorf("%d is %s", n, problem)
		}
		return n, nil
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

// ParseDuration parses a duration. Its errors explain the format.
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

// Name reads a text that may be empty.
func Name(field *string) Line {
	return argument(field, "<name>", func(arg string) (string, error) { return arg, nil })
}

// Text reads a non-empty text.
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

// List appends one or more arguments. kind is the word for them in errors. Default: values
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

// Switch reads on or off. No argument means on.
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
			return d.Errf("%s must be on or off, got %q", name, strings.Join(args, " "))
		}
		return nil
	}
}

// Optional reads a field that is nil unless set.
func Optional[T any](field **T, line func(*T) Line) Line {
	return func(d *caddyfile.Dispenser) error {
		*field = new(T)
		return line(*field)(d)
	}
}

// Nested reads a field that is nil unless set, and that parses its own arguments and block.
func Nested[T any, P interface {
	*T
	caddyfile.Unmarshaler
}](field **T) Line {
	return func(d *caddyfile.Dispenser) error {
		*field = new(T)
		return P(*field).UnmarshalCaddyfile(d.NewFromNextSegment())
	}
}

// NotZero reads a field whose zero value means the default and cannot be set. refusal is the error
// for zero.
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

// EnvText returns an environment variable without surrounding whitespace.
func EnvText(name string) string { return strings.TrimSpace(os.Getenv(name)) }

var shellVariable = regexp.MustCompile(`(?:^|\s)\$\{?[A-Z_][A-Z0-9_]*\}?$`)

// IsShellVariable reports whether a text is a variable as shells write it, perhaps after a word
// such as Bearer.
func IsShellVariable(text string) bool { return shellVariable.MatchString(text) }

// EnvInt returns an environment variable that is a whole number. ok is false for any other value. A
// number too large for an int is clamped.
func EnvInt(name string) (n int, ok bool) {
	n, err := strconv.Atoi(EnvText(name))
	return n, err == nil || errors.Is(err, strconv.ErrRange)
}

// Clamp returns n clamped to low..high, and whether it was outside.
func Clamp[T cmp.Ordered](n, low, high T) (clamped T, outside bool) {
	clamped = min(max(n, low), high)
	return clamped, clamped != n
}

// Bounded returns the value n of a setting, clamped to low..high. It warns if n was outside.
func Bounded[T cmp.Ordered](logger *zap.Logger, setting string, n, low, high T) T {
	clamped, outside := Clamp(n, low, high)
	if outside {
		logger.Warn("setting is out of bounds",
			zap.String("setting", setting), zap.Any("value", n), zap.Any("used", clamped))
	}
	return clamped
}

// ShortestKey is the minimum length of a session_key. Programs store the key, so it can be long.
const ShortestKey = 32

// SessionKey returns the session_key of a configuration with placeholders replaced.
func SessionKey(config string) ([]byte, error) {
	key, err := caddy.NewReplacer().ReplaceOrErr(config, true, true)
	if err != nil {
		return nil, err
	}
	if len(key) < ShortestKey {
		return nil, fmt.Errorf("too short: %d characters, need at least %d", len(key), ShortestKey)
	}
	return []byte(key), nil
}

// Advice holds what to write instead of an unknown word, by that word.
type Advice map[string]string

// UnknownSubdirective returns the error that the block has no subdirective with the current word.
// The error includes the advice for the word, or else the most similar known word.
func UnknownSubdirective(d *caddyfile.Dispenser, known []string, advice Advice) error {
	word := d.Val()
	if advised, ok := advice[word]; ok {
		return d.Errf("unknown subdirective %s; %s", word, advised)
	}
	return d.Errf("unknown subdirective %s%s", word, words.DidYouMean(word, known))
}
