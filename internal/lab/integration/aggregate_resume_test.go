package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A pollingServer stores the events of its calls, and ends each stream after a few of them.
type pollingServer struct {
	*remoteServer
	steps, atOnce int
	retry         int  // milliseconds
	breaks        bool // break some connections within an event instead of ending them
	forgetsEvents bool // reject all event ids

	mu    sync.Mutex
	calls []*mcptest.Received
}

func newPollingServer(t *testing.T) *pollingServer {
	t.Helper()
	s := &pollingServer{remoteServer: newRemoteServer(t, "work"), steps: 100, atOnce: 5, retry: 50}
	s.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		last := m.HTTP.Header.Get("Last-Event-Id")
		switch {
		case m.Method == "tools/call":
			s.mu.Lock()
			s.calls = append(s.calls, m)
			call := len(s.calls) - 1
			s.mu.Unlock()
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "id: %d-0\nretry: %d\ndata: \n\n", call, s.retry)
			s.sendEvents(w, call, 0)
		case m.Method == "GET" && last != "" && s.forgetsEvents:
			w.WriteHeader(http.StatusNotFound)
		case m.Method == "GET" && last != "":
			var call, n int
			if _, err := fmt.Sscanf(last, "%d-%d", &call, &n); err != nil {
				http.Error(w, "no such event", http.StatusBadRequest)
				return true
			}
			w.Header().Set("Content-Type", "text/event-stream")
			s.sendEvents(w, call, n)
		default:
			return false
		}
		return true
	}
	return s
}

