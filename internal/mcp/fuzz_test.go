package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
)

// flavors are the variants of base64.
var flavors = []*base64.Encoding{base64.RawURLEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.StdEncoding}

// hasMembers reports whether a text, in any variant of base64, is an object whose members have
// these literals or texts.
func hasMembers(encoded string, members map[string]any) bool {
	return slices.ContainsFunc(flavors, func(flavor *base64.Encoding) bool {
		text, err := flavor.DecodeString(encoded)
		var object map[string]any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err != nil || !json.Valid(text) || d.Decode(&object) != nil {
			return false
		}
		for name, value := range members {
			if object[name] != value {
				return false
			}
		}
		return true
	})
}

// FuzzCursor checks that a cursor encodes an offset, in any variant of base64, and that no other
// text is a cursor.
func FuzzCursor(f *testing.F) {
	f.Add(Cursor(0), 0)
	f.Add("\n", 1)
	f.Add("eyJvZmZzZXQiOi0xfQ", math.MaxInt)
	f.Add(base64.StdEncoding.EncodeToString([]byte(`{"offset":9223372036854775808}`)), 7)
	f.Add(base64.URLEncoding.EncodeToString([]byte(`{"offset":1,"offset":2}`)), 10)
	f.Add(base64.URLEncoding.EncodeToString([]byte(`{"offset":1.0,"Offset":2}`)), 100)
	f.Add(base64.URLEncoding.EncodeToString([]byte(`{"\u006fffset":12} `)), 1000)
	f.Fuzz(func(t *testing.T, cursor string, offset int) {
		if n, err := ParseCursor(cursor); err == nil &&
			(n < 0 || !hasMembers(cursor, map[string]any{"offset": json.Number(strconv.Itoa(n))})) {
			t.Fatalf("%q was read as %d", cursor, n)
		}
		place, err := base64.RawURLEncoding.DecodeString(Cursor(offset))
		if err != nil {
			t.Fatal(err)
		}
		for _, flavor := range flavors {
			n, err := ParseCursor(flavor.EncodeToString(place))
			if offset < 0 && err == nil || offset >= 0 && (n != offset || err != nil) {
				t.Fatalf("%d became %d, %v", offset, n, err)
			}
		}
	})
}

// FuzzNaming checks that a joined name maps to one tool and back, whatever names servers use.
func FuzzNaming(f *testing.F) {
	separators := []string{"::", "__", "_", ".", "/", "-", "a-", "._."}
	long := strings.Repeat("very_long_name_", 6)
	for i := range separators {
		f.Add(uint8(i), uint8(64), "server", long+"a", long+"b")
		f.Add(uint8(i), uint8(0), "a", "b", "::b")
	}
	f.Add(uint8(1), uint8(64), "s", "x", "s__x")
	f.Add(uint8(0), uint8(40), "s", strings.Repeat("é", 30), strings.Repeat("é", 31))
	f.Add(uint8(0), uint8(0), "", "a", "b")
	f.Add(uint8(0), uint8(0), "a::b", "a", "b")
	f.Add(uint8(0), uint8(0), "a:", "a", "b")
	f.Add(uint8(1), uint8(20), "a_long_server_name", "a", "b")
	f.Add(uint8(1), uint8(40), "s", strings.Repeat("x", longestName+1), "b")
	f.Add(uint8(0), uint8(40), "s", "x"+strings.Repeat("é", 30), strings.Repeat("\x89", 60))
	joined := Naming{"::", 40}.Join("s", long)
	f.Add(uint8(0), uint8(40), "s", long, strings.TrimPrefix(joined, "s::"))
	f.Fuzz(func(t *testing.T, which, longest uint8, server, a, b string) {
		n := Naming{separators[int(which)%len(separators)], int(longest)}
		if n.CheckSeparator() != nil || n.Check(server) != nil {
			return
		}
		names := map[string]string{}
		for _, name := range []string{a, b} {
			shown := n.Join(server, name)
			if n.Longest > 0 && len(shown) > n.Longest {
				t.Fatalf("%q of %q became %q, longer than %d", name, server, shown, n.Longest)
			}
			if other, taken := names[shown]; taken && other != name {
				t.Fatalf("%+v: %q and %q of %q both became %q", n, other, name, server, shown)
			}
			names[shown] = name
			gotServer, gotName, ok := n.Split(shown, func(s string) bool { return s == server })
			if !ok || gotServer != server || !n.MayBeShort(shown) && gotName != name {
				t.Fatalf("%+v: %q of %q became %q, split into %q of %q, %t", n, name, server, shown, gotName, gotServer, ok)
			}
			if utf8.ValidString(server) && utf8.ValidString(name) && !utf8.ValidString(shown) {
				t.Fatalf("%q of %q became %q", name, server, shown)
			}
			// Names with Separator are also understood, unless the name contains the separator.
			written := server + Separator + name
			if s, _, _ := strings.Cut(written, n.Separator); n.Separator == Separator || s != server {
				gotServer, gotName, ok = n.Split(written, func(s string) bool { return s == server })
				if !ok || gotServer != server || gotName != name {
					t.Fatalf("%+v: %q was split into %q of %q, %t", n, written, gotName, gotServer, ok)
				}
			}
		}
		short := Shortened(a)
		if kept, cut := strings.CutSuffix(short, "…"); short != a && (!cut || utf8.RuneCountInString(a) <= longestName ||
			!strings.HasPrefix(strings.ToValidUTF8(a, ""), kept)) {
			t.Fatalf("%q was shortened to %q", a, short)
		}
	})
}

