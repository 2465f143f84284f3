package gateway

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// uiServer returns a server whose tool names a UI resource in all possible ways. Its resources name
// the server.
func uiServer(name, uri string) *fakeServer {
	quoted := string(jsonrpc.Quote(uri))
	return withReadableResources(newPeer(name)).
		hasList("tools/list", "tools", `{ "name":"show","inputSchema":{"type":"object"},`+
			`"_meta":{"ui": {"resourceUri":`+quoted+`},"ui/resourceUri":`+quoted+`,"openai/outputTemplate" : `+quoted+
			`,"n":1.50}}`)
}

// withReadableResources makes a server answer resources/read for any URI.
func withReadableResources(p *fakeServer) *fakeServer {
	return p.handle("resources/read", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"contents":[{"uri":`+string(a.message.Literal(jsonrpc.URI))+`,"text":"of `+p.name+`"}]}`)
	})
}

// read reads a resource. It returns its server and the URI in the answer.
func (u *testClient) read(uri string) (owner, shown string, s reply) {
	u.t.Helper()
	s = u.ask("resources/read", `{"uri":`+string(jsonrpc.Quote(uri))+`}`)
	if s.code() != 0 {
		return "", "", s
	}
	return strings.TrimPrefix(namesIn(u.t, s, "contents", "text")[0], "of "), namesIn(u.t, s, "contents", "uri")[0], s
}

// readsFrom checks that a URI is read from a server and is unchanged in the answer.
func (u *testClient) readsFrom(uri, owner string) {
	u.t.Helper()
	if got, shown, s := u.read(uri); got != owner || shown != uri {
		u.t.Errorf("%s: read from %q as %s, want %q: %s", uri, got, shown, owner, s.body)
	}
}

// uiOf returns the URI of the UI resource of a tool.
func uiOf(t *testing.T, s reply, tool string) string {
	t.Helper()
	_, item, found := strings.Cut(s.body, `"name":"`+tool+`"`)
	if !found {
		t.Fatalf("no %s: %s", tool, s.body)
	}
	uris := map[string]bool{}
	var uri string
	for _, before := range []string{`{"resourceUri":"`, `"ui/resourceUri":"`, `"openai/outputTemplate" : "`} {
		_, rest, _ := strings.Cut(item, before)
		uri, _, _ = strings.Cut(rest, `"`)
		uris[uri] = true
	}
	if len(uris) != 1 {
		t.Fatalf("%s has several UI resources: %v", tool, uris)
	}
	return uri
}

func TestUIResourcesAreReadByTheirOwnURIs(t *testing.T) {
	const uri = "ui://a/é.html"
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{uiServer("a", uri), withReadableResources(newPeer("b")), uiServer("c", "ui://c/x")}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		u.readsFrom(uri, "a") // even if this client never listed it
		listed := u.ask("tools/list", "")
		if want := `"_meta":{"ui": {"resourceUri":"` + uri + `"},"ui/resourceUri":"` + uri + `","openai/outputTemplate" : "` +
			uri + `","n":1.50}}`; !strings.Contains(listed.body, want) {
			t.Errorf("got %s, want %s in it", listed.body, want)
		}
		asked := peers[1].count("tools/list") + peers[1].count("resources/list")
		u.readsFrom(uri, "a")
		u.readsFrom("ui://c/x", "c")
		if n := peers[1].count("tools/list") + peers[1].count("resources/list"); n != asked {
			t.Errorf("a URI from a list caused %d more list requests", n-asked)
		}
		u.readsFrom(mcp.UIResourceURI("b", "ui://not/listed"), "b")
		if owner, _, s := u.read("ui://b/guessed"); owner != "" || s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("got %s", s.body)
		}
		if n := peers[1].count("resources/read"); n != 1 {
			t.Errorf("b received %d requests", n)
		}
	})
}

func TestServersWithTheSameUIResource(t *testing.T) {
	const uri = "ui://app/x.html"
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{uiServer("a", uri), uiServer("b", uri), uiServer("c", "ui://c/x")}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		listed := u.ask("tools/list", "")
		for _, name := range []string{"a", "b"} {
			shown := uiOf(t, listed, name+"::show")
			if !strings.HasPrefix(shown, "ui://") || shown == uri {
				t.Errorf("%s has %s", name, shown)
			}
			u.readsFrom(shown, name)
		}
		if shown := uiOf(t, listed, "c::show"); shown != "ui://c/x" {
			t.Errorf("c has %s", shown)
		}
		// Pages of the list have the same URIs.
		page := u.ask("tools/list", `{"limit":1,"cursor":"`+mcp.Cursor(1)+`"}`)
		if shown := uiOf(t, page, "b::show"); shown != mcp.UIResourceURI("b", uri) {
			t.Errorf("on a page b has %s", shown)
		}
		_, _, s := u.read(uri)
		if s.code() != jsonrpc.CodeInvalidParams || !strings.Contains(s.Error.Message, mcp.UIResourceURI("a", uri)) ||
			!strings.Contains(s.Error.Message, mcp.UIResourceURI("b", uri)) {
			t.Errorf("got %s", s.body)
		}
	})
}

