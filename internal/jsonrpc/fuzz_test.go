package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
)

// wire holds the paths of the fields.
var wire = [fieldCount][]string{
	Version: {"jsonrpc"}, ID: {"id"}, Method: {"method"}, Params: {"params"}, Result: {"result"}, Error: {"error"},
	Name: {"params", "name"}, URI: {"params", "uri"}, TaskID: {"params", "taskId"}, RequestID: {"params",
		"requestId"}, Progress: {"params", "progressToken"},
	Arguments: {"params", "arguments"}, Requested: {"params", "protocolVersion"}, Capabilities: {"params",
		"capabilities"}, Info: {"params", "clientInfo"},
	Cursor: {"params", "cursor"}, Limit: {"params", "limit"}, Level: {"params", "level"}, Ref: {"params",
		"ref"}, RefName: {"params", "ref", "name"}, RefURI: {"params", "ref", "uri"},
	InputResponses: {"params", "inputResponses"}, RequestState: {"params", "requestState"}, Notifications: {"params",
		"notifications"},
	Subscriptions: {"params", "notifications", "resourceSubscriptions"}, TaskIDs: {"params", "notifications",
		"taskIds"}, Proxy: {"params", "proxy"}, AuthToken: {"params", "proxy", "authToken"},
	Meta: {"params", "_meta"}, ProgressToken: {"params", "_meta", "progressToken"}, Traceparent: {"params", "_meta",
		"traceparent"},
	ProtocolVersion:    {"params", "_meta", "io.modelcontextprotocol/protocolVersion"},
	ClientCapabilities: {"params", "_meta", "io.modelcontextprotocol/clientCapabilities"},
	ClientInfo:         {"params", "_meta", "io.modelcontextprotocol/clientInfo"},
	LogLevel:           {"params", "_meta", "io.modelcontextprotocol/logLevel"},
	SubscriptionID:     {"params", "_meta", "io.modelcontextprotocol/subscriptionId"},
	ResultType:         {"result", "resultType"}, CacheScope: {"result", "cacheScope"}, InputRequests: {"result",
		"inputRequests"},
	ResultMeta: {"result", "_meta"}, ListenID: {"result", "_meta", "io.modelcontextprotocol/subscriptionId"},
	ErrorCode: {"error", "code"}, ErrorMessage: {"error", "message"},
}

// at returns the value at a path, as encoding/json reads it.
func at(text []byte, path []string) []byte {
	for _, key := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil {
			return nil
		}
		text = object[key]
	}
	return text
}

// folded reports whether a text has a key that differs from a key of the paths only in case or
// trailing null characters, so that some parsers take it for that key.
func folded(text []byte, paths [][]string) bool {
	for _, path := range paths {
		var object map[string]json.RawMessage
		if json.Unmarshal(at(text, path[:len(path)-1]), &object) != nil {
			continue
		}
		for key := range object {
			isOne := slices.ContainsFunc(paths, func(other []string) bool {
				return len(other) >= len(path) && slices.Equal(other[:len(path)-1], path[:len(path)-1]) && other[len(path)-1] == key
			})
			if !isOne && strings.EqualFold(strings.TrimRight(key, "\x00"), path[len(path)-1]) {
				return true
			}
		}
	}
	return false
}

var seeds = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":1.0},` +
		`"_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"proxy":{"authToken":"t"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"m","Params":{"name":"x"}}`, `{"params":{"proxy":{"AuthToken":"t"}}}`,
	`{"params":{"\u006eame":"x","NAME":"y"}}`,
	`{"params":{"name\u0000":"x"},"id\u0000":1}`, `{"method":"m"}`, `{"method":"m","params":{ }}`,
	`{"method":"m","params":[1]}`, `{"params":{"_meta":7}}`, `{"params":{"_meta":{}}}`, ` { "params" : null } `, `{}`,
	`[]`, `{"id":{}}`, `{"id":12345678901234567890}`,
	`{"jsonrpc":"2.0","id":"a","result":{"resultType":"input_required","inputRequests":{},"cacheScope":"public"}}`,
	`{"id":1,"result":{"ResultType":1}}`, `{"id":1,"error":{"code":-32601,"message":"m"}}`,
	`{"id":1,"error":null,"result":{}}`, "{\"method\":\"\xff\"}", `{"method":"m","method":"n"}`, `{"method":5}`,
	`{"method":`, "{\"\u212aid\":1,\"\u017f\":2,\"para\u006ds\":{}}", `{"method":"\ud800"}`,
}

