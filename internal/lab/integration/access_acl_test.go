package integration

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Tokens of the clients eve and zoe. The rules apply to eve.
const (
	eveToken = "eve-AbCdEf0123456789"
	zoeToken = "zoe-AbCdEf0123456789"
)

// rulesForEve returns the lines of a gateway with both clients, and rules for eve.
func rulesForEve(rules ...string) []string {
	return []string{"separator __", block("client eve", append([]string{"token " + eveToken}, rules...)...),
		block("client zoe", "token "+zoeToken)}
}

// listKinds are the list methods of servers, the result member with the items, and the member that
// identifies an item.
var listKinds = []struct{ method, kind, member string }{
	{"tools/list", "tools", "name"},
	{"prompts/list", "prompts", "name"},
	{"resources/list", "resources", "uri"},
	{"resources/templates/list", "resourceTemplates", "uriTemplate"},
}

// listedIn returns one member of each item in the result of a list.
func listedIn(t *testing.T, message, kind, member string) (values []string) {
	t.Helper()
	var m struct{ Result map[string]json.RawMessage }
	var items []map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal([]byte(message), &m), json.Unmarshal(m.Result[kind], &items)); err != nil {
		t.Fatalf("%v: %.300s", err, message)
	}
	for _, item := range items {
		var value string
		if err := json.Unmarshal(item[member], &value); err != nil {
			t.Fatalf("%v: %.300s", err, message)
		}
		values = append(values, value)
	}
	return values
}

// originalURIs converts proxy URIs to the URIs of the server.
func originalURIs(t *testing.T, uris []string) (all []string) {
	t.Helper()
	for _, uri := range uris {
		text, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(uri, "proxy://resource/"))
		var place struct{ URI string }
		if err := errors.Join(err, json.Unmarshal(text, &place)); err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		all = append(all, place.URI)
	}
	return all
}

// expectDenied fails the test unless the reply is a denial.
func expectDenied(t *testing.T, what string, got reply) {
	t.Helper()
	if got.status != 403 || got.answer.Error == nil || got.answer.Error.Message != "Access denied" ||
		!strings.Contains(string(got.answer.Error.Data), `"code":"acl_denied"`) {
		t.Errorf("%s: %d %.300s\nwant 403 acl_denied", what, got.status, got.answer.Raw)
	}
}

// expectAllowed fails the test unless the reply has a result.
func expectAllowed(t *testing.T, what string, got reply) {
	t.Helper()
	if got.status != 200 || got.answer.Result == nil {
		t.Errorf("%s: %d %.300s", what, got.status, got.answer.Raw)
	}
}

// legacyOnly are the methods that the modern era lacks.
var legacyOnly = []string{"resources/subscribe", "resources/unsubscribe"}

func TestAccessToServers(t *testing.T) {
	isolate(t)
	alpha, beta := newJournal(t), newJournal(t)
	url := serve(t, gateway(append(rulesForEve("deny beta::*"), block(child("alpha", "--modern"), alpha.env()),
		block(child("beta", "--modern"), beta.env(), "alias b"))...))
	untouched := func(t *testing.T) {
		t.Helper()
		if text, err := os.ReadFile(string(beta)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("A53 beta was contacted: %v %s", err, text)
		}
	}
	betaURI := proxiedURI("beta", "file://beta/data.txt")
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
		for _, list := range listKinds {
			t.Run("A53 "+list.method+" of a "+era.name, func(t *testing.T) {
				items := listedIn(t, c.ask(t, list.method, `{}`).answer.Raw, list.kind, list.member)
				if list.method == "resources/list" {
					items = originalURIs(t, items)
				}
				if len(items) == 0 {
					t.Error("nothing is listed")
				}
				for _, item := range items {
					if !strings.Contains(item, "alpha") {
						t.Errorf("%s is listed", item)
					}
				}
			})
		}
		for _, tt := range []struct{ method, params string }{
			{"tools/call", `{"name":"beta__echo","arguments":{}}`},
			{"tools/call", `{"name":"beta::echo","arguments":{}}`},
			{"tools/call", `{"name":"b__echo","arguments":{}}`},
			{"prompts/get", `{"name":"beta__p"}`},
			{"resources/read", `{"uri":` + quote(betaURI) + `}`},
			{"resources/read", `{"uri":` + quote(proxiedURI("b", "file://beta/data.txt")) + `}`},
			{"resources/subscribe", `{"uri":` + quote(betaURI) + `}`},
			{"resources/unsubscribe", `{"uri":` + quote(betaURI) + `}`},
			{"completion/complete", `{"ref":{"type":"ref/prompt","name":"beta__p"},"argument":{"name":"who","value":"x"}}`},
			{"completion/complete", `{"ref":{"type":"ref/resource","uri":` + quote(betaURI) +
				`},"argument":{"name":"who","value":"x"}}`},
		} {
			if era.modern && slices.Contains(legacyOnly, tt.method) {
				continue
			}
			t.Run("A53 "+tt.method+" of a "+era.name+" "+tt.params, func(t *testing.T) {
				expectDenied(t, tt.method, c.ask(t, tt.method, tt.params))
			})
		}
		t.Run("A53 the other server works for a "+era.name, func(t *testing.T) {
			if got := c.use(t, "alpha", "slow", `{"ms":0}`); got != "slept" {
				t.Errorf("got %q, want %q", got, "slept")
			}
			expectAllowed(t, "a prompt", c.ask(t, "prompts/get", `{"name":"alpha__p"}`))
			expectAllowed(t, "a resource",
				c.ask(t, "resources/read", `{"uri":`+quote(proxiedURI("alpha", "file://alpha/data.txt"))+`}`))
		})
		c.post(t, `{"jsonrpc":"2.0","method":"notifications/foo"}`)
		c.post(t, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		if !era.modern {
			expectAllowed(t, "a level", c.ask(t, "logging/setLevel", `{"level":"debug"}`))
		}
		stream := c.listenForChanges(t)
		c.use(t, "alpha", "add-tool", `{"name":"more-of-a-`+strings.Fields(era.name)[0]+`"}`)
		stream.awaitMessage(t, listChanged)
		untouched(t)
	}
	for _, server := range []string{"beta", "b", "%62eta"} {
		for _, endpoint := range endpointsOf(url, server)[1:] {
			for _, m := range everyMessage {
				if m.body == "{" || strings.HasPrefix(m.body, "[") || endpoint.name == "/rpc" && m.method != "POST" {
					continue // the message is invalid with any credentials
				}
				t.Run("A53 "+m.name+" at "+endpoint.name+" of "+server, func(t *testing.T) {
					expectRefused(t, sendAllHeaders(t, client, m.method, endpoint.url, m.body, bearer(eveToken)), 403)
				})
			}
		}
	}
	untouched(t)
	t.Run("A57 another client sees the server", func(t *testing.T) {
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(zoeToken))
			if got := toolNames(t, c); !slices.Contains(got, "beta__echo") || !slices.Contains(got, "alpha__echo") {
				t.Errorf("listed %v", got)
			}
			if got := c.use(t, "beta", "slow", `{"ms":0}`); got != "slept" {
				t.Errorf("got %q, want %q", got, "slept")
			}
		}
		if len(beta.entries(t, "tools/call")) == 0 {
			t.Error("the journal of beta is empty, so the tests above prove nothing")
		}
	})
}

