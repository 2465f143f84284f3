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

// showing returns a peer whose tool names a UI resource in all the ways there are. What it reads
// says whose it is.
func showing(name, uri string) *peer {
	quoted := string(jsonrpc.Quote(uri))
	return readable(newPeer(name)).has("tools/list", "tools", `{ "name":"show","inputSchema":{"type":"object"},`+
		`"_meta":{"ui": {"resourceUri":`+quoted+`},"ui/resourceUri":`+quoted+`,"openai/outputTemplate" : `+quoted+`,"n":1.50}}`)
}

// readable has a peer read any resource.
func readable(p *peer) *peer {
	return p.does("resources/read", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"contents":[{"uri":`+string(a.message.Literal(jsonrpc.URI))+`,"text":"of `+p.name+`"}]}`)
	})
}

// read reads a resource. It returns whose it is, and what it is called in the answer.
func (u *user) read(uri string) (owner, shown string, s said) {
	u.t.Helper()
	s = u.ask("resources/read", `{"uri":`+string(jsonrpc.Quote(uri))+`}`)
	if s.code() != 0 {
		return "", "", s
	}
	return strings.TrimPrefix(names(u.t, s, "contents", "text")[0], "of "), names(u.t, s, "contents", "uri")[0], s
}

// reaches checks that a URI leads to a server, and is that in the answer, too.
func (u *user) reaches(uri, owner string) {
	u.t.Helper()
	if got, shown, s := u.read(uri); got != owner || shown != uri {
		u.t.Errorf("%s: %q has it, called %s, want %q: %s", uri, got, shown, owner, s.body)
	}
}

// uiOf returns the URI of the UI resource that a tool names.
func uiOf(t *testing.T, s said, tool string) string {
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
		t.Fatalf("%s names several: %v", tool, uris)
	}
	return uri
}

func TestUIResourcesAreReadByTheirOwnURIs(t *testing.T) {
	const uri = "ui://a/é.html"
	both(t, nil, func() []*peer { return []*peer{showing("a", uri), readable(newPeer("b")), showing("c", "ui://c/x")} }, func(t *testing.T, u *user, peers []*peer) {
		u.reaches(uri, "a") // also if it was never listed here
		listed := u.ask("tools/list", "")
		if want := `"_meta":{"ui": {"resourceUri":"` + uri + `"},"ui/resourceUri":"` + uri + `","openai/outputTemplate" : "` + uri + `","n":1.50}}`; !strings.Contains(listed.body, want) {
			t.Errorf("got %s, want %s in it", listed.body, want)
		}
		asked := peers[1].count("tools/list") + peers[1].count("resources/list")
		u.reaches(uri, "a")
		u.reaches("ui://c/x", "c")
		if n := peers[1].count("tools/list") + peers[1].count("resources/list"); n != asked {
			t.Errorf("asked %d times more for a URI that the client has from a list", n-asked)
		}
		u.reaches(mcp.UIResourceURI("b", "ui://not/listed"), "b")
		if owner, _, s := u.read("ui://b/guessed"); owner != "" || s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("got %s", s.body)
		}
		if n := peers[1].count("resources/read"); n != 1 {
			t.Errorf("b has heard %d", n)
		}
	})
}

func TestServersWithTheSameUIResourceStayApart(t *testing.T) {
	const uri = "ui://app/x.html"
	both(t, nil, func() []*peer { return []*peer{showing("a", uri), showing("b", uri), showing("c", "ui://c/x")} }, func(t *testing.T, u *user, peers []*peer) {
		listed := u.ask("tools/list", "")
		for _, name := range []string{"a", "b"} {
			shown := uiOf(t, listed, name+"::show")
			if !strings.HasPrefix(shown, "ui://") || shown == uri {
				t.Errorf("%s has %s", name, shown)
			}
			u.reaches(shown, name)
		}
		if shown := uiOf(t, listed, "c::show"); shown != "ui://c/x" {
			t.Errorf("c has %s", shown)
		}
		// A page of the list is no different.
		page := u.ask("tools/list", `{"limit":1,"cursor":"`+mcp.Cursor(1)+`"}`)
		if shown := uiOf(t, page, "b::show"); shown != mcp.UIResourceURI("b", uri) {
			t.Errorf("on a page b has %s", shown)
		}
		_, _, s := u.read(uri)
		if s.code() != jsonrpc.CodeInvalidParams || !strings.Contains(s.Error.Message, mcp.UIResourceURI("a", uri)) || !strings.Contains(s.Error.Message, mcp.UIResourceURI("b", uri)) {
			t.Errorf("got %s", s.body)
		}
	})
}

func TestAServerThatComesLaterDoesNotTakeAUIResource(t *testing.T) {
	const uri = "ui://app/x.html"
	both(t, nil, func() []*peer { return []*peer{showing("a", uri), readable(newPeer("b"))} }, func(t *testing.T, u *user, peers []*peer) {
		if shown := uiOf(t, u.ask("tools/list", ""), "a::show"); shown != uri {
			t.Fatalf("a has %s", shown)
		}
		peers[1].does("tools/list", showing("b", uri).on["tools/list"])
		shown := uiOf(t, u.ask("tools/list", ""), "b::show")
		u.reaches(shown, "b")
		u.reaches(uri, "a")
	})
}

func TestDescribedToolsSayWhoseTheirUIResourceIs(t *testing.T) {
	const uri = "ui://app/x.html"
	configure := func(c *Config) { c.Discovery = true }
	both(t, configure, func() []*peer { return []*peer{showing("a", uri), showing("b", uri)} }, func(t *testing.T, u *user, _ []*peer) {
		s := u.use("describe_tool", `{"name":"b::show"}`)
		text, _ := s.text()
		s.body = text
		u.reaches(uiOf(t, s, "b::show"), "b")
	})
}

// A URI of a server that looks like one of the gateway leads to that server all the same.
func TestUIResourcesCannotPassForThoseOfOthers(t *testing.T) {
	uri := mcp.UIResourceURI("b", "ui://secret")
	both(t, nil, func() []*peer { return []*peer{showing("a", uri), readable(newPeer("b"))} }, func(t *testing.T, u *user, _ []*peer) {
		u.reaches(uiOf(t, u.ask("tools/list", ""), "a::show"), "a")
		u.reaches(uri, "b")
	})
}

func TestResourcesAreReadByTheURIsThatServersName(t *testing.T) {
	both(t, nil, func() []*peer {
		a := readable(newPeer("a")).has("resources/list", "resources", `{"uri":"x://listed","name":"x"}`, `{"uri":"x://made/of/both","name":"x"}`)
		b := readable(newPeer("b")).has("resources/templates/list", "resourceTemplates", `{"uriTemplate":"x://made/{+path}{?q}","name":"t"}`)
		c := readable(newPeer("c")).has("resources/templates/list", "resourceTemplates", `{"uriTemplate":"{+everything}","name":"t"}`)
		c.instructions = "Read docs://intro first, then (docs://more/it's)."
		return []*peer{a, b, c}
	}, func(t *testing.T, u *user, _ []*peer) {
		u.reaches("docs://intro", "c")
		u.reaches("docs://more/it's", "c")
		u.reaches("x://listed", "a")
		u.reaches("x://made/of/parts?q=1", "b")
		u.reaches("x://made/of/both", "a")
		for _, unknown := range []string{"docs://intr", "docs://intro,", "docs://", "x://other", "x://listed\n", "é"} {
			if owner, _, s := u.read(unknown); owner != "" || s.code() != jsonrpc.CodeInvalidParams {
				t.Errorf("%q: got %s", unknown, s.body)
			}
		}
	})
}

// To a client, what it may not have does not exist.
// A server that speaks of a resource of another does not take it, also if the other was not asked yet.
func TestServersDoNotTakeResourcesOfOthers(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		a := legacyPeer("a").has("resources/list", "resources", `{"uri":"docs://intro","name":"x"}`)
		b := legacyPeer("b")
		b.instructions = "Read docs://intro first."
		for _, p := range []*peer{a, b} {
			p.does("resources/read", func(w http.ResponseWriter, r *incoming) {
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
			both(t, everybody(rules...), func() []*peer { return []*peer{showing("a", uri), newPeer("b")} }, func(t *testing.T, u *user, peers []*peer) {
				u.ask("tools/list", "")
				want := u.ask("resources/read", `{"uri":"ui://app/y.html"}`)
				got := u.ask("resources/read", `{"uri":"`+uri+`"}`)
				want.Error.Data.URI = uri
				if want.code() != jsonrpc.CodeInvalidParams || got.status != want.status || got.Error == nil || *got.Error != *want.Error {
					t.Errorf("got %s, want %s", got.body, want.body)
				}
				if n := peers[0].count("resources/read"); n != 0 {
					t.Errorf("the server has heard %d", n)
				}
			})
		})
	}
	t.Run("of another server", func(t *testing.T) {
		both(t, everybody("deny resource:a::ui://app/"), func() []*peer { return []*peer{showing("a", uri), showing("b", uri)} }, func(t *testing.T, u *user, _ []*peer) {
			u.reaches(uri, "b")
		})
	})
	t.Run("limits", func(t *testing.T) {
		p := modernPeer("a")
		u := newGateway(t, oneRequest, p, modernPeer("b")).modern(t)
		u.asked("resources/read", `{"uri":"`+uri+`"}`)
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("asked %d times for a list, want 1: the second request is over the limit", n)
		}
	})
}

func TestResultsNameUIResourcesOfTheirServer(t *testing.T) {
	const uri = "ui://app/x.html"
	both(t, nil, func() []*peer {
		b := showing("b", uri).does("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"content":[{"type":"resource","resource":{"uri":"ui://embedded","text":"t"}}],"structuredContent":{"uri":"`+uri+`","_meta":{"ui":{"resourceUri":"`+uri+`"}}},`+
				`"_meta":{"ui":{"resourceUri":"`+uri+`"},"openai/outputTemplate":"ui://other"}}`)
		})
		return []*peer{newPeer("a"), b}
	}, func(t *testing.T, u *user, peers []*peer) {
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
		u.reaches(ui, "b")
		u.reaches(other, "b")
		u.reaches(embedded, "b")
		peers[0].does("tools/list", showing("a", uri).on["tools/list"])
		u.ask("tools/list", "")
		if ui, _, _ = called(); ui == uri {
			t.Errorf("got %s, which two servers have", ui)
		}
		u.reaches(ui, "b")
	})
}

