package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

const right = `{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"12345"}]}}`

func TestVerify(t *testing.T) {
	for _, c := range []struct{ name, response, wantErr string }{
		{"a right response", right, ""},
		{"other escapes, spaces and order", `{ "result" : {"isError":false,"content":[{"text":"1234\u0035",` +
			`"type":"text"}],"resultType":"complete"}, "id" : 7, "jsonrpc":"2.0" }`, ""},
		{"a response to another request", strings.Replace(right, "7", "8", 1), "another request"},
		{"id is a string", strings.Replace(right, "7", `"7"`, 1), "another request"},
		{"no id", strings.Replace(right, `"id":7,`, "", 1), "another request"},
		{"text too short", strings.Replace(right, "12345", "1234", 1), "of 4 characters, not one of 5"},
		{"text too long", strings.Replace(right, "12345", "123456", 1), "of 6 characters, not one of 5"},
		{"two texts of the right size", strings.Replace(right, "12345", `12"},{"type":"text","text":"345`, 1), "2 texts"},
		{"no text", `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`, "0 texts"},
		{"no result", `{"jsonrpc":"2.0","id":7}`, "without a result"},
		{"an error", `{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"busy"}}`, "error response: busy"},
		{"the tool failed", strings.Replace(right, `{"content"`, `{"isError":true,"content"`, 1), "tool failed"},
		{"a truncated response", right[:len(right)-4], "unexpected EOF"},
		{"an empty response", "", "0 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Verify([]byte(c.response), 7, 5)
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("got %v, want %q", err, c.wantErr)
			}
		})
	}
}

func TestVerifyList(t *testing.T) {
	list := []byte(`{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"a"},{"name":"b"}]}}`)
	if err := VerifyList(list, 7, 2); err != nil {
		t.Error(err)
	}
	if VerifyList(list, 7, 3) == nil || VerifyList(list, 8, 2) == nil {
		t.Error("a list with another number of tools, or for another request, passed")
	}
}

// answers is a server. It writes the responses to calls with this function.
type answers func(w http.ResponseWriter, id []byte)

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := make([]byte, r.ContentLength)
	_, _ = r.Body.Read(body)
	var m jsonrpc.Message
	if m.Read(body) != nil || !m.IsRequest() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.Is(jsonrpc.Method, "initialize") {
		w.Header().Set("Mcp-Session-Id", "mine")
		_, _ = w.Write(jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte(`{"protocolVersion":"2025-06-18"}`)))
		return
	}
	if r.Header.Get("Mcp-Session-Id") != "mine" || r.Header.Get("Mcp-Protocol-Version") != "2025-06-18" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a(w, m.Literal(jsonrpc.ID))
}

func TestCall(t *testing.T) {
	result := []byte(`{"content":[{"type":"text","text":"12345"}]}`)
	asEvents := func(lines ...string) answers {
		return func(w http.ResponseWriter, id []byte) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			for _, line := range lines {
				fmt.Fprintln(w, strings.ReplaceAll(line, "ID", string(id)))
			}
		}
	}
	for _, c := range []struct {
		name    string
		server  answers
		wantErr string
	}{
		{"a response as JSON", func(w http.ResponseWriter, id []byte) { _, _ = w.Write(jsonrpc.ResultResponse(id, result)) },
			""},
		{"a response as an event", asEvents("event: message", `data: {"jsonrpc":"2.0","id":ID,"result":`+string(result)+`}`,
			""), ""},
		{"messages before the response are skipped", asEvents("id: 1", "data:", "",
			`data: {"jsonrpc":"2.0","method":"notifications/progress"}`, "",
			`data: {"jsonrpc":"2.0","id":ID,`, `data: "result":`+string(result)+`}`, ""), ""},
		{"events without a response", asEvents(`data: {"jsonrpc":"2.0","method":"notifications/progress"}`, ""),
			"without a response"},
		{"a response of another size", asEvents(`data: {"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text",`+
			`"text":"1"}]}}`, ""), "of 1 characters"},
		{"a response to another request", asEvents(`data: {"jsonrpc":"2.0","id":3,"result":`+string(result)+`}`, ""),
			"another request"},
		{"an error status", func(w http.ResponseWriter, _ []byte) { http.Error(w, "busy", http.StatusServiceUnavailable) },
			"503 Service Unavailable: busy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(c.server)
			defer server.Close()
			client, err := Open(t.Context(), server.URL, Legacy, "")
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err = client.Call(t.Context(), "tool", 5)
				if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got %v, want %q", err, c.wantErr)
				}
			}
		})
	}
}

