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

// An answerer responds to server requests instead of the client.
type answerer struct {
	*Exchange
	r *http.Request // to the server
}

// handle handles a message that the configuration keeps from the client (A59). It reports whether
// the message is such a one.
func (x answerer) handle(m *jsonrpc.Message) bool {
	if m.IsResponse() || !m.Has(jsonrpc.Method) {
		return false
	}
	method := m.Text(jsonrpc.Method)
	a := x.Server.Answer(method)
	if a.Action == Deliver {
		return false
	}
	if !m.IsRequest() {
		// The aggregate must know what has changed.
		return x.Kind != Aggregate || !strings.HasSuffix(method, "/list_changed")
	}
	reply := jsonrpc.ErrorResponse(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound,
		"not supported by the client: "+mcp.Shortened(method))
	switch {
	case a.Action == Respond:
		reply = jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), a.Result)
	case method == "ping":
		reply = jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte("{}"))
	}
	// The server may send more before it reads, and the client need not wait for that.
	answer, cancel := x.request(context.WithoutCancel(x.r.Context()), reply)
	mcp.ClearModern(answer.Header)
	stop := context.AfterFunc(x.Shared.Exiting, cancel)
	started := x.pendingAnswers.Add(1) <= maxPendingAnswers && x.Server.SideRequests.Go(func() {
		defer x.pendingAnswers.Add(-1)
		defer cancel()
		defer stop()
		if err := x.send(answer); err != nil {
			x.Shared.Logger.Warn("response to MCP server not delivered", zap.String("mcp_server", x.Server.Name), zap.Error(err))
		}
	})
	if !started { // too many at once
		x.pendingAnswers.Add(-1)
		stop()
		cancel()
		x.Shared.Logger.Warn("request of MCP server not answered: too many responses in progress",
			zap.String("mcp_server", x.Server.Name))
	}
	return true
}

// send sends a request to the server. It checks only the status of the response.
func (x answerer) send(r *http.Request) error {
	w := &statusRecorder{header: http.Header{}}
	if err := recovered(func() error { return x.serveRoutes(w, r) }); err != nil {
		return err
	}
	if w.status/100 != 2 {
		return fmt.Errorf("status %d", w.status)
	}
	return nil
}

// maxPendingAnswers is how many responses to server requests can be in progress per exchange.
const maxPendingAnswers = 64

// resolveInput returns the response of a modern server. Server requests in an input_required result
// are answered or dropped according to the configuration. Those that are left go to the client.
func (x answerer) resolveInput(message []byte) ([]byte, error) {
	m := new(jsonrpc.Message)
	for range MaxRounds {
		if m.Read(message) != nil {
			return message, nil
		}
		input, ok, err := mcp.ReadInput(m)
		if err != nil || !ok {
			return message, err
		}
		var keys []string
		for key, q := range input.Requests {
			switch x.Server.Answer(q.Method).Action {
			case Deliver:
			case Drop:
				return jsonrpc.MissingCapability(x.Server.Name, mcp.Shortened(q.Method)).Append(nil, m.Literal(jsonrpc.ID)), nil
			default:
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			return message, nil
		}
		if len(keys) < len(input.Requests) {
			return withoutRequests(m, keys), nil // the server repeats those without a response
		}
		answer, err := x.repeatCall(keys, &input)
		if err != nil {
			x.Shared.Logger.Warn("response to MCP server not delivered", zap.String("mcp_server", x.Server.Name), zap.Error(err))
			return jsonrpc.ConnectError(x.Server.Name, causeOf(err)).Append(nil, m.Literal(jsonrpc.ID)), nil
		}
		message = answer
	}
	return jsonrpc.InvalidResponse(x.Server.Name).Append(nil, m.Literal(jsonrpc.ID)), nil
}

// withoutRequests returns a result that asks for input without some of its server requests.
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

// repeatCall repeats the call with responses to server requests, in addition to those that the
// client gave. It returns the new response. Other messages of the server are dropped.
func (x answerer) repeatCall(keys []string, input *mcp.InputResult) (answer []byte, err error) {
	responses := map[string]json.RawMessage{}
	_ = json.Unmarshal(x.Message.Literal(jsonrpc.InputResponses), &responses) // may be missing
	for _, key := range keys {
		responses[key] = x.Server.Answer(input.Requests[key].Method).Result
	}
	var call jsonrpc.Message
	if failure := call.Read(mcp.WithInput(&x.Message, responses, input.State)); failure != nil {
		return nil, failure
	}
	id := jsonrpc.Quote("gateway:" + rand.Text()) // MCP requires a new id
	repeated, cancel := x.request(x.r.Context(), jsonspan.Spliced(call.Raw, call.Replace(jsonrpc.ID, id)))
	defer cancel()
	limit := int64(maxFiltered)
	if x.receiver.limit > 0 {
		limit = min(limit, x.receiver.limit)
	}
	w := screen.NewWriter(&statusRecorder{header: http.Header{}}, limit, func(message []byte) ([]byte, error) {
		x.limits.noteActivity()
		var m jsonrpc.Message
		message = withoutByteOrderMark(message)
		if looksLikeJSON(message) && m.ReadExact(message) != nil {
			return nil, errUnreadable
		}
		if m.IsResponse() {
			answer = jsonspan.Spliced(bytes.Clone(message), m.WithID(x.Message.Literal(jsonrpc.ID))...)
		}
		return nil, nil
	})
	if err = x.Server.serve(w, repeated, x.Caller.Account()); err == nil {
		err = w.Close()
	}
	if answer == nil && err == nil {
		err = errAborted
	}
	return answer, err
}

// request returns a request of the gateway to the server, in the session of the exchange, with the
// headers that the routes got.
func (x answerer) request(ctx context.Context, body []byte) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, x.Server.Timeout)
	r := x.Server.Routes.Derive(ctx, x.routed, false)
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

// declareRoots adds the roots capability to the message, whatever the client supports.
func (p *PostedMessage) declareRoots(r *http.Request) {
	field := jsonrpc.ClientCapabilities
	if p.Message.Is(jsonrpc.Method, "initialize") {
		field = jsonrpc.Capabilities
	}
	capabilities := p.Message.Literal(field)
	var declared map[string]json.RawMessage
	if json.Unmarshal(capabilities, &declared) != nil || declared == nil || declared["roots"] != nil {
		return
	}
	p.edit(r, p.Message.Within(field, jsonspan.Insert(capabilities, []byte(`"roots":{}`))))
}
