package mcptest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

const (
	chatPath      = "/v1/chat/completions"
	messagesPath  = "/v1/messages"
	responsesPath = "/v1/responses"
	geminiPath    = "/v1beta/models/gemini:generateContent"
	geminiStream  = "/v1beta/models/gemini:streamGenerateContent"
)

func zip(text string) string {
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	_, _ = io.WriteString(zw, text)
	_ = zw.Close()
	return b.String()
}

// The tool calls depend only on the conversation.
func TestChatCalls(t *testing.T) {
	const (
		first  = `"sample__read_log"`
		second = `"sample__echo"`
		tools  = `{"tools":[{"name":"sample__echo"}],`
	)
	tests := []struct {
		name, path, request string
		want                []string // in the response, as JSON and as a stream
	}{
		{"no tools offered", chatPath, `{"messages":[]`, []string{`"chatcmpl-fake1"`, `"stop"`}},
		{"a chat completion without results", chatPath, tools + `"messages":[{"role":"user","content":"?"}]`,
			[]string{first, `"call_fake1"`, `"{\"lines\":2}"`, `"tool_calls"`}},
		{
			"a chat completion with one result",
			chatPath,
			tools + `"messages":[{"role":"user","content":"?"},{"role":"tool","content":"x"}]`,
			[]string{second, `"call_fake2"`, `"chatcmpl-fake2"`},
		},
		{
			"a chat completion with all results",
			chatPath,
			tools + `"messages":[{"role":"tool","content":"x"},{"role":"tool","content":"y"}]`,
			[]string{`"chatcmpl-fake3"`, `"stop"`},
		},
		{"a message without results", messagesPath, tools + `"messages":[{"role":"user","content":"?"}]`,
			[]string{first, `"toolu_fake1"`, `"tool_use"`, `lines`}},
		{
			"a message with one result",
			messagesPath,
			tools + `"messages":[{"role":"user","content":[{"type":"text"},` +
				`{"type":"tool_result"}]}]`,
			[]string{second, `"toolu_fake2"`, `"msg_fake2"`},
		},
		{"a response without results", responsesPath, tools + `"input":"?"`,
			[]string{first, `"namespace":"mcp__gateway"`, `"call_fake1"`, `"{\"lines\":2}"`}},
		{"a response with one result", responsesPath, tools + `"input":[{"type":"function_call_output","output":"x"}]`,
			[]string{second, `"call_fake2"`, `"resp_fake2"`}},
		{"a content without results", geminiPath, tools + `"contents":[{"role":"user","parts":[{"text":"?"}]}]`,
			[]string{`{"functionCall":{"name":` + first + `,"args":{"lines":2}}}`, `"fake1"`}},
		{
			"a content in JSON",
			geminiPath,
			`{"contents":[],"generationConfig":{"responseMimeType":"application/json"}`,
			[]string{`{"text":"{}"}`},
		},
		{
			"a stream of contents with one result",
			geminiStream,
			tools + `"contents":[{"role":"user","parts":[{"functionResponse":{}}]}]`,
			[]string{"data: ", `{"functionCall":{"name":` + second, `"fake2"`},
		},
		{
			"a stream of contents with all results",
			geminiStream,
			tools + `"contents":[{"parts":[{"functionResponse":{}},{"functionResponse":{}}]}]`,
			[]string{`{"text":"o"}`, `{"text":"k"}`, `"STOP"`},
		},
	}
	for _, tt := range tests {
		for _, ending := range []string{`}`, `,"stream":true}`} {
			t.Run(tt.name+ending, func(t *testing.T) {
				chat := &mcptest.Chat{Calls: []mcptest.ToolCall{
					{Name: "sample__read_log", Namespace: "mcp__gateway", Arguments: `{"lines":2}`},
					{Name: "sample__echo", Arguments: `{"text":"é"}`},
				}}
				got := send(t, "POST", serve(t, chat)+tt.path, tt.request+ending, nil).body
				for _, want := range tt.want {
					if !strings.Contains(got, want) {
						t.Errorf("no %s in %s", want, got)
					}
				}
				for line := range strings.Lines(got) {
					data, event := strings.CutPrefix(strings.TrimSpace(line), "data: ")
					if (event || !strings.Contains(got, "data: ")) && data != "[DONE]" && !json.Valid([]byte(data)) {
						t.Errorf("not JSON: %s", line)
					}
				}
			})
		}
	}
}

