package mcpgateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcphttp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
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
//			<options of observation_mask; keep_media and recover are on>
//		}
//		focus            [on | off] {
//			argument <name>
//		}
//		request_limit    <size>
//		in_flight_limit  <size>
//		response_limit   <size>
//		separator        <text> | none
//		max_name_length  <number>
//		join_timeout     <duration>
//		start            eager | lazy
//		session_key      <text>
//		max_sessions     <number>
//		discovery        on | off
//		report_missing   on | off
//		mcp_path         <path>
//		rpc_path         <path>
//		origins          <origins...>
//		hosts            <hosts...>
//		public_url       <url>
//		auth             token <token> [<client>]
//		auth             token {
//			<client> <token>
//		}
//		auth             hmac | jwt {
//			<options of the provider>
//		}
//		auth             mtls [<field>]
//		auth             none
//		forward_auth_header on | off
//		rate             [<server::tool>] <requests>/<duration> [burst <requests>]
//		client <name> {
//			match         <identities...>
//			token         <token>
//			default       allow | deny
//			allow         [<patterns...>] [when <expression>]
//			deny          [<patterns...>] [when <expression>]
//			confirm       [<patterns...>] [when <expression>]
//			redact        <regexps...>
//			redact_fields <members...>
//			rate          <as above>
//		}
//		health_interval  <duration>
//		health_timeout   <duration>
//		pin_tools        on | off
//		audit            denied | all | arguments
//		record           on | off
//		route_notifications <method> <servers...>
//		servers_from     <files...>
//		answer           <server> <method> deliver | drop
//		answer           <server> roots/list {
//			roots <uris...>
//		}
//		server <name> [<url> | stdio <command> <args...>] {
//			alias   <names...>
//			timeout <duration>
//			start   eager | lazy
//			path    <path>
//			mask    <as above>
//			focus   <as above>
//			expose  <patterns...>
//			tool <name> {
//				rename    <name>
//				describe  <text>
//				annotate  title <text>
//				annotate  read_only | destructive | idempotent | open_world [on | off]
//				arguments fixed <name> <value>
//				arguments hidden <names...>
//			}
//			optional on | off
//			forward_auth_header on | off
//			oauth   [per_client | exchange] {
//				client_id     <id>
//				client_secret <secret>
//				private_key   <file>
//				scopes        <scopes...>
//				grant         authorization_code | client_credentials | jwt_bearer
//				assertion     <file>
//				issuer        <url>
//				trusted_hosts <hosts...>
//				resource      <url>
//			}
//			<options of the mcp_stdio transport, with stdio>
//			<handler directives, ordered as in a site>
//		}
//	}
//
// A URL adds a reverse_proxy to that URL, and stdio a reverse_proxy to a child process, after the
// handlers of the block. The path of the URL becomes the path of the server.
func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // consume directive name
	if h.NextArg() {
		return nil, h.Errf("mcp_gateway takes no arguments, only a matcher and a block")
	}
	handler := new(Handler)
	p := &gatewayParser{helper: h, gateway: handler}
	lines := p.lines()
	lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
		return setting.UnknownSubdirective(d, lines.Words(), adviceInGateway())
	}
	check := func() error { return newChecker(handler).settings() }
	err := setting.BlockChecked(h.Dispenser, lines, check,
		"server", "origins", "hosts", "auth", "rate", "client", "route_notifications", "servers_from", "answer")
	for _, check := range p.checks {
		if err == nil {
			err = check()
		}
	}
	if err == nil {
		handler.AllowUnauthenticated, err = p.auth.removeNone()
	}
	if err != nil {
		return nil, err
	}
	handler.AuthRaw = p.auth.json()
	return handler, nil
}

// A gatewayParser parses the block of a gateway.
type gatewayParser struct {
	helper  httpcaddyfile.Helper
	gateway *Handler
	auth    providers
	checks  []func() error // run after the whole block is parsed
}

// checkLater runs a check after the whole block is parsed. Its error names the line of the token.
func (p *gatewayParser) checkLater(line caddyfile.Token, check func() error) {
	p.checks = append(p.checks, func() error {
		if err := check(); err != nil {
			return setting.ErrorAt(line, err)
		}
		return nil
	})
}