func TestAccessToTools(t *testing.T) {
	isolate(t)
	servers := map[string]*remoteServer{"plain": newLenientServer(t, "echo", "slow", "slower"),
		"streams": newLenientServer(t, "echo", "slow", "slower")}
	servers["streams"].Events = true
	journal := newJournal(t)
	url := serve(t, gateway(append(rulesForEve("deny plain::slow streams::slow kid::slow kid::t1*",
		"deny prompt:plain::insult prompt:streams::insult prompt:kid::p"),
		servers["plain"].line("plain"), servers["streams"].line("streams"),
		block(child("kid", "--page", "3", "--tools", "11", "--modern"), journal.env()))...))

	for server, w := range servers {
		for _, endpoint := range endpointsOf(url, server)[1:] {
			t.Run("A54 lists at "+endpoint.name+" of "+server, func(t *testing.T) {
				for _, tt := range []struct {
					method, kind string
					want         []string
				}{{"tools/list", "tools", []string{"echo", "slower"}}, {"prompts/list", "prompts", []string{"greet"}}} {
					got := post(t, endpoint.url, rpc(tt.method, `{}`), acceptBoth, bearer(eveToken))
					if names := listedIn(t, answerIn(got.body), tt.kind, "name"); !slices.Equal(names, tt.want) {
						t.Errorf("listed %v", names)
					}
					if strings.Contains(got.body, `"slow"`) || strings.Contains(got.body, "insult") {
						t.Errorf("response %s", got.body)
					}
					got = post(t, endpoint.url, rpc(tt.method, `{}`), acceptBoth, bearer(zoeToken))
					if names := listedIn(t, answerIn(got.body), tt.kind, "name"); len(names) != len(tt.want)+1 {
						t.Errorf("A57 another client sees %v", names)
					}
				}
			})
			t.Run("A54 calls at "+endpoint.name+" of "+server, func(t *testing.T) {
				before := w.Count()
				for _, m := range []struct{ method, params string }{
					{"tools/call", `{"name":"slow","arguments":{}}`},
					{"tools/call", `{"arguments":{"name":"echo"},"n\u0061me":"sl\u006fw"}`},
					{"prompts/get", `{"name":"insult"}`},
					{"completion/complete", `{"ref":{"type":"ref/prompt","name":"insult"},"argument":{"name":"x","value":"y"}}`},
				} {
					expectRefused(t, post(t, endpoint.url, rpc(m.method, m.params), acceptBoth, bearer(eveToken)), 403)
				}
				if got := gatewayErrorOf(t, post(t, endpoint.url, rpc("tools/call", `{"name":"echo","name":"slow"}`), acceptBoth,
					bearer(eveToken))); got.Status != 400 {
					t.Errorf("two names: %+v", got)
				}
				if w.Count() != before {
					t.Error("the server was contacted")
				}
				for _, m := range []struct{ method, params string }{
					{"tools/call", `{"name":"echo","arguments":{"name":"slow"}}`},
					{"tools/call", `{"name":"slower","arguments":{}}`},
					{"prompts/get", `{"name":"greet"}`},
					{"prompts/get", `{"name":"slow"}`}, // not a tool
					{"completion/complete", `{"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"x","value":"y"}}`},
				} {
					if got := post(t, endpoint.url, rpc(m.method, m.params), acceptBoth, bearer(eveToken)); got.StatusCode != 200 {
						t.Errorf("%s: got %d %s, want 200", m.params, got.StatusCode, got.body)
					}
				}
				if got := post(t, endpoint.url, rpc("tools/call", `{"name":"slow","arguments":{}}`), acceptBoth,
					bearer(zoeToken)); got.StatusCode != 200 {
					t.Errorf("A57 another client: got %d %s, want 200", got.StatusCode, got.body)
				}
			})
		}
	}
	t.Run("A54 pages at /mcp/{server}", func(t *testing.T) {
		var all []string
		cursor, session := "", ""
		got := post(t, mcpAt(url, "kid"), rpc("initialize", `{`+initParams+`}`), acceptBoth, bearer(eveToken))
		session = "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
		for range 100 {
			got := answerIn(post(t, mcpAt(url, "kid"), rpc("tools/list", `{`+cursor+`}`), session, acceptBoth,
				bearer(eveToken)).body)
			all = append(all, listedIn(t, got, "tools", "name")...)
			var m struct{ Result struct{ NextCursor string } }
			_ = json.Unmarshal([]byte(got), &m)
			if m.Result.NextCursor == "" {
				break
			}
			cursor = `"cursor":` + quote(m.Result.NextCursor)
		}
		if slices.Contains(all, "slow") || slices.ContainsFunc(all,
			func(name string) bool { return strings.HasPrefix(name, "t1") }) ||
			!slices.Contains(all, "echo") || !slices.Contains(all, "t2") || !slices.Contains(all, "t9") {
			t.Errorf("listed %v", all)
		}
	})
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
		t.Run("A54 lists at /mcp of a "+era.name, func(t *testing.T) {
			tools := toolNames(t, c)
			for _, name := range []string{"plain__slow", "streams__slow", "kid__slow", "kid__t1", "kid__t10", "kid__t11"} {
				if slices.Contains(tools, name) {
					t.Errorf("%s is listed", name)
				}
			}
			for _, name := range []string{"plain__echo", "plain__slower", "streams__slower", "kid__echo", "kid__t2"} {
				if !slices.Contains(tools, name) {
					t.Errorf("%s is missing", name)
				}
			}
			prompts := listedIn(t, c.ask(t, "prompts/list", `{}`).answer.Raw, "prompts", "name")
			if slices.Sort(prompts); !slices.Equal(prompts, []string{"plain__greet", "streams__greet"}) {
				t.Errorf("listed %v", prompts)
			}
		})
		t.Run("A54 calls at /mcp of a "+era.name, func(t *testing.T) {
			before := servers["plain"].params("tools/call")
			calls := len(journal.entries(t, "tools/call"))
			for _, name := range []string{"plain__slow", "plain::slow", "streams__slow", "kid__slow", "kid__t1", "kid__t11"} {
				expectDenied(t, name, c.ask(t, "tools/call", `{"name":`+quote(name)+`,"arguments":{}}`))
			}
			expectDenied(t, "a prompt", c.ask(t, "prompts/get", `{"name":"kid__p"}`))
			expectDenied(t, "a prompt", c.ask(t, "prompts/get", `{"name":"plain__insult"}`))
			if got := servers["plain"].params("tools/call"); len(got) != len(before) ||
				len(journal.entries(t, "tools/call")) != calls {
				t.Errorf("the server was contacted: %v", got)
			}
			for _, name := range []string{"plain__echo", "plain__slower", "streams__echo", "kid__t2"} {
				expectAllowed(t, name, c.ask(t, "tools/call", `{"name":`+quote(name)+`,"arguments":{}}`))
			}
			expectAllowed(t, "a prompt", c.ask(t, "prompts/get", `{"name":"plain__greet"}`))
		})
	}
	t.Run("A54 the body decides, not the header", func(t *testing.T) {
		before := len(servers["plain"].params("tools/call"))
		c := &testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: streamClient}}
		for endpoint, prefix := range map[string]string{joinedAt(url): "plain__", mcpAt(url, "plain"): "",
			rpcAt(url, "plain"): ""} {
			body, headers := c.Message("1", "tools/call", `{"name":"`+prefix+`slow","arguments":{}}`)
			got := post(t, endpoint, body, append(headers, "Mcp-Name: "+prefix+"echo", bearer(eveToken))...)
			if got.StatusCode != 400 && got.StatusCode != 403 {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
		}
		if got := servers["plain"].params("tools/call"); len(got) != before {
			t.Errorf("the server was contacted: %v", got)
		}
	})
}