// secret reports whether these tests hide a name.
func secret(name string) bool { return strings.Contains(name, "s") }

// filterLists returns a response without the items that keep refuses.
func filterLists(message []byte, keep func(*Item) bool) ([]byte, error) {
	var l List
	failure := l.Read(message)
	if failure == nil {
		failure = l.CheckDecisive()
	}
	if failure != nil {
		return message, failure
	}
	return jsonspan.Spliced(message, l.Filter(keep)...), nil
}

// FuzzFilterLists compares filtered lists with those that encoding/json reads. The remaining items
// and everything around the lists stay unchanged.
func FuzzFilterLists(f *testing.F) {
	for _, message := range []string{
		`{"result": {"tools" : [ {"name":"a"} , {"name":"b"} ]}}`,
		`{"result":{"tools":[{"name":"a"}, {"x":1,"name":"secret"},{"name":"b"}],"nextCursor":"1"}}`,
		`{"result":{"tools":[{"name":"\u0073"},{}],"prompts":[{"name":"p"},{"name":"s","name":"t"}]}}`,
		`{"result":{"resources":[{"name":"s","uri":"a"},{"uri":"s"}],"resourceTemplates":[{"uriTemplate":"s/{x}"}]}}`,
		`{"result":{"tools":{"x":{"name":"s"},"y":{"name":"a"}}}}`, `{"result":{"Tools":[{"name":"s"}]}}`,
		`{"result":{"tools":[{"NAME":"s"}]}}`, `{"result":{"tools":[[{"name":"s"}],"s",1,{"name":["s"]}]}}`,
		`{"result":{"tools":[{"name":"s"}],"prompts":[ {"name":"p"} , {"name":"q"} ],"resources":[ ]}}`,
		`{"result":{"structuredContent":{"tools":[{"name":"s"}]}}}`, `{"result":{"tools":[{"name":"s"}`,
		`{"tools":[{"name":"s"}],"id":1.0}`,
	} {
		f.Add([]byte(message))
	}
	lists := map[string]string{"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate",
		"tasks": "taskId", "skills": "uri"}
	f.Fuzz(func(t *testing.T, message []byte) {
		before := bytes.Clone(message)
		asked := 0
		got, err := filterLists(message, func(item *Item) bool {
			asked++
			if !json.Valid(item.Raw) || !bytes.Equal(item.Raw, message[item.Start:item.End()]) {
				t.Fatalf("keep was called for %+v", item)
			}
			return !secret(item.Name)
		})
		if !bytes.Equal(message, before) {
			t.Fatalf("input %q changed to %q", before, message)
		}
		if err != nil {
			return
		}
		if !json.Valid(message) {
			t.Fatalf("%q was accepted", message)
		}
		if jsontest.Repeats(message) {
			return // encoding/json would see only the last
		}
		var envelope, envelopeGot, result, resultGot map[string]json.RawMessage
		if json.Unmarshal(message, &envelope) != nil || json.Unmarshal(envelope["result"], &result) != nil {
			if !bytes.Equal(got, message) {
				t.Fatalf("%q became %q", message, got)
			}
			return
		}
		if json.Unmarshal(got, &envelopeGot) != nil || json.Unmarshal(envelopeGot["result"], &resultGot) != nil {
			t.Fatalf("%q became %q", message, got)
		}
		wantAsked, changes := 0, false
		for member, key := range lists {
			if list := result[member]; len(list) > 0 && list[0] == '{' {
				if string(resultGot[member]) != "[]" {
					t.Fatalf("%q became %q: %s is an object", message, got, member)
				}
				changes = true
				delete(result, member)
				delete(resultGot, member)
				continue
			}
			items, kept := itemsOf(result[member]), []json.RawMessage{}
			for _, item := range items {
				wantAsked++
				var object map[string]json.RawMessage
				var name string
				if json.Unmarshal(item, &object) != nil || json.Unmarshal(object[key], &name) != nil || !secret(name) {
					kept = append(kept, item)
				}
			}
			if len(kept) == len(items) {
				continue
			}
			changes = true
			if left := itemsOf(resultGot[member]); !slices.EqualFunc(left, kept,
				func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("%q became %q: %s are %q, want %q", message, got, member, left, kept)
			}
			delete(result, member)
			delete(resultGot, member)
		}
		delete(envelope, "result")
		delete(envelopeGot, "result")
		same := func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }
		if asked != wantAsked || !maps.EqualFunc(envelope, envelopeGot, same) || !maps.EqualFunc(result, resultGot, same) ||
			!changes && !bytes.Equal(got, message) {
			t.Fatalf("%q became %q", message, got)
		}
	})
}

