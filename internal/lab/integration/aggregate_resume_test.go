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

// A pollingServer keeps the events of its calls, and ends their streams after a few of them,
// whether there are more or not.
type pollingServer struct {
	*remoteServer
	steps, atOnce int
	retry         int  // in milliseconds
	breaks        bool // some connections in mid-event, in place of an end
	away          bool // it knows none of its events

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
			s.follow(w, call, 0)
		case m.Method == "GET" && last != "" && s.away:
			w.WriteHeader(http.StatusNotFound)
		case m.Method == "GET" && last != "":
			var call, n int
			if _, err := fmt.Sscanf(last, "%d-%d", &call, &n); err != nil {
				http.Error(w, "no such event", http.StatusBadRequest)
				return true
			}
			w.Header().Set("Content-Type", "text/event-stream")
			s.follow(w, call, n)
		default:
			return false
		}
		return true
	}
	return s
}

// follow sends some of the events of a call after the last one that was read.
func (s *pollingServer) follow(w http.ResponseWriter, call, last int) {
	s.mu.Lock()
	m := s.calls[call]
	s.mu.Unlock()
	var meta struct{ ProgressToken json.RawMessage }
	_ = json.Unmarshal([]byte(m.Param("_meta")), &meta)
	for n := last + 1; n <= min(last+s.atOnce, s.steps); n++ {
		fmt.Fprintf(w, "id: %d-%d\n%s", call, n, event(fmt.Sprintf(
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, meta.ProgressToken, n)))
	}
	switch {
	case last+s.atOnce > s.steps:
		fmt.Fprintf(w, "id: %d-%d\n%s", call, s.steps+1, event(`{"jsonrpc":"2.0","id":`+string(m.ID)+`,`+mcptest.Text("done")+`}`))
	case s.breaks && last%2 == 0:
		fmt.Fprintf(w, "id: %d-%d\ndata: {\"jsonrpc\":", call, last+s.atOnce+1)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// resumed returns how often the rest of a stream was asked for.
func (s *pollingServer) resumed() (n int) {
	for _, m := range s.Received("GET") {
		if m.HTTP.Header.Get("Last-Event-Id") != "" {
			n++
		}
	}
	return n
}

const mineToken = `"_meta":{"progressToken":"mine"}`

// steps returns the progress in some messages, if all of it is of the client's own call.
func stepsOf(t *testing.T, got said) (steps []string) {
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

// A server ends the stream of a call again and again, or its connections break. The client
// gets one answer, and all progress once and in order.
func TestAggregateResumesCalls(t *testing.T) {
	isolate(t)
	for _, breaks := range []bool{false, true} {
		for _, era := range clientEras {
			t.Run(fmt.Sprintf("%s, breaks: %t", era.name, breaks), func(t *testing.T) {
				s := newPollingServer(t)
				s.breaks = breaks
				c := newSpeaker(t, joinedAt(serve(t, gateway("separator __", block(s.line("remote"), "timeout 5s"), child("alpha")))), era.modern, `{}`)
				d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, mineToken))
				got := d.finish(t)
				if steps := stepsOf(t, got); !slices.Equal(steps, numbers(s.steps)) || got.answer.Text() != "done" || string(got.answer.ID) != d.ID {
					t.Errorf("got %v and %s", steps, got.answer.Raw)
				}
				for m := range d.Messages {
					t.Errorf("got %s after the answer", m.Raw)
				}
				if calls, resumed := len(s.Received("tools/call")), s.resumed(); calls != 1 || resumed != s.steps/s.atOnce {
					t.Errorf("called %d times, resumed %d times", calls, resumed)
				}
			})
		}
	}
}

// A client loses its connection and comes back to the call, whose stream the server still ends
// again and again.
func TestAggregateResumesResumedCalls(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	url := serve(t, gateway("separator __", s.line("remote"), child("alpha")))
	c := newLegacyClient(t, url, `{}`)
	res := open(t, client, "POST", c.URL, `{"jsonrpc":"2.0","id":99,"method":"tools/call","params":`+callOf("remote", "work", `{}`, mineToken)+`}`, c.Session, acceptBoth)
	read := make([]byte, 0, 64<<10)
	for strings.Count(string(read), "\n\n") < 12 { // and then it hangs up
		n, err := res.Body.Read(read[len(read):cap(read)])
		if read = read[:len(read)+n]; err != nil {
			t.Fatal(err)
		}
	}
	res.Body.Close()
	events := strings.SplitAfter(string(read), "\n\n")
	seen := strings.Join(events[:12], "")
	_, last, _ := strings.Cut(events[11], "id: ")
	last, _, _ = strings.Cut(last, "\n")
	other := newLegacyClient(t, url, `{}`)
	if got := send(t, client, "GET", other.URL, "", other.Session, "Accept: text/event-stream", "Last-Event-Id: "+last); got.StatusCode != 400 {
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
	if !slices.Equal(steps, numbers(s.steps)) || toolText(t, answerIn(rest.body)) != "done" || len(s.Received("tools/call")) != 1 {
		t.Errorf("got %v, called %d times: %.300s", steps, len(s.Received("tools/call")), rest.body)
	}
}

// The official server closes the streams of its calls, and asks in them.
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
		saw := printed[peerSaw](t, peer(t, "call.mjs", joinedAt(url)), []toolCall{{"polling__work", arguments}})
		var got []string
		for _, n := range saw.Calls[0].Progress {
			got = append(got, fmt.Sprint(n))
		}
		check(t, got, saw.Calls[0].Result.Content[0].Text)
	})
	const name = `{"action":"accept","content":{"name":"peer"}}`
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newSpeaker(t, joinedAt(url), era.modern, `{"elicitation":{}}`)
			params := callOf("polling", "work", arguments, mineToken)
			d := c.begin(t, "tools/call", params)
			var before said
			if era.modern {
				before = d.finish(t)
				d = c.begin(t, "tools/call", retried(params, before.answer.Input(t), func(string) string { return name }))
			} else {
				m := d.next(t)
				for ; m.Method != "elicitation/create"; m = d.next(t) {
					before.events = append(before.events, m)
				}
				c.replyTo(t, m, name)
			}
			got := d.finish(t)
			got.events = append(before.events, got.events...)
			check(t, stepsOf(t, got), got.answer.Text())
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
		t.Errorf("called %d times, resumed %d times", calls, resumed)
	}
}

