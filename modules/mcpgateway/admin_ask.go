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

// An AdminRequest is a request to the admin API by another module of this process, such as
// mcp_console.
type AdminRequest struct {
	Method  string // GET if empty
	Path    string // below /mcp_gateway, with query
	Body    any    // nil for none
	User    string // who acts, for the log; "" if unknown
	Address string // address of the user, for the log
}

// RequestAdmin sends a request to the admin API. T is the response type of the route. Errors of the
// API are *[adminapi.Error].
func RequestAdmin[T any](ctx context.Context, q AdminRequest) (T, error) {
	var none T
	answer, err := q.send(ctx)
	if err != nil {
		return none, err
	}
	typed, ok := answer.(T)
	if !ok {
		return none, fmt.Errorf("%s returns a %T, not a %T", q.Path, answer, none)
	}
	return typed, nil
}

func (q *AdminRequest) send(ctx context.Context) (any, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = json.Marshal(q.Body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, q.Method, "/mcp_gateway"+q.Path, bytes.NewReader(body))
	if err != nil {
		return nil, invalidRequest(err)
	}
	r.RemoteAddr = q.Address
	answer := &directResponse{user: q.User, header: http.Header{}}
	directMux().ServeHTTP(answer, r)
	if failure, failed := answer.value.(*adminapi.Error); failed {
		return nil, failure
	}
	return answer.value, nil
}

// directMux serves the routes of the admin API. The response writer must be a directResponse.
var directMux = sync.OnceValue(func() *http.ServeMux {
	mux := http.NewServeMux()
	for path, methods := range adminPaths() {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			into := w.(*directResponse)
			call := &adminCall{api: new(adminAPI), w: w, r: r, gateway: r.URL.Query().Get("gateway"), user: into.user}
			_, into.value = call.run(methods)
		})
	}
	return mux
})

// A directResponse receives the value of a response instead of its encoding. It discards writes:
// routes write only if a request asks for progress.
type directResponse struct {
	user   string
	header http.Header
	value  any
}

func (a *directResponse) Header() http.Header       { return a.header }
func (*directResponse) Write(p []byte) (int, error) { return len(p), nil }
func (*directResponse) WriteHeader(int)             {}

// Interface guard
var _ http.ResponseWriter = (*directResponse)(nil)
