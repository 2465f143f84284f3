package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestInitialize(t *testing.T) {
	a, b, c := legacyPeer("a"), modernPeer("b"), legacyPeer("c")
	a.capabilities = `{"tools":{},"logging":{},"experimental":{"x":{"n":1}}}`
	a.instructions = "Use a."
	b.capabilities = `{"prompts":{},"resources":{"subscribe":true},"experimental":{"x":{"m":2},"y":{}}}`
	c.capabilities = `{"resources":{"subscribe":false},"completions":{}}`
	c.instructions = "Use c."
	c.version = "2024-11-05"
	g := newGateway(t, nil, a, b, c)
	u := g.legacy(t)
	var hello struct {
		ProtocolVersion string
		ServerInfo      struct{ Name, Version string }
		Instructions    string
		Capabilities    json.RawMessage
	}
	if err := json.Unmarshal(u.hello.Result, &hello); err != nil {
		t.Fatal(err)
	}
	want := `{"completions":{},"experimental":{"x":{"m":2,"n":1},"y":{}},"logging":{},"prompts":{"listChanged":true},` +
		`"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true}}`
	if string(hello.Capabilities) != want {
		t.Errorf("got  %s\nwant %s (A4)", hello.Capabilities, want)
	}
	if hello.ServerInfo.Name != "all" || hello.ServerInfo.Version != "1" || hello.ProtocolVersion != mcp.Latest {
		t.Errorf("got %s (A4)", u.hello.Result)
	}
	if hello.Instructions != "a:\nUse a.\n\nc:\nUse c." {
		t.Errorf("got %q", hello.Instructions)
	}
	// Servers get the clientInfo and capabilities of the client, and the version that they support
	// (A5).
	got := a.waitFor(t, "initialize", 1)
	if !strings.Contains(got.body, `"capabilities":`+allCapabilities+`,"clientInfo":{"name":"test","version":"1"}`) {
		t.Errorf("got %s", got.body)
	}
	u.call("c::x")
	if got := c.waitFor(t, "tools/call", 1).Header.Get(mcp.VersionHeader); got != "2024-11-05" {
		t.Errorf("got %s (A5)", got)
	}

	s := g.modern(t).ask("server/discover", "")
	var discovered struct {
		ResultType        string
		SupportedVersions []string
		Capabilities      json.RawMessage
	}
	if json.Unmarshal(s.Result, &discovered) != nil || discovered.ResultType != "complete" ||
		!slices.Contains(discovered.SupportedVersions, mcp.Stateless) ||
		string(discovered.Capabilities) != want || !strings.Contains(string(s.Result),
		`"io.modelcontextprotocol/serverInfo":{"name":"all","version":"1"}`) {
		t.Errorf("got %s", s.Result)
	}
}

func TestVersions(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	for requested, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", mcp.Latest: mcp.Latest,
		"1999-01-01": mcp.Latest, "2099-01-01": mcp.Latest, "x": mcp.Latest,
	} {
		s := g.user(t, mcp.Legacy).ask("initialize",
			`{"protocolVersion":"`+requested+`","capabilities":{},"clientInfo":{"name":"`+requested+`","version":"1"}}`)
		if !strings.Contains(string(s.Result), `"protocolVersion":"`+want+`"`) {
			t.Errorf("%s: got %s, want %s (A5)", requested, s.body, want)
		}
		// Clients with the same version are one audience, for which the gateway connects once.
		asked := func(a *incoming) bool { return a.message.Is(jsonrpc.Requested, want) }
		if !slices.ContainsFunc(p.requests("initialize"), asked) {
			t.Errorf("%s: the server got no initialize for %s", requested, want)
		}
	}
	for _, params := range []string{"", `{}`, `[]`, `{"protocolVersion":1}`} {
		if s := g.user(t, mcp.Legacy).ask("initialize", params); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: got %s", params, s.body)
		}
	}
	if s := g.user(t, mcp.Legacy).ask("initialize",
		`{"protocolVersion":"2025-11-25","x":"`+strings.Repeat("x", maxIntroduction)+
			`"}`); s.status != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d", s.status)
	}
	u := g.modern(t)
	u.version = "2027-01-01"
	u.header = http.Header{}
	if s := u.ask("tools/list", ""); s.status != 400 {
		t.Errorf("got %d %s", s.status, s.body)
	}
}

