package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// itemKeys are the members with the names of items.
var itemKeys = [mcp.ListKindCount]string{mcp.Tools: "name", mcp.Prompts: "name", mcp.Resources: "uri",
	mcp.Templates: "uriTemplate", mcp.Tasks: "taskId"}

// FuzzListing compares the items of a page with those that encoding/json finds. Each item has its
// shown name and is otherwise unchanged.
func FuzzListing(f *testing.F) {
	for _, page := range []string{
		`{"tools":[{"name":"a","inputSchema":{"x":1.0}},{"name":"\u0062"},{"name":"a"},{"name":7},{}],"nextCursor":"c",` +
			`"ttlMs":5,"cacheScope":"public"}`,
		// A cacheScope that is not a string crashed the process.
		`{"tools":[],"cacheScope":1}`, `{"tools":[],"cacheScope":{},"ttlMs":-1,"nextCursor":null}`,
		`{"tools":{}}`, `{"tools":[]}`, `{"tools":[[{"name":"a"}]]}`, `{"tools":[{"name":"a","name":"b"}]}`,
		`{"prompts":[{"name":"p","arguments":[]}]}`, `{"resources":[{"uri":"x://é","name":"n"}]}`,
		`{"resourceTemplates":[{"uriTemplate":"x://{y}"}]}`, `{"tasks":[{"taskId":"1"}]}`,
		`{"tools":[{"inputSchema":{"properties":{"a":{"x-mcp-header":"A"}}},"name":"t"}]}`, `{"Tools":[{"name":"a"}]}`, `{}`,
		`[]`, `{"tools":[{"name":"` + strings.Repeat("long", 30) + `"}]}`,
	} {
		for k := range mcp.ListKindCount {
			f.Add([]byte(page), uint8(k))
		}
	}
	a := newBareGateway(func(c *Config) { c.Naming.Longest = 64 }, legacyPeer("a"), legacyPeer("b"))
	f.Fuzz(func(t *testing.T, page []byte, which uint8) {
		k := mcp.ListKind(which) % mcp.ListKindCount
		b := &builder{g: a, server: a.config.Servers[0], kind: k, filter: upstream.ListFilter{Done: true},
			list: new(catalog.List), seen: map[string]bool{}}
		var answer mcp.List
		failure := answer.Read(slices.Concat([]byte(`{"jsonrpc":"2.0","id":1,"result":`), page, []byte("}")))
		if failure == nil {
			failure = b.add(&answer)
		}
		if !json.Valid(page) && failure == nil {
			t.Fatalf("%q was accepted", page)
		}
		if failure != nil || jsontest.Repeats(page) {
			return
		}
		var result map[string]json.RawMessage
		var items []json.RawMessage
		if json.Unmarshal(page, &result) != nil || json.Unmarshal(result[mcp.ListKinds[k].Member], &items) != nil {
			t.Fatalf("%q was accepted", page)
		}
		var wanted []any
		seen := map[string]bool{}
		for _, raw := range items {
			item, _ := jsontest.Value(raw).(map[string]any)
			name, isText := item[itemKeys[k]].(string)
			if !isText || seen[name] {
				continue
			}
			seen[name] = true
			item[itemKeys[k]] = a.names.shown("a", k, name)
			wanted = append(wanted, item)
		}
		list := b.finish()
		if len(list.Ends) != len(wanted) || len(list.Names) != len(wanted) {
			t.Fatalf("%q has %d items, want %d", page, len(list.Ends), len(wanted))
		}
		for i := range wanted {
			got := jsontest.Value(list.Item(i)).(map[string]any)
			if !reflect.DeepEqual(got, wanted[i]) || got[itemKeys[k]] != list.Names[i] {
				t.Fatalf("%q: item %d is %s with name %q", page, i, list.Item(i), list.Names[i])
			}
			if original, short := list.Short[list.Names[i]]; short && a.names.shown("a", k, original) != list.Names[i] {
				t.Fatalf("%q stands for %q", list.Names[i], original)
			}
		}
		for _, ui := range list.UIs {
			var uri string
			if err := json.Unmarshal(list.Joined[ui.Start:ui.End], &uri); err != nil || uri != ui.URI {
				t.Fatalf("%q: %q stands for %q, %v", page, list.Joined[ui.Start:ui.End], ui.URI, err)
			}
		}
		if all := append(append([]byte{'['}, list.From(0, len(wanted), nil)...), ']'); !json.Valid(all) {
			t.Fatalf("%q became %q", page, all)
		}
		var cursor string
		_ = json.Unmarshal(result["nextCursor"], &cursor)
		if b.cursor != cursor {
			t.Fatalf("%q continues at %q", page, b.cursor)
		}
		if string(result["cacheScope"]) != `"public"` && result["cacheScope"] != nil && !b.fresh.Private {
			t.Fatalf("scope of %q is public", page)
		}
	})
}

