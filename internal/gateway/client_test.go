package gateway

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

func TestSessionIDsOpenWithTheKey(t *testing.T) {
	want := ticket{Identity: "ann", Issued: 1_763_272_525, Version: mcp.Latest, InitParams: json.RawMessage(`{"a":1}`),
		Links: map[string]linkTicket{
			"a": {Era: mcp.Modern, Version: mcp.Stateless, Can: mcp.HasTools},
			"b": {Version: "2025-03-26", Session: "s", Can: mcp.HasTools | mcp.CanSubscribe},
		}}
	id := newBareGateway(nil).sealer.sealTicket(want)
	got, ok := newBareGateway(nil).sealer.openTicket(id)
	if a, b := jsonrpc.Encode(got), jsonrpc.Encode(want); !ok || string(a) != string(b) {
		t.Errorf("got %s, want %s", a, b)
	}
	if again := newBareGateway(nil).sealer.sealTicket(want); again == id {
		t.Error("sealing twice gave the same id")
	}
	if _, ok := newBareGateway(func(c *Config) { c.Key = seal.NewKey() }).sealer.openTicket(id); ok {
		t.Error("another key opened the id")
	}
	if _, ok := newBareGateway(nil).sealer.Open("call", id); ok {
		t.Error("another purpose opened the id")
	}
}

// Large tickets are compressed, small ones are not.
func TestSessionIDsOfAnySize(t *testing.T) {
	sealer := newBareGateway(nil).sealer
	for size, compressed := range map[int]bool{10: false, smallTicket: true, 8 << 10: true} {
		want := ticket{Version: mcp.Latest, InitParams: jsonrpc.Quote(strings.Repeat("a", size))}
		if encodeTicket(want)[0] == '{' == compressed {
			t.Errorf("%d bytes: want compressed %t", size, compressed)
		}
		got, ok := sealer.openTicket(sealer.sealTicket(want))
		if !ok || string(got.InitParams) != string(want.InitParams) || got.Version != want.Version {
			t.Errorf("%d bytes: got %+v", size, got)
		}
	}
}

func TestInvalidSessionIDs(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	foreign := newGateway(t, func(c *Config) { c.Key = seal.NewKey() }, legacyPeer("a")).legacy(t)
	raw, _ := base64.RawURLEncoding.DecodeString(u.session)
	tampered := func(i int) string {
		changed := append([]byte(nil), raw...)
		changed[i] ^= 1
		return base64.RawURLEncoding.EncodeToString(changed)
	}
	tests := map[string]string{
		"first byte changed":           tampered(0),
		"last byte changed":            tampered(len(raw) - 1),
		"middle byte changed":          tampered(len(raw) / 2),
		"truncated":                    u.session[:len(u.session)-4],
		"truncated to four characters": u.session[:4],
		"with more text":               u.session + "AAAA",
		"of another gateway":           foreign.session,
		"invalid base64":               "!!!!",
		"of a server":                  "a-session-1",
		"sealed for a call":            g.sealer.Seal("call", []byte("x")),
		"sealed, but not JSON":         g.sealer.Seal("session", []byte("x")),
		"very long":                    strings.Repeat("A", 60_000),
		"sealed, but empty":            g.sealer.Seal("session", nil),
		"padded":                       u.session + "=",
		"with a space":                 u.session[:9] + " " + u.session[9:],
		"in another alphabet":          base64.StdEncoding.EncodeToString(raw) + "+",
		"halves exchanged":             u.session[len(u.session)/2:] + u.session[:len(u.session)/2],
	}
	for name, id := range tests {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				other := u.atGateway(g)
				other.t, other.session = t, id
				body := ""
				if method == "POST" {
					body = other.request("1", "tools/list", "")
				}
				response, err := other.do(t.Context(), method, body)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				if response.StatusCode != http.StatusNotFound {
					t.Errorf("%s: got %d", method, response.StatusCode)
				}
			}
		})
	}
	if s := u.ask("ping", ""); s.status != 200 || s.code() != 0 {
		t.Errorf("unchanged id: %+v", s)
	}
}

