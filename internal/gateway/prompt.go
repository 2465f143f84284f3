package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A prompter asks the client of a call, or the person who uses it: for input that the server
// requires, for a confirmation, or for a login.
type prompter struct{ *call }

// ask sends the input requests of a server to the client and waits for the responses, at most
// [streamable.ServerRequestTimeout].
func (p prompter) ask(wanted *mcp.InputResult) (map[string]json.RawMessage, *jsonrpc.Failure) {
	l := p.link
	ctx, cancel := context.WithTimeout(p.ctx, streamable.ServerRequestTimeout)
	defer cancel()
	answers := map[string]<-chan *jsonrpc.Message{}
	for key, wants := range wanted.Requests {
		if !p.client.introduction.supports(wants.Method) {
			return nil, jsonrpc.MissingCapability(l.serverName, mcp.Shortened(wants.Method))
		}
		id, answer, forget := p.client.serverRequests.expect(l.serverName)
		defer forget()
		var m jsonrpc.Message
		if failure := m.Read(jsonrpc.RequestAs(id, wants.Method, wants.Params)); failure != nil {
			return nil, jsonrpc.InvalidResponse(l.serverName)
		}
		if !p.out.Event(&streamable.Event{Data: l.translator(p.g).gatewayRequest(&m)}) {
			failure := jsonrpc.MissingCapability(l.serverName, mcp.Shortened(wants.Method))
			failure.Message = "the MCP server asks for " + mcp.Shortened(wants.Method) +
				", which needs a client that accepts text/event-stream"
			return nil, failure
		}
		answers[key] = answer
	}
	responses := map[string]json.RawMessage{}
	ticker := time.NewTicker(streamable.KeepAlive)
	defer ticker.Stop()
	for key, answer := range answers {
		for responses[key] == nil {
			select {
			case m := <-answer:
				if m.Has(jsonrpc.Error) {
					failure := jsonrpc.ServerError(l.serverName, m)
					failure.Data.Symbol = "input_refused"
					return nil, failure
				}
				responses[key] = m.Literal(jsonrpc.Result)
			case <-ticker.C:
				p.out.KeepAlive()
			case <-ctx.Done():
				return nil, jsonrpc.Timeout(l.serverName)
			}
		}
	}
	return responses, nil
}

// askOne sends a request of the gateway to a legacy client and returns the response.
func (p prompter) askOne(question string, elicitation any) (answer json.RawMessage, _ *jsonrpc.Failure) {
	requests := map[string]mcp.InputRequest{question: mcp.Elicit(elicitation)}
	answers, failure := p.ask(&mcp.InputResult{Requests: requests})
	return answers[question], failure
}

// confirm asks a person to approve the call, if a rule requires that. It reports whether the call
// may be made.
func (p prompter) confirm() (ok bool, _ *jsonrpc.Failure) {
	switch {
	case !p.Elicitation.AwaitsConfirmation():
		return true, nil
	case p.era == mcp.Modern:
		return false, p.answerAs(mcp.InputRequired, p.Elicitation.Ask(inbound.ConfirmRequest, p.Elicitation.Confirmation()))
	}
	size := int64(len(p.Message.Raw))
	if !p.g.waiting.meter.Take(p.client.owner, size) {
		return false, jsonrpc.TooManyServerRequests(p.link.serverName)
	}
	defer p.g.waiting.meter.Give(p.client.owner, size)
	p.held.Store(true)
	defer p.held.Store(false)
	answer, failure := p.askOne(inbound.ConfirmRequest, p.Elicitation.Confirmation())
	switch {
	case p.canceled():
		failure = p.answerFailure(jsonrpc.ConfirmationDeclined(p.link.serverName))
		p.Outcome = upstream.OutcomeCanceled
		return false, failure
	case failure != nil && failure.Data.Symbol == "timeout":
		failure = p.DeniedBy(p.Decision, jsonrpc.ConfirmationTimeout(p.link.serverName), p.Target())
	default: // an error response of the client does not approve the call
		failure = p.Elicitation.TakeConfirmation(answer)
	}
	if failure != nil {
		return false, p.answerFailure(failure)
	}
	return true, nil
}

// takeResponses takes the responses of a modern client to requests of the gateway: confirmations
// and logins.
func (p prompter) takeResponses() *jsonrpc.Failure {
	key, answer, failure := p.Elicitation.TakeResponse()
	switch {
	case failure != nil:
		return failure
	case key == inbound.ConfirmRequest:
		return p.Elicitation.TakeConfirmation(answer)
	case key == inbound.LoginRequest && p.Server.Login != nil: // a reload may have removed Login
		return p.awaitLogin(answer)
	}
	return nil
}

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
func (p prompter) withLogin(attempt func() *jsonrpc.Failure) *jsonrpc.Failure {
	for range maxLogins {
		failure := attempt()
		required := p.loginRequired
		p.loginRequired = nil
		if required == nil {
			return failure
		}
		again, failure := p.logIn(required)
		if !again {
			return failure
		}
	}
	return p.answerFailure(jsonrpc.LoginFailed(p.link.serverName,
		"the server still requires a login after several attempts"))
}