// FuzzEnvelope compares the fields and the refusals of a message with the results of
// encoding/json. Inserting a member leaves the rest unchanged.
func FuzzEnvelope(f *testing.F) {
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	const inserted = "zz_new"
	envelope := [][]string{wire[Version], wire[ID], wire[Method], wire[Params], wire[Proxy], wire[AuthToken]}
	decisive := [][]string{wire[Version], wire[ID], wire[Method], wire[Params], wire[URI], wire[TaskID], wire[Result],
		wire[ResultType], wire[InputRequests], wire[CacheScope], wire[Error]}
	known := slices.DeleteFunc(slices.Clone(wire[:]),
		func(path []string) bool { return path[len(path)-1] == "inputRequests" })
	f.Fuzz(func(t *testing.T, data []byte) {
		var m, request Message
		failure, strict := m.Read(data), request.ReadRequest(data)
		if valid := json.Valid(data); failure == nil && !valid || failure != nil && failure.Code == CodeParseError && valid {
			t.Fatalf("%q is JSON: %t, and %v", data, valid, failure)
		}
		method := at(data, wire[Method])
		if want := failure == nil && utf8.Valid(data) && (method == nil || method[0] == '"'); (strict == nil) != want {
			t.Fatalf("%q as a request: %v, want accepted: %t", data, strict, want)
		}
		if failure != nil {
			for field := range fieldCount {
				if m.Has(field) {
					t.Fatalf("%q was refused and has a %s", data, wire[field])
				}
			}
			return
		}
		for field := range fieldCount {
			got, want := m.Literal(field), at(data, wire[field])
			if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Fatalf("%q: %s is %q, want %q", data, wire[field], got, want)
			}
			var text string
			if isText := len(want) > 0 && want[0] == '"' && json.Unmarshal(want, &text) == nil; m.Text(field) != text ||
				isText && m.Is(field, text+"x") {
				t.Fatalf("%q: the text of %s is %q, want %q", data, wire[field], m.Text(field), text)
			}
		}
		for name, check := range map[string]struct {
			failure *Failure
			paths   [][]string
		}{
			"a known method":  {m.CheckExact(true), known},
			"another method":  {m.CheckExact(false), envelope},
			"decisive fields": {new(Message).ReadExact(data), decisive},
		} {
			if want := folded(data, check.paths); (check.failure != nil) != want && !jsontest.Repeats(data) {
				t.Fatalf("%q, %s: %v, want refused: %t", data, name, check.failure, want)
			}
		}
		if bytes.Contains(data, []byte(inserted)) || jsontest.Repeats(data) {
			return
		}
		added := fmt.Appendf(nil, `"%s":{"a":1}`, inserted)
		for _, change := range []struct {
			edit jsonspan.Edit
			path []string
		}{{m.Insert(added), []string{"params"}}, {m.InsertMeta(added), []string{"params", "_meta"}}} {
			out := jsonspan.Spliced(data, change.edit)
			if !json.Valid(out) {
				t.Fatalf("%q became %q", data, out)
			}
			for i := range len(change.path) + 1 {
				before, after := jsontest.Members(at(data, change.path[:i])), jsontest.Members(at(out, change.path[:i]))
				next := append(change.path, inserted)[i]
				if i < len(change.path) {
					delete(before, next)
					delete(after, next)
				} else if after[next] != `{"a":1}` {
					t.Fatalf("%q became %q", data, out)
				} else {
					delete(after, next)
				}
				if !maps.Equal(before, after) {
					t.Fatalf("%q became %q: %q are %q", data, out, before, after)
				}
			}
		}
	})
}

// Parents of fields are fields themselves, so each folded name has a bit in a fieldSet.
func TestFieldsHaveParents(t *testing.T) {
	for _, path := range wire {
		isField := func(other []string) bool { return slices.Equal(other, path[:len(path)-1]) }
		if len(path) > 1 && !slices.ContainsFunc(wire[:], isField) {
			t.Errorf("%s is not a field", path[:len(path)-1])
		}
	}
	if fieldCount > 64 {
		t.Errorf("there are %d fields", fieldCount)
	}
}

