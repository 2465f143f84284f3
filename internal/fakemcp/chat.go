package fakemcp

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Chat stands in for a model API. Whatever it is asked it says "ok", in the form
// that the end of the path calls for:
//
//	/chat/completions     OpenAI's chat completions
//	/messages             Anthropic's messages
//	/responses            OpenAI's responses
//	anything else         {"ok":true}, or three small events
//
// A request whose body has "stream":true is answered with an event stream in
// the same form, each event flushed. Requests may be compressed with gzip. A
// body that cannot be read as JSON is not refused: what was sent is for the test
// to judge. The model is the one of the request, the rest never varies.
//
// Chat completions end with an event for usage even if stream_options did not
// ask for it.
//
// What was received can be read back through Last, Count and Requests or, from
// another process, at /__last and /__count as with [Stub]. Bodies are recorded
// as they came, still compressed.
//
// The zero value is ready for use, its fields are to be set before the first
// request. Like Stub it reads bodies of any size, so it must not be reachable by
// strangers.
type Chat struct {
	// Usage is what every answer says that it cost. Default, if all of it is
	// zero: Input 1000, Cached 800, CacheWrite 100, Output 20.
	Usage Usage

	// Gate, if not nil, holds up every event stream after its first event until
	// something is received from it, or it is closed, or the client has gone.
	// Who sees the first event before that knows that nothing on the way keeps
	// events back. Default: nil.
	Gate chan struct{}

	// Compress compresses answers with gzip for clients that accept it.
	// Default: false.
	Compress bool

	recorder
}

// Usage counts tokens. Input includes Cached and CacheWrite, as it does in
// OpenAI's forms; Anthropic's input_tokens is what remains without the two.
type Usage struct {
	Input      int
	Cached     int // read from the cache
	CacheWrite int // written to it, told by Anthropic's form alone
	Output     int
}

// keptRequests is how many requests a Chat remembers.
const keptRequests = 1000

// ServeHTTP answers in the form that the path calls for.
func (c *Chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.tell(w, r) {
		return
	}
	body := c.record(r, keptRequests)
	if strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip") {
		body = decompress(body)
	}
	// A struct would do if encoding/json told "stream" from "Stream".
	var request map[string]json.RawMessage
	_ = json.Unmarshal(body, &request)
	model := request["model"]
	if len(model) == 0 || model[0] != '"' {
		model = json.RawMessage(`"fake-model"`)
	}
	usage := c.Usage
	if usage == (Usage{}) {
		usage = Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}
	}

	whole, events := otherAnswer, otherEvents
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/chat/completions"):
		whole, events = chatCompletion, chatCompletionEvents
	case strings.HasSuffix(path, "/messages"):
		whole, events = anthropicMessage, anthropicMessageEvents
	case strings.HasSuffix(path, "/responses"):
		whole, events = openaiResponse, openaiResponseEvents
	}
	if string(request["stream"]) == "true" {
		c.stream(w, r, events(model, usage))
		return
	}
	answer := []byte(whole(model, usage))
	if c.compresses(w, r) {
		answer = compress(answer)
	}
	writeJSON(w, http.StatusOK, answer)
}

// compresses reports whether the answer is to be compressed and, if so, tells
// the client.
func (c *Chat) compresses(w http.ResponseWriter, r *http.Request) bool {
	if !c.Compress || !acceptsGzip(r.Header) {
		return false
	}
	w.Header().Set("Content-Encoding", "gzip")
	return true
}

// decompress returns what could be decompressed.
func decompress(body []byte) []byte {
	zr, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil
	}
	plain, _ := io.ReadAll(zr)
	return plain
}

// chatEvent is an event of a stream; OpenAI's chat completions have no names.
type chatEvent struct{ name, data string }

func (c *Chat) stream(w http.ResponseWriter, r *http.Request, events []chatEvent) {
	var out io.Writer = w
	flush := http.NewResponseController(w).Flush
	if c.compresses(w, r) {
		zw := gzip.NewWriter(w)
		defer zw.Close()
		out = zw
		flushClient := flush
		flush = func() error {
			_ = zw.Flush()
			return flushClient()
		}
	}

	startEvents(w)
	for i, event := range events {
		if i == 1 && c.Gate != nil {
			select {
			case <-c.Gate:
			case <-r.Context().Done():
				return
			}
		}
		if event.name != "" {
			_, _ = fmt.Fprintf(out, "event: %s\n", event.name)
		}
		_, _ = fmt.Fprintf(out, "data: %s\n\n", event.data)
		_ = flush()
	}
}

func chatUsage(u Usage) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		u.Input, u.Output, u.Input+u.Output, u.Cached)
}

