package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// toolNames returns the names of tools on the first page of the list.
func toolNames(t *testing.T, c *testClient) (names []string) {
	t.Helper()
	got := c.ask(t, "tools/list", `{}`)
	var result struct {
		Tools      []struct{ Name string }
		NextCursor *string
	}
	if err := json.Unmarshal(got.answer.Result, &result); err != nil || result.NextCursor != nil {
		t.Fatalf("%v: %.300s", err, got.answer.Raw)
	}
	for _, tool := range result.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// searchTools returns the names that search_tools finds, best match first.
func searchTools(t *testing.T, c *testClient, query string) (names []string) {
	t.Helper()
	got := c.ask(t, "tools/call", `{"name":"search_tools","arguments":{"query":`+quote(query)+`}}`)
	for line := range strings.Lines(got.answer.Text()) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.Contains(name, "__") {
			names = append(names, name)
		}
	}
	return names
}

// callToolParams returns the params of a call through call_tool.
func callToolParams(name, arguments string) string {
	return `{"name":"call_tool","arguments":{"name":` + quote(name) + `,"arguments":` + arguments + `}}`
}

// Three tools are enough to find and call all others.
func TestAggregateDiscovery(t *testing.T) {
	isolate(t)
	journal, hidden := newJournal(t), newJournal(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	postal := newRemoteServer(t)
	postal.Tools = []string{
		`{"name":"dispatch","description":"Sends a parcel to a recipient.","inputSchema":{"type":"object",` +
			`"properties":{"recipient":{"type":"string"},"weight_grams":{"type":"integer"}},"required":["recipient"]}}`,
		`{"name":"track","description":"Tells where a shipment is right now.","inputSchema":{"type":"object",` +
			`"properties":{"waybill":{"type":"string"}}}}`,
	}
	url := serve(t, gateway("discovery on", "separator __", block(child("near", "--tools", "50"), journal.env()),
		block(child("shy"), hidden.env(), "expose slow"), "server far http://"+upstream(t, remote)+"/mcp",
		postal.line("postal")))
	t.Cleanup(remote.Close)
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
		t.Run(era.name+" sees three tools", func(t *testing.T) {
			if got := toolNames(t, c); !slices.Equal(got, []string{"search_tools", "describe_tool", "call_tool"}) {
				t.Errorf("listed %v", got)
			}
		})
		t.Run(era.name+" searches", func(t *testing.T) {
			for query, want := range map[string]string{
				"send a parcel":               "postal__dispatch", // in the description
				"where is my shipment":        "postal__track",
				"weight":                      "postal__dispatch", // in a parameter
				"waybill":                     "postal__track",
				"working directory":           "near__cwd",
				"dispatch":                    "postal__dispatch", // in the name
				"says that a resource update": "near__touch",
			} {
				if got := searchTools(t, c, query); len(got) == 0 || got[0] != want {
					t.Errorf("%s: found %v, want %s", query, got, want)
				}
			}
			if got := searchTools(t, c, "xyzzy"); len(got) > 0 {
				t.Errorf("found %v", got)
			}
		})
		t.Run(era.name+" describes a tool", func(t *testing.T) {
			got := c.ask(t, "tools/call", `{"name":"describe_tool","arguments":{"name":"postal__dispatch"}}`).answer.Text()
			if want := strings.Replace(postal.Tools[0], `"dispatch"`, `"postal__dispatch"`, 1); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
		})
		t.Run(era.name+" calls", func(t *testing.T) {
			arguments := `{"text":"é\u00e9","n":12345678901234567890,"deep":[{"a":1.0}, null]}`
			for _, server := range []string{"near", "far"} {
				got := c.ask(t, "tools/call", callToolParams(server+"__echo", arguments))
				if text := got.answer.Text(); !strings.Contains(text, `"name":"echo"`) || !strings.Contains(text, `"arguments":`+
					arguments) {
					t.Errorf("%s received %s", server, text)
				}
				direct := c.ask(t, "tools/call", callOf(server, "echo", arguments))
				if got.answer.Text() != direct.answer.Text() {
					t.Errorf("%s: by call_tool %s\nby its name %s", server, got.answer.Raw, direct.answer.Raw)
				}
			}
			got := c.ask(t, "tools/call", callToolParams("far__fail", `{"code":-32055,"message":"no","data":{"x":[1]}}`))
			if got.answer.Error == nil || got.answer.Error.Code != -32055 || string(got.answer.Error.Data) != `{"x":[1]}` {
				t.Errorf("got %s", got.answer.Raw)
			}
			got = c.ask(t, "tools/call", callToolParams("near__big", `{"n":10000}`))
			same(t, got.answer.Text(), strings.Repeat("x", 10000)) // unchanged (A44)
		})
		t.Run(era.name+" gets a server request during a call", func(t *testing.T) {
			params := callToolParams("far__ask", `{"method":"roots/list","params":{}}`)
			d := c.begin(t, "tools/call", params)
			m := d.next(t)
			if era.modern {
				m = c.begin(t, "tools/call", retryParams(params, m.Input(t), func(string) string { return rootsAnswer })).next(t)
			} else {
				c.respond(t, m, rootsAnswer)
				m = d.next(t)
			}
			if !isAnswer(m.Text(), rootsAnswer) {
				t.Errorf("got %s", m.Raw)
			}
		})
		t.Run(era.name+" does not find hidden tools", func(t *testing.T) {
			if got := searchTools(t, c, "returns the process id"); slices.Contains(got, "shy__pid") || !slices.Contains(got,
				"near__pid") {
				t.Errorf("found %v", got)
			}
			if got := searchTools(t, c, "sleeps"); !slices.Contains(got, "shy__slow") {
				t.Errorf("found %v", got)
			}
			for _, params := range []string{
				callToolParams("shy__pid", `{}`), callToolParams("absent__x", `{}`), callToolParams("echo", `{}`),
				callToolParams("call_tool", `{}`), `{"name":"call_tool"}`, `{"name":"call_tool","arguments":{"name":7}}`,
				`{"name":"describe_tool","arguments":{"name":"shy__pid"}}`, `{"name":"describe_tool","arguments":{}}`,
				`{"name":"search_tools","arguments":{"query":1}}`,
			} {
				got := c.ask(t, "tools/call", params)
				var result struct{ IsError bool }
				if json.Unmarshal(got.answer.Result, &result) != nil || !result.IsError {
					t.Errorf("%s: got %s", params, got.answer.Raw)
				}
			}
			if calls := hidden.entries(t, "tools/call"); len(calls) > 0 {
				t.Errorf("got %d calls of hidden tools", len(calls))
			}
		})
	}
	t.Run("the server gets its own name of the tool", func(t *testing.T) {
		for _, m := range journal.messages(t, "tools/call") {
			if name := m.Param("name"); strings.Contains(name, "__") || strings.Contains(name, "call_tool") {
				t.Errorf("called %s", name)
			}
		}
	})
}

