package chat

import (
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// awsEvent returns an event in the framing of AWS.
func awsEvent(kind, text string) string {
	header := func(name, value string) []byte {
		h := append([]byte{byte(len(name))}, name...)
		return append(append(h, 7, 0, byte(len(value))), value...)
	}
	headers := append(header(":event-type", kind), header(":message-type", "event")...)
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(headers)+len(text)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(headers)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, headers...), text...)
	return string(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)))
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		name   string
		as     Framing
		answer string
		want   Usage
	}{
		{"chat completions", Unframed, `{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}],` +
			`"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,` +
			`"prompt_tokens_details":{"cached_tokens":800,"audio_tokens":0}}}`,
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"usage first, without cached tokens", Unframed,
			`{"usage":{"completion_tokens":2,"prompt_tokens":1},"choices":[]}`, Usage{Input: 1, Output: 2}},
		{"Moonshot", Unframed, `{"usage":{"prompt_tokens":10,"completion_tokens":2,"cached_tokens":7}}`,
			Usage{Input: 10, Cached: 7, Output: 2}},
		{"DeepSeek", Unframed, `{"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_cache_hit_tokens":7,` +
			`"prompt_cache_miss_tokens":3}}`, Usage{Input: 10, Cached: 7, Output: 2}},
		{"a stream of chat completions", Events,
			"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\ndata: {\"choices\":[]," +
				"\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":20," +
				"\"prompt_tokens_details\":{\"cached_tokens\":800}}}\n\ndata: [DONE]\n\n",
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"a stream with usage in every event", Events,
			"data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":5," +
				"\"completion_tokens\":2}}\r\n\r\n",
			Usage{Input: 5, Output: 2}},
		{"a stream with usage in its last choice", Events,
			"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":10," +
				"\"completion_tokens\":2,\"cached_tokens\":7}}]}\n\n", Usage{Input: 10, Cached: 7, Output: 2}},
		{"messages", Unframed, `{"type":"message","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":100,` +
			`"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`,
			Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}},
		{"a stream of messages", Events, "event: message_start\ndata: {\"type\":\"message_start\"," +
			"\"message\":{\"usage\":{\"input_tokens\":100,\"cache_creation_input_tokens\":100," +
			"\"cache_read_input_tokens\":800,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: " +
			"{\"type\":\"message_delta\",\"usage\":{\"output_tokens\":20}}\n\n",
			Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}},
		{"responses", Unframed, `{"object":"response","usage":{"input_tokens":1000,` +
			`"input_tokens_details":{"cached_tokens":800},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":3}}}`,
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"a stream of responses", Events, "event: response.completed\ndata: {\"type\":\"response.completed\",\ndata: " +
			"\"response\":{\"usage\":{\"input_tokens\":1000,\"input_tokens_details\":{\"cached_tokens\":800}," +
			"\"output_tokens\":20}}}\n\n",
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"events of several lines", Events, "data: {\"usage\": {\"prompt_tokens\": 12\ndata: ," +
			"\"completion_tokens\":\ndata: 3\ndata: }}\n\n", Usage{Input: 12, Output: 3}},
		{"Gemini", Unframed, `{"candidates":[{"content":{"parts":[{"text":"hi"}]}}],` +
			`"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":800,"candidatesTokenCount":15,` +
			`"thoughtsTokenCount":5,"totalTokenCount":1020}}`,
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"a stream of Gemini", Events, "data: {\"usageMetadata\":{\"promptTokenCount\":1000," +
			"\"candidatesTokenCount\":1}}\r\n\r\ndata: {\"usageMetadata\":{\"promptTokenCount\":1000," +
			"\"cachedContentTokenCount\":800,\"candidatesTokenCount\":15,\"thoughtsTokenCount\":5}}\r\n\r\n",
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"a stream of Gemini that is a list", Unframed,
			"[{\"usageMetadata\":{\"promptTokenCount\":1000}}\r\n,\r\n{\"usageMetadata\":{\"promptTokenCount\":1000," +
				"\"candidatesTokenCount\":20}}]",
			Usage{Input: 1000, Output: 20}},
		{"a stream of Code Assist", Events, "data: {\"response\":{\"usageMetadata\":{\"promptTokenCount\":1000," +
			"\"cachedContentTokenCount\":800,\"candidatesTokenCount\":20}},\"traceId\":\"x\"}\n\n",
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"Ollama", Unframed, `{"model":"m","message":{"role":"assistant","content":"hi"},"done":true,` +
			`"prompt_eval_count":1000,"eval_count":20}`, Usage{Input: 1000, Output: 20}},
		{"a stream of Ollama", Lines, "{\"message\":{\"content\":\"h\"}," +
			"\"done\":false}\n{\"message\":{\"content\":\"i\"},\"done\":true,\"prompt_eval_count\":1000,\"eval_count\":20}\n",
			Usage{Input: 1000, Output: 20}},
		{"lines, one of them invalid", Lines, "{\"prompt_eval_count\":1000,\n{\"eval_count\":20}\r\n\n",
			Usage{Input: 1000, Output: 20}},
		{"Converse", Unframed, `{"output":{"message":{"role":"assistant","content":[{"text":"hi"}]}},` +
			`"usage":{"inputTokens":100,"outputTokens":20,"totalTokens":1020,"cacheReadInputTokens":800,` +
			`"cacheWriteInputTokens":100}}`,
			Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}},
		{"ConverseStream", AWSEvents, awsEvent("contentBlockDelta", `{"delta":{"text":"hi"}}`) + awsEvent("x", "") +
			awsEvent("metadata", `{"usage":{"inputTokens":100,"outputTokens":20,"cacheReadInputTokens":800,`+
				`"cacheWriteInputTokens":100}}`), Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}},
		{"invalid AWS events", AWSEvents, "\x00\x00\x00\x05\x00\x00\x00\x00xxxx" + awsEvent("metadata",
			`{"usage":{"inputTokens":100}}`), Usage{}},
		{"invalid figures", Unframed, `{"usage":{"prompt_tokens":"10","completion_tokens":-1,"input_tokens":1.5,` +
			`"output_tokens":99999999999999999999}}`, Usage{}},
		{"the largest figure", Unframed, `{"usage":{"prompt_tokens":1000000000,"completion_tokens":1}}`,
			Usage{Input: 1_000_000_000, Output: 1}},
		{"figures above the limit", Unframed, `{"usage":{"prompt_tokens":1000000001,` +
			`"completion_tokens":9223372036854775807}}`, Usage{}},
		{"figures whose sum overflows", Unframed,
			`{"usage":{"input_tokens":9223372036854775807,"cache_read_input_tokens":9223372036854775807,` +
				`"cache_creation_input_tokens":7}}`, Usage{Input: 7, CacheWrite: 7}},
		{"usage elsewhere", Unframed, `{"data":{"usage":{"prompt_tokens":10}},"usage":[{"prompt_tokens":10}]}`, Usage{}},
		{"invalid JSON", Unframed, `<html>`, Usage{}},
		{"an empty response", Unframed, ``, Usage{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for size := 1; size <= len(test.answer)+1; size++ {
				u := NewUsageReader(test.as)
				for rest := test.answer; rest != ""; {
					n := min(size, len(rest))
					_, _ = u.Write([]byte(rest[:n]))
					rest = rest[n:]
				}
				if got := u.Usage(); got != test.want {
					t.Fatalf("by %d bytes: %+v, want %+v", size, got, test.want)
				}
			}
		})
	}
}
