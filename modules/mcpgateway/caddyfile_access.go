package mcpgateway

import (
	"encoding/json"
	"errors"
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
	module any // nil for noProvider
}

// noProvider is how a configuration says that clients need no credentials.
const noProvider = "none"

// none reports whether clients need no credentials, which there is no other provider for.
func (p *providers) none() (bool, error) {
	if !slices.ContainsFunc(*p, func(provider provider) bool { return provider.name == noProvider }) {
		return false, nil
	}
	if len(*p) > 1 {
		return false, errors.New("auth none: there is another auth, or a client with a token")
	}
	*p = nil
	return true, nil
}

// parse reads a line auth.
func (p *providers) parse(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	name := d.Val()
	if name == noProvider {
		*p = append(*p, provider{name: name})
		if d.NextArg() {
			return d.ArgErr()
		}
		return nil
	}
	module, err := caddyfile.UnmarshalModule(d, "http.handlers.mcp_gateway.auth."+name)
	if err != nil {
		return err
	}
	if token, ok := module.(*auth.Token); ok {
		p.add(token.Tokens...)
		return nil
	}
	*p = append(*p, provider{name, module})
	return nil
}

// add adds tokens to those that there are.
func (p *providers) add(tokens ...auth.ClientToken) {
	for _, provider := range *p {
		if known, ok := provider.module.(*auth.Token); ok {
			known.Tokens = append(known.Tokens, tokens...)
			return
		}
	}
	*p = append(*p, provider{"token", &auth.Token{Tokens: tokens}})
}

// json returns them as the configuration has them.
func (p *providers) json() (raw []json.RawMessage) {
	for _, provider := range *p {
		raw = append(raw, caddyconfig.JSONModuleObject(provider.module, "provider", provider.name, nil))
	}
	return raw
}

// parseClient reads a block client.
func parseClient(clients *[]*Client, p *providers) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		c := new(Client)
		if !d.NextArg() {
			return d.ArgErr()
		}
		if c.Name = d.Val(); d.NextArg() {
			return d.ArgErr()
		}
		*clients = append(*clients, c)
		rule := func(d *caddyfile.Dispenser) error {
			rule := &AccessRule{Action: d.Val()}
			c.Rules = append(c.Rules, rule)
			return setting.List(&rule.Patterns)(d)
		}
		return setting.Block(d, setting.Lines{
			"match":         setting.List(&c.Match),
			"token":         func(d *caddyfile.Dispenser) error { return parseToken(d, c, p) },
			"default":       setting.Text(&c.Default),
			allow:           rule,
			deny:            rule,
			"redact":        setting.List(&c.Redact),
			"redact_fields": setting.List(&c.RedactFields),
			"rate":          parseRate(&c.Rates),
			setting.Unknown: func(d *caddyfile.Dispenser) error {
				return d.Errf("client %s: unknown subdirective %s", c.Name, d.Val())
			},
		}, "match", "token", allow, deny, "redact", "redact_fields", "rate")
	}
}

// parseToken reads a line token of a client.
func parseToken(d *caddyfile.Dispenser, c *Client, p *providers) error {
	var token string
	if err := setting.Secret(&token)(d); err != nil {
		return err
	}
	if c.isPattern() {
		return d.Errf("client %s: token: it would be of many clients", c.Name)
	}
	if err := auth.CheckToken(token); err != nil {
		return d.Errf("client %s: token: %w", c.Name, err)
	}
	p.add(auth.ClientToken{Token: auth.TokenFromCaddyfile(token), Client: c.Name})
	return nil
}

// parseRate reads a line rate: [<server::tool>] <requests>/<duration> [burst <requests>].
func parseRate(rates *[]*Rate) setting.Line {
	return func(d *caddyfile.Dispenser) error {
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
			return d.Err("rate: expected [<server::tool>] <requests>/<duration> [burst <requests>]")
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
		return nil
	}
}

// parseNotificationRoute reads a line route_notifications.
func parseNotificationRoute(routes *[]*NotificationRoute) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		args := d.RemainingArgs()
		if len(args) < 2 {
			return d.ArgErr()
		}
		*routes = append(*routes, &NotificationRoute{Method: args[0], Servers: args[1:]})
		return nil
	}
}

// A serverAnswer is a line answer.
type serverAnswer struct {
	server string
	*Answer
	at caddyfile.Token
}

// parseAnswer reads a line answer: <server> <method> deliver | drop, or a block with
// roots.
func parseAnswer(answers *[]serverAnswer) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		a := serverAnswer{Answer: new(Answer), at: d.Token()}
		args := d.RemainingArgs()
		if len(args) < 2 || len(args) > 3 {
			return d.ArgErr()
		}
		a.server, a.Method = args[0], args[1]
		if len(args) == 3 {
			if a.Action = args[2]; a.Action != deliver && a.Action != drop {
				return d.Errf("answer: %q is neither deliver nor drop", a.Action)
			}
		}
		err := setting.Block(d, setting.Lines{
			"roots":         setting.List(&a.Roots),
			setting.Unknown: func(d *caddyfile.Dispenser) error { return d.Errf("answer: unknown subdirective %s", d.Val()) },
		}, "roots")
		if err != nil {
			return err
		}
		if a.Action == "" && len(a.Roots) == 0 {
			return d.Errf("answer: expected deliver, drop or a block with roots")
		}
		*answers = append(*answers, a)
		return nil
	}
}

// give gives the server its answer.
func (a serverAnswer) give(servers []*Server) error {
	for _, s := range servers {
		if s.Name == a.server || slices.Contains(s.Aliases, a.server) {
			s.Answers = append(s.Answers, a.Answer)
			return nil
		}
	}
	d := caddyfile.NewDispenser([]caddyfile.Token{a.at})
	d.Next()
	return d.Errf("answer: there is no server %s", a.server)
}
