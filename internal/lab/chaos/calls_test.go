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

// A way is one into the gateway, in one of the eras.
type way string

const (
	rpc             way = "/rpc"
	oneServer       way = "/mcp/{server}"
	oneServerModern way = "/mcp/{server} of 2026-07-28"
	joined          way = "/mcp"
	joinedModern    way = "/mcp of 2026-07-28"
)

var everyWay = []way{rpc, oneServer, oneServerModern, joined, joinedModern}

// path returns the way without its era.
func (w way) path() string {
	path, _, _ := strings.Cut(string(w), " ")
	return path
}

func (w way) modern() bool { return w == oneServerModern || w == joinedModern }

// everywhere is a fault that ends in the same class by all ways: with an error of the
// gateway's that has this code. At /mcp it has status 200.
func everywhere(code string) map[way]string {
	return byDoor("502 "+code, "502 "+code, "200 "+code)
}

// eras is byDoor for what ends differently at /mcp for clients of 2026-07-28.
func eras(atRPC, atServer, atJoined, atJoinedModern string) map[way]string {
	ends := byDoor(atRPC, atServer, atJoined)
	ends[joinedModern] = atJoinedModern
	return ends
}

// byDoor is how a fault ends at /rpc, /mcp/{server} and /mcp, in both eras.
func byDoor(atRPC, atServer, atJoined string) map[way]string {
	ends := map[way]string{rpc: atRPC, oneServer: atServer, oneServerModern: atServer, joined: atJoined, joinedModern: atJoined}
	for w, class := range ends {
		if class == "" {
			delete(ends, w)
		}
	}
	return ends
}

// A caller is a client that comes by one of the ways.
type caller struct {
	url  string // below which the gateway is
	way  way
	http *http.Client

	// patient has calls that got no answer at all made again. A reload closes kept
	// connections, maybe just when they are used.
	patient bool

	mu      sync.Mutex
	clients map[string]*mcpclient.Client // by server; at /mcp there is one, of no server
}

// caller returns a client that has introduced itself where that is to be done.
func (s *stage) caller(t *testing.T, w way) *caller { return s.callerAt(t, "", w) }

// callerAt is caller for another gateway of the site.
func (s *stage) callerAt(t *testing.T, gateway string, w way) *caller {
	t.Helper()
	c := newCaller(t, s.url+gateway, w)
	c.meet(t, "")
	return c
}

// newCaller returns a client that has no session yet.
func newCaller(t *testing.T, url string, w way) *caller {
	return &caller{url: url, way: w, http: newClient(t), clients: map[string]*mcpclient.Client{}}
}

// client returns the client of a server.
func (c *caller) client(server string) *mcpclient.Client {
	url := c.url + "/mcp"
	switch c.way {
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
		c.clients[server] = &mcpclient.Client{URL: url, Modern: c.way.modern(), Capabilities: `{}`, HTTP: c.http}
	}
	return c.clients[server]
}

// newClient leaves compression to the test.
func newClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// meet introduces the client to a server, at /mcp to all of them.
func (c *caller) meet(t *testing.T, server string) {
	t.Helper()
	if c.way != joined && (c.way != oneServer || server == "") {
		return
	}
	client := c.client(server)
	if len(client.Headers) > 0 {
		return // it did that before
	}
	if _, err := client.Initialize(t.Context(), mcpclient.Legacy); err != nil {
		t.Fatalf("%s %s: %v", c.way, server, err)
	}
}

// An outcome is how a call has ended.
type outcome struct {
	// class is the status and what came with it: "result", the error.data.code of
	// the gateway, "error" of a server, "nothing", or "no JSON"; "broken off" for what
	// visibly has no end, "no answer" for a connection that was closed before there was any,
	// and "never ended".
	class   string
	text    string // of a tool's result
	session string
	body    string // the beginning of it
	size    int64
	took    time.Duration
}

// call calls a tool. Arguments are JSON, or none.
func (c *caller) call(t interface{ Context() context.Context }, server, tool, arguments string) outcome {
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	return c.callUntil(ctx, server, tool, arguments)
}

// callUntil calls a tool, unless ctx ends first.
func (c *caller) callUntil(ctx context.Context, server, tool, arguments string) outcome {
	if arguments == "" {
		arguments = "{}"
	}
	id := `"` + rand.Text() + `"`
	if c.way == joined || c.way == joinedModern {
		tool = server + "__" + tool
	}
	return c.send(ctx, server, id, c.toolCall(id, tool, arguments))
}