// Rules about resources apply to the meaning of a URI, however it is spelled (A55).
func TestAccessToResources(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	hidden := []string{"file:///secret/a.txt", "file:///public/../secret/d.txt", "file:///%73ecret/e.txt",
		"file:///secret//f.txt", "file:///secret/deep/g.txt"}
	shown := []string{"file:///secrets/b.txt", "file:///public/c.txt", "file:///public/secret/h.txt",
		"file:///secret.txt", "https://host.test/secret/x"}
	server.Resources = append(slices.Clone(shown), hidden...)
	server.Templates = []string{"file:///public/{name}", "file:///secret/{name}", "file:///secrets/{name}"}
	url := serve(t, gateway(append(rulesForEve("deny resource:file:///secret/ resource:file:///clé/ "+
		"resource:http://169.254.169.254/"), server.line("alpha"))...))

	spellings := append([]string{
		"file:///./secret/a.txt", "file:///public/%2e%2e/secret/a.txt", "file:///public/..%2fsecret/a.txt",
		"FILE:///secret/a.txt", "file:///secret/a.txt?x=1",
		"file:///secret/a.txt#here", "file://localhost/secret/a.txt", "file:/secret/a.txt", "file:///secret%2Fa.txt",
		"file:///%2573ecret/a.txt",
		"file:///secret/../secret/a.txt", "file:////secret/a.txt", "file:///x/y/../../secret/a.txt", "file:///secret/%61.txt",
		"file:///secret%C2%A0/a.txt", "file:///secret\u3000/a.txt", "file:///sec\u034fret/a.txt", "file:///SECRET~1/a.txt",
		"file:///cle%CC%81/a.txt", "file:///CLE\u0301/a.txt",
		"http://2852039166/latest", "http://0xa9.254.43518/latest", "http://0251.0376.0251.0376/latest",
		"http://[::ffff:a9fe:a9fe]/latest", "http://169.254.169.254./latest",
	}, hidden...)
	read := func(uri string) string { return `{"uri":` + quote(uri) + `}` }
	completes := func(uri string) string {
		return `{"ref":{"type":"ref/resource","uri":` + quote(uri) + `},"argument":{"name":"name","value":"x"}}`
	}
	for _, endpoint := range endpointsOf(url, "alpha")[1:] {
		t.Run("A55 lists at "+endpoint.name, func(t *testing.T) {
			got := listedIn(t, post(t, endpoint.url, rpc("resources/list", `{}`), bearer(eveToken)).body, "resources", "uri")
			if !slices.Equal(got, shown) {
				t.Errorf("listed %v", got)
			}
			got = listedIn(t, post(t, endpoint.url, rpc("resources/templates/list", `{}`), bearer(eveToken)).body,
				"resourceTemplates", "uriTemplate")
			if want := []string{"file:///public/{name}", "file:///secrets/{name}"}; !slices.Equal(got, want) {
				t.Errorf("A69 listed %v", got)
			}
			if got := listedIn(t, post(t, endpoint.url, rpc("resources/list", `{}`), bearer(zoeToken)).body, "resources",
				"uri"); !slices.Equal(got, server.Resources) {
				t.Errorf("A57 another client sees %v", got)
			}
		})
		t.Run("A55 hidden resources at "+endpoint.name, func(t *testing.T) {
			before := server.Count()
			for _, uri := range spellings {
				for _, m := range []struct{ method, params string }{
					{"resources/read", read(uri)}, {"resources/subscribe", read(uri)}, {"resources/unsubscribe", read(uri)},
					{"completion/complete", completes(uri)},
				} {
					expectRefused(t, post(t, endpoint.url, rpc(m.method, m.params), bearer(eveToken)), 403)
				}
			}
			expectRefused(t, post(t, endpoint.url, rpc("completion/complete", completes("file:///secret/{name}")),
				bearer(eveToken)), 403)
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
		t.Run("A55 visible resources at "+endpoint.name, func(t *testing.T) {
			for _, uri := range shown {
				for _, m := range []struct{ method, params string }{
					{"resources/read", read(uri)}, {"resources/subscribe", read(uri)}, {"resources/unsubscribe", read(uri)},
					{"completion/complete", completes(uri)},
				} {
					if got := post(t, endpoint.url, rpc(m.method, m.params), bearer(eveToken)); got.StatusCode != 200 {
						t.Errorf("%s %s: got %d %s, want 200", m.method, uri, got.StatusCode, got.body)
					}
				}
			}
			if got := post(t, endpoint.url, rpc("resources/read", read(hidden[0])), bearer(zoeToken)); got.StatusCode != 200 {
				t.Errorf("A57 another client: got %d %s, want 200", got.StatusCode, got.body)
			}
		})
	}
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
		t.Run("A55 lists at /mcp of a "+era.name, func(t *testing.T) {
			if got := originalURIs(t, listedIn(t, c.ask(t, "resources/list", `{}`).answer.Raw, "resources",
				"uri")); !slices.Equal(got, shown) {
				t.Errorf("listed %v", got)
			}
			if got := c.ask(t, "resources/templates/list", `{}`).answer.Raw; strings.Contains(got, "/secret/") ||
				!strings.Contains(got, "/public/") || !strings.Contains(got, "/secrets/") {
				t.Errorf("A69 listed %s", got)
			}
		})
		t.Run("A55 hidden resources at /mcp of a "+era.name, func(t *testing.T) {
			touched := func() int {
				return len(server.params("resources/read")) + len(server.params("resources/subscribe")) +
					len(server.params("completion/complete"))
			}
			before := touched()
			for _, uri := range spellings {
				other := func(encoding *base64.Encoding, text string) string {
					return "proxy://resource/" + encoding.EncodeToString([]byte(text))
				}
				place := `{"server":"alpha","uri":` + quote(uri) + `}`
				for _, spelled := range []string{proxiedURI("alpha", uri), other(base64.StdEncoding, place),
					other(base64.URLEncoding, place)} {
					expectDenied(t, uri, c.ask(t, "resources/read", read(spelled)))
				}
				expanded := "proxy://template/alpha/" + uri // from a template (A66)
				expectDenied(t, expanded, c.ask(t, "resources/read", read(expanded)))
				if !era.modern {
					expectDenied(t, uri, c.ask(t, "resources/subscribe", read(proxiedURI("alpha", uri))))
					expectDenied(t, expanded, c.ask(t, "resources/subscribe", read(expanded)))
				}
				expectDenied(t, uri, c.ask(t, "completion/complete", completes(proxiedURI("alpha", uri))))
				expectDenied(t, expanded, c.ask(t, "completion/complete", completes(expanded)))
				// The gateway may reject these, but must not grant them.
				for _, odd := range []string{uri, other(base64.RawURLEncoding, `{"uri":`+quote(uri)+`,"server":"alpha"}`),
					other(base64.RawURLEncoding, `{"server":"alpha","uri":"file:///public/c.txt","uri":`+quote(uri)+`}`)} {
					if got := c.ask(t, "resources/read", read(odd)); got.answer.Error == nil {
						t.Errorf("%s was read", odd)
					}
				}
			}
			expectDenied(t, "a template", c.ask(t, "completion/complete",
				completes("proxy://template/alpha/file:///secret/{name}")))
			if n := touched(); n != before {
				t.Errorf("the server was contacted %d times", n-before)
			}
		})
		t.Run("A55 visible resources at /mcp of a "+era.name, func(t *testing.T) {
			for _, uri := range shown {
				expectAllowed(t, uri, c.ask(t, "resources/read", read(proxiedURI("alpha", uri))))
				expectAllowed(t, uri, c.ask(t, "resources/read", read("proxy://template/alpha/"+uri)))
				if !era.modern {
					expectAllowed(t, uri, c.ask(t, "resources/subscribe", read(proxiedURI("alpha", uri))))
				}
				expectAllowed(t, uri, c.ask(t, "completion/complete", completes(proxiedURI("alpha", uri))))
			}
		})
	}
}

// A69: completions, like lists, return no names below a denied URI.
func TestAccessToCompletions(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	server.Templates = []string{"file:///{path}", "file:///{dir}/{name}"}
	server.Completions = []string{"secret/passwords.txt", "secret/key.pem", "SECRET/x", "pub/../secret/y", "secret",
		"secrets/ok.txt", "50%"}
	url := serve(t, gateway(append(rulesForEve("deny resource:file:///secret/"), server.line("alpha"))...))
	completes := func(template, argument, known string) string {
		return `{"ref":{"type":"ref/resource","uri":` + quote(template) + `},"argument":{"name":` + quote(argument) +
			`,"value":"s"},"context":{"arguments":{` + known + `}}}`
	}
	type result struct {
		Completion struct {
			Values []string
			Total  int
		}
	}
	all := append([]string{"complete"}, server.Completions...)
	shown := []string{"complete", "secrets/ok.txt", "50%"}
	tests := []struct {
		name, template, argument, known string
		want                            []string
	}{
		{"a path", "file:///{path}", "path", "", shown},
		{"a reserved path", "file:///{+path}", "path", "", shown},
		{"a directory", "file:///{dir}/{name}", "dir", "", shown},
		{"a name in a denied directory", "file:///{dir}/{name}", "name", `"dir":"secret"`, nil},
		{"a name in another directory", "file:///{dir}/{name}", "name", `"dir":"pub"`,
			[]string{"complete", "secret/passwords.txt", "secret/key.pem", "SECRET/x", "secret", "secrets/ok.txt", "50%"}},
		{"a name in an unknown directory", "file:///{dir}/{name}", "name", "", nil},
		{"a name in a directory without rules", "file:///pub/{dir}/{name}", "name", "", all},
		// one is ambiguous
		{"another host", "https://h.example/{path}", "path", "", []string{"complete", "secret/passwords.txt",
			"secret/key.pem", "SECRET/x", "secret", "secrets/ok.txt", "50%"}},
	}
	check := func(t *testing.T, name, body string, want []string) {
		t.Helper()
		var got struct{ Result result }
		if err := json.Unmarshal([]byte(body), &got); err != nil || !slices.Equal(got.Result.Completion.Values, want) ||
			got.Result.Completion.Total != len(want) {
			t.Errorf("%s: %v, %s", name, err, body)
		}
	}
	for _, endpoint := range endpointsOf(url, "alpha")[1:] {
		t.Run("A69 at "+endpoint.name, func(t *testing.T) {
			for _, tt := range tests {
				check(t, tt.name, post(t, endpoint.url, rpc("completion/complete", completes(tt.template, tt.argument, tt.known)),
					bearer(eveToken)).body, tt.want)
				check(t, tt.name+", of another client",
					post(t, endpoint.url, rpc("completion/complete", completes(tt.template, tt.argument, tt.known)),
						bearer(zoeToken)).body, all)
			}
		})
	}
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
		t.Run("A69 at /mcp of a "+era.name, func(t *testing.T) {
			for _, tt := range tests {
				check(t, tt.name, c.ask(t, "completion/complete", completes("proxy://template/alpha/"+tt.template, tt.argument,
					tt.known)).answer.Raw, tt.want)
			}
		})
	}
}

