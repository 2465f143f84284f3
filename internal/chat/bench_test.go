package chat

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// longConversation returns a conversation of a thousand turns and about size bytes.
func longConversation(size int, line string) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You are an agent."}`)
	for i := range 1000 {
		fmt.Fprintf(&b, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%06d","type":"function",`+
			`"function":{"name":"read_file","arguments":"{\"path\":\"f%d\"}"}}]}`, i, i)
		fmt.Fprintf(&b, `,{"role":"tool","tool_call_id":"call_%06d","content":"`, i)
		for b.Len() < size/1000*(i+1) {
			b.WriteString(line)
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

var benchmarkTexts = []struct{ name, line string }{
	{"log", `2026-11-15T08:04:49.696Z INFO  http request handled method=GET path=/orders/1539 status=200 duration_ms=34\n`},
	{"source", `\tif err := s.store.Put(ctx, key, value); err != nil {\n\t\treturn fmt.Errorf(\"put %s: %w\", key, ` +
		`err)\n\t}\n`},
}

func BenchmarkMask(b *testing.B) {
	for _, size := range []int{400_000, 2_000_000, 20_000_000} {
		for _, text := range benchmarkTexts {
			b.Run(fmt.Sprintf("%s/%d", text.name, size), func(b *testing.B) {
				body := longConversation(size, text.line)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				var c Conversation
				p := Policy{WindowTurns: DefaultWindowTurns, KeepErrors: ErrorsOn}
				for b.Loop() {
					if err := c.Parse(body); err != nil {
						b.Fatal(err)
					}
					plan := c.Mask(&p)
					if plan.Results != 992 {
						b.Fatal(plan.Results)
					}
					_ = jsonspan.Splice(io.Discard, body, plan.Edits)
				}
			})
		}
	}
}

// BenchmarkNextTurn masks a conversation that a memory knows up to its last turn.
func BenchmarkNextTurn(b *testing.B) {
	for _, size := range []int{400_000, 2_000_000, 20_000_000} {
		for _, text := range benchmarkTexts {
			b.Run(fmt.Sprintf("%s/%d", text.name, size), func(b *testing.B) {
				body := longConversation(size, text.line)
				before := slices.Concat(body[:bytes.LastIndex(body, []byte(`,{"role":"assistant"`))], []byte("]}"))
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				m := NewMemory(quota.NewKind("next turn"))
				defer m.Close()
				p := Policy{WindowTurns: DefaultWindowTurns, KeepErrors: ErrorsOn}
				for i := 0; b.Loop(); i++ {
					body, want := body, 992
					if i%2 == 0 {
						body, want = before, 991
					}
					c, err := m.Parse("", body)
					if err != nil {
						b.Fatal(err)
					}
					if n := c.Mask(&p).Results; n != want {
						b.Fatal(n)
					}
					m.Keep("", c, Past{})
				}
			})
		}
	}
}