// FuzzSession checks that a session id with any change is invalid, and so are values sealed for
// another purpose.
func FuzzSession(f *testing.F) {
	a := newBareGateway(nil)
	// The last character has unused bits.
	good := a.sealer.sealTicket(ticket{Identity: "ann", Version: mcp.Latest, InitParams: json.RawMessage(`{"a":1}`),
		Links: map[string]linkTicket{"a": {Version: "2025-03-26", Session: "s1", Can: mcp.HasTools}}})
	whole := uint(len(good))
	f.Add(uint(0), uint(0), "")
	f.Add(whole-1, uint(1), "B")
	f.Add(whole, uint(0), "=")
	f.Add(whole/2, uint(0), "\n") // another spelling of a session id kept the session alive after its end
	f.Add(whole/2, uint(0), " ")
	f.Add(uint(0), whole, "e30")
	f.Add(uint(0), whole, strings.Repeat("A", 40))
	f.Add(uint(3), uint(1), "+")
	for i := range uint(64) { // like other values of the unused bits
		f.Add(whole-1, uint(1), string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[i]))
	}
	f.Fuzz(func(t *testing.T, start, cut uint, put string) {
		start %= whole + 1
		cut = min(cut, whole-start)
		id := good[:start] + put + good[start+cut:]
		opened, ok := a.sealer.openTicket(id)
		if ok != (id == good) || ok && opened.Identity != "ann" {
			t.Fatalf("%q is valid: %+v", id, opened)
		}
		if _, ok := a.sealer.Open("call", id); ok {
			t.Fatalf("%q is valid for a call", id)
		}
		// Whatever is sealed, an opened ticket has valid JSON.
		if inside, ok := a.sealer.openTicket(a.sealer.Seal("session", []byte(put))); ok && !json.Valid(inside.InitParams) &&
			inside.InitParams != nil {
			t.Fatalf("%q is valid: %+v", put, inside)
		}
	})
}