// Clients get no notifications about hidden resources (A55, A68).
func TestAccessToChangesOfResources(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		t.Run("A55 A68 "+era.name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
			url := serve(t, gateway(append(rulesForEve("deny resource:far:///secret"), "server far http://"+upstream(t, remote)+
				"/mcp")...))
			t.Cleanup(remote.Close)
			eve := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
			hidden, shown := proxiedURI("far", "far:///secret"), proxiedURI("far", "far:///data")
			var stream *exchange
			if era.modern {
				stream = eve.begin(t, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+quote(hidden)+`,`+
					quote(shown)+`]}}`)
				first := stream.next(t)
				if first.Error != nil { // the gateway may refuse the whole subscription
					stream = eve.begin(t, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+quote(shown)+`]}}`)
					stream.awaitMessage(t, "notifications/subscriptions/acknowledged")
				} else if strings.Contains(first.Raw, hidden) {
					t.Errorf("agreed to %s", first.Raw)
				}
				await.Until(t, "the subscription", func() bool { return len(remote.Seen("subscriptions/listen")) > 0 })
			} else {
				stream = eve.listen(t)
				await.Until(t, "the stream", func() bool { return len(remote.Seen("stream")) > 0 })
				expectDenied(t, "resources/subscribe", eve.ask(t, "resources/subscribe", `{"uri":`+quote(hidden)+`}`))
				expectAllowed(t, "resources/subscribe", eve.ask(t, "resources/subscribe", `{"uri":`+quote(shown)+`}`))
			}
			for _, m := range append(remote.Seen("subscriptions/listen"), remote.Seen("resources/subscribe")...) {
				if strings.Contains(m.Body, "secret") {
					t.Errorf("the server received %s", m.Body)
				}
			}
			eve.use(t, "far", "touch", `{"uri":"far:///secret"}`)
			eve.use(t, "far", "touch", `{"uri":"far:///data"}`)
			if m := stream.awaitMessage(t, "notifications/resources/updated"); m.Params.URI != shown {
				t.Errorf("got %s", m.Raw)
			}
		})
	}
}

// Hidden tools cannot be found by search.
func TestAccessByDiscovery(t *testing.T) {
	isolate(t)
	server, other := newLenientServer(t, "dispatch_parcel", "track_parcel"), newLenientServer(t, "destroy_parcel")
	url := serve(t, gateway(append(rulesForEve("deny postal::track_parcel mill::*"), "discovery on",
		server.line("postal"), other.line("mill"))...))
	for _, era := range clientEras {
		eve := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
		zoe := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(zoeToken))
		t.Run("A54 search_tools of a "+era.name, func(t *testing.T) {
			if got := searchTools(t, eve, "parcel"); !slices.Equal(got, []string{"postal__dispatch_parcel"}) {
				t.Errorf("found %v", got)
			}
			if got := searchTools(t, zoe, "parcel"); len(got) != 3 {
				t.Errorf("A57 another client found %v", got)
			}
			if got := searchTools(t, eve, "parcel"); !slices.Equal(got, []string{"postal__dispatch_parcel"}) {
				t.Errorf("A57 after another client, found %v", got)
			}
		})
		t.Run("A54 describe_tool of a "+era.name, func(t *testing.T) {
			describe := func(c *testClient, name string) string {
				return c.ask(t, "tools/call", `{"name":"describe_tool","arguments":{"name":`+quote(name)+`}}`).answer.Raw
			}
			for _, name := range []string{"postal__track_parcel", "mill__destroy_parcel"} {
				if got := describe(eve, name); strings.Contains(got, "inputSchema") {
					t.Errorf("described %s", got)
				}
				if got := describe(zoe, name); !strings.Contains(got, "inputSchema") {
					t.Errorf("A57 another client: %s", got)
				}
			}
			if got := describe(eve, "postal__dispatch_parcel"); !strings.Contains(got, "inputSchema") {
				t.Errorf("got %s, want %s in it", got, "inputSchema")
			}
		})
		t.Run("A54 call_tool of a "+era.name, func(t *testing.T) {
			before := len(server.params("tools/call")) + len(other.params("tools/call"))
			for _, name := range []string{"postal__track_parcel", "mill__destroy_parcel", "postal::track_parcel"} {
				expectDenied(t, name, eve.ask(t, "tools/call", callToolParams(name, `{}`)))
				expectDenied(t, name, eve.ask(t, "tools/call", `{"name":`+quote(name)+`,"arguments":{}}`))
			}
			if n := len(server.params("tools/call")) + len(other.params("tools/call")); n != before {
				t.Errorf("a server was contacted %d times", n-before)
			}
			expectAllowed(t, "the other tool", eve.ask(t, "tools/call", callToolParams("postal__dispatch_parcel", `{}`)))
			expectAllowed(t, "another client", zoe.ask(t, "tools/call", callToolParams("mill__destroy_parcel", `{}`)))
		})
	}
}

// The first matching rule decides, for lists and calls alike (A57).
func TestAccessRules(t *testing.T) {
	isolate(t)
	all := []string{"alpha__echo", "alpha__slow", "alpha__stop", "beta__echo", "beta__slow", "beta__stop"}
	tests := []struct {
		name  string
		rules []string
		want  string
	}{
		{"no rules", nil, "alpha__echo alpha__slow alpha__stop beta__echo beta__slow beta__stop"},
		{"deny before allow", []string{"deny alpha::slow", "allow alpha::*"}, "alpha__echo alpha__stop"},
		{"allow before deny", []string{"allow alpha::slow", "deny alpha::*"}, "alpha__slow"},
		{"a rule of several patterns", []string{"deny alpha::slow beta::stop"},
			"alpha__echo alpha__stop beta__echo beta__slow"},
		{"nothing", []string{"deny *"}, ""},
		{"deny by default", []string{"default deny"}, ""},
		{"allow by default", []string{"default allow"},
			"alpha__echo alpha__slow alpha__stop beta__echo beta__slow beta__stop"},
		{"without an allow rule other tools are allowed", []string{"deny beta::*"}, "alpha__echo alpha__slow alpha__stop"},
		{"with an allow rule other tools are denied", []string{"allow beta::echo"}, "beta__echo"},
		{"an allow rule and default allow", []string{"default allow", "allow alpha::echo", "deny alpha::*"},
			"alpha__echo beta__echo beta__slow beta__stop"},
		{"a deny rule and default deny", []string{"deny alpha::echo", "default deny"}, ""},
		{"part of a name", []string{"allow alpha::s*"}, "alpha__slow alpha__stop"},
		{"any server", []string{"allow *::echo"}, "alpha__echo beta__echo"},
		{"tools only", []string{"allow tool:beta::*"}, "beta__echo beta__slow beta__stop"},
		{"prompts only", []string{"deny prompt:alpha::*"},
			"alpha__echo alpha__slow alpha__stop beta__echo beta__slow beta__stop"},
		{"names are case-sensitive", []string{"deny alpha::ECHO"},
			"alpha__echo alpha__slow alpha__stop beta__echo beta__slow beta__stop"},
	}
	alpha, beta := newLenientServer(t, "echo", "slow", "stop"), newLenientServer(t, "echo", "slow", "stop")
	lines := []string{"separator __", alpha.line("alpha"), beta.line("beta")}
	token := func(i int) string { return fmt.Sprintf("number-%d-AbCdEf0123456789", i) }
	for i, tt := range tests {
		lines = append(lines, block(fmt.Sprintf("client number%d", i), append([]string{"token " + token(i)}, tt.rules...)...))
	}
	// Blocks that match any number of clients.
	lines = append(lines, "auth token team-AbCdEf0123456789 team-seven", "auth token lone-AbCdEf0123456789 lone",
		block("client team-*", "deny alpha::*"), block("client *", "deny beta::*"))
	url := serve(t, gateway(lines...))
	check := func(t *testing.T, token, want string) {
		t.Helper()
		allowed := strings.Fields(want)
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(token))
			if got := toolNames(t, c); !slices.Equal(got, allowed) {
				t.Errorf("%s: listed %v, want %v", era.name, got, allowed)
			}
			for _, name := range all {
				got := c.ask(t, "tools/call", `{"name":"`+name+`","arguments":{}}`)
				if slices.Contains(allowed, name) {
					expectAllowed(t, name, got)
				} else {
					expectDenied(t, name, got)
				}
			}
		}
		for _, name := range all {
			server, tool, _ := strings.Cut(name, "__")
			got := post(t, rpcAt(url, server), rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), bearer(token))
			if slices.Contains(allowed, name) != (got.StatusCode == 200) {
				t.Errorf("%s at /rpc: %d %s", name, got.StatusCode, got.body)
			}
		}
	}
	for i, tt := range tests {
		t.Run("A57 "+tt.name, func(t *testing.T) { check(t, token(i), tt.want) })
	}
	t.Run("A57 clients by a pattern", func(t *testing.T) {
		check(t, "team-AbCdEf0123456789", "beta__echo beta__slow beta__stop")
		check(t, "lone-AbCdEf0123456789", "alpha__echo alpha__slow alpha__stop")
	})
}

