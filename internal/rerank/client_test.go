package rerank

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key = "sk_test_hunter2"

	// longTimeout is for expected responses, shortTimeout for responses that do not come.
	longTimeout  = 20 * time.Second
	shortTimeout = 30 * time.Millisecond
)

// newClient returns a client of an endpoint.
func newClient(t *testing.T, url string, configure func(*Config)) *Client {
	t.Helper()
	config := Config{URL: url, Key: key, NeedsKey: true, Timeout: longTimeout, MaxDocs: 64}
	if configure != nil {
		configure(&config)
	}
	client := New(config)
	t.Cleanup(client.Close)
	return client
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// numbered returns n lines.
func numbered(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("ligne %d", i+1)
	}
	return lines
}

func TestScores(t *testing.T) { // P63, W1
	lines := []string{"a", "keep b", "c", "d"}
	kept := []float64{0.1, 0.9, 0.1, 0.1}
	tests := []struct {
		path string
		wire Wire
		want []float64
		docs int
	}{
		{path: "/ok", want: kept, docs: 4},
		{path: "/list", want: kept, docs: 4},
		{path: "/deep", want: kept, docs: 4},
		{path: "/idx", want: kept, docs: 4},
		{path: "/desc", want: []float64{1, 0.75, 0.5, 0.25}, docs: 4},
		{path: "/short", want: []float64{0.1, 0.9, nan, nan}, docs: 2},
		{path: "/cohere", wire: Query, want: kept, docs: 4},
	}
	url := serve(t, new(mcptest.Reranker))
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			client := newClient(t, url+tt.path, func(c *Config) { c.Wire = tt.wire })
			scored, fault := client.Score(t.Context(), "goal", lines)
			if fault != nil {
				t.Fatal(fault)
			}
			if !equalScores(scored.Scores, tt.want) || scored.Docs != tt.docs || scored.Status != 200 {
				t.Errorf("got %+v, want %v of %d", scored, tt.want, tt.docs)
			}
		})
	}
}

func TestSentRequests(t *testing.T) { // P63, W1
	tests := []struct {
		name      string
		path      string
		configure func(*Config)
		body      string
		headers   map[string]string
	}{
		{
			"a bearer token and queries", "/ok", nil,
			`{"queries":["<goal>"],"documents":["a & b","c"]}`, map[string]string{"Authorization": "Bearer " + key},
		},
		{
			"a query with a model", "/cohere", func(c *Config) { c.Wire, c.Model = Query, "m" },
			`{"query":"<goal>","documents":["a & b","c"],"model":"m"}`, map[string]string{"Authorization": "Bearer " + key},
		},
		{
			"no bearer token without a key", "/cohere", func(c *Config) { c.Wire, c.Key, c.NeedsKey = Query, "", false },
			`{"query":"<goal>","documents":["a & b","c"]}`, nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reranker := new(mcptest.Reranker)
			client := newClient(t, serve(t, reranker)+tt.path, tt.configure)
			if _, fault := client.Score(t.Context(), "<goal>", []string{"a & b", "c"}); fault != nil {
				t.Fatal(fault)
			}
			got := reranker.Last()
			if reranker.Count() != 1 || got.Method != "POST" || got.Body != tt.body {
				t.Errorf("%d requests, %s %s\nwant %s", reranker.Count(), got.Method, got.Body, tt.body)
			}
			want := map[string]string{"Content-Type": "application/json", "Accept": "application/json", "Authorization": "",
				"Idempotency-Key": ""}
			for name, value := range tt.headers {
				want[name] = value
			}
			for name, value := range want {
				if got := got.Headers.Get(name); got != value {
					t.Errorf("%s: %q, want %q", name, got, value)
				}
			}
		})
	}
}

func TestTooManyLinesAreSampled(t *testing.T) { // P67
	reranker := new(mcptest.Reranker)
	client := newClient(t, serve(t, reranker)+"/desc", func(c *Config) { c.MaxDocs = 4 })
	scored, fault := client.Score(t.Context(), "zzzz", numbered(9))
	if fault != nil {
		t.Fatal(fault)
	}
	if want := `{"queries":["zzzz"],"documents":["ligne 1","ligne 3","ligne 6","ligne 9"]}`; reranker.Last().Body != want {
		t.Errorf("sent %s\nwant %s", reranker.Last().Body, want)
	}
	want := []float64{1, nan, 0.75, nan, nan, 0.5, nan, nan, 0.25}
	if !equalScores(scored.Scores, want) || scored.Docs != 4 {
		t.Errorf("got %+v, want %v", scored, want)
	}
}

