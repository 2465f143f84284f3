package mcpstdio

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// UnmarshalCaddyfile sets up the transport from Caddyfile tokens. Syntax:
//
//	transport mcp_stdio <command> <args...> {
//		env           <name> <value>
//		env           inherit <names...>
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

	t.Command = d.RemainingArgs()
	if len(t.Command) == 0 {
		return d.Errf("mcp_stdio: command: missing")
	}
	return setting.BlockChecked(d, setting.Lines{
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
	}, setting.CheckCopy(t, (*Transport).checkConfig), "env")
}

// checkConfig sets defaults and validates the configuration.
func (t *Transport) checkConfig() error {
	t.setDefaults()
	return t.Validate()
}

// unmarshalEnv reads a variable and its value, or the names after inherit. A variable named inherit
// cannot be set.
func (t *Transport) unmarshalEnv(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) > 1 && args[0] == "inherit" {
		t.InheritEnv = append(t.InheritEnv, args[1:]...)
		return nil
	}
	if len(args) != 2 {
		return d.Err(`env: expected "env <name> <value>" or "env inherit <names...>"`)
	}
	name, value := args[0], args[1]
	if err := validateName(name); err != nil {
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

// Interface guard
var _ caddyfile.Unmarshaler = (*Transport)(nil)