// Two clients see their own tools, even at the same time (A57).
func TestAccessAtTheSameTime(t *testing.T) {
	isolate(t)
	remote := newLenientServer(t, "echo", "slow")
	url := serve(t, gateway(append(rulesForEve("deny far::slow kid::echo"), remote.line("far"),
		child("kid", "--modern"))...))
	c := &testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: streamClient}}
	body, headers := c.Message("1", "tools/list", `{}`)
	var running sync.WaitGroup
	for _, token := range []string{eveToken, zoeToken} {
		for range 8 {
			req := func(endpoint, body string, headers ...string) func() string {
				return func() string {
					res, err := streamClient.Do(request(t, t.Context(), "POST", endpoint, body, append(headers, bearer(token))...))
					if err != nil {
						return err.Error()
					}
					defer res.Body.Close()
					text, _ := io.ReadAll(res.Body)
					return string(text)
				}
			}
			joined, direct := req(joinedAt(url), body, headers...), req(mcpAt(url, "far"), rpc("tools/list", `{}`), acceptBoth)
			running.Go(func() {
				for range 20 {
					got := joined()
					for name, hidden := range map[string]bool{"far__echo": false, "far__slow": true, "kid__echo": true,
						"kid__pid": false} {
						if want := !hidden || token == zoeToken; strings.Contains(got, quote(name)) != want {
							t.Errorf("%.3s: %s in %.300s: want %t", token, name, got, want)
						}
					}
					if got := direct(); strings.Contains(got, `"slow"`) != (token == zoeToken) || !strings.Contains(got, `"echo"`) {
						t.Errorf("%.3s: %s", token, got)
					}
				}
			})
		}
	}
	running.Wait()
}

// A reload changes what a client sees, and the client is notified (A57, A60).
func TestAccessAfterReloads(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			remote := newLenientServer(t, "echo", "slow")
			address := freeAddress(t)
			config := func(rules ...string) string {
				return site(address, gateway(append(rulesForEve(rules...), remote.line("far"), child("kid", "--modern"))...))
			}
			load(t, config("deny far::slow"))
			c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, connectionClose, bearer(eveToken))
			stream := c.listenForChanges(t)
			expectTools := func(t *testing.T, slow, kid bool) {
				t.Helper()
				tools := toolNames(t, c)
				if slices.Contains(tools, "far__slow") != slow || slices.Contains(tools, "kid__pid") != kid ||
					!slices.Contains(tools, "far__echo") {
					t.Errorf("listed %v", tools)
				}
				for name, allowed := range map[string]bool{"far__slow": slow, "kid__pid": kid, "far__echo": true} {
					got := c.ask(t, "tools/call", `{"name":"`+name+`","arguments":{}}`)
					if allowed {
						expectAllowed(t, name, got)
					} else {
						expectDenied(t, name, got)
					}
				}
			}
			expectTools(t, false, true)
			for _, step := range []struct {
				name      string
				rules     []string
				slow, kid bool
			}{
				{"A57 A60 a rule is removed", nil, true, true},
				{"A57 A60 a server is denied", []string{"deny kid::*"}, true, false},
				{"A57 A60 all tools but one are denied", []string{"allow far::echo"}, false, false},
				{"A57 A60 the first rules again", []string{"deny far::slow"}, false, true},
			} {
				t.Run(step.name, func(t *testing.T) {
					for len(stream.Messages) > 0 {
						stream.next(t)
					}
					load(t, config(step.rules...))
					stream.awaitMessage(t, listChanged)
					expectTools(t, step.slow, step.kid)
				})
			}
		})
	}
}

// denialLine is a log line about a denial.
type denialLine struct {
	Logger string
	Level  string
	Reason string
	Client string
	Server string `json:"mcp_server"`
	Method string `json:"mcp_method"`
}

// denialLines returns the lines about denials in a log.
func denialLines(t *testing.T, file string) (lines []denialLine) {
	t.Helper()
	for _, line := range linesOf(t, file) {
		var l denialLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Logger == "http.handlers.mcp_gateway.audit" {
			lines = append(lines, l)
		}
	}
	return lines
}

// Each denial writes one log line and counts once.
func TestAccessAudit(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "all.log")
	server := newLenientServer(t, "echo", "slow")
	server.Resources = []string{"file:///secret/a", "file:///public/b"}
	address := freeAddress(t)
	load(t, block("", block("log", "output file "+file, "format json"))+"\n"+
		site(address, gateway(append(rulesForEve("deny beta::* alpha::slow prompt:alpha::insult resource:file:///secret",
			"rate alpha::echo 1/1h"), server.line("alpha"), "server beta http://127.0.0.1:1")...)))
	url := "http://" + address
	legacy := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(eveToken))
	modern := newTestClient(t, joinedAt(url), true, fullCapabilities, bearer(eveToken))
	const secret = "in-the-arguments"
	askAs := func(c *testClient, method, params string) func() { return func() { c.ask(t, method, params) } }
	sendTo := func(method, endpoint, body string, headers ...string) func() {
		return func() { sendAllHeaders(t, client, method, endpoint, body, headers...) }
	}
	call := func(name string) string { return `{"name":"` + name + `","arguments":{"x":"` + secret + `"}}` }
	eve := bearer(eveToken)
	tests := []struct {
		name   string
		do     func()
		reason string // empty if no line is expected
		client string
	}{
		{"A54 a tool at /mcp", askAs(legacy, "tools/call", call("alpha__slow")), "acl_denied", "eve"},
		{"A54 a tool at /mcp in the modern era", askAs(modern, "tools/call", call("alpha__slow")), "acl_denied", "eve"},
		{"A53 a server at /mcp", askAs(legacy, "tools/call", call("beta__x")), "acl_denied", "eve"},
		{"A54 a prompt", askAs(legacy, "prompts/get", `{"name":"alpha__insult"}`), "acl_denied", "eve"},
		{"A55 a resource", askAs(modern, "resources/read", `{"uri":`+quote(proxiedURI("alpha", "file:///secret/a"))+`}`),
			"acl_denied", "eve"},
		{"A69 a template", askAs(legacy, "completion/complete", `{"ref":{"type":"ref/resource","uri":`+
			quote(proxiedURI("alpha", "file:///secret/{x}"))+`},"argument":{"name":"x","value":"y"}}`), "acl_denied", "eve"},
		{"A54 a tool at /mcp/{server}", sendTo("POST", mcpAt(url, "alpha"), rpc("tools/call", call("slow")), eve),
			"acl_denied", "eve"},
		{"A54 a tool at /rpc", sendTo("POST", rpcAt(url, "alpha"), rpc("tools/call", call("slow")), eve), "acl_denied",
			"eve"},
		{"A53 a server at /mcp/{server}", sendTo("POST", mcpAt(url, "beta"), rpc("tools/list", `{}`), eve), "acl_denied",
			"eve"},
		{"A53 a stream of a server", sendTo("GET", mcpAt(url, "beta"), "", eve), "acl_denied", "eve"},
		{"A53 a server at /rpc", sendTo("POST", rpcAt(url, "beta"), rpc("tools/list", `{}`), eve), "acl_denied", "eve"},
		{"A30 no credentials at /mcp", sendTo("POST", joinedAt(url), rpc("tools/list", `{}`)), "unauthorized", "anonymous"},
		{"A30 wrong credentials at /mcp/{server}", sendTo("POST", mcpAt(url, "alpha"), rpc("tools/list", `{}`),
			bearer("wrong")), "unauthorized", "anonymous"},
		{"A30 no credentials at /rpc", sendTo("POST", rpcAt(url, "alpha"), rpc("tools/list", `{}`)), "unauthorized",
			"anonymous"},
		{"A64 a tool within its limit", sendTo("POST", rpcAt(url, "alpha"), rpc("tools/call", call("echo")), eve), "", ""},
		{"A64 a tool beyond its limit", sendTo("POST", rpcAt(url, "alpha"), rpc("tools/call", call("echo")), eve),
			"rate_limited", "eve"},
		{"A64 a tool beyond its limit at /mcp", askAs(legacy, "tools/call", call("alpha__echo")), "rate_limited", "eve"},
		{"a list with hidden tools", askAs(legacy, "tools/list", `{}`), "", ""},
		{"a list at /rpc with hidden tools", sendTo("POST", rpcAt(url, "alpha"), rpc("tools/list", `{}`), eve), "", ""},
		{"an allowed prompt", askAs(legacy, "prompts/get", `{"name":"alpha__greet"}`), "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, grown := len(denialLines(t, file)), growth(t)
			tt.do()
			lines := denialLines(t, file)[before:]
			counted := map[string]float64{}
			for sample, n := range grown() {
				if strings.HasPrefix(sample, "denied_total") {
					counted[sample] = n
				}
			}
			if tt.reason == "" {
				if len(lines) > 0 || len(counted) > 0 {
					t.Errorf("logged %+v, counted %v", lines, counted)
				}
				return
			}
			if len(lines) != 1 || lines[0].Reason != tt.reason || lines[0].Client != tt.client {
				t.Errorf("logged %+v, want one line: %s of %s", lines, tt.reason, tt.client)
			}
			if want := `denied_total{client="` + tt.client + `",reason="` + tt.reason + `"}`; len(counted) != 1 ||
				counted[want] != 1 {
				t.Errorf("counted %v, want one %s", counted, want)
			}
		})
	}
	t.Run("the log contains no arguments", func(t *testing.T) {
		if log := strings.Join(linesOf(t, file), "\n"); strings.Contains(log, secret) || strings.Contains(log, eveToken) {
			t.Error("the log contains arguments")
		}
	})
}

