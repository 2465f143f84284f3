package mcptest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Chat is a fake model API. It calls the tools in Calls, and otherwise answers "ok". The end of the
// path selects the format of the response:
//
//	/chat/completions     OpenAI's chat completions
//	/messages             Anthropic's messages
//	/responses            OpenAI's responses
//	:generateContent      Gemini's contents
//	anything else         {"ok":true}, or three small events
//
// A request whose body has "stream":true, or whose path ends in :streamGenerateContent, is answered
// with an event stream in the same form, each event flushed. Gemini answers {} to requests for
// JSON. Requests may be compressed with gzip. A body that is not JSON is not refused, so that the
// test can check what was sent. The model is that of the request; the rest never varies.
//
// Streams of chat completions end with a usage event even if stream_options does not request it.
//
// Last, Count and Requests return the received requests; so do /__last and /__count for other
// processes, as with [Stub]. Bodies are recorded unchanged, still compressed.
//
// The zero value is ready for use. Set its fields before the first request. Like Stub it reads
// bodies of any size, so it must not be reachable from other machines.
type Chat struct {
	// Calls are the tool calls of the model, one after the other. The number of tool results in a
	// request says how many calls are done. A client that offers no tools gets no calls. Default:
	// none.
	Calls []ToolCall

	// Usage is the usage in every response. Default, if all of it is zero: Input 1000, Cached 800,
	// CacheWrite 100, Output 20.
	Usage Usage

	// Gate, if not nil, blocks every event stream after its first event until a value can be received
	// from Gate or the client disconnects. A client that gets the first event while the stream is
	// blocked knows that nothing between them buffers events. Default: nil.
	Gate chan struct{}

	// Compress compresses responses with gzip for clients that accept it. Default: false.
	Compress bool

	recorder
}

// ToolCall is a call that a Chat makes.
type ToolCall struct {
	Name      string
	Namespace string // of the name, in OpenAI's responses; none if empty
	Arguments string // JSON
}

// Usage counts tokens. Input includes Cached and CacheWrite, as in OpenAI's formats; Anthropic's
// input_tokens excludes them.
type Usage struct {
	Input      int
	Cached     int // read from the cache
	CacheWrite int // written to the cache; only in the Anthropic format
	Output     int
}

// maxRecorded is how many requests a Chat records.
const maxRecorded = 1000

// ServeHTTP answers in the format that the path selects.
func (c *Chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.serveRecorded(w, r) {
		return
	}
	body := c.record(r, maxRecorded)
	if strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip") {
		body = decompress(body)
	}
	// A struct would do if encoding/json distinguished "stream" from "Stream".
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

	reply := turn{model: model, usage: usage, number: 1, text: "ok"}
	if bytes.Contains(request["generationConfig"], []byte(`"application/json"`)) {
		reply.text = "{}"
	}
	if len(c.Calls) > 0 && len(request["tools"]) > 0 {
		done := countResults(request)
		reply.number += done
		if done < len(c.Calls) {
			reply.call = &c.Calls[done]
		}
	}
	whole, events := otherAnswer, otherEvents
	streams := string(request["stream"]) == "true"
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/chat/completions"):
		whole, events = reply.chatCompletion, reply.chatCompletionEvents
	case strings.HasSuffix(path, "/messages"):
		whole, events = reply.anthropicMessage, reply.anthropicMessageEvents
	case strings.HasSuffix(path, "/responses"):
		whole, events = reply.openaiResponse, reply.openaiResponseEvents
	case strings.HasSuffix(path, ":generateContent"):
		streams, whole = false, reply.geminiContent
	case strings.HasSuffix(path, ":streamGenerateContent"):
		streams, events = true, reply.geminiContentEvents
	}
	if streams {
		c.stream(w, r, events())
		return
	}
	answer := []byte(whole())
	if c.compresses(w, r) {
		answer = compress(answer)
	}
	writeJSON(w, http.StatusOK, answer)
}

