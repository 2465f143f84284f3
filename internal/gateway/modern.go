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

// A client of the legacy era in front of a server of the modern one. The server asks
// for input by a result; the client is asked by requests on the stream of its call,
// and the call is made again with its answers.

// toModern passes the request on to a server of the modern era. It reports whether the server
// is not what it was, and the request can be made again.
func (c *call) toModern(again bool) (lost bool, _ *jsonrpc.Failure) {
	first, failure := c.modernized()
	if failure != nil {
		return false, c.failed(failure)
	}
	message := first
	for round := range upstream.MaxRounds {
		rl := &relay{call: c, again: again && round == 0}
		failure := rl.run(&message)
		switch {
		case failure != nil && rl.forgotten():
			c.link.lost(c.g, rl.session)
			return true, nil
		case failure != nil:
			return false, c.failed(failure)
		case rl.input == nil:
			return false, nil
		}
		responses, failure := c.input(rl.input)
		if failure == nil {
			failure = message.Read(mcp.WithInput(&first, responses, rl.input.State))
		}
		if failure != nil {
			return false, c.failed(failure)
		}
	}
	return false, c.failed(jsonrpc.InvalidResponse(c.link.server))
}

// modernized returns the request, which is of the legacy era, as one of the modern era.
func (c *call) modernized() (jsonrpc.Message, *jsonrpc.Failure) {
	m, failure := withoutModernMeta(&c.Message) // the gateway says what it says of the client
	if failure != nil {
		return m, failure
	}
	meta := c.client.meta(c.client.logLevel())
	return m.Edited(m.InsertMeta(meta[1 : len(meta)-1]))
}

// input asks the client for what a server wants to know.
func (c *call) input(wanted *mcp.InputResult) (map[string]json.RawMessage, *jsonrpc.Failure) {
	l := c.link
	ctx, cancel := context.WithTimeout(c.ctx, streamable.QuestionTime)
	defer cancel()
	answers := map[string]<-chan *jsonrpc.Message{}
	for key, wants := range wanted.Requests {
		if !c.client.can(wants.Method) {
			return nil, jsonrpc.MissingCapability(l.server, mcp.Shortened(wants.Method))
		}
		id, answer, forget := c.client.expectAnswer(l)
		defer forget()
		var m jsonrpc.Message
		if failure := m.Read(jsonrpc.RequestAs(id, wants.Method, wants.Params)); failure != nil {
			return nil, jsonrpc.InvalidResponse(l.server)
		}
		if !c.out.Event(&streamable.Event{Data: l.translator(c.g).question(&m)}) {
			return nil, jsonrpc.MissingCapability(l.server, "an answer in an event stream")
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
					return nil, refusedBy(l.server, m)
				}
				responses[key] = m.Literal(jsonrpc.Result)
			case <-ticker.C:
				c.out.KeepAlive()
			case <-ctx.Done():
				return nil, jsonrpc.Timeout(l.server)
			}
		}
	}
	return responses, nil
}

// refusedBy says that the client did not answer what a server wants to know.
func refusedBy(server string, m *jsonrpc.Message) *jsonrpc.Failure {
	failure := jsonrpc.ServerError(server, m)
	failure.Data.Symbol = "input_refused"
	return failure
}

// askInStream asks a client of the legacy era a question of the gateway.
func (c *call) askInStream(question string, elicitation any) (answer json.RawMessage, _ *jsonrpc.Failure) {
	asked := map[string]mcp.InputRequest{question: mcp.Elicit(elicitation)}
	answers, failure := c.input(&mcp.InputResult{Requests: asked})
	return answers[question], failure
}
