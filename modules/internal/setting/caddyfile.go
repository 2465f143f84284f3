// Package setting reads settings from the Caddyfile and the environment, the same way
// and with the same errors for all modules.
package setting

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2"
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

// Block reads a block. A subdirective may occur once, except for those in repeatable.
func Block(d *caddyfile.Dispenser, lines Lines, repeatable ...string) error {
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		line, known := lines[name]
		if !known {
			line = lines[Unknown]
		}
		switch {
		case line == nil:
			return d.Errf("unknown subdirective %s", name)
		case known && seen[name] && !slices.Contains(repeatable, name):
			return d.Errf("%s is given twice", name)
		}
		seen[name] = true
		if err := line(d); err != nil {
			return err
		}
	}
	return nil
}

// Argument reads one argument. The error of parse need not name the subdirective.
func Argument[T any](field *T, parse func(arg string) (T, error)) Line {
	return func(d *caddyfile.Dispenser) (err error) {
		name := d.Val()
		var arg string
		if !d.AllArgs(&arg) {
			return d.ArgErr()
		}
		if *field, err = parse(arg); err != nil {
			return d.Errf("%s: %w", name, err)
		}
		return nil
	}
}

// Number reads a whole number.
func Number(field *int) Line { return Argument(field, number) }

func number(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", arg)
	}
	return n, nil
}

// Positive reads a whole number above 0.
func Positive(field *int) Line {
	return Argument(field, func(arg string) (int, error) {
		n, err := number(arg)
		if err == nil && n <= 0 {
			err = fmt.Errorf("%d is not positive", n)
		}
		return n, err
	})
}

// Duration reads a positive duration.
func Duration(field *caddy.Duration) Line {
	return Argument(field, func(arg string) (caddy.Duration, error) {
		duration, err := caddy.ParseDuration(arg)
		if err == nil && duration <= 0 {
			err = fmt.Errorf("%s is not positive", arg)
		}
		return caddy.Duration(duration), err
	})
}

// Size reads a size, such as 8MiB.
func Size(field *int64) Line {
	return Argument(field, func(arg string) (int64, error) {
		size, err := humanize.ParseBytes(arg)
		if err != nil || size > 1<<40 {
			return 0, fmt.Errorf("%q is not a size", arg)
		}
		return int64(size), nil
	})
}

// Name reads a text that may be empty, for none.
func Name(field *string) Line {
	return func(d *caddyfile.Dispenser) error {
		if !d.AllArgs(field) {
			return d.ArgErr()
		}
		return nil
	}
}

// Text reads a text that is not empty.
func Text(field *string) Line {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		if !d.AllArgs(field) {
			return d.ArgErr()
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
		if len(args) != 1 || args[0] == "" {
			return d.Errf("%s: one argument is expected", name)
		}
		*field = args[0]
		return nil
	}
}

// List appends one or more arguments.
func List(field *[]string) Line {
	return func(d *caddyfile.Dispenser) error {
		args := d.RemainingArgs()
		if len(args) == 0 {
			return d.ArgErr()
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
			return d.Errf("%s is on or off, not %q", name, args)
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
