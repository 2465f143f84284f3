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

// A stream goes on after its handler has returned, and whatever ends it, it ends in good order.
func TestParkedStreams(t *testing.T) {
	endings := []struct {
		name    string
		end     func(g *front, u *user, s *talk, exit func())
		outcome string
	}{
		{"the client leaves", func(_ *front, _ *user, s *talk, _ func()) { s.cancel() }, upstream.OutcomeCanceled},
		{"the client ends the session", func(_ *front, u *user, _ *talk, _ func()) { u.end() }, upstream.OutcomeOK},
		{"Caddy exits", func(_ *front, _ *user, _ *talk, exit func()) { exit() }, upstream.OutcomeOK},
		{"the gateway goes", func(g *front, _ *user, _ *talk, _ func()) { g.Close() }, upstream.OutcomeOK},
	}
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, ending := range endings {
			if era == mcp.Modern && ending.name == "the client ends the session" {
				continue // it has none
			}
			t.Run(fmt.Sprint("era ", era, ": ", ending.name), func(t *testing.T) {
				exiting, exit := context.WithCancel(t.Context())
				p := legacyPeer("a")
				say := p.listens()
				g := newGateway(t, func(c *Config) { c.Exiting = exiting }, p)
				u := g.user(t, era)
				var s *talk
				method := "stream"
				if era == mcp.Legacy {
					u.connect()
					s = u.listen()
				} else {
					s = u.begin(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
					s.nextOf(acknowledged)
					method = mcp.MethodListen
				}
				p.await(t, "GET", 1)
				// The peer is served without HTTP, so its stream is not among them.
				await.Until(t, "the handler has returned", func() bool { return g.active.Load() == 0 })
				observer := g.config.Observer.(*observed)
				ends := func(r upstream.Record) bool { return r.Server == "" && r.Method == method }
				if records := observer.takeRecords(); slices.ContainsFunc(records, ends) {
					t.Errorf("it was reported before its end: %+v", records)
				}
				say(toolsChanged)
				s.nextOf("notifications/tools/list_changed")
				ending.end(g, u, s, exit)
				s.ended()
				g.waitForParked()
				records := observer.takeRecords()
				if i := slices.IndexFunc(records, ends); i < 0 || records[i].Outcome != ending.outcome || records[i].Duration <= 0 {
					t.Errorf("got %+v, want one that is %s", records, ending.outcome)
				}
				await.Until(t, "no stream and no client is left", func() bool {
					g.mu.Lock()
					defer g.mu.Unlock()
					return len(g.streams) == 0 && len(g.busy) == 0
				})
			})
		}
	}
}

// After the last stream is waited for, others are held by their handlers.
func TestStreamsThatAreNotParked(t *testing.T) {
	p := legacyPeer("a")
	say := p.listens()
	g := newGateway(t, nil, p)
	g.waitForParked()
	s := g.legacy(t).listen()
	p.await(t, "GET", 1)
	say(toolsChanged)
	s.nextOf("notifications/tools/list_changed")
	if n := g.active.Load(); n != 1 {
		t.Errorf("%d handlers hold the stream", n)
	}
	s.cancel()
	s.ended()
}

// The header of a parked stream is that of any other, but for the connection, which ends with it.
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

// Servers are listened to on behalf of the request that has opened the stream: with all that it has but
// its body and the session id.
func TestKeptRequests(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		r := httptest.NewRequest(http.MethodGet, "https://gateway.example/mcp?a=b", nil)
		r.Proto = proto
		r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(proto)
		r.RemoteAddr = "192.0.2.7:4711"
		r.Header = http.Header{"X-A": {"1", "2"}, "X-Empty": {""}, mcp.VersionHeader: {"2025-11-25"}}
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, "here")
		want := r.Clone(ctx)
		r.Header[mcp.SessionHeader] = []string{"s"}
		kept := keepRequest(r)
		clear(r.Header) // which the handler may change
		got := kept.in(ctx)
		if got.Context() != ctx || !reflect.DeepEqual(got.Header, want.Header) {
			t.Errorf("%s: got %v, want %v", proto, got.Header, want.Header)
		}
		got.Header, want.Header, got.Body, want.Body = nil, nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", proto, got, want)
		}
	}
}
