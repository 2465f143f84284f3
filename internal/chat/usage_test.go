package chat

import "testing"

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		name   string
		stream bool
		answer string
		want   Usage
	}{
		{"chat completions", false, `{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}],"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":800,"audio_tokens":0}}}`,
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"usage first, and nothing of the cache", false, `{"usage":{"completion_tokens":2,"prompt_tokens":1},"choices":[]}`, Usage{Input: 1, Output: 2}},
		{"Moonshot", false, `{"usage":{"prompt_tokens":10,"completion_tokens":2,"cached_tokens":7}}`, Usage{Input: 10, Cached: 7, Output: 2}},
		{"DeepSeek", false, `{"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_cache_hit_tokens":7,"prompt_cache_miss_tokens":3}}`, Usage{Input: 10, Cached: 7, Output: 2}},
		{"a stream of chat completions", true, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":20,\"prompt_tokens_details\":{\"cached_tokens\":800}}}\n\ndata: [DONE]\n\n",
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"a stream that tells with every event", true, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\r\n\r\n",
			Usage{Input: 5, Output: 2}},
		{"a stream that tells in its last choice", true, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2,\"cached_tokens\":7}}]}\n\n", Usage{Input: 10, Cached: 7, Output: 2}},
		{"messages", false, `{"type":"message","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":100,"cache_creation_input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`,
			Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}},
		{"a stream of messages", true, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":100,\"cache_creation_input_tokens\":100,\"cache_read_input_tokens\":800,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":20}}\n\n",
			Usage{Input: 1000, Cached: 800, CacheWrite: 100, Output: 20}},
		{"responses", false, `{"object":"response","usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":800},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":3}}}`,
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"a stream of responses", true, "event: response.completed\ndata: {\"type\":\"response.completed\",\ndata: \"response\":{\"usage\":{\"input_tokens\":1000,\"input_tokens_details\":{\"cached_tokens\":800},\"output_tokens\":20}}}\n\n",
			Usage{Input: 1000, Cached: 800, Output: 20}},
		{"events of several lines", true, "data: {\"usage\": {\"prompt_tokens\": 12\ndata: ,\"completion_tokens\":\ndata: 3\ndata: }}\n\n", Usage{Input: 12, Output: 3}},
		{"figures that are none", false, `{"usage":{"prompt_tokens":"10","completion_tokens":-1,"input_tokens":1.5,"output_tokens":99999999999999999999}}`, Usage{}},
		{"the largest figure", false, `{"usage":{"prompt_tokens":1000000000,"completion_tokens":1}}`, Usage{Input: 1_000_000_000, Output: 1}},
		{"figures that nobody bills", false, `{"usage":{"prompt_tokens":1000000001,"completion_tokens":9223372036854775807}}`, Usage{}},
		{"figures whose sum overflows", false, `{"usage":{"input_tokens":9223372036854775807,"cache_read_input_tokens":9223372036854775807,"cache_creation_input_tokens":7}}`, Usage{Input: 7, CacheWrite: 7}},
		{"usage elsewhere", false, `{"data":{"usage":{"prompt_tokens":10}},"usage":[{"prompt_tokens":10}]}`, Usage{}},
		{"no JSON", false, `<html>`, Usage{}},
		{"nothing", false, ``, Usage{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for size := 1; size <= len(test.answer)+1; size++ {
				u := NewUsageReader(test.stream)
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
