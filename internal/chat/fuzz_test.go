package chat

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzConversation masks arbitrary bodies. The output is JSON if and only if the input is, has
// the same meaning as that of the reference, and does not change when it is masked again.
func FuzzConversation(f *testing.F) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		for _, format := range formats {
			f.Add(conversation(r, format), seed)
		}
	}
	for _, body := range []string{
		``, `{}`, `[]`, `{"messages":[]}`, `{"messages":[1]}`, `{"messages":{},"input":[]}`, `{"messages":[],"input":[]}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a","content":"x"},` +
			`{"role":"assistant","tool_calls":[{"id":"b"}]}]}`,
		`{"input":[{"type":"function_call","call_id":"a"},{"type":"function_call_output","call_id":"a",` +
			`"output":[{"type":"input_text","text":"x"}]},{"type":"function_call","call_id":"b"}]}`,
		`{"input":[{"type":"function_call","call_id":"a"},{"type":"other_output","call_id":"a","output":"x"},` +
			`{"type":"function_call","call_id":"b"}]}`,
	} {
		f.Add([]byte(body), uint64(0))
	}
	// The search for errors panicked on a text that ends with \\u00.
	f.Add([]byte(`{"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a",`+
		`"content":"\u00e9 \\u00"},{"role":"assistant","tool_calls":[{"id":"b"}]}]}`), uint64(3))
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		p := policy(rand.New(rand.NewPCG(seed, 3)))
		out, _, err := run(t, body, p)
		if json.Valid(out) != json.Valid(body) {
			t.Fatalf("got %q", out)
		}
		if err != nil || !utf8.Valid(body) || lone(body) || repeatsKeys(json.NewDecoder(bytes.NewReader(body))) {
			return // parsers may disagree about it
		}
		compare(t, body, p)
		if again, plan, err := run(t, out, p); err != nil || plan.Results > 0 || !bytes.Equal(again, out) {
			t.Errorf("masked again: %d results, %v", plan.Results, err)
		}
	})
}

// FuzzUsage reads arbitrary responses in pieces of any size. The figures must be those that
// encoding/json finds token by token, in events or not.
func FuzzUsage(f *testing.F) {
	// The watcher panicked on an event whose data breaks off after a number.
	f.Add([]byte("data: {\"usage\": {\"prompt_tokens\": 12\ndata: }}\n\n"), 3, uint8(Events))
	f.Add([]byte(`{"choices":[{"usage":{"prompt_tokens":7,"cached_tokens":3}}],"usage":{"prompt_tokens":9,`+
		`"prompt_tokens":1e1,"completion_tokens":-1}}`), 1, uint8(Unframed))
	f.Add([]byte(`{"response":{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2}}},`+
		`"message":{"\u0075sage":{"output_tokens":"7"}}}`), 2, uint8(Unframed))
	f.Add([]byte(`{"usage":{"input_tokens":100,"cache_read_input_tokens":800,"output_tokens":20}}`), 5, uint8(Unframed))
	f.Add([]byte("data: {\"usage\":{\"prompt_tokens\":5}}\n\n: c\n\nevent: x\r\ndata: {\"usage\":\r\ndata: "+
		"{\"prompt_tokens\":6,\"completion_tokens\":2}}\r\n\r\n"), 4, uint8(Events))
	f.Add([]byte("{\"prompt_eval_count\":1}\n{\"eval_count\":2}\n"), 3, uint8(Lines))
	f.Add([]byte(`[{"usageMetadata":{"promptTokenCount":7}},{"usageMetadata":{"thoughtsTokenCount":3}}]`), 3,
		uint8(Unframed))
	f.Add([]byte(awsEvent("metadata", `{"usage":{"inputTokens":1}}`)), 3, uint8(AWSEvents))
	f.Fuzz(func(t *testing.T, answer []byte, size int, as uint8) {
		if size < 1 {
			return
		}
		framing := Framing(as % 4)
		whole, pieces := NewUsageReader(framing), NewUsageReader(framing)
		_, _ = whole.Write(answer)
		for rest := answer; len(rest) > 0; {
			n := min(size, len(rest))
			_, _ = pieces.Write(rest[:n])
			rest = rest[n:]
		}
		if whole.Usage() != pieces.Usage() {
			t.Errorf("%+v as a whole, %+v by %d bytes", whole.Usage(), pieces.Usage(), size)
		}
		texts := [][]byte{answer}
		if bytes.HasPrefix(answer, []byte{0xEF}) && !bytes.HasPrefix(answer, []byte("\uFEFF")) {
			return // the start of a byte order mark, whose meaning is not specified
		}
		switch framing {
		case Events:
			texts = eventsOf(answer)
		case Lines:
			texts = slices.DeleteFunc(bytes.Split(answer, []byte("\n")),
				func(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 })
		case AWSEvents:
			return
		}
		reference := UsageReader{}
		for _, text := range texts {
			if !json.Valid(text) || bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) > 500 {
				return // figures before an error count
			}
			d := json.NewDecoder(bytes.NewReader(text))
			d.UseNumber()
			eachNumber(d, nil, func(place []string, n int) {
				for _, t := range usageFields {
					path := strings.Split(t.path, ".")
					if path[0] == "*" && len(place) > 0 && place[0] == "response" {
						continue // * matches only keys that no other path names
					}
					if slices.EqualFunc(path, place, func(pattern, key string) bool { return pattern == "*" || pattern == key }) {
						reference.figures[t.figure] = n
					}
				}
			})
		}
		if whole.Usage() != reference.Usage() {
			t.Errorf("%q: got %+v, want %+v as read with encoding/json", answer, whole.Usage(), reference.Usage())
		}
	})
}

