package mcpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// A Question is a request to the admin API by another module of this process, such as mcp_console.
type Question struct {
	Method  string // GET if it is empty
	Path    string // below /mcp_gateway, with its query
	Body    any    // nil for none
	User    string // who asks, for the log; "" if that is not known
	Address string // of the user, for the log
}

// Ask has the admin API answer a question. T is the type of the answer of its route. An error is an *[adminapi.Error].
func Ask[T any](ctx context.Context, q Question) (T, error) {
	var none T
	answer, err := q.ask(ctx)
	if err != nil {
		return none, err
	}
	typed, ok := answer.(T)
	if !ok {
		return none, fmt.Errorf("%s is answered with a %T, not with a %T", q.Path, answer, none)
	}
	return typed, nil
}

// ask returns the answer to the question.
func (q *Question) ask(ctx context.Context) (any, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = json.Marshal(q.Body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, q.Method, "/mcp_gateway"+q.Path, bytes.NewReader(body))
	if err != nil {
		return nil, invalid(err)
	}
	r.RemoteAddr = q.Address
	answer := &askedAnswer{user: q.User, header: http.Header{}}
	askable().ServeHTTP(answer, r)
	if failure, failed := answer.value.(*adminapi.Error); failed {
		return nil, failure
	}
	return answer.value, nil
}

// askable has the routes of the admin API answer into an askedAnswer.
var askable = sync.OnceValue(func() *http.ServeMux {
	mux := http.NewServeMux()
	for path, methods := range adminPaths() {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			into := w.(*askedAnswer)
			call := &adminCall{api: new(adminAPI), w: w, r: r, gateway: r.URL.Query().Get("gateway"), user: into.user}
			_, into.value = call.run(methods)
		})
	}
	return mux
})

// An askedAnswer takes the answer to a question as it is, before it would be written. Nothing is written to it: routes
// write only what was asked to come in parts.
type askedAnswer struct {
	user   string
	header http.Header
	value  any
}

func (a *askedAnswer) Header() http.Header       { return a.header }
func (*askedAnswer) Write(p []byte) (int, error) { return len(p), nil }
func (*askedAnswer) WriteHeader(int)             {}

// Interface guard
var _ http.ResponseWriter = (*askedAnswer)(nil)