func TestSessionsBelongToTheirClient(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	ann := g.user(t, mcp.Legacy)
	ann.identity = "ann"
	ann.connect()
	for _, identity := range []string{"bob", ""} {
		for name, at := range map[string]*testGateway{"here": g, "at another replica": newGateway(t, nil, p)} {
			other := ann.atGateway(at)
			other.identity = identity
			if s := other.ask("ping", ""); s.status != http.StatusNotFound || s.symbol() != "unknown_session" {
				t.Errorf("%q %s: %+v", identity, name, s)
			}
		}
	}
	if s := ann.ask("ping", ""); s.status != 200 {
		t.Errorf("got %+v", s)
	}
}

// accountRoutes identify clients by accounts.
type accountRoutes struct{ fakeRoutes }

func (u accountRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	r.Header.Set("X-Account", account)
	return u.fakeRoutes.Serve(w, r, account)
}

// A client that uses the session id of another client does not move that session to its own
// audience.
func TestSessionsUsedByOtherClients(t *testing.T) {
	p := modernPeer("a")
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"tools":[{"name":"of-`+a.Header.Get("X-Account")+`"}]}`)
	})
	configure := func(c *Config) {
		c.Auth, c.Servers[0].Routes, c.Servers[0].ForwardAuth = headerAuth{}, accountRoutes{fakeRoutes{p}}, false
	}
	ann := newGateway(t, configure, p).user(t, mcp.Legacy)
	ann.identity = "ann"
	ann.connect()
	g := newGateway(t, configure, p) // has not seen the session
	bob := ann.atGateway(g)
	bob.identity = "bob"
	if s := bob.ask("ping", ""); s.status != http.StatusNotFound {
		t.Errorf("got %+v", s)
	}
	bob.session = ""
	bob.connect()
	for _, u := range []*testClient{bob, ann.atGateway(g), bob} {
		want := []string{"a::of-" + u.identity}
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
			t.Errorf("%s got %v", u.identity, got)
		}
	}
}

func TestAnotherReplicaContinuesASession(t *testing.T) {
	a, b := legacyPeer("a"), modernPeer("b")
	one, other := newGateway(t, nil, a, b), newGateway(t, nil, a, b)
	u := one.legacy(t)
	for i, at := range []*testGateway{other, one, other, one} {
		for _, p := range []*fakeServer{a, b} {
			if s := u.atGateway(at).call(p.name + "::x"); s.code() != 0 || !strings.Contains(s.answer, p.name) {
				t.Errorf("call %d of %s: %+v", i, p.name, s)
			}
		}
	}
	if n := a.count("initialize"); n != 1 {
		t.Errorf("initialized %d times", n)
	}
	if n := a.count("notifications/initialized"); n != 1 {
		t.Errorf("notified %d times (A3)", n)
	}
	if n := b.count("server/discover"); n != 1 {
		t.Errorf("discovered %d times", n)
	}
	for _, call := range a.requests("tools/call") {
		if call.session != "a-session-1" {
			t.Errorf("called in session %q", call.session)
		}
	}
}

func TestSessionIDsFitIntoHeaders(t *testing.T) {
	random := func(n int) string {
		text := ""
		for len(text) < n {
			text += rand.Text()
		}
		return text[:n]
	}
	tests := []struct {
		name    string
		session int // length of the servers' session ids
		hello   int // length of the introduction
	}{
		{"short sessions", 36, 100},
		{"long sessions", 400, 100},
		{"a large introduction", 36, 9_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var peers []*fakeServer
			for i := range 50 {
				p := legacyPeer(fmt.Sprint("server-", i))
				id := random(tt.session)
				p.alive[id] = true
				p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
					w.Header().Set(mcp.SessionHeader, id)
					a.reply(w, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{}}}`)
				})
				peers = append(peers, p)
			}
			g := newGateway(t, nil, peers...)
			u := g.user(t, mcp.Legacy)
			u.info = `{"name":"` + random(tt.hello) + `","version":"1"}`
			u.connect()
			if len(u.session) > 6<<10 {
				t.Errorf("the id has %d bytes", len(u.session))
			}
			if s := u.atGateway(newGateway(t, nil, peers...)).call("server-49::x"); s.code() != 0 {
				t.Errorf("another replica: %+v", s)
			}
		})
	}
}