// toolCall is the message.
func (c *caller) toolCall(id, tool, arguments string) string {
	client := mcpclient.Client{Modern: c.way.modern(), Capabilities: `{}`}
	message, _ := client.Message(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
	return message
}

// request prepares a message to be sent, whatever it says.
func (c *caller) request(ctx context.Context, server, message string) *http.Request {
	client := c.client(server)
	req, err := mcpclient.NewRequest(ctx, http.MethodPost, client.URL, message, client.HeadersOf(message)...)
	if err != nil {
		panic(err) // the URL is right
	}
	return req
}

// send sends a message, and reads what comes of it.
func (c *caller) send(ctx context.Context, server, id, message string) (got outcome) {
	began := time.Now()
	defer func() {
		got.took = time.Since(began)
		if context.Cause(ctx) == context.DeadlineExceeded {
			got.class = "never ended"
		}
	}()
	res, err := c.http.Do(c.request(ctx, server, message))
	for err != nil && c.patient && ctx.Err() == nil {
		res, err = c.http.Do(c.request(ctx, server, message))
	}
	if err != nil {
		return outcome{class: "no answer", body: err.Error()}
	}
	defer res.Body.Close()
	return read(res, id)
}

// kept is how much of an answer is read to see what it says. The rest is counted.
const kept = 4 << 20

// read reads an answer.
func read(res *http.Response, id string) outcome {
	body, err := io.ReadAll(io.LimitReader(res.Body, kept))
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
	case got.size > kept && !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"):
		what = "passed on"
	case strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"):
		what, got.text = ended, ""
		for event := range strings.SplitSeq(strings.ReplaceAll(string(append(body, last...)), "\r\n", "\n"), "\n\n") {
			if is, text := judge(dataOf(event), id); is != "" && is != "nothing" && is != "no JSON" {
				what, got.text = is, text
			}
		}
	default:
		what, got.text = judge(body, id)
	}
	got.class = fmt.Sprintf("%d %s", res.StatusCode, what)
	return got
}

// A tail is the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const length = 64 << 10
	*t = append(*t, p...)
	*t = append((*t)[:0], (*t)[max(0, len(*t)-length):]...)
	return len(p), nil
}

// ended is an event stream that has ended without an answer.
const ended = "ended"

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

// judge says what a message is to whoever has sent the request with this id, and the
// text of the tool if it is a result. What is no answer at all is "".
func judge(message []byte, id string) (what, text string) {
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
		return "nothing", ""
	case err != nil:
		return "no JSON", ""
	case m.Method != "":
		return "", ""
	case string(m.ID) != id:
		return "answer to another request", ""
	case m.Result != nil:
		for _, content := range m.Result.Content {
			text += content.Text
		}
		return "result", text
	case m.Error != nil:
		var ours struct{ Code string }
		if json.Unmarshal(m.Error.Data, &ours) == nil && ours.Code != "" {
			return ours.Code, ""
		}
		return "error", ""
	}
	return "no answer", ""
}

// A neighbour calls a server with which all is well.
type neighbour struct {
	*caller
	server string
}

// A load is neighbours at work.
type load struct {
	stop    chan struct{}
	running sync.WaitGroup
	good    atomic.Int64
	mu      sync.Mutex
	wrong   []string
	stage   *stage
}

// visit has the neighbours call their servers, and returns once each has been served.
func (s *stage) visit(t *testing.T) *load {
	t.Helper()
	l := &load{stop: make(chan struct{}), stage: s}
	var served sync.WaitGroup
	for _, n := range s.neighbours {
		served.Add(1)
		l.running.Go(func() {
			pace := time.NewTicker(30 * time.Millisecond)
			defer pace.Stop()
			n.once(t, l)
			served.Done()
			for {
				select {
				case <-l.stop:
					n.once(t, l) // after all that
					n.http.CloseIdleConnections()
					return
				case <-pace.C:
					n.once(t, l)
				}
			}
		})
	}
	served.Wait()
	return l
}

// calls returns how many calls have ended.
func (l *load) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.good.Load()) + len(l.wrong)
}

// once makes one call, whose answer can be told from any other.
func (n *neighbour) once(t *testing.T, l *load) {
	own := rand.Text() + rand.Text()
	got := n.call(t, n.server, "echo", `{"text":"`+own+`"}`)
	if got.class != "200 result" || own != echoed(got.text) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wrong = append(l.wrong, fmt.Sprintf("a neighbour at %s of %s got %s %s after %s: %.300q", n.way, n.server, got.class, got.text, got.took, got.body))
		return
	}
	l.good.Add(1)
}

// echoed returns the argument of the call that echo has been told of.
func echoed(text string) string {
	var params struct{ Arguments struct{ Text string } }
	_ = json.Unmarshal([]byte(text), &params)
	return params.Arguments.Text
}

// leave has the neighbours go, after one more call each. It returns how many calls were
// answered as they should; there may be no others.
func (l *load) leave(t *testing.T) (good int) {
	t.Helper()
	close(l.stop)
	l.running.Wait()
	for i, wrong := range l.wrong {
		if i == 5 {
			t.Errorf("and %d more", len(l.wrong)-i)
			break
		}
		t.Error(wrong)
	}
	return int(l.good.Load())
}
