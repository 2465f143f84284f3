package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

const maskedMarker = "[KIMI_PROXY_OBSERVATION_MASKED original_chars=5000 "

// longText has more characters than masks keep by default.
var longText = strings.Repeat("A", 5000)

// describingResults maps methods to results that describe a server. Each has a long string, also
// in schemas.
var describingResults = map[string]string{
	"initialize": `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"},` +
		`"instructions":"` + longText + `"}`,
	"tools/list": `{"nextCursor":"` + longText + `","tools":[{"name":"read","description":"` + longText + `",` +
		`"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"` + longText + `"}}}}]}`,
	"prompts/list":   `{"prompts":[{"name":"p","description":"` + longText + `"}]}`,
	"resources/list": `{"resources":[{"name":"r","uri":"file:///r","description":"` + longText + `"}]}`,
	"resources/templates/list": `{"resourceTemplates":[{"name":"r","uriTemplate":"file:///{r}","description":"` +
		longText + `"}]}`,
}

// observationResults maps methods to results that a mask shortens.
var observationResults = map[string]string{
	"tools/call": `{"content":[{"type":"text","text":"` + longText + `"}],"structuredContent":{"tools":["` +
		longText + `"]}}`,
	"prompts/get":    `{"messages":[{"role":"user","content":{"type":"text","text":"` + longText + `"}}]}`,
	"resources/read": `{"contents":[{"uri":"file:///r","text":"` + longText + `"}]}`,
}

// cutIn returns a result after a mask with the default limits.
func cutIn(result string) string {
	return strings.ReplaceAll(result, longText, cut("A", len(longText), 2000, 2000))
}

// newDescribingServer starts a server that has these results. A GET returns all of them as events,
// a batch returns all of them as an array.
func newDescribingServer(t *testing.T) (_ *remoteServer, methods []string) {
	t.Helper()
	replies := map[string]string{}
	for _, results := range []map[string]string{describingResults, observationResults} {
		for method, value := range results {
			replies[method] = `"result":` + value
			methods = append(methods, method)
		}
	}
	return serveScript(t, &mcptest.Script{Legacy: true, Sessionless: true, Replies: replies,
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			var messages []string
			for _, method := range methods {
				messages = append(messages, result(describingResults[method]+observationResults[method]))
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

// O25: descriptions of a server are never masked, results only where the configuration says so.
func TestWhereResultsAreMasked(t *testing.T) {
	isolate(t)
	server, methods := newDescribingServer(t)
	line := server.line("stub")
	alone := func(url, _ string) string { return url + "/mcp" }
	for _, tt := range []struct {
		name       string
		directives []string
		at         func(url, server string) string
		masks      bool
		listens    bool // the endpoint supports GET
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
			endpoint := tt.at(serve(t, tt.directives...), "stub")
			observe := func(value string) string {
				if !tt.masks {
					return value
				}
				return cutIn(value)
			}
			for method, value := range describingResults {
				same(t, post(t, endpoint, rpc(method, `{}`)).body, result(value))
			}
			for method, value := range observationResults {
				same(t, post(t, endpoint, rpc(method, `{"name":"read","uri":"file:///r"}`)).body, result(observe(value)))
			}
			var want []string
			for _, method := range methods {
				want = append(want, result(describingResults[method]+observe(observationResults[method])))
			}
			if tt.listens {
				got := send(t, client, "GET", endpoint, "", "Accept: text/event-stream").body
				for _, message := range want {
					if !strings.Contains(got, "data: "+message+"\n") {
						t.Errorf("the stream lacks %.100s…", message)
					}
				}
			}
			if tt.name == "alone" { // a gateway does not accept batches
				same(t, post(t, endpoint, "["+rpc("tools/list", `{}`)+"]").body, "["+strings.Join(want, ",")+"]")
			}
		})
	}
}

// O25 at /mcp, where the gateway merges the lists itself.
func TestAggregateDescriptionsAreNotMasked(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, `{"name":"read","description":"`+longText+
		`","inputSchema":{"type":"object","description":"`+longText+`"}}`)
	server.Replies = map[string]string{"read": mcptest.Text(longText)}
	for _, tt := range []struct {
		name   string
		masks  bool
		handle bool
		lines  []string
	}{
		{"not masked", false, false, []string{server.line("stub")}},
		{"masked on a line", true, false, []string{"mask 4000 2000 2000", server.line("stub")}},
		{"masked by a block", true, true, []string{block("mask", "max_chars 4000"), server.line("stub")}},
		{"masked by a block of the server", true, true,
			[]string{block(server.line("stub"), block("mask 4000 2000 2000", "keep_media on"))}},
		{"masked by a block that says otherwise", true, false, []string{block("mask", "recover off"), server.line("stub")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, gateway(append([]string{"separator __"}, tt.lines...)...))
			for _, era := range clientEras {
				c := newTestClient(t, joinedAt(url), era.modern, `{}`)
				list := string(c.ask(t, "tools/list", `{}`).answer.Result)
				if strings.Count(list, longText) != 2 || strings.Contains(list, maskedMarker) {
					t.Errorf("%s: got %.300s…", era.name, list)
				}
				if strings.Contains(list, `"recover_observation"`) != tt.handle {
					t.Errorf("%s: recover_observation, want %t", era.name, tt.handle)
				}
				text := c.use(t, "stub", "read", `{}`)
				if strings.Contains(text, maskedMarker) != tt.masks || handlePattern.MatchString(text) != tt.handle || !tt.masks &&
					text != longText {
					t.Errorf("%s: got %.300s…", era.name, text)
				}
			}
		})
	}
}

