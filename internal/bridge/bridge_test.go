package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestLegacySession(t *testing.T) { // A42
	s := newServer(t)
	c := connect(t, s)
	c.initialize()
	c.send(request("1", "tools/list"))
	c.expect(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	get := s.method("GET")
	if err := c.end(); err != nil {
		t.Error(err)
	}

	first := s.method("initialize")
	if first.HTTP.Header.Get("Mcp-Session-Id") != "" || first.HTTP.Header.Get("MCP-Protocol-Version") != "" {
		t.Errorf("headers of initialize: %v", first.HTTP.Header)
	}
	for _, a := range []*arrival{s.method("notifications/initialized"), s.method("tools/list"), get, s.method("DELETE")} {
		if a.HTTP.Header.Get("Mcp-Session-Id") != sessionID || a.HTTP.Header.Get("MCP-Protocol-Version") != "2025-11-25" {
			t.Errorf("headers of %s %s: %v", a.Method, a.Body, a.HTTP.Header)
		}
	}
	if accept := first.HTTP.Header.Get("Accept"); !strings.Contains(accept, "application/json") ||
		!strings.Contains(accept, "text/event-stream") {
		t.Errorf("Accept: %s", accept)
	}
	if first.HTTP.Header.Get("Content-Type") != "application/json" {
		t.Errorf("Content-Type: %s", first.HTTP.Header.Get("Content-Type"))
	}
}

func TestModernRequests(t *testing.T) {
	s := newServer(t)
	s.on("tools/list", func(w http.ResponseWriter, a *arrival) {
		reply(
			w,
			a,
			`{"tools":[{"name":"query","inputSchema":{"type":"object","properties":{"region":{"type":"string",`+
				`"x-mcp-header":"Region"}}}}]}`,
		)
	})
	c := connect(t, s)
	c.send(modern(`"listen:0"`, "tools/list", ""))
	c.expect(`"id":"listen:0"`)
	c.send(modern(`1`, "tools/call", `"name":"query","arguments":{"region":"é"},`))
	c.expect(`"id":1`)
	c.send(notification("notifications/progress", `{"progressToken":1}`))
	if err := c.end(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
		"Mcp-Name":         "query",
		"Mcp-Param-Region": "=?base64?w6k=?=", "Mcp-Session-Id": ""} {
		if got := s.method("tools/call").HTTP.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := s.order(); slices.Contains(got, "DELETE") || slices.Contains(got, "GET") {
		t.Errorf("unexpected session requests: %v", got)
	}
}

// In the modern era an empty cursor is like any other.
func TestHeadersOfToolsAfterAnEmptyCursor(t *testing.T) { // A21
	const tool = `{"name":"query","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`
	s := newServer(t)
	s.on("tools/list", func(w http.ResponseWriter, a *arrival) {
		if strings.Contains(a.Body, `"cursor":""`) {
			reply(w, a, `{"tools":[]}`)
			return
		}
		reply(w, a, `{"tools":[`+tool+`],"nextCursor":""}`)
	})
	c := connect(t, s)
	for i, members := range []string{"", `"cursor":"",`} {
		c.send(modern(strconv.Itoa(i), "tools/list", members))
		c.expect(`"tools"`)
	}
	c.send(modern("2", "tools/call", `"name":"query","arguments":{"region":"eu"},`))
	c.expect(`"id":2`)
	if got := s.method("tools/call").HTTP.Header.Get("Mcp-Param-Region"); got != "eu" {
		t.Errorf("got %q", got)
	}
}

func TestInput(t *testing.T) {
	tests := []struct {
		name string
		line string
		want []string
	}{
		{"not JSON", `{"id":1`, []string{`"id":null`, "-32700"}},
		{"not UTF-8", "{\"id\":1,\"method\":\"\xff\"}", []string{`"id":null`, "-32700"}},
		{"a batch", `[{"id":1,"method":"ping"}]`, []string{`"id":null`, "-32600"}},
		{"a repeated member", `{"id":1,"id":2,"method":"ping"}`, []string{`"id":null`, "-32600"}},
		{"neither request nor response", `{"id":7}`, []string{`"id":7`, "-32600"}},
		{
			"a request with CR and surrounding spaces",
			"  {\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"} \r",
			[]string{`"id":8`, `"result"`},
		},
		{
			"a request after a byte order mark",
			"\ufeff" + `{"jsonrpc":"2.0","id":9,"method":"ping"}`,
			[]string{`"id":9`, `"result"`},
		},
		{
			"an unchanged id",
			`{"jsonrpc":"2.0","id":12345678901234567890,"method":"ping"}`,
			[]string{`"id":12345678901234567890`},
		},
	}
	s := newServer(t)
	c := connect(t, s)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c.send("", "  ", tt.line)
			c.expect(tt.want...)
		})
	}
	t.Run("a last line without an end", func(t *testing.T) {
		go func() {
			_, _ = io.WriteString(c.in, request("9", "ping"))
			c.in.Close()
		}()
		c.expect(`"id":9`)
		if err := c.wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestInputTooLong(t *testing.T) {
	s := newServer(t)
	in := io.MultiReader(&endlessLine{maxLine + 3}, strings.NewReader("\n"+request("1", "ping")+"\n"))
	var out bytes.Buffer
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if err := (&Bridge{Transport: transport, URL: s.URL}).Run(t.Context(), in, &out); err != nil {
		t.Error(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"id":null`) || !strings.Contains(lines[0], "payload_too_large") ||
		!strings.Contains(lines[1], `"id":1`) {
		t.Errorf("got %.500q", lines)
	}
}

func TestRequestsRunConcurrently(t *testing.T) {
	s := newServer(t)
	g := newGate(t)
	s.on("slow", func(w http.ResponseWriter, a *arrival) {
		if g.wait(a) {
			reply(w, a, `"slow"`)
		}
	})
	c := connect(t, s)
	c.initialize()
	const slow = 20
	for i := range slow {
		c.send(request(fmt.Sprint(100+i), "slow"))
	}
	c.send(request("1", "quick"))
	c.expect(`"id":1`)
	g.open()
	for range slow {
		c.expect(`"slow"`)
	}
}

func TestWaitingRequests(t *testing.T) {
	s := newServer(t)
	g := newGate(t)
	s.on("slow", func(w http.ResponseWriter, a *arrival) {
		if g.wait(a) {
			reply(w, a, `"slow"`)
		}
	})
	c := connect(t, s)
	c.initialize()
	for i := range maxActive + 2 {
		c.send(request(fmt.Sprint(1000+i), "slow"))
	}
	// The first waiting request is canceled. The server is not notified, because the request was never
	// sent.
	c.send(notification("notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, 1000+maxActive)))
	// Notifications overtake waiting requests.
	c.send(notification("notifications/roots/list_changed", `{}`))
	s.method("notifications/roots/list_changed")
	g.open()
	for range maxActive + 1 {
		if line := c.expect(`"slow"`); strings.Contains(line, fmt.Sprintf(`"id":%d,`, 1000+maxActive)) {
			t.Error("the canceled request was answered")
		}
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
	if slices.Contains(s.order(), "notifications/cancelled") {
		t.Error("the cancellation was sent")
	}
}

func TestTooManyRequests(t *testing.T) {
	r := &run{calls: map[string]*call{}, count: maxCalls}
	if r.add(&call{message: parsed(t, request("1", "x"))}) {
		t.Error("a request over the limit was accepted")
	}
	r = &run{calls: map[string]*call{}, heldBytes: maxHeld}
	if r.add(&call{message: parsed(t, request("1", "x"))}) {
		t.Error("bytes over the limit were accepted")
	}
}

func TestOrder(t *testing.T) {
	s := newServer(t)
	g := newGate(t)
	s.on("slow", func(w http.ResponseWriter, a *arrival) {
		if g.wait(a) {
			reply(w, a, `{}`)
		}
	})
	c := connect(t, s)
	c.initialize()
	var want []string
	for i := range 20 {
		c.send(request(fmt.Sprint(i+1), "slow"),
			notification("notifications/progress", `{}`),
			fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
		want = append(want, "notifications/progress", "answer")
	}
	c.send(notification("notifications/cancelled", `{"requestId":20}`))
	s.method("notifications/cancelled")
	got := slices.DeleteFunc(s.order(), func(method string) bool {
		return method != "notifications/progress" && method != "answer"
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	order := s.order()
	if !slices.Contains(order[:slices.Index(order, "notifications/cancelled")], "slow") {
		t.Errorf("the cancellation was sent before the request: %v", order)
	}
}

// A busy server accepts a notification late, or never. Other messages do not wait for that.
func TestNotificationsThatAreNotAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		answers, written := io.Pipe()
		done := make(chan error)
		go func() {
			done <- (&Bridge{Transport: busy{}, URL: "http://localhost/mcp"}).Run(t.Context(), in, written)
		}()
		began := time.Now()
		go func() {
			_, _ = io.WriteString(out, request("1", "initialize")+"\n"+request("2", "tools/call")+"\n"+
				notification("notifications/cancelled", `{"requestId":2}`)+"\n"+request("3", "ping")+"\n")
		}()
		lines := bufio.NewReader(answers)
		for _, id := range []string{`"id":1`, `"id":3`} {
			if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, id) {
				t.Errorf("got %q, %v", line, err)
			}
		}
		if took := time.Since(began); took >= deliverTimeout {
			t.Errorf("the response came after %s", took)
		}
		out.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// busy is an endpoint that accepts no notifications and does not respond to calls of tools.
type busy struct{ echo }

func (b busy) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	res, err := b.echo.RoundTrip(r)
	if bytes.Contains(body, []byte("notifications/")) || bytes.Contains(body, []byte("tools/call")) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return res, err
}

func TestCancel(t *testing.T) {
	t.Run("a modern request is canceled by disconnecting", func(t *testing.T) {
		s := newServer(t)
		left := make(chan struct{})
		s.on("tools/call", func(_ http.ResponseWriter, a *arrival) {
			<-a.HTTP.Context().Done()
			close(left)
		})
		c := connect(t, s)
		c.send(modern(`"\u0061"`, "tools/call", `"name":"x",`))
		s.method("tools/call")
		c.send(notification("notifications/cancelled", `{"requestId":"a"}`))
		<-left
		if err := c.end(); err != nil { // there is no response
			t.Error(err)
		}
		if slices.Contains(s.order(), "notifications/cancelled") {
			t.Error("the notification was sent")
		}
	})
	t.Run("a legacy request is canceled by a notification", func(t *testing.T) {
		s := newServer(t)
		g := newGate(t)
		s.on("tools/call", func(w http.ResponseWriter, a *arrival) {
			if g.wait(a) {
				events(w) // nothing more, because the request is canceled
			}
		})
		s.on("notifications/cancelled", func(w http.ResponseWriter, _ *arrival) {
			w.WriteHeader(http.StatusAccepted)
			g.open()
		})
		c := connect(t, s)
		c.initialize()
		c.send(request("5", "tools/call"), notification("notifications/cancelled", `{"requestId":5}`))
		if got := s.method("notifications/cancelled"); !strings.Contains(got.Body, `"requestId":5`) ||
			got.HTTP.Header.Get("Mcp-Session-Id") != sessionID {
			t.Errorf("got %s", got.Body)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("the bridge does not wait for a canceled request", func(t *testing.T) {
		s := newServer(t)
		g := newGate(t)
		s.on("tools/call", func(_ http.ResponseWriter, a *arrival) { g.wait(a) })
		c := connect(t, s)
		c.initialize()
		c.send(request("5", "tools/call"), notification("notifications/cancelled", `{"requestId":5}`))
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("a cancellation of an unknown request is not forwarded", func(t *testing.T) {
		s := newServer(t)
		c := connect(t, s)
		c.send(notification("notifications/cancelled", `{"requestId":5}`), request("1", "ping"))
		c.expect(`"id":1`)
		if got := s.order(); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

func TestResponses(t *testing.T) {
	tests := []struct {
		name    string
		respond func(http.ResponseWriter, *arrival)
		want    []string
	}{
		{"JSON on several lines", func(w http.ResponseWriter, a *arrival) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{\r\n  \"id\": 1,\n  \"result\": 1.50\n}\n")
		}, []string{`{    "id": 1,   "result": 1.50 }`}},
		{"JSON with another Content-Type", func(w http.ResponseWriter, a *arrival) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, resultOf(a, `{}`))
		}, []string{`{"jsonrpc":"2.0","id":1,"result":{}}`}},
		{"an error with the id", func(w http.ResponseWriter, a *arrival) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"mine","data":{"x":1}}}`)
		}, []string{`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"mine","data":{"x":1}}}`}},
		{"an error with id null", func(w http.ResponseWriter, a *arrival) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"mine"}}`)
		}, []string{`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"mine"}}`}},
		{"a status", func(w http.ResponseWriter, a *arrival) { http.Error(w, "no", http.StatusTeapot) },
			[]string{`"id":1`, `"http_error"`, `"status_code":418`}},
		{"a redirect", func(w http.ResponseWriter, a *arrival) {
			http.Redirect(w, a.HTTP, "/elsewhere", http.StatusTemporaryRedirect)
		}, []string{`"id":1`, `"status_code":307`}},
		{"not JSON", func(w http.ResponseWriter, a *arrival) { _, _ = io.WriteString(w, "hello\nworld") },
			[]string{`"id":1`, `"invalid_json"`}},
		{"no body", func(w http.ResponseWriter, a *arrival) { w.WriteHeader(http.StatusAccepted) },
			[]string{`"id":1`, `"error"`}},
		{
			"a response to another request",
			func(w http.ResponseWriter, a *arrival) {
				_, _ = io.WriteString(w, `{"id":2,"result":{}}`)
			},
			[]string{`"id":1`, `"invalid_response"`},
		},
		{"an aborted connection", func(http.ResponseWriter, *arrival) { panic(http.ErrAbortHandler) },
			[]string{`"id":1`, `"connect_error"`}},
		{"an aborted body", func(w http.ResponseWriter, a *arrival) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"id":1,`)
			panic(http.ErrAbortHandler)
		}, []string{`"id":1`, `"connect_error"`}},
		{"a stream without a response", func(w http.ResponseWriter, a *arrival) { events(w, ": hello\n\n") },
			[]string{`"id":1`, `"connect_error"`}},
		{"a stream that is aborted", func(w http.ResponseWriter, a *arrival) {
			events(w, `data: {"id":1,"result`)
			panic(http.ErrAbortHandler)
		}, []string{`"id":1`, `"connect_error"`}},
		{"a stream with only the response", func(w http.ResponseWriter, a *arrival) { events(w, data(resultOf(a, `{}`))) },
			[]string{`{"jsonrpc":"2.0","id":1,"result":{}}`}},
		{"an event on several lines", func(w http.ResponseWriter, a *arrival) {
			events(w, "event: message\r\ndata: {\"id\":1,\r\nid: 7\r\ndata: \"result\":{}}\r\n\r\n")
		}, []string{`{"id":1, "result":{}}`}},
		{"events that are not messages", func(w http.ResponseWriter, a *arrival) {
			events(w, "id: 1\ndata:\n\n", "event: ping\ndata: {}\n\n", "data: hello\n\n", data(resultOf(a, `{}`)))
		}, []string{`{"jsonrpc":"2.0","id":1,"result":{}}`}},
		{"a stream that continues after the response", func(w http.ResponseWriter, a *arrival) {
			events(w, data(resultOf(a, `{}`)))
			<-a.HTTP.Context().Done()
		}, []string{`{"jsonrpc":"2.0","id":1,"result":{}}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			s.on("x", tt.respond)
			c := connect(t, s)
			c.send(request("1", "x"))
			c.expect(tt.want...)
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("an unreachable server", func(t *testing.T) {
		s := newServer(t)
		s.Close()
		c := connect(t, s)
		c.send(notification("notifications/x", `{}`), request("1", "x"))
		c.expect(`"id":1`, `"connect_error"`)
	})
}

func TestServerRequestInStream(t *testing.T) {
	s := newServer(t)
	answered := newGate(t)
	s.on("tools/call", func(w http.ResponseWriter, a *arrival) {
		events(
			w,
			data(`{"jsonrpc":"2.0","method":"notifications/progress"}`),
			data(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create"}`),
		)
		if answered.wait(a) {
			events(w, data(resultOf(a, `"done"`)))
		}
	})
	s.on("answer", func(w http.ResponseWriter, a *arrival) {
		w.WriteHeader(http.StatusAccepted)
		if string(a.ID) == "1" && string(a.Result) == `{"action":"accept"}` {
			answered.open()
		}
	})
	c := connect(t, s)
	c.initialize()
	c.send(request("1", "tools/call"))
	c.expect("notifications/progress")
	c.expect("elicitation/create")
	c.send(`{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`)
	c.expect(`"id":1`, `"done"`)
}

