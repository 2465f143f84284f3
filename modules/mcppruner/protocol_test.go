package mcppruner_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRoutesByPathSuffix(t *testing.T) { // P1
	h, _ := load(t, `{}`)
	tests := []struct {
		name         string
		method, path string
		status       int
		allow        string
		next         bool
	}{
		{"a message", "POST", "/rpc", 200, "", false},
		{"a message below a mount", "POST", "/a/pruner/rpc", 200, "", false},
		{"a message over Streamable HTTP", "POST", "/mcp", 200, "", false},
		{"a stream", "GET", "/mcp", 405, "POST", false},
		{"the end of a session", "DELETE", "/pruner/mcp", 405, "POST", false},
		{"a GET of the endpoint", "GET", "/rpc", 405, "POST", false},
		{"health", "GET", "/health", 200, "", false},
		{"health below a mount", "GET", "/pruner/health", 200, "", false},
		{"the headers of health", "HEAD", "/health", 200, "", false},
		{"health by POST", "POST", "/health", 405, "GET, HEAD", false},
		{"another path", "POST", "/rpcs", 200, "", true},
		{"a path below", "POST", "/rpc/x", 200, "", true},
		{"a path that ends with a slash", "POST", "/rpc/", 200, "", true},
		{"a segment with the same end", "GET", "/unhealth", 200, "", true},
		{"the root", "GET", "/", 200, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			w := serve(t, h, "", r)
			if w.Code != tt.status || w.Header().Get("Allow") != tt.allow {
				t.Errorf("got %d, Allow %q", w.Code, w.Header().Get("Allow"))
			}
			if next := w.Body.String() == nextBody; next != tt.next {
				t.Errorf("passed on: %t", next)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	h, _ := load(t, `{}`)
	const version = "Mcp-Protocol-Version"
	tests := []struct {
		name      string
		message   string
		rpc, mcp  int // statuses
		code      int
		id        string
		fragments string // parts of the result or error message, separated by |
	}{
		{"P2: a handshake", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
			`"clientInfo":{"name":"diag","version":"1.0.0"}}}`, 200, 200, 0, "1",
			`"protocolVersion":"2025-11-25"|"capabilities":{"tools":{}}|"serverInfo":{"name":"mcp-pruner","version":"0.1.0"}`},
		{"P2: a handshake of an old client", `{"jsonrpc":"2.0","id":"a","method":"initialize",` +
			`"params":{"protocolVersion":"2024-11-05"}}`, 200, 200, 0, `"a"`, `"protocolVersion":"2024-11-05"`},
		{"P2: a handshake of a client in between",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
				`"clientInfo":{"name":"x","version":"1"}}}`, 200, 200, 0, "1", `"protocolVersion":"2025-06-18"`},
		{"P2: a handshake with a number for a version",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":5}}`, 200, 200, 0, "1",
			`"protocolVersion":"2025-11-25"`},
		{"P2: a handshake with an unknown version",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"1999-01-01"}}`, 200, 200, 0, "1",
			`"protocolVersion":"2025-11-25"`},
		{"P2: a handshake with a version without handshakes",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2026-07-28"}}`, 200, 200, 0, "1",
			`"protocolVersion":"2025-11-25"`},
		{"P2: a handshake without a version", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, 200, 200, 0, "1",
			`"protocolVersion":"2025-11-25"`},
		{"P3: initialized", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, 202, 202, 0, "", ""},
		{"P3: initialized as a request", `{"jsonrpc":"2.0","id":5,"method":"notifications/initialized"}`, 200, 200, 0, "5",
			"{}"},
		{"another notification", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
			202, 202, 0, "", ""},
		{"a call without an id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"health"}}`, 202, 202, 0,
			"", ""},
		{"ping", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"ping"}`, 200, 200, 0, "12345678901234567890", "{}"},
		{"P6: resources", `{"jsonrpc":"2.0","id":1,"method":"resources/list","params":{}}`, 200, 200, 0, "1",
			`{"resources":[]}`},
		{"P6: templates", `{"jsonrpc":"2.0","id":1,"method":"resources/templates/list"}`, 200, 200, 0, "1",
			`{"resourceTemplates":[]}`},
		{"P6: prompts", `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, 200, 200, 0, "1", `{"prompts":[]}`},
		{"P9: another method", `{"jsonrpc":"2.0","id":9,"method":"foo"}`, 200, 200, -32601, "9", "foo"},
		{"P9: a method of the modern era", `{"jsonrpc":"2.0","id":9,"method":"server/discover"}`, 200, 200, -32601, "9", ""},
		{"P10: invalid JSON", `{`, 400, 400, -32700, "null", ""},
		{"P10: an empty body", ``, 400, 400, -32700, "null", ""},
		{"P10: two values", `{}{}`, 400, 400, -32700, "null", ""},
		{"P10: a batch of one", `[{"jsonrpc":"2.0","id":1,"method":"health"}]`, 200, 400, -32600, "null", ""},
		{"P10: a number", `5`, 200, 400, -32600, "null", ""},
		{"P10: another version", `{"jsonrpc":"1.0","id":1,"method":"x"}`, 200, 400, -32600, "1", ""},
		{"P10: invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", 400, 400, -32700, "null", ""},
		{"P10: a batch", `[]`, 200, 400, -32600, "null", ""},
		{"P10: no version", `{"id":1,"method":"x"}`, 200, 400, -32600, "1", ""},
		{"P10: a method that is not a string", `{"jsonrpc":"2.0","id":1,"method":5}`, 200, 400, -32600, "1", ""},
		{"P10: no method", `{"jsonrpc":"2.0","id":1}`, 200, 400, -32600, "1", ""},
		{"P10: a duplicate member", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}`, 200, 400, -32600, "null", ""},
		{"P10: an id that is an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, 200, 400, -32600, "null", ""},
		{"P11: a call without a name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, 200, 200, -32602, "1",
			"name"},
		{"P11: a call without params", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, 200, 200, -32602, "1", "name"},
		{"P11: a name that is not a string", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}`, 200, 200,
			-32602, "1", "name"},
		{"P11: an unknown tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"zz"}}`, 200, 200,
			-32602, "1",
			"zz"},
		{"P11: a tool name in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"Health",` +
			`"arguments":{}}}`, 200, 200, -32602, "1", "Health"},
		{"P13: no arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"prune_text"}}`, 200, 200,
			-32602, "1", ""},
		{"P13: arguments that are a string", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"prune_text",` +
			`"arguments":"x"}}`, 200, 200, -32602, "1", "arguments"},
		{"P11: arguments that are a list", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"health",` +
			`"arguments":[]}}`, 200, 200, -32602, "1", "arguments"},
		{"P13: health has no arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"health",` +
			`"arguments":{"x":1}}}`, 200, 200, -32602, "1", "x:"},
	}
	for _, tt := range tests {
		for path, status := range map[string]int{"/rpc": tt.rpc, "/mcp": tt.mcp} {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				a := post(t, h, path, tt.message)
				if a.Status != status || a.code() != tt.code || string(a.ID) != tt.id {
					t.Fatalf("got %d, code %d, id %s; want %d, %d, %s", a.Status, a.code(), a.ID, status, tt.code, tt.id)
				}
				text := string(a.Result)
				if a.Error != nil {
					text = a.Error.Message
				}
				for fragment := range strings.SplitSeq(tt.fragments, "|") {
					if !strings.Contains(text, fragment) {
						t.Errorf("no %s in %s", fragment, text)
					}
				}
			})
		}
	}
	t.Run("a response is accepted only over Streamable HTTP", func(t *testing.T) {
		const message = `{"jsonrpc":"2.0","id":1,"result":{}}`
		if a := post(t, h, "/mcp", message); a.Status != 202 {
			t.Errorf("/mcp: %d", a.Status)
		}
		if a := post(t, h, "/rpc", message); a.Status != 200 || a.code() != -32600 {
			t.Errorf("/rpc: %d %d", a.Status, a.code())
		}
	})
	t.Run("a header of the legacy era", func(t *testing.T) {
		if a := post(t, h, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, version, "2025-06-18"); a.Status != 200 ||
			a.code() != 0 {
			t.Errorf("%d %d", a.Status, a.code())
		}
	})
	t.Run("a compressed request", func(t *testing.T) {
		if a := post(t, h, "/rpc", `{}`, "Content-Encoding", "gzip"); a.Status != 415 || a.code() != -32600 {
			t.Errorf("%d %d", a.Status, a.code())
		}
	})
}