// If a handshake fails, the client misses only that server (A6).
func TestFailedHandshakes(t *testing.T) {
	ways := map[string]script{
		"500":             func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(500) },
		"garbage":         func(w http.ResponseWriter, a *incoming) { a.write(w, 200, "<html>") },
		"an error":        func(w http.ResponseWriter, a *incoming) { a.refuse(w, 200, -32603, "no") },
		"no body":         func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(200) },
		"an aborted body": func(http.ResponseWriter, *incoming) { panic(http.ErrAbortHandler) },
		"an array result": func(w http.ResponseWriter, a *incoming) { a.reply(w, `[1]`) },
		"bad capabilities": func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"protocolVersion":"2025-11-25","capabilities":[]}`)
		},
		"another id": func(w http.ResponseWriter, a *incoming) { a.write(w, 200, `{"jsonrpc":"2.0","id":"x","result":{}}`) },
		"a server request": func(w http.ResponseWriter, a *incoming) {
			a.send(w, `{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
			panic(http.ErrAbortHandler)
		},
	}
	for name, way := range ways {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint(name, ", client of era ", era), func(t *testing.T) {
				bad := legacyPeer("bad").handle("initialize", way)
				u := newGateway(t, nil, legacyPeer("a").hasTools("x"), bad, modernPeer("c").hasTools("x")).user(t, era)
				if era == mcp.Legacy {
					u.connect()
				}
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "c::x"}) {
					t.Errorf("got %v", got)
				}
				for _, name := range []string{"a::x", "c::x"} {
					if s := u.call(name); s.code() != 0 {
						t.Errorf("got %s", s.body)
					}
				}
				if s := u.call("bad::x"); name != "bad capabilities" &&
					(s.code() == 0 || s.Error.Data.ServerName != "bad" && s.code() != -32603) {
					t.Errorf("got %s", s.body)
				}
			})
		}
	}
}

// Fake time: during an outage, one of many clients retries the server now and then.
func TestOutagesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("b").hasTools("x")
		var tries atomic.Int32
		p.handle("initialize", func(_ http.ResponseWriter, a *incoming) {
			tries.Add(1)
			<-a.Context().Done()
		})
		g := newInMemory(t, func(c *Config) { c.JoinTimeout = 15 * time.Second }, legacyPeer("a").hasTools("x"), p)
		defer g.close()
		first := g.legacy(t)
		time.Sleep(15 * time.Second)
		began, before := time.Now(), tries.Load()
		for range 50 {
			u := g.legacy(t)
			if s := u.call("b::x"); s.symbol() != "timeout" {
				t.Errorf("got %s", s.body)
			}
		}
		if took := time.Since(began); took > time.Second || tries.Load() != before {
			t.Errorf("took %v and %d attempts", took, tries.Load()-before)
		}
		p.mu.Lock()
		delete(p.on, "initialize")
		p.mu.Unlock()
		time.Sleep(time.Minute)
		if s := first.call("b::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
	})
}

// Concurrent requests do one handshake.
func TestOneHandshakeForManyRequests(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := newPeer("a")
		p.eras[era] = true
		u := newGateway(t, nil, p).modern(t)
		done := make(chan reply)
		for range 20 {
			go func() { done <- u.call("a::x") }()
		}
		for range 20 {
			if s := <-done; s.code() != 0 {
				t.Errorf("got %s", s.body)
			}
		}
		if n := p.count("initialize") + p.count("notifications/initialized"); era == mcp.Legacy && n != 2 {
			t.Errorf("got %d", n)
		}
		if n := p.count("server/discover"); n != 1 {
			t.Errorf("discovered %d times", n)
		}
	}
}

// A legacy server may have no sessions.
func TestServersWithoutSessions(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		p := newPeer("a").hasTools("x")
		p.sessions = false
		return []*fakeServer{p}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
		if s := u.call("a::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		for _, call := range peers[0].requests("tools/call") {
			if call.session != "" {
				t.Errorf("got %q", call.session)
			}
		}
	})
}

// A server may respond to initialize with a stream, and send messages before the response.
func TestHandshakesInStreams(t *testing.T) {
	p := legacyPeer("a")
	p.alive["s"] = true
	p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
		w.Header().Set(mcp.SessionHeader, "s")
		a.sendAs(w, "id: 1\n", "")
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
		a.finish(w, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`)
	})
	u := newGateway(t, nil, p).legacy(t)
	if s := u.call("a::x"); s.code() != 0 || p.requests("tools/call")[0].session != "s" {
		t.Errorf("got %s", s.body)
	}
}

// A legacy server that ignores unknown methods is connected after a timeout. The next connection
// has no delay.
func TestServersThatIgnoreUnknownMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").handle("server/discover", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
		g := newInMemory(t, nil, p)
		defer g.close()
		for range 2 {
			u := g.modern(t)
			if s := u.call("a::x"); s.Error != nil {
				t.Errorf("got %s", s.body)
			}
		}
		if n := p.count("server/discover"); n != 1 {
			t.Errorf("discovered %d times", n)
		}
	})
}