func TestServersThatLostASessionAreReconnected(t *testing.T) {
	ways := map[string]script{
		"404":              func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusNotFound) },
		"404 and an error": func(w http.ResponseWriter, a *incoming) { a.refuse(w, 404, -32001, "Session not found") },
		"404 and an error, id null": func(w http.ResponseWriter, a *incoming) {
			a.write(w, 404, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`)
		},
		"400 and an error, id null": func(w http.ResponseWriter, a *incoming) {
			a.write(w, 400, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},`+
				`"id":null}`)
		},
	}
	for name, way := range ways {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint(name, ", client of era ", era), func(t *testing.T) {
				p := legacyPeer("a").hasTools("x")
				p.onUnknownSession = way
				var ran int
				p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					ran++
					a.reply(w, `{"content":[]}`)
				})
				g := newGateway(t, nil, p)
				u := g.user(t, era)
				if era == mcp.Legacy {
					u.connect()
				} else if s := u.ask("tools/list", ""); s.code() != 0 {
					t.Fatalf("%+v", s)
				}
				p.forget()
				if s := u.call("a::x"); s.code() != 0 || s.Result == nil {
					t.Errorf("got %+v", s)
				}
				if ran != 1 {
					t.Errorf("the call ran %d times", ran)
				}
				if n := p.count("initialize"); n != 2 {
					t.Errorf("initialized %d times, want 2", n)
				}
				if n := p.count("notifications/initialized"); n != 2 {
					t.Errorf("notified %d times, want 2", n)
				}
				p.forget()
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
					t.Errorf("list: got %v", got)
				}
				if n := p.count("initialize"); n != 3 {
					t.Errorf("initialized %d times, want 3", n)
				}

				// A second lost session in the same call is an error.
				calls := p.count("tools/call")
				p.handle("tools/call", func(w http.ResponseWriter, a *incoming) { way(w, a) })
				if s := u.call("a::x"); s.code() == 0 {
					t.Errorf("got %+v", s)
				}
				if n := p.count("tools/call") - calls; n != 2 {
					t.Errorf("called %d times, want 2", n)
				}
			})
		}
	}
}

func TestACallThatMayHaveRunIsNotRepeated(t *testing.T) {
	ways := map[string]script{
		"aborted at once": func(http.ResponseWriter, *incoming) { panic(http.ErrAbortHandler) },
		"aborted after 200": func(w http.ResponseWriter,
			_ *incoming) {
			w.WriteHeader(200)
			panic(http.ErrAbortHandler)
		},
		"aborted in JSON": func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`)
			panic(http.ErrAbortHandler)
		},
		"aborted in a stream": func(w http.ResponseWriter, a *incoming) {
			a.send(w, `{"jsonrpc":"2.0","method":"x"}`)
			panic(http.ErrAbortHandler)
		},
		"an ended stream":  func(w http.ResponseWriter, a *incoming) { a.send(w, `{"jsonrpc":"2.0","method":"x"}`) },
		"an empty body":    func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(200) },
		"not JSON":         func(w http.ResponseWriter, a *incoming) { a.write(w, 200, "<html>") },
		"500":              func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(500) },
		"202":              func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(202) },
		"400 and an error": func(w http.ResponseWriter, a *incoming) { a.refuse(w, 400, -32602, "no") },
		"an error":         func(w http.ResponseWriter, a *incoming) { a.refuse(w, 200, -32001, "session not found") },
		"an error in a stream": func(w http.ResponseWriter, a *incoming) {
			a.send(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-32001,"message":"x"}}`)
		},
		"a response to another request": func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":"another","result":{}}`)
		},
	}
	for name, way := range ways {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
				t.Run(fmt.Sprint(name, ", client of era ", era, ", server of ", server), func(t *testing.T) {
					p := newPeer("a")
					p.eras[server] = true
					p.handle("tools/call", way)
					g := newGateway(t, nil, p)
					u := g.user(t, era)
					if era == mcp.Legacy {
						u.connect()
					}
					if s := u.call("a::x"); s.code() == 0 && s.status < 400 || s.answer != "" && s.Error == nil {
						t.Errorf("got %d %s", s.status, s.body)
					}
					if n := p.count("tools/call"); n != 1 {
						t.Errorf("called %d times", n)
					}
					if n := p.count("initialize"); server == mcp.Legacy && n != 1 {
						t.Errorf("initialized %d times", n)
					}
				})
			}
		}
	}
}

