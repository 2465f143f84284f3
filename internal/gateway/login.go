package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Some servers want the gateway to log in. Until it has, requests to them fail with
// login_required. A client of the aggregate is then asked to open the address of the login
// page: by a question in the stream of its call in the legacy era, by a result that asks for
// input in the modern one, and otherwise by the text of a tool result. After the login the
// call goes on.

// LoginTool is the name of the tool that a server shows until the gateway has logged in.
const LoginTool = "login"

// maxLogins is how often a client is asked to log in during one call: at first, and when the
// server wants further scopes.
const maxLogins = 3

// withLogin makes attempts to answer the call, and asks the client to log in between them.
func (c *call) withLogin(attempt func() *jsonrpc.Failure) *jsonrpc.Failure {
	for range maxLogins {
		failure := attempt()
		required := c.required
		if c.required = nil; required == nil {
			return failure
		}
		again, failure := c.logIn(required)
		if !again {
			return failure
		}
	}
	return c.answerFailure(jsonrpc.LoginFailed(c.link.server, "the server keeps asking for a login"))
}

// logIn asks the client to log in. It reports whether the client has.
func (c *call) logIn(required *jsonrpc.Failure) (again bool, _ *jsonrpc.Failure) {
	if len(required.Data.Elicitations) == 0 {
		return false, c.answerFailure(required)
	}
	ask := &required.Data.Elicitations[0]
	switch {
	case !mcp.CanOpenURLs(c.client.introduction.capabilities):
		return false, c.answerLoginAddress(required, ask)
	case c.era == mcp.Modern && !mcp.MayRequireInput(c.Message.Text(jsonrpc.Method)):
		return false, c.answerFailure(required)
	case c.era == mcp.Modern:
		return false, c.answerAs(mcp.InputRequired, c.Ask(inbound.LoginQuestion, ask))
	case !c.out.AcceptsStream():
		return false, c.answerLoginAddress(required, ask)
	}
	c.flight.held.Store(true)
	defer c.flight.held.Store(false)
	answer, failure := c.askInStream(inbound.LoginQuestion, ask)
	if failure == nil {
		failure = c.awaitLogin(answer)
	}
	if failure != nil {
		return false, c.answerFailure(failure)
	}
	c.out.Event(&streamable.Event{Data: jsonrpc.Notification("notifications/elicitation/complete",
		jsonrpc.Encode(map[string]string{"elicitationId": ask.ID}))})
	return true, nil
}

// answerLoginAddress tells a client that cannot open addresses which one a person has to open.
func (c *call) answerLoginAddress(required *jsonrpc.Failure, ask *jsonrpc.URLElicitation) *jsonrpc.Failure {
	if !c.Message.Is(jsonrpc.Method, "tools/call") {
		return c.answerFailure(required)
	}
	c.FailWith(required)
	return ownCall{c}.text(ask.Message+" Open this address in a browser, then try again: "+ask.URL, true)
}

// awaitLogin waits for the login that the client was asked for, if the client has agreed to it.
func (c *call) awaitLogin(answer json.RawMessage) *jsonrpc.Failure {
	if !mcp.IsAccepted(answer) {
		failure := jsonrpc.LoginRequired(c.link.server, nil)
		failure.Message, failure.Data.Symbol = "the login was declined", "input_refused"
		return failure
	}
	ctx, cancel := context.WithTimeout(c.ctx, streamable.QuestionTime)
	defer cancel()
	done := make(chan bool, 1)
	go func() { done <- c.Server.Login.Await(ctx, c.Caller.Account()) }()
	ticker := time.NewTicker(streamable.KeepAlive)
	defer ticker.Stop()
	for {
		select {
		case ok := <-done:
			if !ok {
				return jsonrpc.Timeout(c.link.server)
			}
			return nil
		case <-ticker.C:
			if c.out.AcceptsStream() {
				c.out.KeepAlive()
			}
		}
	}
}

// isLoginTool reports whether a tool of a server is the one that the gateway shows for it. A
// server that the gateway has logged in to may have a tool of that name itself.
func (c *call) isLoginTool(s *upstream.Server, target mcp.Target) bool {
	if s.Login == nil || target.Kind != mcp.Tool || target.Name != LoginTool {
		return false
	}
	if c.Override != nil && c.Override.Name != LoginTool {
		return false // the client has called the server's own, by another name
	}
	known := c.client.knownList(c.g, s, mcp.Tools)
	return known == nil || !slices.Contains(known.Names, c.g.shown(s.Name, mcp.Tools, LoginTool))
}

// callLoginTool answers a call of that tool.
func (c *call) callLoginTool() *jsonrpc.Failure {
	list, _, failure := c.client.newListQuery(c.behalf(), c.Server, mcp.Tools).get()
	if failure != nil {
		return c.failed(failure)
	}
	if slices.Contains(list.Names, c.g.shown(c.link.server, mcp.Tools, LoginTool)) {
		// It is the server's after all.
		if failure := c.Admit(mcp.Target{Server: c.link.server, Kind: mcp.Tool, Name: LoginTool}); failure != nil {
			return c.answerFailure(failure)
		}
		return c.send()
	}
	return ownCall{c}.text("Logged in to "+c.link.server+". Its tools can be listed now.", false)
}

// loginListing returns the tool that a client sees of a server as long as a login is required,
// nil if the client cannot log in.
func (g *Gateway) loginListing(s *upstream.Server, required *jsonrpc.Failure) *catalog.List {
	if len(required.Data.Elicitations) == 0 {
		return nil
	}
	name := g.shown(s.Name, mcp.Tools, LoginTool)
	item := jsonrpc.Encode(map[string]any{
		"name":        name,
		"description": "Log in to " + s.Name + ". Its other tools can be used after that.",
		"inputSchema": map[string]any{"type": "object", "properties": map[string]any{}},
	})
	return &catalog.List{Joined: item, Ends: []int{len(item)}, Names: []string{name}}
}

// Account returns whose account is used for an identity, where each client has one.
func (g *Gateway) Account(identity string) string {
	who := g.rules.Caller(identity)
	return who.Account()
}

// LoginChanged tells clients that the login at a server has changed: those of one account, or
// all of them if the login is shared.
func (g *Gateway) LoginChanged(server, account string, shared bool) {
	s := g.servers[server]
	if s == nil {
		return
	}
	g.refresh(s, func(identity string) bool { return shared || g.Account(identity) == account }, func(l *link) {
		l.lost(g, l.sessionID()) // it may be of another account
	})
}
