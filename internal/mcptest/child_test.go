package mcptest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// TestMain runs the test binary as a child process if its first argument is ds.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" {
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

const (
	handshake = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18"}}`
	ready     = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

	// Members of _meta in a modern request.
	modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

	// The start of a modern result.
	modernResult = `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"alpha",` +
		`"version":"0.1.0"}}`
)

func TestChildAnswers(t *testing.T) {
	text := func(id, text string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, id, quote(text))
	}
	failure := func(id string, code int, message string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`, id, code, quote(message))
	}
	request := func(id, method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params)
	}
	const echoParams = `{"name":"echo", "arguments":{"n":12345678901234567890,"s":"<é\u00e9>"},"_meta":{"x":1.0}}`

	tests := []struct {
		name  string
		flags string
		send  string
		want  string
	}{
		{"ping gets an empty result", "", request(`1`, "ping", `{}`), `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{
			"an id beyond 2^53 keeps its digits",
			"",
			request(`90071992547409931`, "ping", `{}`),
			`{"jsonrpc":"2.0","id":90071992547409931,"result":{}}`,
		},
		{"an id keeps its escapes", "", request(`"\u003c0"`, "ping", `{}`), `{"jsonrpc":"2.0","id":"\u003c0","result":{}}`},
		{
			"ping is unknown with no-ping",
			"--no-ping",
			request(`1`, "ping", `{}`),
			failure(`1`, -32601, "method not found: ping"),
		},
		{
			"results come first with result-first",
			"--result-first",
			request(`1`, "ping", `{}`),
			`{"result":{},"jsonrpc":"2.0","id":1}`,
		},
		{
			"errors keep their order with result-first",
			"--result-first",
			request(`1`, "foo/bar", `{}`),
			failure(`1`, -32601, "method not found: foo/bar"),
		},
		{"a line that is not JSON is a parse error", "", `hello: world`, failure(`null`, -32700, "parse error")},
		{
			"a batch is refused",
			"",
			`[` + request(`1`, "ping", `{}`) + `]`,
			failure(`null`, -32600, "not a JSON-RPC 2.0 message"),
		},
		{
			"server/discover is unknown",
			"",
			request(`1`, "server/discover", `{"_meta":{`+modernMeta+`}}`),
			failure(`1`, -32601, "method not found: server/discover"),
		},

		{"echo returns the params byte for byte", "", request(`1`, "tools/call", echoParams), text(`1`, echoParams)},
		{"an unknown tool is an error", "", call("zz", `{}`), failure(`1`, -32602, "Unknown tool: zz")},
		{
			"invalid arguments are an error",
			"",
			call("big", `{"n":-1}`),
			failure(`1`, -32602, "n must not be negative"),
		},
		{"slow sleeps", "", call("slow", `{"ms":1}`), text(`1`, "slept")},
		{"pid returns the process id", "", call("pid", `{}`), text(`1`, strconv.Itoa(os.Getpid()))},
		{"big repeats", "", call("big", `{"n":3,"c":"é<"}`), text(`1`, "é<é<é<")},
		{"big repeats x by default", "", call("big", `{"n":5}`), text(`1`, "xxxxx")},
		{"emit sends hello by default", "", call("emit", `{}`),
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}` + "\n" +
				text(
					`1`,
					"emitted",
				)},
		{
			"emit sends the given notification, byte for byte",
			"",
			call("emit", `{"method":"notifications/foo","params":{"a" : 1.0}}`),
			`{"jsonrpc":"2.0","method":"notifications/foo","params":{"a" : 1.0}}` + "\n" + text(`1`, "emitted"),
		},
		{
			"progress uses the token",
			"",
			request(`1`, "tools/call", `{"name":"progress","arguments":{"steps":2},`+
				`"_meta":{"progressToken":"\u0061"}}`),
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"\u0061","progress":1,"total":2}}` +
				"\n" +
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"\u0061","progress":2,"total":2}}` +
				"\n" + text(
				`1`,
				"done",
			),
		},
		{"progress sends nothing without a token", "", call("progress", `{"steps":2}`), text(`1`, "done")},
		{
			"noise is written between messages",
			"",
			call("noise", `{"lines":2,"text":"{oops"}`),
			"{oops\n{oops\n" +
				text(`1`, "written"),
		},
		{"late responds twice", "", call("late", `{"ms":1}`), text(`1`, "in time") + "\n" + text(`1`, "late")},
		{
			"wrong-id responds with an unknown id first",
			"",
			call("wrong-id", `{}`),
			text(`"unknown"`, "for an unknown id") + "\n" +
				text(`1`, "for you"),
		},
		{"touch names the resource", "", call("touch", `{"uri":"file://a/\u0062.txt"}`),
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file://a/\u0062.txt"}}` + "\n" +
				text(
					`1`,
					"touched",
				)},
		{"an extra tool answers", "--tools 2", call("t2", `{}`), text(`1`, "t2")},

		{"prompts are listed", "", request(`1`, "prompts/list", `{}`),
			`{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"p","description":"Greets.","arguments":[{"name":"who",` +
				`"description":"Name to greet.","required":false}]}]}}`},
		{"a prompt is returned", "", request(`1`, "prompts/get", `{"name":"p","arguments":{"who":"Eve"}}`),
			`{"jsonrpc":"2.0","id":1,"result":{"messages":[{"role":"user","content":{"type":"text","text":"alpha greets ` +
				`Eve"}}]}}`},
		{
			"an unknown prompt is an error",
			"",
			request(`1`, "prompts/get", `{"name":"q"}`),
			failure(`1`, -32602, "Unknown prompt: q"),
		},
		{"resources are listed", "", request(`1`, "resources/list", `{}`),
			`{"jsonrpc":"2.0","id":1,"result":{"resources":[{"uri":"file://alpha/data.txt","name":"data.txt",` +
				`"mimeType":"text/plain"}]}}`},
		{"templates are listed", "", request(`1`, "resources/templates/list", `{}`),
			`{"jsonrpc":"2.0","id":1,"result":{"resourceTemplates":[{"uriTemplate":"file://alpha/{name}.txt","name":"text ` +
				`files","mimeType":"text/plain"}]}}`},
		{"a resource is read", "", request(`1`, "resources/read", `{"uri":"file://alpha/data.txt"}`),
			`{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"file://alpha/data.txt","mimeType":"text/plain",` +
				`"text":"data of alpha"}]}}`},
		{"a resource of the template is read", "", request(`1`, "resources/read", `{"uri":"file://alpha/x.txt"}`),
			`{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"file://alpha/x.txt","mimeType":"text/plain","text":"x of ` +
				`alpha"}]}}`},
		{"a resource of another server is not found", "", request(`1`, "resources/read", `{"uri":"file://beta/data.txt"}`),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"Resource not found",` +
				`"data":{"uri":"file://beta/data.txt"}}}`},
		{
			"a subscription is accepted",
			"",
			request(`1`, "resources/subscribe", `{"uri":"file://alpha/data.txt"}`),
			`{"jsonrpc":"2.0","id":1,"result":{}}`,
		},
		{
			"a subscription is ended",
			"",
			request(`1`, "resources/unsubscribe", `{"uri":"file://alpha/data.txt"}`),
			`{"jsonrpc":"2.0","id":1,"result":{}}`,
		},
		{"a level is set", "", request(`1`, "logging/setLevel", `{"level":"debug"}`), `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{
			"an argument is completed",
			"",
			request(`1`, "completion/complete",
				`{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"who","value":""}}`),
			`{"jsonrpc":"2.0","id":1,"result":{"completion":{"values":["alpha-one","alpha-two"],"total":2,"hasMore":false}}}`,
		},

		{
			"a list fails with list-error",
			"--list-error",
			request(`1`, "tools/list", `{}`),
			failure(`1`, -32603, "no list today"),
		},
		{
			"every list fails with list-error",
			"--list-error",
			request(`1`, "resources/templates/list", `{}`),
			failure(`1`, -32603, "no list today"),
		},
		{"an unknown cursor gets the first page", "--page 1", request(`1`, "prompts/list", `{"cursor":"zz"}`),
			`{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"p","description":"Greets.","arguments":[{"name":"who",` +
				`"description":"Name to greet.","required":false}]}]}}`},
		{
			"an unknown cursor is refused with strict-cursor",
			"--page 1 --strict-cursor",
			request(`1`, "prompts/list",
				`{"cursor":"zz"}`),
			failure(`1`, -32602, "unknown cursor: zz"),
		},

		{
			"a modern request gets a modern result",
			"--modern",
			request(`1`, "tools/call", `{"name":"big","arguments":{"n":1},"_meta":{`+modernMeta+`}}`),
			`{"jsonrpc":"2.0","id":1,"result":` + modernResult + `,"content":[{"type":"text","text":"x"}]}}`,
		},
		{
			"a modern read has TTL 0",
			"--modern",
			request(`1`, "resources/read",
				`{"uri":"file://alpha/data.txt","_meta":{`+modernMeta+`}}`),
			`{"jsonrpc":"2.0","id":1,"result":` + modernResult +
				`,"ttlMs":0,"cacheScope":"public","contents":[{"uri":"file://alpha/data.txt","mimeType":"text/plain",` +
				`"text":"data of alpha"}]}}`,
		},
		{"a legacy request on the same connection gets a legacy result", "--modern", call("big", `{"n":1}`), text(`1`, "x")},
		{
			"a modern ping is unknown",
			"--modern",
			request(`1`, "ping", `{"_meta":{`+modernMeta+`}}`),
			failure(`1`, -32601, "method not found: ping"),
		},
		{
			"a modern request must have capabilities",
			"--modern",
			request(`1`, "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`),
			failure(`1`, -32602, `missing or invalid _meta field "io.modelcontextprotocol/clientCapabilities"`),
		},
		{
			"an unknown version is refused",
			"--modern",
			request(`1`, "tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}}`),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"unsupported protocol version",` +
				`"data":{"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],` +
				`"requested":"2099-01-01"}}}`,
		},
		{
			"a missing modern resource is an invalid param",
			"--modern",
			request(`1`, "resources/read",
				`{"uri":"x:y","_meta":{`+modernMeta+`}}`),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Resource not found","data":{"uri":"x:y"}}}`,
		},
		{
			"a modern call has a server request in its result",
			"--modern",
			request(`1`, "tools/call", `{"name":"ask-roots","_meta":{`+
				modernMeta+`}}`),
			`{"jsonrpc":"2.0","id":1,"result":` + strings.Replace(
				modernResult,
				"complete",
				"input_required",
				1,
			) +
				`,"inputRequests":{"0":{"method":"roots/list","params":{}}},"requestState":"alpha asked roots/list"}}`,
		},
		{
			"a modern call with the response completes",
			"--modern",
			request(`1`, "tools/call", `{"name":"ask-roots","inputResponses":{"0":{"roots":[]}},"_meta":{`+modernMeta+`}}`),
			`{"jsonrpc":"2.0","id":1,"result":` + modernResult + `,"content":[{"type":"text","text":"{\"roots\":[]}"}]}}`,
		},
		{
			"a modern call without a level logs nothing",
			"--modern",
			request(`1`, "tools/call", `{"name":"emit","_meta":{`+
				modernMeta+`}}`),
			`{"jsonrpc":"2.0","id":1,"result":` + modernResult + `,"content":[{"type":"text","text":"emitted"}]}}`,
		},
		{
			"a modern call with a level logs",
			"--modern",
			request(`1`, "tools/call", `{"name":"emit","_meta":{"io.modelcontextprotocol/logLevel":"info",`+modernMeta+`}}`),
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}` + "\n" +
				`{"jsonrpc":"2.0","id":1,"result":` + modernResult + `,"content":[{"type":"text","text":"emitted"}]}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := startInitialized(t, strings.Fields("alpha "+tt.flags)...)
			c.send(tt.send)
			for want := range strings.SplitSeq(tt.want, "\n") {
				c.wants(want)
			}
			c.endsWith(0) // no further output
		})
	}
}