// A server that ends a stream and never goes on with it: the call fails, and is not made again.
func TestAggregateGivesUpResuming(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	s.away = true
	url := serve(t, gateway("separator __", s.line("remote"), child("alpha")))
	for i, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
			got := c.ask(t, "tools/call", callOf("remote", "work", `{}`, mineToken))
			if f := got.answer.Error; f == nil || !strings.Contains(string(f.Data), `"connect_error"`) || !strings.Contains(f.Message, "may have been carried out") {
				t.Errorf("got %s", got.answer.Raw)
			}
			if calls, resumed := len(s.Received("tools/call")), s.resumed(); calls != i+1 || resumed != i+1 {
				t.Errorf("called %d times, resumed %d times", calls, resumed)
			}
		})
	}
}

// Nothing stays of a client that leaves while the gateway waits, and a reload does not disturb
// one that stays.
func TestAggregateWaitsToResume(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	s.retry = 30_000
	address := freeAddress(t)
	load(t, site(address, gateway("separator __", s.line("remote"), child("alpha"))))
	waiting := func() bool {
		return strings.Contains(admin(t, "GET", "/debug/pprof/goroutine?debug=2", "").body, "upstream.(*Exchange).readOn")
	}
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newSpeaker(t, joinedAt("http://"+address), era.modern, `{}`)
			d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, mineToken))
			for range s.atOnce {
				d.hears(t, "notifications/progress")
			}
			await.Until(t, "a pause", waiting)
			d.HangUp()
			await.Until(t, "the end of the call", func() bool { return !waiting() })
		})
	}
	if n := s.resumed(); n != 0 {
		t.Errorf("resumed %d times", n)
	}
	s.retry = 1000
	c := newSpeaker(t, joinedAt("http://"+address), false, `{}`)
	d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, mineToken))
	for range s.atOnce {
		d.hears(t, "notifications/progress")
	}
	load(t, site(address, gateway("separator __", s.line("remote"), child("alpha"), child("beta"))))
	if got := d.finish(t); got.answer.Text() != "done" {
		t.Errorf("after a reload: got %s", got.answer.Raw)
	}
}

// A client that loses its connection in a call of a child comes back, and gets what it has missed and
// the answer. With a child of its own it is also asked what it was to be asked.
func TestAggregateResumesCallsOfChildren(t *testing.T) {
	isolate(t)
	for isolation, ask := range map[string]string{"shared": "", "session": "elicitation/create"} {
		capabilities, steps, want := `{}`, 6, []float64{3, 4, 5, 6}
		if ask != "" {
			capabilities, steps = `{"elicitation":{}}`, 3
		}
		server := block(child("alpha"), "isolation "+isolation)
		url := serve(t, gateway("separator __", server, newRemoteServer(t, "tool").line("beta")))
		for at, name := range map[string]string{joinedAt(url): "alpha__progress", mcpAt(url, "alpha"): "progress"} {
			t.Run(isolation+" "+name, func(t *testing.T) {
				c := newSpeaker(t, at, false, capabilities)
				call := fmt.Sprintf(`{"name":%q,"arguments":{"steps":%d,"ask":%q},"_meta":{"progressToken":7}}`, name, steps, ask)
				d := c.begin(t, "tools/call", call)
				d.next(t)
				last := d.next(t).EventID // the third step is lost on the way
				d.HangUp()

				other := newSpeaker(t, at, false, capabilities)
				if got := send(t, client, "GET", at, "", other.Session, "Accept: text/event-stream", "Last-Event-Id: "+last); got.StatusCode != 400 {
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
						c.replyTo(t, m, `{"action":"accept","content":{}}`)
					case m.Method == "notifications/progress":
						steps = append(steps, m.Params.Progress)
					case m.Method == "":
						answer = m.Raw
						rest.HangUp()
					}
				}
				if !slices.Equal(steps, want) || !strings.Contains(answer, `"text":"done"`) || !strings.Contains(answer, `"id":`+d.ID) {
					t.Errorf("got %v and %s", steps, answer)
				}
			})
		}
	}
}