// countResults counts the tool results in a conversation.
func countResults(request map[string]json.RawMessage) (n int) {
	type part struct {
		Type, Role       string
		Content          json.RawMessage
		Parts            []part
		FunctionResponse json.RawMessage
	}
	for _, list := range []string{"messages", "input", "contents"} {
		var items []part
		_ = json.Unmarshal(request[list], &items) // a value of another type has no results
		for _, item := range items {
			if item.Role == "tool" || item.Type == "function_call_output" {
				n++
				continue
			}
			blocks := item.Parts
			_ = json.Unmarshal(item.Content, &blocks)
			for _, block := range blocks {
				if block.Type == "tool_result" || len(block.FunctionResponse) > 0 {
					n++
				}
			}
		}
	}
	return n
}

// compresses reports whether the response is to be compressed, and sets its Content-Encoding then.
func (c *Chat) compresses(w http.ResponseWriter, r *http.Request) bool {
	if !c.Compress || !acceptsGzip(r.Header) {
		return false
	}
	w.Header().Set("Content-Encoding", "gzip")
	return true
}

// decompress returns the decompressed body, as far as it is valid.
func decompress(body []byte) []byte {
	zr, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil
	}
	plain, _ := io.ReadAll(zr)
	return plain
}

// chatEvent is an event of a stream. The events of OpenAI's chat completions have no names.
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

// turn is one response of the model: a call, or "ok".
type turn struct {
	model  json.RawMessage
	usage  Usage
	number int       // part of all ids, because clients distinguish turns by their ids
	text   string    // text of Gemini: "ok", or {} for requests for JSON
	call   *ToolCall // nil if the response is a text
}

func chatUsage(u Usage) string {
	return fmt.Sprintf(
		`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,`+
			`"prompt_tokens_details":{"cached_tokens":%d}}`,
		u.Input,
		u.Output,
		u.Input+u.Output,
		u.Cached,
	)
}

// toolCalls returns the call in the format of chat completions, with further members.
func (t turn) toolCalls(members string) string {
	return fmt.Sprintf(`"tool_calls":[{%s"id":"call_fake%d","type":"function","function":{"name":%q,"arguments":%s}}]`,
		members, t.number, t.call.Name, encode(t.call.Arguments))
}

func (t turn) chatCompletion() string {
	message, finish := `"content":"ok","refusal":null`, "stop"
	if t.call != nil {
		message, finish = `"content":null,"refusal":null,`+t.toolCalls(""), "tool_calls"
	}
	return fmt.Sprintf(`{"id":"chatcmpl-fake%d","object":"chat.completion","created":1767225600,"model":%s,`+
		`"choices":[{"index":0,"message":{"role":"assistant",%s},"logprobs":null,"finish_reason":%q}],`+
		`"usage":%s,"service_tier":"default"}`, t.number, t.model, message, finish, chatUsage(t.usage))
}

func (t turn) chatCompletionEvents() []chatEvent {
	chunk := func(choices, usage string) chatEvent {
		return chatEvent{
			data: fmt.Sprintf(`{"id":"chatcmpl-fake%d","object":"chat.completion.chunk",`+
				`"created":1767225600,"model":%s,`+
				`"choices":%s,"usage":%s}`, t.number, t.model, choices, usage),
		}
	}
	delta := func(delta, finish string) chatEvent {
		return chunk(fmt.Sprintf(`[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]`, delta, finish), "null")
	}
	events := []chatEvent{delta(`{"role":"assistant","content":"","refusal":null}`, "null")}
	if t.call != nil {
		events = append(events, delta(`{`+t.toolCalls(`"index":0,`)+`}`, "null"), delta(`{}`, `"tool_calls"`))
	} else {
		events = append(events, delta(`{"content":"o"}`, "null"), delta(`{"content":"k"}`, "null"), delta(`{}`, `"stop"`))
	}
	return append(events, chunk("[]", chatUsage(t.usage)), chatEvent{data: "[DONE]"})
}