// newOddServer starts a server that answers all requests but the handshake with answers.
func newOddServer(t *testing.T, answers func(w http.ResponseWriter, r *mcptest.Received)) *remoteServer {
	t.Helper()
	return serveScript(t, &mcptest.Script{Legacy: true, Capabilities: `{"tools":{}}`, Handle: func(w http.ResponseWriter,
		r *mcptest.Received) bool {
		if r.Method == "initialize" || r.HTTP.Method == "POST" && r.ID == nil {
			return false
		}
		answers(w, r)
		return true
	}})
}

// Denied tools are in no list, however the server spells it (A54).
func TestAccessToOddLists(t *testing.T) {
	isolate(t)
	gzipped := func(text string) string {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		_, _ = io.WriteString(zw, text)
		_ = zw.Close()
		return b.String()
	}
	const id = "ID" // replaced by the id of the request
	list := func(tools string) string { return `{"jsonrpc":"2.0","id":ID,"result":{"tools":[` + tools + `]}}` }
	const echo, slow = `{"name":"echo","inputSchema":{}}`, `{"name":"slow","description":"marks it","inputSchema":{}}`
	asJSON := "application/json"
	tests := []struct {
		name, contentType, body string
		headers                 []string
	}{
		{"escaped", asJSON, list(echo + `,{"n\u0061me":"sl\u006fw","description":"marks it"}`), nil},
		{"with white space", asJSON, " \n" + list(echo+" , \n "+strings.ReplaceAll(slow, ":", " : ")), nil},
		{"with the name last", asJSON, list(`{"description":"marks it","name":"slow"},` + echo), nil},
		{"with two names", asJSON, list(echo + `,{"name":"echo","description":"marks it","name":"slow"}`), nil},
		{"with two names in reverse order", asJSON, list(echo + `,{"name":"slow","description":"marks it","name":"echo"}`),
			nil},
		{"with two lists", asJSON, `{"jsonrpc":"2.0","id":ID,"result":{"tools":[` + echo + `],"tools":[` + slow + `]}}`, nil},
		{"with two results", asJSON, `{"jsonrpc":"2.0","id":ID,"result":{"tools":[` + slow + `]},"result":{"tools":[` +
			echo + `]}}`, nil},
		{"with escaped member names", asJSON, `{"jsonrpc":"2.0","id":ID,"r\u0065sult":{"t\u006fols":[` + slow + `]}}`, nil},
		{"with the result first", asJSON, `{"result":{"tools":[` + echo + "," + slow + `]},"jsonrpc":"2.0","id":ID}`, nil},
		{"in a batch", asJSON, `[` + list(echo+","+slow) + `]`, nil},
		{"as plain text", "text/plain", list(echo + "," + slow), nil},
		{"without a content type", "", list(echo + "," + slow), nil},
		{"compressed, though the gateway did not ask for it", asJSON, "GZIP" + list(echo+","+slow),
			[]string{"Content-Encoding: gzip"}},
		{"in an event", "text/event-stream", "data: " + list(echo+","+slow) + "\n\n", nil},
		{"in an event with another name", "text/event-stream; charset=utf-8", "event: other\ndata: " + list(echo+","+slow) +
			"\n\n", nil},
		{"in an event of several lines", "text/event-stream", "data: " + strings.ReplaceAll(list(echo+","+slow), ",",
			",\ndata: ") + "\n\n", nil},
		{"in an event with other line breaks", "text/event-stream", "id: 1\r\ndata:" + list(echo+","+slow) + "\r\n\r\n", nil},
		{"in an event with carriage returns", "text/event-stream", "data:" + list(echo+","+slow) + "\r\r", nil},
		{"in an event after a byte order mark", "text/event-stream", "\ufeffdata:" + list(echo+","+slow) + "\n\n", nil},
		{"in an event that is a batch", "text/event-stream", "data: [" + list(echo+","+slow) + "]\n\n", nil},
		{"in an unterminated event", "text/event-stream", "data: " + list(echo+","+slow), nil},
		{"after a Unicode line separator", "text/event-stream", "x\u2028data: " + list(slow) + "\u2028\u2028\ndata: " +
			list(echo) + "\n\n", nil},
		{"after a Unicode line separator in data", "text/event-stream",
			"data: " + list(`{"name":"echo","inputSchema":{},"title":"\u0085\u0085data: `+strings.ReplaceAll(list(slow), `"`,
				`'`)+`\u2029\u2029"}`) + "\n\n", nil},
		{"with an error status", "application/json", "STATUS" + list(echo+","+slow), nil},
	}
	for _, tt := range tests {
		t.Run("A54 a list "+tt.name, func(t *testing.T) {
			odd := newOddServer(t, func(w http.ResponseWriter, m *mcptest.Received) {
				if tt.contentType != "" {
					w.Header().Set("Content-Type", tt.contentType)
				} else {
					w.Header()["Content-Type"] = nil
				}
				for _, header := range tt.headers {
					name, value, _ := strings.Cut(header, ": ")
					w.Header().Set(name, value)
				}
				body := strings.ReplaceAll(tt.body, id, string(m.ID))
				if rest, ok := strings.CutPrefix(body, "GZIP"); ok {
					body = gzipped(rest)
				}
				if rest, ok := strings.CutPrefix(body, "STATUS"); ok {
					w.WriteHeader(http.StatusBadRequest)
					body = rest
				}
				_, _ = io.WriteString(w, body)
			})
			url := serve(t, gateway(append(rulesForEve("deny alpha::slow"), odd.line("alpha"))...))
			clean := func(what, got string) {
				t.Helper()
				if unzipped, err := gzip.NewReader(strings.NewReader(got)); err == nil {
					text, _ := io.ReadAll(unzipped)
					got = string(text)
				}
				for _, line := range strings.Split(splitLines.Replace(got), "\n") {
					// Clients ignore lines with an unknown field, and lists within a string.
					if strings.Contains(line, "marks it") && !strings.HasPrefix(line, "x") && !strings.Contains(line, "'marks it'") ||
						strings.HasPrefix(line, "data: {'") {
						t.Errorf("%s: %s", what, got)
					}
				}
			}
			for _, endpoint := range endpointsOf(url, "alpha")[1:] {
				for _, request := range []string{rpc("tools/list", `{}`), strings.Replace(rpc("tools/list", `{}`), "tools/list",
					`t\u006fols\/list`, 1)} {
					res := open(t, client, "POST", endpoint.url, request, acceptBoth, bearer(eveToken))
					text, _ := io.ReadAll(res.Body) // the body may break off
					clean(endpoint.name, string(text))
				}
			}
			for _, era := range clientEras {
				c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
				clean("/mcp of a "+era.name, c.ask(t, "tools/list", `{}`).answer.Raw)
			}
		})
	}
	t.Run("A54 a list that is replayed on a stream", func(t *testing.T) {
		odd := newOddServer(t, func(w http.ResponseWriter, m *mcptest.Received) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: 1\ndata: "+strings.ReplaceAll(list(echo+","+slow), id, "1")+"\n\n")
		})
		url := serve(t, gateway(append(rulesForEve("deny alpha::slow"), odd.line("alpha"))...))
		last := "" // id of the last event, as this stream numbers them
		for range 2 {
			got := send(t, client, "GET", mcpAt(url, "alpha"), "", "Last-Event-Id: "+last, "Accept: text/event-stream",
				bearer(eveToken))
			if strings.Contains(got.body, "marks it") || !strings.Contains(got.body, "echo") {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			_, last, _ = strings.Cut(got.body, "id: ")
			last, _, _ = strings.Cut(last, "\n")
		}
	})
	t.Run("A54 other responses pass unchanged", func(t *testing.T) {
		odd := newOddServer(t, func(w http.ResponseWriter, m *mcptest.Received) {
			http.Error(w, "Session not found", http.StatusNotFound)
		})
		url := serve(t, gateway(append(rulesForEve("deny alpha::slow"), odd.line("alpha"))...))
		got := post(t, mcpAt(url, "alpha"), rpc("tools/list", `{}`), acceptBoth, bearer(eveToken))
		if got.StatusCode != 404 || !strings.Contains(got.body, "Session not found") {
			t.Errorf("%d %s: the client does not learn that its session has ended", got.StatusCode, got.body)
		}
	})
}

// A client gets no notifications from a server that is denied to it (A53).
func TestAccessToNotifications(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		t.Run("A53 A57 "+era.name, func(t *testing.T) {
			remote := newRemoteServer(t, "tool")
			url := serve(t, gateway(append(rulesForEve("deny beta::* far::*"), child("alpha", "--modern"),
				child("beta", "--modern"), remote.line("far"))...))
			eve := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
			zoe := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(zoeToken))
			eves, zoes := eve.listenForChanges(t), zoe.listenForChanges(t)
			zoe.use(t, "beta", "add-tool", `{"name":"news"}`)
			zoes.awaitMessage(t, listChanged)
			if !era.modern {
				await.Until(t, "the stream of zoe", func() bool { return remote.Listeners() > 0 })
				remote.Say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
				zoes.awaitMessage(t, listChanged)
				if n := remote.Listeners(); n != 1 {
					t.Errorf("%d listeners on a server that is denied to eve", n)
				}
			}
			zoe.use(t, "alpha", "add-tool", `{"name":"news"}`)
			if m := eves.awaitMessage(t, listChanged); m.Params.Proxy.Server != "alpha" {
				t.Errorf("eve received %s", m.Raw)
			}
		})
	}
}

