package mcpgateway

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// providers are those of the lines auth, and of the lines token of clients.
type providers []provider

type provider struct {
	name   string
	module any
}

// parse reads a line auth.
func (p *providers) parse(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	name := d.Val()
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
func parseClient(d *caddyfile.Dispenser, p *providers) (*Client, error) {
	c := new(Client)
	if !d.NextArg() {
		return nil, d.ArgErr()
	}
	if c.Name = d.Val(); d.NextArg() {
		return nil, d.ArgErr()
	}
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch name := d.Val(); name {
		case "match":
			err = subdirective.List(d, &c.Match)
		case "token":
			err = parseToken(d, c, p)
		case "default":
			if err = subdirective.Once(d, seen); err == nil {
				c.Default, err = subdirective.Text(d)
			}
		case allow, deny:
			rule := &AccessRule{Action: name}
			err = subdirective.List(d, &rule.Patterns)
			c.Rules = append(c.Rules, rule)
		case "redact":
			err = subdirective.List(d, &c.Redact)
		case "redact_fields":
			err = subdirective.List(d, &c.RedactFields)
		case "rate":
			err = parseRate(d, &c.Rates)
		default:
			err = d.Errf("client %s: unknown subdirective %s", c.Name, name)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// parseToken reads a line token of a client.
func parseToken(d *caddyfile.Dispenser, c *Client, p *providers) error {
	token, err := subdirective.Secret(d)
	if err != nil {
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
func parseRate(d *caddyfile.Dispenser, rates *[]*Rate) error {
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

// parseNotificationRoute reads a line route_notifications.
func parseNotificationRoute(d *caddyfile.Dispenser) (*NotificationRoute, error) {
	args := d.RemainingArgs()
	if len(args) < 2 {
		return nil, d.ArgErr()
	}
	return &NotificationRoute{Method: args[0], Servers: args[1:]}, nil
}

// A serverAnswer is a line answer.
type serverAnswer struct {
	server string
	*Answer
	at caddyfile.Token
}

// parseAnswer reads a line answer: <server> <method> deliver | drop, or a block with
// roots.
func parseAnswer(d *caddyfile.Dispenser) (serverAnswer, error) {
	a := serverAnswer{Answer: new(Answer), at: d.Token()}
	args := d.RemainingArgs()
	if len(args) < 2 || len(args) > 3 {
		return a, d.ArgErr()
	}
	a.server, a.Method = args[0], args[1]
	if len(args) == 3 {
		if a.Action = args[2]; a.Action != deliver && a.Action != drop {
			return a, d.Errf("answer: %q is neither deliver nor drop", a.Action)
		}
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "roots" {
			return a, d.Errf("answer: unknown subdirective %s", d.Val())
		}
		if err := subdirective.List(d, &a.Roots); err != nil {
			return a, err
		}
	}
	if a.Action == "" && len(a.Roots) == 0 {
		return a, d.Errf("answer: expected deliver, drop or a block with roots")
	}
	return a, nil
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