func TestNoLinesNeedNoRequest(t *testing.T) {
	reranker := new(mcptest.Reranker)
	scored, fault := newClient(t, serve(t, reranker)+"/ok", nil).Score(t.Context(), "goal", nil)
	if scored != nil || fault != nil || reranker.Count() != 0 {
		t.Errorf("got %+v, %+v after %d requests", scored, fault, reranker.Count())
	}
}

// listen accepts connections and calls answer with each, after its request has begun to arrive.
func listen(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<16))
			answer(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String()
}

// respondRaw writes a text to each connection.
func respondRaw(t *testing.T, text string) (address string) {
	return listen(t, func(conn net.Conn) { _, _ = io.WriteString(conn, text) })
}

// closedPort returns an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// selfSigned returns the URL of a server whose certificate is not trusted.
func selfSigned(t *testing.T) string {
	server := httptest.NewUnstartedServer(new(mcptest.Reranker))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// path returns an endpoint of a reranker, with a secret in its query.
func path(path string) func(t *testing.T) string {
	return func(t *testing.T) string { return serve(t, new(mcptest.Reranker)) + path + "?secret=" + key }
}

// respond returns an endpoint that responds with a body.
func respond(body string) func(t *testing.T) string {
	return func(t *testing.T) string {
		return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
	}
}

func TestFaults(t *testing.T) { // P61, P68, P69, P70, P71
	withKey := func(key string) func(*Config) { return func(c *Config) { c.Key = key } }
	url := func(url string) func(*testing.T) string { return func(*testing.T) string { return url } }
	impatient := func(c *Config) { c.Timeout = shortTimeout }
	echo := func(t *testing.T) string {
		return "http://" + listen(t, func(conn net.Conn) { _, _ = fmt.Fprintf(conn, "Bearer %s: what?\r\n\r\n", key) })
	}
	tests := []struct {
		name      string
		url       func(t *testing.T) string
		configure func(*Config)
		kind      string
		status    int
		want      string // in the error
	}{
		{"no key", path("/ok"), withKey(""), KindConfig, 0, "missing API key"},
		{"a key of two lines", path("/ok"), withKey(key + "\nX: y"), KindConfig, 0, "the API key"},
		{"a key with letters outside ASCII", path("/ok"), withKey(key + "é"), KindConfig, 0, "the API key"},
		{"no URL", url(""), nil, KindConfig, 0, "URL"},
		{"an invalid URL", url("http://" + key + ":x"), nil, KindConfig, 0, "not a URL"},
		{"a URL with a password", url("http://me:" + key + "@127.0.0.1:1/"), nil, KindConfig, 0, "password"},
		{"a URL with another scheme", url("file:///etc/" + key), nil, KindConfig, 0, "http or https"},
		{"a URL without a host", url("https:///" + key), nil, KindConfig, 0, "host"},
		{"a URL with an invalid port", url("http://127.0.0.1:99999/" + key), nil, KindConfig, 0, "port"},

		{"status 401", path("/401"), nil, KindHTTP, 401, "status 401"},
		{"status 403", path("/403"), nil, KindHTTP, 403, "status 403"},
		{"status 429", path("/429"), nil, KindHTTP, 429, "status 429"},
		{"status 500", path("/500"), nil, KindHTTP, 500, "status 500"},
		{"status 503", path("/503"), nil, KindHTTP, 503, "status 503"},
		{"status 204", path("/204"), nil, KindHTTP, 204, "status 204"},
		{"status 302", path("/302"), nil, KindHTTP, 302, "status 302"},
		{"a redirection that repeats the request", path("/redirect"), nil, KindHTTP, 307, "status 307"},

		{"a closed port", func(t *testing.T) string { return "http://" + closedPort(t) + "/?" + key }, nil, KindHTTP, 0,
			"connection refused"},
		{"a reset in the middle of the response", path("/reset"), nil, KindHTTP, 0, "connection reset"},
		{"a connection closed without a response", func(t *testing.T) string { return "http://" + respondRaw(t, "") }, nil,
			KindHTTP, 0, "closed before the end"},
		{"a connection closed in the middle of the response", func(t *testing.T) string {
			return "http://" + respondRaw(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"scores\":[1,2")
		}, nil, KindHTTP, 0, "closed before the end"},
		{"no response in time", path("/hang"), impatient, KindHTTP, 0, "no complete response after 30ms"},
		{"an incomplete response in time", path("/slowbody"), impatient, KindHTTP, 0, "no complete response after 30ms"},
		{"no handshake in time", func(t *testing.T) string {
			return "https://" + listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		}, impatient, KindHTTP, 0, "no complete response after 30ms"},
		{"a response that is not HTTP and repeats the key", echo, nil, KindHTTP, 0, "invalid HTTP response"},
		{"too many headers", func(t *testing.T) string {
			return "http://" + respondRaw(t, "HTTP/1.1 200 OK\r\n"+strings.Repeat("X: "+key+"\r\n", 10_000)+"\r\n{}")
		}, nil, KindHTTP, 0, ""}, // the error varies, because the client closes the connection early
		{"another protocol instead of TLS",
			func(t *testing.T) string { return "https://" + respondRaw(t, "220 smtp."+key+"\r\n") }, nil,
			KindHTTP, 0, "TLS"},
		{"HTTP instead of TLS", func(t *testing.T) string {
			return "https://" + respondRaw(t, "HTTP/1.1 400 Bad Request\r\n\r\n"+key)
		}, nil, KindHTTP, 0, "TLS"},
		{"a certificate that is not trusted", selfSigned, nil, KindHTTP, 0, "certificate"},
		{"a body without its announced encoding", func(t *testing.T) string {
			return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = io.WriteString(w, `{"scores":[1]} `+key)
			}))
		}, nil, KindHTTP, 0, "invalid HTTP response"},

		{"text", path("/text"), nil, KindParse, 0, "not JSON"},
		{"an empty body", respond(""), nil, KindParse, 0, "not JSON"},
		{"truncated JSON", respond(`{"scores":[1,`), nil, KindParse, 0, "not JSON"},
		{"text that repeats the key", respond(key), nil, KindParse, 0, "not JSON"},
		{"an error with status 200", respond(`{"error":"` + key + `"}`), nil, KindParse, 0, "no list"},
		{"an empty list", path("/empty"), nil, KindParse, 0, "no score"},
		{"scores that are NaN", path("/nan"), nil, KindParse, 0, "not JSON"},
		{"texts", respond(`{"scores":["` + key + `"]}`), nil, KindParse, 0, "not a score"},
		{"unknown indices", respond(`[{"index":7,"score":1}]`), nil, KindParse, 0, "no score"},
		{"more scores than documents", respond(`[1,2,3]`), nil, KindParse, 0, "more scores"},
		{"a response that is too long", path("/huge"), nil, KindParse, 0, "longer than 8388608 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := newClient(t, tt.url(t), tt.configure)
			scored, fault := client.Score(t.Context(), "goal", []string{"a", "b"})
			if scored != nil || fault == nil {
				t.Fatalf("got %+v", scored)
			}
			if fault.Kind != tt.kind || fault.Status != tt.status {
				t.Errorf("got %s %d, want %s %d: %v", fault.Kind, fault.Status, tt.kind, tt.status, fault.Err)
			}
			text := fmt.Sprintf("%v %+v %#v %q", fault.Err, fault.Err, fault.Err, unwrapped(fault.Err))
			if !strings.Contains(text, tt.want) || strings.Contains(text, key) {
				t.Errorf("the error is %s, want … %s … and no key", text, tt.want)
			}
		})
	}
}

