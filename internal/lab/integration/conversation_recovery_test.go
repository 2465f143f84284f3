package integration

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// An agent sends conversations to a model, and recovers masked results through a gateway.
type agent struct {
	model   *mcptest.Chat
	url     string // of the site
	http    *http.Client
	headers []string
}

// withModel returns the directives of a site with a gateway and, at /v1/, a model whose mask has
// this recover line.
func withModel(model, recover string, lines ...string) string {
	return gateway(append(lines, "separator __", child("alpha"))...) + "\n" +
		block("handle /v1/*", conversationMask("window_turns 1", recover), proxy(model))
}

// send sends a conversation and returns the id in the placeholder that the model got.
func (a *agent) send(t *testing.T, body string) (id string) {
	t.Helper()
	if got := send(t, a.http, "POST", a.url+"/v1/chat/completions", body,
		append(a.headers, "Content-Type: application/json")...); got.StatusCode != 200 {
		t.Fatalf("got %d %s", got.StatusCode, got.body)
	}
	found := idInPlaceholder.FindStringSubmatch(a.model.Last().Body)
	if found == nil {
		t.Fatalf("no id in %.500s", a.model.Last().Body)
	}
	return found[1]
}

var idInPlaceholder = regexp.MustCompile(`chars=\d+, id=(obs_[A-Za-z0-9]{10})\)\]`)

// canRecover reports whether the agent can recover the original with an id.
func (a *agent) canRecover(t *testing.T, id string) bool {
	t.Helper()
	c := newTestClient(t, joinedAt(a.url), true, `{}`, a.headers...)
	c.HTTP = a.http
	got := recoverObservation(t, c, `{"id":"`+id+`"}`)
	if got.IsError && !strings.HasPrefix(got.Content[0].Text, "Nothing is kept under the id") {
		t.Errorf("got %s", got.Content[0].Text)
	}
	return !got.IsError
}

// withOldResult returns a conversation with an old result.
func withOldResult(text string) string {
	return oneTurnLater(chatMessage("user", "hi"), callsMessage("call_1 read"), resultMessage("call_1", text))
}

// recover_observation returns results masked by tool_result_mask (T39).
func TestConversationRecovery(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	a := &agent{model: model, http: client, url: serve(t, withModel(upstream(t, model), "recover on"))}
	original := unicodeText(300)
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(a.url), era.modern, `{}`)
		t.Run("T39 "+era.name+" sees the tool", func(t *testing.T) {
			if got := c.ask(t, "tools/list", `{}`); !strings.Contains(got.answer.Raw, `"name":"recover_observation"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
			if got := c.ask(t, "resources/templates/list", `{}`); !strings.Contains(got.answer.Raw,
				`"uriTemplate":"proxy://observation/{id}"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
		})
		t.Run("T39 "+era.name+" reads a text", func(t *testing.T) {
			id := a.send(t, withOldResult(original))
			if again := a.send(t, withOldResult(original)); again != id {
				t.Errorf("%s became %s", id, again)
			}
			part := recoverObservation(t, c, `{"id":"`+id+`","start_char":1999,"end_char":2500}`)
			same(t, part.Content[0].Text, string([]rune(original)[1999:2500]))
			lines := recoverObservation(t, c, `{"id":"`+id+`","start_line":124,"end_line":125}`)
			same(t, lines.Content[0].Text, strings.Join(strings.SplitAfter(original, "\n")[123:125], ""))
			found := recoverObservation(t, c, `{"id":"`+id+`","pattern":"^123\\t.*ERROR3$","context_lines":0}`)
			if line := strings.Split(original, "\n")[123]; found.Meta.Matches != 1 || !strings.Contains(found.Content[0].Text,
				line) {
				t.Errorf("got %+v\nwant %q", found, line)
			}
			goal := recoverObservation(t, c, `{"id":"`+id+`","goal":"what is in the line of 217"}`)
			if goal.IsError || !strings.Contains(goal.Content[0].Text, "217\t") {
				t.Errorf("got %+v", goal)
			}
			got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+id+`"}`)
			if !strings.Contains(got.answer.Raw, `"proxy://observation/`+id+`"`) || got.answer.Error != nil {
				t.Errorf("got %.500s", got.answer.Raw)
			}
			if whole := recoverObservation(t, c, `{"id":"`+id+`"}`); len([]rune(whole.Content[0].Text)) != 4000 ||
				whole.Meta.Next == nil {
				t.Errorf("without a mask in the gateway: got a part of %d characters", len([]rune(whole.Content[0].Text)))
			}
		})
		t.Run("T39 "+era.name+" queries JSON", func(t *testing.T) {
			id := a.send(t, withOldResult(`{"items":[{"id":1,"name":"one"},{"id":2,"name":"two"}]}`))
			if got := recoverObservation(t, c, `{"id":"`+id+`","query":".items[] | select(.id == 2) | .name"}`); got.IsError ||
				got.Content[0].Text != `"two"` {
				t.Errorf("got %+v", got)
			}
		})
		t.Run("T39 "+era.name+" reads several texts as one", func(t *testing.T) {
			id := a.send(t, strings.ReplaceAll(anthropicConversation(`[{"type":"text","text":"one\n"},{"type":"text",`+
				`"text":"two"}]`), "be brief", era.name))
			if got := recoverObservation(t, c, `{"id":"`+id+`"}`); got.IsError || got.Content[0].Text != "one\n\ntwo" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Originals are only returned to the client that sent them (T39).
func TestConversationRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	endpoint := upstream(t, model)
	for _, tt := range []struct {
		name         string
		site         string
		owner, other agent
		found        bool
	}{
		{"T39 another address", withModel(endpoint, "recover on"), agent{http: client},
			agent{http: clientFrom(t, "127.0.0.2")}, false},
		{"T39 another user", basicAuthAccounts + "\n" + withModel(endpoint, "recover on"),
			agent{http: client, headers: []string{basicAuthHeader("alice")}},
			agent{http: client, headers: []string{basicAuthHeader("bob")}}, false},
		{"T39 the same user at another address", basicAuthAccounts + "\n" + withModel(endpoint, "recover on"),
			agent{http: client, headers: []string{basicAuthHeader("alice")}}, agent{http: clientFrom(t, "127.0.0.2"),
				headers: []string{basicAuthHeader("alice")}}, true},
		{"T39 a client of the gateway at another address", withModel(endpoint, "recover on", twoTokens()),
			agent{http: client, headers: []string{bearer(victimToken)}}, agent{http: clientFrom(t, "127.0.0.2"),
				headers: []string{bearer(victimToken)}}, false},
		{"T39 another client of the gateway at the same address", withModel(endpoint, "recover on", twoTokens()),
			agent{http: client, headers: []string{bearer(victimToken)}},
			agent{http: client, headers: []string{bearer(thiefToken)}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, tt.site)
			owner, other := tt.owner, tt.other
			owner.model, owner.url, other.model, other.url = model, url, model, url
			id := owner.send(t, withOldResult(tt.name)) // no other row sends this text
			if !owner.canRecover(t, id) {
				t.Error("the owner cannot recover it")
			}
			if other.canRecover(t, id) != tt.found {
				t.Errorf("the other client can recover it: %t", !tt.found)
			}
		})
	}
}