func TestChildHandshake(t *testing.T) {
	const all = `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true},` +
		`"logging":{},"completions":{}}`
	initialized := func(version, capabilities string) string {
		return `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"` + version + `","capabilities":` + capabilities +
			`,"serverInfo":{"name":"alpha","version":"0.1.0"}}}`
	}
	const notInitialized = `{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"not initialized"}}`
	const noInitialize = `{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"method not found: initialize"}}`
	discovered := func(versions string) string {
		return `{"jsonrpc":"2.0","id":0,"result":` + modernResult +
			`,"ttlMs":0,"cacheScope":"public","supportedVersions":[` + versions + `],"capabilities":` + all + `}}`
	}
	tests := []struct {
		name, flags, method, params, want string
	}{
		{"a known version is echoed", "", "initialize", `{"protocolVersion":"2024-11-05"}`, initialized("2024-11-05", all)},
		{
			"an unknown version gets the latest",
			"",
			"initialize",
			`{"protocolVersion":"1999-01-01"}`,
			initialized("2025-11-25", all),
		},
		{
			"a modern version gets the latest",
			"--modern",
			"initialize",
			`{"protocolVersion":"2026-07-28"}`,
			initialized("2025-11-25", all),
		},
		{
			"caps-empty declares tools only",
			"--caps-empty",
			"initialize",
			`{"protocolVersion":"2025-11-25"}`,
			initialized("2025-11-25", `{"tools":{}}`),
		},
		{"init-delay delays", "--init-delay 0.01", "initialize", `{}`, initialized("2025-11-25", all)},
		{"ping is served before initialize", "", "ping", `{}`, `{"jsonrpc":"2.0","id":0,"result":{}}`},
		{"requests are refused before initialize", "", "tools/list", `{}`, notInitialized},
		{"requests are refused before initialize with modern", "--modern", "tools/list", `{"_meta":{}}`, notInitialized},
		{"modern requests need no initialize", "--modern", "tools/call", `{"name":"big","_meta":{` + modernMeta + `}}`,
			`{"jsonrpc":"2.0","id":0,"result":` + modernResult + `,"content":[{"type":"text","text":""}]}}`},
		{"discover returns both eras with modern", "--modern", "server/discover", `{"_meta":{` + modernMeta + `}}`,
			discovered(`"2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"`)},
		{
			"discover returns one era with modern-only",
			"--modern-only",
			"server/discover",
			`{"_meta":{` + modernMeta + `}}`,
			discovered(`"2026-07-28"`),
		},
		{"initialize is unknown with modern-only", "--modern-only", "initialize", `{}`, noInitialize},
		{"a modern initialize is unknown", "--modern", "initialize", `{"_meta":{` + modernMeta + `}}`, noInitialize},
		{
			"discover without a version is unknown",
			"--modern",
			"server/discover",
			`{}`,
			`{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"method not found: server/discover"}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := startChild(t, strings.Fields("alpha "+tt.flags)...)
			c.send(`{"jsonrpc":"2.0","id":0,"method":"` + tt.method + `","params":` + tt.params + `}`)
			c.wants(tt.want)
			c.endsWith(0)
		})
	}
}

func TestChildListsPages(t *testing.T) {
	c := startInitialized(t, "alpha", "--tools", "4", "--page", "5", "--strict-cursor", "--list-delay", "0.001")
	var names []string
	for pages, params := 1, `{}`; ; pages++ {
		c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":` + params + `}`)
		var got struct {
			Result struct {
				Tools []struct {
					Name        string
					InputSchema struct{ Type string }
				}
				NextCursor string
			}
		}
		c.decode(&got)
		for _, tool := range got.Result.Tools {
			if tool.InputSchema.Type != "object" {
				t.Errorf("%s has no schema", tool.Name)
			}
			names = append(names, tool.Name)
		}
		if got.Result.NextCursor == "" {
			if pages != 5 {
				t.Errorf("%d pages, want 5", pages)
			}
			break
		}
		params = fmt.Sprintf(`{"cursor":%q}`, got.Result.NextCursor)
		c.send(`{"jsonrpc":"2.0","id":2,"method":"prompts/list","params":` + params + `}`)
		c.wants(
			fmt.Sprintf(
				`{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"unknown cursor: %s"}}`,
				got.Result.NextCursor,
			),
		)
	}
	want := strings.Fields(
		"echo slow die hang pid env cwd ask ask-roots emit progress big noise stderr spawn late " +
			"wrong-id half mute touch add-tool t1 t2 t3 t4",
	)
	if !slices.Equal(names, want) {
		t.Errorf("tools\n%q, want\n%q", names, want)
	}
}