// unwrapped returns the texts of all errors that an error wraps.
func unwrapped(err error) (texts []string) {
	for ; err != nil; err = errors.Unwrap(err) {
		texts = append(texts, err.Error())
	}
	return texts
}

func TestRedirectsAreNotFollowed(t *testing.T) { // W1
	elsewhere := new(mcptest.Reranker)
	target := serve(t, elsewhere)
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			from := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, target+"/ok", status)
			}))
			_, fault := newClient(t, from, nil).Score(t.Context(), "goal", []string{"a"})
			if fault == nil || fault.Kind != KindHTTP || fault.Status != status {
				t.Errorf("got %+v", fault)
			}
		})
	}
	if n := elsewhere.Count(); n != 0 {
		t.Errorf("%d requests reached the target of the redirections", n)
	}
}

func TestCancelledCalls(t *testing.T) { // P70
	for _, path := range []string{"/hang", "/slowbody"} {
		t.Run(path, func(t *testing.T) {
			reranker, arrived := new(mcptest.Reranker), make(chan struct{})
			client := newClient(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(arrived)
				reranker.ServeHTTP(w, r)
			}))+path, nil)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-arrived; cancel() }()
			_, fault := client.Score(ctx, "goal", []string{"a"})
			if fault == nil || fault.Kind != KindHTTP || fault.Status != 0 || !errors.Is(fault.Err, context.Canceled) {
				t.Errorf("got %+v", fault)
			}
		})
	}
}

