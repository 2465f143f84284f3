package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

const maskedBy = "[KIMI_PROXY_OBSERVATION_MASKED original_chars=5000 "

// long has more characters than masks leave by default.
var long = strings.Repeat("A", 5000)

// described are results that describe a server, by method, each with a long string. Schemas
// and UIs are part of them.
var described = map[string]string{
	"initialize": `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"},"instructions":"` + long + `"}`,
	"tools/list": `{"nextCursor":"` + long + `","tools":[{"name":"read","description":"` + long + `",` +
		`"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"` + long + `"}}}}]}`,
	"prompts/list":             `{"prompts":[{"name":"p","description":"` + long + `"}]}`,
	"resources/list":           `{"resources":[{"name":"r","uri":"file:///r","description":"` + long + `"}]}`,
	"resources/templates/list": `{"resourceTemplates":[{"name":"r","uriTemplate":"file:///{r}","description":"` + long + `"}]}`,
}

// observed are results that a mask cuts, by method.
var observed = map[string]string{
	"tools/call":     `{"content":[{"type":"text","text":"` + long + `"}],"structuredContent":{"tools":["` + long + `"]}}`,
	"prompts/get":    `{"messages":[{"role":"user","content":{"type":"text","text":"` + long + `"}}]}`,
	"resources/read": `{"contents":[{"uri":"file:///r","text":"` + long + `"}]}`,
}

// cutIn is what a mask with the default numbers leaves of a result.
func cutIn(result string) string {
	return strings.ReplaceAll(result, long, cut("A", len(long), 2000, 2000))
}

// describer starts a server that has these results. A GET has all of them as events, and a batch
// has all of them as an array.
func describer(t *testing.T) (_ *remoteServer, methods []string) {
	t.Helper()
	replies := map[string]string{}
	for _, results := range []map[string]string{described, observed} {
		for method, value := range results {
			replies[method] = `"result":` + value
			methods = append(methods, method)
		}
	}
	return serveScript(t, &mcptest.Script{Legacy: true, Sessionless: true, Replies: replies, Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
		var messages []string
		for _, method := range methods {
			messages = append(messages, result(described[method]+observed[method]))
		}
		switch {
		case r.Method == http.MethodGet:
			r.Stream(w, messages...)
		case strings.HasPrefix(r.Body, "["):
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("[" + strings.Join(messages, ",") + "]"))
		default:
			return false
		}
		return true
	}}), methods
}

// O25: what describes a server is masked nowhere, results where the endpoint says so.
func TestWhereResultsAreMasked(t *testing.T) {
	isolate(t)
	server, methods := describer(t)
	line := server.line("stub")
	alone := func(url, _ string) string { return url + "/mcp" }
	for _, tt := range []struct {
		name       string
		directives []string
		at         func(url, server string) string
		masks      bool
		listens    bool // it takes GET
	}{
		{"alone", []string{"observation_mask", proxy(server.address)}, alone, true, true},
		{"rpc", []string{gateway(line)}, rpcAt, true, false},
		{"rpc, masked by the gateway", []string{gateway("mask 4000 2000 2000", line)}, rpcAt, true, false},
		{"rpc, not masked", []string{gateway("mask off", line)}, rpcAt, false, false},
		{"a server", []string{gateway(line)}, mcpAt, false, true},
		{"a server, masked by the gateway", []string{gateway("mask 4000 2000 2000", line)}, mcpAt, true, true},
		{"a server, masked by itself", []string{gateway(block(line, "mask"))}, mcpAt, true, true},
		{"a server, not masked by itself", []string{gateway("mask", block(line, "mask off"))}, mcpAt, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := tt.at(serve(t, tt.directives...), "stub")
			observe := func(value string) string {
				if !tt.masks {
					return value
				}
				return cutIn(value)
			}
			for method, value := range described {
				same(t, post(t, at, rpc(method, `{}`)).body, result(value))
			}
			for method, value := range observed {
				same(t, post(t, at, rpc(method, `{"name":"read","uri":"file:///r"}`)).body, result(observe(value)))
			}
			var want []string
			for _, method := range methods {
				want = append(want, result(described[method]+observe(observed[method])))
			}
			if tt.listens {
				got := send(t, client, "GET", at, "", "Accept: text/event-stream").body
				for _, message := range want {
					if !strings.Contains(got, "data: "+message+"\n") {
						t.Errorf("a stream does not have %.100s…", message)
					}
				}
			}
			if tt.name == "alone" { // a gateway takes no batches
				same(t, post(t, at, "["+rpc("tools/list", `{}`)+"]").body, "["+strings.Join(want, ",")+"]")
			}
		})
	}
}

