package mcpgateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// providers are those of the lines auth, and of the lines token of clients.
type providers []provider

type provider struct {
	name   string
	module any             // nil for noProvider
	at     caddyfile.Token // of noProvider
}

// noProvider is how a configuration says that clients need no credentials.
const noProvider = "none"

// none reports whether clients need no credentials, which there is no other provider for.
func (p *providers) none() (bool, error) {
	none := slices.IndexFunc(*p, func(provider provider) bool { return provider.name == noProvider })
	if none < 0 {
		return false, nil
	}
	if len(*p) > 1 {
		return false, setting.At((*p)[none].at, errors.New("auth none: there is another auth, or a client with a token"))
	}
	*p = nil
	return true, nil
}

// parse reads a line auth.
func (p *providers) parse(d *caddyfile.Dispenser) error {
	at := d.Token()
	if d.CountRemainingArgs() == 1 && d.NextArg() {
		if d.Val() == noProvider {
			*p = append(*p, provider{name: noProvider, at: at})
			return nil
		}
		d.Prev()
	}
	name, module, err := setting.Guest(d, "http.handlers.mcp_gateway.auth", "provider")
	if err != nil {
		return err
	}
	if token, ok := module.(*auth.Token); ok {
		if err := p.add(token.Tokens...); err != nil {
			return setting.At(at, fmt.Errorf("auth token: %w", err))
		}
		return nil
	}
	*p = append(*p, provider{name: name, module: module})
	return nil
}

// add adds tokens to those that there are.
func (p *providers) add(tokens ...auth.ClientToken) error {
	for _, provider := range *p {
		if known, ok := provider.module.(*auth.Token); ok {
			known.Tokens = append(known.Tokens, tokens...)
			return known.CheckClients()
		}
	}
	token := &auth.Token{Tokens: tokens}
	*p = append(*p, provider{name: "token", module: token})
	return token.CheckClients()
}

// json returns them as the configuration has them.
func (p *providers) json() (raw []json.RawMessage) {
	for _, provider := range *p {
		raw = append(raw, caddyconfig.JSONModuleObject(provider.module, "provider", provider.name, nil))
	}
	return raw
}

// parseClient reads a block client.
func parseClient(h *Handler, p *providers, later *checks) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		c := new(Client)
		at := d.Token()
		if !d.AllArgs(&c.Name) {
			return setting.Expected(d, "client", "<name>")
		}
		h.Clients = append(h.Clients, c)
		later.add(at, func() error { return h.checkClientOnce(c) })
		lines := c.lines(h, p, later)
		lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
			return setting.Refused(d, lines.Words(), adviceInClient())
		}
		return setting.Checked(d, lines, c.validate, "match", "token", allow, deny, confirm, "redact", "redact_fields", "rate")
	}
}

// lines are the settings of a client.
func (c *Client) lines(h *Handler, p *providers, later *checks) setting.Lines {
	return setting.Lines{
		"match":         setting.List(&c.Match, "names"),
		"token":         func(d *caddyfile.Dispenser) error { return parseToken(d, c, p) },
		"default":       setting.Text(&c.Default),
		allow:           parseRule(h, c, later),
		deny:            parseRule(h, c, later),
		confirm:         parseRule(h, c, later),
		"redact":        setting.Check(setting.List(&c.Redact, "regexps"), c.checkRedaction),
		"redact_fields": setting.Check(setting.List(&c.RedactFields, "members"), c.checkRedaction),
		"rate":          parseRate(h, &c.Rates, later),
	}
}

// parseRule reads a line allow, deny or confirm of a client.
func parseRule(h *Handler, c *Client, later *checks) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		rule := &AccessRule{Action: d.Val()}
		c.Rules = append(c.Rules, rule)
		later.add(d.Token(), func() error { return h.checkRule(rule) })
		return setting.Check(rule.parse, rule.check)(d)
	}
}

// parse reads [<patterns...>] [when <expression>]. An expression is one argument, or all that are left
// as they are written.
func (r *AccessRule) parse(d *caddyfile.Dispenser) error {
	for d.NextArg() && d.Val() != "when" {
		r.Patterns = append(r.Patterns, d.Val())
	}
	switch isConditional := d.Val() == "when"; {
	case isConditional && d.CountRemainingArgs() == 1:
		d.AllArgs(&r.When)
	case isConditional:
		r.When = strings.Join(d.RemainingArgsRaw(), " ")
	}
	switch {
	case d.Val() == "when":
		return setting.Expected(d, r.Action, "[<patterns...>] when <expression>")
	case len(r.Patterns) == 0 && r.When == "":
		return setting.Expected(d, r.Action, "<patterns...>")
	}
	return nil
}