// lines returns the settings of a gateway.
func (p *gatewayParser) lines() setting.Lines {
	handler := p.gateway
	checkOrigins := func() error { return handler.originPolicy().Validate() }
	checkKey := func() error { return checkLiteralKey(handler.SessionKey) }
	return setting.Lines{
		"name":                setting.Text(&handler.Name),
		"response_timeout":    setting.Duration(&handler.ResponseTimeout),
		"mask":                parseMask(&handler.Mask),
		"focus":               setting.Nested(&handler.Focus),
		"request_limit":       setting.NotZero(&handler.RequestLimit, setting.Size, "request_limit: must not be 0"),
		"in_flight_limit":     setting.NotZero(&handler.InFlightLimit, setting.Size, "in_flight_limit: must not be 0"),
		"response_limit":      setting.NotZero(&handler.ResponseLimit, setting.Size, "response_limit: must not be 0"),
		"separator":           setting.Text(&handler.Separator),
		"max_name_length":     setting.Positive(&handler.MaxNameLength),
		"join_timeout":        setting.Duration(&handler.JoinTimeout),
		"start":               setting.Text(&handler.Start),
		"session_key":         setting.Check(setting.Secret(&handler.SessionKey), checkKey),
		"max_sessions":        setting.Positive(&handler.MaxSessions),
		"discovery":           setting.Switch(&handler.Discovery),
		"report_missing":      setting.Optional(&handler.ReportMissing, setting.Switch),
		"mcp_path":            setting.Text(&handler.MCPPath),
		"rpc_path":            setting.Text(&handler.RPCPath),
		"origins":             setting.Check(setting.List(&handler.Origins, "origins"), checkOrigins),
		"hosts":               setting.Check(setting.List(&handler.Hosts, "hosts"), checkOrigins),
		"public_url":          setting.Text(&handler.PublicURL),
		"auth":                p.auth.parse,
		"forward_auth_header": setting.Switch(&handler.ForwardAuthHeader),
		"rate":                p.parseRate(&handler.Rates),
		"client":              p.parseClient,
		"health_interval":     setting.Duration(&handler.HealthInterval),
		"health_timeout":      setting.Duration(&handler.HealthTimeout),
		"pin_tools":           setting.Switch(&handler.PinTools),
		"audit":               setting.Text(&handler.Audit),
		"record":              setting.Switch(&handler.Record),
		"route_notifications": p.parseNotificationRoute,
		"servers_from":        parseServersFrom(&handler.ServersFrom),
		"answer":              p.parseAnswer,
		"server":              p.parseServer,
	}
}

// parseServer parses a server line and block.
func (p *gatewayParser) parseServer(d *caddyfile.Dispenser) error {
	line := d.Token()
	server, err := parseServer(p.helper.WithDispenser(d.NewFromNextSegment()))
	if err != nil {
		return err
	}
	p.gateway.Servers = append(p.gateway.Servers, server)
	p.checkLater(line, func() error {
		if err := newChecker(p.gateway).server(server); err != nil {
			return fmt.Errorf("server %s: %w", server.Name, err)
		}
		return nil
	})
	return nil
}

// parseMask parses the arguments and block of observation_mask. With a block, keep_media and
// recover default to on.
func parseMask(mask **observationmask.Handler) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		*mask = new(observationmask.Handler)
		segment := d.NextSegment()
		if last := segment[len(segment)-1]; last.Text == "}" {
			(*mask).KeepMedia, (*mask).Recover = true, new(observationmask.Recover)
		}
		return (*mask).UnmarshalCaddyfile(caddyfile.NewDispenser(segment))
	}
}