// logIn asks the client to log in. It reports whether the login is done.
func (p prompter) logIn(required *jsonrpc.Failure) (again bool, _ *jsonrpc.Failure) {
	if len(required.Data.Elicitations) == 0 {
		return false, p.answerFailure(required)
	}
	ask := &required.Data.Elicitations[0]
	switch {
	case !mcp.CanOpenURLs(p.client.introduction.capabilities):
		return false, p.answerLoginAddress(required, ask)
	case p.era == mcp.Modern && !mcp.MayRequireInput(p.Message.Text(jsonrpc.Method)):
		return false, p.answerFailure(required)
	case p.era == mcp.Modern:
		return false, p.answerAs(mcp.InputRequired, p.Elicitation.Ask(inbound.LoginRequest, ask))
	case !p.out.AcceptsStream():
		return false, p.answerLoginAddress(required, ask)
	}
	p.held.Store(true)
	defer p.held.Store(false)
	answer, failure := p.askOne(inbound.LoginRequest, ask)
	if failure == nil {
		failure = p.awaitLogin(answer)
	}
	if failure != nil {
		return false, p.answerFailure(failure)
	}
	p.out.Event(&streamable.Event{Data: jsonrpc.Notification("notifications/elicitation/complete",
		jsonrpc.Encode(map[string]string{"elicitationId": ask.ID}))})
	return true, nil
}

// answerLoginAddress answers with the address of the login page as text, for clients that cannot
// open URLs.
func (p prompter) answerLoginAddress(required *jsonrpc.Failure, ask *jsonrpc.URLElicitation) *jsonrpc.Failure {
	if !p.Message.Is(jsonrpc.Method, "tools/call") {
		return p.answerFailure(required)
	}
	p.FailWith(required)
	return builtinCall(p).answerText(ask.Message+" Open this address in a browser, then try again: "+ask.URL, true)
}

// awaitLogin waits for the login, if the client has accepted the request to log in.
func (p prompter) awaitLogin(answer json.RawMessage) *jsonrpc.Failure {
	if !mcp.IsAccepted(answer) {
		failure := jsonrpc.LoginRequired(p.link.serverName, nil)
		failure.Message, failure.Data.Symbol = "the login was declined", "input_refused"
		return failure
	}
	ctx, cancel := context.WithTimeout(p.ctx, streamable.ServerRequestTimeout)
	defer cancel()
	done := make(chan bool, 1)
	go func() { done <- p.Server.Login.Await(ctx, p.Caller.Account()) }()
	ticker := time.NewTicker(streamable.KeepAlive)
	defer ticker.Stop()
	for {
		select {
		case ok := <-done:
			if !ok {
				return jsonrpc.Timeout(p.link.serverName)
			}
			return nil
		case <-ticker.C:
			if p.out.AcceptsStream() {
				p.out.KeepAlive()
			}
		}
	}
}

// isLoginTool reports whether a tool is the gateway's login tool for a server. After the login, the
// server's own tool may have that name.
func (p prompter) isLoginTool(s *upstream.Server, target mcp.Target) bool {
	if s.Login == nil || target.Kind != mcp.Tool || target.Name != LoginTool {
		return false
	}
	if p.Override != nil && p.Override.Name != LoginTool {
		return false // the server's own tool, under another name
	}
	known := p.client.knownList(p.g, s, mcp.Tools)
	return known == nil || !slices.Contains(known.Names, p.g.names.shown(s.Name, mcp.Tools, LoginTool))
}

// callLoginTool answers a call of the login tool.
func (p prompter) callLoginTool() *jsonrpc.Failure {
	list, _, failure := p.client.newListQuery(p.scope(), p.Server, mcp.Tools).get()
	if failure != nil {
		return p.fail(failure)
	}
	if slices.Contains(list.Names, p.g.names.shown(p.link.serverName, mcp.Tools, LoginTool)) {
		// The server has a tool of that name.
		if failure := p.Admit(mcp.Target{Server: p.link.serverName, Kind: mcp.Tool, Name: LoginTool}); failure != nil {
			return p.answerFailure(failure)
		}
		return p.send()
	}
	return builtinCall(p).answerText("Logged in to "+p.link.serverName+". Its tools can be listed now.", false)
}
