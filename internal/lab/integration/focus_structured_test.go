package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// structuredResult is the result of a tool with structured content.
type structuredResult struct {
	Content []struct {
		Type, Text, Data string
	} `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent"`
}

const (
	recordsSchema = `{"type":"object","properties":{"records":{"type":"array","items":{"type":"object","properties":{` +
		`"id":{"type":"integer"},"name":{"type":"string"},"note":{"type":"string"},` +
		`"tags":{"type":"array","items":{"type":"string","maxLength":9}}},` +
		`"required":["id","name","note","tags"],"additionalProperties":false}},"total":{"type":"integer"}},` +
		`"required":["records","total"],"additionalProperties":false}`
	resultSchema = `{"type":"object","properties":{"result":{"type":"string"}},"required":["result"]}`
)

// recordsJSON returns 2,000 records, one of which matches recordGoal, as compact and as indented
// JSON.
func recordsJSON(t *testing.T) (compact, indented string) {
	t.Helper()
	var records []string
	for i := range 2000 {
		note := fmt.Sprintf("Delivered on day %d without remarks.", i%365)
		if i == 1234 {
			note = recordNote
		}
		const format = `{"id":%d,"name":"order %d","note":%q,"tags":["t%d","é"]}`
		records = append(records, fmt.Sprintf(format, i, i, note, i%7))
	}
	compact = `{"records":[` + strings.Join(records, ",") + `],"total":2000}`
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(compact), "", "  "); err != nil {
		t.Fatal(err)
	}
	return compact, b.String()
}

const (
	recordGoal = "the order that was damaged by water"
	recordNote = "Water damage: two boxes were soaked, the customer wants a refund."
)

// Shortened results still satisfy SDKs and agents: the structured content matches its schema, the
// text says the same, and both are within the limit.
func TestFocusStructuredContent(t *testing.T) {
	isolate(t)
	compact, indented := recordsJSON(t)
	image := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("not really a picture"), 1000))
	tool := func(name, schema string) string {
		if schema != "" {
			schema = `,"outputSchema":` + schema
		}
		return `{"name":"` + name + `","inputSchema":{"type":"object"}` + schema + `}`
	}
	server := newLenientServer(t, tool("records", recordsSchema), tool("pictured", recordsSchema),
		tool("silent", recordsSchema), tool("wrapped", resultSchema), tool("plain", ""))
	text := func(s string) string { return `{"type":"text","text":` + quote(s) + `}` }
	server.Replies = map[string]string{
		"records": `"result":{"content":[` + text(indented) + `],"structuredContent":` + compact + `}`,
		"pictured": `"result":{"structuredContent":` + compact + `,"content":[` +
			`{"type":"image","data":"` + image + `","mimeType":"image/png"},` + text(compact) + `]}`,
		"silent": `"result":{"content":[],"structuredContent":` + compact + `}`,
		"wrapped": `"result":{"content":[` + text(focusText) + `],` +
			`"structuredContent":{"result":` + quote(focusText) + `}}`,
		"plain": mcptest.Text(compact),
	}
	url := serve(t, gateway("separator __", block("mask", "keep_media on", "recover on", "json on"), "focus on",
		server.line("far")))
	for _, era := range []string{"v1", "legacy", "modern"} {
		call := callAll(t, joinedAt(url), era, server.Tools)
		for _, goal := range []string{"", recordGoal} {
			name := era + ", without focus"
			if goal != "" {
				name = era + ", with focus"
			}
			// isCut checks shortened JSON of the records.
			isCut := func(t *testing.T, value string) {
				t.Helper()
				if n := utf8.RuneCountInString(value); n > 4000 || n < 2000 {
					t.Errorf("got %d characters", n)
				}
				if strings.Contains(value, recordNote) != (goal != "") {
					t.Errorf("contains the record: %t", goal == "")
				}
			}
			for _, tt := range []struct {
				tool, original string
				text, note     int // positions in the content
			}{{"records", indented, 0, 1}, {"pictured", compact, 1, 2}} {
				t.Run(name+", "+tt.tool, func(t *testing.T) {
					got := call(t, tt.tool, goal)
					if len(got.Content) != tt.note+1 {
						t.Fatalf("got %d parts: %.1000v", len(got.Content), got)
					}
					text := got.Content[tt.text].Text
					isCut(t, text)
					isCut(t, string(got.StructuredContent))
					if !reflect.DeepEqual(parseJSON(t, text), parseJSON(t, string(got.StructuredContent))) {
						t.Errorf("got text %s\nstructured content %s", text, got.StructuredContent)
					}
					expectRecovers(t, url, got.Content[tt.note].Text, tt.original)
					if tt.text == 1 && got.Content[0].Data != image {
						t.Errorf("got an image of %d characters", len(got.Content[0].Data))
					}
				})
			}
			t.Run(name+", no text", func(t *testing.T) {
				got := call(t, "silent", goal)
				isCut(t, string(got.StructuredContent))
				if len(got.Content) != 1 {
					t.Fatalf("%.1000v", got)
				}
				expectRecovers(t, url, got.Content[0].Text, compact)
			})
			t.Run(name+", no structured content", func(t *testing.T) {
				got := call(t, "plain", goal)
				if len(got.Content) != 1 || got.StructuredContent != nil {
					t.Fatalf("%.1000v", got)
				}
				text := got.Content[0].Text
				isCut(t, text)
				items := parseJSON(t, text).(map[string]any)["records"].([]any)
				markers := 0
				for _, item := range items {
					if s, ok := item.(string); ok && strings.Contains(s, "items left out id=obs_") {
						markers++
					}
				}
				if markers == 0 {
					t.Errorf("no note about the items left out: %s", text)
				}
				expectRecovers(t, url, text, compact)
			})
			t.Run(name+", a text in structured content", func(t *testing.T) {
				goal := goal
				if goal != "" {
					goal = focusGoal
				}
				got := call(t, "wrapped", goal)
				value, _ := parseJSON(t, string(got.StructuredContent)).(map[string]any)
				if len(got.Content) != 1 || value["result"] != got.Content[0].Text {
					t.Fatalf("%.1000v", got)
				}
				text := got.Content[0].Text
				if goal == "" {
					expectHeadAndTail(t, text)
				} else {
					expectFocused(t, text)
				}
				expectRecovers(t, url, got.Content[0].Text, focusText)
			})
		}
	}
}

