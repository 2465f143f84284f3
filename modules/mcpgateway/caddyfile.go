package mcpgateway

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("mcp_gateway", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("mcp_gateway", httpcaddyfile.Before, "respond")
}

// parseCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	mcp_gateway [<matcher>] {
//		name             <name>
//		response_timeout <duration>
//		mask             off | [<max_chars> <head_chars> <tail_chars>] {
//			<what observation_mask takes>
//		}
//		request_limit    <size>
//		in_flight_limit  <size>
//		response_limit   <size>
//		separator        <text> | none
//		max_name_length  <number>
//		join_timeout     <duration>
//		session_key      <text>
//		max_sessions     <number>
//		discovery        on | off
//		mcp_path         <path>
//		rpc_path         <path>
//		origins          <origins...>
//		hosts            <hosts...>
//		auth             token <token> [<client>]
//		auth             hmac | jwt {
//			<what the provider takes>
//		}
//		auth             mtls [<field>]
//		forward_auth_header on | off
//		rate             [<server::tool>] <requests>/<duration> [burst <requests>]
//		client <name> {
//			match         <identities...>
//			token         <token>
//			default       allow | deny
//			allow         <patterns...>
//			deny          <patterns...>
//			redact        <regexps...>
//			redact_fields <members...>
//			rate          <as above>
//		}
//		health_interval  <duration>
//		health_timeout   <duration>
//		pin_tools        on | off
//		route_notifications <method> <servers...>
//		answer           <server> <method> deliver | drop
//		answer           <server> roots/list {
//			roots <uris...>
//		}
//		server <name> [<url> | stdio <command> <args...>] {
//			alias   <names...>
//			timeout <duration>
//			path    <path>
//			mask    <as above>
//			expose  <patterns...>
//			forward_auth_header on | off
//			<what the mcp_stdio transport takes, with stdio>
//			<handler directives, ordered as in a site>
//		}
//	}
//
// A URL stands for a reverse_proxy to it, and stdio for a reverse_proxy to a child
// process, behind the handlers of the block if there are any. The path of a URL is
// that of the server.
func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // consume directive name
	if h.NextArg() {
		return nil, h.ArgErr()
	}
	handler := new(Handler)
	var auth providers
	var answers []serverAnswer
	seen := map[string]bool{}
	for h.NextBlock(0) {
		name := h.Val()
		switch name {
		case "server", "origins", "hosts", "auth", "rate", "client", "route_notifications", "answer": // may stand on several lines
		default:
			if err := subdirective.Once(h.Dispenser, seen); err != nil {
				return nil, err
			}
		}
		var err error
		switch name {
		case "name":
			handler.Name, err = subdirective.Text(h.Dispenser)
		case "response_timeout":
			handler.ResponseTimeout, err = subdirective.Duration(h.Dispenser)
		case "mask":
			handler.Mask, err = parseMask(h.Dispenser)
		case "request_limit":
			if handler.RequestLimit, err = subdirective.Size(h.Dispenser); err == nil && handler.RequestLimit == 0 {
				err = h.Errf("request_limit: 0 takes nothing")
			}
		case "in_flight_limit":
			if handler.InFlightLimit, err = subdirective.Size(h.Dispenser); err == nil && handler.InFlightLimit == 0 {
				err = h.Errf("in_flight_limit: 0 takes nothing")
			}
		case "response_limit":
			if handler.ResponseLimit, err = subdirective.Size(h.Dispenser); err == nil && handler.ResponseLimit == 0 {
				err = h.Errf("response_limit: 0 lets nothing through")
			}
		case "separator":
			handler.Separator, err = subdirective.Text(h.Dispenser)
		case "max_name_length":
			handler.MaxNameLength, err = positive(h.Dispenser)
		case "join_timeout":
			handler.JoinTimeout, err = subdirective.Duration(h.Dispenser)
		case "session_key":
			handler.SessionKey, err = subdirective.Secret(h.Dispenser)
		case "max_sessions":
			handler.MaxSessions, err = positive(h.Dispenser)
		case "discovery":
			handler.Discovery, err = subdirective.Switch(h.Dispenser)
		case "mcp_path":
			handler.MCPPath, err = subdirective.Text(h.Dispenser)
		case "rpc_path":
			handler.RPCPath, err = subdirective.Text(h.Dispenser)
		case "origins":
			err = subdirective.List(h.Dispenser, &handler.Origins)
		case "hosts":
			err = subdirective.List(h.Dispenser, &handler.Hosts)
		case "auth":
			err = auth.parse(h.Dispenser)
		case "forward_auth_header":
			handler.ForwardAuthHeader, err = subdirective.Switch(h.Dispenser)
		case "rate":
			err = parseRate(h.Dispenser, &handler.Rates)
		case "client":
			var client *Client
			client, err = parseClient(h.Dispenser, &auth)
			handler.Clients = append(handler.Clients, client)
		case "health_interval":
			handler.HealthInterval, err = subdirective.Duration(h.Dispenser)
		case "health_timeout":
			handler.HealthTimeout, err = subdirective.Duration(h.Dispenser)
		case "pin_tools":
			handler.PinTools, err = subdirective.Switch(h.Dispenser)
		case "route_notifications":
			var route *NotificationRoute
			route, err = parseNotificationRoute(h.Dispenser)
			handler.NotificationRoutes = append(handler.NotificationRoutes, route)
		case "answer":
			var answer serverAnswer
			answer, err = parseAnswer(h.Dispenser)
			answers = append(answers, answer)
		case "server":
			var server *Server
			if server, err = parseServer(h.WithDispenser(h.NewFromNextSegment())); err == nil {
				handler.Servers = append(handler.Servers, server)
			}
		default:
			err = h.Errf("unknown subdirective %s", name)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, answer := range answers {
		if err := answer.give(handler.Servers); err != nil {
			return nil, err
		}
	}
	handler.AuthRaw = auth.json()
	return handler, nil
}

// positive reads a number that must be positive: 0 would be the default.
func positive(d *caddyfile.Dispenser) (int, error) {
	name := d.Val()
	n, err := subdirective.Number(d)
	if err == nil && n <= 0 {
		err = d.Errf("%s: %d is not positive", name, n)
	}
	return n, err
}

// parseMask reads what observation_mask takes.
func parseMask(d *caddyfile.Dispenser) (*observationmask.Handler, error) {
	mask := new(observationmask.Handler)
	return mask, mask.UnmarshalCaddyfile(d.NewFromNextSegment())
}

func parseServer(h httpcaddyfile.Helper) (*Server, error) {
	h.Next() // consume "server"
	directive := h.Token()
	s := new(Server)
	if !h.NextArg() {
		return nil, h.ArgErr()
	}
	s.Name = h.Val()
	upstream := h.RemainingArgsAsTokens()
	stdio := len(upstream) > 0 && upstream[0].Text == "stdio"

	handlers, transport, err := s.parseBlock(h.Dispenser, stdio)
	if err != nil {
		return nil, err
	}
	if len(handlers) > 0 {
		subroute, err := httpcaddyfile.ParseSegmentAsSubroute(h.WithDispenser(caddyfile.NewDispenser(inBlock(directive, nil, handlers))))
		if err != nil {
			return nil, err
		}
		s.Routes = subroute.(*caddyhttp.Subroute).Routes
	}
	var proxy *reverseproxy.Handler
	switch {
	case stdio:
		proxy, err = proxyToChild(h.Dispenser, s, directive, upstream[1:], transport)
	case len(upstream) == 1:
		proxy, err = proxyToURL(h.Dispenser, s, upstream[0].Text)
	case len(upstream) > 1:
		err = h.Errf("server %s: one URL is expected, or stdio and a command", s.Name)
	}
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		s.Routes = append(s.Routes, caddyhttp.Route{
			HandlersRaw: []json.RawMessage{caddyconfig.JSONModuleObject(proxy, "handler", "reverse_proxy", nil)},
		})
	}
	return s, nil
}