// itemsOf returns the items of a list, or of an object.
func itemsOf(list json.RawMessage) (items []json.RawMessage) {
	if json.Unmarshal(list, &items) == nil {
		return items
	}
	d := json.NewDecoder(bytes.NewReader(list))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	for d.More() {
		var value json.RawMessage
		_, _ = d.Token()
		_ = d.Decode(&value)
		items = append(items, value)
	}
	return items
}

// FuzzModernHeaders checks that the headers of a modern request pass if and only if they agree with
// what encoding/json reads in its body, and that headers set by SetModern do.
func FuzzModernHeaders(f *testing.F) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{}}`
	for _, seed := range [][2]string{
		{`{"method":"tools/call","params":{"name":"é x",` + meta + `}}`, "=?base64?w6kgeA==?="},
		{`{"method":"tools/call","params":{"name":"=?base64?eA==?=",` + meta + `}}`, "x"},
		{`{"method":"resources\/read","params":{"uri":"file:///a",` + meta + `}}`, "file:///a"},
		{`{"method":"tasks/get","params":{"taskId":" t ",` + meta + `}}`, "t"},
		{`{"method":"tools/list","params":{` + meta + `}}`, ""}, {`{"method":"prompts/get","params":{"name":"",` + meta +
			`}}`, ""}, {`{"method":7,"params":{` + meta + `}}`, "7"}, {`{"method":"tools/call","params":{"name":1,` + meta +
			`}}`, "1"},
		{`{"method":"tools/call","params":{"name":"x"}}`, "x"}, {`{"method":"tools/call","params":{"name":"x",` + meta + `}}`,
			"=?base64?eA=="}, {`{"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":1}}}`,
			"=?base64?!?="},
	} {
		f.Add([]byte(seed[0]), "2026-07-28", "tools/call", seed[1])
		f.Add([]byte(seed[0]), "2026-07-28", "tools/call", "")
		f.Add([]byte(seed[0]), "2026-07-28", "tools/list", seed[1])
		f.Add([]byte(seed[0]), "2025-11-25", "tasks/get", seed[1])
	}
	f.Fuzz(func(t *testing.T, body []byte, version, method, name string) {
		var m jsonrpc.Message
		if m.ReadRequest(body) != nil || jsontest.Repeats(body) {
			return
		}
		var message struct {
			Method, Params json.RawMessage
		}
		exactly(body, map[string]*json.RawMessage{"method": &message.Method, "params": &message.Params})
		var asMeta, wantVersion, capabilities, target json.RawMessage
		exactly(message.Params, map[string]*json.RawMessage{"_meta": &asMeta})
		exactly(asMeta, map[string]*json.RawMessage{"io.modelcontextprotocol/protocolVersion": &wantVersion,
			"io.modelcontextprotocol/clientCapabilities": &capabilities})
		key := ""
		switch wantMethod, _ := textOf(message.Method); {
		case wantMethod == "tools/call", wantMethod == "prompts/get":
			key = "name"
		case wantMethod == "resources/read":
			key = "uri"
		case wantMethod == "tasks/get", wantMethod == "tasks/update", wantMethod == "tasks/cancel":
			key = "taskId"
		}
		exactly(message.Params, map[string]*json.RawMessage{key: &target})
		is := func(literal json.RawMessage, text string) bool {
			got, isText := textOf(literal)
			return isText && got == text
		}
		plain := name
		if encoded, ok := strings.CutPrefix(name, "=?base64?"); ok && strings.HasSuffix(encoded, "?=") {
			decoded, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(encoded, "?="))
			plain = string(decoded)
			if err != nil {
				plain = ""
			}
		}
		header := http.Header{}
		header.Set(VersionHeader, version)
		header.Set(methodHeader, method)
		header.Set(nameHeader, name)
		want := is(wantVersion, version) && capabilities != nil && is(message.Method, method) && (key == "" || plain != "" &&
			is(target, plain))
		if failure := CheckModern(header, &m); (failure == nil) != want {
			t.Fatalf("%q with %q: got %v, want pass = %t", body, header, failure, want)
		}
		wantText, _ := textOf(wantVersion)
		SetModern(header, &m, wantText)
		for _, values := range header {
			if len(values) != 1 || strings.ContainsFunc(values[0], func(c rune) bool { return c < ' ' || c > '~' }) &&
				values[0] != wantText {
				t.Fatalf("%q got headers %q", body, header)
			}
		}
		gotMethod, isText := textOf(message.Method)
		targetText, hasTarget := textOf(target)
		if wantVersion != nil && is(wantVersion, wantText) && capabilities != nil && isText &&
			HeaderText(gotMethod) == gotMethod && (key == "" || hasTarget && targetText != "") {
			if failure := CheckModern(header, &m); failure != nil {
				t.Fatalf("%q with its own headers %q: %v", body, header, failure)
			}
		}
		if text, ok := decodeHeaderText(HeaderText(name)); text != name || !ok {
			t.Fatalf("%q became header %q", name, text)
		}
	})
}

// exactly reads the members of an object with exactly these names.
func exactly(object []byte, members map[string]*json.RawMessage) {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(object, &all)
	for name, value := range members {
		*value = all[name]
	}
}

func textOf(literal []byte) (text string, isText bool) {
	return text, len(literal) > 0 && literal[0] == '"' && json.Unmarshal(literal, &text) == nil
}

// FuzzParamHeaders checks that headers set for a call pass the check, and that no other headers
// pass for an argument with a header.
func FuzzParamHeaders(f *testing.F) {
	const list = `{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"},` +
		`"b":{"properties":{"c":{"type":"integer","x-mcp-header":"b-c"}}},"d":true}}}],"nextCursor":"n"}`
	f.Add([]byte(list), []byte(`{"a":"é","b":{"c":1.50}}`), "x")
	f.Add([]byte(list), []byte(`{"b":{"c":4.2e1}}`), "x")
	f.Add([]byte(list), []byte(`{"a":true,"b":[]}`), "true")
	f.Add([]byte(list), []byte(`{"a":null,"a":"="}`), "")
	f.Add([]byte(`{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"X"},`+
		`"b":{"type":"string","x-mcp-header":"x"}}}}]}`), []byte(`{"a":"1","b":"2"}`), "2")
	f.Add([]byte(list), []byte(`{}`), "x")
	f.Add([]byte(`{"tools":[{"name":"t","inputSchema":{}}]}`), []byte(`{}`), "x")
	f.Add([]byte(`{"tools":`), []byte(`0`), "x")
	f.Add([]byte(`{"tools":[],"nextCursor":""}`), []byte(`{}`), "x")
	f.Fuzz(func(t *testing.T, list, arguments []byte, value string) {
		var m jsonrpc.Message
		if m.Read(fmt.Appendf(nil, `{"method":"tools/call","params":{"name":"t","arguments":%s}}`, arguments)) != nil ||
			jsontest.Repeats(arguments) || !m.Has(jsonrpc.Arguments) {
			return
		}
		params := ParamHeaders{}
		cursor, err := params.Add(list)
		var page struct{ NextCursor any }
		if wrong := json.Unmarshal(list, &page); err == nil && (wrong != nil || (cursor == nil) != (page.NextCursor == nil) ||
			cursor != nil && *cursor != page.NextCursor) {
			t.Fatalf("%q continues at %v, want %v, %v", list, cursor, page.NextCursor, wrong)
		}
		var tools struct{ Tools []json.RawMessage }
		if err == nil && json.Unmarshal(list, &tools) == nil && len(tools.Tools) == 1 {
			var tool struct{ Name string }
			_ = json.Unmarshal(tools.Tools[0], &tool) // it was parsed as part of the list
			one := ParamHeaders{}
			_ = one.AddTool(tool.Name, tools.Tools[0])
			if all := len(params[tool.Name]); len(one[tool.Name]) != all || len(one) != len(params) {
				t.Fatalf("%q has %d headers, its tool alone %v", list, all, one)
			}
		}
		header := http.Header{"Mcp-Param-Other": {"x"}, "Accept": {"y"}}
		params.Set(header, &m)
		names := map[string]bool{}
		for _, h := range params["t"] {
			name := http.CanonicalHeaderKey(paramPrefix + h.name)
			if names[name] || !isToken(h.name) {
				t.Fatalf("%q has invalid headers: %v", list, params)
			}
			names[name] = true
		}
		for name, values := range header {
			if name != "Accept" && (!names[name] || len(values) != 1) {
				t.Fatalf("%q set headers %q", list, header)
			}
		}
		if failure := params.Check(header, &m); failure != nil {
			t.Fatalf("%q with %q: %v", arguments, header, failure)
		}
		for name := range names {
			changed := header.Clone()
			changed[name] = []string{value}
			set, ok := decodeHeaderText(header.Get(name))
			text, textOK := decodeHeaderText(value)
			if failure := params.Check(changed, &m); (failure == nil) != (header.Get(name) != "" && ok && textOK &&
				(text == set || sameNumber(text, set))) && header[name] != nil && set != "" {
				t.Fatalf("%q with %q: %v", arguments, changed, failure)
			}
			if failure := params.Check(http.Header{name: {value, value}}, &m); failure == nil {
				t.Fatalf("%q passes with two headers %s", arguments, name)
			}
		}
	})
}

