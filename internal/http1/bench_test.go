package http1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkCall measures a small POST and its response, with net/http and with this package. The
// server has no cost.
func BenchmarkCall(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 02 Jan 2006 15:04:05 " +
		"GMT\r\nMcp-Session-Id: 0123456789abcdef\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				reader := bufio.NewReader(c)
				for {
					for { // only the body ends with }, and the request ends with it
						line, err := reader.ReadSlice('\n')
						if err != nil {
							return
						}
						if bytes.HasSuffix(line, []byte("}\n")) {
							break
						}
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	for _, kind := range kinds {
		b.Run(kind.name, func(b *testing.B) {
			transport := kind.of(&http.Transport{MaxIdleConnsPerHost: 32})
			defer transport.CloseIdleConnections()
			b.ReportAllocs()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			call := strings.Repeat(" ", 200) + "{}\n"
			buffer := make([]byte, 32<<10)
			for b.Loop() {
				// Like bodies of reverse_proxy, this one hides from net/http that it is in memory.
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String()+"/mcp",
					struct{ io.Reader }{strings.NewReader(call)})
				r.ContentLength = int64(len(call))
				r.Header = http.Header{
					"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"},
					"Mcp-Session-Id": {"0123456789abcdef"},
					"User-Agent":     {"test"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"localhost"},
					"X-Forwarded-Proto": {"http"}, "Via": {"1.1 Caddy"},
				}
				res, err := transport.RoundTrip(r)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{res.Body}, buffer); n != 1024 || err != nil {
					b.Fatal(n, err)
				}
				res.Body.Close()
			}
		})
	}
}
