package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// loadProviders loads what finds out who clients are.
func (h *Handler) loadProviders(ctx caddy.Context) error {
	if len(h.AuthRaw) == 0 {
		return nil
	}
	h.admits = digest(h.AuthRaw)
	modules, err := ctx.LoadModule(h, "AuthRaw")
	if err != nil {
		return err
	}
	for _, module := range modules.([]any) {
		provider := module.(auth.Provider)
		h.providers = append(h.providers, provider)
		if holder, ok := provider.(auth.SecretHolder); ok {
			h.admits += holder.FingerprintOf("")
		}
		for _, name := range provider.CredentialHeaders() {
			h.credentials = append(h.credentials, http.CanonicalHeaderKey(name))
		}
	}
	return nil
}

// authenticate finds out who the client is, before anything else is done for it (A30),
// and reads what it posts. What is wrong with that is the first failure; it is for who is
// let in.
//
// Credentials in headers come first. Without good ones, no more of the body is read than
// a provider needs, and nothing of it for an address that has used up its budget.
func (x *exchange) authenticate(r *http.Request) (unread, failure *jsonrpc.Failure) {
	h, post := x.handler, r.Method == http.MethodPost
	x.address = clientAddress(r)
	request := &auth.Request{Request: r}
	known := x.knownToCaddy(r)
	var needed int64 // bytes of the body, to know more
	var reasons []error
	if !known {
		if post {
			needed = h.bodyNeeded(r)
		}
		known, reasons = x.identify(request, needed == 0)
	}
	switch {
	case !known && needed == 0:
		return nil, x.notLetIn(request, reasons)
	case !known:
		if wait := x.exhausted(); wait > 0 {
			return nil, x.rateLimited(wait, errTooManyGuesses)
		}
		unread = x.read(r, min(needed, h.RequestLimit), h.strangerBodies)
		if unread != nil && !x.complete(needed) { // the providers have not seen enough of it
			return nil, unread
		}
	case post:
		unread = x.read(r, h.RequestLimit, h.bodies)
	}
	if request.ProxyToken = x.message.Text(jsonrpc.AuthToken); known && (request.ProxyToken == "" || len(h.providers) == 0) {
		return unread, nil
	}
	request.Body = x.message.Raw
	if known, reasons = x.identify(request, true); !known {
		return unread, x.notLetIn(request, reasons)
	}
	x.held.release()
	if !x.held.hold(h.bodies, x, int64(len(request.Body))) {
		return x.busy(), nil
	}
	return unread, nil
}

// complete reports whether as much of the body was read as the providers need, or as can
// be a message with credentials in it.
func (x *exchange) complete(needed int64) bool {
	return x.message.Raw != nil || needed < x.handler.RequestLimit
}

// knownToCaddy reports whether it is known who the client is, or no matter, without any
// provider.
func (x *exchange) knownToCaddy(r *http.Request) bool {
	h := x.handler
	user := identity(x.repl)
	switch c := h.byIdentity[user]; {
	case isOperator(r):
		x.caller = h.callerOf(stdioClient)
	case len(h.providers) == 0, user != "" && c != nil && slices.Contains(c.Match, user): // whom Caddy has let in, and a client's match names
		x.caller = h.callerOf(user)
	default:
		return false
	}
	return true
}

// bodyNeeded returns how many bytes of the body the providers must see, at most, to judge
// a request.
func (h *Handler) bodyNeeded(r *http.Request) (bytes int64) {
	for _, provider := range h.providers {
		bytes = max(bytes, provider.BodyNeeded(r))
	}
	return bytes
}

// identify asks the providers who sends a request. Before its body is read, only those are
// asked who do not need it. It returns why each of them does not know.
func (x *exchange) identify(r *auth.Request, bodyRead bool) (known bool, reasons []error) {
	for _, provider := range x.handler.providers {
		var who string
		var err error
		if bodyRead || provider.BodyNeeded(r.Request) == 0 {
			who, err = provider.Authenticate(r)
		}
		if err == nil && who != "" {
			x.caller = x.handler.callerOf(who + realmMark + realmOf(provider, who))
			return true, nil
		}
		reasons = append(reasons, err)
	}
	return false, reasons
}

// realmOf tells a client from others who are called the same elsewhere: by what it is let
// in by.
func realmOf(provider auth.Provider, client string) string {
	if holder, ok := provider.(auth.SecretHolder); ok {
		return holder.FingerprintOf(client)
	}
	return ""
}

