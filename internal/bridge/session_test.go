package bridge

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

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
