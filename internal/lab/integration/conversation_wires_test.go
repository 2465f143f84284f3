package integration

import (
	bits "encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A wireFormat is a format that mcptest.Chat does not support. sent and masked are as in
// chatFormat; answer and stream are the responses of the model.
type wireFormat struct {
	name           string
	path, streamed string
	sent, masked   string
	answer, stream string
	streamType     string
	usage          map[string]int
}

// geminiConversation returns a conversation of two turns in Gemini's format.
func geminiConversation(response string, wrap bool) string {
	call := `{"role":"model","parts":[{"text":"reading"},{"functionCall":{"name":"fast_read_file","args":{"n":1.0}},` +
		`"thoughtSignature":"x"}]}`
	answer := func(id, response string) string {
		return `{"role":"user","parts":[{"functionResponse":{"id":"` + id + `","name":"fast_read_file","response":` +
			response + `}}]}`
	}
	contents := `{"contents":[{"role":"user","parts":[{"text":"go"}]},` + call + `,` + answer("made_1", response) + `,` +
		call + `,` +
		answer("made_2", `{"output":"OK"}`) + `],"generationConfig":{"temperature":1.0}}`
	if wrap {
		return `{"model":"m","project":"p","request":` + contents + `}`
	}
	return contents
}

// ollamaConversation is the same in Ollama's format, and bedrockConversation in that of Bedrock.
func ollamaConversation(text string) string {
	call := `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"fast_read_file","arguments":{"n":1.0}}}]}`
	answer := func(text string) string {
		return `{"role":"tool","tool_name":"fast_read_file","content":"` + text + `"}`
	}
	return `{"model":"m","messages":[{"role":"user","content":"go"},` + call + `,` + answer(text) + `,` + call + `,` +
		answer("OK") + `],"keep_alive":"5m"}`
}

func bedrockConversation(content string, members ...string) string {
	call := func(id string) string {
		return `{"role":"assistant","content":[{"text":"reading"},{"toolUse":{"toolUseId":"` + id +
			`","name":"fast_read_file","input":{"n":1.0}}}]}`
	}
	answer := func(id, content string, members ...string) string {
		result := strings.Join(append([]string{`"toolUseId":"` + id + `"`, `"content":` + content}, members...), ",")
		return `{"role":"user","content":[{"toolResult":{` + result + `}},{"cachePoint":{"type":"default"}}]}`
	}
	return `{"messages":[{"role":"user","content":[{"text":"go"}]},` + call("call_1") + `,` + answer("call_1", content,
		members...) + `,` + call("call_2") + `,` +
		answer("call_2", `[{"text":"OK"}]`) + `],"inferenceConfig":{"maxTokens":10}}`
}

// awsEvent returns an AWS event without headers.
func awsEvent(text string) string {
	b := bits.BigEndian.AppendUint32(nil, uint32(16+len(text)))
	b = bits.BigEndian.AppendUint32(b, 0)
	b = bits.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(b, text...)
	return string(bits.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)))
}

var wireFormats = func() []wireFormat {
	numbered := placeholder("fast_read_file#1", "fast_read_file", 1000)
	output := func(text string) string { return `{"output":"` + text + `"}` }
	texts := func(text string) string { return `[{"text":"` + text + `"}]` }
	const (
		metadata = `"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":800,"candidatesTokenCount":15,` +
			`"thoughtsTokenCount":5}`
		done       = `{"message":{"role":"assistant","content":"ok"},"done":true,"prompt_eval_count":1000,"eval_count":20}`
		tokens     = `"usage":{"inputTokens":100,"outputTokens":20,"cacheReadInputTokens":800,"cacheWriteInputTokens":100}`
		said       = `"candidates":[{"content":{"role":"model","parts":[{"text":"ok"}]}}]`
		events     = "text/event-stream"
		codeAssist = "/v1internal"
	)
	cached := map[string]int{"input": 1000, "cached": 800, "output": 20}
	return []wireFormat{
		{"Gemini", "/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent?alt=sse",
			geminiConversation(output(thousand), false), geminiConversation(output(numbered), false),
			`{` + said + `,` + metadata + `}`, "data: {" + said + "}\r\n\r\ndata: {" + metadata + "}\r\n\r\n", events, cached},
		{"Gemini in a list", "/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent",
			geminiConversation(output(thousand), false), geminiConversation(output(numbered), false),
			`{` + metadata + `}`, "[{" + said + "}\r\n,\r\n{" + metadata + "}]", "application/json", cached},
		{"Code Assist", codeAssist + ":generateContent", codeAssist + ":streamGenerateContent?alt=sse",
			geminiConversation(output(thousand), true), geminiConversation(output(numbered), true),
			`{"response":{` + metadata + `}}`, "data: {\"response\":{" + metadata + "}}\n\n", events, cached},
		{"Ollama", "/api/chat", "/api/chat", ollamaConversation(thousand), ollamaConversation(numbered),
			done, `{"message":{"content":"o"},"done":false}` + "\n" + done + "\n", "application/x-ndjson",
			map[string]int{"input": 1000, "output": 20}},
		{"Converse", "/model/m/converse", "/model/m/converse-stream", bedrockConversation(texts(thousand)),
			bedrockConversation(texts(placeholder("call_1", "fast_read_file", 1000))),
			`{"output":{"message":{"role":"assistant","content":[{"text":"ok"}]}},` + tokens + `}`,
			awsEvent(`{"delta":{"text":"ok"}}`) + awsEvent(`{`+tokens+`}`),
			"application/vnd.amazon.eventstream", map[string]int{"input": 1000, "cached": 800, "cache_write": 100,
				"output": 20}},
	}
}()

