package screen

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkWriter writes messages in pieces of the size that reverse_proxy writes.
func BenchmarkWriter(b *testing.B) {
	const line = `2026-11-16 18:33:33 INFO path=\"/v1/items\" handled the request\n`
	for _, size := range []int{1 << 10, 100 << 10, 5 << 20} {
		message := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat(
			line,
			size/len(line),
		) + `"}]}}`
		for _, media := range []struct{ name, contentType, body string }{
			{"JSON", "application/json", message},
			{"events", "text/event-stream", "event: message\ndata: " + message + "\n\n"},
		} {
			b.Run(fmt.Sprintf("%s/%d", media.name, size), func(b *testing.B) {
				body := []byte(media.body)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					next := discardWriter{}
					w := NewWriter(next, 64<<20, func(message []byte) ([]byte, error) { return message, nil })
					w.Line = func(line []byte) []byte { return line }
					next.Header().Set("Content-Type", media.contentType)
					if media.name == "JSON" {
						next.Header().Set("Content-Length", strconv.Itoa(len(body)))
					}
					for rest := body; len(rest) > 0; {
						n := min(32<<10, len(rest))
						_, _ = w.Write(rest[:n])
						rest = rest[n:]
					}
					if err := w.Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
