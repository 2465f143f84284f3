package upstream

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A PostedMessage is the message that a request posts.
type PostedMessage struct {
	Message jsonrpc.Message
	body    requestBody
	method  string // cached
	Tool    string
}

// A requestBody is a message as the body of a request.
type requestBody struct{ bytes.Reader }

func (*requestBody) Close() error { return nil }

// MethodName returns the method for logs, possibly shortened.
func (p *PostedMessage) MethodName() string {
	if p.method == "" && p.Message.Has(jsonrpc.Method) {
		if known, ok := p.knownMethod(); ok {
			p.method = known
		} else {
			p.method = mcp.Shortened(p.Message.Text(jsonrpc.Method))
		}
	}
	return p.method
}

// knownMethod returns the method if MCP defines it. Method names need no JSON escapes, so an
// escaped one is unknown.
func (p *PostedMessage) knownMethod() (string, bool) {
	literal := p.Message.Literal(jsonrpc.Method)
	if len(literal) < 2 {
		return "", false
	}
	return mcp.KnownMethod(string(literal[1 : len(literal)-1]))
}

// CalledMethod returns the method as the client sent it.
func (p *PostedMessage) CalledMethod() string {
	if known, ok := p.knownMethod(); ok {
		return known
	}
	return p.Message.Text(jsonrpc.Method)
}

// ToolName returns the name of the called tool or prompt for logs, possibly shortened.
func (p *PostedMessage) ToolName() string {
	if p.Tool == "" && p.Message.Has(jsonrpc.Name) {
		p.Tool = mcp.Shortened(p.Message.Text(jsonrpc.Name))
	}
	return p.Tool
}

// cacheNames makes MethodName and ToolName safe for concurrent use.
func (p *PostedMessage) cacheNames() { _, _ = p.MethodName(), p.ToolName() }

// RequestID returns the id of the request for logs, possibly shortened.
func (p *PostedMessage) RequestID() string {
	if id := p.Message.Text(jsonrpc.ID); id != "" {
		return mcp.Shortened(id)
	}
	return mcp.Shortened(string(p.Message.Literal(jsonrpc.ID)))
}

// IsRequest reports whether the message is a request and not a part of a handshake. A message
// without an id counts as well, because some servers execute it.
func (p *PostedMessage) IsRequest() bool {
	switch method := p.MethodName(); method {
	case "", "initialize", "server/discover":
		return false
	default:
		return !strings.HasPrefix(method, "notifications/") || p.Message.Has(jsonrpc.ID)
	}
}

// isHandshakeOrList reports whether the message is a handshake or a list request. At Aggregate,
// these have a time limit of their own.
func (p *PostedMessage) isHandshakeOrList() bool {
	method, _ := p.knownMethod()
	_, isList := mcp.ListKindOf(method)
	return isList || method == "initialize" || method == "server/discover"
}

// namesTasks reports whether the message names tasks of the server.
func (p *PostedMessage) namesTasks() bool {
	return p.Message.Has(jsonrpc.TaskID) || p.Message.Has(jsonrpc.TaskIDs)
}

// answersAnyRequest reports whether the response may contain responses to any requests of the
// client: the client opened the stream, and it is not the rest of the stream of a known call.
func (p *PostedMessage) answersAnyRequest(httpMethod string) bool {
	return httpMethod == http.MethodGet && !p.Message.IsRequest()
}

// maskTarget returns the target at a server, for the mask. It is unknown for a response that a
// client resumes, and for that of a task.
func (p *PostedMessage) maskTarget(server string) mcp.Target {
	target, ok := mcp.TargetOf(server, &p.Message)
	if !ok || !p.Message.IsRequest() {
		target = mcp.Target{Server: server, Kind: mcp.Other}
	}
	return target
}

// IsModern reports whether the message, posted with r, is of the modern era.
func (p *PostedMessage) IsModern(r *http.Request) bool {
	return httpbody.GetHeader(r.Header, mcp.VersionHeader) == mcp.Stateless || p.Message.Has(jsonrpc.ProtocolVersion)
}

// Post makes the message the body of r. A transport may still read it after the response, so its
// bytes are never reused.
func (p *PostedMessage) Post(r *http.Request) {
	raw := p.Message.Raw
	p.body.Reset(raw)
	r.Body = &p.body
	r.GetBody = httpbody.Keep(raw)
	httpbody.SetHeader(r.Header, "Content-Type", "application/json")
	if r.ContentLength != int64(len(raw)) {
		httpbody.SetHeader(r.Header, "Content-Length", strconv.Itoa(len(raw)))
	}
	r.ContentLength, r.TransferEncoding = int64(len(raw)), nil
}

// edit changes the message, and posts it with r.
func (p *PostedMessage) edit(r *http.Request, edit jsonspan.Edit) {
	if edited, failure := p.Message.Edited(edit); failure == nil { // otherwise it stays unchanged
		p.Message = edited
		p.Post(r)
	}
}

// NewRecord returns a record of the request before its end. The server is "" if it is not exactly
// one.
func (p *PostedMessage) NewRecord(server, httpMethod string, kind EndpointKind) Record {
	return Record{Server: server, Method: p.label(httpMethod, kind), ClientMethod: p.MethodName(), Tool: p.ToolName()}
}

