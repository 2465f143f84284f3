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

// quiet is the error log of servers whose handlers abort.
var quiet = log.New(io.Discard, "", 0)

// A server is an MCP server over HTTP without sessions. Requests other than calls succeed. Its
// tools are echo and one for each fault.
type server struct {
	*httptest.Server
	script *mcptest.Script
}

// An exchange is a call of a tool that fails.
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

// text returns the result of a tool with this text.
func text(s string) string {
	quoted, _ := json.Marshal(s)
	return `{"content":[{"type":"text","text":` + string(quoted) + `}]}`
}

// raw takes over the connection, to send bytes that no HTTP server would.
func (x *exchange) raw() (net.Conn, *bufio.ReadWriter) {
	conn, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(err) // HTTP/1.1 always supports it
	}
	return conn, rw
}

// sends returns a handler that sends bytes and closes the connection.
func sends(format string) func(*exchange) {
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, _ = io.WriteString(conn, strings.ReplaceAll(format, "{id}", string(x.id)))
	}
}

// sendsRepeatedly returns a handler that sends a start and then the same bytes repeatedly, until
// the client disconnects or limit bytes are sent.
func sendsRepeatedly(start, repeated string, limit int) func(*exchange) {
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, err := io.WriteString(conn, strings.ReplaceAll(start, "{id}", string(x.id)))
		for sent := 0; err == nil && sent < limit; sent += len(repeated) {
			_, err = io.WriteString(conn, repeated)
		}
	}
}

// hangs sends no response until the client disconnects.
func hangs(x *exchange) {
	<-x.r.Context().Done()
	panic(http.ErrAbortHandler) // otherwise the server would send a response
}

type httpServer = httptest.Server
