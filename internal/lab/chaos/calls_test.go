//go:build linux

package chaos

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// An endpoint is an endpoint of the gateway, in one of the eras.
type endpoint string

const (
	rpc             endpoint = "/rpc"
	oneServer       endpoint = "/mcp/{server}"
	oneServerModern endpoint = "/mcp/{server} of 2026-07-28"
	joined          endpoint = "/mcp"
	joinedModern    endpoint = "/mcp of 2026-07-28"
)

var endpoints = []endpoint{rpc, oneServer, oneServerModern, joined, joinedModern}

// path returns the endpoint without its era.
func (w endpoint) path() string {
	path, _, _ := strings.Cut(string(w), " ")
	return path
}

func (w endpoint) modern() bool { return w == oneServerModern || w == joinedModern }

// gatewayError returns the classes of a gateway error with this code: the status is 200 at /mcp,
// and 502 at the other endpoints.
func gatewayError(code string) map[endpoint]string {
	return byEndpoint("502 "+code, "502 "+code, "200 "+code)
}

// byEndpointAndEra is like byEndpoint, with another class at /mcp for clients of 2026-07-28.
func byEndpointAndEra(atRPC, atServer, atJoined, atJoinedModern string) map[endpoint]string {
	ends := byEndpoint(atRPC, atServer, atJoined)
	ends[joinedModern] = atJoinedModern
	return ends
}

// byEndpoint returns the classes at /rpc, /mcp/{server} and /mcp, in both eras.
func byEndpoint(atRPC, atServer, atJoined string) map[endpoint]string {
	ends := map[endpoint]string{rpc: atRPC, oneServer: atServer, oneServerModern: atServer, joined: atJoined,
		joinedModern: atJoined}
	for w, class := range ends {
		if class == "" {
			delete(ends, w)
		}
	}
	return ends
}

// A testClient is a client of one endpoint.
type testClient struct {
	url      string // base URL of the gateway
	endpoint endpoint
	http     *http.Client

	// retries repeats calls that got no response. A reload closes idle connections, possibly
	// just when they are used.
	retries bool

	mu      sync.Mutex
	clients map[string]*mcpclient.Client // by server; at /mcp there is only one, ""
}

// initializedClient returns a client that is initialized where the endpoint needs it.
func (s *testbed) initializedClient(t *testing.T, w endpoint) *testClient {
	return s.initializedClientAt(t, "", w)
}

// initializedClientAt is like initializedClient for the gateway with this path prefix.
func (s *testbed) initializedClientAt(t *testing.T, gateway string, w endpoint) *testClient {
	t.Helper()
	c := newTestClient(t, s.url+gateway, w)
	c.initialize(t, "")
	return c
}

// newTestClient returns a client without a session.
func newTestClient(t *testing.T, url string, w endpoint) *testClient {
	return &testClient{url: url, endpoint: w, http: newClient(t), clients: map[string]*mcpclient.Client{}}
}

// client returns the MCP client for a server.
func (c *testClient) client(server string) *mcpclient.Client {
	url := c.url + "/mcp"
	switch c.endpoint {
	case rpc:
		url = c.url + "/api/mcp-gateway/" + server + "/rpc"
	case oneServer, oneServerModern:
		url += "/" + server
	default:
		server = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clients[server] == nil {
		c.clients[server] = &mcpclient.Client{URL: url, Modern: c.endpoint.modern(), Capabilities: `{}`, HTTP: c.http}
	}
	return c.clients[server]
}

// newClient returns an HTTP client that does not decompress responses or follow redirects.
func newClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// initialize initializes a session with a server, or at /mcp with all of them.
func (c *testClient) initialize(t *testing.T, server string) {
	t.Helper()
	if c.endpoint != joined && (c.endpoint != oneServer || server == "") {
		return
	}
	client := c.client(server)
	if len(client.Headers) > 0 {
		return // already initialized
	}
	if _, err := client.Initialize(t.Context(), mcpclient.Legacy); err != nil {
		t.Fatalf("%s %s: %v", c.endpoint, server, err)
	}
}

// An outcome is how a call ended.
type outcome struct {
	// class is the status and the kind of the body: "result", the error.data.code of the
	// gateway, "error" of a server, "empty body" or "not JSON". Without a status it is "broken
	// off" for an incomplete response, "no response" for a connection closed before one, or
	// "never ended".
	class   string
	text    string // text of a tool result
	session string
	body    string // start of the body
	size    int64
	took    time.Duration
}

// call calls a tool. Arguments are a JSON object, or "".
func (c *testClient) call(t interface{ Context() context.Context }, server, tool, arguments string) outcome {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	return c.callUntil(ctx, server, tool, arguments)
}

// callUntil calls a tool, unless ctx ends first.
func (c *testClient) callUntil(ctx context.Context, server, tool, arguments string) outcome {
	if arguments == "" {
		arguments = "{}"
	}
	id := `"` + rand.Text() + `"`
	if c.endpoint == joined || c.endpoint == joinedModern {
		tool = server + "__" + tool
	}
	return c.send(ctx, server, id, c.toolCall(id, tool, arguments))
}

// toolCall returns a tools/call request.
func (c *testClient) toolCall(id, tool, arguments string) string {
	client := mcpclient.Client{Modern: c.endpoint.modern(), Capabilities: `{}`}
	message, _ := client.Message(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
	return message
}

// request prepares any message to be sent.
func (c *testClient) request(ctx context.Context, server, message string) *http.Request {
	client := c.client(server)
	req, err := mcpclient.NewRequest(ctx, http.MethodPost, client.URL, message, client.HeadersOf(message)...)
	if err != nil {
		panic(err) // the URL is valid
	}
	return req
}

// send sends a message and reads the response.
func (c *testClient) send(ctx context.Context, server, id, message string) (got outcome) {
	began := time.Now()
	defer func() {
		got.took = time.Since(began)
		if context.Cause(ctx) == context.DeadlineExceeded {
			got.class = "never ended"
		}
	}()
	res, err := c.http.Do(c.request(ctx, server, message))
	for err != nil && c.retries && ctx.Err() == nil {
		res, err = c.http.Do(c.request(ctx, server, message))
	}
	if err != nil {
		return outcome{class: "no response", body: err.Error()}
	}
	defer res.Body.Close()
	return read(res, id)
}

// maxParsed is how much of a response is parsed. The rest is only counted.
const maxParsed = 4 << 20

// read reads and classifies a response.
func read(res *http.Response, id string) outcome {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxParsed))
	got := outcome{session: res.Header.Get("Mcp-Session-Id"), size: int64(len(body))}
	var last tail
	if err == nil {
		var n int64
		n, err = io.Copy(&last, res.Body)
		got.size += n
	}
	got.body = string(body[:min(len(body), 1000)])
	what := ""
	switch {
	case err != nil:
		got.class = "broken off"
		return got
	case got.size > maxParsed && !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"):
		what = "forwarded"
	case strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"):
		what, got.text = noResponseInStream, ""
		for event := range strings.SplitSeq(strings.ReplaceAll(string(append(body, last...)), "\r\n", "\n"), "\n\n") {
			if kind, text := classify(dataOf(event), id); kind != "" && kind != "empty body" && kind != "not JSON" {
				what, got.text = kind, text
			}
		}
	default:
		what, got.text = classify(body, id)
	}
	got.class = fmt.Sprintf("%d %s", res.StatusCode, what)
	return got
}

