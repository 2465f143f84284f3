package streamable

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// BenchmarkReader reads responses in the pieces that reverse_proxy writes.
func BenchmarkReader(b *testing.B) {
	const piece = 32 << 10
	for _, text := range []struct{ name, line string }{
		{"plain", "An observation of no consequence, with nothing to escape. "},
		{"lines", `2026-11-16 18:33:33 INFO path=\"/v1/items\" handled the request\n`},
	} {
		for _, size := range []int{1 << 10, 100 << 10, 5 << 20} {
			message := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat(text.line,
				size/len(text.line)) + `"}]}}`
			for _, media := range []struct{ name, contentType, body string }{
				{"JSON", "application/json", message},
				{"events", "text/event-stream", "event: message\ndata: " + message + "\n\n"},
			} {
				b.Run(fmt.Sprintf("%s/%s/%d", media.name, text.name, size), func(b *testing.B) {
					body := []byte(media.body)
					b.SetBytes(int64(len(body)))
					b.ReportAllocs()
					passed := 0
					for b.Loop() {
						r := Reader{RequestID: []byte("1"), OnMessage: func(e *Event) error { passed++; return nil }}
						r.OnLarge = func(string) io.WriteCloser {
							passed++
							return &discarded{jsonspan.CompilePaths("id").Rewrite(io.Discard,
								func(int, jsonspan.Kind, []byte) []byte { return nil })}
						}
						giveBack := r.Borrow()
						r.Header().Set("Content-Type", media.contentType)
						if media.name == "JSON" {
							r.Header().Set("Content-Length", strconv.Itoa(len(body)))
						}
						for rest := body; len(rest) > 0; {
							n := min(piece, len(rest))
							_, _ = r.Write(rest[:n])
							rest = rest[n:]
						}
						if err := r.Close(); err != nil {
							b.Fatal(err)
						}
						giveBack()
					}
					if passed != b.N {
						b.Fatal(passed)
					}
				})
			}
		}
	}
}

type discarded struct{ *jsonspan.Rewriter }