// parseBlock reads what a server's block says of the server itself, and returns the
// lines that others read: its handlers, and the transport of a child.
func (s *Server) parseBlock(d *caddyfile.Dispenser, stdio bool) (handlers, transport []caddyfile.Token, err error) {
	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		switch {
		case name == "timeout", name == "path", name == "mask", name == "forward_auth_header":
			err = subdirective.Once(d, seen)
		case stdio && ofTransport[name]:
			transport = append(transport, d.NextSegment()...)
			continue
		case name != "alias" && name != "expose": // of which there may be several lines
			handlers = append(handlers, d.NextSegment()...)
			continue
		}
		if err == nil {
			err = s.parseLine(d, name)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return handlers, transport, nil
}

func (s *Server) parseLine(d *caddyfile.Dispenser, name string) (err error) {
	switch name {
	case "alias":
		err = subdirective.List(d, &s.Aliases)
	case "expose":
		err = subdirective.List(d, &s.Expose)
	case "timeout":
		s.Timeout, err = subdirective.Duration(d)
	case "path":
		s.Path, err = subdirective.Text(d)
	case "mask":
		s.Mask, err = parseMask(d)
	case "forward_auth_header":
		var on bool
		on, err = subdirective.Switch(d)
		s.ForwardAuthHeader = &on
	}
	return err
}

// ofTransport are the subdirectives of a stdio server that its transport takes.
var ofTransport = map[string]bool{
	"env": true, "dir": true, "framing": true, "start_timeout": true, "stop_grace": true,
	"isolation": true, "roots": true, "max_line": true, "max_sessions": true, "session_ttl": true,
}

// inBlock returns the tokens of a directive with arguments and a block.
func inBlock(directive caddyfile.Token, args, lines []caddyfile.Token) []caddyfile.Token {
	open, end := directive, directive
	open.Text, end.Text = "{", "}"
	tokens := append([]caddyfile.Token{directive}, args...)
	if len(lines) == 0 {
		return tokens
	}
	open.Line, end.Line = tokens[len(tokens)-1].Line, lines[len(lines)-1].Line+1
	return append(append(append(tokens, open), lines...), end)
}

// proxyToURL is the reverse_proxy that a URL stands for.
func proxyToURL(d *caddyfile.Dispenser, s *Server, address string) (*reverseproxy.Handler, error) {
	if strings.ContainsAny(address, "{}") {
		return nil, d.Errf("server %s: %s has a placeholder, which is not replaced there; {$NAME} is, when the Caddyfile is read", s.Name, address)
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, d.Errf("server %s: %q is not a URL, such as http://127.0.0.1:3001/mcp", s.Name, address)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, d.Errf("server %s: %q is not an http or https URL", s.Name, address)
	case u.User != nil:
		return nil, d.Errf("server %s: credentials in a URL are not sent; set them with request_header", s.Name)
	case u.Hostname() == "":
		return nil, d.Errf("server %s: %q has no host", s.Name, address)
	case u.Port() != "" && !validPort(u.Port()):
		return nil, d.Errf("server %s: %q has no valid port", s.Name, address)
	case u.Fragment != "":
		return nil, d.Errf("server %s: %q has a fragment, which is never sent", s.Name, address)
	}
	if u.Path != "" || u.RawQuery != "" {
		if s.Path != "" {
			return nil, d.Errf("server %s: path is given twice, in the URL and in the block", s.Name)
		}
		s.Path = u.RequestURI()
	}
	transport := &reverseproxy.HTTPTransport{DialTimeout: caddy.Duration(5 * time.Second)}
	port := u.Port()
	if u.Scheme == "https" {
		transport.TLS = new(reverseproxy.TLSConfig)
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return &reverseproxy.Handler{
		TransportRaw: caddyconfig.JSONModuleObject(transport, "protocol", "http", nil),
		Upstreams:    reverseproxy.UpstreamPool{{Dial: net.JoinHostPort(u.Hostname(), port)}},
		// The server goes by the name in its URL, not by that of the gateway.
		Headers: &headers.Handler{Request: &headers.HeaderOps{Set: http.Header{"Host": {u.Host}}}},
	}, nil
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// proxyToChild is the reverse_proxy that a command stands for.
func proxyToChild(d *caddyfile.Dispenser, s *Server, directive caddyfile.Token, command, lines []caddyfile.Token) (*reverseproxy.Handler, error) {
	if len(command) == 0 {
		return nil, d.Errf("server %s: stdio without a command", s.Name)
	}
	directive.Text = "mcp_stdio"
	tokens := caddyfile.NewDispenser(inBlock(directive, command, lines))
	tokens.Next()
	transport, err := caddyfile.UnmarshalModule(tokens, "http.reverse_proxy.transport.mcp_stdio")
	if err != nil {
		return nil, err
	}
	return &reverseproxy.Handler{
		TransportRaw: caddyconfig.JSONModuleObject(transport, "protocol", "mcp_stdio", nil),
		Upstreams:    reverseproxy.UpstreamPool{{Dial: s.Name + ":1"}},
	}, nil
}