func parseServer(h httpcaddyfile.Helper) (*Server, error) {
	h.Next() // consume "server"
	directive := h.Token()
	s := new(Server)
	if !h.NextArg() || h.Val() == "" || strings.Contains(h.Val(), "://") {
		return nil, setting.Expected(h.Dispenser, "server", "<name> [<url> | stdio <command> <args...>]")
	}
	s.Name = h.Val()
	upstream := h.RemainingArgsAsTokens()
	stdio := len(upstream) > 0 && upstream[0].Text == "stdio"

	handlers, transport, err := s.parseBlock(h.Dispenser, stdio)
	if err != nil {
		return nil, err
	}
	if len(handlers) > 0 {
		if s.Routes, err = parseHandlers(h, directive, handlers, stdio); err != nil {
			return nil, err
		}
	}
	switch {
	case stdio:
		if len(upstream) == 1 {
			return nil, setting.ErrorAt(directive, fmt.Errorf("server %s: stdio needs a command", s.Name))
		}
		child, err := parseChild(directive, upstream[1:], transport)
		if err != nil {
			return nil, err
		}
		s.proxyToChild(child)
	case len(upstream) == 1:
		if err := s.proxyToURL(upstream[0].Text); err != nil {
			return nil, setting.ErrorAt(upstream[0], fmt.Errorf("server %s: %w", s.Name, err))
		}
	case len(upstream) > 1:
		return nil, setting.ErrorAt(directive, fmt.Errorf("server %s: expected one URL, or stdio and a command", s.Name))
	}
	return s, nil
}

// parseHandlers parses the handlers of a server. It reports an unknown directive at its own line.
func parseHandlers(
	h httpcaddyfile.Helper, server caddyfile.Token, lines []caddyfile.Token, stdio bool,
) (caddyhttp.RouteList, error) {
	block := blockTokens(server, nil, lines)
	d := caddyfile.NewDispenser(block)
	for d.Next(); d.NextBlock(0); {
		if err := refuseCredential(caddyfile.NewDispenser(d.NextSegment())); err != nil {
			return nil, err
		}
	}
	subroute, err := httpcaddyfile.ParseSegmentAsSubroute(h.WithDispenser(caddyfile.NewDispenser(block)))
	if err == nil {
		return subroute.(*caddyhttp.Subroute).Routes, nil
	}
	_, message, unknown := strings.Cut(err.Error(), "unrecognized directive: ")
	word, _, _ := strings.Cut(message, " ")
	d.Reset()
	for d.Next(); unknown && d.NextBlock(0); d.NextSegment() {
		if d.Val() == word {
			return nil, setting.UnknownSubdirective(d, append(serverWords(stdio), commonHandlers...), adviceInServer(stdio))
		}
	}
	return nil, err
}

// refuseCredential refuses a header directive whose credential would not reach the server: header,
// which sets response headers, or a request_header whose value is not quoted, because
// request_header would take its second word as text to replace.
func refuseCredential(d *caddyfile.Dispenser) error {
	d.Next()
	directive := d.Val()
	if directive != "header" && directive != "request_header" {
		return nil
	}
	args := d.RemainingArgs()
	if len(args) > 0 && strings.ContainsAny(args[0][:min(1, len(args[0]))], "*/@") { // skip a matcher
		args = args[1:]
	}
	if len(args) == 0 {
		return nil
	}
	field := args[0]
	switch {
	case directive == "request_header":
		if len(args) == 3 && strings.EqualFold(field, "Authorization") {
			return d.Errf("the value has a space; write request_header %s \"%s <token>\"", field, args[1])
		}
	case slices.Contains([]string{"authorization", "cookie", "x-api-key"}, strings.ToLower(field)):
		return d.Errf("header sets response headers; write \"request_header %s <value>\"", field)
	}
	return nil
}

// parseBlock parses the settings of a server. It returns the other lines of the block: handlers,
// and options of the transport of a child process.
func (s *Server) parseBlock(d *caddyfile.Dispenser, stdio bool) (handlers, transport []caddyfile.Token, err error) {
	lines := s.lines()
	lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
		lines := &handlers
		if stdio && transportOptions[d.Val()] {
			lines = &transport
		}
		*lines = append(*lines, d.NextSegment()...)
		return nil
	}
	check := func() error {
		err := s.check()
		if err == nil && stdio && s.OAuth != nil {
			err = errChildLogin
		}
		if err != nil {
			return fmt.Errorf("server %s: %w", s.Name, err)
		}
		return nil
	}
	err = setting.BlockChecked(d, lines, check, "alias", "expose", "tool")
	return handlers, transport, err
}