func TestDeletedSessionsEnd(t *testing.T) {
	a, b := legacyPeer("a"), legacyPeer("b")
	a.keepStreams()
	g := newGateway(t, nil, a, b)
	u := g.legacy(t)
	stream := u.listen()
	response, err := u.do(t.Context(), http.MethodDelete, "")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode/100 != 2 {
		t.Errorf("got %d", response.StatusCode)
	}
	stream.waitEnd()
	if s := u.ask("ping", ""); s.status != http.StatusNotFound {
		t.Errorf("got %+v", s)
	}
	for _, p := range []*fakeServer{a, b} {
		if n := p.count("DELETE"); n != 1 || p.requests("DELETE")[0].session != p.name+"-session-1" {
			t.Errorf("%s: %d times", p.name, n)
		}
	}
}

// end ends the session of a client.
func (u *testClient) end() {
	u.t.Helper()
	response, err := u.do(u.t.Context(), http.MethodDelete, "")
	if err != nil {
		u.t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		u.t.Errorf("DELETE: got %d", response.StatusCode)
	}
}

// An ended session stays ended for as long as its id would be valid, regardless of other clients.
func TestEndedSessionsStayEnded(t *testing.T) {
	g := newInMemory(t, func(c *Config) { c.MaxClients = 2 }, legacyPeer("a"))
	defer g.close()
	u, still := g.legacy(t), g.legacy(t)
	u.end()
	for range 5 {
		g.legacy(t)
	}
	if s := u.ask("tools/list", ""); s.status != http.StatusNotFound || s.symbol() != "unknown_session" {
		t.Errorf("got %d %s", s.status, s.body)
	}
	if s := still.ask("tools/list", ""); s.code() != 0 {
		t.Errorf("session that has not ended: %s", s.body)
	}
	if n := g.endedSessions.ids.Len(); n != 1 {
		t.Errorf("%d ended sessions are remembered, want 1", n)
	}
}

// If too many sessions end to remember all, the sessions of an owner that began before a forgotten
// one count as ended. Those of other owners do not.
func TestTooManyEndedSessions(t *testing.T) {
	s := NewState(nil)
	defer func() { _ = s.Destruct() }()
	began := time.Now().Add(-time.Hour)
	session := func(owner string, i int) *client {
		return &client{owner: owner, key: fmt.Sprint(owner, i), issued: began.Add(time.Duration(i) * time.Millisecond)}
	}
	s.endedSessions.end(session("bob", 1))
	for i := range maxEndedSessions + 10 {
		s.endedSessions.end(session("ann", i))
	}
	for _, tt := range []struct {
		owner string
		i     int
		want  bool
	}{
		{"ann", 0, true}, {"ann", maxEndedSessions, true},
		{"ann", maxEndedSessions + 20, false},
		{"bob", 0, false}, {"bob", 1, true}, {"bob", 2, false},
	} {
		if got := s.endedSessions.has(session(tt.owner, tt.i)); got != tt.want {
			t.Errorf("session %d of %s has ended: %t", tt.i, tt.owner, got)
		}
	}

	// Of too many owners, the last ones are remembered. No session of another owner ends.
	s = NewState(nil)
	defer func() { _ = s.Destruct() }()
	for i := range maxEndedSessions + 2*maxEndedOwners {
		s.endedSessions.end(session(fmt.Sprint("owner", i), 500))
	}
	if n := len(s.endedSessions.cutoffs); n > maxEndedOwners {
		t.Errorf("%d owners", n)
	}
	s.endedSessions.end(session("dan", 600))
	if !s.endedSessions.has(session("dan", 600)) || s.endedSessions.has(session("carol", 0)) {
		t.Error("an ended session is valid again, or another session has ended")
	}
}

