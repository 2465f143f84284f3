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

// An agent sends conversations to a model, and asks a gateway for what they lack.
type agent struct {
	model   *mcptest.Chat
	url     string // of the site
	http    *http.Client
	headers []string
}

// withModel are the directives of a site with a gateway and, at /v1/, a model whose mask
// has a line of recover.
func withModel(model, recover string, lines ...string) string {
	return gateway(append(lines, "separator __", child("alpha"))...) + "\n" +
		block("handle /v1/*", conversationMask("window_turns 1", recover), proxy(model))
}

// send sends a conversation and returns the id in the placeholder that the model got.
func (a *agent) send(t *testing.T, body string) (id string) {
	t.Helper()
	if got := send(t, a.http, "POST", a.url+"/v1/chat/completions", body, append(a.headers, "Content-Type: application/json")...); got.StatusCode != 200 {
		t.Fatalf("got %d %s", got.StatusCode, got.body)
	}
	found := idInPlaceholder.FindStringSubmatch(a.model.Last().Body)
	if found == nil {
		t.Fatalf("no id in %.500s", a.model.Last().Body)
	}
	return found[1]
}

var idInPlaceholder = regexp.MustCompile(`chars=\d+, id=(obs_[A-Za-z0-9]{10})\)\]`)

// gets reports whether the agent gets something under an id.
func (a *agent) gets(t *testing.T, id string) bool {
	t.Helper()
	c := newSpeaker(t, joinedAt(a.url), true, `{}`, a.headers...)
	c.HTTP = a.http
	got := recoverBy(t, c, `{"id":"`+id+`"}`)
	if got.IsError && !strings.HasPrefix(got.Content[0].Text, "Nothing is kept under the id") {
		t.Errorf("got %s", got.Content[0].Text)
	}
	return !got.IsError
}

// withOld is a conversation whose result of the call is old.
func withOld(text string) string {
	return aged(says("user", "hi"), calls("call_1 read"), answers("call_1", text))
}