func TestChatAnswers(t *testing.T) {
	tests := []struct {
		name    string
		usage   mcptest.Usage
		path    string
		request string // default {"model":"m"}
		want    string
	}{
		{
			name: "a chat completion",
			path: chatPath,
			want: `{"id":"chatcmpl-fake1","object":"chat.completion","created":1767225600,"model":"m",` +
				`"choices":[{"index":0,"message":{"role":"assistant","content":"ok","refusal":null},"logprobs":null,` +
				`"finish_reason":"stop"}],` +
				`"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,` +
				`"prompt_tokens_details":{"cached_tokens":800}},"service_tier":"default"}`,
		},
		{
			name: "a message, whose input excludes cached tokens",
			path: messagesPath,
			want: `{"id":"msg_fake1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"ok"}],` +
				`"stop_reason":"end_turn","stop_sequence":null,` +
				`"usage":{"input_tokens":100,"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`,
		},
		{
			name: "a response",
			path: responsesPath,
			want: `{"id":"resp_fake1","object":"response","created_at":1767225600,"status":"completed","error":null,` +
				`"incomplete_details":null,` +
				`"instructions":null,"model":"m","output":[{"id":"msg_fake1","type":"message","status":"completed",` +
				`"role":"assistant",` +
				`"content":[{"type":"output_text","text":"ok","annotations":[],"logprobs":[]}]}],` +
				`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],` +
				`"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":800},"output_tokens":20,` +
				`"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1020}}`,
		},
		{
			name: "a content",
			path: geminiPath,
			want: `{"candidates":[{"content":{"parts":[{"text":"ok"}],"role":"model"},"finishReason":"STOP","index":0}],` +
				`"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":800,"candidatesTokenCount":20,` +
				`"totalTokenCount":1020},` +
				`"modelVersion":"m","responseId":"fake1"}`,
		},
		{
			name:  "configured usage, in which zero stays zero",
			usage: mcptest.Usage{Input: 7, Output: 3},
			path:  messagesPath,
			want: `{"id":"msg_fake1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"ok"}],` +
				`"stop_reason":"end_turn","stop_sequence":null,` +
				`"usage":{"input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}}`,
		},
		{
			name:    "a model spelled as in the request",
			path:    "/messages",
			request: `{"model":"\u006d/<é>"}`,
			want: `{"id":"msg_fake1","type":"message","role":"assistant","model":"\u006d/<é>","content":[{"type":"text",` +
				`"text":"ok"}],` +
				`"stop_reason":"end_turn","stop_sequence":null,` +
				`"usage":{"input_tokens":100,"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`,
		},
		{
			name:    "a body that is not JSON gets a response",
			path:    "/messages",
			request: `{"model":`,
			want: `{"id":"msg_fake1","type":"message","role":"assistant","model":"fake-model","content":[{"type":"text",` +
				`"text":"ok"}],` +
				`"stop_reason":"end_turn","stop_sequence":null,` +
				`"usage":{"input_tokens":100,"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`,
		},
		{
			name: "a model that is not a string is not repeated", path: "/v1/messages", request: `{"model":["m"]}`,
			want: `{"id":"msg_fake1","type":"message","role":"assistant","model":"fake-model","content":[{"type":"text",` +
				`"text":"ok"}],` +
				`"stop_reason":"end_turn","stop_sequence":null,` +
				`"usage":{"input_tokens":100,"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`,
		},
		{name: "only the end of the path selects", path: "/v1/messages/count_tokens", want: `{"ok":true}`},
		{name: "a longer word is another path", path: "/v1/xmessages", want: `{"ok":true}`},
		{name: "anything else", path: "/v1/embeddings", want: `{"ok":true}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request := tt.request
			if request == "" {
				request = `{"model":"m"}`
			}
			got := send(t, "POST", serve(t, &mcptest.Chat{Usage: tt.usage})+tt.path, request, nil)
			if got.StatusCode != 200 || got.body != tt.want {
				t.Errorf("got %d %s\nwant %s", got.StatusCode, got.body, tt.want)
			}
			if !json.Valid([]byte(got.body)) {
				t.Error("not JSON")
			}
			if ctype := got.Header.Get("Content-Type"); ctype != "application/json" {
				t.Errorf("Content-Type %q", ctype)
			}
			if got.ContentLength != int64(len(tt.want)) {
				t.Errorf("Content-Length %d, want %d", got.ContentLength, len(tt.want))
			}
		})
	}
}

// streamed returns every flush of the response to a request for a stream.
func streamed(chat *mcptest.Chat, path, acceptEncoding string) *flushRecorder {
	w := &flushRecorder{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
	r := httptest.NewRequest("POST", path, strings.NewReader(`{"model":"m","stream":true}`))
	r.Header.Set("Accept-Encoding", acceptEncoding)
	chat.ServeHTTP(w, r)
	return w
}

func TestChatStreams(t *testing.T) {
	const chunk = `data: {"id":"chatcmpl-fake1","object":"chat.completion.chunk","created":1767225600,"model":"m",` +
		`"choices":`
	tests := []struct {
		name  string
		usage mcptest.Usage
		path  string
		want  []string // … matches any text
	}{
		{
			name: "a chat completion in chunks, with usage before the end",
			path: chatPath,
			want: []string{
				chunk + `[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,` +
					`"finish_reason":null}],"usage":null}`,
				chunk + `[{"index":0,"delta":{"content":"o"},"logprobs":null,"finish_reason":null}],"usage":null}`,
				chunk + `[{"index":0,"delta":{"content":"k"},"logprobs":null,"finish_reason":null}],"usage":null}`,
				chunk + `[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}`,
				chunk + `[],"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,` +
					`"prompt_tokens_details":{"cached_tokens":800}}}`,
				"data: [DONE]",
			},
		},
		{
			name: "a message, with input usage first and output usage last",
			path: messagesPath,
			want: []string{
				"event: message_start\n" + `data: {"type":"message_start","message":{"id":"msg_fake1","type":"message",` +
					`"role":"assistant","model":"m","content":[],` +
					`"stop_reason":null,"stop_sequence":null,` +
					`"usage":{"input_tokens":100,"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":1}}}`,
				"event: content_block_start\n" + `data: {"type":"content_block_start","index":0,"content_block":{"type":"text",` +
					`"text":""}}`,
				"event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",` +
					`"text":"o"}}`,
				"event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",` +
					`"text":"k"}}`,
				"event: content_block_stop\n" + `data: {"type":"content_block_stop","index":0}`,
				"event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn",` +
					`"stop_sequence":null},"usage":{"output_tokens":20}}`,
				"event: message_stop\n" + `data: {"type":"message_stop"}`,
			},
		},
		{
			name:  "a response, complete in its last event",
			usage: mcptest.Usage{Input: 50, Cached: 5, Output: 2},
			path:  responsesPath,
			want: []string{
				"event: response.created\n" + `data: {"type":"response.created","sequence_number":0,` +
					`"response":{"id":"resp_fake1",…"status":"in_progress",…"output":[],…"usage":null}}`,
				"event: response.in_progress\n" + `data: {"type":"response.in_progress","sequence_number":1,` +
					`"response":{"id":"resp_fake1",…"usage":null}}`,
				"event: response.output_item.added\n" +
					`data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_fake1",` +
					`…"content":[]}}`,
				"event: response.content_part.added\n" +
					`data: {"type":"response.content_part.added","sequence_number":3,"item_id":"msg_fake1",` +
					`…"part":{"type":"output_text","text":"",…}}`,
				"event: response.output_text.delta\n" +
					`data: {"type":"response.output_text.delta","sequence_number":4,…"delta":"o",…}`,
				"event: response.output_text.delta\n" +
					`data: {"type":"response.output_text.delta","sequence_number":5,…"delta":"k",…}`,
				"event: response.output_text.done\n" +
					`data: {"type":"response.output_text.done","sequence_number":6,…"text":"ok",…}`,
				"event: response.content_part.done\n" +
					`data: {"type":"response.content_part.done","sequence_number":7,…"text":"ok",…}`,
				"event: response.output_item.done\n" +
					`data: {"type":"response.output_item.done","sequence_number":8,…"status":"completed",…"text":"ok",…}`,
				"event: response.completed\n" + `data: {"type":"response.completed","sequence_number":9,` +
					`"response":{"id":"resp_fake1",…"status":"completed",…"model":"m",…"text":"ok",…` +
					`"usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":5},"output_tokens":2,` +
					`"output_tokens_details":{"reasoning_tokens":0},"total_tokens":52}}}`,
			},
		},
		{
			name: "three small events from other paths",
			path: "/v1/completions",
			want: []string{`data: {"n":1}`, `data: {"n":2}`, `data: {"n":3}`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := streamed(&mcptest.Chat{Usage: tt.usage}, tt.path, "")
			if ctype := w.Header().Get("Content-Type"); w.Code != 200 || ctype != "text/event-stream" {
				t.Errorf("status %d, Content-Type %q", w.Code, ctype)
			}
			if w.Body.Len() > 0 {
				t.Errorf("%d bytes after the last flush", w.Body.Len())
			}
			if len(w.events) != len(tt.want) {
				t.Fatalf("%d flushes, want %d: %q", len(w.events), len(tt.want), w.events)
			}
			for i, event := range w.events {
				if !like(event, tt.want[i]+"\n\n") {
					t.Errorf("event %d is %s\nwant %s", i, event, tt.want[i])
				}
				_, data, _ := strings.Cut(event, "data: ")
				if !json.Valid([]byte(data)) && data != "[DONE]\n\n" {
					t.Errorf("event %d is not JSON: %s", i, data)
				}
			}
		})
	}
}