// anthropicUsage takes the output separately, because a stream begins with a small count.
func anthropicUsage(u Usage, output int) string {
	return fmt.Sprintf(
		`{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,`+
			`"output_tokens":%d}`,
		u.Input-u.Cached-u.CacheWrite,
		u.CacheWrite,
		u.Cached,
		output,
	)
}

// toolUse returns the call as a content block of Anthropic.
func (t turn) toolUse(input string) string {
	return fmt.Sprintf(`{"type":"tool_use","id":"toolu_fake%d","name":%q,"input":%s}`, t.number, t.call.Name, input)
}

func (t turn) anthropicMessage() string {
	content, stop := `{"type":"text","text":"ok"}`, "end_turn"
	if t.call != nil {
		content, stop = t.toolUse(t.call.Arguments), "tool_use"
	}
	return fmt.Sprintf(`{"id":"msg_fake%d","type":"message","role":"assistant","model":%s,"content":[%s],`+
		`"stop_reason":%q,"stop_sequence":null,"usage":%s}`,
		t.number, t.model, content, stop,
		anthropicUsage(t.usage, t.usage.Output))
}

func (t turn) anthropicMessageEvents() []chatEvent {
	block, stop := `{"type":"text","text":""}`, "end_turn"
	deltas := []string{`{"type":"text_delta","text":"o"}`, `{"type":"text_delta","text":"k"}`}
	if t.call != nil {
		block, stop = t.toolUse("{}"), "tool_use"
		deltas = []string{`{"type":"input_json_delta","partial_json":` + string(encode(t.call.Arguments)) + `}`}
	}
	events := []chatEvent{
		{
			"message_start",
			fmt.Sprintf(
				`{"type":"message_start","message":{"id":"msg_fake%d","type":"message",`+
					`"role":"assistant","model":%s,"content":[],`+
					`"stop_reason":null,"stop_sequence":null,"usage":%s}}`,
				t.number,
				t.model,
				anthropicUsage(t.usage, 1),
			),
		},
		{"content_block_start", `{"type":"content_block_start","index":0,"content_block":` + block + `}`},
	}
	for _, delta := range deltas {
		events = append(
			events,
			chatEvent{"content_block_delta", `{"type":"content_block_delta","index":0,"delta":` + delta +
				`}`},
		)
	}
	return append(events,
		chatEvent{"content_block_stop", `{"type":"content_block_stop","index":0}`},
		chatEvent{"message_delta", fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},`+
			`"usage":{"output_tokens":%d}}`, stop, t.usage.Output)},
		chatEvent{"message_stop", `{"type":"message_stop"}`},
	)
}

// responsePart is the only part of an OpenAI response that is not a call.
const responsePart = `{"type":"output_text","text":"ok","annotations":[],"logprobs":[]}`

// responseItem returns the only item of an OpenAI response, with its content so far.
func (t turn) responseItem(status, part, arguments string) string {
	if t.call == nil {
		return fmt.Sprintf(
			`{"id":"msg_fake%d","type":"message","status":%q,"role":"assistant","content":[%s]}`,
			t.number,
			status,
			part,
		)
	}
	var namespace string
	if t.call.Namespace != "" {
		namespace = fmt.Sprintf(`"namespace":%q,`, t.call.Namespace)
	}
	return fmt.Sprintf(
		`{"id":"fc_fake%d","type":"function_call","status":%q,"call_id":"call_fake%d",%s"name":%q,`+
			`"arguments":%s}`,
		t.number,
		status,
		t.number,
		namespace,
		t.call.Name,
		encode(arguments),
	)
}

// wholeItem returns the complete item.
func (t turn) wholeItem() string {
	if t.call == nil {
		return t.responseItem("completed", responsePart, "")
	}
	return t.responseItem("completed", "", t.call.Arguments)
}

func (t turn) openaiResponse() string {
	u := t.usage
	usage := fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},`+
		`"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`,
		u.Input, u.Cached, u.Output, u.Input+u.Output)
	return t.responseObject("completed", t.wholeItem(), usage)
}