// Originals survive reloads, but expire after their TTL, and are evicted when the store is full
// (T39).
func TestConversationRecoveryIsBounded(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	address, endpoint := freeAddress(t), upstream(t, model)
	a := &agent{model: model, http: client, url: "http://" + address}
	load(t, site(address, withModel(endpoint, "recover on")))
	id := a.send(t, withOldResult(thousand))
	t.Run("T39 a reload", func(t *testing.T) {
		load(t, site(address, withModel(endpoint, "recover on\nmin_mask_chars 10")))
		if !a.canRecover(t, id) {
			t.Error("the original is lost after a reload")
		}
	})
	t.Run("T39 a mask without recover", func(t *testing.T) {
		load(t, site(address, gateway("separator __", child("alpha")),
			block("handle /v1/*", conversationMask("window_turns 1"), proxy(endpoint))))
		if got := newTestClient(t, joinedAt(a.url), true, `{}`).ask(t, "tools/list", `{}`); strings.Contains(got.answer.Raw,
			"recover_observation") {
			t.Error("the tool is listed")
		}
	})
	t.Run("T39 the time to live", func(t *testing.T) {
		load(t, site(address, withModel(endpoint, block("recover", "ttl 200ms"))))
		id := a.send(t, withOldResult(thousand))
		await.Until(t, "the end of its TTL", func() bool { return !a.canRecover(t, id) })
	})
	t.Run("T39 max_entries", func(t *testing.T) {
		load(t, site(address, withModel(endpoint, block("recover", "max_entries 2"))))
		var ids []string
		for i := range 3 {
			ids = append(ids, a.send(t, withOldResult(fmt.Sprint("result ", i))))
		}
		if a.canRecover(t, ids[0]) || !a.canRecover(t, ids[1]) || !a.canRecover(t, ids[2]) {
			t.Errorf("want only the last two of %v", ids)
		}
		before := metrics(t)["tool_results_recovered_total"]
		a.canRecover(t, ids[2])
		a.canRecover(t, a.send(t, withOldResult("another")))
		if n := metrics(t)["tool_results_recovered_total"] - before; n != 1 {
			t.Errorf("counted %v more results, want only the new one", n)
		}
	})
}

// The id of a result is the same in all processes. Otherwise each replica would send another prompt
// (T39).
func TestConversationRecoveryIDs(t *testing.T) {
	isolate(t)
	var ids []string
	for range 2 {
		model := new(mcptest.Chat)
		caddy := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1", withModel(upstream(t, model), "recover on"))))
		a := &agent{model: model, http: client, url: "http://" + caddy.address}
		ids = append(ids, a.send(t, withOldResult(thousand)))
	}
	if ids[0] != ids[1] {
		t.Errorf("got ids %v", ids)
	}
}