func TestConnectionsAreReused(t *testing.T) {
	var opened atomic.Int32
	closed := make(chan struct{}, 10)
	server := httptest.NewUnstartedServer(new(mcptest.Reranker))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	client := newClient(t, server.URL+"/ok", nil)
	for range 5 {
		if _, fault := client.Score(t.Context(), "goal", []string{"a"}); fault != nil {
			t.Fatal(fault.Err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for 5 requests", n)
	}
	client.Close()
	<-closed

	// A call after Close succeeds and leaves no connection open.
	if _, fault := client.Score(t.Context(), "goal", []string{"a"}); fault != nil {
		t.Fatal(fault.Err)
	}
	<-closed
}

func TestAConnectionThatDiedWhileIdleIsReplaced(t *testing.T) {
	reranker := new(mcptest.Reranker)
	server := httptest.NewServer(reranker)
	defer server.Close()
	client := newClient(t, server.URL+"/ok", nil)
	for range 20 {
		if _, fault := client.Score(t.Context(), "goal", []string{"a"}); fault != nil {
			t.Fatal(fault.Err)
		}
		server.CloseClientConnections()
	}
}

// TestHTTP2 checks that HTTP/2, which cloud services use, makes no difference.
func TestHTTP2(t *testing.T) { // P63, P69, P70
	tests := []struct {
		path    string
		timeout time.Duration
		kind    string
		status  int
	}{
		{path: "/ok", timeout: longTimeout},
		{path: "/429", timeout: longTimeout, kind: KindHTTP, status: 429},
		{path: "/reset", timeout: longTimeout, kind: KindHTTP},
		{path: "/huge", timeout: longTimeout, kind: KindParse},
		{path: "/hang", timeout: shortTimeout, kind: KindHTTP},
		{path: "/slowbody", timeout: shortTimeout, kind: KindHTTP},
	}
	var protocol atomic.Value
	reranker := new(mcptest.Reranker)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol.Store(r.Proto)
		reranker.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			client := newClient(t, server.URL+tt.path, func(c *Config) { c.Timeout = tt.timeout })
			client.transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			scored, fault := client.Score(t.Context(), "goal", []string{"a", "b"})
			if fault == nil {
				fault = new(Fault)
			}
			if fault.Kind != tt.kind || fault.Status != tt.status || (scored != nil) != (tt.kind == "") {
				t.Errorf("got %+v, %+v, want %s %d", scored, fault, tt.kind, tt.status)
			}
			if tt.kind == "" && protocol.Load() != "HTTP/2.0" {
				t.Errorf("the protocol is %v", protocol.Load())
			}
		})
	}
}

func TestParseURL(t *testing.T) {
	for _, text := range []string{"http://127.0.0.1:8080/rerank", "https://api.example.com/v1/rerank?version=2",
		"HTTPS://[::1]/", "http://reranker"} {
		endpoint, err := ParseURL(text)
		if err != nil || !strings.EqualFold(endpoint.String(), text) {
			t.Errorf("%s: got %v, %v", text, endpoint, err)
		}
	}
}

func TestLoopbackAddressesNeedNoProxy(t *testing.T) { // W1
	for _, url := range []string{"http://127.0.0.1:1/", "http://localhost:1/", "https://[::1]/"} {
		t.Setenv("HTTP_PROXY", "http://127.0.0.2:2")
		t.Setenv("HTTPS_PROXY", "http://127.0.0.2:2")
		r := httptest.NewRequest("POST", url, nil)
		if got, err := proxy(r); got != nil || err != nil {
			t.Errorf("%s: got %v, %v", url, got, err)
		}
	}
}