// A tail keeps the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const length = 64 << 10
	*t = append(*t, p...)
	*t = append((*t)[:0], (*t)[max(0, len(*t)-length):]...)
	return len(p), nil
}

// noResponseInStream is the class of an event stream without a response.
const noResponseInStream = "stream without response"

// dataOf returns the data of an event.
func dataOf(event string) []byte {
	var data []string
	for line := range strings.SplitSeq(event, "\n") {
		if rest, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(data, strings.TrimPrefix(rest, " "))
		}
	}
	return []byte(strings.Join(data, "\n"))
}

// classify classifies a message for the sender of the request with this id, and returns the text of
// a tool result. A request or notification is "".
func classify(message []byte, id string) (what, text string) {
	var m struct {
		ID     json.RawMessage
		Method string
		Result *struct{ Content []struct{ Text string } }
		Error  *struct {
			Code int
			Data json.RawMessage
		}
	}
	switch err := json.Unmarshal(message, &m); {
	case len(bytes.TrimSpace(message)) == 0:
		return "empty body", ""
	case err != nil:
		return "not JSON", ""
	case m.Method != "":
		return "", ""
	case string(m.ID) != id:
		return "response to another request", ""
	case m.Result != nil:
		for _, content := range m.Result.Content {
			text += content.Text
		}
		return "result", text
	case m.Error != nil:
		var data struct{ Code string }
		if json.Unmarshal(m.Error.Data, &data) == nil && data.Code != "" {
			return data.Code, ""
		}
		return "error", ""
	}
	return "no result or error", ""
}

// An otherClient calls a server that works.
type otherClient struct {
	*testClient
	server string
}

// An otherLoad is the calls of other clients.
type otherLoad struct {
	stop     chan struct{}
	running  sync.WaitGroup
	good     atomic.Int64
	mu       sync.Mutex
	failures []string
	testbed  *testbed
}

// startOthers starts calls of all other clients, and returns once each has succeeded.
func (s *testbed) startOthers(t *testing.T) *otherLoad {
	t.Helper()
	l := &otherLoad{stop: make(chan struct{}), testbed: s}
	var served sync.WaitGroup
	for _, n := range s.otherClients {
		served.Add(1)
		l.running.Go(func() {
			pace := time.NewTicker(30 * time.Millisecond)
			defer pace.Stop()
			n.callOnce(t, l)
			served.Done()
			for {
				select {
				case <-l.stop:
					n.callOnce(t, l) // once more after the fault
					n.http.CloseIdleConnections()
					return
				case <-pace.C:
					n.callOnce(t, l)
				}
			}
		})
	}
	served.Wait()
	return l
}

// calls returns how many calls have ended.
func (l *otherLoad) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.good.Load()) + len(l.failures)
}

// callOnce makes one call, with a random argument that must be in the response.
func (n *otherClient) callOnce(t *testing.T, l *otherLoad) {
	own := rand.Text() + rand.Text()
	got := n.call(t, n.server, "echo", `{"text":"`+own+`"}`)
	if got.class != "200 result" || own != echoed(got.text) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failures = append(l.failures, fmt.Sprintf("another client at %s of %s got %s %s after %s: %.300q", n.endpoint,
			n.server, got.class, got.text, got.took, got.body))
		return
	}
	l.good.Add(1)
}

// echoed returns the argument in the result of echo.
func echoed(text string) string {
	var params struct{ Arguments struct{ Text string } }
	_ = json.Unmarshal([]byte(text), &params)
	return params.Arguments.Text
}

// finish stops the calls, after one more of each client. It returns the number of successful calls
// and reports all others as errors.
func (l *otherLoad) finish(t *testing.T) (good int) {
	t.Helper()
	close(l.stop)
	l.running.Wait()
	for i, wrong := range l.failures {
		if i == 5 {
			t.Errorf("and %d more failed calls", len(l.failures)-i)
			break
		}
		t.Error(wrong)
	}
	return int(l.good.Load())
}