func (t turn) responseObject(status, items, usage string) string {
	return fmt.Sprintf(
		`{"id":"resp_fake%d","object":"response","created_at":1767225600,"status":%q,"error":null,`+
			`"incomplete_details":null,`+
			`"instructions":null,"model":%s,"output":[%s],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"usage":%s}`,
		t.number,
		status,
		t.model,
		items,
		usage,
	)
}

// openaiResponseEvents returns every event of a real stream, for clients that assemble the response
// from parts.
func (t turn) openaiResponseEvents() []chatEvent {
	var events []chatEvent
	add := func(name, members string) {
		events = append(events, chatEvent{name,
			fmt.Sprintf(`{"type":%q,"sequence_number":%d,%s}`, name, len(events), members)})
	}
	begun := `"response":` + t.responseObject("in_progress", "", "null")
	add("response.created", begun)
	add("response.in_progress", begun)
	add("response.output_item.added", `"output_index":0,"item":`+t.responseItem("in_progress", "", ""))
	if t.call == nil {
		place := fmt.Sprintf(`"item_id":"msg_fake%d","output_index":0,"content_index":0,`, t.number)
		add("response.content_part.added", place+`"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}`)
		add("response.output_text.delta", place+`"delta":"o","logprobs":[]`)
		add("response.output_text.delta", place+`"delta":"k","logprobs":[]`)
		add("response.output_text.done", place+`"text":"ok","logprobs":[]`)
		add("response.content_part.done", place+`"part":`+responsePart)
	} else {
		place := fmt.Sprintf(`"item_id":"fc_fake%d","output_index":0,`, t.number)
		add("response.function_call_arguments.delta", place+`"delta":`+string(encode(t.call.Arguments)))
		add("response.function_call_arguments.done", place+`"arguments":`+string(encode(t.call.Arguments)))
	}
	add("response.output_item.done", `"output_index":0,"item":`+t.wholeItem())
	add("response.completed", `"response":`+t.openaiResponse())
	return events
}

// geminiPart returns a part of a Gemini content, with its text so far.
func (t turn) geminiPart(text string) string {
	if t.call == nil {
		return fmt.Sprintf(`{"text":%q}`, text)
	}
	return fmt.Sprintf(`{"functionCall":{"name":%q,"args":%s}}`, t.call.Name, t.call.Arguments)
}

// geminiAnswer returns a Gemini response with these parts and finish reason.
func (t turn) geminiAnswer(parts, finish string) string {
	u := t.usage
	return fmt.Sprintf(`{"candidates":[{"content":{"parts":[%s],"role":"model"}%s,"index":0}],`+
		`"usageMetadata":{"promptTokenCount":%d,"cachedContentTokenCount":%d,`+
		`"candidatesTokenCount":%d,`+
		`"totalTokenCount":%d},`+
		`"modelVersion":%s,"responseId":"fake%d"}`,
		parts, finish, u.Input, u.Cached, u.Output, u.Input+u.Output, t.model,
		t.number)
}

const geminiStop = `,"finishReason":"STOP"`

func (t turn) geminiContent() string { return t.geminiAnswer(t.geminiPart(t.text), geminiStop) }

// geminiContentEvents sends a call as a whole, because Gemini never splits it.
func (t turn) geminiContentEvents() []chatEvent {
	if t.call != nil {
		return []chatEvent{{data: t.geminiContent()}}
	}
	return []chatEvent{
		{data: t.geminiAnswer(t.geminiPart(t.text[:1]), "")},
		{data: t.geminiAnswer(t.geminiPart(t.text[1:]), geminiStop)},
	}
}

func otherAnswer() string { return `{"ok":true}` }

func otherEvents() []chatEvent {
	return []chatEvent{{data: `{"n":1}`}, {data: `{"n":2}`}, {data: `{"n":3}`}}
}

// Interface guard
var _ http.Handler = (*Chat)(nil)
