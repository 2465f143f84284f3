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

// names has the fields by the names that tests use.
var names = map[string]Field{
	"jsonrpc": Version, "id": ID, "method": Method, "params": Params, "name": Name, "uri": URI, "taskId": TaskID,
	"requestId": RequestID, "progressToken": Progress, "arguments": Arguments, "protocolVersion": Requested,
	"capabilities": Capabilities, "_meta": Meta, "_meta.progressToken": ProgressToken, "_meta.version": ProtocolVersion,
	"_meta.capabilities": ClientCapabilities, "_meta.subscriptionId": SubscriptionID, "result": Result,
	"result.subscriptionId": ListenID, "error": Error, "error.code": ErrorCode,
}

func TestFieldsAreFound(t *testing.T) {
	tests := []struct {
		name string
		data string
		want map[string]string // nil: no other fields
	}{
		{"a request", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"name":"x"},` +
			`"_meta":{"progressToken":"t"}}}`,
			map[string]string{"jsonrpc": `"2.0"`, "id": `1`, "method": `"tools/call"`,
				"params": `{"name":"echo","arguments":{"name":"x"},"_meta":{"progressToken":"t"}}`,
				"name":   `"echo"`, "arguments": `{"name":"x"}`, "_meta": `{"progressToken":"t"}`, "_meta.progressToken": `"t"`}},
		{"members in any order", ` { "params" : {"_meta":{"progressToken":0},"uri":"a:b"} , "method":"m", "id" : "x" } `,
			map[string]string{"id": `"x"`, "method": `"m"`, "params": `{"_meta":{"progressToken":0},"uri":"a:b"}`,
				"uri": `"a:b"`, "_meta": `{"progressToken":0}`, "_meta.progressToken": `0`}},
		{"keys with escapes", `{"\u0069d":1,"m\u0065thod":"m","par\u0061ms":{"n\u0061me":"x"}}`,
			map[string]string{"id": `1`, "method": `"m"`, "params": `{"n\u0061me":"x"}`, "name": `"x"`}},
		{"keys in another case", `{"ID":1,"Method":"m","Params":{"Name":"x"}}`, map[string]string{}},
		{"keys at another place", `{"result":{"id":1,"method":"m","name":"n","error":{"code":1}}}`,
			map[string]string{"result": `{"id":1,"method":"m","name":"n","error":{"code":1}}`}},
		{"a request of the modern era",
			`{"id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"v",` +
				`"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/subscriptionId":"s"}}}`,
			map[string]string{"id": `1`, "method": `"m"`, "_meta.version": `"v"`, "_meta.capabilities": `{}`,
				"_meta.subscriptionId": `"s"`,
				"_meta": `{"io.modelcontextprotocol/protocolVersion":"v",` +
					`"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/subscriptionId":"s"}`,
				"params": `{"_meta":{"io.modelcontextprotocol/protocolVersion":"v",` +
					`"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/subscriptionId":"s"}}`}},
		{"an error", `{"id":null,"error":{"message":"x","code":-32601}}`, map[string]string{"id": `null`,
			"error": `{"message":"x","code":-32601}`, "error.code": `-32601`}},
		{"the result of a subscription", `{"id":1,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`,
			map[string]string{"id": `1`, "result": `{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}`,
				"result.subscriptionId": `7`}},
		{"no fields", `{}`, map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m Message
			if failure := m.Read([]byte(tt.data)); failure != nil {
				t.Fatal(failure)
			}
			for name, f := range names {
				want, has := tt.want[name]
				if got := string(m.Literal(f)); got != want || m.Has(f) != has {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestMessagesAreRefused(t *testing.T) {
	deep := strings.Repeat("[", 1001) + strings.Repeat("]", 1001)
	tests := []struct {
		name string
		data string
		code int
	}{
		{"an empty text", ``, CodeParseError},
		{"blanks", " \n", CodeParseError},
		{"a truncated message", `{"id":1`, CodeParseError},
		{"text after the message", `{"id":1}}`, CodeParseError},
		{"two messages", `{}{}`, CodeParseError},
		{"invalid JSON", `{id:1}`, CodeParseError},
		{"a byte order mark", "\ufeff{}", CodeParseError},
		{"an array", `[{"id":1,"method":"m"}]`, CodeInvalidRequest},
		{"a string", `"id"`, CodeInvalidRequest},
		{"a number", `1`, CodeInvalidRequest},
		{"null", ` null `, CodeInvalidRequest},
		{"an id twice", `{"id":1,"method":"m","id":1}`, CodeInvalidRequest},
		{"an id twice, once with an escape", `{"id":1,"method":"m","\u0069d":1}`, CodeInvalidRequest},
		{"a method twice", `{"method":"a","id":1,"method":"b"}`, CodeInvalidRequest},
		{"a name twice", `{"method":"a","params":{"name":"a","name":"b"}}`, CodeInvalidRequest},
		{"params twice", `{"method":"a","params":{},"params":{"name":"b"}}`, CodeInvalidRequest},
		{"a token twice", `{"method":"a","params":{"_meta":{"progressToken":1,"progressToken":2}}}`, CodeInvalidRequest},
		{"a result twice", `{"id":1,"result":1,"result":2}`, CodeInvalidRequest},
		{"an id that is an object", `{"id":{},"method":"m"}`, CodeInvalidRequest},
		{"an id that is an array", `{"id":[],"method":"m"}`, CodeInvalidRequest},
		{"an id that is true", `{"id":true,"method":"m"}`, CodeInvalidRequest},
		{"a deeply nested message", `{"id":1,"x":` + deep + `}`, CodeInvalidRequest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m Message
			failure := m.Read([]byte(tt.data))
			if failure == nil {
				t.Fatal("it was accepted")
			}
			if failure.Code != tt.code || failure.Status != 400 {
				t.Errorf("got %d, status %d; want %d, 400", failure.Code, failure.Status, tt.code)
			}
			for name, f := range names {
				if m.Has(f) {
					t.Errorf("the refused message has %s", name)
				}
			}
		})
	}
}

func TestRequestsAreUTF8(t *testing.T) {
	data := []byte("{\"id\":1,\"method\":\"\xff\"}")
	var m Message
	if failure := m.ReadRequest(data); failure == nil || failure.Code != CodeParseError || m.Has(ID) {
		t.Errorf("from a client: %v", failure)
	}
	if failure := m.Read(data); failure != nil {
		t.Errorf("from a server: %v", failure)
	}
}

func TestMethodsOfRequestsAreStrings(t *testing.T) {
	for _, method := range []string{`["tools/call"]`, `{}`, `null`, `1`, `true`} {
		var m Message
		if failure := m.ReadRequest([]byte(`{"id":1,"method":` + method + `}`)); failure == nil ||
			failure.Code != CodeInvalidRequest {
			t.Errorf("%s: %v", method, failure)
		}
	}
	for _, data := range []string{`{"id":1,"method":""}`, `{"id":1,"result":{}}`} {
		if failure := new(Message).ReadRequest([]byte(data)); failure != nil {
			t.Errorf("%s: %v", data, failure)
		}
	}
}

func TestKeysInAnotherCase(t *testing.T) {
	// Whether a message is refused with a known method, with an unknown one, and from a server.
	for _, tt := range []struct {
		name, data                 string
		known, unknown, fromServer bool
	}{
		{"exact keys", `{"id":1,"method":"m","params":{"name":"x","uri":"y"}}`, false, false, false},
		{"an id", `{"ID":1,"method":"m"}`, true, true, true},
		{"a method", `{"id":1,"method":"m","Method":"n"}`, true, true, true},
		{"params", `{"id":1,"method":"m","PARAMS":{}}`, true, true, true},
		{"a token", `{"id":1,"method":"m","params":{"proxy":{"AuthToken":"x"}}}`, true, true, false},
		{"a name", `{"id":1,"method":"m","params":{"Name":"x"}}`, true, false, false},
		{"a level", `{"id":1,"method":"m","params":{"level":"info","Level":"INFO"}}`, true, false, false},
		{"a URI", `{"id":1,"method":"m","params":{"uri":"x","URI":"y"}}`, true, false, true},
		{"a result", `{"id":1,"result":{},"Result":{}}`, true, false, true},
		{"the type of a result", `{"id":1,"result":{"resultType":"complete","ResultType":"input_required"}}`, true, false,
			true},
		{"the input requests of a result", `{"id":1,"result":{"inputRequests":{},"InputRequests":{}}}`, false, false, true},
		{"a name within arguments", `{"id":1,"method":"m","params":{"arguments":{"Name":"x","URI":"y"}}}`, false, false,
			false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m Message
			if failure := m.ReadRequest([]byte(tt.data)); failure != nil {
				t.Fatal(failure)
			}
			if got := m.CheckExact(true) != nil; got != tt.known {
				t.Errorf("with a known method, refused: %t", got)
			}
			if failure := m.ReadRequest([]byte(tt.data)); failure != nil {
				t.Fatal(failure)
			}
			if got := m.CheckExact(false) != nil; got != tt.unknown {
				t.Errorf("with an unknown method, refused: %t", got)
			}
			if got := m.ReadExact([]byte(tt.data)) != nil; got != tt.fromServer {
				t.Errorf("from a server, refused: %t", got)
			}
		})
	}
}

func TestKindsOfMessages(t *testing.T) {
	tests := []struct {
		data string
		want string
	}{
		{`{"id":1,"method":"m"}`, "request"},
		{`{"id":null,"method":"m"}`, "request"},
		{`{"id":0,"method":"m","result":1}`, "request"},
		{`{"method":"m"}`, "notification"},
		{`{"id":1,"result":null}`, "response"},
		{`{"id":null,"error":{}}`, "response"},
		{`{"result":{}}`, "response"},
		{`{"id":1}`, ""},
		{`{"id":1,"result":1,"error":{}}`, ""},
		{`{"id":1,"result":1,"error":null}`, "response"},
		{`{"id":1,"result":null,"error":{}}`, "response"},
		{`{"id":1,"result":null,"error":null}`, "response"},
	}
	for _, tt := range tests {
		var m Message
		if failure := m.Read([]byte(tt.data)); failure != nil {
			t.Fatal(failure)
		}
		for kind, is := range map[string]bool{"request": m.IsRequest(), "notification": m.IsNotification(),
			"response": m.IsResponse()} {
			if is != (kind == tt.want) {
				t.Errorf("%s: %s is %t", tt.data, kind, is)
			}
		}
	}
}

// Some servers write both members, and one of them is null.
func TestNullMembersOfResponses(t *testing.T) {
	for _, tt := range []struct{ data, result, fault string }{
		{`{"id":1,"result":{},"error":null}`, `{}`, ""},
		{`{"error":{"code":1},"result":null,"id":1}`, "", `{"code":1}`},
		{`{"id":1,"result":null,"error":null}`, "null", ""},
		{`{"id":1,"error":null}`, "", "null"},
		{`{"id":1,"result":{},"error":{}}`, `{}`, `{}`},
	} {
		var m Message
		if failure := m.Read([]byte(tt.data)); failure != nil {
			t.Fatal(failure)
		}
		if result, fault := string(m.Literal(Result)), string(m.Literal(Error)); result != tt.result || fault != tt.fault ||
			m.Has(Result) != (tt.result != "") || m.Has(Error) != (tt.fault != "") {
			t.Errorf("%s: got result %q, error %q", tt.data, result, fault)
		}
	}
}

func TestText(t *testing.T) {
	var m Message
	if failure := m.Read([]byte(`{"id":1,"method":"a\/\u0062","params":{"name":5}}`)); failure != nil {
		t.Fatal(failure)
	}
	if m.Text(Method) != "a/b" || !m.Is(Method, "a/b") || m.Is(Method, "a/") || m.Is(Method, `a\/b`) {
		t.Errorf("method is %q", m.Text(Method))
	}
	if m.Text(Name) != "" || m.Is(Name, "5") || m.Text(URI) != "" || m.Is(URI, "") {
		t.Error("a value that is not a string has a text")
	}
	edit := m.Replace(ID, []byte(`"x"`))
	var out bytes.Buffer
	if err := jsonspan.Splice(&out, m.Raw, []jsonspan.Edit{edit}); err != nil ||
		out.String() != `{"id":"x","method":"a\/\u0062","params":{"name":5}}` {
		t.Errorf("replaced: %s, %v", &out, err)
	}
}

func TestFailures(t *testing.T) {
	tests := []struct {
		failure *Failure
		id      string
		status  int
		want    string
	}{
		{ParseError(), "", 400,
			`{"jsonrpc":"2.0","error":{"code":-32700,"message":"the request is not valid JSON",` +
				`"data":{"code":"parse_error"}},"id":null}`},
		{InvalidRequest("a <b> & c"), `"\u0061"`, 400,
			`{"jsonrpc":"2.0","error":{"code":-32600,"message":"a <b> & c","data":{"code":"invalid_request"}},"id":"\u0061"}`},
		{Timeout("s\""), `12345678901234567890`, 502,
			`{"jsonrpc":"2.0","error":{"code":-32002,"message":"the MCP server did not answer in time",` +
				`"data":{"code":"timeout","server_name":"s\""}},"id":12345678901234567890}`},
		{HTTPError("s", 418), `1.0`, 502,
			`{"jsonrpc":"2.0","error":{"code":-32603,"message":"the MCP server answered with HTTP status 418",` +
				`"data":{"code":"http_error","server_name":"s","status_code":418}},"id":1.0}`},
		{UnknownServer("s"), `0`, 404,
			`{"jsonrpc":"2.0","error":{"code":-32001,"message":"unknown MCP server","data":{"code":"unknown_server",` +
				`"server_name":"s"}},"id":0}`},
	}
	for _, tt := range tests {
		var id []byte
		if tt.id != "" {
			id = []byte(tt.id)
		}
		if got := string(tt.failure.Append([]byte("x"), id)); got != "x"+tt.want {
			t.Errorf("got %s\nwant x%s", got, tt.want)
		}
		if tt.failure.Status != tt.status {
			t.Errorf("%s: status %d", tt.want, tt.failure.Status)
		}
	}
}

func TestComposedMessages(t *testing.T) {
	tests := []struct{ got, want string }{
		{string(Request(7, "a\"b", []byte(`{"x":1.0}`))), `{"jsonrpc":"2.0","id":7,"method":"a\"b","params":{"x":1.0}}`},
		{string(Request(0, "m", nil)), `{"jsonrpc":"2.0","id":0,"method":"m"}`},
		{string(Notification("m", nil)), `{"jsonrpc":"2.0","method":"m"}`},
		{string(ResultResponse([]byte(`"\u0061"`), []byte(`null`))), `{"jsonrpc":"2.0","id":"\u0061","result":null}`},
		{string(ErrorResponse([]byte(`1`), -32601, "no \"x\"\n")),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no \"x\"\n"}}`},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
	}
}

// FuzzMessage compares the fields with those that encoding/json decodes.
func FuzzMessage(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"x","_meta":{"progressToken":1}}}`,
		`{"\u0069d":"x","result":{"a":[]}}`,
		`{"id":null,"error":{"code":-1}}`, `[]`, ` {"id":1.5e3} `, `{"id":1,"id":2}`, `{"method":5,"params":[{"name":1}]}`,
		"{\"a\":\"\xff\"}", `{"params":{"name":{"name":1}}}`, `{"id":`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m Message
		failure := m.Read(data)
		if failure != nil && failure.Code == CodeParseError {
			if json.Valid(data) {
				t.Fatalf("refused: %q", data)
			}
			return
		}
		var object map[string]json.RawMessage
		err := json.Unmarshal(data, &object)
		if failure != nil {
			return // encoding/json has other limits
		}
		if err != nil {
			t.Fatalf("accepted: %q", data)
		}
		for key, field := range map[string]Field{"id": ID, "method": Method, "params": Params, "result": Result,
			"error": Error} {
			want := object[key]
			if field == nullMember(data) {
				want = nil
			}
			if got := m.Literal(field); !bytes.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", key, got, want)
			}
		}
		var params map[string]json.RawMessage
		if json.Unmarshal(object["params"], &params) == nil && object["params"] != nil {
			for key, field := range map[string]Field{"name": Name, "uri": URI, "arguments": Arguments} {
				if got, want := m.Literal(field), params[key]; !bytes.Equal(got, want) {
					t.Errorf("params.%s: got %q, want %q", key, got, want)
				}
			}
		}
		if m.Kind(Method) == jsonspan.String {
			var method string
			if json.Unmarshal(object["method"], &method) != nil || method != strings.ToValidUTF8(m.Text(Method), "\ufffd") &&
				!strings.ContainsRune(method, '\ufffd') {
				t.Errorf("method: got %q, want %q", m.Text(Method), method)
			}
		}
	})
}