func TestHealth(t *testing.T) { // P7, P8
	h, _ := load(t, `{}`)
	var payloads []map[string]any
	add := func(raw []byte) {
		t.Helper()
		var payload map[string]any
		if err := json.Unmarshal(raw, &payload); err != nil {
			t.Fatal(err)
		}
		if _, err := time.Parse(time.RFC3339, payload["timestamp"].(string)); err != nil {
			t.Error(err)
		}
		delete(payload, "timestamp")
		payloads = append(payloads, payload)
	}
	add(serve(t, h, "", httptest.NewRequest(http.MethodGet, "/health", nil)).Body.Bytes())
	add(post(t, h, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"health"}`).Result)
	var raw json.RawMessage
	decodeResult(t, callTool(t, h, "", "health", `{}`), &raw)
	add(raw)
	want := map[string]any{
		"status": "healthy", "server": "mcp-pruner", "version": "0.1.0", "backend": "heuristic",
		"capabilities": []any{"prune_text", "recover_text", "annotations", "markers"},
	}
	for i, got := range payloads {
		if !reflect.DeepEqual(got, want) {
			t.Errorf("payload %d: got %v", i, got)
		}
	}
}

func TestToolList(t *testing.T) { // P4, P16, P17, P79
	h, _ := load(t, `{}`)
	var list struct {
		Tools []struct {
			Name, Description         string
			InputSchema, OutputSchema any
		}
	}
	if err := json.Unmarshal(post(t, h, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`).Result,
		&list); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"prune_text":   schemaOf(t, "prune_text"),
		"recover_text": schemaOf(t, "recover_text"),
		"health":       `{"type":"object","properties":{},"additionalProperties":false}`,
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		var schema any
		if err := json.Unmarshal([]byte(want[tool.Name]), &schema); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(tool.InputSchema, schema) {
			t.Errorf("%s: inputSchema %v", tool.Name, tool.InputSchema)
		}
		if tool.Description == "" || tool.OutputSchema == nil {
			t.Errorf("%s: description %q, outputSchema %v", tool.Name, tool.Description, tool.OutputSchema)
		}
	}
	if !slices.Equal(names, []string{"prune_text", "recover_text", "health"}) {
		t.Errorf("tools %v", names)
	}
}