// Formats that only their own clients use are masked and counted, streaming or not (T36, T38).
func TestWires(t *testing.T) {
	isolate(t)
	for _, tt := range wireFormats {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("T36 %s, stream %t", tt.name, stream), func(t *testing.T) {
				path, answer, contentType := tt.path, tt.answer, "application/json"
				if stream {
					path, answer, contentType = tt.streamed, tt.stream, tt.streamType
				}
				got := make(chan string, 2)
				address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					got <- string(body)
					w.Header().Set("Content-Type", contentType)
					_, _ = io.WriteString(w, answer)
				}))
				url := serve(t, conversationMask("window_turns 1", "route wires"), proxy(address))
				client := sequentialClient(t)
				for _, sent := range []string{tt.sent, tt.masked} {
					grown := growth(t)
					if response := send(t, client, "POST", url+path, sent).body; response != answer {
						t.Errorf("got response %q", response)
					}
					same(t, <-got, tt.masked)
					send(t, client, "GET", url, "") // so that the request is counted
					<-got
					want := map[string]float64{}
					for kind, n := range tt.usage {
						want[fmt.Sprintf(`usage_tokens_total{route="wires",type=%q}`, kind)] = float64(n)
					}
					counted := grown()
					if sent == tt.sent && counted["tool_results_masked_total"] != 1 {
						t.Errorf("counted %v", counted)
					}
					maps.DeleteFunc(counted, func(sample string, _ float64) bool { return !strings.HasPrefix(sample, "usage_tokens") })
					if !maps.Equal(counted, want) {
						t.Errorf("counted %v, want %v", counted, want)
					}
				}
			})
		}
	}
}