func TestRunEnds(t *testing.T) {
	t.Run("after the pending responses", func(t *testing.T) {
		s := newServer(t)
		g := newGate(t)
		s.on("slow", func(w http.ResponseWriter, a *arrival) {
			if g.wait(a) {
				reply(w, a, `"slow"`)
			}
		})
		c := connect(t, s)
		c.initialize()
		c.send(request("1", "slow"))
		c.in.Close()
		s.method("slow")
		g.open()
		c.expect(`"id":1`, `"slow"`)
		if err := c.wait(); err != nil {
			t.Error(err)
		}
		s.method("DELETE")
	})
	t.Run("without waiting for an endless stream", func(t *testing.T) {
		s := newServer(t)
		s.on("subscriptions/listen", func(w http.ResponseWriter, a *arrival) {
			events(w, data(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}`))
			<-a.HTTP.Context().Done()
		})
		c := connect(t, s)
		c.send(modern("1", "subscriptions/listen", ""))
		c.expect("acknowledged")
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("at once when the context ends", func(t *testing.T) {
		s := newServer(t)
		g := newGate(t)
		s.on("slow", func(_ http.ResponseWriter, a *arrival) { g.wait(a) })
		c := connect(t, s)
		c.initialize()
		c.send(request("1", "slow"))
		s.method("slow")
		c.cancel()
		if err := c.wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		s.method("DELETE")
	})
	t.Run("when the output fails", func(t *testing.T) {
		s := newServer(t)
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		in, w := io.Pipe()
		defer w.Close()
		go func() { _, _ = io.WriteString(w, request("1", "ping")+"\n") }()
		err := (&Bridge{Transport: transport, URL: s.URL}).Run(t.Context(), in, failingWriter{})
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when the output blocks", func(t *testing.T) {
		s := newServer(t)
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		out := &stuckWriter{make(chan struct{}), newGate(t)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-out.begun
			cancel()
		}()
		in := strings.NewReader(request("1", "ping") + "\n" + request("2", "ping") + "\n")
		if err := (&Bridge{Transport: transport, URL: s.URL}).Run(ctx, in, out); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when the input fails", func(t *testing.T) {
		s := newServer(t)
		c := connect(t, s)
		c.in.CloseWithError(errors.New("broken"))
		if err := c.wait(); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("got %v", err)
		}
	})
}

// After the end of the input, the client cannot respond to a server request. So the bridge does not
// wait for a call that has sent one, before or after the end.
func TestServerRequestsAtTheEnd(t *testing.T) {
	s := newServer(t)
	s.on("tools/call", func(w http.ResponseWriter, a *arrival) {
		events(w, data(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`))
		<-a.HTTP.Context().Done() // the call waits for the response
	})
	in := strings.NewReader(
		request(
			"0",
			"initialize",
		) + "\n" + notification(
			"notifications/initialized",
			"{}",
		) + "\n" +
			request(
				"1",
				"tools/call",
			) + "\n",
	)
	var out bytes.Buffer
	if err := (&Bridge{Transport: &http.Transport{DisableKeepAlives: true}, URL: s.URL}).Run(t.Context(), in,
		&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"id":1,"error"`) && !strings.Contains(out.String(), `"id":1}`) {
		t.Errorf("the call has no response: %s", out.String())
	}
}

func parsed(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m := new(jsonrpc.Message)
	if failure := m.Read([]byte(text)); failure != nil {
		t.Fatal(failure)
	}
	return m
}

func TestInitializeIsAwaited(t *testing.T) {
	s := newServer(t)
	g := newGate(t)
	s.on("initialize", func(w http.ResponseWriter, a *arrival) {
		if !g.wait(a) {
			return
		}
		w.Header().Set("Mcp-Session-Id", sessionID)
		events(
			w,
			data(`{"jsonrpc":"2.0","method":"notifications/message"}`),
			data(resultOf(a, `{"protocolVersion":"2025-06-18"}`)),
		)
	})
	c := connect(t, s)
	c.send(request("0", "initialize"), notification("notifications/initialized", `{}`), request("1", "tools/list"))
	s.method("initialize")
	if got := s.order(); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	g.open()
	c.expect("notifications/message")
	c.expect(`"id":0`)
	c.expect(`"id":1`)
	if list := s.method("tools/list"); list.HTTP.Header.Get("Mcp-Session-Id") != sessionID ||
		list.HTTP.Header.Get("MCP-Protocol-Version") != "2025-06-18" {
		t.Errorf("got %v", list.HTTP.Header)
	}
}

func TestInitializeFails(t *testing.T) {
	s := newServer(t)
	good := s.handlers["initialize"]
	var bad atomic.Bool
	bad.Store(true)
	s.on("initialize", func(w http.ResponseWriter, a *arrival) {
		if bad.Swap(false) {
			w.Header().Set("Mcp-Session-Id", "bad")
			http.Error(w, "no", http.StatusBadGateway)
			return
		}
		good(w, a)
	})
	c := connect(t, s)
	c.send(request("0", "initialize"))
	c.expect(`"id":0`, `"http_error"`)
	c.initialize()
	if got := s.method("notifications/initialized").HTTP.Header.Get("Mcp-Session-Id"); got != sessionID {
		t.Errorf("got %q", got)
	}
}

func TestSessionEnds(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	s.on("initialize", func(w http.ResponseWriter, a *arrival) {
		w.Header().Set("Mcp-Session-Id", "session-"+string('0'+rune(n.Add(1))))
		reply(w, a, `{"protocolVersion":"2025-11-25"}`)
	})
	s.on("tools/list", func(w http.ResponseWriter, a *arrival) {
		if a.HTTP.Header.Get("Mcp-Session-Id") == "session-1" {
			http.Error(w, "gone", http.StatusNotFound)
			return
		}
		reply(w, a, `{}`)
	})
	c := connect(t, s)
	c.initialize()
	c.send(request("1", "tools/list"))
	c.expect(`"id":1`, `"unknown_session"`)
	c.initialize()
	c.send(request("2", "tools/list"))
	c.expect(`"id":2`, `"result"`)
	if err := c.end(); err != nil {
		t.Error(err)
	}
	if gone := s.method("DELETE").HTTP.Header.Get("Mcp-Session-Id"); gone != "session-2" {
		t.Errorf("session %s was deleted", gone)
	}
}

func TestSessionReplaced(t *testing.T) {
	s := newServer(t)
	c := connect(t, s)
	c.initialize()
	c.initialize()
	if got := s.method("DELETE").HTTP.Header.Get("Mcp-Session-Id"); got != sessionID {
		t.Errorf("session %s was deleted", got)
	}
}

func TestServerWithoutSessions(t *testing.T) {
	s := newServer(t)
	s.on("initialize", func(w http.ResponseWriter, a *arrival) { reply(w, a, `{"protocolVersion":"2025-06-18"}`) })
	s.on("lost", func(w http.ResponseWriter, _ *arrival) { http.NotFound(w, nil) })
	c := connect(t, s)
	c.initialize()
	c.send(request("1", "lost"))
	c.expect(`"id":1`, `"http_error"`, `404`)
	if err := c.end(); err != nil {
		t.Error(err)
	}
	if slices.Contains(s.order(), "DELETE") {
		t.Error("a session was deleted")
	}
	if got := s.method("lost").HTTP.Header; got.Get("MCP-Protocol-Version") != "2025-06-18" ||
		got.Get("Mcp-Session-Id") != "" {
		t.Errorf("got %v", got)
	}
}

func TestSessionStream(t *testing.T) {
	s := newServer(t)
	var n atomic.Int32
	s.on("GET", func(w http.ResponseWriter, a *arrival) {
		switch n.Add(1) {
		case 1:
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		case 2:
			if a.HTTP.Header.Get("Last-Event-ID") != "" || a.HTTP.Header.Get("Accept") != "text/event-stream" {
				t.Errorf("got %v", a.HTTP.Header)
			}
			events(
				w,
				"id: e1\nretry: 1\n"+data(`{"jsonrpc":"2.0","id":"s","method":"roots/list"}`),
				"id: e2\ndata: {\"jsonrpc\"",
			)
		default:
			if got := a.HTTP.Header.Get("Last-Event-ID"); got != "e1" {
				t.Errorf("resumed after %q", got)
			}
			events(w, data(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
			<-a.HTTP.Context().Done()
		}
	})
	c := connect(t, s)
	c.initialize()
	c.expect("roots/list")
	c.send(`{"jsonrpc":"2.0","id":"s","result":{"roots":[]}}`)
	s.arrived("the response", func(a *arrival) bool { return string(a.Result) == `{"roots":[]}` })
	c.expect("notifications/tools/list_changed")
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

func TestResume(t *testing.T) {
	t.Run("a stream that ends before its response", func(t *testing.T) {
		s := newServer(t)
		s.on("tools/call", func(w http.ResponseWriter, _ *arrival) { events(w, "id: p1\nretry: 1\ndata:\n\n") })
		s.on("GET", func(w http.ResponseWriter, a *arrival) {
			switch a.HTTP.Header.Get("Last-Event-ID") {
			case "p1":
				events(w, "id: p2\n"+data(`{"jsonrpc":"2.0","method":"notifications/progress"}`))
			case "p2":
				events(w, "id: p3\n"+data(`{"jsonrpc":"2.0","id":1,"result":"late"}`))
			default:
				w.WriteHeader(http.StatusMethodNotAllowed)
			}
		})
		c := connect(t, s)
		c.initialize()
		c.send(request("1", "tools/call"))
		c.expect("notifications/progress")
		c.expect(`"late"`)
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	for name, status := range map[string]int{"no such stream": http.StatusMethodNotAllowed,
		"an ended session": http.StatusNotFound} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.on("tools/call", func(w http.ResponseWriter, _ *arrival) { events(w, "id: p1\nretry: 1\ndata:\n\n") })
			s.on("GET", func(w http.ResponseWriter, a *arrival) { w.WriteHeader(status) })
			c := connect(t, s)
			c.initialize()
			c.send(request("1", "tools/call"))
			c.expect(`"id":1`, `"error"`)
		})
	}
	t.Run("a modern request", func(t *testing.T) {
		s := newServer(t)
		s.on("tools/call", func(w http.ResponseWriter, _ *arrival) { events(w, "id: p1\nretry: 1\ndata:\n\n") })
		c := connect(t, s)
		c.send(modern("1", "tools/call", `"name":"x",`))
		c.expect(`"id":1`, `"connect_error"`)
		if slices.Contains(s.order(), "GET") {
			t.Error("a modern stream was resumed")
		}
	})
}

// inPieces returns a reader that returns at most size bytes at a time.
func inPieces(text []byte, size int) io.Reader {
	var pieces []io.Reader
	for piece := range slices.Chunk(text, size) {
		pieces = append(pieces, bytes.NewReader(piece))
	}
	return iotest.DataErrReader(io.MultiReader(pieces...))
}

// FuzzLines checks that the lines of a text, except blank ones, are read in pieces of any size.
func FuzzLines(f *testing.F) {
	for _, text := range []string{"{}\n{}\r\n\n \n[1]", "\u2028\n\x00\n", strings.Repeat("x", 70<<10) + "\ny", "",
		"\r\r\n", "a\rb\n", "\ufeff{}\n\ufeff"} {
		f.Add([]byte(text), uint16(2))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint16) {
		lines := make(chan line)
		go readLines(inPieces(text, int(size)+1), lines, t.Context().Done())
		for part := range strings.SplitSeq(string(text), "\n") {
			if part = strings.TrimPrefix(strings.TrimSpace(part), "\ufeff"); part == "" {
				continue
			}
			if got := <-lines; string(got.text) != part || got.err != nil {
				t.Fatalf("text %q: got line %q, %v, want %q", text, got.text, got.err, part)
			}
		}
		if got := <-lines; got.err != io.EOF || got.text != nil {
			t.Fatalf("text %q: got %q, %v at the end", text, got.text, got.err)
		}
	})
}

// echo is an endpoint that answers every request with an empty result.
type echo struct{}

func (echo) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	var m map[string]json.RawMessage
	_ = json.Unmarshal(body, &m)
	res := &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: http.NoBody, Request: r}
	if id, has := m["id"]; r.Method == http.MethodPost && has && m["method"] != nil {
		res.StatusCode = http.StatusOK
		res.Header.Set("Content-Type", "application/json")
		res.Body = io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}`))
	} else if r.Method == http.MethodGet {
		res.StatusCode = http.StatusMethodNotAllowed
	}
	return res, nil
}