func TestStatus(t *testing.T) {
	for code, want := range map[int]int{
		0: 200, -31999: 200, -32000: 200, -32002: 200, -32603: 200,
		-32601: 404,
		-32602: 400, -32020: 400, -32021: 400, -32022: 400,
	} {
		answer := ResultResponse([]byte("1"), []byte("{}"))
		if code != 0 {
			answer = ErrorResponse([]byte("1"), code, "no")
		}
		var m Message
		if failure := m.Read(answer); failure != nil {
			t.Fatal(failure)
		}
		if got := m.Status(); got != want {
			t.Errorf("%d: status %d, want %d", code, got, want)
		}
	}
}

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

// nullMember returns the field of a response that counts as absent, because it is null next to the
// other one; fieldCount if there is none.
func nullMember(text []byte) Field {
	result, fault := at(text, wire[Result]), at(text, wire[Error])
	switch {
	case result == nil || fault == nil:
	case string(fault) == "null":
		return Error
	case string(result) == "null":
		return Result
	}
	return fieldCount
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
			if field == nullMember(data) {
				want = nil
			}
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
			if a.has[field] != (m.Has(field) || field == nullMember(data)) {
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

var benchmarked = []struct{ name, data string }{
	{"small", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__read",` +
		`"arguments":{"path":"/tmp/a.txt","limit":100}}}`},
	{"modern", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__read",` +
		`"arguments":{"path":"/tmp/a.txt"},"_meta":{"progressToken":5,` +
		`"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{"sampling":{},"roots":{}},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"client","version":"1.0"}}}}`},
	{"large", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__write",` +
		`"arguments":{"path":"/tmp/a.txt","lines":[` + strings.Repeat(`{"n":1,"text":"some words in a line\n"},`, 1000) +
		`{}]}}}`},
}

func BenchmarkRead(b *testing.B) {
	messages := append(benchmarked, []struct{ name, data string }{
		{"answer", `{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"` + strings.Repeat("some words ",
			200) + `"}],"isError":false,"structuredContent":{"a":1,"b":[1,2,3]}}}`},
	}...)
	for _, message := range messages {
		data := []byte(message.data)
		for _, read := range []struct {
			name string
			read func(*Message) *Failure
		}{
			{"Read", func(m *Message) *Failure { return m.Read(data) }},
			{"ReadExact", func(m *Message) *Failure { return m.ReadExact(data) }},
			{"ReadRequest", func(m *Message) *Failure { return m.ReadRequest(data) }},
			{"ReadRequest and CheckExact", func(m *Message) *Failure {
				if failure := m.ReadRequest(data); failure != nil {
					return failure
				}
				return m.CheckExact(true)
			}},
		} {
			b.Run(message.name+"/"+read.name, func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				var m Message
				for b.Loop() {
					if failure := read.read(&m); failure != nil {
						b.Fatal(failure)
					}
				}
			})
		}
	}
}

func BenchmarkEdited(b *testing.B) {
	for _, message := range benchmarked {
		var m Message
		if failure := m.Read([]byte(message.data)); failure != nil {
			b.Fatal(failure)
		}
		for _, edit := range []struct {
			name string
			edit jsonspan.Edit
		}{
			{"id", m.Replace(ID, []byte(`"x:17"`))},
			{"name", m.Replace(Name, []byte(`"read"`))},
			{"meta", m.InsertMeta([]byte(`"a":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"`))},
		} {
			for _, way := range []struct {
				name string
				read func() (Message, *Failure)
			}{
				{"spliced only", func() (edited Message, _ *Failure) {
					edited.Raw = jsonspan.Spliced(m.Raw, edit.edit)
					return edited, nil
				}},
				{"spliced and read", func() (edited Message, _ *Failure) {
					failure := edited.Read(jsonspan.Spliced(m.Raw, edit.edit))
					return edited, failure
				}},
				{"Edited", func() (Message, *Failure) { return m.Edited(edit.edit) }},
			} {
				b.Run(message.name+"/"+edit.name+"/"+way.name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if edited, failure := way.read(); failure != nil || len(edited.Raw) == 0 {
							b.Fatal(failure)
						}
					}
				})
			}
		}
	}
}