// notLetIn says that nobody knows the client, or that what it is known by is not good
// for this. The reasons are those of the providers.
func (x *exchange) notLetIn(r *auth.Request, reasons []error) *jsonrpc.Failure {
	for i, provider := range x.handler.providers {
		if challenger, ok := provider.(auth.Challenger); ok {
			if challenge := challenger.Challenge(r.Request, reasons[i]); challenge != "" {
				x.w.Header().Add("WWW-Authenticate", challenge)
			}
		}
	}
	status := http.StatusUnauthorized
	reason := errors.Join(reasons...)
	if _, known := errors.AsType[*auth.ForbiddenError](reason); known {
		status = http.StatusForbidden
	}
	if reason == nil {
		reason = errNoCredentials
	}
	x.caller = x.handler.callerOf("")
	if wait, ok := x.takeAs(mcp.Target{}, true); !ok {
		return x.rateLimited(wait, reason) // so that nobody can try for long
	}
	return x.denied(jsonrpc.Refused("", status), mcp.Target{}, reason)
}

// exhausted returns how long it takes until the address of an unknown client may
// be asked for credentials again.
func (x *exchange) exhausted() time.Duration {
	x.caller = x.handler.callerOf("")
	limits := x.limitsFor(nil, mcp.Target{}, true)
	if len(limits) == 0 {
		return 0
	}
	return x.handler.buckets.Wait(x.budget(), limits)
}

// rateLimited refuses an unknown client for a while.
func (x *exchange) rateLimited(wait time.Duration, reason error) *jsonrpc.Failure {
	x.w.Header().Set("Retry-After", retryAfter(wait))
	return x.denied(jsonrpc.Refused("", http.StatusTooManyRequests), mcp.Target{}, reason)
}

var (
	errNoCredentials  = errors.New("no credentials")
	errTooManyGuesses = errors.New("too many requests without good credentials from this address")
)

// isOperator reports whether a request comes from the command that has started this
// process.
func isOperator(r *http.Request) bool {
	address, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return address != nil && address.Network() == stdioNetwork
}

// guarded reports whether it matters what a request is about.
func (x *exchange) guarded() bool {
	return x.caller.rules != nil || x.handler.PinTools || len(x.handler.limits) > 0
}

// enter decides whether the client may do at one server what it wants to.
func (x *exchange) enter() *jsonrpc.Failure {
	target, known := mcp.Target{Server: x.server.Name}, true
	if x.guarded() {
		target, known = mcp.TargetOf(x.server.Name, &x.message)
	}
	if failure := x.admit(target); failure != nil {
		return failure
	}
	if !known { // so nobody can say whether it is allowed
		return jsonrpc.InvalidParams("params: nobody can know what they name")
	}
	return x.admitListening()
}

// admit decides whether the client may do something, now. It is asked once for each
// message of a client.
func (x *exchange) admit(target mcp.Target) *jsonrpc.Failure {
	h := x.handler
	x.tally().requests.Add(1)
	if !x.caller.allows(target) {
		return x.denied(jsonrpc.Refused(target.Server, http.StatusForbidden), target, nil)
	}
	if h.withheld(target) {
		return x.denied(jsonrpc.ToolChanged(target.Server), target, nil)
	}
	if wait, ok := x.take(target); !ok {
		x.w.Header().Set("Retry-After", retryAfter(wait))
		return x.denied(jsonrpc.Refused(target.Server, http.StatusTooManyRequests), target, nil)
	}
	return nil
}

// admitListening decides whether the client may hear of changes of all the resources
// that it wants to listen to at one server. Where servers are one, those that it may not
// are left out.
func (x *exchange) admitListening() *jsonrpc.Failure {
	if x.caller.policy() == nil || !x.message.Is(jsonrpc.Method, mcp.MethodListen) {
		return nil
	}
	if x.message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject {
		return jsonrpc.InvalidParams("notifications: it is missing, or no object of what to listen to")
	}
	if !x.message.Has(jsonrpc.Subscriptions) {
		return nil
	}
	var uris []string
	if json.Unmarshal(x.message.Literal(jsonrpc.Subscriptions), &uris) != nil {
		return jsonrpc.InvalidParams("resourceSubscriptions: they are no list of URIs")
	}
	for _, uri := range uris {
		if target := (mcp.Target{Server: x.server.Name, Kind: mcp.Resource, Name: uri}); !x.caller.allows(target) {
			return x.denied(jsonrpc.Refused(target.Server, http.StatusForbidden), target, nil)
		}
	}
	return nil
}

