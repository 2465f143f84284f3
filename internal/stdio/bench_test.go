package stdio

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
)

// filler is a fast child process that answers each request with a text of size bytes.
func filler(size string, stdin io.Reader, stdout io.Writer) {
	n, _ := strconv.Atoi(size)
	hello := `,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"filler","version":"1"}}}` + "\n"
	text := `,"result":{"content":[{"type":"text","text":"` + strings.Repeat("0123456789", n/10) + `"}]}}` + "\n"
	lines, answer := bufio.NewReader(stdin), []byte(nil)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return
		}
		_, rest, ok := bytes.Cut(line, []byte(`"id":`))
		if !ok {
			continue
		}
		result := text
		if bytes.Contains(line, []byte(`"initialize"`)) {
			result = hello
		}
		answer = append(append(answer[:0], `{"jsonrpc":"2.0","id":`...), rest[:bytes.IndexByte(rest, ',')]...)
		_, _ = stdout.Write(append(answer, result...))
	}
}

type silent struct{}

func (silent) Started(string, int, bool) {}
func (silent) NotStarted(string, bool)   {}
func (silent) Exited(string, int, error) {}
func (silent) Noise(string)              {}
func (silent) Dropped(string)            {}

// BenchmarkCall measures calls in a session by the size of their responses. Like reverse_proxy, it
// reads a response in pieces.
func BenchmarkCall(b *testing.B) {
	for _, bench := range []struct {
		name    string
		size    int
		clients int
	}{{"1KB/1", 1 << 10, 1}, {"1KB/16", 1 << 10, 16}, {"100KB/16", 100 << 10, 16}, {"5MB/1", 5 << 20, 1}} {
		b.Run(bench.name, func(b *testing.B) {
			p := NewPool(Config{
				Command: []string{
					os.Args[0],
					"filler",
					strconv.Itoa(bench.size),
				}, Framing: Newline, Isolation: Shared,
				StartTimeout: time.Minute,
				StopGrace:    time.Minute, MaxMessage: 64 << 20, MaxSessions: 100, SessionTTL: time.Hour, Logger: zap.NewNop,
			}, silent{})
			defer p.Close()
			post := func(session, body string) *http.Response {
				req, _ := http.NewRequest(http.MethodPost, "http://alpha:1/mcp", strings.NewReader(body))
				req.GetBody = httpbody.Keep([]byte(body)) // as the gateway does
				req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
				if session != "" {
					req.Header["Mcp-Session-Id"] = []string{session}
				}
				res, err := p.RoundTrip(req)
				if err != nil {
					b.Error(err)
				}
				return res
			}
			hello := post(
				"",
				request(
					"0",
					"initialize",
					`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"b","version":"1"}}`,
				),
			)
			session := hello.Header.Get("Mcp-Session-Id")
			body := toolCall(`"call-1"`, "fill", `{"text":"`+strings.Repeat("x", 64)+`"}`)
			b.SetBytes(int64(bench.size))
			b.ReportAllocs()
			var left, running = make(chan struct{}, b.N), sync.WaitGroup{}
			for range b.N {
				left <- struct{}{}
			}
			close(left)
			b.ResetTimer()
			for range bench.clients {
				running.Go(func() {
					buf := make([]byte, 32<<10)
					for range left {
						res := post(session, body)
						n := 0
						for {
							m, err := res.Body.Read(buf)
							n += m
							if err != nil {
								break
							}
						}
						res.Body.Close()
						if n < bench.size/10*10 {
							b.Errorf("%d bytes", n)
						}
					}
				})
			}
			running.Wait()
		})
	}
}