// Instructions and server info follow the rules of the client (A53) and are redacted (A56).
func TestAccessToHandshakes(t *testing.T) {
	isolate(t)
	alpha, beta := newLenientServer(t, "echo"), newLenientServer(t, "echo")
	for name, w := range map[string]*remoteServer{"alpha": alpha, "beta": beta} {
		capabilities := `"capabilities":{"tools":{},"experimental":{"of-` + name + `":{}}},"serverInfo":{"name":"` + name +
			`","version":"1"},"instructions":"instructions of ` + name + `: ` + aKey + `"`
		w.Replies = map[string]string{
			"initialize":      `"result":{"protocolVersion":"2025-11-25",` + capabilities + `}`,
			"server/discover": `"result":{"supportedVersions":["2026-07-28"],` + capabilities + `}`,
			"tools/list": `"result":{"tools":[{"name":"echo","description":"say ` + aKey +
				`","inputSchema":{"type":"object"}}]}`,
		}
	}
	url := serve(t, gateway(append(rulesForEve("deny beta::*", keyPattern), alpha.line("alpha"), beta.line("beta"))...))
	hello := func(t *testing.T, endpoint string, modern bool, token string) string {
		t.Helper()
		if modern {
			return newTestClient(t, endpoint, true, `{}`, bearer(token)).ask(t, "server/discover", `{}`).answer.Raw
		}
		return post(t, endpoint, rpc("initialize", `{`+initParams+`}`), acceptBoth, bearer(token)).body
	}
	for _, era := range clientEras {
		// so that the gateway knows the instructions of beta
		newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(zoeToken)).use(t, "beta", "echo", `{}`)
		t.Run("A53 A56 at /mcp of a "+era.name, func(t *testing.T) {
			if got := hello(t, joinedAt(url), era.modern, eveToken); strings.Contains(got, "beta") || strings.Contains(got,
				aKey) {
				t.Errorf("eve received %s", got)
			}
			c := newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(eveToken))
			if got := c.ask(t, "tools/list", `{}`).answer.Raw; strings.Contains(got, "beta") || strings.Contains(got, aKey) ||
				!strings.Contains(got, "say "+redacted) {
				t.Errorf("eve sees %s", got)
			}
			c = newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(zoeToken))
			if got := c.ask(t, "tools/list", `{}`).answer.Raw; !strings.Contains(got, "beta") || !strings.Contains(got, aKey) {
				t.Errorf("A57 zoe sees %s", got)
			}
		})
		t.Run("A56 at /mcp/{server} of a "+era.name, func(t *testing.T) {
			if got := hello(t, mcpAt(url, "alpha"), era.modern, eveToken); strings.Contains(got, aKey) || !strings.Contains(got,
				redacted) {
				t.Errorf("eve received %s", got)
			}
			if got := hello(t, mcpAt(url, "alpha"), era.modern, zoeToken); !strings.Contains(got, aKey) {
				t.Errorf("A57 zoe received %s", got)
			}
		})
	}
}

// Results that differ between clients are not cacheable for all of them (A56, A57).
func TestAccessAndCaches(t *testing.T) {
	isolate(t)
	// the server marks all its results as public
	url := serve(t, gateway(append(rulesForEve("deny kid::slow", keyPattern), child("kid", "--modern"))...))
	for name, token := range map[string]string{"a client with rules": eveToken, "a client without rules": zoeToken} {
		for _, endpoint := range []string{joinedAt(url), mcpAt(url, "kid")} {
			c := newTestClient(t, endpoint, true, fullCapabilities, bearer(token))
			uri := "file://kid/data.txt"
			if endpoint == joinedAt(url) {
				uri = proxiedURI("kid", uri)
			}
			for method, params := range map[string]string{
				"tools/list": `{}`, "prompts/list": `{}`, "resources/list": `{}`, "resources/templates/list": `{}`,
				"resources/read": `{"uri":` + quote(uri) + `}`,
			} {
				t.Run("A57 "+method+" at "+pathOf(t, endpoint)+" by "+name, func(t *testing.T) {
					var result struct{ CacheScope string }
					got := c.ask(t, method, params)
					if err := json.Unmarshal(got.answer.Result, &result); err != nil || result.CacheScope == "public" {
						t.Errorf("%v: %.200s", err, got.answer.Result)
					}
				})
			}
		}
	}
}

// Rules apply to anonymous clients, and to each name of a client.
func TestAccessOfOtherNames(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	call := rpc("tools/call", `{"name":"slow","arguments":{}}`)
	t.Run("A57 anonymous", func(t *testing.T) {
		url := serve(t, gateway(block("client anonymous", "deny alpha::slow"), server.line("alpha")))
		for _, endpoint := range endpointsOf(url, "alpha")[1:] {
			expectRefused(t, post(t, endpoint.url, call), 403)
		}
		c := newTestClient(t, joinedAt(url), false, fullCapabilities)
		if got := toolNames(t, c); !slices.Equal(got, []string{"alpha::echo"}) {
			t.Errorf("listed %v", got)
		}
	})
	t.Run("A57 A76 the subject of a JWT by match", func(t *testing.T) {
		issuer := newIssuer(t)
		url := serve(t, gateway(issuer.provider(), block("client team", "match robot another", "deny alpha::slow"),
			block(server.line("alpha"), serverPlaceholders...)))
		expectRefused(t, post(t, rpcAt(url, "alpha"), call, bearer(issuer.token("ec", issuer.claims(nil)))), 403)
		stranger := bearer(issuer.token("ec", issuer.claims(map[string]any{"sub": "stranger"})))
		if got := post(t, rpcAt(url, "alpha"), call, stranger); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
		}
	})
	t.Run("A57 A76 a placeholder in a subject is not expanded", func(t *testing.T) {
		setenv(t, "UPSTREAM_KEY", "upstream-key-0123456789")
		issuer := newIssuer(t)
		url := serve(t, gateway(issuer.provider(), block(server.line("alpha"), serverPlaceholders...)))
		got := post(t, rpcAt(url, "alpha"), call,
			bearer(issuer.token("ec", issuer.claims(map[string]any{"sub": "{env.UPSTREAM_KEY}"}))))
		if got.StatusCode != 200 && got.StatusCode != 401 {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
		for _, r := range server.Received() {
			if strings.Contains(fmt.Sprint(r), "upstream-key-0123456789") {
				t.Errorf("the server received %v", r.HTTP.Header)
			}
		}
	})
	t.Run("A51 many names make few labels", func(t *testing.T) {
		issuer := newIssuer(t)
		url := serve(t, gateway(issuer.provider(), block("client *", "deny alpha::slow"), server.line("alpha")))
		grown := growth(t)
		for i := range 5 {
			expectRefused(t, post(t, rpcAt(url, "alpha"), call,
				bearer(issuer.token("ec", issuer.claims(map[string]any{"sub": fmt.Sprint("robot-", i)})))), 403)
		}
		labels := 0
		for sample := range grown() {
			if strings.HasPrefix(sample, "denied_total") {
				labels++
			}
		}
		if labels != 1 {
			t.Errorf("got %d labels, want 1", labels)
		}
	})
}

