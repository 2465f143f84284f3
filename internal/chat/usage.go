package chat

import (
	"strconv"

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
// formats that this package knows, as JSON or as an event stream. It holds
// nothing of the answer.
type UsageReader struct {
	stream  bool
	events  sse.Scanner
	watcher *jsonspan.Watcher
	told    [figures]int
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
}

var usagePaths = func() *jsonspan.Paths {
	var paths []string
	for _, t := range told {
		paths = append(paths, t.path)
	}
	return jsonspan.CompilePaths(paths...)
}()

// NewUsageReader returns a UsageReader for a JSON text, or for a stream of events
// that are JSON texts.
func NewUsageReader(stream bool) *UsageReader {
	u := &UsageReader{stream: stream}
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
	if !u.stream {
		return u.watcher.Write(p)
	}
	u.events.Feed(p)
	for {
		switch kind, part := u.events.Next(); kind {
		case sse.More:
			return len(p), nil
		case sse.Data:
			_, _ = u.watcher.Write(part)
		case sse.Frame:
			u.watcher.Gap(len(part))
		case sse.Dispatch:
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
		Output:     u.told[outputTokens],
	}
}