// lines returns the settings of a server.
func (s *Server) lines() setting.Lines {
	return setting.Lines{
		"alias":               setting.List(&s.Aliases, "names"),
		"expose":              setting.List(&s.Expose, "patterns"),
		"tool":                parseTool(s),
		"timeout":             setting.Duration(&s.Timeout),
		"start":               setting.Text(&s.Start),
		"path":                setting.Text(&s.Path),
		"mask":                parseMask(&s.Mask),
		"focus":               setting.Nested(&s.Focus),
		"optional":            setting.Switch(&s.Optional),
		"forward_auth_header": setting.Optional(&s.ForwardAuthHeader, setting.Switch),
		"oauth":               setting.Nested(&s.OAuth),
	}
}

// transportOptions holds the options of the mcp_stdio transport. A server with stdio accepts them
// in its block.
var transportOptions = map[string]bool{
	"env": true, "dir": true, "framing": true, "start_timeout": true, "stop_grace": true,
	"isolation": true, "roots": true, "max_line": true, "max_sessions": true, "session_ttl": true,
}

// blockTokens returns the tokens of a directive with arguments and a block.
func blockTokens(directive caddyfile.Token, args, lines []caddyfile.Token) []caddyfile.Token {
	open, end := directive, directive
	open.Text, end.Text = "{", "}"
	tokens := append([]caddyfile.Token{directive}, args...)
	if len(lines) == 0 {
		return tokens
	}
	last := lines[len(lines)-1]
	open.Line, end.Line = tokens[len(tokens)-1].Line, last.Line+last.NumLineBreaks()+1
	return append(append(append(tokens, open), lines...), end)
}

// proxyToURL adds a reverse_proxy to the URL after the handlers of the server.
func (s *Server) proxyToURL(address string) error {
	shown, _, _ := strings.Cut(address, "?") // a query may contain a key
	if strings.ContainsAny(address, "{}") {
		return errors.New("the URL has a placeholder, which is not replaced here; use {$NAME} for environment variables")
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL, such as http://127.0.0.1:3001/mcp", shown)
	case u.User != nil:
		return errors.New("credentials in a URL are not sent; set them with request_header")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q is not an http or https URL, such as http://127.0.0.1:3001/mcp; "+
			"for a program write stdio in front of the command", shown)
	case u.Hostname() == "":
		return fmt.Errorf("%q has no host", shown)
	case u.Port() != "" && !validPort(u.Port()):
		return fmt.Errorf("%q has no valid port", shown)
	case u.Fragment != "":
		return fmt.Errorf("%q has a fragment, which is never sent", shown)
	}
	if u.Path != "" || u.RawQuery != "" {
		if s.Path != "" {
			return errors.New("path is set both in the URL and in the block")
		}
		s.Path = u.RequestURI()
	}
	if s.OAuth != nil && s.OAuth.Resource == "" {
		s.OAuth.Resource = address
	}
	// Send the host name of the URL, not that of the gateway.
	transport := &mcphttp.Transport{Host: u.Host}
	transport.DialTimeout = caddy.Duration(5 * time.Second)
	port := "80"
	if u.Scheme == "https" {
		transport.TLS, port = new(reverseproxy.TLSConfig), "443"
	}
	port = cmp.Or(u.Port(), port)
	s.proxyTo(net.JoinHostPort(u.Hostname(), port), transport, mcphttp.Name)
	return nil
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// parseChild parses the transport of a child process.
func parseChild(directive caddyfile.Token, command, lines []caddyfile.Token) (*mcpstdio.Transport, error) {
	directive.Text = "mcp_stdio"
	transport := new(mcpstdio.Transport)
	return transport, transport.UnmarshalCaddyfile(caddyfile.NewDispenser(blockTokens(directive, command, lines)))
}

// proxyToChild adds a reverse_proxy to a child process after the handlers of the server.
func (s *Server) proxyToChild(transport *mcpstdio.Transport) {
	s.proxyTo(s.Name+":1", transport, "mcp_stdio")
}

// proxyTo appends a reverse_proxy to the routes of the server.
func (s *Server) proxyTo(address string, transport any, protocol string) {
	proxy := &reverseproxy.Handler{
		TransportRaw: caddyconfig.JSONModuleObject(transport, "protocol", protocol, nil),
		Upstreams:    reverseproxy.UpstreamPool{{Dial: address}},
	}
	s.Routes = append(s.Routes, caddyhttp.Route{
		HandlersRaw: []json.RawMessage{caddyconfig.JSONModuleObject(proxy, "handler", "reverse_proxy", nil)},
	})
}