// like compares text with a pattern in which … matches any text.
func like(text, pattern string) bool {
	parts := strings.Split(pattern, "…")
	for i, part := range parts {
		at := strings.Index(text, part)
		if i == len(parts)-1 && i > 0 {
			at = strings.LastIndex(text, part)
		}
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return text == ""
}

func TestChatStreamMember(t *testing.T) {
	const request = `{"messages":[], "stream" : true }`
	tests := []struct {
		name     string
		request  string
		encoding string
		want     bool
	}{
		{name: "true", request: request, want: true},
		{name: "false", request: `{"stream":false}`},
		{name: "absent", request: `{}`},
		{name: "a string", request: `{"stream":"true"}`},
		{name: "nested", request: `{"metadata":{"stream":true}}`},
		{name: "in another case", request: `{"Stream":true}`},
		{name: "in a list", request: `[{"stream":true}]`},
		{name: "in a compressed body", request: zip(request), encoding: "gzip", want: true},
		{name: "in a compressed body, with the coding in capitals", request: zip(request), encoding: "GZIP", want: true},
		{name: "false in a compressed body", request: zip(`{"stream":false}`), encoding: "gzip"},
		{name: "in a compressed body that is not declared", request: zip(request)},
		{name: "in a plain body that is declared compressed", request: request, encoding: "gzip"},
		{name: "in a truncated compressed body", request: zip(request)[:20], encoding: "gzip"},
		{name: "in no body", request: ""},
	}
	url := serve(t, new(mcptest.Chat))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			headers := map[string]string{}
			if tt.encoding != "" {
				headers["Content-Encoding"] = tt.encoding
			}
			got := send(t, "POST", url+chatPath, tt.request, headers)
			want := "application/json"
			if tt.want {
				want = "text/event-stream"
			}
			if ctype := got.Header.Get("Content-Type"); got.StatusCode != 200 || ctype != want {
				t.Errorf("got %d %q, want %q", got.StatusCode, ctype, want)
			}
		})
	}
}