func BenchmarkReadWith(b *testing.B) {
	more := []string{"result.contents.*.uri", "result.content.*.uri", "result.content.*.resource.uri", "error.data.uri",
		"result.taskId"}
	paths, alone := CompilePaths(more...), jsonspan.CompilePaths(more...)
	data := []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[` +
		strings.Repeat(`{"type":"resource","resource":{"uri":"file:///tmp/a.txt","text":"`+strings.Repeat("some words ",
			20)+`"}},`, 20) +
		`{"type":"text","text":"the end"}],"isError":false}}`)
	places := 0
	found := func(int, jsonspan.Value) { places++ }
	for _, way := range []struct {
		name string
		read func(m *Message) *Failure
	}{
		{"Read and Find", func(m *Message) *Failure {
			if err := alone.Find(data, found); err != nil {
				b.Fatal(err)
			}
			return m.Read(data)
		}},
		{"ReadWith", func(m *Message) *Failure {
			failure, _ := m.ReadWith(data, paths, found)
			return failure
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var m Message
			for b.Loop() {
				if failure := way.read(&m); failure != nil {
					b.Fatal(failure)
				}
			}
		})
	}
}

func TestOutline(t *testing.T) {
	long := `"` + strings.Repeat("x", 1000) + `"`
	tests := []struct {
		name, text string
		whole      bool
		answer     bool // response to the request with id 1
		code       int
	}{
		{"a result", `{"jsonrpc":"2.0","id":1,"result":{"error":{"code":5},"method":"x","id":2}}`, true, true, 0},
		{"a result before the id", ` {"result":[[{}],` + long + `],"jsonrpc":"2.0","id":1} `, true, true, 0},
		{"a result that is a number", `{"result":5,"id":1}`, true, true, 0},
		{"an error", `{"id":1,"error":{"data":{"code":7},"code":-32050,"message":` + long + `}}`, true, true, -32050},
		{"a null error and a result", `{"id":1,"error":null,"result":{}}`, true, true, 0},
		{"a code outside of the error", `{"id":1,"error":{"code":-1},"result":{},"code":7}`, true, true, -1},
		{"keys with escapes", `{"\u0069d":1,"err\u006fr":{"c\u006fde":-1}}`, true, true, -1},
		{"an id of another type", `{"id":"1","result":{}}`, true, false, 0},
		{"an id spelled in another way", `{"id":1.0e0,"result":{}}`, true, true, 0},
		{"an id that is too long to compare", `{"id":` + long + `,"result":{}}`, true, true, 0},
		{"no id", `{"result":{}}`, true, true, 0},
		{"a request", `{"id":1,"method":"x","params":{"result":1}}`, true, false, 0},
		{"a request with an error", `{"id":1,"method":"x","error":{"code":5}}`, true, false, 0},
		{"neither result nor error", `{"id":1}`, true, false, 0},
		{"an array", `[{"id":1,"result":1}]`, true, false, 0},
		{"a number", `5`, true, false, 0},
		{"a text", `"result"`, true, false, 0},
		{"an incomplete response", `{"id":1,"result":{"a`, false, true, 0},
		{"invalid JSON", `<p>`, false, false, 0},
		{"text after the JSON", `{"id":1,"result":1}x`, false, true, 0},
		{"an empty text", ``, false, false, 0},
	}
	o := NewOutline()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 7, 1 << 20} {
				o.Reset()
				for rest := tt.text; rest != ""; {
					n := min(size, len(rest))
					_, _ = o.Write([]byte(rest[:n]))
					rest = rest[n:]
				}
				whole := o.End()
				code, failed := o.ErrorCode()
				if !failed {
					code = 0
				}
				if whole != tt.whole || o.IsResponseTo([]byte("1")) != tt.answer || code != tt.code {
					t.Errorf("in pieces of %d: whole %t, answer %t, code %d", size, whole, o.IsResponseTo([]byte("1")), code)
				}
			}
		})
	}
}