// modern returns a message of the modern era and its headers. params begins its params.
func modern(method, version, params string) (message string, header []string) {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params +
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version +
			`","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		[]string{"Mcp-Protocol-Version", version, "Mcp-Method", method}
}

func TestModernEra(t *testing.T) { // P79
	h, _ := load(t, `{}`)
	const latest = "2026-07-28"
	tests := []struct {
		name           string
		method, params string
		version        string
		header         []string // added to the headers of the message, or replacing them
		status, code   int
		fragments      string
	}{
		{"discover", "server/discover", "", latest, nil, 200, 0,
			`"supportedVersions":["2026-07-28","2025-11-25",|"capabilities":{"tools":{}}|"ttlMs":3600000|"cacheScope":"public"`},
		{"tools", "tools/list", "", latest, nil, 200, 0,
			`"tools":[{"name":"prune_text"|"ttlMs":3600000|"cacheScope":"public"`},
		{"resources", "resources/list", "", latest, nil, 200, 0, `"resources":[]|"ttlMs":3600000|"cacheScope":"public"`},
		{"a call", "tools/call", `"name":"health","arguments":{},`, latest, []string{"Mcp-Name", "health"}, 200, 0,
			`"structuredContent":{"status":"healthy"`},
		{"an invalid call", "tools/call", `"name":"prune_text",`, latest, []string{"Mcp-Name", "prune_text"}, 200,
			-32602, "text"},
		{"a call with another name in its header", "tools/call", `"name":"health",`, latest,
			[]string{"Mcp-Name", "prune_text"}, 400, -32020, ""},
		{"a call without a name in its header", "tools/call", `"name":"health",`, latest, nil, 400, -32020, ""},
		{"another method in the header", "tools/list", "", latest, []string{"Mcp-Method", "tools/call"}, 400, -32020, ""},
		{"another version in the header", "tools/list", "", latest, []string{"Mcp-Protocol-Version", "2026-07-29"}, 400,
			-32020, ""},
		{"an unknown version", "tools/list", "", "2027-01-01", nil, 400, -32022, ""},
		{"an unknown method", "foo", "", latest, nil, 404, -32601, "foo"},
		{"a handshake", "initialize", "", latest, nil, 404, -32601, ""},
		{"ping", "ping", "", latest, nil, 404, -32601, ""},
		{"initialized as a request", "notifications/initialized", "", latest, nil, 404, -32601, ""},
	}
	for _, tt := range tests {
		for _, path := range []string{"/mcp", "/rpc"} { // a gateway uses /rpc
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				message, header := modern(tt.method, tt.version, tt.params)
				a := post(t, h, path, message, append(header, tt.header...)...)
				if a.Status != tt.status || a.code() != tt.code || string(a.ID) != "7" {
					t.Fatalf("got %d, code %d, id %s", a.Status, a.code(), a.ID)
				}
				text := string(a.Result)
				if a.Error != nil {
					text = a.Error.Message
				} else if !strings.HasPrefix(text, `{"resultType":"complete",`+
					`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"mcp-pruner","version":"0.1.0"}},`) {
					t.Errorf("no serverInfo in %.200s", text)
				}
				for fragment := range strings.SplitSeq(tt.fragments, "|") {
					if !strings.Contains(text, fragment) {
						t.Errorf("no %s in %.300s", fragment, text)
					}
				}
			})
		}
	}
	t.Run("a version only in the header", func(t *testing.T) {
		if a := post(t, h, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "Mcp-Protocol-Version", latest,
			"Mcp-Method", "tools/list"); a.Status != 400 || a.code() != -32602 {
			t.Errorf("%d %d", a.Status, a.code())
		}
	})
	t.Run("P10: without headers at /rpc, errors have status 200", func(t *testing.T) {
		message, _ := modern("foo", latest, "")
		if a := post(t, h, "/rpc", message); a.Status != 200 || a.code() != -32020 {
			t.Errorf("%d %d", a.Status, a.code())
		}
	})
}

func FuzzPost(f *testing.F) { // P57
	h, _ := load(f, `{}`)
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"prune_text","arguments":` +
		arguments("a\nb\nc", "b") + `}}`)
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"recover_text",` +
		`"arguments":{"prune_id":"prn_x","ranges":[{"start_line":1,"end_line":2e0}],"include_line_numbers":true}}}`)
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	f.Add(`{"jsonrpc":"2.0","method":"x"}`)
	f.Add(`{"jsonrpc":"2.0","id":"\u0061","method":"tools/list","method":"x"}`)
	f.Add(`{"jsonrpc":"2.0","id":12345678901234567890,"method":"tools/call","params":{"name":"prune_text",` +
		`"arguments":{"text":1}}}`)
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"x"}`)
	f.Add(`[]`)
	f.Add(`{"jsonrpc":"2.0","id":{},"method":"ping"}`)
	f.Fuzz(func(t *testing.T, message string) {
		a := post(t, h, "/rpc", message)
		if a.Status != 200 && a.Status != 202 && a.Status != 400 {
			t.Errorf("status %d", a.Status)
		}
		// A response has the id of the request. A message without an id gets no result.
		var m map[string]json.RawMessage
		isObject := json.Unmarshal([]byte(message), &m) == nil
		id, asks := m["id"]
		switch {
		case a.Result != nil && (!isObject || !asks || string(a.ID) != string(id)):
			t.Errorf("%q: result with id %s", message, a.ID)
		case a.Error != nil && string(a.ID) != "null" && string(a.ID) != string(id):
			t.Errorf("%q: error with id %s", message, a.ID)
		case !isObject && a.Error == nil:
			t.Errorf("%q: no error", message)
		}
	})
}

// schemaOf returns the input schema of a tool (P16, P17).
func schemaOf(t *testing.T, tool string) string {
	t.Helper()
	schema, err := os.ReadFile("testdata/" + tool + ".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(schema)
}
