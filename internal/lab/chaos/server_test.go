//go:build linux

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// quiet is for servers whose handlers abort.
var quiet = log.New(io.Discard, "", 0)

// A server is an MCP server over HTTP without sessions. It greets and lists as it
// should; its tools are echo and others of which each is a fault.
type server struct {
	*httptest.Server
	faults map[string]func(*exchange)

	mu  sync.Mutex
	ran map[string]int // by tool
}

// An exchange is a call of a tool that is to go wrong.
type exchange struct {
	w  http.ResponseWriter
	r  *http.Request
	id json.RawMessage
}

func newServer(t *testing.T, faults map[string]func(*exchange)) *server {
	t.Helper()
	s := &server{faults: faults, ran: map[string]int{}}
	s.Server = newUpstream(t, s)
	return s
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.Method != http.MethodPost || json.Unmarshal(body, &m) != nil:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	switch m.Method {
	case "initialize":
		answer(w, m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"far","version":"1"}}`)
	case "tools/list":
		tools := []string{`{"name":"echo","inputSchema":{"type":"object"}}`}
		for name := range s.faults {
			tools = append(tools, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
		}
		answer(w, m.ID, `{"tools":[`+strings.Join(tools, ",")+`]}`)
	case "tools/call":
		var p struct{ Name string }
		_ = json.Unmarshal(m.Params, &p)
		s.mu.Lock()
		s.ran[p.Name]++
		s.mu.Unlock()
		if fault := s.faults[p.Name]; fault != nil {
			fault(&exchange{w, r, m.ID})
			return
		}
		answer(w, m.ID, text(string(m.Params)))
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
	}
}

// times returns how often a tool was called.
func (s *server) times(tool string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ran[tool]
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
