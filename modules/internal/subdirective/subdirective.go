// Package subdirective reads what the blocks of our directives have in common, so
// that all of them take it alike and refuse it in the same words.
package subdirective

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// Once refuses a subdirective that has been seen already.
func Once(d *caddyfile.Dispenser, seen map[string]bool) error {
	if seen[d.Val()] {
		return d.Errf("%s is given twice", d.Val())
	}
	seen[d.Val()] = true
	return nil
}

// Number reads the one argument of a subdirective that takes a number.
func Number(d *caddyfile.Dispenser) (int, error) {
	name := d.Val()
	var arg string
	if !d.AllArgs(&arg) {
		return 0, d.ArgErr()
	}
	n, err := strconv.Atoi(arg)
	if err != nil {
		return 0, d.Errf("%s: %q is not a whole number", name, arg)
	}
	return n, nil
}

// Text reads the one argument of a subdirective that takes a text, which must not be
// empty.
func Text(d *caddyfile.Dispenser) (string, error) {
	name := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return "", d.ArgErr()
	}
	if text == "" {
		return "", d.Errf("%s is empty", name)
	}
	return text, nil
}

// Secret is Text for what must not be repeated in errors.
func Secret(d *caddyfile.Dispenser) (string, error) {
	name := d.Val()
	args := d.RemainingArgs()
	if len(args) != 1 || args[0] == "" {
		return "", d.Errf("%s: one argument is expected", name)
	}
	return args[0], nil
}

// List adds the arguments of a subdirective, which takes one at least, to a list.
func List(d *caddyfile.Dispenser, list *[]string) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.ArgErr()
	}
	*list = append(*list, args...)
	return nil
}

// Size reads the one argument of a subdirective that takes a size.
func Size(d *caddyfile.Dispenser) (int64, error) {
	name := d.Val()
	var arg string
	if !d.AllArgs(&arg) {
		return 0, d.ArgErr()
	}
	size, err := humanize.ParseBytes(arg)
	if err != nil || size > 1<<40 {
		return 0, d.Errf("%s: %q is not a size", name, arg)
	}
	return int64(size), nil
}

// Duration reads the one argument of a subdirective that takes a duration, which
// must be positive.
func Duration(d *caddyfile.Dispenser) (caddy.Duration, error) {
	name := d.Val()
	var arg string
	if !d.AllArgs(&arg) {
		return 0, d.ArgErr()
	}
	duration, err := caddy.ParseDuration(arg)
	if err != nil {
		return 0, d.Errf("%s: %v", name, err)
	}
	if duration <= 0 {
		return 0, d.Errf("%s: %s is not positive", name, arg)
	}
	return caddy.Duration(duration), nil
}

// Switch reads on, off or nothing, which means on.
func Switch(d *caddyfile.Dispenser) (bool, error) {
	name := d.Val()
	args := d.RemainingArgs()
	if len(args) == 0 {
		return true, nil
	}
	if len(args) == 1 {
		switch args[0] {
		case "on", "true":
			return true, nil
		case "off", "false":
			return false, nil
		}
	}
	return false, d.Errf("%s is on or off, not %q", name, args)
}
