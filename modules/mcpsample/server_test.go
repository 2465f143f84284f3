package mcpsample

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
)

// response is a response with its body read.
type response struct {
	*http.Response
	body string
}

func send(t *testing.T, method, url, body string, headers map[string]string) response {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return response{res, string(got)}
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestServerAnswers(t *testing.T) {
	initialized := func(revision string) string {
		return `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"` + revision +
			`","capabilities":{"tools":{}},"serverInfo":{"name":"sample","version":"` + version.Current() + `"}}}`
	}
	failure := func(id, code, message string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":` + code + `,"message":"` + message + `"}}`
	}
	initialize := func(params string) string {
		return `{"jsonrpc":"2.0","id":0,"method":"initialize","params":` + params + `}`
	}
	tests := []struct {
		name    string
		request string
		status  int
		want    string
	}{
		{"initialize agrees to 2024-11-05", initialize(`{"protocolVersion":"2024-11-05"}`), 200, initialized("2024-11-05")},
		{"initialize agrees to 2025-03-26", initialize(`{"protocolVersion":"2025-03-26"}`), 200, initialized("2025-03-26")},
		{"initialize agrees to 2025-06-18", initialize(`{"protocolVersion":"2025-06-18"}`), 200, initialized("2025-06-18")},
		{"initialize agrees to 2025-11-25", initialize(`{"protocolVersion":"2025-11-25"}`), 200, initialized("2025-11-25")},
		{"initialize offers the latest to an unknown revision", initialize(`{"protocolVersion":"1999-01-01"}`), 200,
			initialized("2025-11-25")},
		{"ping", `{"jsonrpc":"2.0","id":"a<b","method":"ping"}`, 200, `{"jsonrpc":"2.0","id":"a<b","result":{}}`},
		{"an id above 2^53 keeps its digits", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, 200,
			`{"jsonrpc":"2.0","id":9007199254740993,"result":{}}`},
		{"a notification is accepted", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, 202, ""},
		{"the client's response is accepted", `{"jsonrpc":"2.0","id":1,"result":{}}`, 202, ""},
		{"the client's error is accepted", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}`, 202, ""},
		{"an unknown method", `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, 200,
			failure("1", "-32601", "method not found: server/discover")},
		{"an unknown tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"zz"}}`, 200,
			failure("1", "-32602", `unknown tool: \"zz\"`)},
		{"echo without text", call("echo", `{}`), 200,
			failure("1", "-32602", "invalid arguments for echo: text is required")},
		{"read_log of no lines", call("read_log", `{"lines":0}`), 200,
			failure("1", "-32602", "invalid arguments for read_log: lines must be from 1 to 200000")},
		{"read_log of too many lines", call("read_log", `{"lines":200001}`), 200,
			failure("1", "-32602", "invalid arguments for read_log: lines must be from 1 to 200000")},
		{"an argument the tool does not have", call("list_files", `{"dir":"/"}`), 200,
			failure("1", "-32602", `invalid arguments for list_files: json: unknown field \"dir\"`)},
		{"an argument the image does not have", call("read_image", `{"dir":"/"}`), 200,
			failure("1", "-32602", `invalid arguments for read_image: json: unknown field \"dir\"`)},
		{"echo", call("echo", `{"text":"a <b> \u00e9"}`), 200,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a <b> é"}]}}`},
		{"echo of an empty text", call("echo", `{"text":""}`), 200,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":""}]}}`},
		{"broken JSON", `{"jsonrpc":`, 400, failure("null", "-32700", "parse error")},
		{"an empty body", ``, 400, failure("null", "-32700", "parse error")},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 400,
			failure("null", "-32600", "not a JSON-RPC 2.0 message")},
		{"null", `null`, 400, failure("null", "-32600", "not a JSON-RPC 2.0 message")},
		{"a message without a version", `{"id":1,"method":"ping"}`, 400, failure("null", "-32600",
			"not a JSON-RPC 2.0 message")},
		{"a method that is not a string", `{"jsonrpc":"2.0","id":1,"method":5}`, 400,
			failure("null", "-32600", "not a JSON-RPC 2.0 message")},
		{"a null id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, 400,
			failure("null", "-32600", "not a JSON-RPC 2.0 message")},
		{"neither a request nor a response", `{"jsonrpc":"2.0","id":1}`, 400,
			failure("null", "-32600", "neither a request nor a response")},
		{"a message that is too large", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 1<<20) + `"}`, 413,
			failure("null", "-32600", "http: request body too large")},
	}
	url := serve(t, NewServer())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := send(t, "POST", url+"/mcp", tt.request, map[string]string{"Accept": "application/json"})
			if got.StatusCode != tt.status || got.body != tt.want {
				t.Errorf("got %d %.300s\nwant %d %s", got.StatusCode, got.body, tt.status, tt.want)
			}
			if ctype := got.Header.Get("Content-Type"); tt.want != "" && ctype != "application/json" {
				t.Errorf("Content-Type %q", ctype)
			}
		})
	}
}

