//go:build linux

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// quiet is for servers whose handlers abort.
var quiet = log.New(io.Discard, "", 0)

// A server is an MCP server over HTTP without sessions. It greets and lists as it
// should; its tools are echo and others of which each is a fault.
type server struct {
	*httptest.Server
	script *mcptest.Script
}

// An exchange is a call of a tool that is to go wrong.
type exchange struct {
	w  http.ResponseWriter
	r  *http.Request
	id json.RawMessage
}

func newServer(t *testing.T, faults map[string]func(*exchange)) *server {
	t.Helper()
	script := &mcptest.Script{
		Sessionless: true, Legacy: true, Capabilities: `{"tools":{}}`,
		Tools: append(slices.Sorted(maps.Keys(faults)), "echo"),
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			fault := faults[r.Tool()]
			if fault != nil {
				fault(&exchange{w, r.HTTP, r.ID})
			}
			return fault != nil
		},
	}
	return &server{newUpstream(t, script), script}
}

// times returns how often a tool was called.
func (s *server) times(tool string) (n int) {
	for _, call := range s.script.Received("tools/call") {
		if call.Tool() == tool {
			n++
		}
	}
	return n
}

func answer(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":`, id)
	_, _ = io.WriteString(w, result)
	_, _ = io.WriteString(w, "}")
}

// text is the result of a tool.
func text(s string) string {
	quoted, _ := json.Marshal(s)
	return `{"content":[{"type":"text","text":` + string(quoted) + `}]}`
}

// raw takes the connection to send on it what no HTTP server would.
func (x *exchange) raw() (net.Conn, *bufio.ReadWriter) {
	conn, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(err) // it is HTTP/1.1
	}
	return conn, rw
}

// says sends bytes, and closes the connection.
func says(format string) func(*exchange) {
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, _ = io.WriteString(conn, strings.ReplaceAll(format, "{id}", string(x.id)))
	}
}

// repeats sends a beginning, and then the same again and again, until nobody takes it or
// so many bytes have been sent.
func repeats(beginning, again string, limit int) func(*exchange) {
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, err := io.WriteString(conn, strings.ReplaceAll(beginning, "{id}", string(x.id)))
		for sent := 0; err == nil && sent < limit; sent += len(again) {
			_, err = io.WriteString(conn, again)
		}
	}
}

// waits answers nothing until the client has gone.
func waits(x *exchange) {
	<-x.r.Context().Done()
	panic(http.ErrAbortHandler) // else it would be an answer
}

type httpServer = httptest.Server