// O25 at /mcp, where the gateway puts lists together itself.
func TestAggregateDescriptionsAreNotMasked(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, `{"name":"read","description":"`+long+`","inputSchema":{"type":"object","description":"`+long+`"}}`)
	server.Replies = map[string]string{"read": mcptest.Text(long)}
	for _, tt := range []struct {
		name   string
		masks  bool
		handle bool
		lines  []string
	}{
		{"not masked", false, false, []string{server.line("stub")}},
		{"masked on a line", true, false, []string{"mask 4000 2000 2000", server.line("stub")}},
		{"masked by a block", true, true, []string{block("mask", "max_chars 4000"), server.line("stub")}},
		{"masked by a block of the server", true, true, []string{block(server.line("stub"), block("mask 4000 2000 2000", "keep_media on"))}},
		{"masked by a block that says otherwise", true, false, []string{block("mask", "recover off"), server.line("stub")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, gateway(append([]string{"separator __"}, tt.lines...)...))
			for _, era := range clientEras {
				c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
				list := string(c.ask(t, "tools/list", `{}`).answer.Result)
				if strings.Count(list, long) != 2 || strings.Contains(list, maskedBy) {
					t.Errorf("%s: got %.300s…", era.name, list)
				}
				if strings.Contains(list, `"recover_observation"`) != tt.handle {
					t.Errorf("%s: recover_observation, want %t", era.name, tt.handle)
				}
				text := c.use(t, "stub", "read", `{}`)
				if strings.Contains(text, maskedBy) != tt.masks || handleIn.MatchString(text) != tt.handle || !tt.masks && text != long {
					t.Errorf("%s: got %.300s…", era.name, text)
				}
			}
		})
	}
}

// O22, O25: media stay whole where a block does not say otherwise.
func TestMediaInMaskBlocks(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "draw")
	image := `{"content":[{"type":"image","mimeType":"image/png","data":"` + long + `"}]}`
	server.Replies = map[string]string{"draw": `"result":` + image}
	for _, tt := range []struct {
		mask  string
		whole bool
	}{
		{"mask 4000 2000 2000", false},
		{"mask", false},
		{block("mask", "max_chars 4000"), true},
		{block("mask 4000 2000 2000", "recover off"), true},
		{block("mask", "keep_media off", "recover off"), false},
	} {
		for _, lines := range [][]string{{tt.mask, server.line("stub")}, {block(server.line("stub"), tt.mask)}} {
			url := serve(t, gateway(lines...))
			want := cutIn(image)
			if tt.whole {
				want = image
			}
			for _, at := range []string{rpcAt(url, "stub"), mcpAt(url, "stub")} {
				same(t, post(t, at, rpc("tools/call", `{"name":"draw"}`)).body, result(want))
			}
		}
	}
}

// O24: prompts and resources are exempt by the patterns of rules for clients.
func TestExemptPromptsAndResources(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "read")
	server.Resources = []string{"file:///logs/a", "file:///r"}
	server.Replies = map[string]string{}
	for method, value := range observed {
		server.Replies[method] = `"result":` + value
	}
	asks := map[string][2]string{ // by what exempts them
		"docs::read":                       {"tools/call", `{"name":"read","uri":"file:///r"}`},
		"tool:docs::re*":                   {"tools/call", `{"name":"read"}`},
		"prompt:docs::summar*":             {"prompts/get", `{"name":"summary"}`},
		"resource:docs::file:///logs":      {"resources/read", `{"uri":"file:///logs/a"}`},
		"resource:file:///r":               {"resources/read", `{"uri":"file:///r"}`},
		"docs::*":                          {"prompts/get", `{"name":"other"}`},
		"prompt:*::* resource:docs::http:": {"prompts/get", `{"name":"other"}`},
	}
	others := map[string][][2]string{ // that are masked nevertheless
		"docs::read":                       {{"prompts/get", `{"name":"read"}`}, {"resources/read", `{"uri":"file:///r"}`}},
		"tool:docs::re*":                   {{"tools/call", `{"name":"write"}`}},
		"prompt:docs::summar*":             {{"tools/call", `{"name":"summary"}`}, {"prompts/get", `{"name":"other"}`}},
		"resource:docs::file:///logs":      {{"resources/read", `{"uri":"file:///logs/../r"}`}, {"resources/read", `{"uri":"file:///logs2"}`}},
		"resource:file:///r":               {{"resources/read", `{"uri":"file:///logs/a"}`}},
		"prompt:*::* resource:docs::http:": {{"resources/read", `{"uri":"file:///r"}`}},
	}
	for pattern, ask := range asks {
		t.Run(pattern, func(t *testing.T) {
			whole := observed[ask[0]]
			check := func(at string) {
				t.Helper()
				same(t, post(t, at, rpc(ask[0], ask[1])).body, result(whole))
				for _, other := range others[pattern] {
					same(t, post(t, at, rpc(other[0], other[1])).body, result(cutIn(observed[other[0]])))
				}
			}
			check(serve(t, mask("server docs", "exempt "+pattern), proxy(server.address)) + "/mcp")
			url := serve(t, gateway("separator __", block("mask", "recover off", "exempt "+pattern), server.line("docs")))
			check(rpcAt(url, "docs"))
			check(mcpAt(url, "docs"))
		})
	}
	t.Run("at the aggregate", func(t *testing.T) {
		url := serve(t, gateway("separator __", block("mask", "exempt prompt:docs::summary resource:docs::file:///logs"), server.line("docs")))
		for _, era := range clientEras {
			c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
			for _, ask := range []struct {
				method, params string
				masked         bool
			}{
				{"tools/call", `{"name":"docs__read","arguments":{}}`, true},
				{"prompts/get", `{"name":"docs__summary"}`, false},
				{"prompts/get", `{"name":"docs__other"}`, true},
				{"resources/read", readURI("file:///logs/a"), false},
				{"resources/read", readURI("file:///r"), true},
			} {
				got := string(c.ask(t, ask.method, ask.params).answer.Result)
				if strings.Contains(got, maskedBy) != ask.masked || !ask.masked && !strings.Contains(got, long) {
					t.Errorf("%s, %s %s: got %.300s…", era.name, ask.method, ask.params, got)
				}
			}
		}
	})
}