// eventsOf returns the data of the events of a stream, and of an unterminated event at its end,
// line by line as the standard defines.
func eventsOf(stream []byte) (all [][]byte) {
	text := strings.TrimPrefix(string(stream), "\uFEFF")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	var data []string
	for line := range strings.SplitSeq(text+"\n\n", "\n") {
		if value, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(data, strings.TrimPrefix(value, " "))
		} else if line == "" && len(data) > 0 {
			all, data = append(all, []byte(strings.Join(data, "\n"))), nil
		}
	}
	return all
}

// eachNumber reads the next value and calls f for the whole numbers in it that are not
// negative. The place of an array element has an empty key.
func eachNumber(d *json.Decoder, place []string, f func(place []string, n int)) {
	token, err := d.Token()
	if err != nil {
		return
	}
	if number, ok := token.(json.Number); ok {
		if n, err := strconv.Atoi(number.String()); err == nil && n >= 0 && n <= maxTokens && len(number) <= 256 {
			f(place, n)
		}
	}
	open, isContainer := token.(json.Delim)
	if !isContainer {
		return
	}
	for d.More() {
		at := append(slices.Clone(place), "")
		if open == '{' {
			key, _ := d.Token()
			at[len(place)], _ = key.(string)
		}
		eachNumber(d, at, f)
	}
	_, _ = d.Token()
}

// lone reports whether a body may have unpaired surrogates.
func lone(body []byte) bool {
	return bytes.Contains(bytes.ToLower(body), []byte(`\ud`))
}

// repeatsKeys reports whether an object has a key twice.
func repeatsKeys(d *json.Decoder) bool {
	token, err := d.Token()
	if err != nil {
		return true
	}
	keys := map[string]bool{}
	for open, _ := token.(json.Delim); open != 0 && d.More(); {
		if open == '{' {
			key, _ := d.Token()
			name, _ := key.(string)
			if keys[name] {
				return true
			}
			keys[name] = true
		}
		if repeatsKeys(d) {
			return true
		}
	}
	if _, container := token.(json.Delim); container {
		_, err = d.Token()
	}
	return err != nil
}