func TestChildAnnouncesChanges(t *testing.T) {
	c := startInitialized(t, "alpha", "--modern")
	c.send(
		`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen",` +
			`"params":{"notifications":{"toolsListChanged":true,"promptsListChanged":true,` +
			`"resourceSubscriptions":["file://alpha/data.txt"]},"_meta":{` + modernMeta + `}}}`,
	)
	c.wants(
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged",` +
			`"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l"},"notifications":{"toolsListChanged":true,` +
			`"resourceSubscriptions":["file://alpha/data.txt"]}}}`,
	)
	c.send(call("add-tool", `{"name":"new"}`))
	c.wants(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	c.wants(
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed",` +
			`"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}`,
	)
	c.wants(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"added"}]}}`)
	c.send(call("new", `{}`))
	c.wants(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"new"}]}}`)
	c.send(call("touch", `{"uri":"file://alpha/data.txt"}`))
	c.wants(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file://alpha/data.txt"}}`)
	c.wants(
		`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file://alpha/data.txt",` +
			`"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}`,
	)
	c.wants(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"touched"}]}}`)
	c.endsWith(0)
}

func TestChildSendsServerRequests(t *testing.T) {
	c := startChild(t, "alpha", "--roots-at-init")
	c.send(handshake)
	c.next()
	c.send(ready)
	c.wants(`{"jsonrpc":"2.0","id":0,"method":"roots/list"}`)
	c.send(call("ask", `{"method":"sampling/createMessage","params":{"a" :1}}`))
	c.wants(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"a" :1}}`)
	c.send(strings.Replace(call("ask-roots", `{}`), `"id":1`, `"id":2`, 1))
	c.wants(`{"jsonrpc":"2.0","id":2,"method":"roots/list"}`)
	c.send(`{"jsonrpc":"2.0","id":2,"result":{"roots": []}}`)
	c.wants(`{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"{\"roots\": []}"}]}}`)
	c.send(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`)
	c.wants(
		`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"{\"code\":-1,\"message\":\"no\"}"}],` +
			`"isError":true}}`,
	)
	c.endsWith(0)
}

func TestChildStopsCancelledRequests(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("DS_LOG", log)
	for _, tt := range []struct{ name, flags, request string }{
		{"slow", "", `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"slow","arguments":{"ms":60000}}}`},
		{"hang", "", `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"hang"}}`},
		{"a ping that hangs", "--hang-ping", `{"jsonrpc":"2.0","id":"a","method":"ping"}`},
		{"an initialize that hangs", "--hang-init", strings.Replace(handshake, "init", "a", 1)},
		{"a slow list", "--list-delay 60", `{"jsonrpc":"2.0","id":"a","method":"tools/list"}`},
		{"a server request", "", `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"ask-roots"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_ = os.Remove(log)
			c := startChild(t, strings.Fields("alpha "+tt.flags)...)
			if tt.flags != "--hang-init" {
				c.send(handshake)
				c.next()
			}
			c.send(tt.request)
			if tt.name == "a server request" {
				c.wants(`{"jsonrpc":"2.0","id":0,"method":"roots/list"}`)
			}
			c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
			waitForLog(t, log, fmt.Sprintf(`{"pid":%d,"id":"alpha","event":"cancelled","requestId":"a"}`, os.Getpid()))
			c.endsWith(0)
		})
	}
}