func TestChatGate(t *testing.T) {
	whole := streamed(new(mcptest.Chat), chatPath, "").events
	tests := []struct {
		name   string
		open   func(gate chan struct{})
		leaves bool // the client disconnects after a second
		want   []string
	}{
		{name: "a sent value releases the rest", open: func(gate chan struct{}) { gate <- struct{}{} }, want: whole},
		{name: "closing the gate releases the rest", open: func(gate chan struct{}) { close(gate) }, want: whole},
		{name: "the stream ends when the client disconnects", open: func(chan struct{}) {}, leaves: true, want: whole[:1]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chat := &mcptest.Chat{Gate: make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := &flushRecorder{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
				done := make(chan struct{})
				go func() {
					defer close(done)
					chat.ServeHTTP(
						w,
						httptest.NewRequestWithContext(ctx, "POST", chatPath,
							strings.NewReader(`{"model":"m","stream":true}`)),
					)
				}()
				synctest.Wait()
				if !reflect.DeepEqual(w.events, whole[:1]) {
					t.Errorf("before the gate: %q\nwant %q", w.events, whole[:1])
				}
				tt.open(chat.Gate)
				if tt.leaves {
					cancel()
				}
				<-done
				if !reflect.DeepEqual(w.events, tt.want) {
					t.Errorf("after the gate: %q\nwant %q", w.events, tt.want)
				}
			})
		})
	}

	t.Run("a response that is not a stream does not wait", func(t *testing.T) {
		chat := &mcptest.Chat{Gate: make(chan struct{})}
		if got := send(t, "POST", serve(t, chat), `{}`, nil); got.body != `{"ok":true}` {
			t.Errorf("got %s", got.body)
		}
	})
}