// FuzzMatchName compares the result with a simple implementation that tries all ways to match.
func FuzzMatchName(f *testing.F) {
	for _, pair := range [][2]string{{"*", ""}, {"a*b*c", "abbc"}, {"*a*", "bab"}, {"a*a", "a"}, {"", ""}, {"**", "x"},
		{"*é", "éé"}, {"ab*ba", "aba"}, {"*::*", "::"}, {"*::w*", ":"}, {"a*", "b"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		pattern, name = pattern[:min(len(pattern), 60)], name[:min(len(name), 200)]
		// fits[i] reports whether name[i:] matches the rest of the pattern.
		fits := make([]bool, len(name)+1)
		fits[len(name)] = true
		for p := len(pattern) - 1; p >= 0; p-- {
			next := make([]bool, len(name)+1)
			for i := len(name); i >= 0; i-- {
				if pattern[p] == '*' {
					next[i] = fits[i] || i < len(name) && next[i+1]
				} else {
					next[i] = i < len(name) && name[i] == pattern[p] && fits[i+1]
				}
			}
			fits = next
		}
		if got := MatchName(pattern, name); got != fits[0] {
			t.Fatalf("%q matches %q: %t", name, pattern, got)
		}
		parsed, err := ParsePattern(pattern)
		if server, tool, ok := strings.Cut(pattern, "::"); (err == nil) != (ok && server != "" && tool != "") || err == nil &&
			parsed.Match(name, name) != (MatchName(server, name) && MatchName(tool, name)) {
			t.Fatalf("%q: %+v, %v", pattern, parsed, err)
		}
	})
}

