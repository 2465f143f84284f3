package jsonrpc

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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
			if got, want := m.Literal(field), object[key]; !bytes.Equal(got, want) {
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