// label returns the method for metrics: one of a fixed set.
func (p *PostedMessage) label(httpMethod string, kind EndpointKind) string {
	switch {
	case httpMethod == http.MethodGet && kind != RPC:
		return methodStream
	case httpMethod == http.MethodDelete && kind != RPC:
		return methodDelete
	case p.Message.IsResponse():
		return methodAnswer
	}
	if method, ok := p.knownMethod(); ok {
		return method
	}
	return methodOther
}

// CredentialHeaders are headers with which clients authenticate.
var CredentialHeaders = headerSet(
	"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token",
	"X-Access-Token",
)

// OverridingHeaders are headers with which a client could change the path, method, charset or
// protocol of a request. Some frameworks trust them, because proxies set them.
var OverridingHeaders = headerSet(
	"Upgrade", "Accept-Charset",
	"X-Original-Url", "X-Original-Uri", "X-Original-Method", "X-Rewrite-Url", "X-Rewrite-Uri",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
	"X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Prefix", "X-Forwarded-Method",
)

// DropHeaders removes the headers of a set. Many servers treat an underscore in a name as a hyphen,
// so such names are removed, too.
func DropHeaders(header http.Header, set map[string]bool) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return set[name] ||
			strings.IndexByte(name, '_') >= 0 && set[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))]
	})
}

// headerSet returns a set of headers. The names must be canonical, as in http.Header.
func headerSet(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// DropHopByHop removes the headers that Connection names. reverse_proxy does so as well, but only
// after the handlers of the server's block have set theirs, which a client could then remove.
func DropHopByHop(header http.Header) {
	for _, names := range header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	delete(header, "Connection")
}

// HeaderNames appends the names of headers for which match returns true, sorted.
func HeaderNames(names []string, header http.Header, match func(name string) bool) []string {
	for name := range header {
		if match(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// MayVaryLists reports whether the tools that a server lists may depend on a header. Headers of a
// single request do not count.
func MayVaryLists(name string) bool {
	return !perRequestHeaders[name] && !hasPrefixFold(name, "mcp-") && !hasPrefixFold(name, "sec-") &&
		!hasPrefixFold(name, "x-b3-") && !hasPrefixFold(name, "x-datadog-")
}

// perRequestHeaders are headers that differ between requests of the same client: they describe the
// message, or are for tracing.
var perRequestHeaders = headerSet(
	"Accept", "Accept-Encoding", "Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type",
	"Date", "Expect", "Idempotency-Key", "If-Modified-Since", "If-None-Match", "Keep-Alive", "Last-Event-Id", "Origin",
	"Pragma", "Priority", "Referer", "Te", "Transfer-Encoding", "B3", "Baggage", "Cf-Ray", "Request-Id", "Sentry-Trace",
	"Traceparent", "Tracestate", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "X-Correlation-Id", "X-Request-Id",
)

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// identifyingParts are parts of the names of headers that identify the client, by first letter.
// Other headers, such as those of proxies and tracing, differ from request to request.
var identifyingParts = func() (byLetter ['z' + 1][]string) {
	for _, part := range []string{
		"auth", "cookie", "credential", "key", "passw", "secret", "session", "token", "jwt",
		"user", "account", "customer", "email", "identity", "org", "principal", "project", "role", "subject", "team",
		"tenant", "workspace",
		"cert", "client-dn", "client-id", "device", "group", "scope", "ssl",
		"x-mcp-", // some servers let clients choose tools with such a header
	} {
		byLetter[part[0]] = append(byLetter[part[0]], part)
	}
	return byLetter
}()

// IsIdentifying reports whether a header identifies the client.
func IsIdentifying(name string) bool {
	switch {
	case perRequestHeaders[name], hasPrefixFold(name, "mcp-"), hasPrefixFold(name, "sec-"),
		strings.EqualFold(name, "user-agent"), strings.EqualFold(name, "idempotency-key"):
		return false
	}
	for i := range len(name) {
		first := name[i] | 0x20 // lower case, if it is a letter
		if first >= byte(len(identifyingParts)) {
			continue
		}
		if slices.ContainsFunc(identifyingParts[first], func(part string) bool { return hasPrefixFold(name[i:], part) }) {
			return true
		}
	}
	return false
}

// Traceparent is the member of _meta, and the header, with the trace of a request.
const Traceparent = "traceparent"

// propagate adds the trace of r to the message, unless the client did.
func (p *PostedMessage) propagate(r *http.Request) {
	span := trace.SpanContextFromContext(r.Context())
	m := &p.Message
	if !span.IsValid() || !m.IsRequest() || m.Has(jsonrpc.Traceparent) {
		return
	}
	if kind := m.Kind(jsonrpc.Params); m.Has(jsonrpc.Params) && kind != jsonspan.BeginObject && kind != jsonspan.Null {
		return // params in an array cannot have _meta
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.Context(), carrier)
	member := append([]byte(`"`+Traceparent+`":`), jsonrpc.Quote(carrier[Traceparent])...)
	p.edit(r, m.InsertMeta(member))
}