// ReadWith finds in one pass the same values as Read and Find in two.
func FuzzReadWith(f *testing.F) {
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	for _, seed := range []string{
		`{"id":1,"result":{"contents":[{"uri":"a:b","text":"x"},{"uri":7},3],"cacheScope":"public","ttlMs":5}}`,
		`{"id":1,"result":{"contents":[{"uri":"a:b","uri":"c:d"}]}}`,
		`{"id":1,"result":{"contents":[{"URI":"a:b"}],"ttlMs":5}}`,
		`{"id":1,"result":{"Contents":[]}}`, `{"id":1,"result":{"_Meta":{}},"error":{"data":{"uri":"x"},"Data":1}}`,
		`{"id":1,"RESULT":1,"result":{"ttlMs":5},"id":2}`,
		`{"id":1,"result":{"contents":[{"uri":"a:b"}],"contents":[]},"result":1}`, `{"id":true,"result":{"ttlMs":1}}`,
	} {
		f.Add([]byte(seed))
	}
	more := []string{"result.contents.*.uri", "result.ttlMs", "error.data.uri"}
	paths, alone := CompilePaths(more...), jsonspan.CompilePaths(more...)
	type place struct {
		path  int
		value jsonspan.Value
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m, want Message
		var found, wanted []place
		failure, ambiguous := m.ReadWith(data, paths, func(path int, v jsonspan.Value) {
			found = append(found,
				place{path, v})
		})
		if expected := want.Read(data); (failure == nil) != (expected == nil) || failure != nil &&
			failure.Message != expected.Message {
			t.Fatalf("%q: %v, want %v", data, failure, expected)
		}
		if !sameFields(&m, &want) || m.folded != want.folded {
			t.Fatalf("%q:\n%v\n%v", data, m.spans, want.spans)
		}
		if failure != nil {
			return
		}
		err := alone.Find(data, func(path int, v jsonspan.Value) { wanted = append(wanted, place{path, v}) })
		if repeats := errors.Is(err, jsonspan.ErrDuplicate); repeats != errors.Is(ambiguous, jsonspan.ErrDuplicate) ||
			!repeats && !slices.Equal(found, wanted) {
			t.Fatalf("%q: found %v, %v, want %v, %v", data, found, ambiguous, wanted, err)
		}
		if err != nil {
			return
		}
		err = alone.FindExact(data, func(int, jsonspan.Value) {})
		if folded := ambiguous != nil || m.folded&setOf(Result, Error) != 0; folded != (err != nil) {
			t.Fatalf("%q: %v, want %v", data, ambiguous, err)
		}
	})
}

// sameFields reports whether two messages have the same fields at the same positions.
func sameFields(a, b *Message) bool {
	for f := range fieldCount {
		if a.spanOf(f) != b.spanOf(f) {
			return false
		}
	}
	return true
}

// Edited returns the same as parsing the spliced text.
func FuzzEdited(f *testing.F) {
	for i, seed := range seeds {
		f.Add([]byte(seed), []byte(`"x"`), []byte(`{"name":"y","_meta":{"progressToken":3}}`), uint16(i), uint16(i+3),
			uint16(i), uint16(7*i))
		f.Add([]byte(seed), []byte(`"name":"z"`), []byte(`"taskId":1`), uint16(fieldCount), uint16(fieldCount+1), uint16(0),
			uint16(0))
		f.Add([]byte(seed), []byte(`"progressToken":1,`), []byte(``), uint16(fieldCount+1), uint16(fieldCount+2), uint16(0),
			uint16(0))
		f.Add([]byte(seed), []byte(`"proxy"`), []byte(`}`), uint16(fieldCount+3), uint16(fieldCount+3), uint16(7*i),
			uint16(8*i))
	}
	f.Add([]byte(`{"q":{"uri":"y"},"params":{"name":"x"}}`), []byte(`"params"`), []byte(``), uint16(fieldCount+3),
		uint16(fieldCount+3), uint16(1), uint16(3))
	f.Add([]byte(`{"id":1,"params":{"Name":"x"}}`), []byte(`2`), []byte(`2`), uint16(ID), uint16(ID), uint16(0), uint16(0))
	for _, literal := range []string{`"x"`, `"x\"y"`, `"x"y"`, `{"name":"y"}`, `1`, `"`, ``, "\"\n\"", `"é"`,
		`"","uri":""`} {
		f.Add([]byte(`{"id":1,"params":{"arguments":{},"name":"a","uri":"b"}}`), []byte(literal), []byte(`2`), uint16(Name),
			uint16(ID), uint16(0), uint16(0))
	}
	f.Fuzz(func(t *testing.T, data, literal, literal2 []byte, which, which2, start, length uint16) {
		var m Message
		_ = m.Read(data) // a message without fields has no spans
		edit := func(which uint16, literal []byte) jsonspan.Edit {
			switch field := Field(which % (uint16(fieldCount) + 4)); {
			case field < fieldCount && m.Has(field):
				return m.Replace(field, literal)
			case field == fieldCount && m.Has(Version):
				return m.Insert(literal)
			case field == fieldCount+1 && m.Has(Version):
				return m.InsertMeta(literal)
			case field == fieldCount+2 && m.Has(Params):
				removed, _ := jsonspan.Remove(m.Literal(Params), "name")
				return m.Within(Params, removed)
			}
			from := int(start) % (len(data) + 1)
			return jsonspan.Edit{Start: from, End: from + int(length)%(len(data)-from+1), New: literal}
		}
		edits := []jsonspan.Edit{edit(which, literal), edit(which2, literal2)}
		slices.SortStableFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
		if edits[1].Start < edits[0].End {
			edits = edits[:1]
		}
		edited, failure := m.Edited(edits...)
		var want Message
		wanted := want.Read(jsonspan.Spliced(data, edits...))
		if (failure == nil) != (wanted == nil) || failure != nil && failure.Message != wanted.Message {
			t.Fatalf("%q became %q: %v, want %v", data, want.Raw, failure, wanted)
		}
		if !bytes.Equal(edited.Raw, want.Raw) || !sameFields(&edited, &want) || edited.folded != want.folded {
			t.Fatalf("%q became %q:\n%v\n%v", data, want.Raw, edited.spans, want.spans)
		}
	})
}