// FuzzInput checks that a result requests the input that encoding/json reads in it. A repeated call
// has the responses and is otherwise unchanged.
func FuzzInput(f *testing.F) {
	for _, result := range []string{
		`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"method":"elicitation/create",` +
			`"params":{"x":1.0}}},"requestState":"s"}`,
		`{"resultType":"input_required","requestState":null}`, `{"resultType":"input_required","inputRequests":[]}`,
		`{"resultType":"input_required","inputRequests":{"a":1}}`,
		`{"resultType":"input_required","inputRequests":{"a":{"method":"x","Method":"y"}}}`,
		`{"resultType":"input_required","inputRequests":{"a":{"method":"x"},"\u0061":{"method":"y"}}}`,
		`{"resultType":"complete"}`, `{"resultType":"input_required","InputRequests":{}}`,
		`{"resultType":"input_required","inputRequests":{"a":{}}}`,
	} {
		f.Add([]byte(result), []byte(`{"name":"x","arguments":{}}`))
		f.Add([]byte(result), []byte(`{"inputResponses":7,"_meta":{},"requestState":[]}`))
	}
	f.Fuzz(func(t *testing.T, result, params []byte) {
		var answer, request jsonrpc.Message
		if answer.Read(fmt.Appendf(nil, `{"id":1,"result":%s}`, result)) != nil || !json.Valid(result) {
			return
		}
		asks, is, err := ReadInput(&answer)
		var kind, asked, state json.RawMessage
		exactly(result, map[string]*json.RawMessage{"resultType": &kind, "inputRequests": &asked, "requestState": &state})
		if text, _ := textOf(kind); is != (text == InputRequired) {
			t.Fatalf("%q requests input: %t", result, is)
		}
		if !is || err != nil || jsontest.Repeats(result) {
			return
		}
		if !bytes.Equal(asks.State, state) {
			t.Fatalf("%q: got state %q", result, asks.State)
		}
		want := map[string]InputRequest{}
		var requests map[string]map[string]json.RawMessage
		if asked != nil && json.Unmarshal(asked, &requests) != nil {
			t.Fatalf("%q: %+v", result, asks)
		}
		for key, members := range requests {
			method, isText := textOf(members["method"])
			if !isText && string(members["method"]) != "null" {
				t.Fatalf("%q requests %q", result, members)
			}
			want[key] = InputRequest{method, members["params"]}
		}
		if !reflect.DeepEqual(asks.Requests, want) {
			t.Fatalf("%q requests %+v, want %+v", result, asks.Requests, want)
		}
		if !json.Valid(params) || jsontest.Repeats(params) ||
			request.Read(fmt.Appendf(nil, `{"id":1,"method":"m","params":%s}`, params)) != nil {
			return
		}
		responses := map[string]json.RawMessage{"k": json.RawMessage(`{"a":1}`)}
		again := WithInput(&request, responses, asks.State)
		if !json.Valid(again) {
			t.Fatalf("%q became %q", params, again)
		}
		var paramsAgain, given, stateGiven json.RawMessage
		exactly(again, map[string]*json.RawMessage{"params": &paramsAgain})
		exactly(paramsAgain, map[string]*json.RawMessage{"inputResponses": &given, "requestState": &stateGiven})
		var before, after map[string]json.RawMessage
		_ = json.Unmarshal(params, &before)
		_ = json.Unmarshal(paramsAgain, &after)
		if state == nil {
			state = before["requestState"] // stays unchanged
		}
		for _, set := range []string{"inputResponses", "requestState"} {
			delete(before, set)
			delete(after, set)
		}
		if string(given) != `{"k":{"a":1}}` || !bytes.Equal(stateGiven, state) || !maps.EqualFunc(before, after,
			func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Fatalf("%q became %q with %q", params, again, asks.State)
		}
	})
}