// callAll calls all tools of the server "far" with an SDK, without focus and with each goal. It
// returns a function that returns the results.
func callAll(t *testing.T, endpoint, era string, tools []string) func(t *testing.T, tool,
	goal string) structuredResult {
	t.Helper()
	type request struct {
		Method string         `json:"method"`
		Params map[string]any `json:"params"`
	}
	var requests []request
	var keys []string
	for _, tool := range tools {
		for _, goal := range []string{"", recordGoal, focusGoal} {
			arguments := map[string]string{}
			if goal != "" {
				arguments["focus"] = goal
			}
			name := toolNameOf(t, tool)
			params := map[string]any{"name": "far__" + name, "arguments": arguments}
			requests = append(requests, request{"tools/call", params})
			keys = append(keys, name+" "+goal)
		}
	}
	type outcome struct {
		Result structuredResult
		Error  *struct{ Message string }
	}
	results := runJSON[struct{ Requests []outcome }](t, peer(t, "joined.mjs", endpoint, era), requests)
	return func(t *testing.T, tool, goal string) structuredResult {
		t.Helper()
		got := results.Requests[slices.Index(keys, tool+" "+goal)]
		if got.Error != nil {
			t.Fatalf("the client rejects the result: %s", got.Error.Message)
		}
		return got.Result
	}
}

// parseJSON returns the value of a JSON text.
func parseJSON(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Errorf("%v: %.300s", err, text)
	}
	return value
}

// expectRecovers fails the test unless the id in a note recovers this original.
func expectRecovers(t *testing.T, url, note, original string) {
	t.Helper()
	_, id, _ := strings.Cut(note, "id=")
	if id = id[:min(len(id), len("obs_")+10)]; id == "" {
		t.Fatalf("no id in %q", note)
	}
	c := newTestClient(t, joinedAt(url), false, `{}`)
	same(t, c.read(t, "proxy://observation/"+id), original)
}