func TestLaterServersDoNotTakeUIResources(t *testing.T) {
	const uri = "ui://app/x.html"
	both(t, nil, func() []*fakeServer { return []*fakeServer{uiServer("a", uri), withReadableResources(newPeer("b"))} },
		func(t *testing.T, u *testClient, peers []*fakeServer) {
			if shown := uiOf(t, u.ask("tools/list", ""), "a::show"); shown != uri {
				t.Fatalf("a has %s", shown)
			}
			peers[1].handle("tools/list", uiServer("b", uri).on["tools/list"])
			shown := uiOf(t, u.ask("tools/list", ""), "b::show")
			u.readsFrom(shown, "b")
			u.readsFrom(uri, "a")
		})
}

func TestDescribedToolsNameTheirUIResource(t *testing.T) {
	const uri = "ui://app/x.html"
	configure := func(c *Config) { c.Discovery = true }
	both(t, configure, func() []*fakeServer { return []*fakeServer{uiServer("a", uri), uiServer("b", uri)} },
		func(t *testing.T, u *testClient, _ []*fakeServer) {
			s := u.use("describe_tool", `{"name":"b::show"}`)
			text, _ := s.text()
			s.body = text
			u.readsFrom(uiOf(t, s, "b::show"), "b")
		})
}

// A URI of a server that looks like one of the gateway still belongs to that server.
func TestUIResourcesCannotImitateOthers(t *testing.T) {
	uri := mcp.UIResourceURI("b", "ui://secret")
	both(t, nil, func() []*fakeServer { return []*fakeServer{uiServer("a", uri), withReadableResources(newPeer("b"))} },
		func(t *testing.T, u *testClient, _ []*fakeServer) {
			u.readsFrom(uiOf(t, u.ask("tools/list", ""), "a::show"), "a")
			u.readsFrom(uri, "b")
		})
}

func TestResourcesAreReadByTheURIsThatServersName(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		a := withReadableResources(newPeer("a")).hasList("resources/list", "resources", `{"uri":"x://listed","name":"x"}`,
			`{"uri":"x://made/of/both","name":"x"}`)
		b := withReadableResources(newPeer("b")).hasList("resources/templates/list", "resourceTemplates",
			`{"uriTemplate":"x://made/{+path}{?q}","name":"t"}`)
		c := withReadableResources(newPeer("c")).hasList("resources/templates/list", "resourceTemplates",
			`{"uriTemplate":"{+everything}","name":"t"}`)
		c.instructions = "Read docs://intro first, then (docs://more/it's)."
		return []*fakeServer{a, b, c}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		u.readsFrom("docs://intro", "c")
		u.readsFrom("docs://more/it's", "c")
		u.readsFrom("x://listed", "a")
		u.readsFrom("x://made/of/parts?q=1", "b")
		u.readsFrom("x://made/of/both", "a")
		for _, unknown := range []string{"docs://intr", "docs://intro,", "docs://", "x://other", "x://listed\n", "é"} {
			if owner, _, s := u.read(unknown); owner != "" || s.code() != jsonrpc.CodeInvalidParams {
				t.Errorf("%q: got %s", unknown, s.body)
			}
		}
	})
}

// Resources that a client may not read do not exist for it. A server that mentions a resource of
// another server does not become its owner, even if the other one is not connected yet.
func TestServersDoNotTakeResourcesOfOthers(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		a := legacyPeer("a").hasList("resources/list", "resources", `{"uri":"docs://intro","name":"x"}`)
		b := legacyPeer("b")
		b.instructions = "Read docs://intro first."
		for _, p := range []*fakeServer{a, b} {
			p.handle("resources/read", func(w http.ResponseWriter, r *incoming) {
				r.reply(w, `{"contents":[{"uri":"docs://intro","text":"of `+p.name+`"}]}`)
			})
		}
		u := newGateway(t, nil, a, b).user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		if s := u.ask("resources/read", `{"uri":"docs://intro"}`); !strings.Contains(s.body, "of a") {
			t.Errorf("got %s", s.body)
		}
	}
}

