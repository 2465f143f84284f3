package mcpstdio

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
)

// UnmarshalCaddyfile sets up the transport from Caddyfile tokens. Syntax:
//
//	transport mcp_stdio <command> <args...> {
//		env           <name> <value>
//		dir           <directory>
//		framing       newline|content-length
//		isolation     shared|session
//		roots         <uris...>
//		start_timeout <duration>
//		stop_grace    <duration>
//		max_line      <size>
//		max_sessions  <number>
//		session_ttl   <duration>
//	}
func (t *Transport) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume transport name

	if t.Command = d.RemainingArgs(); len(t.Command) == 0 {
		return d.Errf("mcp_stdio: command: missing")
	}
	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		if name != "env" { // it has a line for each variable
			if err := subdirective.Once(d, seen); err != nil {
				return err
			}
		}
		if err := t.unmarshal(d, name); err != nil {
			return err
		}
	}
	return nil
}

// unmarshal reads one line of the block.
func (t *Transport) unmarshal(d *caddyfile.Dispenser, name string) (err error) {
	var text string
	switch name {
	case "env":
		err = t.unmarshalEnv(d)
	case "dir":
		t.Dir, err = subdirective.Text(d)
	case "framing":
		text, err = subdirective.Text(d)
		t.Framing = stdio.Framing(text)
	case "isolation":
		text, err = subdirective.Text(d)
		t.Isolation = stdio.Isolation(text)
	case "roots":
		err = subdirective.List(d, &t.Roots)
	case "start_timeout":
		t.StartTimeout, err = subdirective.Duration(d)
	case "stop_grace":
		t.StopGrace, err = subdirective.Duration(d)
	case "session_ttl":
		t.SessionTTL, err = subdirective.Duration(d)
	case "max_line":
		t.MaxLine, err = subdirective.Size(d)
	case "max_sessions":
		t.MaxSessions, err = subdirective.Number(d)
	default:
		return d.Errf("unknown subdirective %s", name)
	}
	return err
}

func (t *Transport) unmarshalEnv(d *caddyfile.Dispenser) error {
	var name, value string
	if !d.AllArgs(&name, &value) {
		return d.ArgErr()
	}
	if err := validName(name); err != nil {
		return d.WrapErr(err)
	}
	if _, given := t.Env[name]; given {
		return d.Errf("env %s is given twice", name)
	}
	if t.Env == nil {
		t.Env = map[string]string{}
	}
	t.Env[name] = value
	return nil
}

func validName(name string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return fmt.Errorf("env: %q is not the name of a variable", name)
	}
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Transport)(nil)