// FuzzRun checks that for any input, each line of the output is one message: a response to each
// request, with the same id, and an error for each line that is not JSON.
func FuzzRun(f *testing.F) {
	for _, input := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/x"}` + "\n",
		`{"id":"a","method":"initialize","params":{"protocolVersion":"2025-11-25"}}` + "\nx\n[]\n",
		`{"id":1,"method":"m"}` + "\n" + `{"id":1,"method":"m"}` + "\n" + `{"id":1.0,"method":"m"}`, `{"id":1,"result":{}}` +
			"\n{}\n" + `{"id":{},"method":"m"}`, `{"id":null,"method":"m"}` + "\n{\"method\":\"\xff\"}",
		`{"id":7,"method":"tools/call","params":{"name":"é",` +
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		"{\"id\":1\n" + `{"id":1,"method":""}`,
		`{"id":7,"method":"subscriptions/listen"}` + "\n" + `{"method":"notifications/cancelled","params":{"requestId":7}}`,
	} {
		f.Add([]byte(input))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if bytes.Contains(input, []byte("cancel")) || bytes.Contains(input, []byte(`\u`)) ||
			bytes.Count(input, []byte("\n")) > 50 {
			return // a canceled request may or may not get a response; long inputs take too long
		}
		var out bytes.Buffer
		bridge := Bridge{Transport: echo{}, URL: "http://localhost/mcp"}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := bridge.Run(ctx, bytes.NewReader(input), &out); err != nil {
			t.Fatal(err)
		}
		want, isPlain := requested(input)
		var got []string
		for line := range strings.Lines(out.String()) {
			var m struct {
				JSONRPC string
				ID      json.RawMessage
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
				t.Fatalf("input %q: invalid message %q: %v", input, line, err)
			}
			got = append(got, string(m.ID))
		}
		slices.Sort(got)
		if isPlain && !slices.Equal(got, want) {
			t.Fatalf("input %q: got responses with ids %q, want %q", input, got, want)
		}
	})
}

// requested returns the sorted ids that need a response, with null for a line that is not JSON. The
// result is valid only if isPlain: each line is either not JSON, or a request whose id is a number
// that no other line has.
func requested(input []byte) (ids []string, isPlain bool) {
	for line := range strings.SplitSeq(string(input), "\n") {
		var m map[string]json.RawMessage
		switch line = strings.TrimPrefix(strings.TrimSpace(line), "\ufeff"); {
		case line == "":
			continue
		case !json.Valid([]byte(line)) || !utf8.ValidString(line):
			ids = append(ids, "null")
			continue
		case json.Unmarshal([]byte(line), &m) != nil || len(m) != 2 || strings.Count(line, `"`) != 6:
			return nil, false
		}
		id := string(m["id"])
		if _, err := strconv.Atoi(id); err != nil || slices.Contains(ids, id) || !bytes.HasPrefix(m["method"], []byte(`"`)) {
			return nil, false
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, true
}
