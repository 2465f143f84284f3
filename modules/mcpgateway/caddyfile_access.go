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

// providers holds the providers that auth lines and the token lines of clients configure.
type providers []provider

type provider struct {
	name   string
	module any             // nil for noProvider
	line   caddyfile.Token // position, for errors; only set for noProvider
}

// noProvider is the name in the line auth none, which declares that clients need no credentials.
const noProvider = "none"

// removeNone removes noProvider, and reports whether it was there. It fails if there are other
// providers, too.
func (p *providers) removeNone() (bool, error) {
	none := slices.IndexFunc(*p, func(provider provider) bool { return provider.name == noProvider })
	if none < 0 {
		return false, nil
	}
	if len(*p) > 1 {
		return false, setting.ErrorAt((*p)[none].line, errors.New("auth none: another auth or a client token is configured"))
	}
	*p = nil
	return true, nil
}

// parse parses an auth line.
func (p *providers) parse(d *caddyfile.Dispenser) error {
	line := d.Token()
	if d.NextArg() {
		if d.Val() == noProvider {
			if d.NextArg() {
				return setting.Expected(d, "auth "+noProvider, "")
			}
			*p = append(*p, provider{name: noProvider, line: line})
			return nil
		}
		d.Prev()
	}
	name, module, err := setting.Module(d, "http.handlers.mcp_gateway.auth", "provider", noProvider)
	if err != nil {
		return err
	}
	if token, ok := module.(*auth.Token); ok {
		if err := p.add(token.Tokens...); err != nil {
			return setting.ErrorAt(line, fmt.Errorf("auth token: %w", err))
		}
		return nil
	}
	*p = append(*p, provider{name: name, module: module})
	return nil
}

// add adds tokens to the token provider, which it creates if needed.
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

// json returns the providers as module configurations.
func (p *providers) json() (raw []json.RawMessage) {
	for _, provider := range *p {
		raw = append(raw, caddyconfig.JSONModuleObject(provider.module, "provider", provider.name, nil))
	}
	return raw
}

// parseClient parses a client block.
func (p *gatewayParser) parseClient(d *caddyfile.Dispenser) error {
	c := new(Client)
	line := d.Token()
	if !d.AllArgs(&c.Name) {
		return setting.Expected(d, "client", "<name>")
	}
	p.gateway.Clients = append(p.gateway.Clients, c)
	p.checkLater(line, func() error { return c.checkUnique(p.gateway.Clients) })
	lines := p.clientLines(c)
	lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
		return setting.UnknownSubdirective(d, lines.Words(), adviceInClient())
	}
	return setting.BlockChecked(d, lines, c.validate,
		"match", "token", allow, deny, confirm, "redact", "redact_fields", "rate")
}

// clientLines returns the settings of a client.
func (p *gatewayParser) clientLines(c *Client) setting.Lines {
	return setting.Lines{
		"match":         setting.List(&c.Match, "names"),
		"token":         p.parseToken(c),
		"default":       setting.Text(&c.Default),
		allow:           p.parseRule(c),
		deny:            p.parseRule(c),
		confirm:         p.parseRule(c),
		"redact":        setting.Check(setting.List(&c.Redact, "regexps"), c.checkRedaction),
		"redact_fields": setting.Check(setting.List(&c.RedactFields, "members"), c.checkRedaction),
		"rate":          p.parseRate(&c.Rates),
	}
}

// parseRule parses an allow, deny or confirm line.
func (p *gatewayParser) parseRule(c *Client) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		rule := &AccessRule{Action: d.Val()}
		c.Rules = append(c.Rules, rule)
		p.checkLater(d.Token(), func() error { return p.gateway.serverNames().checkRule(rule) })
		return setting.Check(rule.parse, rule.check)(d)
	}
}

// parse parses [<patterns...>] [when <expression>]. The expression is one argument, or the rest of
// the line.
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

// parseToken parses the token line of a client.
func (p *gatewayParser) parseToken(c *Client) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		var token string
		if err := setting.Secret(&token)(d); err != nil {
			return err
		}
		if c.isPattern() {
			return d.Errf("client %s: token: a client whose name is a pattern cannot have a token", c.Name)
		}
		if err := auth.CheckToken(token); err != nil {
			return d.Errf("client %s: token: %w", c.Name, err)
		}
		auth.WarnShortToken(d, token, c.Name)
		if err := p.auth.add(auth.ClientToken{Token: auth.TokenFromCaddyfile(token), Client: c.Name}); err != nil {
			return d.WrapErr(err)
		}
		return nil
	}
}

// parseRate parses a rate line: [<server::tool>] <requests>/<duration> [burst <requests>].
func (p *gatewayParser) parseRate(rates *[]*Rate) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		line := d.Token()
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
		p.checkLater(line, func() error { return p.gateway.serverNames().checkRate(r) })
		return nil
	}
}

// parseNotificationRoute parses a route_notifications line.
func (p *gatewayParser) parseNotificationRoute(d *caddyfile.Dispenser) error {
	line := d.Token()
	args := d.RemainingArgs()
	if len(args) < 2 {
		return setting.Expected(d, line.Text, "<method> <servers...>")
	}
	route := &NotificationRoute{Method: args[0], Servers: args[1:]}
	p.gateway.NotificationRoutes = append(p.gateway.NotificationRoutes, route)
	p.checkLater(line, func() error {
		if err := route.validate(p.gateway.serverNames()); err != nil {
			return fmt.Errorf("%s: %w", line.Text, err)
		}
		return nil
	})
	return nil
}

// parseAnswer parses an answer line: <server> <method> deliver | drop, or a block with roots.
func (p *gatewayParser) parseAnswer(d *caddyfile.Dispenser) error {
	line, a := d.Token(), new(Answer)
	args := d.RemainingArgs()
	if len(args) < 2 || len(args) > 3 {
		return setting.Expected(d, "answer", "<server> <method> deliver | drop")
	}
	server := args[0]
	a.Method = args[1]
	if len(args) == 3 {
		a.Action = args[2]
		if a.Action != deliver && a.Action != drop {
			return d.Errf("answer: %q must be deliver or drop", a.Action)
		}
	}
	err := setting.BlockChecked(d, setting.Lines{"roots": setting.List(&a.Roots, "uris")}, a.check, "roots")
	if err != nil {
		return err
	}
	if a.Action == "" && len(a.Roots) == 0 {
		return setting.ErrorAt(line, errors.New("answer: expected deliver, drop or a block with roots"))
	}
	p.checkLater(line, func() error {
		names := p.gateway.serverNames()
		s := names.find(server)
		if s == nil {
			return fmt.Errorf("answer: unknown server %s%s", server, names.didYouMean(server))
		}
		s.Answers = append(s.Answers, a)
		return nil
	})
	return nil
}