func TestChildServesConcurrently(t *testing.T) {
	c := startInitialized(t, "alpha")
	c.send(`{"jsonrpc":"2.0","id":"first","method":"tools/call","params":{"name":"hang"}}`)
	c.send(call("big", `{"n":1}`))
	c.wants(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"}]}}`)
	c.endsWith(0)
}

func TestChildWritesBigLines(t *testing.T) {
	const n = 64 << 20
	c := startInitialized(t, "alpha")
	c.send(call("big", `{"n":`+strconv.Itoa(n)+`}`))
	if got := c.next(); len(got) != n+len(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":""}]}}`) {
		t.Errorf("got a line of %d bytes", len(got))
	}
}

func TestChildReadsAndWritesEitherFraming(t *testing.T) {
	const ping = "{\"jsonrpc\":\"2.0\",\n\"id\":1,\"method\":\"ping\"}"
	const pong = `{"jsonrpc":"2.0","id":1,"result":{}}`
	framed := fmt.Sprintf("Content-Length: %d\r\n\r\n", len(ping)) + ping
	typed := fmt.Sprintf("Content-Type: x\r\ncontent-length:%d\r\n\r\n", len(ping)) + ping
	line := strings.ReplaceAll(ping, "\n", "") + "\n"
	lastLine := strings.ReplaceAll(ping, "\n", "")
	for _, tt := range []struct{ name, framing, send, want string }{
		{"headers in, lines out", "line", framed + typed, pong + "\n" + pong + "\n"},
		{"lines in, lines out", "line", line + "\r\n" + lastLine, pong + "\n" + pong + "\n"},
		{"both in, headers out", "content-length", framed + line, strings.Repeat("Content-Length: 36\r\n\r\n"+pong, 2)},
		{"an invalid length is not JSON", "line", "Content-Length: -1\n",
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}` + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if exit := mcptest.RunChild([]string{"alpha", "--framing", tt.framing}, strings.NewReader(tt.send), &out,
				io.Discard); exit != 0 {
				t.Errorf("exit %d", exit)
			}
			if out.String() != tt.want {
				t.Errorf("got %q, want %q", out.String(), tt.want)
			}
		})
	}
}

func TestChildLogsWhatItReceives(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("DS_LOG", log)
	const odd = `{"jsonrpc": "2.0","method":"notifications/foo","params":{"n":1.0}}`
	mcptest.RunChild([]string{"alpha"}, strings.NewReader(odd+"\noops\n"), io.Discard, io.Discard)
	mcptest.RunChild([]string{"beta", "--exit-at-start", "3"}, strings.NewReader(odd), io.Discard, io.Discard)
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`{"pid":PID,"id":"alpha","event":"start"}
{"pid":PID,"id":"alpha","message":`+odd+`}
{"pid":PID,"id":"alpha","event":"garbage"}
{"pid":PID,"id":"alpha","event":"eof"}
{"pid":PID,"id":"beta","event":"start"}
`, "PID", strconv.Itoa(os.Getpid()))
	if string(got) != want {
		t.Errorf("got log\n%swant\n%s", got, want)
	}
}

func TestChildStart(t *testing.T) {
	for _, tt := range []struct {
		name, args, stdout, stderr string
		exit                       int
	}{
		{"no output, and exit at the end of stdin", "alpha", "", "", 0},
		{"a banner is three lines", "alpha --banner", strings.Repeat("DS alpha is starting, and says so on stdout\n", 3), "",
			0},
		{"exit-at-start exits", "alpha --exit-at-start 7", "", "", 7},
		{"an id is required", "--banner", "", "ds: usage: ds <id> [flags]\n", 2},
		{"an unknown flag is refused", "alpha --zz", "", "ds: flag provided but not defined: -zz\n", 2},
		{"an unknown framing is refused", "alpha --framing x", "", "ds: unknown framing \"x\"\n", 2},
		{"another argument is refused", "alpha beta", "", "ds: unexpected argument \"beta\"\n", 2},
		{"a negative page is refused", "alpha --page -1", "", "ds: negative number\n", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			exit := mcptest.RunChild(strings.Fields(tt.args), strings.NewReader(""), &stdout, &stderr)
			if exit != tt.exit || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d, %q, %q", exit, &stdout, &stderr, tt.exit, tt.stdout, tt.stderr)
			}
		})
	}
}

func TestChildProcess(t *testing.T) {
	t.Run("env and cwd return the environment and the directory", func(t *testing.T) {
		dir := t.TempDir()
		p := startProcess(t, func(cmd *exec.Cmd) { cmd.Dir, cmd.Env = dir, []string{"A=b=c"} }, "alpha")
		if env := p.text(call("env", `{}`)); !strings.Contains(env, `"A":"b=c"`) {
			t.Errorf("env %s", env)
		}
		if cwd := p.text(call("cwd", `{}`)); cwd != dir {
			t.Errorf("cwd %s, want %s", cwd, dir)
		}
		if pid := p.text(call("pid", `{}`)); pid != strconv.Itoa(p.cmd.Process.Pid) {
			t.Errorf("pid %s, want %d", pid, p.cmd.Process.Pid)
		}
	})
	t.Run("stderr writes lines", func(t *testing.T) {
		var stderr bytes.Buffer
		p := startProcess(t, func(cmd *exec.Cmd) { cmd.Stderr = &stderr }, "alpha")
		p.text(call("stderr", `{"lines":2,"text":"ouch"}`))
		p.in.Close()
		p.wants("exit status 0")
		if stderr.String() != "ouch\nouch\n" {
			t.Errorf("stderr %q", &stderr)
		}
	})
	t.Run("die ends the process", func(t *testing.T) {
		p := startProcess(t, nil, "alpha")
		p.send(call("die", `{"code":5}`))
		p.wants("exit status 5")
	})
	t.Run("SIGTERM ends the process", func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		t.Setenv("DS_LOG", log)
		p := startProcess(t, nil, "alpha")
		p.signal(syscall.SIGTERM)
		p.wants("signal: terminated")
		waitForLog(t, log, fmt.Sprintf(`{"pid":%d,"id":"alpha","event":"term"}`, p.cmd.Process.Pid))
	})
	t.Run("only SIGKILL ends the process with ignore-term", func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		t.Setenv("DS_LOG", log)
		p := startProcess(t, nil, "alpha", "--ignore-term")
		p.signal(syscall.SIGTERM)
		waitForLog(t, log, fmt.Sprintf(`{"pid":%d,"id":"alpha","event":"term"}`, p.cmd.Process.Pid))
		p.in.Close()
		waitForLog(t, log, fmt.Sprintf(`{"pid":%d,"id":"alpha","event":"eof"}`, p.cmd.Process.Pid))
		p.signal(syscall.SIGTERM)
		p.signal(syscall.Signal(0)) // the process still runs
		p.signal(syscall.SIGKILL)
		p.wants("signal: killed")
	})
	t.Run("SIGTERM ends a spawned process unless it is stubborn", func(t *testing.T) {
		p := startProcess(t, nil, "alpha", "--ignore-term")
		var pids []int
		for _, stubborn := range []bool{true, false} {
			pid, err := strconv.Atoi(p.text(call("spawn", fmt.Sprintf(`{"stubborn":%t}`, stubborn))))
			if err != nil {
				t.Fatal(err)
			}
			defer syscall.Kill(pid, syscall.SIGKILL)
			if group, err := syscall.Getpgid(pid); err != nil || group != syscall.Getpgrp() {
				t.Errorf("process group %d %v, want %d", group, err, syscall.Getpgrp())
			}
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		await.Until(
			t,
			"the other process ends",
			func() bool { return syscall.Kill(pids[1], syscall.Signal(0)) != nil },
		)
		if err := syscall.Kill(pids[0], syscall.Signal(0)); err != nil {
			t.Errorf("the stubborn process ended: %v", err)
		}
	})
}

func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)
	return strings.TrimSpace(b.String())
}

// childClient is the client of a child.
type childClient struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string // output of the child, then its exit status
}

// startChild runs a child in this process.
func startChild(t *testing.T, args ...string) *childClient {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	c := &childClient{t, in, make(chan string, 100)}
	go func() {
		exit := mcptest.RunChild(args, stdin, stdout, io.Discard)
		stdout.CloseWithError(fmt.Errorf("exit status %d", exit))
	}()
	go c.read(out)
	t.Cleanup(func() { in.Close() })
	return c
}

func startInitialized(t *testing.T, args ...string) *childClient {
	t.Helper()
	c := startChild(t, args...)
	c.send(handshake)
	c.next()
	c.send(ready)
	return c
}

func (c *childClient) read(out io.Reader) {
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			c.lines <- err.Error()
			return
		}
		c.lines <- strings.TrimSuffix(line, "\n")
	}
}

func (c *childClient) send(line string) {
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Error(err)
	}
}

func (c *childClient) next() string {
	c.t.Helper()
	select {
	case line := <-c.lines:
		return line
	case <-time.After(await.Patience):
		c.t.Fatal("timeout waiting for the child")
		return ""
	}
}

func (c *childClient) wants(want string) {
	c.t.Helper()
	if got := c.next(); got != want {
		c.t.Fatalf("got\n%.2000s\nwant\n%s", got, want)
	}
}

func (c *childClient) decode(v any) {
	c.t.Helper()
	if line := c.next(); json.Unmarshal([]byte(line), v) != nil {
		c.t.Fatalf("got %s", line)
	}
}

// endsWith closes stdin and checks that the child exits without further output.
func (c *childClient) endsWith(exit int) {
	c.t.Helper()
	c.in.Close()
	c.wants(fmt.Sprintf("exit status %d", exit))
}

// childProcess is a child in its own process.
type childProcess struct {
	*childClient
	cmd *exec.Cmd
}

// startProcess starts an initialized child process, which ends with the test.
func startProcess(t *testing.T, set func(*exec.Cmd), args ...string) *childProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"ds"}, args...)...)
	if set != nil {
		set(cmd)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout := io.Pipe()
	cmd.Stdout = stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	c := &childClient{t, in, make(chan string, 100)}
	go c.read(out)
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = fmt.Errorf("exit status 0")
		}
		stdout.CloseWithError(err)
	}()
	c.send(handshake)
	c.next()
	return &childProcess{c, cmd}
}

// text returns the text in the result of a call.
func (p *childProcess) text(call string) string {
	p.t.Helper()
	p.send(call)
	var got struct {
		Result struct {
			Content []struct{ Text string }
		}
	}
	p.decode(&got)
	if len(got.Result.Content) != 1 {
		p.t.Fatal("no text")
	}
	return got.Result.Content[0].Text
}

func (p *childProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// waitForLog waits for a line in the log of a child.
func waitForLog(t *testing.T, name, line string) {
	t.Helper()
	var log []byte
	defer func() {
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	}()
	await.Until(t, line+" in the log", func() bool {
		log, _ = os.ReadFile(name)
		return slices.Contains(strings.Split(string(log), "\n"), line)
	})
}
