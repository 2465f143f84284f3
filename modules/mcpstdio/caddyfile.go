package mcpstdio

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// UnmarshalCaddyfile sets up the transport from Caddyfile tokens. Syntax:
//
//	transport mcp_stdio <command> <args...> {
//		env           <name> <value>
//		dir           <directory>
//		framing       newline|content-length
//		isolation     none|shared|session
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
	return setting.Checked(d, setting.Lines{
		"env":           t.unmarshalEnv,
		"dir":           setting.Text(&t.Dir),
		"framing":       setting.Text((*string)(&t.Framing)),
		"isolation":     setting.Text((*string)(&t.Isolation)),
		"roots":         setting.List(&t.Roots, "uris"),
		"start_timeout": setting.Duration(&t.StartTimeout),
		"stop_grace":    setting.Duration(&t.StopGrace),
		"session_ttl":   setting.Duration(&t.SessionTTL),
		"max_line":      setting.Size(&t.MaxLine),
		"max_sessions":  setting.NotNegative(&t.MaxSessions),
	}, t.checkConfig, "env")
}

// checkConfig reports what Validate would refuse.
func (t *Transport) checkConfig() error {
	copied, err := setting.Copy(t)
	if err != nil {
		return err
	}
	copied.setDefaults()
	return copied.Validate()
}

func (t *Transport) unmarshalEnv(d *caddyfile.Dispenser) error {
	var name, value string
	if !d.AllArgs(&name, &value) {
		return setting.Expected(d, "env", "<name> <value>")
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
