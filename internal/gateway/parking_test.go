package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A stream continues after its handler has returned, and ends properly for every cause.
func TestParkedStreams(t *testing.T) {
	endings := []struct {
		name    string
		end     func(g *testGateway, u *testClient, s *liveReply, exit func())
		outcome string
	}{
		{"the client disconnects", func(_ *testGateway, _ *testClient, s *liveReply, _ func()) { s.cancel() },
			upstream.OutcomeCanceled},
		{"the client ends the session", func(_ *testGateway, u *testClient, _ *liveReply, _ func()) { u.end() },
			upstream.OutcomeOK},
		{"Caddy exits", func(_ *testGateway, _ *testClient, _ *liveReply, exit func()) { exit() }, upstream.OutcomeOK},
		{"the gateway closes", func(g *testGateway, _ *testClient, _ *liveReply, _ func()) { g.Close() }, upstream.OutcomeOK},
	}
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, ending := range endings {
			if era == mcp.Modern && ending.name == "the client ends the session" {
				continue // has no such stream
			}
			t.Run(fmt.Sprint("era ", era, ": ", ending.name), func(t *testing.T) {
				exiting, exit := context.WithCancel(t.Context())
				p := legacyPeer("a")
				say := p.keepStreams()
				g := newGateway(t, func(c *Config) { c.Exiting = exiting }, p)
				u := g.user(t, era)
				var s *liveReply
				method := "stream"
				if era == mcp.Legacy {
					u.connect()
					s = u.listen()
				} else {
					s = u.startRequest(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
					s.nextOf(acknowledged)
					method = mcp.MethodListen
				}
				p.waitFor(t, "GET", 1)
				// The fakeServer is called without HTTP, so its stream is not counted.
				await.Until(t, "the handler has returned", func() bool { return g.active.Load() == 0 })
				observer := g.config.Observer.(*recorder)
				ends := func(r upstream.Record) bool { return r.Server == "" && r.Method == method }
				if records := observer.takeRecords(); slices.ContainsFunc(records, ends) {
					t.Errorf("the stream was reported before its end: %+v", records)
				}
				say(toolsChanged)
				s.nextOf("notifications/tools/list_changed")
				ending.end(g, u, s, exit)
				s.waitEnd()
				g.parked.drain()
				records := observer.takeRecords()
				if i := slices.IndexFunc(records, ends); i < 0 || records[i].Outcome != ending.outcome || records[i].Duration <= 0 {
					t.Errorf("got %+v, want one with outcome %s", records, ending.outcome)
				}
				await.Until(t, "no stream and no client remain", func() bool {
					g.clients.mu.Lock()
					defer g.clients.mu.Unlock()
					return len(g.streams.audiences()) == 0 && len(g.clients.busy) == 0
				})
			})
		}
	}
}

// After drain, new streams stay in their handlers.
func TestStreamsThatAreNotParked(t *testing.T) {
	p := legacyPeer("a")
	say := p.keepStreams()
	g := newGateway(t, nil, p)
	g.parked.drain()
	s := g.legacy(t).listen()
	p.waitFor(t, "GET", 1)
	say(toolsChanged)
	s.nextOf("notifications/tools/list_changed")
	if n := g.active.Load(); n != 1 {
		t.Errorf("%d handlers hold the stream", n)
	}
	s.cancel()
	s.waitEnd()
}

// A parked stream has the same headers as other streams, except that its connection is closed at
// the end.
func TestHeaderOfParkedStreams(t *testing.T) {
	g := newGateway(t, nil, legacyPeer("a"))
	u := g.legacy(t)
	response, err := u.do(t.Context(), http.MethodGet, "")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.Header.Get("Content-Type") != "text/event-stream" || !response.Close || response.ContentLength != -1 {
		t.Errorf("got %+v", response)
	}
}

// Requests to servers derive from the request that opened the stream, without its body and session
// id.
func TestStoredRequests(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		r := httptest.NewRequest(http.MethodGet, "https://gateway.example/mcp?a=b", nil)
		r.Proto = proto
		r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(proto)
		r.RemoteAddr = "192.0.2.7:4711"
		r.Header = http.Header{"X-A": {"1", "2"}, "X-Empty": {""}, mcp.VersionHeader: {"2025-11-25"}}
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, "here")
		want := r.Clone(ctx)
		r.Header[mcp.SessionHeader] = []string{"s"}
		kept := saveRequest(r)
		clear(r.Header) // the handler may change it
		got := kept.withContext(ctx)
		if got.Context() != ctx || !reflect.DeepEqual(got.Header, want.Header) {
			t.Errorf("%s: got %v, want %v", proto, got.Header, want.Header)
		}
		got.Header, want.Header, got.Body, want.Body = nil, nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", proto, got, want)
		}
	}
}
