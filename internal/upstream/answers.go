package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
)

// An answerer answers messages of a server in place of the client.
type answerer struct {
	*Exchange
	r *http.Request // to the server
}

// answered takes a message that is not for the client (A59). It reports whether it is
// such.
func (x answerer) answered(m *jsonrpc.Message) bool {
	if m.IsAnswer() || !m.Has(jsonrpc.Method) {
		return false
	}
	method := m.Text(jsonrpc.Method)
	a := x.Server.Answer(method)
	if a.Action == Deliver {
		return false
	}
	if !m.IsRequest() {
		// Where all servers are one, who joins them has to know what has changed.
		return x.Kind != Aggregate || !strings.HasSuffix(method, "/list_changed")
	}
	reply := jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "no client answers "+mcp.Shortened(method))
	switch {
	case a.Action == AnswerHere:
		reply = jsonrpc.Answer(m.Literal(jsonrpc.ID), a.Result)
	case method == "ping":
		reply = jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}"))
	}
	// The server may have more to say before it listens, and the client need not wait
	// for that.
	answer, cancel := x.request(context.WithoutCancel(x.r.Context()), reply)
	mcp.ClearModern(answer.Header)
	stop := context.AfterFunc(x.Shared.Exiting, cancel)
	begun := x.answering.Add(1) <= maxAnswering && x.Server.Asides.Go(func() {
		defer x.answering.Add(-1)
		defer cancel()
		defer stop()
		if err := x.deliver(answer); err != nil {
			x.Shared.Logger.Warn("answer not delivered", zap.String("mcp_server", x.Server.Name), zap.Error(err))
		}
	})
	if !begun { // who asks so much at once gets no more answers
		x.answering.Add(-1)
		stop()
		cancel()
		x.Shared.Logger.Warn("question of MCP server not answered, because it asks too much at once",
			zap.String("mcp_server", x.Server.Name))
	}
	return true
}

// deliver sends the server a request of which only the status matters.
func (x answerer) deliver(r *http.Request) error {
	w := &statusRecorder{header: http.Header{}}
	if err := recovered(func() error { return x.serveRoutes(w, r) }); err != nil {
		return err
	}
	if w.status/100 != 2 {
		return fmt.Errorf("status %d", w.status)
	}
	return nil
}

// maxAnswering is how many answers to a server can be under way beside one request.
const maxAnswering = 64

// resolved returns the answer of a server of the modern era. What it asks before it goes
// on, by a result, is answered here or dropped, and what is left for the client to
// answer is all that it is asked.
func (x answerer) resolved(message []byte) ([]byte, error) {
	m := new(jsonrpc.Message)
	for range MaxRounds {
		if m.Read(message) != nil {
			return message, nil
		}
		asks, is, err := mcp.ReadInput(m)
		if err != nil || !is {
			return message, err
		}
		var ours []string
		for key, q := range asks.Requests {
			switch x.Server.Answer(q.Method).Action {
			case Deliver:
			case Drop:
				return jsonrpc.MissingCapability(x.Server.Name, mcp.Shortened(q.Method)).Append(nil, m.Literal(jsonrpc.ID)), nil
			default:
				ours = append(ours, key)
			}
		}
		if len(ours) == 0 {
			return message, nil
		}
		if len(ours) < len(asks.Requests) {
			return withoutRequests(m, ours), nil // the server asks again for what the client does not say
		}
		answer, err := x.callAgain(ours, &asks)
		if err != nil {
			x.Shared.Logger.Warn("answer not delivered", zap.String("mcp_server", x.Server.Name), zap.Error(err))
			return jsonrpc.ConnectError(x.Server.Name, causeOf(err)).Append(nil, m.Literal(jsonrpc.ID)), nil
		}
		message = answer
	}
	return jsonrpc.InvalidResponse(x.Server.Name).Append(nil, m.Literal(jsonrpc.ID)), nil
}

// withoutRequests returns a result that asks for input without some of its questions.
func withoutRequests(m *jsonrpc.Message, keys []string) []byte {
	result := m.Literal(jsonrpc.Result)
	for member := range jsonspan.Members(result) {
		if member.Key != "inputRequests" {
			continue
		}
		left := result[member.Value.Start:member.Value.End]
		for _, key := range keys {
			if edit, ok := jsonspan.Remove(left, key); ok {
				left = jsonspan.Spliced(left, edit)
			}
		}
		edit := jsonspan.Edit{Start: member.Value.Start, End: member.Value.End, New: left}
		return jsonspan.Spliced(m.Raw, m.Within(jsonrpc.Result, edit))
	}
	return m.Raw
}

// callAgain makes the call again with answers to what the server asks, besides those
// that the client has given, and returns the answer to that. Other messages that the server
// sends meanwhile are dropped.
func (x answerer) callAgain(keys []string, asks *mcp.InputResult) (answer []byte, err error) {
	responses := map[string]json.RawMessage{}
	_ = json.Unmarshal(x.Message.Literal(jsonrpc.InputResponses), &responses) // there may be none
	for _, key := range keys {
		responses[key] = x.Server.Answer(asks.Requests[key].Method).Result
	}
	var call jsonrpc.Message
	if failure := call.Read(mcp.WithInput(&x.Message, responses, asks.State)); failure != nil {
		return nil, failure
	}
	id := jsonrpc.Quote("gateway:" + rand.Text()) // the protocol wants another one
	again, cancel := x.request(x.r.Context(), jsonspan.Spliced(call.Raw, call.Replace(jsonrpc.ID, id)))
	defer cancel()
	limit := int64(maxScreened)
	if x.arrival.limit > 0 {
		limit = min(limit, x.arrival.limit)
	}
	w := screen.NewWriter(&statusRecorder{header: http.Header{}}, limit, func(message []byte) ([]byte, error) {
		x.arrival.heard()
		var m jsonrpc.Message
		message = unmarked(message)
		if looksLikeJSON(message) && m.ReadExact(message) != nil {
			return nil, errUnreadable
		}
		if m.IsAnswer() {
			answer = jsonspan.Spliced(bytes.Clone(message), m.WithID(x.Message.Literal(jsonrpc.ID))...)
		}
		return nil, nil
	})
	if err = x.Server.serve(w, again, x.Caller.Account()); err == nil {
		err = w.Close()
	}
	if answer == nil && err == nil {
		err = errAborted
	}
	return answer, err
}

// request returns a request of our own to the server, in the session of the one that is being
// served, as the routes have got that.
func (x answerer) request(ctx context.Context, body []byte) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, x.Server.Timeout)
	r := x.Server.Routes.Derive(ctx, x.sent, false)
	x.Server.Routes.Describe(r, x.placeholder)
	for _, name := range [...]string{"Last-Event-Id", "Content-Encoding"} {
		r.Header.Del(name)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	httpbody.Post(r, body)
	return r, cancel
}

// MaxRounds is how often a server may ask for input in one call.
const MaxRounds = 16

// offerRoots declares to a server whose questions for roots are answered here that it
// may ask, whatever the client can do.
func (x *Exchange) offerRoots(r *http.Request) {
	if x.Server.Answer(rootsList).Action != AnswerHere {
		return
	}
	in := jsonrpc.ClientCapabilities
	if x.Message.Is(jsonrpc.Method, "initialize") {
		in = jsonrpc.Capabilities
	}
	capabilities := x.Message.Literal(in)
	var declared map[string]json.RawMessage
	if json.Unmarshal(capabilities, &declared) != nil || declared == nil || declared["roots"] != nil {
		return
	}
	x.edit(r, x.Message.Within(in, jsonspan.Insert(capabilities, []byte(`"roots":{}`))))
}