func TestCauses(t *testing.T) { // P61
	client := &Client{config: Config{Timeout: time.Second}}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"a proxy that does not listen", &net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused},
			"connect to the proxy: dial tcp: refused"},
		{"a proxy error that quotes the key", &net.OpError{Op: "proxyconnect", Net: "tcp", Err: errors.New(key)},
			"connect to the proxy: invalid HTTP response"},
		{"an invalid proxy", fmt.Errorf("x: %w", errProxy), errProxy.Error()},
		{"an alert", tls.AlertError(40), "tls: handshake failure"},
		{"another error", errors.New(key), "invalid HTTP response"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := client.cause(t.Context(), tt.err); got.Error() != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}

func TestConcurrentCalls(t *testing.T) {
	client := newClient(t, serve(t, new(mcptest.Reranker))+"/ok", nil)
	done := make(chan error)
	for i := range 100 {
		go func() {
			lines := numbered(1 + i%7)
			lines[i%len(lines)] = "keep"
			want := make([]float64, len(lines))
			for j := range want {
				want[j] = 0.1
			}
			want[i%len(lines)] = 0.9
			scored, fault := client.Score(context.Background(), "goal", lines)
			switch {
			case fault != nil:
				done <- fault.Err
			case !reflect.DeepEqual(scored.Scores, want):
				done <- fmt.Errorf("got %v, want %v", scored.Scores, want)
			default:
				done <- nil
			}
		}()
	}
	for range 100 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRequests(t *testing.T) { // W1
	tests := []struct {
		name        string
		wire        Wire
		model, goal string
		documents   []string
		want        string
	}{
		{"queries", Queries, "", "find x", []string{"a", "b"}, `{"queries":["find x"],"documents":["a","b"]}`},
		{"queries have no model", Queries, "m", "", []string{"a"}, `{"queries":[""],"documents":["a"]}`},
		{"markup is not escaped", Queries, "", "<a> & b", []string{"if a < b && c > d {"},
			`{"queries":["<a> & b"],"documents":["if a < b && c > d {"]}`},
		{"quotes, tabs and characters beyond ASCII", Queries, "", "\"é\"", []string{"\tx\\", "", "😀"},
			`{"queries":["\"é\""],"documents":["\tx\\","","😀"]}`},
		{"a query", Query, "", "q", []string{"a"}, `{"query":"q","documents":["a"]}`},
		{"a query with a model", Query, "BAAI/bge-reranker-v2-m3", "<q>", []string{"a", "b"},
			`{"query":"<q>","documents":["a","b"],"model":"BAAI/bge-reranker-v2-m3"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.wire.request(tt.model, tt.goal, tt.documents)
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v\nwant %s", got, err, tt.want)
			}
		})
	}
}

func TestSample(t *testing.T) { // P67
	tests := []struct {
		name     string
		n, limit int
		want     []int
	}{
		{"no lines", 0, 64, []int{}},
		{"a limit of 0", 5, 0, []int{}},
		{"fewer lines than the limit", 3, 64, []int{0, 1, 2}},
		{"as many lines as the limit", 4, 4, []int{0, 1, 2, 3}},
		{"one line more than the limit", 5, 4, []int{0, 1, 2, 4}},
		{"the first and the last", 1000, 2, []int{0, 999}},
		{"only the first", 1000, 1, []int{0}},
		{"evenly in between", 101, 5, []int{0, 25, 50, 75, 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Sample(tt.n, tt.limit); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSampleIsEven(t *testing.T) { // P67
	for _, n := range []int{2, 3, 63, 64, 65, 127, 1000, 1999, 2_000_000} {
		for limit := 2; limit <= 512; limit++ {
			chosen := Sample(n, limit)
			if len(chosen) != min(n, limit) || chosen[0] != 0 || chosen[len(chosen)-1] != n-1 {
				t.Fatalf("%d of %d: %d lines from %d to %d", limit, n, len(chosen), chosen[0], chosen[len(chosen)-1])
			}
			if !slices.IsSorted(chosen) {
				t.Fatalf("%d of %d: not ascending", limit, n)
			}
			step := (n - 1) / (len(chosen) - 1)
			for i := 1; i < len(chosen); i++ {
				if gap := chosen[i] - chosen[i-1]; gap < step || gap > step+1 || gap == 0 {
					t.Fatalf("%d of %d: a step of %d lines, want %d or one more", limit, n, gap, step)
				}
			}
		}
	}
}