// Fake time: sessions expire.
func TestSessionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		g, other := newInMemory(t, nil, p), newInMemory(t, nil, p)
		defer g.close()
		defer other.close()
		u := g.legacy(t)
		time.Sleep(sessionTime - time.Minute)
		for _, at := range []*testGateway{g, other} {
			if s := u.atGateway(at).ask("ping", ""); s.status != http.StatusOK {
				t.Errorf("got %s", s.body)
			}
		}
		time.Sleep(2 * time.Minute)
		for _, at := range []*testGateway{g, other} {
			if s := u.atGateway(at).ask("ping", ""); s.status != http.StatusNotFound {
				t.Errorf("got %s", s.body)
			}
		}
	})
}

// For the race detector: streams open while their session ends.
func TestASessionThatEndsWhileStreamsBegin(t *testing.T) {
	p := legacyPeer("a")
	p.keepStreams()
	g := newGateway(t, nil, p)
	for range 20 {
		u := g.legacy(t)
		begun := make(chan *liveReply)
		for range 4 {
			go func() { begun <- u.listen() }()
		}
		response, err := u.do(t.Context(), http.MethodDelete, "")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		for range 4 {
			(<-begun).waitEnd()
		}
	}
}

func TestRequestsWithoutASession(t *testing.T) {
	g := newGateway(t, nil, legacyPeer("a"))
	u := g.user(t, mcp.Legacy)
	if s := u.ask("tools/list", ""); s.status != 400 || s.code() != jsonrpc.CodeInvalidRequest {
		t.Errorf("POST: %+v", s)
	}
	for method, want := range map[string]int{"GET": 405, "DELETE": 400, "PUT": 405} {
		response, err := u.do(t.Context(), method, "")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: got %d, want %d", method, response.StatusCode, want)
		}
	}
}

// A client that was forgotten because there are too many continues with the state that its id
// carries.
func TestTooManyClients(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, func(c *Config) { c.MaxClients = 2 }, p)
	var users []*testClient
	for range 5 {
		users = append(users, g.legacy(t))
	}
	for i, u := range users {
		if s := u.call("a::x"); s.code() != 0 {
			t.Errorf("client %d: %+v", i, s)
		}
	}
	if n := p.count("initialize"); n != 5 {
		t.Errorf("initialized %d times", n)
	}
	for i, call := range p.requests("tools/call") {
		if want := fmt.Sprint("a-session-", i+1); call.session != want {
			t.Errorf("call in session %s, want %s", call.session, want)
		}
	}
}

// A request that subscribes while its link is dropped must not take quota, which nothing would return.
func TestSubscriptionsOfADroppedLink(t *testing.T) {
	meter := quota.NewMeter(subscriptionsQuota, subscriptionLimits)
	defer meter.Close()
	before := subscriptionsQuota.Usage()
	var s subscriptions
	if added, _ := s.add(meter, "a", "file:///a", "", maxSubscriptions); !added {
		t.Fatal("not added")
	}
	s.close(meter, "a")
	if _, ok := s.add(meter, "a", "file:///b", "", maxSubscriptions); ok || subscriptionsQuota.Usage() != before {
		t.Errorf("subscribed: %v, %+v in use, want %+v", ok, subscriptionsQuota.Usage(), before)
	}
}
