package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// openStreamCount returns the number of open streams of a server.
func (p *fakeServer) openStreamCount() int {
	open := 0
	for _, a := range p.requests(http.MethodGet) {
		if a.Context().Err() == nil {
			open++
		}
	}
	return open
}

// hasListener reports whether a client with a session listens to a server itself.
func (g *testGateway) hasListener(session, server string) bool {
	return slices.ContainsFunc(g.known(), func(c *client) bool {
		listens := func(s *stream) bool { return s.work.listensTo(server) }
		return c.key == session && slices.ContainsFunc(c.openStreams(), listens)
	})
}

// One of the clients without a session listens for all. When it disconnects, another one does.
func TestOneClientListensForAll(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	say := p.keepStreams()
	g := newGateway(t, nil, p)
	var users []*testClient
	var streams []*liveReply
	for range 4 {
		u := g.legacy(t)
		users, streams = append(users, u), append(streams, u.listen())
		u.ask("tools/list", "")
	}
	if p.initialized() != 1 || p.count(http.MethodGet) != 1 || p.count("tools/list") != 1 {
		t.Errorf("%d sessions, %d streams, %d lists", p.initialized(), p.count(http.MethodGet), p.count("tools/list"))
	}
	p.hasTools("x", "y")
	say(toolsChanged)
	for i, stream := range streams {
		if e := stream.next(); e.method() != mcp.ListKinds[mcp.Tools].Notice || !strings.Contains(e.data, `"server":"a"`) {
			t.Errorf("client %d: got %s", i, e.data)
		}
		if got := namesIn(t, users[i].ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "a::y"}) {
			t.Errorf("client %d: got %v", i, got)
		}
	}
	if p.count("tools/list") != 2 || p.initialized() != 1 {
		t.Errorf("%d lists, %d sessions", p.count("tools/list"), p.initialized())
	}

	// Changes that happen while no client listens are detected and announced. Unchanged lists are not
	// announced.
	for _, change := range []bool{false, true} {
		if change {
			p.hasTools("z")
		}
		lists := p.count("tools/list")
		leaves := slices.IndexFunc(users, func(u *testClient) bool { return g.hasListener(u.session, "a") })
		streams[leaves].disconnect()
		users, streams = slices.Delete(users, leaves, leaves+1), slices.Delete(streams, leaves, leaves+1)
		p.waitFor(t, "tools/list", lists+1)
		await.Until(t, "one open stream", func() bool { return p.openStreamCount() == 1 })
		if !change {
			continue
		}
		for i, stream := range streams {
			if e := stream.next(); e.method() != mcp.ListKinds[mcp.Tools].Notice {
				t.Errorf("client %d: got %s", i, e.data)
			}
		}
	}
	say(toolsChanged)
	for i, stream := range streams {
		if e := stream.next(); e.method() != mcp.ListKinds[mcp.Tools].Notice {
			t.Errorf("client %d: got %s", i, e.data)
		}
	}
}

// A client with a session receives its messages, even before its first call.
func TestSessionsListenToServers(t *testing.T) {
	p := legacyPeer("a")
	say := p.keepStreams()
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		answer := a.at.expect(a.session, "7")
		say(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`) // in the streams of all sessions
		<-answer
		a.reply(w, `{"content":[]}`)
	})
	g := newGateway(t, nil, p)
	g.legacy(t)
	u := g.legacy(t)
	stream := u.listen()
	calling := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
	question := stream.nextOf("roots/list")
	u.respond(question, `{"roots":[]}`)
	calling.nextOf("")
	for _, a := range p.requests(http.MethodGet) {
		if a.session != "a-session-2" {
			t.Errorf("the stream of %s is read", a.session)
		}
	}
	say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
	stream.nextOf("notifications/message")
}

// For clients without a session, the gateway does not listen to a server without list changes.
func TestServersWithoutListeners(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	p.capabilities = `{"tools":{},"logging":{}}`
	p.keepStreams()
	g := newGateway(t, nil, p)
	g.legacy(t).ask("tools/list", "")
	u := g.legacy(t)
	u.listen()
	u.ask("tools/list", "")
	if p.count(http.MethodGet) != 0 || p.initialized() != 1 {
		t.Errorf("%d streams, %d sessions", p.count(http.MethodGet), p.initialized())
	}
	u.call("a::x")
	p.waitFor(t, http.MethodGet, 1)
}

// The gateway reads one stream of a server for all streams of a modern client, whichever lists they
// want.
func TestModernStreamsAreShared(t *testing.T) {
	p := modernPeer("a")
	p.capabilities = `{"tools":{"listChanged":true},"prompts":{"listChanged":true}}`
	say := p.acceptListen()
	g := newGateway(t, nil, p)
	var streams []*liveReply
	for _, wants := range []string{`{"toolsListChanged":true}`, `{"promptsListChanged":true}`,
		`{"toolsListChanged":true,"promptsListChanged":true}`} {
		stream := g.modern(t).startRequest(mcp.MethodListen, `{"notifications":`+wants+`}`)
		stream.nextOf(acknowledged)
		streams = append(streams, stream)
	}
	if n := p.count(mcp.MethodListen); n != 1 {
		t.Errorf("%d streams", n)
	}
	say(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
	for _, stream := range streams[1:] {
		if e := stream.next(); e.method() != mcp.ListKinds[mcp.Prompts].Notice {
			t.Errorf("got %s", e.data)
		}
	}
	streams[0].disconnect()
	p.waitFor(t, mcp.MethodListen, 2)
	await.Until(t, "the other stream listens", func() bool {
		say(toolsChanged)
		select {
		case e := <-streams[2].events:
			return e.method() == mcp.ListKinds[mcp.Tools].Notice
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
}

// A client that reconnects is notified of changes since its last list.
func TestReconnectingClients(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	say := p.keepStreams()
	g := newGateway(t, nil, p)
	listening := g.legacy(t).listen()
	u := g.legacy(t)
	u.ask("tools/list", "")
	u.listen().disconnect()
	say(toolsChanged)
	listening.next()
	if e := u.listen().next(); e.method() != mcp.ListKinds[mcp.Tools].Notice {
		t.Errorf("got %s", e.data)
	}
}
