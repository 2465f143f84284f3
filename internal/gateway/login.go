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

// Servers may require the gateway to log in. Until then, requests to them fail with login_required.
// A client of the aggregate endpoint is asked to open the login page: with a server request in the
// stream of its call (legacy), with an input-required result (modern), or with the text of a tool
// result. After the login the call continues.

// LoginTool is the name of the tool that a server shows until the gateway is logged in.
const LoginTool = "login"

// maxLogins limits the logins during one call: the first one, and those for additional scopes.
const maxLogins = 3

// withLogin calls attempt, and asks the client to log in if that is required, up to maxLogins
// times.
func (c *call) withLogin(attempt func() *jsonrpc.Failure) *jsonrpc.Failure {
	for range maxLogins {
		failure := attempt()
		required := c.loginRequired
		c.loginRequired = nil
		if required == nil {
			return failure
		}
		again, failure := c.logIn(required)
		if !again {
			return failure
		}
	}
	return c.answerFailure(jsonrpc.LoginFailed(c.link.serverName,
		"the server still requires a login after several attempts"))
}

// logIn asks the client to log in. It reports whether the login is done.
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
		return false, c.answerAs(mcp.InputRequired, c.Ask(inbound.LoginRequest, ask))
	case !c.out.AcceptsStream():
		return false, c.answerLoginAddress(required, ask)
	}
	c.active.held.Store(true)
	defer c.active.held.Store(false)
	answer, failure := c.askInStream(inbound.LoginRequest, ask)
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

// answerLoginAddress answers with the address of the login page as text, for clients that cannot
// open URLs.
func (c *call) answerLoginAddress(required *jsonrpc.Failure, ask *jsonrpc.URLElicitation) *jsonrpc.Failure {
	if !c.Message.Is(jsonrpc.Method, "tools/call") {
		return c.answerFailure(required)
	}
	c.FailWith(required)
	return builtinCall{c}.answerText(ask.Message+" Open this address in a browser, then try again: "+ask.URL, true)
}

// awaitLogin waits for the login, if the client has accepted the request to log in.
func (c *call) awaitLogin(answer json.RawMessage) *jsonrpc.Failure {
	if !mcp.IsAccepted(answer) {
		failure := jsonrpc.LoginRequired(c.link.serverName, nil)
		failure.Message, failure.Data.Symbol = "the login was declined", "input_refused"
		return failure
	}
	ctx, cancel := context.WithTimeout(c.ctx, streamable.ServerRequestTimeout)
	defer cancel()
	done := make(chan bool, 1)
	go func() { done <- c.Server.Login.Await(ctx, c.Caller.Account()) }()
	ticker := time.NewTicker(streamable.KeepAlive)
	defer ticker.Stop()
	for {
		select {
		case ok := <-done:
			if !ok {
				return jsonrpc.Timeout(c.link.serverName)
			}
			return nil
		case <-ticker.C:
			if c.out.AcceptsStream() {
				c.out.KeepAlive()
			}
		}
	}
}

// isLoginTool reports whether a tool is the gateway's login tool for a server. After the login, the
// server's own tool may have that name.
func (c *call) isLoginTool(s *upstream.Server, target mcp.Target) bool {
	if s.Login == nil || target.Kind != mcp.Tool || target.Name != LoginTool {
		return false
	}
	if c.Override != nil && c.Override.Name != LoginTool {
		return false // the server's own tool, under another name
	}
	known := c.client.knownList(c.g, s, mcp.Tools)
	return known == nil || !slices.Contains(known.Names, c.g.shownName(s.Name, mcp.Tools, LoginTool))
}

// callLoginTool answers a call of the login tool.
func (c *call) callLoginTool() *jsonrpc.Failure {
	list, _, failure := c.client.newListQuery(c.scope(), c.Server, mcp.Tools).get()
	if failure != nil {
		return c.fail(failure)
	}
	if slices.Contains(list.Names, c.g.shownName(c.link.serverName, mcp.Tools, LoginTool)) {
		// The server has a tool of that name.
		if failure := c.Admit(mcp.Target{Server: c.link.serverName, Kind: mcp.Tool, Name: LoginTool}); failure != nil {
			return c.answerFailure(failure)
		}
		return c.send()
	}
	return builtinCall{c}.answerText("Logged in to "+c.link.serverName+". Its tools can be listed now.", false)
}

// loginToolList returns the list with the login tool of a server, nil if the client cannot log in.
func (g *Gateway) loginToolList(s *upstream.Server, required *jsonrpc.Failure) *catalog.List {
	if len(required.Data.Elicitations) == 0 {
		return nil
	}
	name := g.shownName(s.Name, mcp.Tools, LoginTool)
	item := jsonrpc.Encode(map[string]any{
		"name":        name,
		"description": "Log in to " + s.Name + ". Its other tools can be used after that.",
		"inputSchema": map[string]any{"type": "object", "properties": map[string]any{}},
	})
	return &catalog.List{Joined: item, Ends: []int{len(item)}, Names: []string{name}}
}

// Account returns the account for an identity, if each client has its own.
func (g *Gateway) Account(identity string) string {
	caller := g.rules.Caller(identity)
	return caller.Account()
}

// LoginChanged notifies clients that the login at a server has changed: the clients of one account,
// or all if the login is shared.
func (g *Gateway) LoginChanged(server, account string, shared bool) {
	s := g.servers[server]
	if s == nil {
		return
	}
	g.refresh(s, func(identity string) bool { return shared || g.Account(identity) == account }, func(l *link) {
		l.markLost(g, l.sessionID()) // the session may belong to another account
	})
}