// Results that are not just a text are masked.
func TestResultsOfWires(t *testing.T) {
	isolate(t)
	numbered := func(n int) string { return placeholder("fast_read_file#1", "fast_read_file", n) }
	gone := func(n int) string { return placeholder("call_1", "fast_read_file", n) }
	object := `{"stdout":"` + thousand + `" , "code":0}`
	item := func(call, output string) string {
		return `{"input":[{"role":"user","content":"go"},` + call + `,` + output +
			`,{"type":"function_call","call_id":"call_2","name":"read"},` +
			`{"type":"function_call_output","call_id":"call_2","output":"OK"}]}`
	}
	shell := func(streams string) string {
		return item(`{"type":"shell_call","call_id":"call_1","action":{"commands":["ls"]}}`,
			`{"type":"shell_call_output","call_id":"call_1","output":[`+streams+`]}`)
	}
	patch := func(output, status string) string {
		return item(`{"type":"apply_patch_call","call_id":"call_1","operation":{}}`,
			`{"type":"apply_patch_call_output","call_id":"call_1","status":"`+status+`","output":"`+output+`"}`)
	}
	local := func(output string) string {
		return item(`{"type":"local_shell_call","id":"l_1","call_id":"call_1","action":{}}`,
			`{"type":"local_shell_call_output","id":"call_1","output":"`+output+`"}`)
	}
	wrapped := func(output string) string {
		return item(`{"type":"function_call","call_id":"call_1","name":"fast_read_file"}`,
			`{"type":"function_call_output","call_id":"call_1","output":`+output+`}`)
	}
	unknown := item(`{"type":"function_call","call_id":"call_1","name":"fast_read_file"}`,
		`{"type":"new_call_output","call_id":"call_1","output":"`+thousand+`"}`)
	orphan := wrapped(`"` + thousand + `"`)
	orphan = strings.Replace(orphan, `_output","call_id":"call_1"`, `_output","call_id":"call_0"`, 1)
	exit := func(code string) string { return `"outcome":{"type":"exit","exit_code":` + code + `}` }

	type row struct{ name, lines, sent, want, unread string }
	same := func(name, sent, unread string) row { return row{name, "", sent, sent, unread} }
	for _, tt := range []row{
		{"T36 Gemini, an object", "", geminiConversation(object, false),
			geminiConversation(`{"output":"`+numbered(len(object))+`"}`, false), ""},
		same("T36 Gemini, an error", geminiConversation(`{"error":"no such file"}`, false), ""),
		{"T36 Gemini, an error with keep_errors off", "keep_errors off", geminiConversation(`{"error":"no such file"}`,
			false), geminiConversation(`{"error":"`+numbered(12)+`"}`, false), ""},
		same("T36 Gemini, an object with an error in its text", geminiConversation(`{"output":"Traceback","code":1}`, false),
			""),
		same("T36 Gemini, an image", strings.Replace(geminiConversation(`{"output":"x"}`, false),
			`"response":{"output":"x"}`, `"response":{"output":"x"},"parts":[{"inlineData":{"data":"AAAA"}}]`, 1), "not_text"),
		{"T36 Converse, JSON", "", bedrockConversation(`[{"json":` + object + `},{"text":"more"}]`),
			bedrockConversation(`[{"json":{"output":"` + gone(len(object)+4) + `"}},{"text":"…"}]`), ""},
		same("T36 Converse, an error", bedrockConversation(`[{"text":"`+thousand+`"}]`, `"status":"error"`), ""),
		same("T36 Converse, an image", bedrockConversation(`[{"text":"x"},{"image":{"format":"png",`+
			`"source":{"bytes":"AAAA"}}}]`), "not_text"),
		{"T36 Ollama, matched by order", "", strings.ReplaceAll(ollamaConversation(thousand),
			`"tool_name":"fast_read_file",`, ""), strings.ReplaceAll(ollamaConversation(numbered(1000)),
			`"tool_name":"fast_read_file",`, ""), ""},
		same("T36 Ollama, another tool", strings.ReplaceAll(ollamaConversation(thousand), `"tool_name":"fast_read_file",`,
			`"tool_name":"other",`), "no_call"),
		{"T36 responses, a shell", "", shell(`{"stderr":"b","stdout":"` + thousand + `",` + exit("0") + `}`),
			shell(`{"stderr":"…","stdout":"` + placeholder("call_1", "shell", 1001) + `",` + exit("0") + `}`), ""},
		same("T36 responses, a shell that failed", shell(`{"stdout":"`+thousand+`","stderr":"",`+exit("2")+`}`), ""),
		{"T36 responses, a local shell", "", local(thousand), local(placeholder("call_1", "local_shell", 1000)), ""},
		{"T36 responses, a patch", "", patch(thousand, "completed"), patch(placeholder("call_1", "apply_patch", 1000),
			"completed"), ""},
		same("T36 responses, a patch that failed", patch(thousand, "failed"), ""),
		{"T36 responses, an object", "", wrapped(`{"content":"` + thousand + `","success":true}`),
			wrapped(`{"content":"` + gone(1000) + `","success":true}`), ""},
		same("T36 responses, an object without success", wrapped(`{"content":"`+thousand+`","success":false}`), ""),
		same("T36 responses, an image", wrapped(`[{"type":"input_image","image_url":"data:"}]`), "not_text"),
		same("T36 responses, an unknown kind", unknown, "unknown_kind"),
		same("T36 responses, an orphan", orphan, "no_call"),
	} {
		t.Run(tt.name, func(t *testing.T) {
			chat := new(mcptest.Chat)
			url := serve(t, conversationMask("window_turns 1", tt.lines), proxy(upstream(t, chat)))
			grown := growth(t)
			expectSent(t, chat, url, tt.sent, tt.want)
			want := map[string]float64{}
			if tt.unread != "" {
				want[`tool_results_unread_total{reason="`+tt.unread+`"}`] = 1
			}
			unread := grown()
			maps.DeleteFunc(unread, func(sample string, _ float64) bool {
				return !strings.HasPrefix(sample, "tool_results_unread")
			})
			if !maps.Equal(unread, want) {
				t.Errorf("counted %v, want %v", unread, want)
			}
		})
	}
}

// Signed requests are unchanged, because the signature covers the body.
func TestSignedConversations(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, windowOfOne, proxy(upstream(t, chat)))
	const signature = "Authorization: AWS4-HMAC-SHA256 Credential=x/20261117/us-east-1/bedrock/aws4_request, " +
		"SignedHeaders=host, Signature=x"
	sent := wireFormats[len(wireFormats)-1].sent
	for name, req := range map[string]struct{ query, header string }{
		"T24 signed in a header":                    {"", signature},
		"T24 signed in the query":                   {"?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=x", ""},
		"T24 signed in the query, second parameter": {"?x=1&X-Amz-Signature=x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			grown := growth(t)
			expectSent(t, chat, url+"/model/m/converse"+req.query, sent, sent, req.header)
			if n := grown()[`conversations_passed_total{reason="signed"}`]; n != 1 {
				t.Errorf("counted %v times", n)
			}
		})
	}
	expectSent(t, chat, url+"/model/m/converse", sent, wireFormats[len(wireFormats)-1].masked, "Authorization: Bearer x")
}