// parseToken reads a line token of a client.
func parseToken(d *caddyfile.Dispenser, c *Client, p *providers) error {
	var token string
	if err := setting.Secret(&token)(d); err != nil {
		return err
	}
	if c.isPattern() {
		return d.Errf("client %s: token: only a client with a name of its own can have a token", c.Name)
	}
	if err := auth.CheckToken(token); err != nil {
		return d.Errf("client %s: token: %w", c.Name, err)
	}
	auth.WarnOfShort(d, token, c.Name)
	if err := p.add(auth.ClientToken{Token: auth.TokenFromCaddyfile(token), Client: c.Name}); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// parseRate reads a line rate: [<server::tool>] <requests>/<duration> [burst <requests>].
func parseRate(h *Handler, rates *[]*Rate, later *checks) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		at := d.Token()
		args := d.RemainingArgs()
		r := new(Rate)
		if n := len(args); n >= 2 && args[n-2] == "burst" {
			burst, err := strconv.Atoi(args[n-1])
			if err != nil || burst <= 0 {
				return d.Errf("rate: burst: %q is not a positive whole number", args[n-1])
			}
			r.Burst, args = burst, args[:n-2]
		}
		if len(args) == 2 {
			r.Tools, args = args[0], args[1:]
		}
		if len(args) != 1 {
			return setting.Expected(d, "rate", "[<server::tool>] <requests>/<duration> [burst <requests>]")
		}
		requests, per, _ := strings.Cut(args[0], "/")
		n, err := strconv.Atoi(requests)
		if err != nil || n <= 0 {
			return d.Errf("rate: %q is not of the form 60/1m: %q is not a positive whole number", args[0], requests)
		}
		duration, err := caddy.ParseDuration(per)
		if err != nil || duration <= 0 {
			return d.Errf("rate: %q is not of the form 60/1m: %q is not a positive duration", args[0], per)
		}
		r.Requests, r.Per = n, caddy.Duration(duration)
		*rates = append(*rates, r)
		if err := r.validate(); err != nil {
			return d.WrapErr(err)
		}
		later.add(at, func() error { return h.checkRate(r) })
		return nil
	}
}

// parseNotificationRoute reads a line route_notifications.
func parseNotificationRoute(h *Handler, later *checks) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		at := d.Token()
		args := d.RemainingArgs()
		if len(args) < 2 {
			return setting.Expected(d, at.Text, "<method> <servers...>")
		}
		route := &NotificationRoute{Method: args[0], Servers: args[1:]}
		h.NotificationRoutes = append(h.NotificationRoutes, route)
		later.add(at, func() error {
			if err := route.validate(h); err != nil {
				return fmt.Errorf("%s: %w", at.Text, err)
			}
			return nil
		})
		return nil
	}
}

// parseAnswer reads a line answer: <server> <method> deliver | drop, or a block with
// roots.
func parseAnswer(h *Handler, later *checks) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		at, a := d.Token(), new(Answer)
		args := d.RemainingArgs()
		if len(args) < 2 || len(args) > 3 {
			return setting.Expected(d, "answer", "<server> <method> deliver | drop")
		}
		server := args[0]
		a.Method = args[1]
		if len(args) == 3 {
			if a.Action = args[2]; a.Action != deliver && a.Action != drop {
				return d.Errf("answer: %q must be deliver or drop", a.Action)
			}
		}
		err := setting.Checked(d, setting.Lines{"roots": setting.List(&a.Roots, "uris")}, a.check, "roots")
		if err != nil {
			return err
		}
		if a.Action == "" && len(a.Roots) == 0 {
			return setting.At(at, errors.New("answer: expected deliver, drop or a block with roots"))
		}
		later.add(at, func() error { return h.giveAnswer(server, a) })
		return nil
	}
}

// giveAnswer gives a server its answer.
func (h *Handler) giveAnswer(server string, a *Answer) error {
	s := h.serverNamed(server)
	if s == nil {
		return fmt.Errorf("answer: there is no server %s%s", server, h.didYouMean(server))
	}
	s.Answers = append(s.Answers, a)
	return nil
}