func chatCompletion(model json.RawMessage, u Usage) string {
	return fmt.Sprintf(`{"id":"chatcmpl-fake1","object":"chat.completion","created":1767225600,"model":%s,`+
		`"choices":[{"index":0,"message":{"role":"assistant","content":"ok","refusal":null},"logprobs":null,"finish_reason":"stop"}],`+
		`"usage":%s,"service_tier":"default"}`, model, chatUsage(u))
}

func chatCompletionEvents(model json.RawMessage, u Usage) []chatEvent {
	chunk := func(choices, usage string) chatEvent {
		return chatEvent{data: fmt.Sprintf(`{"id":"chatcmpl-fake1","object":"chat.completion.chunk","created":1767225600,"model":%s,`+
			`"choices":%s,"usage":%s}`, model, choices, usage)}
	}
	delta := func(delta, finish string) chatEvent {
		return chunk(fmt.Sprintf(`[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]`, delta, finish), "null")
	}
	return []chatEvent{
		delta(`{"role":"assistant","content":"","refusal":null}`, "null"),
		delta(`{"content":"o"}`, "null"),
		delta(`{"content":"k"}`, "null"),
		delta(`{}`, `"stop"`),
		chunk("[]", chatUsage(u)),
		{data: "[DONE]"},
	}
}

// anthropicUsage takes the output apart because a stream begins with little.
func anthropicUsage(u Usage, output int) string {
	return fmt.Sprintf(`{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d}`,
		u.Input-u.Cached-u.CacheWrite, u.CacheWrite, u.Cached, output)
}

func anthropicMessage(model json.RawMessage, u Usage) string {
	return fmt.Sprintf(`{"id":"msg_fake1","type":"message","role":"assistant","model":%s,"content":[{"type":"text","text":"ok"}],`+
		`"stop_reason":"end_turn","stop_sequence":null,"usage":%s}`, model, anthropicUsage(u, u.Output))
}

func anthropicMessageEvents(model json.RawMessage, u Usage) []chatEvent {
	return []chatEvent{
		{"message_start", fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_fake1","type":"message","role":"assistant","model":%s,"content":[],`+
			`"stop_reason":null,"stop_sequence":null,"usage":%s}}`, model, anthropicUsage(u, 1))},
		{"content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`},
		{"content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"o"}}`},
		{"content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"k"}}`},
		{"content_block_stop", `{"type":"content_block_stop","index":0}`},
		{"message_delta", fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},`+
			`"usage":{"output_tokens":%d}}`, u.Output)},
		{"message_stop", `{"type":"message_stop"}`},
	}
}

// The one part and the one item of an OpenAI response.
const (
	responsePart = `{"type":"output_text","text":"ok","annotations":[],"logprobs":[]}`
	responseItem = `{"id":"msg_fake1","type":"message","status":"completed","role":"assistant","content":[` + responsePart + `]}`
)

func openaiResponse(model json.RawMessage, u Usage) string {
	usage := fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},`+
		`"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`,
		u.Input, u.Cached, u.Output, u.Input+u.Output)
	return responseObject(model, "completed", responseItem, usage)
}

func responseObject(model json.RawMessage, status, items, usage string) string {
	return fmt.Sprintf(`{"id":"resp_fake1","object":"response","created_at":1767225600,"status":%q,"error":null,"incomplete_details":null,`+
		`"instructions":null,"model":%s,"output":[%s],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"usage":%s}`,
		status, model, items, usage)
}

// openaiResponseEvents has every event of a real stream, for clients that put
// the response together from its parts.
func openaiResponseEvents(model json.RawMessage, u Usage) []chatEvent {
	var events []chatEvent
	add := func(name, members string) {
		events = append(events, chatEvent{name,
			fmt.Sprintf(`{"type":%q,"sequence_number":%d,%s}`, name, len(events), members)})
	}
	const place = `"item_id":"msg_fake1","output_index":0,"content_index":0,`
	begun := `"response":` + responseObject(model, "in_progress", "", "null")
	add("response.created", begun)
	add("response.in_progress", begun)
	add("response.output_item.added",
		`"output_index":0,"item":{"id":"msg_fake1","type":"message","status":"in_progress","role":"assistant","content":[]}`)
	add("response.content_part.added", place+`"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}`)
	add("response.output_text.delta", place+`"delta":"o","logprobs":[]`)
	add("response.output_text.delta", place+`"delta":"k","logprobs":[]`)
	add("response.output_text.done", place+`"text":"ok","logprobs":[]`)
	add("response.content_part.done", place+`"part":`+responsePart)
	add("response.output_item.done", `"output_index":0,"item":`+responseItem)
	add("response.completed", `"response":`+openaiResponse(model, u))
	return events
}

func otherAnswer(json.RawMessage, Usage) string { return `{"ok":true}` }

func otherEvents(json.RawMessage, Usage) []chatEvent {
	return []chatEvent{{data: `{"n":1}`}, {data: `{"n":2}`}, {data: `{"n":3}`}}
}

// Interface guard
var _ http.Handler = (*Chat)(nil)