// sendEvents sends the next events of a call after the last one received.
func (s *pollingServer) sendEvents(w http.ResponseWriter, call, last int) {
	s.mu.Lock()
	m := s.calls[call]
	s.mu.Unlock()
	var meta struct{ ProgressToken json.RawMessage }
	_ = json.Unmarshal([]byte(m.Param("_meta")), &meta)
	for n := last + 1; n <= min(last+s.atOnce, s.steps); n++ {
		fmt.Fprintf(w, "id: %d-%d\n%s", call, n, event(fmt.Sprintf(
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`,
			meta.ProgressToken, n)))
	}
	switch {
	case last+s.atOnce > s.steps:
		fmt.Fprintf(w, "id: %d-%d\n%s", call, s.steps+1, event(`{"jsonrpc":"2.0","id":`+string(m.ID)+`,`+
			mcptest.Text("done")+`}`))
	case s.breaks && last%2 == 0:
		fmt.Fprintf(w, "id: %d-%d\ndata: {\"jsonrpc\":", call, last+s.atOnce+1)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// resumptions returns how often the gateway resumed a stream.
func (s *pollingServer) resumptions() (n int) {
	for _, m := range s.Received("GET") {
		if m.HTTP.Header.Get("Last-Event-Id") != "" {
			n++
		}
	}
	return n
}

const progressToken = `"_meta":{"progressToken":"mine"}`

// progressSteps returns the progress in a reply. It fails the test if some belongs to another call.
func progressSteps(t *testing.T, got reply) (steps []string) {
	t.Helper()
	for _, m := range got.events {
		if m.Method == "notifications/progress" && string(m.Params.ProgressToken) == `"mine"` {
			steps = append(steps, fmt.Sprint(m.Params.Progress))
		}
	}
	return steps
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i+1))
	}
	return all
}

// A server ends the stream of a call repeatedly, or its connections break. The client gets one
// response, and all progress once and in order.
func TestAggregateResumesCalls(t *testing.T) {
	isolate(t)
	for _, breaks := range []bool{false, true} {
		for _, era := range clientEras {
			t.Run(fmt.Sprintf("%s, breaks: %t", era.name, breaks), func(t *testing.T) {
				s := newPollingServer(t)
				s.breaks = breaks
				c := newTestClient(t, joinedAt(serve(t, gateway("separator __", block(s.line("remote"), "timeout 5s"),
					child("alpha")))), era.modern, `{}`)
				d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
				got := d.finish(t)
				if steps := progressSteps(t, got); !slices.Equal(steps, numbers(s.steps)) || got.answer.Text() != "done" ||
					string(got.answer.ID) != d.ID {
					t.Errorf("got %v and %s", steps, got.answer.Raw)
				}
				for m := range d.Messages {
					t.Errorf("got %s after the response", m.Raw)
				}
				if calls, resumed := len(s.Received("tools/call")), s.resumptions(); calls != 1 || resumed != s.steps/s.atOnce {
					t.Errorf("got %d calls, %d resumptions", calls, resumed)
				}
			})
		}
	}
}

// A client loses its connection and resumes a call, while the server still ends its stream
// repeatedly.
func TestAggregateResumesResumedCalls(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	url := serve(t, gateway("separator __", s.line("remote"), child("alpha")))
	c := newLegacyClient(t, url, `{}`)
	res := open(t, client, "POST", c.URL, `{"jsonrpc":"2.0","id":99,"method":"tools/call","params":`+
		callOf("remote", "work", `{}`, progressToken)+`}`, c.Session, acceptBoth)
	read := make([]byte, 0, 64<<10)
	for strings.Count(string(read), "\n\n") < 12 { // then it disconnects
		n, err := res.Body.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		if err != nil {
			t.Fatal(err)
		}
	}
	res.Body.Close()
	events := strings.SplitAfter(string(read), "\n\n")
	seen := strings.Join(events[:12], "")
	_, last, _ := strings.Cut(events[11], "id: ")
	last, _, _ = strings.Cut(last, "\n")
	other := newLegacyClient(t, url, `{}`)
	if got := send(t, client, "GET", other.URL, "", other.Session, "Accept: text/event-stream", "Last-Event-Id: "+
		last); got.StatusCode != 400 {
		t.Errorf("another session got %d %s", got.StatusCode, got.body)
	}
	rest := send(t, client, "GET", c.URL, "", c.Session, "Accept: text/event-stream", "Last-Event-Id: "+last)
	var steps []string
	for line := range strings.Lines(seen + rest.body) {
		if _, n, ok := strings.Cut(line, `"progress":`); ok {
			n, _, _ = strings.Cut(n, ",")
			steps = append(steps, strings.TrimRight(n, "}\n"))
		}
	}
	if !slices.Equal(steps, numbers(s.steps)) || toolText(t, answerIn(rest.body)) != "done" ||
		len(s.Received("tools/call")) != 1 {
		t.Errorf("got %v, %d calls: %.300s", steps, len(s.Received("tools/call")), rest.body)
	}
}

// The official server ends the streams of its calls, and sends server requests in them.
func TestAggregateResumesAtPeers(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	start(t, peer(t, "polling.mjs", port), "listening on port")
	url := serve(t, gateway("separator __", "server polling http://"+address+"/mcp", child("alpha")))
	const steps = 10
	check := func(t *testing.T, got []string, text string) {
		t.Helper()
		if !slices.Equal(got, numbers(steps)) || text != "done by peer" {
			t.Errorf("got %v and %s", got, text)
		}
	}
	arguments := fmt.Sprintf(`{"steps":%d}`, steps)
	t.Run("the official client", func(t *testing.T) {
		outcome := runJSON[peerOutcome](t, peer(t, "call.mjs", joinedAt(url)), []toolCall{{"polling__work", arguments}})
		var got []string
		for _, n := range outcome.Calls[0].Progress {
			got = append(got, fmt.Sprint(n))
		}
		check(t, got, outcome.Calls[0].Result.Content[0].Text)
	})
	const name = `{"action":"accept","content":{"name":"peer"}}`
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, `{"elicitation":{}}`)
			params := callOf("polling", "work", arguments, progressToken)
			d := c.begin(t, "tools/call", params)
			var before reply
			if era.modern {
				before = d.finish(t)
				d = c.begin(t, "tools/call", retryParams(params, before.answer.Input(t), func(string) string { return name }))
			} else {
				m := d.next(t)
				for ; m.Method != "elicitation/create"; m = d.next(t) {
					before.events = append(before.events, m)
				}
				c.respond(t, m, name)
			}
			got := d.finish(t)
			got.events = append(before.events, got.events...)
			check(t, progressSteps(t, got), got.answer.Text())
		})
	}
	var seen []struct{ Method, Last string }
	if err := json.Unmarshal([]byte(send(t, client, "GET", "http://"+address+"/seen", "").body), &seen); err != nil {
		t.Fatal(err)
	}
	calls, resumed := 0, 0
	for _, m := range seen {
		if m.Method == "tools/call" {
			calls++
		}
		if m.Last != "" {
			resumed++
		}
	}
	if calls != 3 || resumed < 3 {
		t.Errorf("got %d calls, %d resumptions", calls, resumed)
	}
}

// A server ends a stream and never continues it. The call fails and is not retried.
func TestAggregateGivesUpResuming(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	s.forgetsEvents = true
	url := serve(t, gateway("separator __", s.line("remote"), child("alpha")))
	for i, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			got := c.ask(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
			if f := got.answer.Error; f == nil || !strings.Contains(string(f.Data), `"connect_error"`) ||
				!strings.Contains(f.Message, "may have been executed") {
				t.Errorf("got %s", got.answer.Raw)
			}
			if calls, resumed := len(s.Received("tools/call")), s.resumptions(); calls != i+1 || resumed != i+1 {
				t.Errorf("got %d calls, %d resumptions", calls, resumed)
			}
		})
	}
}

// A client that disconnects while the gateway waits leaves nothing behind. A reload does not
// disturb a client that stays.
func TestAggregateWaitsToResume(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	s.retry = 30_000
	address := freeAddress(t)
	load(t, site(address, gateway("separator __", s.line("remote"), child("alpha"))))
	waiting := func() bool {
		return strings.Contains(admin(t, "GET", "/debug/pprof/goroutine?debug=2", "").body, "upstream.(*Exchange).pause")
	}
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt("http://"+address), era.modern, `{}`)
			d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
			for range s.atOnce {
				d.awaitMessage(t, "notifications/progress")
			}
			await.Until(t, "a pause", waiting)
			d.Cancel()
			await.Until(t, "the end of the call", func() bool { return !waiting() })
		})
	}
	if n := s.resumptions(); n != 0 {
		t.Errorf("got %d resumptions", n)
	}
	s.retry = 1000
	c := newTestClient(t, joinedAt("http://"+address), false, `{}`)
	d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
	for range s.atOnce {
		d.awaitMessage(t, "notifications/progress")
	}
	load(t, site(address, gateway("separator __", s.line("remote"), child("alpha"), child("beta"))))
	if got := d.finish(t); got.answer.Text() != "done" {
		t.Errorf("after a reload: got %s", got.answer.Raw)
	}
}

// A client that loses its connection in a call of a child resumes it, and gets the missed messages
// and the response. With isolated children it gets server requests, too.
func TestAggregateResumesCallsOfChildren(t *testing.T) {
	isolate(t)
	for isolation, ask := range map[string]string{"shared": "", "session": "elicitation/create"} {
		capabilities, steps, want := `{}`, 6, []float64{3, 4, 5, 6}
		if ask != "" {
			capabilities, steps = `{"elicitation":{}}`, 3
		}
		server := block(child("alpha"), "isolation "+isolation)
		url := serve(t, gateway("separator __", server, newRemoteServer(t, "tool").line("beta")))
		for endpoint, name := range map[string]string{joinedAt(url): "alpha__progress", mcpAt(url, "alpha"): "progress"} {
			t.Run(isolation+" "+name, func(t *testing.T) {
				c := newTestClient(t, endpoint, false, capabilities)
				call := fmt.Sprintf(`{"name":%q,"arguments":{"steps":%d,"ask":%q},"_meta":{"progressToken":7}}`, name, steps, ask)
				d := c.begin(t, "tools/call", call)
				d.next(t)
				last := d.next(t).EventID // the third step is lost
				d.Cancel()

				other := newTestClient(t, endpoint, false, capabilities)
				if got := send(t, client, "GET", endpoint, "", other.Session, "Accept: text/event-stream", "Last-Event-Id: "+
					last); got.StatusCode != 400 {
					t.Errorf("another client got %d %s", got.StatusCode, got.body)
				}
				c.Headers = append(c.Headers, "Last-Event-Id: "+last)
				rest := c.Listen(t.Context())
				c.Headers = c.Headers[:len(c.Headers)-1]
				var steps []float64
				var answer string
				for m := range rest.Messages {
					switch {
					case m.Method == "elicitation/create":
						c.respond(t, m, `{"action":"accept","content":{}}`)
					case m.Method == "notifications/progress":
						steps = append(steps, m.Params.Progress)
					case m.Method == "":
						answer = m.Raw
						rest.Cancel()
					}
				}
				if !slices.Equal(steps, want) || !strings.Contains(answer, `"text":"done"`) || !strings.Contains(answer,
					`"id":`+d.ID) {
					t.Errorf("got %v and %s", steps, answer)
				}
			})
		}
	}
}