const (
	writeCommand = `write "server <name> stdio <command> <args...>"`
	writeURL     = `write "server <name> <url>"`
	writeHeader  = `write "request_header <name> <value>"`
	writeExpose  = `write "expose <patterns...>"`
	leaveOut     = `remove it: the URL, or stdio and a command, after the server name is enough`
	comment      = `to disable a server, comment out its lines with #`
	inClient     = `it belongs in "client <name> { }"`
	inServer     = `it belongs in "server <name> { }"`
	inGateway    = `it belongs in "mcp_gateway { }"`
	needsStdio   = `only servers with stdio have it`
	sendToken    = `to send a token to the server, write request_header Authorization "Bearer {env.TOKEN}"; ` +
		`client tokens belong in "client <name> { }"`
)

// foreignAdvice is advice on words from configurations of other programs, such as mcp.json.
var foreignAdvice = setting.Advice{
	"command": writeCommand, "args": writeCommand, "cmd": writeCommand,
	"url": writeURL, "serverUrl": writeURL, "httpUrl": writeURL,
	"headers": writeHeader, "header_up": writeHeader, "bearer": writeHeader, "authorization": writeHeader,
	"Authorization": writeHeader,
	"type":          leaveOut, "transport": leaveOut, "transportType": leaveOut,
	"disabled": comment, "enabled": comment,
	"cwd":   `write "dir <directory>"`,
	"tools": writeExpose, "alwaysAllow": writeExpose, "autoApprove": writeExpose, "includeTools": writeExpose,
	"allowedTools": writeExpose, "enabled_tools": writeExpose,
	"mcpServers": writeURL + ` or "server <name> stdio <command> <args...>"`,
	"servers":    writeURL + ` or "server <name> stdio <command> <args...>"`,
}

// commonHandlers are the Caddy directives to suggest in a server block.
var commonHandlers = []string{
	"reverse_proxy", "request_header", "request_body", "forward_auth", "respond", "rewrite", "handle", "route", "vars",
}

// serverWords returns the subdirectives of a server.
func serverWords(stdio bool) []string {
	words := new(Server).lines().Words()
	if stdio {
		words = slices.AppendSeq(words, maps.Keys(transportOptions))
	}
	return words
}

// clientWords returns the subdirectives of a client.
func clientWords() []string {
	return new(gatewayParser).clientLines(new(Client)).Words()
}

// gatewayWords returns the subdirectives of a gateway.
func gatewayWords() []string {
	return (&gatewayParser{gateway: new(Handler)}).lines().Words()
}

// adviceInGateway returns advice on words that are unknown in a gateway block.
func adviceInGateway() setting.Advice {
	advice := maps.Clone(foreignAdvice)
	advise(advice, inServer, serverWords(true))
	advise(advice, inClient, clientWords())
	return advice
}

// adviceInClient returns advice on words that are unknown in a client block.
func adviceInClient() setting.Advice {
	advice := setting.Advice{}
	advise(advice, inGateway, gatewayWords())
	advise(advice, inServer, serverWords(true))
	advice["auth"] = `write "token <token>", or auth in "mcp_gateway { }"`
	return advice
}

// adviceInServer returns advice on words that are unknown in a server block.
func adviceInServer(stdio bool) setting.Advice {
	advice := setting.Advice{}
	advise(advice, inGateway, gatewayWords())
	advise(advice, inClient, clientWords())
	if !stdio {
		advise(advice, needsStdio, slices.Collect(maps.Keys(transportOptions)))
	}
	maps.Copy(advice, foreignAdvice)
	for _, word := range []string{"token", "auth", "api_key", "apiKey"} {
		advice[word] = sendToken
	}
	if stdio {
		for _, word := range []string{"token", "api_key", "apiKey", "headers", "header_up"} {
			advice[word] = `write "env <name> <value>"`
		}
	}
	return advice
}

// advise sets the advice on words that have none.
func advise(advice setting.Advice, text string, words []string) {
	for _, word := range words {
		if advice[word] == "" {
			advice[word] = text
		}
	}
}