// An Outline of a message in pieces agrees with a Message of the whole.
func FuzzOutline(f *testing.F) {
	for i, seed := range seeds {
		f.Add([]byte(seed), uint8(i))
	}
	f.Add([]byte(`{"id":"`+strings.Repeat("x", 300)+`","result":1}`), uint8(40))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		whole, parts := NewOutline(), NewOutline()
		_, _ = parts.Write([]byte(`{"id":1,"error":{"code":7},"method":"m"}`))
		parts.Reset()
		_, _ = whole.Write(data)
		for piece := range slices.Chunk(data, int(size)+1) {
			_, _ = parts.Write(bytes.Clone(piece))
		}
		type summary struct {
			has   [fieldCount]bool
			id    string
			code  int
			valid bool
		}
		a, b := summary{whole.has, string(whole.id), whole.code, whole.End()}, summary{parts.has, string(parts.id),
			parts.code, parts.End()}
		if a != b {
			t.Fatalf("%q: %+v, in pieces %+v", data, a, b)
		}
		var m Message
		if m.Read(data) != nil {
			return
		}
		for _, field := range []Field{ID, Method, Result, Error, ErrorCode} {
			if a.has[field] != m.Has(field) {
				t.Fatalf("%q has a %s: %t", data, wire[field], a.has[field])
			}
		}
		id := m.Literal(ID)
		if len(id) <= 256 && a.id != string(id) || !a.valid || m.IsResponse() && !whole.IsResponse() {
			t.Fatalf("%q: %+v", data, a)
		}
		if whole.IsResponse() && !whole.IsResponseTo(id) {
			t.Fatalf("%q is not a response to %s", data, id)
		}
	})
}

// Two literals are the same id if and only if a server that parses one may write the other.
func FuzzSameID(f *testing.F) {
	for _, pair := range [][2]string{{`1`, `1.0`}, {`"a"`, `"\u0061"`}, {`100`, `1e2`},
		{`12345678901234567890`, `12345678901234567891`}, {`"1"`, `1`}, {`null`, `0`}, {`-0`, `0`}, {`-0.0`,
			`0`}, {`"\ud83d\ude00"`, `"😀"`}, {`1e400`, `1e401`}, {`0`, ``}, {`0`, `[]`}} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var x, y Message
		if x.Read(fmt.Appendf(nil, `{"id":%s}`, a)) != nil || y.Read(fmt.Appendf(nil, `{"id":%s}`, b)) != nil || !x.Has(ID) ||
			!y.Has(ID) {
			return
		}
		a, b = x.Literal(ID), y.Literal(ID)
		if !utf8.Valid(a) || !utf8.Valid(b) {
			return // undefined
		}
		if !SameID(a, a) || SameID(a, b) != SameID(b, a) {
			t.Fatalf("%s and %s: %t, the other way %t", a, b, SameID(a, b), SameID(b, a))
		}
		var valueA, valueB any
		if json.Unmarshal(a, &valueA) != nil || json.Unmarshal(b, &valueB) != nil {
			return // numbers that are too large
		}
		want := valueA == valueB
		if _, isNumber := valueA.(float64); isNumber && want && !bytes.Equal(a, b) {
			want = bytes.ContainsAny(a, ".eE") || bytes.ContainsAny(b, ".eE")
		}
		if SameID(a, b) != want {
			t.Fatalf("%s and %s are the same: %t", a, b, !want)
		}
	})
}