// FuzzTarget checks that the target of a request is the one that encoding/json reads in it.
func FuzzTarget(f *testing.F) {
	for _, message := range []string{
		`{"id":1,"method":"tools/call","params":{"name":"\u0061"}}`, `{"id":1,"method":"prompts\/get","params":{"name":7}}`,
		`{"id":1,"method":"resources/read","params":{"uri":"a:b"}}`,
		`{"id":1,"method":"completion/complete","params":{"ref":{"uri":"x","name":"y"}}}`,
		`{"id":1,"method":"completion/complete","params":{"ref":{"name":"y"}}}`, `{"id":1,"method":"tasks/get"}`,
		`{"id":1,"method":"skills/get","params":{"uri":"a:b"}}`,
		`{"id":1,"method":"resources/directory/read","params":{"uri":{}}}`,
		`{"method":"notifications/x"}`, `{"id":1,"method":"notifications/x"}`, `{"id":1,"method":"x/y"}`,
		`{"id":1,"result":{}}`, `{"id":1,"method":"ping"}`,
	} {
		f.Add([]byte(message), []byte(`{"roots":{},"sampling":null,"elicitation":[]}`))
	}
	f.Fuzz(func(t *testing.T, message, capabilities []byte) {
		var m jsonrpc.Message
		if m.Read(message) == nil && !jsontest.Repeats(message) {
			var method, params, name, uri, ref, refName, refURI json.RawMessage
			exactly(message, map[string]*json.RawMessage{"method": &method, "params": &params})
			exactly(params, map[string]*json.RawMessage{"name": &name, "uri": &uri, "ref": &ref})
			exactly(ref, map[string]*json.RawMessage{"name": &refName, "uri": &refURI})
			target, ok := TargetOf("s", &m)
			called, _ := textOf(method)
			var literal json.RawMessage
			kind := Anything
			switch called {
			case "tools/call":
				literal, kind = name, Tool
			case "prompts/get":
				literal, kind = name, Prompt
			case "resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get":
				literal, kind = uri, Resource
			case "completion/complete":
				literal, kind = refName, Prompt
				if refURI != nil {
					literal, kind = refURI, Resource
				}
			}
			text, isText := textOf(literal)
			switch {
			case kind == Anything:
				if !ok || target.Name != "" || HasTarget(called) && target.Kind != Other {
					t.Fatalf("%q: got %+v, %t", message, target, ok)
				}
			case refURI != nil && refName != nil && called == "completion/complete":
				if ok {
					t.Fatalf("%q: got %+v", message, target)
				}
			case ok != isText || ok && target != (Target{"s", kind, text}):
				t.Fatalf("%q: got %+v, %t", message, target, ok)
			}
		}
		var declared map[string]json.RawMessage
		if json.Unmarshal(capabilities, &declared) != nil || jsontest.Repeats(capabilities) {
			return
		}
		for method, capability := range map[string]string{"roots/list": "roots", "sampling/createMessage": "sampling",
			"elicitation/create": "elicitation"} {
			if want := bytes.HasPrefix(declared[capability], []byte("{")); AcceptsServerRequest(capabilities, method) != want {
				t.Fatalf("%q supports %s: %t", capabilities, method, !want)
			}
		}
	})
}
