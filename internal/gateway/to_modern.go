package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A legacy client calls a modern server. When the server returns an input-required result, the
// gateway sends requests to the client in the stream of its call, and repeats the call with the
// responses.

// toModern forwards the call to a modern server. It reports whether the server has changed its era
// or session, so that the call can be repeated.
func (c *call) toModern(mayRetry bool) (lost bool, _ *jsonrpc.Failure) {
	first, failure := c.modernRequest()
	if failure != nil {
		return false, c.fail(failure)
	}
	message := first
	for round := range upstream.MaxRounds {
		rl := &relay{call: c, retryable: mayRetry && round == 0}
		failure := rl.run(&message)
		switch {
		case failure != nil && rl.sessionForgotten():
			c.link.markLost(c.g, rl.session)
			return true, nil
		case failure != nil:
			return false, c.fail(failure)
		case rl.input == nil:
			return false, nil
		}
		responses, failure := c.askClient(rl.input)
		if failure == nil {
			failure = message.Read(mcp.WithInput(&first, responses, rl.input.State))
		}
		if failure != nil {
			return false, c.fail(failure)
		}
	}
	return false, c.fail(jsonrpc.InvalidResponse(c.link.serverName))
}

// modernRequest returns the legacy request as a modern one.
func (c *call) modernRequest() (jsonrpc.Message, *jsonrpc.Failure) {
	m, failure := withoutModernMeta(&c.Message) // the gateway sets these members
	if failure != nil {
		return m, failure
	}
	meta := c.client.meta(c.client.logLevel())
	return m.Edited(m.InsertMeta(meta[1 : len(meta)-1]))
}

// askClient sends the input requests of a server to the client and waits for the responses, at most
// [streamable.ServerRequestTimeout].
func (c *call) askClient(wanted *mcp.InputResult) (map[string]json.RawMessage, *jsonrpc.Failure) {
	l := c.link
	ctx, cancel := context.WithTimeout(c.ctx, streamable.ServerRequestTimeout)
	defer cancel()
	answers := map[string]<-chan *jsonrpc.Message{}
	for key, wants := range wanted.Requests {
		if !c.client.supports(wants.Method) {
			return nil, jsonrpc.MissingCapability(l.serverName, mcp.Shortened(wants.Method))
		}
		id, answer, forget := c.client.expectResponse(l)
		defer forget()
		var m jsonrpc.Message
		if failure := m.Read(jsonrpc.RequestAs(id, wants.Method, wants.Params)); failure != nil {
			return nil, jsonrpc.InvalidResponse(l.serverName)
		}
		if !c.out.Event(&streamable.Event{Data: l.translator(c.g).gatewayRequest(&m)}) {
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
					return nil, inputRefused(l.serverName, m)
				}
				responses[key] = m.Literal(jsonrpc.Result)
			case <-ticker.C:
				c.out.KeepAlive()
			case <-ctx.Done():
				return nil, jsonrpc.Timeout(l.serverName)
			}
		}
	}
	return responses, nil
}

// inputRefused returns the failure for a client that answered a server request with an error.
func inputRefused(server string, m *jsonrpc.Message) *jsonrpc.Failure {
	failure := jsonrpc.ServerError(server, m)
	failure.Data.Symbol = "input_refused"
	return failure
}

// askInStream sends a request of the gateway to a legacy client and returns the response.
func (c *call) askInStream(question string, elicitation any) (answer json.RawMessage, _ *jsonrpc.Failure) {
	requests := map[string]mcp.InputRequest{question: mcp.Elicit(elicitation)}
	answers, failure := c.askClient(&mcp.InputResult{Requests: requests})
	return answers[question], failure
}