func TestChatCompresses(t *testing.T) {
	tests := []struct {
		name           string
		compress       bool
		acceptEncoding string
		want           string
	}{
		{name: "for a client that accepts it", compress: true, acceptEncoding: "br, gzip", want: "gzip"},
		{name: "not for a client that refuses it", compress: true, acceptEncoding: "br, gzip;q=0"},
		{name: "not by default", acceptEncoding: "gzip"},
	}
	for _, tt := range tests {
		t.Run("JSON "+tt.name, func(t *testing.T) {
			got := send(t, "POST", serve(t, &mcptest.Chat{Compress: tt.compress}), `{}`,
				map[string]string{"Accept-Encoding": tt.acceptEncoding})
			if encoding := got.Header.Get("Content-Encoding"); encoding != tt.want {
				t.Fatalf("Content-Encoding %q, want %q", encoding, tt.want)
			}
			if got.ContentLength != int64(len(got.body)) {
				t.Errorf("Content-Length %d of %d bytes", got.ContentLength, len(got.body))
			}
			if tt.want == "gzip" {
				got.body = unzip(t, got.body)
			}
			if got.body != `{"ok":true}` {
				t.Errorf("got %q", got.body)
			}
		})
		t.Run("stream "+tt.name, func(t *testing.T) {
			whole := streamed(new(mcptest.Chat), chatPath, "").events
			w := streamed(&mcptest.Chat{Compress: tt.compress}, chatPath, tt.acceptEncoding)
			if encoding := w.Header().Get("Content-Encoding"); encoding != tt.want {
				t.Fatalf("Content-Encoding %q, want %q", encoding, tt.want)
			}
			if tt.want == "" {
				if !reflect.DeepEqual(w.events, whole) {
					t.Errorf("got %q", w.events)
				}
				return
			}
			if len(w.events) != len(whole) {
				t.Fatalf("%d flushes, want %d", len(w.events), len(whole))
			}
			var received string
			for i, part := range w.events {
				received += part
				zr, err := gzip.NewReader(strings.NewReader(received))
				if err != nil {
					t.Fatal(err)
				}
				plain, err := io.ReadAll(zr)
				if want := strings.Join(whole[:i+1], ""); string(plain) != want || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("after flush %d: %q, %v\nwant %q and more to come", i, plain, err, want)
				}
			}
			if got := unzip(t, received+w.Body.String()); got != strings.Join(whole, "") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestChatRecordsWhatItReceived(t *testing.T) {
	chat := new(mcptest.Chat)
	url := serve(t, chat)
	if got := chat.Last(); !reflect.DeepEqual(got, mcptest.Request{}) || len(chat.Requests()) != 0 {
		t.Errorf("before the first request: %+v, %v", got, chat.Requests())
	}

	compressed := zip(`{"model":"m"}`)
	send(t, "POST", url+chatPath, "{\"x\":\"\xff<\"}", map[string]string{"Authorization": "Bearer a"})
	send(t, "PUT", url+messagesPath, compressed, map[string]string{"Content-Encoding": "gzip"})

	requests := chat.Requests()
	if len(requests) != 2 {
		t.Fatalf("%d requests, want 2", len(requests))
	}
	first, last := requests[0], requests[1]
	if first.Method != "POST" || first.Path != chatPath || first.Body != "{\"x\":\"\xff<\"}" ||
		first.Headers.Get("Authorization") != "Bearer a" {
		t.Errorf("first request is %+v", first)
	}
	if last.Method != "PUT" || last.Path != messagesPath || last.Body != compressed ||
		last.Headers.Get("Content-Encoding") != "gzip" {
		t.Errorf("last request is %+v", last)
	}
	if got := chat.Last(); !reflect.DeepEqual(got, last) {
		t.Errorf("Last gives %+v\nwant %+v", got, last)
	}

	var remote mcptest.Request
	if err := json.Unmarshal([]byte(send(t, "GET", url+"/__last", "", nil).body), &remote); err != nil {
		t.Fatal(err)
	}
	if remote.Path != messagesPath || !reflect.DeepEqual(remote.Headers, last.Headers) {
		t.Errorf("/__last gives %+v\nwant %+v", remote, last)
	}
	if got := send(t, "GET", url+"/__count", "", nil); got.body != "2" || chat.Count() != 2 {
		t.Errorf("count %q and %d, want 2", got.body, chat.Count())
	}

	first.Headers.Set("Authorization", "changed")
	if got := chat.Requests()[0].Headers.Get("Authorization"); got != "Bearer a" {
		t.Errorf("a caller changed the record to %q", got)
	}
}

func TestChatDropsTheOldest(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		name        string
		size        func(i int) int // of the body
		sent, first int
	}{
		{"1000 requests are kept", func(int) int { return 8 }, 1000, 0},
		{"the 1001st replaces the first", func(int) int { return 8 }, 1001, 1},
		{"64 MiB are kept", func(int) int { return 16 * mib }, 4, 0},
		{"64 MiB and one byte", func(i int) int { return 16*mib + i/3 }, 4, 1},
		{"the latest is kept at any size", func(i int) int { return i*65*mib + 8 }, 2, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			chat := new(mcptest.Chat)
			for i := range tt.sent {
				number := fmt.Sprint(i)
				body := number + strings.Repeat(" ", tt.size(i)-len(number))
				chat.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)))
			}
			requests := chat.Requests()
			if len(requests) != tt.sent-tt.first || chat.Count() != tt.sent {
				t.Fatalf("%d requests of %d, want %d of %d", len(requests), chat.Count(), tt.sent-tt.first, tt.sent)
			}
			for i, request := range requests {
				if got, want := strings.TrimSpace(request.Body), fmt.Sprint(tt.first+i); got != want {
					t.Fatalf("request %d is number %s, want %s", i, got, want)
				}
			}
		})
	}
}
