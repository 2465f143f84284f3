package chat

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// Usage is what a provider bills for a request, in tokens.
type Usage struct {
	Input      int // all of the prompt, from the cache or not
	Cached     int // of these, read from the cache
	CacheWrite int // of these, written to it, where that has a price of its own
	Output     int
}

// A UsageReader reads the usage from a provider's answer as it passes by, in the
// formats that this package knows. It holds nothing of the answer.
type UsageReader struct {
	framing Framing
	events  sse.Scanner
	frame   frame
	watcher *jsonspan.Watcher
	told    [figures]int
}

// A Framing is how the JSON texts of an answer follow one another.
type Framing uint8

const (
	Unframed  Framing = iota // there is just one
	Events                   // text/event-stream
	Lines                    // application/x-ndjson
	AWSEvents                // application/vnd.amazon.eventstream
)

// FramingOf returns how an answer of this Content-Type is framed, if it may have a usage.
func FramingOf(contentType string) (f Framing, ok bool) {
	switch httpbody.TypeOf(contentType) {
	case httpbody.JSON:
		return Unframed, true
	case httpbody.EventStream:
		return Events, true
	}
	media, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(media)) {
	case "application/x-ndjson", "application/jsonl":
		return Lines, true
	case "application/vnd.amazon.eventstream":
		return AWSEvents, true
	}
	return Unframed, false
}

// A figure is something that providers tell.
type figure uint8

const (
	promptTokens figure = iota // those from the cache included
	promptCached
	completionTokens
	inputTokens // those from the cache included, or not: see Usage
	inputCached
	cacheRead
	cacheWrite
	outputTokens
	thoughtTokens // beside outputTokens
	figures
)

// told is where the figures stand. The last one told is the one that counts: some
// providers send them with every event.
var told = []struct {
	path string
	is   figure
}{
	// OpenAI's chat completions, and what others have made of them.
	{"usage.prompt_tokens", promptTokens},
	{"usage.prompt_tokens_details.cached_tokens", promptCached},
	{"usage.cached_tokens", promptCached},
	{"usage.prompt_cache_hit_tokens", promptCached},
	{"usage.completion_tokens", completionTokens},
	{"choices.*.usage.prompt_tokens", promptTokens},
	{"choices.*.usage.prompt_tokens_details.cached_tokens", promptCached},
	{"choices.*.usage.cached_tokens", promptCached},
	{"choices.*.usage.completion_tokens", completionTokens},
	// OpenAI's responses, and the last event of their streams.
	{"usage.input_tokens", inputTokens},
	{"usage.input_tokens_details.cached_tokens", inputCached},
	{"usage.output_tokens", outputTokens},
	{"response.usage.input_tokens", inputTokens},
	{"response.usage.input_tokens_details.cached_tokens", inputCached},
	{"response.usage.output_tokens", outputTokens},
	// Anthropic's messages have these beside the first of responses; and the first
	// event of their streams.
	{"usage.cache_read_input_tokens", cacheRead},
	{"usage.cache_creation_input_tokens", cacheWrite},
	{"message.usage.input_tokens", inputTokens},
	{"message.usage.cache_read_input_tokens", cacheRead},
	{"message.usage.cache_creation_input_tokens", cacheWrite},
	{"message.usage.output_tokens", outputTokens},
	// Bedrock's Converse.
	{"usage.inputTokens", inputTokens},
	{"usage.cacheReadInputTokens", cacheRead},
	{"usage.cacheWriteInputTokens", cacheWrite},
	{"usage.outputTokens", outputTokens},
	// Ollama.
	{"prompt_eval_count", inputTokens},
	{"eval_count", outputTokens},
	// Gemini, then as Code Assist has it, then in a stream that is a list.
	{"usageMetadata.promptTokenCount", inputTokens},
	{"usageMetadata.cachedContentTokenCount", inputCached},
	{"usageMetadata.candidatesTokenCount", outputTokens},
	{"usageMetadata.thoughtsTokenCount", thoughtTokens},
	{"response.usageMetadata.promptTokenCount", inputTokens},
	{"response.usageMetadata.cachedContentTokenCount", inputCached},
	{"response.usageMetadata.candidatesTokenCount", outputTokens},
	{"response.usageMetadata.thoughtsTokenCount", thoughtTokens},
	{"*.usageMetadata.promptTokenCount", inputTokens},
	{"*.usageMetadata.cachedContentTokenCount", inputCached},
	{"*.usageMetadata.candidatesTokenCount", outputTokens},
	{"*.usageMetadata.thoughtsTokenCount", thoughtTokens},
}