func TestRulesApplyToResourcesByTheirOwnURIs(t *testing.T) {
	const uri = "ui://app/x.html"
	for name, rules := range map[string][]string{
		"the server":   {"deny a::*"},
		"the resource": {"deny resource:ui://app/"},
		"its resource": {"deny resource:a::ui://app/"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, rulesForAll(rules...), func() []*fakeServer { return []*fakeServer{uiServer("a", uri), newPeer("b")} },
				func(t *testing.T, u *testClient, peers []*fakeServer) {
					u.ask("tools/list", "")
					want := u.ask("resources/read", `{"uri":"ui://app/y.html"}`)
					got := u.ask("resources/read", `{"uri":"`+uri+`"}`)
					want.Error.Data.URI = uri
					if want.code() != jsonrpc.CodeInvalidParams || got.status != want.status || got.Error == nil ||
						*got.Error != *want.Error {
						t.Errorf("got %s, want %s", got.body, want.body)
					}
					if n := peers[0].count("resources/read"); n != 0 {
						t.Errorf("the server received %d requests", n)
					}
				})
		})
	}
	t.Run("of another server", func(t *testing.T) {
		both(t, rulesForAll("deny resource:a::ui://app/"),
			func() []*fakeServer { return []*fakeServer{uiServer("a", uri), uiServer("b", uri)} }, func(t *testing.T,
				u *testClient, _ []*fakeServer) {
				u.readsFrom(uri, "b")
			})
	})
	t.Run("limits", func(t *testing.T) {
		p := modernPeer("a")
		u := newGateway(t, oneRequest, p, modernPeer("b")).modern(t)
		u.targetOf("resources/read", `{"uri":"`+uri+`"}`)
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("%d list requests, want 1: the second request is over the limit", n)
		}
	})
}

func TestResultsNameUIResourcesOfTheirServer(t *testing.T) {
	const uri = "ui://app/x.html"
	both(t, nil, func() []*fakeServer {
		b := uiServer("b", uri).handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"content":[{"type":"resource","resource":{"uri":"ui://embedded","text":"t"}}],`+
				`"structuredContent":{"uri":"`+uri+`","_meta":{"ui":{"resourceUri":"`+uri+`"}}},`+
				`"_meta":{"ui":{"resourceUri":"`+uri+`"},"openai/outputTemplate":"ui://other"}}`)
		})
		return []*fakeServer{newPeer("a"), b}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		called := func() (ui, other, embedded string) {
			s := u.call("b::show")
			if !strings.Contains(s.body, `"structuredContent":{"uri":"`+uri+`","_meta":{"ui":{"resourceUri":"`+uri+`"}}}`) {
				t.Errorf("the structured content has changed: %s", s.body)
			}
			_, meta, _ := strings.Cut(s.body, `}},"_meta":{"ui":{"resourceUri":"`)
			ui, meta, _ = strings.Cut(meta, `"},"openai/outputTemplate":"`)
			other, _, _ = strings.Cut(meta, `"`)
			_, embedded, _ = strings.Cut(s.body, `"resource":{"uri":"`)
			embedded, _, _ = strings.Cut(embedded, `"`)
			return ui, other, embedded
		}
		u.ask("tools/list", "")
		ui, other, embedded := called()
		if ui != uri || !strings.HasPrefix(other, "ui://") || !strings.HasPrefix(embedded, "ui://") {
			t.Errorf("got %s, %s and %s", ui, other, embedded)
		}
		u.readsFrom(ui, "b")
		u.readsFrom(other, "b")
		u.readsFrom(embedded, "b")
		peers[0].handle("tools/list", uiServer("a", uri).on["tools/list"])
		u.ask("tools/list", "")
		if ui, _, _ = called(); ui == uri {
			t.Errorf("got %s, which is ambiguous", ui)
		}
		u.readsFrom(ui, "b")
	})
}

// The response to a request by the server's own URI is not rewritten, however its URI is escaped.
func TestResponsesByOwnURIAreUnchanged(t *testing.T) {
	const result = `{ "contents":[{"uri":"ui:\/\/app\/x.html","text":"\u0041"}]}`
	p := legacyPeer("a").hasList("tools/list", "tools", `{"name":"show","_meta":{"ui/resourceUri":"ui://app/x.html"}}`)
	p.handle("resources/read", func(w http.ResponseWriter, a *incoming) { a.reply(w, result) })
	u := newGateway(t, nil, p, legacyPeer("b")).legacy(t)
	if s := u.ask("resources/read", `{"uri":"ui://app/x.html"}`); string(s.Result) != result {
		t.Errorf("got %s, want %s", s.Result, result)
	}
	if body := p.waitFor(t, "resources/read", 1).body; !strings.Contains(body, `"params":{"uri":"ui://app/x.html"}`) {
		t.Errorf("the server got %s", body)
	}
}

