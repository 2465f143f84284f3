package mcpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
)

// Answer says what becomes of what a server sends to clients on its own account:
// questions such as roots/list, and notifications.
type Answer struct {
	// The method, in which * stands for any characters. Of several the first that fits
	// decides. Required.
	Method string `json:"method,omitempty"`

	// What becomes of it: deliver passes it on, drop does not, and answer answers
	// roots/list here. A server whose question is dropped is told that nobody answers.
	// Default: answer if there are roots, otherwise deliver
	Action string `json:"action,omitempty"`

	// URIs of the roots that the server is told of. Default: none
	Roots []string `json:"roots,omitempty"`

	result []byte // that answers
}

const (
	deliver    = "deliver"
	drop       = "drop"
	answerHere = "answer"
	rootsList  = "roots/list"
)

func (a *Answer) provision() error {
	if a == nil {
		return errors.New("one is null")
	}
	if a.Action == "" {
		if a.Action = deliver; len(a.Roots) > 0 {
			a.Action = answerHere
		}
	}
	type root struct {
		URI string `json:"uri"`
	}
	roots := []root{}
	for _, uri := range a.Roots {
		roots = append(roots, root{uri})
	}
	a.result = jsonrpc.Encode(map[string][]root{"roots": roots})
	return nil
}

func (a *Answer) validate() error {
	switch {
	case a.Method == "":
		return errors.New("method: it is empty")
	case a.Action != deliver && a.Action != drop && a.Action != answerHere:
		return fmt.Errorf("action: %q is none of deliver, drop and answer", a.Action)
	case a.Action == answerHere && a.Method != rootsList:
		return fmt.Errorf("method: only %s can be answered, not %q", rootsList, a.Method)
	case a.Action != answerHere && len(a.Roots) > 0:
		return fmt.Errorf("roots: they are given, but the action is %s", a.Action)
	}
	return nil
}

// answer returns what becomes of a method that the server uses; nil if nothing was said.
func (s *Server) answer(method string) *Answer {
	i := slices.IndexFunc(s.Answers, func(a *Answer) bool { return mcp.MatchName(a.Method, method) })
	if i < 0 {
		return nil
	}
	return s.Answers[i]
}

// answered takes a message that is not for the client (A59). It reports whether it is
// such.
func (x *exchange) answered(r *http.Request, raw []byte) bool {
	var m jsonrpc.Message
	if m.Read(raw) != nil || m.IsAnswer() || !m.Has(jsonrpc.Method) {
		return false
	}
	method := m.Text(jsonrpc.Method)
	a := x.server.answer(method)
	if a == nil || a.Action == deliver {
		return false
	}
	if !m.IsRequest() {
		return true
	}
	reply := jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "nobody answers "+mcp.Shortened(method))
	switch {
	case a.Action == answerHere:
		reply = jsonrpc.Answer(m.Literal(jsonrpc.ID), a.result)
	case method == "ping":
		reply = jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}"))
	}
	// The server may have more to say before it listens.
	x.asides.Go(func() {
		if err := x.tell(r, reply); err != nil {
			x.handler.logger.Warn("answer not delivered", zap.String("mcp_server", x.server.Name), zap.Error(err))
		}
	})
	return true
}

// maxRounds is how often a server may ask in one call.
const maxRounds = 16

