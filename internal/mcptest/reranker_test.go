package mcptest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

const (
	rerankRequest = `{"queries":["q"],"documents":["a","keep b","c","d"]}`
	cohereRequest = `{"query":"q","documents":["a","keep b","c","d"],"model":"m"}`
)

func TestRerankerAnswers(t *testing.T) { // W1
	const kept = `[0.1,0.9,0.1,0.1]`
	tests := []struct {
		name    string
		path    string
		request string // default rerankRequest
		status  int    // default 200
		want    string
	}{
		{name: "high scores for documents to keep", path: "/ok", want: `{"scores":` + kept + `}`},
		{name: "descending scores", path: "/desc", want: `{"scores":[1,0.75,0.5,0.25]}`},
		{name: "a bare list", path: "/list", want: kept},
		{name: "a nested list", path: "/deep", want: `{"data":{"scores":` + kept + `}}`},
		{name: "half of the scores", path: "/short", want: `{"scores":[0.1,0.9]}`},
		{
			name:    "half of an odd number",
			path:    "/short",
			request: `{"queries":["q"],"documents":["a","b","c"]}`,
			want:    `{"scores":[0.1,0.1]}`,
		},
		{
			name: "items with an index, the best first", path: "/idx",
			want: `{"results":[{"index":1,"score":0.9},{"index":0,"score":0.1},{"index":2,"score":0.1},{"index":3,` +
				`"score":0.1}]}`,
		},
		{
			name: "Cohere's format", path: "/cohere", request: cohereRequest,
			want: `{"results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":0.1},{"index":2,` +
				`"relevance_score":0.1},{"index":3,"relevance_score":0.1}]}`,
		},
		{name: "no scores", path: "/empty", want: `{"scores":[]}`},
		{name: "scores that are not JSON", path: "/nan", want: `{"scores":[NaN,NaN,NaN,NaN]}`},
		{name: "not JSON", path: "/text", want: "the model is loading"},
		{name: "unauthorized", path: "/401", status: 401, want: `{"detail":"Unauthorized"}`},
		{name: "too many requests", path: "/429", status: 429, want: `{"detail":"Too Many Requests"}`},
		{name: "a server error", path: "/500", status: 500, want: `{"detail":"Internal Server Error"}`},
		{name: "a status without a body", path: "/204", status: 204},
		{
			name:    "a status for an invalid request",
			path:    "/503",
			request: `{`,
			status:  503,
			want:    `{"detail":"Service Unavailable"}`,
		},
		{name: "another path", path: "/", status: 404, want: `{"detail":"Not Found"}`},
		{name: "a number that is not a status", path: "/42", status: 404, want: `{"detail":"Not Found"}`},
		{name: "an invalid request", path: "/ok", request: `{`, status: 422, want: `{"detail":"Unprocessable Entity"}`},
		{
			name:    "a request without documents",
			path:    "/ok",
			request: `{"queries":["q"],"documents":[]}`,
			status:  422,
			want:    `{"detail":"Unprocessable Entity"}`,
		},
		{
			name:    "Cohere's format at another path",
			path:    "/ok",
			request: cohereRequest,
			status:  422,
			want:    `{"detail":"Unprocessable Entity"}`,
		},
		{name: "another format at Cohere's path", path: "/cohere", status: 422, want: `{"detail":"Unprocessable Entity"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request, status := tt.request, tt.status
			if request == "" {
				request = rerankRequest
			}
			if status == 0 {
				status = 200
			}
			got := send(t, "POST", serve(t, new(mcptest.Reranker))+tt.path, request, nil)
			if got.StatusCode != status || got.body != tt.want {
				t.Errorf("got %d %s\nwant %d %s", got.StatusCode, got.body, status, tt.want)
			}
		})
	}
}

func TestRerankerRedirects(t *testing.T) {
	url := serve(t, new(mcptest.Reranker))
	for path, status := range map[string]int{"/redirect": 307, "/302": 302, "/308": 308} {
		got := send(t, "POST", url+path, rerankRequest, nil)
		if got.StatusCode != status || got.Header.Get("Location") != "/ok" {
			t.Errorf("%s: got %d to %q", path, got.StatusCode, got.Header.Get("Location"))
		}
	}
}

func TestRerankerHugeResponse(t *testing.T) {
	got := send(t, "POST", serve(t, new(mcptest.Reranker))+"/huge", rerankRequest, nil)
	if !strings.HasPrefix(got.body, `{"scores":[0.1,`) || len(got.body) <= 16<<20 || !json.Valid([]byte(got.body)) {
		t.Errorf("got %d bytes, %.40s", len(got.body), got.body)
	}
}

// The client reads incomplete responses.
func TestRerankerIncompleteResponses(t *testing.T) {
	const half = `{"scores":[0.1`
	tests := []struct{ name, path, want string }{
		{"a reset within the body", "/reset", half},
		{"a stall within the body", "/slowbody", half},
		{"no response", "/hang", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reranker := new(mcptest.Reranker)
			ended := make(chan struct{})
			arrived := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				close(arrived)
				reranker.ServeHTTP(w, r)
			}))
			defer server.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, "POST", server.URL+tt.path, strings.NewReader(rerankRequest))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				<-arrived
				if tt.want == "" {
					cancel() // the client disconnects
				}
			}()
			transport := &http.Transport{DisableKeepAlives: true}
			response, err := transport.RoundTrip(request)
			if tt.want == "" {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
				<-ended
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text := make([]byte, len(tt.want))
			if _, err := io.ReadFull(response.Body, text); err != nil || string(text) != tt.want {
				t.Errorf("got %q, %v", text, err)
			}
			if tt.path == "/reset" {
				if _, err := io.ReadAll(response.Body); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("got %v, want a reset", err)
				}
			}
			cancel()
			<-ended
		})
	}

	t.Run("closing the server ends waiting requests", func(t *testing.T) {
		ended := make(chan struct{})
		var server *httptest.Server
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			go func() { _ = server.Config.Close() }()
			new(mcptest.Reranker).ServeHTTP(w, r)
		}))
		defer server.Close()
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(
			httptest.NewRequestWithContext(t.Context(), "POST", server.URL+"/hang", strings.NewReader(rerankRequest)))
		if err == nil {
			response.Body.Close()
			t.Errorf("got status %d", response.StatusCode)
		}
		<-ended
	})
}

func TestRerankerRecordsWhatItReceived(t *testing.T) {
	reranker := new(mcptest.Reranker)
	url := serve(t, reranker)
	send(t, "POST", url+"/ok", rerankRequest, map[string]string{"Authorization": "Bearer a"})
	send(t, "POST", url+"/429", "x", nil)

	requests := reranker.Requests()
	if len(requests) != 2 || reranker.Count() != 2 {
		t.Fatalf("%d requests of %d, want 2", len(requests), reranker.Count())
	}
	if first := requests[0]; first.Path != "/ok" || first.Body != rerankRequest ||
		first.Headers.Get("Authorization") != "Bearer a" {
		t.Errorf("first request is %+v", first)
	}
	if last := reranker.Last(); !reflect.DeepEqual(last, requests[1]) || last.Body != "x" {
		t.Errorf("last request is %+v", last)
	}
	var remote mcptest.Request
	if err := json.Unmarshal([]byte(send(t, "GET", url+"/__last", "", nil).body), &remote); err != nil ||
		remote.Path != "/429" {
		t.Errorf("/__last gives %+v, %v", remote, err)
	}
	if got := send(t, "GET", url+"/__count", "", nil); got.body != "2" {
		t.Errorf("/__count gives %s", got.body)
	}
}