// O22, O25: a mask block keeps media unless it says otherwise.
func TestMediaInMaskBlocks(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "draw")
	image := `{"content":[{"type":"image","mimeType":"image/png","data":"` + longText + `"}]}`
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
			for _, endpoint := range []string{rpcAt(url, "stub"), mcpAt(url, "stub")} {
				same(t, post(t, endpoint, rpc("tools/call", `{"name":"draw"}`)).body, result(want))
			}
		}
	}
}

// O24: exempt takes the same patterns for prompts and resources as client rules.
func TestExemptPromptsAndResources(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "read")
	server.Resources = []string{"file:///logs/a", "file:///r"}
	server.Replies = map[string]string{}
	for method, value := range observationResults {
		server.Replies[method] = `"result":` + value
	}
	asks := map[string][2]string{ // exempt requests by pattern
		"docs::read":                       {"tools/call", `{"name":"read","uri":"file:///r"}`},
		"tool:docs::re*":                   {"tools/call", `{"name":"read"}`},
		"prompt:docs::summar*":             {"prompts/get", `{"name":"summary"}`},
		"resource:docs::file:///logs":      {"resources/read", `{"uri":"file:///logs/a"}`},
		"resource:file:///r":               {"resources/read", `{"uri":"file:///r"}`},
		"docs::*":                          {"prompts/get", `{"name":"other"}`},
		"prompt:*::* resource:docs::http:": {"prompts/get", `{"name":"other"}`},
	}
	others := map[string][][2]string{ // requests that the pattern does not exempt
		"docs::read":           {{"prompts/get", `{"name":"read"}`}, {"resources/read", `{"uri":"file:///r"}`}},
		"tool:docs::re*":       {{"tools/call", `{"name":"write"}`}},
		"prompt:docs::summar*": {{"tools/call", `{"name":"summary"}`}, {"prompts/get", `{"name":"other"}`}},
		"resource:docs::file:///logs": {{"resources/read", `{"uri":"file:///logs/../r"}`},
			{"resources/read", `{"uri":"file:///logs2"}`}},
		"resource:file:///r":               {{"resources/read", `{"uri":"file:///logs/a"}`}},
		"prompt:*::* resource:docs::http:": {{"resources/read", `{"uri":"file:///r"}`}},
	}
	for pattern, ask := range asks {
		t.Run(pattern, func(t *testing.T) {
			whole := observationResults[ask[0]]
			check := func(endpoint string) {
				t.Helper()
				same(t, post(t, endpoint, rpc(ask[0], ask[1])).body, result(whole))
				for _, other := range others[pattern] {
					same(t, post(t, endpoint, rpc(other[0], other[1])).body, result(cutIn(observationResults[other[0]])))
				}
			}
			check(serve(t, mask("server docs", "exempt "+pattern), proxy(server.address)) + "/mcp")
			url := serve(t, gateway("separator __", block("mask", "recover off", "exempt "+pattern), server.line("docs")))
			check(rpcAt(url, "docs"))
			check(mcpAt(url, "docs"))
		})
	}
	t.Run("at the aggregate", func(t *testing.T) {
		url := serve(t, gateway("separator __", block("mask", "exempt prompt:docs::summary resource:docs::file:///logs"),
			server.line("docs")))
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
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
				if strings.Contains(got, maskedMarker) != ask.masked || !ask.masked && !strings.Contains(got, longText) {
					t.Errorf("%s, %s %s: got %.300s…", era.name, ask.method, ask.params, got)
				}
			}
		}
	})
}