// Rules also apply to malformed messages that a lenient server may execute (A54).
func TestAccessByOddMessages(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	server.Resources = []string{"file:///secret/a", "file:///public/b"}
	journal := newJournal(t)
	url := serve(t, gateway(append(rulesForEve("deny alpha::slow kid::slow prompt:*::insult resource:file:///secret "+
		"resource:file://kid/secret.txt"),
		server.line("alpha"), block(child("kid", "--modern"), journal.env()))...))
	tests := []struct{ name, message string }{
		{"a call as a notification", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"@slow","arguments":{}}}`},
		{"a call with an id that is null", `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"@slow",` +
			`"arguments":{}}}`},
		{"a call that is also a response", `{"jsonrpc":"2.0","id":1,"result":{},"method":"tools/call",` +
			`"params":{"name":"@slow","arguments":{}}}`},
		{"a call that is also an error", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"},"method":"tools/call",` +
			`"params":{"name":"@slow","arguments":{}}}`},
		{"a prompt as a notification", `{"jsonrpc":"2.0","method":"prompts/get","params":{"name":"@insult"}}`},
		{"a resource as a notification", `{"jsonrpc":"2.0","method":"resources/read","params":{"uri":"!file:///secret/a"}}`},
		{"a subscription as a notification", `{"jsonrpc":"2.0","method":"resources/subscribe",` +
			`"params":{"uri":"!file:///secret/a"}}`},
		{"a name in a list", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["@slow"],"arguments":{}}}`},
		{"a name in an object", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":{"name":"@slow"},` +
			`"arguments":{}}}`},
		{"a URI in a list", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":["!file:///secret/a"]}}`},
		{"params in a list", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[{"name":"@slow","arguments":{}}]}`},
		{"params in a string", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"{\"name\":\"@slow\"}"}`},
		{"a method in a list", `{"jsonrpc":"2.0","id":1,"method":["tools/call"],"params":{"name":"@slow","arguments":{}}}`},
		{"two names", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"@echo","n\u0061me":"@slow",` +
			`"arguments":{}}}`},
		{"two params", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"@echo"},"params":{"name":"@slow",` +
			`"arguments":{}}}`},
		{"two methods", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"@slow",` +
			`"arguments":{}}}`},
		{"a name in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"@echo",` +
			`"Name":"@slow","arguments":{}}}`},
		{"only a name in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"NAME":"@slow",` +
			`"arguments":{}}}`},
		{"params in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"@echo"},` +
			`"Params":{"name":"@slow","arguments":{}}}`},
		{"a method in another case", `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call",` +
			`"params":{"name":"@slow","arguments":{}}}`},
		{"a name with a letter that case-folds",
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"@echo"},"param\u017f":{"name":"@slow",` +
				`"arguments":{}}}`},
		{"a prompt in another case", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"@greet",` +
			`"Name":"@insult"}}`},
		{"a URI in another case", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"!file:///public/b",` +
			`"URI":"!file:///secret/a"}}`},
	}
	deniedCalls := func() (calls []string) { // returns the denied calls that reached a server
		for _, method := range []string{"tools/call", "prompts/get", "resources/read", "resources/subscribe", "ping", ""} {
			for _, params := range append(server.params(method), rawParams(t, journal, method)...) {
				if strings.Contains(params, "slow") || strings.Contains(params, "secret") || strings.Contains(params, "insult") {
					calls = append(calls, method+" "+params)
				}
			}
		}
		return calls
	}
	legacy := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(eveToken))
	t.Run("G2 A54 arguments pass unchanged", func(t *testing.T) {
		const arguments = `{"name":"slow","Name":"x","NAME":1,"params":{"uri":"file:///secret","URI":2}}`
		for _, endpoint := range endpointsOf(url, "alpha")[1:] {
			if got := post(t, endpoint.url, rpc("tools/call", `{"name":"echo","arguments":`+arguments+`}`),
				bearer(eveToken)); got.StatusCode != 200 {
				t.Errorf("%s: got %d %s, want 200", endpoint.name, got.StatusCode, got.body)
			}
		}
		if got := legacy.use(t, "kid", "echo", arguments); !strings.Contains(got, arguments) {
			t.Errorf("got %s", got)
		}
	})
	for _, tt := range tests {
		t.Run("A54 "+tt.name, func(t *testing.T) {
			before := len(deniedCalls())
			for _, server := range []string{"alpha", "kid"} {
				own := "file:///"
				message := strings.ReplaceAll(strings.ReplaceAll(tt.message, "@", ""), "!", "")
				if server == "kid" {
					message = strings.NewReplacer("file:///secret/a", "file://kid/secret.txt", "file:///public/b",
						"file://kid/data.txt").Replace(message)
					own = "file://kid/"
				}
				for _, endpoint := range endpointsOf(url, server)[1:] {
					post(t, endpoint.url, message, acceptBoth, bearer(eveToken))
				}
				joined := strings.ReplaceAll(tt.message, "@", server+"__")
				if index := strings.Index(joined, "!"); index >= 0 {
					joined = strings.NewReplacer("!file:///secret/a", proxiedURI(server, own+"secret/a"), "!file:///public/b",
						proxiedURI(server, own+"public/b")).Replace(joined)
				}
				post(t, joinedAt(url), joined, append(slices.Clone(legacy.Headers), acceptBoth)...)
			}
			// The servers receive the next calls after these.
			legacy.use(t, "kid", "pid", `{}`)
			if all := deniedCalls(); len(all) > before {
				t.Errorf("the servers received %q", all[before:])
			}
		})
	}
}

// rawParams returns the params of the messages with a method that a child received.
func rawParams(t *testing.T, j journal, method string) (params []string) {
	t.Helper()
	for _, m := range j.messages(t, method) {
		params = append(params, string(m.Params))
	}
	return params
}

// A stream of one server follows the current rules (A30, A55, A56).
func TestAccessToStreamsOfOneServer(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	address := freeAddress(t)
	const another = "eve-0123456789AbCdEf"
	config := func(rules ...string) string {
		return site(address, gateway(append(rulesForEve(rules...), remote.line("far"))...))
	}
	for _, tt := range []struct {
		name, after string
		ends        bool
	}{
		{"A60 nothing changes", config() + site(freeAddress(t), "respond x"), false},
		{"A30 the token changes", strings.Replace(config(), eveToken, another, 1), true},
		{"A55 a resource is denied", config("deny resource:far::file:///secret/"), true},
		{"A56 something is redacted", config(keyPattern), true},
		{"A53 the server is denied", config("deny far::*"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			load(t, config())
			c := newTestClient(t, mcpAt("http://"+address, "far"), false, fullCapabilities, connectionClose, bearer(eveToken))
			before := remote.Listeners()
			stream := c.listen(t)
			await.Until(t, "the gateway to subscribe", func() bool { return remote.Listeners() == before+1 })
			load(t, tt.after)
			if tt.ends {
				stream.awaitEnd(t)
				await.Until(t, "the extra listeners to leave", func() bool { return remote.Listeners() == before })
				return
			}
			remote.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("got %s", m.Raw)
			}
			stream.Cancel()
			await.Until(t, "the extra listeners to leave", func() bool { return remote.Listeners() == before })
		})
	}
}

// Cached data of a server is not sent to clients that lost access to it (A53).
func TestAccessToCachedData(t *testing.T) {
	isolate(t)
	keeps := func(server string) string {
		w := newLenientServer(t, "read")
		w.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":` +
			quote(strings.Repeat("kept by "+server+" ", 1000)) + `}]}`}
		return w.line(server)
	}
	alpha, beta := keeps("alpha"), keeps("beta")
	address := freeAddress(t)
	config := func(rules ...string) string {
		return site(address, gateway(append(rulesForEve(rules...), block("mask 4000 2000 2000", "recover on"), alpha,
			beta)...))
	}
	for _, era := range clientEras {
		load(t, config())
		c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, connectionClose, bearer(eveToken))
		handles := map[string]string{"alpha": callMasked(t, c, "alpha", "read", `{}`), "beta": callMasked(t, c, "beta",
			"read", `{}`)}
		load(t, config("deny alpha::*"))
		for of, handle := range handles {
			t.Run("A53 "+era.name+" of "+of, func(t *testing.T) {
				for _, got := range []string{
					c.ask(t, "tools/call", `{"name":"recover_observation","arguments":{"id":"`+handle+`"}}`).answer.Raw,
					c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`).answer.Raw,
				} {
					if strings.Contains(got, "kept by") != (of == "beta") {
						t.Errorf("got %.300s", got)
					}
				}
			})
		}
	}
}

// A signing client keeps one identity over all its requests (A77).
func TestAccessBySignatureIsOneIdentity(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", hmacAuth, remote.line("far")))
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"far__tool","arguments":{},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	for name, secret := range map[string]string{"alice": aliceSecret, "bob": bobSecret} {
		before := remote.Count("initialize")
		for range 3 {
			got := post(t, joinedAt(url), message, acceptBoth, "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call",
				"Mcp-Name: far__tool",
				signedHeader(name, secret, "POST", pathOf(t, joinedAt(url)), message))
			if got.StatusCode != 200 {
				t.Fatalf("got %d %s", got.StatusCode, got.body)
			}
		}
		if handshakes := remote.Count("initialize") - before; handshakes != 1 {
			t.Errorf("the server got %[2]d handshakes for %[1]s", name, handshakes)
		}
	}
}

// The gauge of a child is removed with its server (A52).
func TestOperateGaugeOfRemovedServer(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	load(t, site(address, gateway(child("leaving"), child("staying"))))
	pidAt(t, mcpAt("http://"+address, "leaving"))
	pidAt(t, mcpAt("http://"+address, "staying"))
	if n, exists := metrics(t)[serverMetric("upstream_healthy", "leaving")]; !exists || n != 1 {
		t.Fatalf("got %v, present: %t", n, exists)
	}
	load(t, site(address, gateway(child("staying"))))
	await.Until(t, "the gauge to go", func() bool {
		_, exists := metrics(t)[serverMetric("upstream_healthy", "leaving")]
		return !exists
	})
	pidAt(t, mcpAt("http://"+address, "staying"))
	if n := metrics(t)[serverMetric("upstream_healthy", "staying")]; n != 1 {
		t.Errorf("got %v for the other server", n)
	}
}