// denied notes that a client was refused something, and why: one line in the log for
// each time.
func (x *exchange) denied(failure *jsonrpc.Failure, target mcp.Target, reason error) *jsonrpc.Failure {
	h := x.handler
	client := x.caller.name
	if client == "" {
		client = anonymous
	}
	x.tally().denied.Add(1)
	denials.WithLabelValues(x.caller.label, failure.Data.Symbol).Inc()
	h.logger.Named("audit").Warn("access denied",
		zap.String("reason", failure.Data.Symbol), zap.String("client", client), zap.String("client_ip", x.address),
		zap.String("mcp_server", target.Server), zap.String("mcp_method", x.methodName()),
		zap.String(targetField(target), mcp.Shortened(target.Name)), zap.Error(reason))
	h.events.Emit(h.ctx, "mcp_access_denied", map[string]any{
		"gateway": h.Name, "reason": failure.Data.Symbol, "client": client, "client_ip": x.address,
		"server": target.Server, "method": x.methodName(), "name": mcp.Shortened(target.Name),
	})
	return failure
}

// tally returns what counts for the client, which is there.
func (x *exchange) tally() *tally {
	t := x.handler.tally(x.caller.label)
	t.last.Store(x.began.UnixMilli())
	return t
}

// targetField is the field of the log that names what was asked for.
func targetField(target mcp.Target) string {
	if target.Kind == mcp.Resource {
		return "mcp_resource"
	}
	return "mcp_tool"
}

// stripToken takes the token that was for the gateway out of the message, and what was
// only there for it (A31).
func (x *exchange) stripToken() *jsonrpc.Failure {
	m := &x.message
	if len(x.handler.providers) == 0 || !m.Has(jsonrpc.AuthToken) {
		return nil
	}
	within, field := "authToken", jsonrpc.Proxy
	if onlyMember(m.Literal(jsonrpc.Proxy), within) {
		within, field = "proxy", jsonrpc.Params
	}
	edit, ok := jsonspan.Remove(m.Literal(field), within)
	if !ok {
		return jsonrpc.ParseError() // which cannot be: it has been read there
	}
	return m.Read(jsonspan.Spliced(m.Raw, m.Within(field, edit)))
}

// onlyMember reports whether an object has no other member than this.
func onlyMember(object []byte, name string) bool {
	for member := range jsonspan.Members(object) {
		if member.Key != name {
			return false
		}
	}
	return true
}

// stripCredentials takes off a request what was for the gateway: no server gets to see
// what its clients are let in by, unless it is told to.
func (h *Handler) stripCredentials(header http.Header) {
	dropHeaders(header, credentials)
	for _, name := range h.credentials {
		header.Del(name)
	}
}

// sees reports whether a client may know of a server.
func (h *Handler) sees(identity, server string) bool {
	who := h.callerOf(identity)
	return who.policy().Server(server)
}

// hears reports whether a client may hear of changes of a resource.
func (h *Handler) hears(identity, server, uri string) bool {
	who := h.callerOf(identity)
	return who.allows(mcp.Target{Server: server, Kind: mcp.Resource, Name: uri})
}

// others reports whether a client may tell a server what the protocol does not know.
func (h *Handler) others(identity, server string) bool {
	who := h.callerOf(identity)
	return who.allows(mcp.Target{Server: server, Kind: mcp.Other})
}

// view changes with what a client is shown.
func (h *Handler) view(identity string) string {
	view := ""
	if who := h.callerOf(identity); who.rules != nil {
		view = who.rules.view
	}
	if h.PinTools {
		view += " pinned"
	}
	return view
}

// standing changes with what lets a client in. Only a new request can show whether a
// certificate, a JWT or Caddy's own authentication still does: so with each configuration.
func (h *Handler) standing(identity string) string {
	who := h.callerOf(identity)
	standing := h.admits + who.label
	if who.mustProveAgain() {
		standing += fmt.Sprintf(" %p", h.generation)
	}
	return standing
}

// revoke ends the streams that clients have opened to listen to one server, unless a
// handler that takes the place of this one has the same server, and would let them in as
// this one has and need not ask anew. They come back, and are asked again. Streams to all
// servers go on there, if they may.
func (h *Handler) revoke() {
	if caddy.Exiting() {
		return
	}
	stays := map[string]bool{}
	for _, other := range registry.current() {
		if other.generation == h.generation || other.Name != h.Name || other.MCPPath != h.MCPPath || other.admits != h.admits || other.permits != h.permits {
			continue
		}
		for _, s := range other.Servers {
			stays[s.id] = true
		}
	}
	h.endUnproved()
	for _, s := range h.Servers {
		if s != nil && s.endStreams != nil && !stays[s.id] {
			s.endStreams()
		}
	}
}

// callerIn returns the caller that a request of the gateway itself is made for. The
// configuration may be another by now.
func (h *Handler) callerIn(ctx context.Context) caller {
	outer, _ := ctx.Value(outerKey{}).(*outerRequest)
	if outer == nil {
		return caller{}
	}
	return h.callerOf(outer.identity)
}