// FuzzRewritten checks that responses reach clients with shown names and are otherwise unchanged.
func FuzzRewritten(f *testing.F) {
	for _, answer := range []string{
		`{"id":1,"result":{"contents":[{"uri":"x:\/\/a", "text":"x"},{"blob":"","uri":"x://\u00e9"}]}}`,
		`{"result":{"content":[{"uri":"a:b"},{"resource":{"uri":"c:d"}},{"uri":1}],"uri":"e:f"}}`,
		`{"result":{"messages":[{"content":{"uri":"a:b"}},{"content":{"resource":{"uri":"c:d"}}}]}}`,
		`{"error":{"data":{"uri":"a:b"}}}`,
		`{"result":{"_meta":{"ui":{"resourceUri":"ui://a"},"ui/resourceUri":"ui:\/\/b","openai/outputTemplate":"c:d"}}}`,
		`{"result":{"content":[{"resource":{"uri":"ui://a"}}],"_meta":{"ui":"ui://a"}}}`,
		`{"result":{"task":{"taskId":"1"},"taskId":"2"}}`,
		`{"result":{"contents":{"a":{"uri":"x:y"}},"taskId":7.0}}`, `{"result":{"contents":[{"uri":"x:y","uri":"z:w"}]}}`,
		`{"result":{"contents":[{"uri":"x:y"}`, `{"result":{"contents":[{"uri":""}]}}`,
	} {
		f.Add([]byte(answer))
	}
	a := newBareGateway(nil, legacyPeer("a"), legacyPeer("b"))
	l := newLink(newClient(mcp.Legacy, mcp.Latest, "", "", new(introduction)), a.config.Servers[0])
	places := [][]string{{"result", "contents", "*", "uri"}, {"result", "content", "*", "uri"},
		{"result", "content", "*", "resource", "uri"}, {"result", "messages", "*", "content", "uri"},
		{"result", "messages", "*", "content", "resource", "uri"}, {"error", "data", "uri"}, {"result", "_meta", "ui",
			"resourceUri"}, {"result", "_meta", "ui/resourceUri"}, {"result", "_meta", "openai/outputTemplate"},
		{"result", "task", "taskId"}, {"result", "taskId"}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		got := rewritten(a, l, raw)
		if !bytes.Equal(raw, before) {
			t.Fatalf("input %q was changed", before)
		}
		if !json.Valid(raw) || jsontest.Repeats(raw) {
			if !json.Valid(raw) && !bytes.Equal(got, raw) {
				t.Fatalf("%q became %q", raw, got)
			}
			return
		}
		changed := false
		var rename func(v any, path []string) any
		rename = func(v any, path []string) any {
			if len(path) == 0 {
				name, isText := v.(string)
				if !isText {
					return v
				}
				changed = true
				place, _ := json.Marshal(map[string]string{"server": "a", "uri": name})
				prefix := "proxy://resource/"
				if strings.HasPrefix(name, "ui://") {
					prefix = "ui://proxy/resource/"
				}
				return prefix + base64.RawURLEncoding.EncodeToString(place)
			}
			switch v := v.(type) {
			case map[string]any:
				for key, value := range v {
					if path[0] == "*" || path[0] == key {
						v[key] = rename(value, path[1:])
					}
				}
			case []any:
				for i, value := range v {
					if path[0] == "*" {
						v[i] = rename(value, path[1:])
					}
				}
			}
			return v
		}
		want := jsontest.Value(raw)
		for _, path := range places {
			if path[len(path)-1] != "taskId" {
				want = rename(want, path)
			} else {
				want = addServerToTask(want, path, &changed)
			}
		}
		if !reflect.DeepEqual(decodeURIs(jsontest.Value(got)), decodeURIs(want)) || !changed && !bytes.Equal(got, raw) {
			t.Fatalf("%q became %q, want %q", raw, got, want)
		}
	})
}

// addServerToTask adds the server to a task id.
func addServerToTask(v any, path []string, changed *bool) any {
	object, _ := v.(map[string]any)
	value, has := object[path[0]]
	switch id, isText := value.(string); {
	case !has:
	case len(path) > 1:
		object[path[0]] = addServerToTask(value, path[1:], changed)
	case isText:
		object[path[0]] = "a::" + id
		*changed = true
	}
	return v
}

// decodeURIs decodes URIs of the gateway, because they have several spellings.
func decodeURIs(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = decodeURIs(v[key])
		}
	case []any:
		for i := range v {
			v[i] = decodeURIs(v[i])
		}
	case string:
		if server, uri, err := mcp.ParseURI(v); err == nil && strings.HasPrefix(v, "proxy://resource/") {
			return []any{server, uri}
		}
	}
	return v
}

// FuzzAntiquated checks that withoutModernMeta removes the modern _meta members from a request, and
// nothing else.
func FuzzAntiquated(f *testing.F) {
	for _, body := range []string{
		`{"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x","a":1.0 ,` +
			` "io.modelcontextprotocol\/clientInfo":{}}}}`, `{"params":{"_meta":{"io.modelcontextprotocol/x":1}}}`,
		`{"params":{"_meta":{ }}}`, `{"params":{"_meta":[]}}`, `{"params":{"_meta":{"a":1,"b":2,"a":3}}}`, `{}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var m jsonrpc.Message
		if m.Read(body) != nil || jsontest.Repeats(body) {
			return
		}
		made, failure := withoutModernMeta(&m)
		if failure != nil {
			t.Fatalf("%q: %v", body, failure)
		}
		got := made.Raw
		want := jsontest.Value(body)
		top, _ := want.(map[string]any)
		params, _ := top["params"].(map[string]any)
		meta, _ := params["_meta"].(map[string]any)
		switch top["id"].(type) {
		case nil, string, json.Number:
		default:
			return // not a message
		}
		for key := range meta {
			if strings.HasPrefix(key, "io.modelcontextprotocol/") {
				delete(meta, key)
			}
		}
		if !reflect.DeepEqual(jsontest.Value(got), want) {
			t.Fatalf("%q became %q", body, got)
		}
	})
}