// TestCallBySSE receives responses on the stream that opened the session.
func TestCallBySSE(t *testing.T) {
	stream := make(chan string, 4)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sse", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: endpoint\ndata: /messages?session=1\n\n")
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case message := <-stream:
				fmt.Fprintf(w, "data: %s\n\n", message)
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		var m jsonrpc.Message
		if m.Read(body) == nil && m.IsRequest() {
			stream <- string(jsonrpc.ResultResponse(m.Literal(jsonrpc.ID),
				[]byte(`{"protocolVersion":"2024-11-05","content":[{"type":"text","text":"12345"}]}`)))
		}
		w.WriteHeader(http.StatusAccepted)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	client, err := Open(t.Context(), server.URL+"/sse", SSE, "")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	if err := client.Call(t.Context(), "tool", 5); err != nil {
		t.Error(err)
	}
	if err := client.Call(t.Context(), "tool", 6); err == nil {
		t.Error("a response of another size passed")
	}
}

func TestLoopCountsFailuresSeparately(t *testing.T) {
	wrong := errors.New("wrong")
	calls := make([]int, 2)
	r := Loop(t.Context(), 2, time.Hour, func(_ context.Context, client int) error {
		calls[client]++
		if calls[client]%2 == 0 || calls[client] > 8 {
			return wrong
		}
		return nil
	})
	// Every other call fails, then all of them, until the clients give up.
	if len(r.Latencies) != 2*4 || r.Failed != 2*(3+maxFailures) || !errors.Is(r.Err, wrong) {
		t.Errorf("got %d successes, %d failures, %v", len(r.Latencies), r.Failed, r.Err)
	}
}

func TestLoopMakesAtLeastOneCall(t *testing.T) {
	r := Loop(t.Context(), 3, 0, func(context.Context, int) error { return nil })
	if len(r.Latencies) != 3 || r.Failed != 0 {
		t.Errorf("got %d successes, %d failures", len(r.Latencies), r.Failed)
	}
}

func TestQuantile(t *testing.T) {
	var values []float64
	for i := 100; i > 0; i-- {
		values = append(values, float64(i))
	}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {.5, 50}, {.99, 99}, {1, 100}} {
		if got := Quantile(values, c.q); got != c.want {
			t.Errorf("%v: got %v, want %v", c.q, got, c.want)
		}
	}
	if got := Quantile([]float64{3}, .99); got != 3 {
		t.Errorf("got %v, want 3", got)
	}
	if values[0] != 100 {
		t.Error("Quantile sorted the values in place")
	}
}

// TestCallWithTLS has clients use HTTP/2, each on its own connection, with a token.
func TestCallWithTLS(t *testing.T) {
	var connections atomic.Int32
	var token atomic.Value
	answer := answers(func(w http.ResponseWriter, id []byte) {
		_, _ = w.Write(jsonrpc.ResultResponse(id, []byte(`{"content":[{"type":"text","text":"12345"}]}`)))
	})
	for _, http2 := range []bool{true, false} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token.Store(r.Header.Get("Authorization"))
			answer.ServeHTTP(w, r)
		}))
		server.EnableHTTP2 = http2
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		server.StartTLS()
		defer server.Close()
		for range 2 {
			client, err := Open(t.Context(), server.URL, Legacy, "secret")
			if !http2 {
				if err == nil {
					t.Error("no error for a server without HTTP/2")
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close(t.Context())
			if err := client.Call(t.Context(), "tool", 5); err != nil {
				t.Error(err)
			}
		}
		if n := connections.Load(); http2 && n != 2 {
			t.Errorf("two clients have %d connections, want 2", n)
		}
	}
	if token.Load() != "Bearer secret" {
		t.Errorf("the server received %q", token.Load())
	}
}

// TestPaced makes calls that take longer than the interval between them.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, int) error { time.Sleep(300 * time.Millisecond); return nil }
		for _, c := range []struct {
			name                string
			clients, done, late int // late: waited for a client
		}{
			{"a client for each call", 3, 10, 0},
			{"calls wait for a client", 2, 10, 8},
			{"calls that wait too long are not made", 1, 7, 6},
		} {
			r := Paced(t.Context(), c.clients, time.Second, 10, slow)
			late := 0
			for _, took := range r.Latencies {
				if took > 300*time.Millisecond {
					late++
				}
			}
			done := len(r.Latencies)
			if done != c.done || late != c.late || r.Failed != 10-done || (r.Err != nil) != (r.Failed > 0) {
				t.Errorf("%s: %d done, %d of them late, %d failed: %v", c.name, done, late, r.Failed, r.Err)
			}
		}
	})
}