// What is asked for by the server's own URI comes as it is, however it is spelled.
func TestAnswersByTheServersURIStayAsTheyAre(t *testing.T) {
	const result = `{ "contents":[{"uri":"ui:\/\/app\/x.html","text":"\u0041"}]}`
	p := legacyPeer("a").has("tools/list", "tools", `{"name":"show","_meta":{"ui/resourceUri":"ui://app/x.html"}}`)
	p.does("resources/read", func(w http.ResponseWriter, a *incoming) { a.reply(w, result) })
	u := newGateway(t, nil, p, legacyPeer("b")).legacy(t)
	if s := u.ask("resources/read", `{"uri":"ui://app/x.html"}`); string(s.Result) != result {
		t.Errorf("got %s, want %s", s.Result, result)
	}
	if body := p.await(t, "resources/read", 1).body; !strings.Contains(body, `"params":{"uri":"ui://app/x.html"}`) {
		t.Errorf("the server got %s", body)
	}
}

// The answer has the URI that the client asked by, however large it is.
func TestLargeUIResourcesKeepTheirURI(t *testing.T) {
	const uri = "ui://app/x.html"
	large := strings.Repeat("<p>é</p>", 400_000)
	both(t, nil, func() []*peer {
		return []*peer{newPeer("b"), showing("a", uri).does("resources/read", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"contents":[{"uri":"`+uri+`","text":"`+large+`"}]}`)
		})}
	}, func(t *testing.T, u *user, _ []*peer) {
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
		p := legacyPeer("a").has("resources/list", "resources", `{"uri":"`+uri+`","name":"x"}`)
		say := p.listens()
		u := newGateway(t, nil, p, legacyPeer("b")).legacy(t)
		stream := u.listen()
		p.await(t, "GET", 1)
		if s := u.ask("resources/subscribe", `{"uri":"`+uri+`"}`); s.code() != 0 {
			t.Fatalf("got %s", s.body)
		}
		say(updated)
		if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"`+uri+`"`) {
			t.Errorf("got %s", e.data)
		}
		p.has("resources/list", "resources") // it is gone, but the client knows of it
		say(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
		stream.nextOf("notifications/resources/list_changed")
		if s := u.ask("resources/unsubscribe", `{"uri":"`+uri+`"}`); s.code() != 0 || p.count("resources/unsubscribe") != 1 {
			t.Errorf("got %s", s.body)
		}
	})
	t.Run("modern", func(t *testing.T) {
		p := legacyPeer("a").has("resources/list", "resources", `{"uri":"`+uri+`","name":"x"}`)
		say := p.listens()
		u := newGateway(t, nil, p, legacyPeer("b")).modern(t)
		stream := u.begin(mcp.MethodListen, `{"notifications":{"resourceSubscriptions":["`+uri+`","x://unknown","x://unknown2"]}}`)
		if e := stream.nextOf("notifications/subscriptions/acknowledged"); !strings.Contains(e.data, `"resourceSubscriptions":["`+uri+`"]`) {
			t.Errorf("got %s", e.data)
		}
		if n := p.count("resources/list"); n != 1 || p.count("tools/list") != 0 {
			t.Errorf("asked %d times for a list, want 1", n)
		}
		say(updated)
		if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"`+uri+`"`) {
			t.Errorf("got %s", e.data)
		}
	})
}

func TestTemplatesAreCompletedByTheirOwnURIs(t *testing.T) {
	var heard atomic.Int32
	both(t, nil, func() []*peer {
		b := newPeer("b").has("resources/templates/list", "resourceTemplates", `{"uriTemplate":"x://{a}","name":"t"}`)
		return []*peer{newPeer("a"), b.does("completion/complete", func(w http.ResponseWriter, a *incoming) {
			heard.Add(1)
			a.reply(w, `{"completion":{"values":["v"]}}`)
		})}
	}, func(t *testing.T, u *user, _ []*peer) {
		before := heard.Load()
		s := u.ask("completion/complete", `{"ref":{"type":"ref/resource","uri":"x://{a}"},"argument":{"name":"a","value":"v"}}`)
		if s.code() != 0 || heard.Load() != before+1 {
			t.Errorf("got %s", s.body)
		}
	})
}

// Servers can have templates that take long to match, and a client can name many URIs at once.
func TestTemplatesAreNotMatchedForEver(t *testing.T) {
	list := &catalog.List{Names: []string{mcp.TemplateURI("a", "x://{y}")}}
	s := new(search)
	for range 10 {
		if !s.matches(list, "x://1") {
			t.Error("a URI does not match its template")
		}
	}
	if spent := s.steps; s.matches(list, "y://1") || s.steps != spent {
		t.Error("a template that begins otherwise has a cost")
	}
	if s.steps = maxSteps; s.matches(list, "x://1") || !s.matches(list, "x://{y}") {
		t.Error("a template is matched beyond the limit, or not found by itself")
	}
}