// What tool_result_mask has masked, recover_observation returns (T39).
func TestConversationRecovery(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	a := &agent{model: model, http: client, url: serve(t, withModel(upstream(t, model), "recover on"))}
	original := fullOf(300)
	for _, era := range clientEras {
		c := newSpeaker(t, joinedAt(a.url), era.modern, `{}`)
		t.Run("T39 "+era.name+" is offered it", func(t *testing.T) {
			if got := c.ask(t, "tools/list", `{}`); !strings.Contains(got.answer.Raw, `"name":"recover_observation"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
			if got := c.ask(t, "resources/templates/list", `{}`); !strings.Contains(got.answer.Raw, `"uriTemplate":"proxy://observation/{id}"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
		})
		t.Run("T39 "+era.name+" reads a text", func(t *testing.T) {
			id := a.send(t, withOld(original))
			if again := a.send(t, withOld(original)); again != id {
				t.Errorf("%s has become %s", id, again)
			}
			part := recoverBy(t, c, `{"id":"`+id+`","start_char":1999,"end_char":2500}`)
			same(t, part.Content[0].Text, string([]rune(original)[1999:2500]))
			lines := recoverBy(t, c, `{"id":"`+id+`","start_line":124,"end_line":125}`)
			same(t, lines.Content[0].Text, strings.Join(strings.SplitAfter(original, "\n")[123:125], ""))
			found := recoverBy(t, c, `{"id":"`+id+`","pattern":"^123\\t.*ERROR3$","context_lines":0}`)
			if line := strings.Split(original, "\n")[123]; found.Meta.Matches != 1 || !strings.Contains(found.Content[0].Text, line) {
				t.Errorf("%+v\nwant %q", found, line)
			}
			goal := recoverBy(t, c, `{"id":"`+id+`","goal":"what is in the line of 217"}`)
			if goal.IsError || !strings.Contains(goal.Content[0].Text, "217\t") {
				t.Errorf("got %+v", goal)
			}
			got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+id+`"}`)
			if !strings.Contains(got.answer.Raw, `"proxy://observation/`+id+`"`) || got.answer.Error != nil {
				t.Errorf("got %.500s", got.answer.Raw)
			}
			if whole := recoverBy(t, c, `{"id":"`+id+`"}`); len([]rune(whole.Content[0].Text)) != 4000 || whole.Meta.Next == nil {
				t.Errorf("without a mask in the gateway, a part has %d characters", len([]rune(whole.Content[0].Text)))
			}
		})
		t.Run("T39 "+era.name+" queries JSON", func(t *testing.T) {
			id := a.send(t, withOld(`{"items":[{"id":1,"name":"one"},{"id":2,"name":"two"}]}`))
			if got := recoverBy(t, c, `{"id":"`+id+`","query":".items[] | select(.id == 2) | .name"}`); got.IsError || got.Content[0].Text != `"two"` {
				t.Errorf("got %+v", got)
			}
		})
		t.Run("T39 "+era.name+" reads several texts as one", func(t *testing.T) {
			id := a.send(t, strings.ReplaceAll(blocks(`[{"type":"text","text":"one\n"},{"type":"text","text":"two"}]`), "be brief", era.name))
			if got := recoverBy(t, c, `{"id":"`+id+`"}`); got.IsError || got.Content[0].Text != "one\n\ntwo" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// What is kept is given back to the client that has sent it, and to no other (T39).
func TestConversationRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	at := upstream(t, model)
	for _, tt := range []struct {
		name         string
		site         string
		owner, other agent
		found        bool
	}{
		{"T39 another address", withModel(at, "recover on"), agent{http: client}, agent{http: fromAddress(t, "127.0.0.2")}, false},
		{"T39 another user", accounts + "\n" + withModel(at, "recover on"), agent{http: client, headers: []string{as("alice")}}, agent{http: client, headers: []string{as("bob")}}, false},
		{"T39 the same user elsewhere", accounts + "\n" + withModel(at, "recover on"), agent{http: client, headers: []string{as("alice")}}, agent{http: fromAddress(t, "127.0.0.2"), headers: []string{as("alice")}}, true},
		{"T39 a client of the gateway elsewhere", withModel(at, "recover on", strangers()), agent{http: client, headers: []string{bearer(victimToken)}}, agent{http: fromAddress(t, "127.0.0.2"), headers: []string{bearer(victimToken)}}, false},
		{"T39 another client of the gateway at the same address", withModel(at, "recover on", strangers()), agent{http: client, headers: []string{bearer(victimToken)}}, agent{http: client, headers: []string{bearer(thiefToken)}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, tt.site)
			owner, other := tt.owner, tt.other
			owner.model, owner.url, other.model, other.url = model, url, model, url
			id := owner.send(t, withOld(tt.name)) // which the clients of other rows do not send
			if !owner.gets(t, id) {
				t.Error("the client itself does not get it")
			}
			if other.gets(t, id) != tt.found {
				t.Errorf("the other one gets it: %t", !tt.found)
			}
		})
	}
}

// Originals outlive reloads, but not their time, and make room for others (T39).
func TestConversationRecoveryIsBounded(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	address, at := freeAddress(t), upstream(t, model)
	a := &agent{model: model, http: client, url: "http://" + address}
	load(t, site(address, withModel(at, "recover on")))
	id := a.send(t, withOld(thousand))
	t.Run("T39 a reload", func(t *testing.T) {
		load(t, site(address, withModel(at, "recover on\nmin_mask_chars 10")))
		if !a.gets(t, id) {
			t.Error("gone")
		}
	})
	t.Run("T39 a mask that keeps nothing", func(t *testing.T) {
		load(t, site(address, gateway("separator __", child("alpha")), block("handle /v1/*", conversationMask("window_turns 1"), proxy(at))))
		if got := newSpeaker(t, joinedAt(a.url), true, `{}`).ask(t, "tools/list", `{}`); strings.Contains(got.answer.Raw, "recover_observation") {
			t.Error("the tool is offered")
		}
	})
	t.Run("T39 the time to live", func(t *testing.T) {
		load(t, site(address, withModel(at, block("recover", "ttl 200ms"))))
		id := a.send(t, withOld(thousand))
		await.Until(t, "the end of its time", func() bool { return !a.gets(t, id) })
	})
	t.Run("T39 max_entries", func(t *testing.T) {
		load(t, site(address, withModel(at, block("recover", "max_entries 2"))))
		var ids []string
		for i := range 3 {
			ids = append(ids, a.send(t, withOld(fmt.Sprint("result ", i))))
		}
		if a.gets(t, ids[0]) || !a.gets(t, ids[1]) || !a.gets(t, ids[2]) {
			t.Errorf("not the last two of %v are kept", ids)
		}
		before := metrics(t)["tool_results_recovered_total"]
		a.gets(t, ids[2])
		a.gets(t, a.send(t, withOld("another")))
		if n := metrics(t)["tool_results_recovered_total"] - before; n != 1 {
			t.Errorf("%v more results were counted, want the one that was new", n)
		}
	})
}

// The id of a result is the same in every process, or each would send another prompt
// (T39).
func TestConversationRecoveryIDs(t *testing.T) {
	isolate(t)
	var ids []string
	for range 2 {
		model := new(mcptest.Chat)
		caddy := run(t, inFile(t, block(":8080", "bind 127.0.0.1", withModel(upstream(t, model), "recover on"))))
		a := &agent{model: model, http: client, url: "http://" + caddy.address}
		ids = append(ids, a.send(t, withOld(thousand)))
	}
	if ids[0] != ids[1] {
		t.Errorf("the ids are %v", ids)
	}
}