func TestServerRefusesWrongTypes(t *testing.T) {
	url := serve(t, NewServer())
	for name, request := range map[string]string{
		"a revision that is not a string":  `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":5}}`,
		"params that are not an object":    `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`,
		"arguments that are not an object": call("echo", `"text"`),
		"lines that are not a number":      call("read_log", `{"lines":"10"}`),
		"a text that is not a string":      call("echo", `{"text":5}`),
	} {
		t.Run(name, func(t *testing.T) {
			got := send(t, "POST", url, request, nil)
			if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,`; got.StatusCode != 200 || !strings.HasPrefix(got.body,
				want) {
				t.Errorf("got %d %s, want %s…", got.StatusCode, got.body, want)
			}
		})
	}
}

func TestServerAcceptsOnlyPOST(t *testing.T) {
	url := serve(t, NewServer())
	for _, method := range []string{"GET", "DELETE", "PUT"} {
		got := send(t, method, url, "", map[string]string{"Accept": "text/event-stream"})
		if got.StatusCode != 405 || got.Header.Get("Allow") != "POST" {
			t.Errorf("%s: status %d, Allow %q, want 405, POST", method, got.StatusCode, got.Header.Get("Allow"))
		}
	}
}

func TestServerStreamsIfAccepted(t *testing.T) {
	const pong = `{"jsonrpc":"2.0","id":1,"result":{}}`
	const event = "event: message\ndata: " + pong + "\n\n"
	tests := []struct{ accept, ctype, want string }{
		{"application/json, text/event-stream", "text/event-stream", event},
		{"Text/Event-Stream;q=0.5", "text/event-stream", event},
		{"application/json", "application/json", pong},
		{"*/*", "application/json", pong},
		{"", "application/json", pong},
	}
	url := serve(t, NewServer())
	for _, tt := range tests {
		t.Run(fmt.Sprintf("Accept %q", tt.accept), func(t *testing.T) {
			got := send(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, map[string]string{"Accept": tt.accept})
			if got.StatusCode != 200 || got.Header.Get("Content-Type") != tt.ctype || got.body != tt.want {
				t.Errorf("got %d %s %q, want %s %q", got.StatusCode, got.Header.Get("Content-Type"), got.body, tt.ctype, tt.want)
			}
		})
	}
	t.Run("an error is always JSON", func(t *testing.T) {
		got := send(t, "POST", url, `{`, map[string]string{"Accept": "application/json, text/event-stream"})
		if got.StatusCode != 400 || got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %d %s, want 400 application/json", got.StatusCode, got.Header.Get("Content-Type"))
		}
	})
}

// call returns a request with id 1 that calls a tool.
func call(name, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, name,
		arguments)
}

// result sends a request and decodes the result of the response into v.
func result(t *testing.T, url, request string, v any) {
	t.Helper()
	got := send(t, "POST", url, request, nil)
	if got.ContentLength != int64(len(got.body)) {
		t.Errorf("Content-Length %d, want %d", got.ContentLength, len(got.body))
	}
	if !strings.HasPrefix(got.body, `{"jsonrpc":"2.0","id":1,"result":`) {
		t.Fatalf("got %d %.300s", got.StatusCode, got.body)
	}
	reply := struct{ Result any }{v}
	if err := json.Unmarshal([]byte(got.body), &reply); err != nil {
		t.Fatal(err)
	}
}

type decodedResult struct {
	Content []struct {
		Type, Text, Data, MIMEType string
	}
	StructuredContent any
}

func TestServerListsTools(t *testing.T) {
	var list struct {
		Tools []struct {
			Name, Description string
			InputSchema       struct {
				Type       string
				Properties map[string]map[string]any
				Required   []string
			}
			OutputSchema map[string]any
		}
	}
	result(t, serve(t, NewServer()), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, &list)

	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if tool.Description == "" || tool.InputSchema.Type != "object" || tool.InputSchema.Properties == nil {
			t.Errorf("%s: %+v", tool.Name, tool)
		}
	}
	if want := []string{"read_log", "read_image", "list_files", "echo"}; !reflect.DeepEqual(names, want) {
		t.Fatalf("tools %q, want %q", names, want)
	}
	lines := list.Tools[0].InputSchema.Properties["lines"]
	delete(lines, "description")
	if want := map[string]any{"type": "integer", "minimum": 1.0, "maximum": 200000.0,
		"default": 2000.0}; !reflect.DeepEqual(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
	if list.Tools[2].OutputSchema == nil {
		t.Error("list_files has structured content, but no output schema")
	}
	if got := list.Tools[3].InputSchema.Required; !reflect.DeepEqual(got, []string{"text"}) {
		t.Errorf("echo requires %q", got)
	}
}

func TestServerReadsLog(t *testing.T) {
	url := serve(t, NewServer())
	tests := []struct {
		name, request string
		lines, errors int
	}{
		{"the default is 2000 lines", call("read_log", `{}`), 2000, 2},
		{"without arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_log"}}`, 2000, 2},
		{"one line is the last", call("read_log", `{"lines":1}`), 1, 0},
		{"four lines have room for one error", call("read_log", `{"lines":4}`), 4, 1},
		{"five lines have room for both", call("read_log", `{"lines":5}`), 5, 2},
		{"the maximum", call("read_log", `{"lines":200000}`), 200000, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var first, second decodedResult
			result(t, url, tt.request, &first)
			result(t, url, tt.request, &second)
			if !reflect.DeepEqual(first, second) {
				t.Error("a second call returns another log")
			}
			if len(first.Content) != 1 || first.Content[0].Type != "text" {
				t.Fatalf("%d content items, want one text", len(first.Content))
			}
			lines := strings.Split(first.Content[0].Text, "\n")
			if len(lines) != tt.lines {
				t.Fatalf("%d lines, want %d", len(lines), tt.lines)
			}
			if !strings.HasPrefix(lines[0], "2026-01-15T08:00:00.000Z ") {
				t.Errorf("first line %q", lines[0])
			}
			if last := lines[len(lines)-1]; !strings.Contains(last, " WARN  breaker circuit opened ") {
				t.Errorf("last line %q", last)
			}
			var errors int
			for i, line := range lines {
				if !strings.Contains(line, " ERROR ") {
					continue
				}
				errors++
				if i < tt.lines/2 || i > tt.lines/2+1 {
					t.Errorf("an error on line %d of %d, want it in the middle", i+1, tt.lines)
				}
			}
			if errors != tt.errors {
				t.Errorf("%d errors, want %d", errors, tt.errors)
			}
		})
	}
}

func TestServerReadsImage(t *testing.T) {
	// The picture must not depend on the start of the server.
	var first, second decodedResult
	result(t, serve(t, NewServer()), call("read_image", `{}`), &first)
	result(t, serve(t, NewServer()), call("read_image", `{}`), &second)
	if !reflect.DeepEqual(first, second) {
		t.Error("another server returns another picture")
	}
	if len(first.Content) != 1 || first.Content[0].Type != "image" || first.Content[0].MIMEType != "image/png" {
		t.Fatalf("content %.200v, want one image/png", first.Content)
	}
	data := first.Content[0].Data
	if len(data) <= 8000 {
		t.Errorf("%d characters of base64, want more than 8000", len(data))
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if size := picture.Bounds().Size(); size.X != 64 || size.Y != 64 {
		t.Errorf("size %v, want 64 by 64", size)
	}
}

func TestServerListsFiles(t *testing.T) {
	var got decodedResult
	result(t, serve(t, NewServer()), call("list_files", `{}`), &got)
	if len(got.Content) != 1 || got.Content[0].Type != "text" {
		t.Fatalf("content %v, want one text", got.Content)
	}
	var text any
	if err := json.Unmarshal([]byte(got.Content[0].Text), &text); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(text, got.StructuredContent) {
		t.Errorf("text %v\ndiffers from structured content %v", text, got.StructuredContent)
	}
	files, _ := got.StructuredContent.(map[string]any)["files"].([]any)
	if len(files) < 3 {
		t.Errorf("%d files, want several", len(files))
	}
}

func TestServerAnswersOnStdio(t *testing.T) {
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":"a","method":"ping"}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`noise`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"text":"<é>"}}}`,
	}, "\n")
	var out strings.Builder
	if err := NewServer().ServeStdio(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	want := `{"jsonrpc":"2.0","id":"a","result":{}}
{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}
{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"<é>"}]}}
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
