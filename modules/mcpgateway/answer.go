package mcpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
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
	a.result = stdio.RootsResult(a.Roots)
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
	for _, root := range a.Roots {
		if u, err := url.Parse(root); err != nil || u.Scheme == "" {
			return fmt.Errorf("roots: %q is no URI", root)
		}
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

// answerChildren has the questions of child processes answered where they are asked,
// because they may ask while no client is there.
func (s *Server) answerChildren() {
	if len(s.Answers) == 0 {
		return
	}
	for _, child := range s.upstreams.children {
		release := child.transport.AnswerWith(child.host, func(method string) (result []byte, ours bool) {
			switch a := s.answer(method); {
			case a == nil || a.Action == deliver:
				return nil, false
			case a.Action == drop:
				return nil, true
			default:
				return a.result, true
			}
		})
		s.releases = append(s.releases, release)
	}
}

// answered takes a message that is not for the client (A59). It reports whether it is
// such.
func (x *exchange) answered(r *http.Request, m *jsonrpc.Message) bool {
	if m.IsAnswer() || !m.Has(jsonrpc.Method) {
		return false
	}
	method := m.Text(jsonrpc.Method)
	a := x.server.answer(method)
	if a == nil || a.Action == deliver {
		return false
	}
	if !m.IsRequest() {
		// Where all servers are one, who joins them has to know what has changed.
		return x.door != innerDoor || !strings.HasSuffix(method, "/list_changed")
	}
	reply := jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "nobody answers "+mcp.Shortened(method))
	switch {
	case a.Action == answerHere:
		reply = jsonrpc.Answer(m.Literal(jsonrpc.ID), a.result)
	case method == "ping":
		reply = jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}"))
	}
	// The server may have more to say before it listens, and the client need not wait
	// for that.
	answer, cancel := x.request(context.WithoutCancel(r.Context()), reply)
	mcp.ClearModern(answer.Header)
	stop := context.AfterFunc(x.handler.exiting, cancel)
	begun := x.telling.Add(1) <= maxTold && x.server.asides.Go(func() {
		defer x.telling.Add(-1)
		defer cancel()
		defer stop()
		if err := x.server.tell(answer); err != nil {
			x.handler.logger.Warn("answer not delivered", zap.String("mcp_server", x.server.Name), zap.Error(err))
		}
	})
	if !begun { // who asks so much at once gets no more answers
		x.telling.Add(-1)
		stop()
		cancel()
		x.handler.logger.Warn("question of MCP server not answered, because it asks too much at once", zap.String("mcp_server", x.server.Name))
	}
	return true
}

// maxTold is how much a server can be told at the same time beside one request.
const maxTold = 64

// maxRounds is how often a server may ask in one call.
const maxRounds = 16

// resolved returns the answer of a server of the modern era. What it asks before it goes
// on, by a result, is answered here or dropped, and what is left for the client to
// answer is all that it is asked.
func (x *exchange) resolved(r *http.Request, message []byte) ([]byte, error) {
	m := new(jsonrpc.Message)
	for range maxRounds {
		if m.Read(message) != nil {
			return message, nil
		}
		asks, is, err := mcp.ReadInput(m)
		if err != nil || !is {
			return message, err
		}
		var ours []string
		for key, q := range asks.Requests {
			switch a := x.server.answer(q.Method); {
			case a == nil || a.Action == deliver:
			case a.Action == drop:
				return jsonrpc.MissingCapability(x.server.Name, mcp.Shortened(q.Method)).Append(nil, m.Literal(jsonrpc.ID)), nil
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
		answer, err := x.callAgain(r, ours, &asks)
		if err != nil {
			x.handler.logger.Warn("answer not delivered", zap.String("mcp_server", x.server.Name), zap.Error(err))
			return jsonrpc.ConnectError(x.server.Name).Append(nil, m.Literal(jsonrpc.ID)), nil
		}
		message = answer
	}
	return jsonrpc.InvalidResponse(x.server.Name).Append(nil, m.Literal(jsonrpc.ID)), nil
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
	again, cancel := x.request(r.Context(), mcp.WithInput(&x.message, responses, asks.State))
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

// noteEndpoint notes where a server of the protocol's first revision wants to be told
// something: it says so in its stream. It reports whether this is it.
func (x *exchange) noteEndpoint(address []byte) bool {
	ref, err := url.Parse(string(bytes.TrimSpace(address)))
	if err != nil || ref.Opaque != "" || !strings.HasPrefix(ref.Path, "/") {
		return false
	}
	if x.sent != nil {
		direct(x.sent, x.server.target.ResolveReference(ref))
	}
	return true
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