// resolved returns the answer of a server of the modern era. What it asks before it goes
// on, by a result, is answered here or dropped, and what is left for the client to
// answer is all that it is asked.
func (x *exchange) resolved(r *http.Request, message []byte) []byte {
	m := new(jsonrpc.Message)
	for range maxRounds {
		var asks mcp.InputResult
		if m.Read(message) != nil || !m.Is(jsonrpc.ResultType, mcp.InputRequired) || json.Unmarshal(m.Literal(jsonrpc.Result), &asks) != nil {
			return message
		}
		var ours []string
		for key, q := range asks.Requests {
			switch a := x.server.answer(q.Method); {
			case a == nil || a.Action == deliver:
			case a.Action == drop:
				return jsonrpc.MissingCapability(x.server.Name, mcp.Shortened(q.Method)).Append(nil, m.Literal(jsonrpc.ID))
			default:
				ours = append(ours, key)
			}
		}
		if len(ours) == 0 {
			return message
		}
		if len(ours) < len(asks.Requests) {
			return withoutRequests(m, ours) // the server asks again for what the client does not say
		}
		answer, err := x.callAgain(r, ours, &asks)
		if err != nil {
			x.handler.logger.Warn("answer not delivered", zap.String("mcp_server", x.server.Name), zap.Error(err))
			return jsonrpc.ConnectError(x.server.Name).Append(nil, m.Literal(jsonrpc.ID))
		}
		message = answer
	}
	return jsonrpc.InvalidResponse(x.server.Name).Append(nil, m.Literal(jsonrpc.ID))
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
// that the client has given, and returns the answer to that. What the server says on the
// way there nobody hears.
func (x *exchange) callAgain(r *http.Request, keys []string, asks *mcp.InputResult) (answer []byte, err error) {
	responses := map[string]json.RawMessage{}
	_ = json.Unmarshal(x.message.Literal(jsonrpc.InputResponses), &responses) // there may be none
	for _, key := range keys {
		responses[key] = x.server.answer(asks.Requests[key].Method).result
	}
	again := x.request(r.Context(), r, mcp.WithInput(&x.message, responses, asks.State))
	w := screen.NewWriter(&statusRecorder{header: http.Header{}}, maxScreened, func(message []byte) ([]byte, error) {
		x.arrival.heard()
		var m jsonrpc.Message
		if m.Read(message) == nil && m.IsAnswer() {
			answer = bytes.Clone(message)
		}
		return nil, nil
	})
	if err = x.server.serve(w, again); err == nil {
		err = w.Close()
	}
	if answer == nil && err == nil {
		err = errAborted
	}
	return answer, err
}

// request returns a request of our own to the server, in the session of another one.
func (x *exchange) request(ctx context.Context, of *http.Request, body []byte) *http.Request {
	r := upstream{x.handler, x.server}.Request(ctx, of)
	r.Method = http.MethodPost
	for _, name := range [...]string{"Last-Event-Id", "Content-Encoding"} {
		r.Header.Del(name)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	setBody(r, body)
	return r
}

// tell posts a message to the server, in the session of a request.
func (x *exchange) tell(of *http.Request, body []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(of.Context()), time.Duration(x.server.Timeout))
	defer cancel()
	r := x.request(ctx, of, body)
	mcp.ClearModern(r.Header)
	w := &statusRecorder{header: http.Header{}}
	if err := x.server.serve(w, r); err != nil {
		return err
	}
	if w.status/100 != 2 {
		return fmt.Errorf("status %d", w.status)
	}
	return nil
}

// serve has the routes of the server answer a request of our own.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if reason := recover(); reason == http.ErrAbortHandler {
			err = errAborted
		} else if reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	return s.routes.ServeHTTP(w, r)
}

// setBody has r post a message.
func setBody(r *http.Request, body []byte) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
}

// A statusRecorder takes a response of which only the status matters.
type statusRecorder struct {
	header http.Header
	status int
}

func (w *statusRecorder) Header() http.Header { return w.header }

func (w *statusRecorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

func (w *statusRecorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(p), nil
}

// offerRoots declares to a server whose questions for roots are answered here that it
// may ask, whatever the client can do.
func (x *exchange) offerRoots(r *http.Request) {
	if a := x.server.answer(rootsList); a == nil || a.Action != answerHere {
		return
	}
	in := jsonrpc.ClientCapabilities
	if x.message.Is(jsonrpc.Method, "initialize") {
		in = jsonrpc.Capabilities
	}
	capabilities := x.message.Literal(in)
	var declared map[string]json.RawMessage
	if json.Unmarshal(capabilities, &declared) != nil || declared == nil || declared["roots"] != nil {
		return
	}
	x.repost(r, x.message.Within(in, jsonspan.Insert(capabilities, []byte(`"roots":{}`))))
}