func TestNumberOf(t *testing.T) {
	for literal, want := range map[string]uint64{
		`1`: 1, `12`: 12, `1.0`: 1, `1e1`: 10, `"12"`: 12, `18446744073709551615`: 18446744073709551615,
		`0`: 0, `-1`: 0, `1.5`: 0, `1e300`: 0, `18446744073709551616`: 0, `""`: 0, `"1.0"`: 0, `" 1"`: 0, `"-1"`: 0,
		`"a"`: 0, `null`: 0, ``: 0,
	} {
		if got := NumberOf([]byte(literal)); got != want {
			t.Errorf("%s: got %d, want %d", literal, got, want)
		}
	}
}

func TestSameID(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{`1`, `1`, true}, {`1`, `1.0`, true}, {`100`, `1e2`, true}, {`1`, `2`, false}, {`1`, `"1"`, false}, {`"1"`, `1`,
			false},
		{`"é"`, `"\u00e9"`, true}, {`"\u00e9"`, `"é"`, true}, {`"a"`, `"b"`, false}, {`null`, `null`, true}, {`null`, `0`,
			false}, {`9007199254740993`, `9007199254740992`, false}, {`1`, ``, false},
	} {
		if got := SameID([]byte(tt.a), []byte(tt.b)); got != tt.want {
			t.Errorf("%s and %s: %t", tt.a, tt.b, got)
		}
	}
}
