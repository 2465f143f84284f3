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

// Usage is the number of tokens that a provider bills for a request.
type Usage struct {
	Input      int // whole prompt, cached or not
	Cached     int // part of Input, read from the cache
	CacheWrite int // part of Input, written to the cache, where that has its own price
	Output     int
}

// A UsageReader reads the usage from a provider's response while it is written, in all formats of
// this package. It keeps nothing of the response.
type UsageReader struct {
	framing Framing
	events  sse.Scanner
	frame   frame
	watcher *jsonspan.Watcher
	figures [figures]int
}

// A Framing separates the JSON texts of a response.
type Framing uint8

// Framings of responses.
const (
	Unframed  Framing = iota // one JSON text
	Events                   // text/event-stream
	Lines                    // application/x-ndjson
	AWSEvents                // application/vnd.amazon.eventstream
)

// FramingOf returns the framing of a response with this Content-Type, if it may have a usage.
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

// A figure is a number that providers report.
type figure uint8

const (
	promptTokens figure = iota // including cached ones
	promptCached
	completionTokens
	inputTokens // including cached ones or not: see Usage
	inputCached
	cacheRead
	cacheWrite
	outputTokens
	thoughtTokens // in addition to outputTokens
	figures
)

// usageFields lists the paths of figures. The last value counts: some providers send them with
// every event.
var usageFields = []struct {
	path   string
	figure figure
}{
	// OpenAI's chat completions, and variants of other providers.
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
	// Anthropic's messages have these in addition to usage.input_tokens; and the first event of
	// their streams.
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
	// Gemini, Gemini through Code Assist, and a stream that is a list.
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
	for _, t := range usageFields {
		paths = append(paths, t.path)
	}
	return jsonspan.CompilePaths(paths...)
}()

// NewUsageReader returns a UsageReader for a response with this framing.
func NewUsageReader(f Framing) *UsageReader {
	u := &UsageReader{framing: f}
	u.watcher = usagePaths.Watch(u.record)
	return u
}

// maxTokens is the largest plausible figure. A larger one would make a counter too large to show
// other values.
const maxTokens = 1_000_000_000

func (u *UsageReader) record(path int, k jsonspan.Kind, literal []byte) {
	n, err := strconv.Atoi(string(literal))
	if k != jsonspan.Number || err != nil || n < 0 || n > maxTokens {
		return
	}
	u.figures[usageFields[path].figure] = n
}

// Write reads the next bytes of the response. It never fails.
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

// A frame is a position in an AWS event: a prelude, headers, the JSON text and a checksum. The
// prelude has the total length, the length of the headers, and its own checksum.
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
		f.read, p = f.read+n, p[n:]
		if f.read == whole {
			f.read = 0
			u.watcher.Reset()
		}
	}
}

// Usage returns the usage so far.
func (u *UsageReader) Usage() Usage {
	if u.figures[promptTokens] > 0 {
		return Usage{Input: u.figures[promptTokens], Cached: u.figures[promptCached], Output: u.figures[completionTokens]}
	}
	// Anthropic's input_tokens exclude cached ones.
	return Usage{
		Input:      u.figures[inputTokens] + u.figures[cacheRead] + u.figures[cacheWrite],
		Cached:     u.figures[inputCached] + u.figures[cacheRead],
		CacheWrite: u.figures[cacheWrite],
		Output:     u.figures[outputTokens] + u.figures[thoughtTokens],
	}
}