// The answer has the URI of the request, however large it is.
func TestLargeUIResourcesKeepTheirURI(t *testing.T) {
	const uri = "ui://app/x.html"
	large := strings.Repeat("<p>é</p>", 400_000)
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{newPeer("b"), uiServer("a", uri).
			handle("resources/read", func(w http.ResponseWriter, a *incoming) {
				a.reply(w, `{"contents":[{"uri":"`+uri+`","text":"`+large+`"}]}`)
			})}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		for _, shown := range []string{uri, mcp.UIResourceURI("a", uri), mcp.ResourceURI("a", uri)} {
			s := u.ask("resources/read", `{"uri":"`+shown+`"}`)
			if want := `"contents":[{"uri":"` + shown + `","text":"` + large + `"}]`; !strings.Contains(string(s.Result), want) {
				t.Errorf("%s: got %d bytes, %.100s", shown, len(s.Result), s.Result)
			}
		}
	})
}

func TestSubscriptionsByTheURIsOfServers(t *testing.T) {
	const uri = "x://a"
	t.Run("legacy", func(t *testing.T) {
		p := legacyPeer("a").hasList("resources/list", "resources", `{"uri":"`+uri+`","name":"x"}`)
		say := p.keepStreams()
		u := newGateway(t, nil, p, legacyPeer("b")).legacy(t)
		stream := u.listen()
		p.waitFor(t, "GET", 1)
		if s := u.ask("resources/subscribe", `{"uri":"`+uri+`"}`); s.code() != 0 {
			t.Fatalf("got %s", s.body)
		}
		say(updated)
		if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"`+uri+`"`) {
			t.Errorf("got %s", e.data)
		}
		p.hasList("resources/list", "resources") // removed, but the client has listed it
		say(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
		stream.nextOf("notifications/resources/list_changed")
		if s := u.ask("resources/unsubscribe", `{"uri":"`+uri+`"}`); s.code() != 0 || p.count("resources/unsubscribe") != 1 {
			t.Errorf("got %s", s.body)
		}
	})
	t.Run("modern", func(t *testing.T) {
		p := legacyPeer("a").hasList("resources/list", "resources", `{"uri":"`+uri+`","name":"x"}`)
		say := p.keepStreams()
		u := newGateway(t, nil, p, legacyPeer("b")).modern(t)
		stream := u.startRequest(mcp.MethodListen, `{"notifications":{"resourceSubscriptions":["`+uri+
			`","x://unknown","x://unknown2"]}}`)
		if e := stream.nextOf("notifications/subscriptions/acknowledged"); !strings.Contains(e.data,
			`"resourceSubscriptions":["`+uri+`"]`) {
			t.Errorf("got %s", e.data)
		}
		if n := p.count("resources/list"); n != 1 || p.count("tools/list") != 0 {
			t.Errorf("%d list requests, want 1", n)
		}
		say(updated)
		if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"`+uri+`"`) {
			t.Errorf("got %s", e.data)
		}
	})
}

func TestTemplatesAreCompletedByTheirOwnURIs(t *testing.T) {
	var heard atomic.Int32
	both(t, nil, func() []*fakeServer {
		b := newPeer("b").hasList("resources/templates/list", "resourceTemplates", `{"uriTemplate":"x://{a}","name":"t"}`)
		return []*fakeServer{newPeer("a"), b.handle("completion/complete", func(w http.ResponseWriter, a *incoming) {
			heard.Add(1)
			a.reply(w, `{"completion":{"values":["v"]}}`)
		})}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		before := heard.Load()
		s := u.ask("completion/complete", `{"ref":{"type":"ref/resource","uri":"x://{a}"},"argument":{"name":"a",`+
			`"value":"v"}}`)
		if s.code() != 0 || heard.Load() != before+1 {
			t.Errorf("got %s", s.body)
		}
	})
}

// The cost of matching templates is limited, because servers can have expensive templates and
// clients can name many URIs at once.
func TestTemplateMatchingIsLimited(t *testing.T) {
	list := &catalog.List{Names: []string{mcp.TemplateURI("a", "x://{y}")}}
	s := new(ownerSearch)
	for range 10 {
		if !s.matchesTemplate(list, "x://1") {
			t.Error("a URI does not match its template")
		}
	}
	if spent := s.steps; s.matchesTemplate(list, "y://1") || s.steps != spent {
		t.Error("a template with another prefix costs steps")
	}
	s.steps = maxSteps
	if s.matchesTemplate(list, "x://1") || !s.matchesTemplate(list, "x://{y}") {
		t.Error("a template was matched beyond the limit, or was not found by its own text")
	}
}