// The recovery tool of the gateway is listed as well, and can be called by name.
func TestAggregateDiscoveryWithRecovery(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("discovery on", "separator __", block("mask", "recover on"), child("alpha")))
	for _, era := range clientEras {
		t.Run("O23 "+era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			if got := toolNames(t, c); !slices.Equal(got, []string{"search_tools", "describe_tool", "call_tool",
				"recover_observation"}) {
				t.Errorf("listed %v", got)
			}
			text := c.ask(t, "tools/call", callToolParams("alpha__big", `{"n":10000}`)).answer.Text()
			handle := handlePattern.FindStringSubmatch(text)
			if handle == nil {
				t.Fatalf("not masked: %.100s…", text)
			}
			if r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":9990}`, handle[2])); r.IsError ||
				r.Content[0].Text != strings.Repeat("x", 10) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// Search finds new tools and servers, and no removed ones.
func TestAggregateDiscoveryOfChanges(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	config := func(servers ...string) string {
		return site(address, gateway(append([]string{"discovery on", "separator __"}, servers...)...))
	}
	load(t, config(child("alpha")))
	c := newTestClient(t, joinedAt("http://"+address), false, `{}`, connectionClose)
	c.use(t, "alpha", "add-tool", `{"name":"brew_coffee"}`)
	await.Until(t, "the new tool", func() bool {
		return slices.Contains(searchTools(t, c, "brew coffee"), "alpha__brew_coffee")
	})
	load(t, config(child("alpha"), child("beta", "--tools", "1")))
	await.Until(t, "the new server", func() bool {
		return slices.Contains(searchTools(t, c, "one more tool t1"), "beta__t1")
	})
	load(t, config(child("alpha")))
	await.Until(t, "the removal of the server",
		func() bool { return !slices.Contains(searchTools(t, c, "one more tool t1"), "beta__t1") })
}