var usagePaths = func() *jsonspan.Paths {
	var paths []string
	for _, t := range told {
		paths = append(paths, t.path)
	}
	return jsonspan.CompilePaths(paths...)
}()

// NewUsageReader returns a UsageReader for an answer that is framed in this way.
func NewUsageReader(f Framing) *UsageReader {
	u := &UsageReader{framing: f}
	u.watcher = usagePaths.Watch(u.tell)
	return u
}

// maxTokens is the largest figure that is believed. A counter that has been told
// more does not see what others tell any more.
const maxTokens = 1_000_000_000

func (u *UsageReader) tell(path int, k jsonspan.Kind, literal []byte) {
	n, err := strconv.Atoi(string(literal))
	if k != jsonspan.Number || err != nil || n < 0 || n > maxTokens {
		return
	}
	u.told[told[path].is] = n
}

// Write takes the next bytes of the answer. It never fails.
func (u *UsageReader) Write(p []byte) (int, error) {
	switch u.framing {
	case Events:
		u.writeEvents(p)
	case Lines:
		for line := range bytes.Lines(p) {
			_, _ = u.watcher.Write(line)
			if line[len(line)-1] == '\n' {
				u.watcher.Reset()
			}
		}
	case AWSEvents:
		u.writeFrames(p)
	default:
		_, _ = u.watcher.Write(p)
	}
	return len(p), nil
}

func (u *UsageReader) writeEvents(p []byte) {
	u.events.Feed(p)
	for {
		switch kind, part := u.events.Next(); kind {
		case sse.More:
			return
		case sse.Data:
			_, _ = u.watcher.Write(part)
		case sse.Frame:
			u.watcher.Gap(len(part))
		case sse.Dispatch:
			u.watcher.Reset()
		}
	}
}

// A frame is where the bytes of an event of AWS stand: a prelude, headers, the JSON text
// and a checksum. The prelude has the length of all and of the headers, and a checksum of
// its own.
type frame struct {
	prelude [12]byte
	read    int // of the event
	broken  bool
}

func (u *UsageReader) writeFrames(p []byte) {
	f := &u.frame
	for len(p) > 0 && !f.broken {
		if f.read < len(f.prelude) {
			n := copy(f.prelude[f.read:], p)
			f.read, p = f.read+n, p[n:]
			continue
		}
		whole := int(binary.BigEndian.Uint32(f.prelude[:]))
		headers := len(f.prelude) + int(binary.BigEndian.Uint32(f.prelude[4:]))
		text := whole - 4
		if headers > text {
			f.broken = true
			return
		}
		end := whole
		if f.read < headers {
			end = headers
		} else if f.read < text {
			end = text
		}
		n := min(len(p), end-f.read)
		if end == text {
			_, _ = u.watcher.Write(p[:n])
		}
		if f.read, p = f.read+n, p[n:]; f.read == whole {
			f.read = 0
			u.watcher.Reset()
		}
	}
}

// Usage returns what has been told so far.
func (u *UsageReader) Usage() Usage {
	if u.told[promptTokens] > 0 {
		return Usage{Input: u.told[promptTokens], Cached: u.told[promptCached], Output: u.told[completionTokens]}
	}
	// Anthropic's input_tokens are those that have nothing to do with the cache.
	return Usage{
		Input:      u.told[inputTokens] + u.told[cacheRead] + u.told[cacheWrite],
		Cached:     u.told[inputCached] + u.told[cacheRead],
		CacheWrite: u.told[cacheWrite],
		Output:     u.told[outputTokens] + u.told[thoughtTokens],
	}
}
