package mcpclient_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// serve starts a server and returns its URL.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		s.CloseClientConnections() // else Close waits for streams
		s.Close()
	})
	return s.URL
}

// TestClient uses a strict server, which rejects violations of the protocol, in both eras.
func TestClient(t *testing.T) {
	for name, isModern := range map[string]bool{"legacy": false, "modern": true} {
		t.Run(name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: !isModern, Modern: isModern}
			t.Cleanup(remote.Close)
			c := &mcpclient.Client{URL: serve(t, remote), Modern: isModern, Capabilities: `{"roots":{}}`}
			if !isModern {
				if _, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil {
					t.Fatal(err)
				}
				stream := c.Listen(t.Context())
				<-stream.Opened
				c.Start(t.Context(), "tools/call", `{"name":"change"}`).Finish()
				if m := <-stream.Messages; m.Method != "notifications/tools/list_changed" {
					t.Errorf("received %s, want notifications/tools/list_changed", m)
				}
				stream.Cancel()
			}
			got := c.Start(t.Context(), "tools/call",
				`{"name":"progress","arguments":{"steps":2},"_meta":{"progressToken":7}}`).Finish()
			if got.Err != nil || got.Status != 200 || len(got.Before) != 2 || got.Before[1].Params.Progress != 2 ||
				got.Before[1].Param("progressToken") != "7" || got.Result == nil {
				t.Errorf("got %d %s, error %v, want two notifications and a result", got.Status, got.Body, got.Err)
			}
			if got := c.Start(t.Context(), "tools/call", `{"name":"no such tool"}`).Finish(); got.Error == nil {
				t.Errorf("got %s, want an error", got.Body)
			}
		})
	}
}

// TestClientAnswers checks that server requests reach the client on the stream of the call,
// on that of the session, or as a result.
func TestClientAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		isModern bool
		aside    bool
	}{"legacy": {}, "legacy, aside": {aside: true}, "modern": {isModern: true}} {
		t.Run(name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: !tt.isModern, Modern: tt.isModern}
			t.Cleanup(remote.Close)
			c := &mcpclient.Client{URL: serve(t, remote), Modern: tt.isModern, Capabilities: `{"elicitation":{"url":{}}}`}
			answer := func(method string, params json.RawMessage) string {
				if method != "elicitation/create" || string(params) != `{"mode":"url"}` {
					t.Errorf("got %s %s, want the elicitation", method, params)
				}
				return `{"action":"accept"}`
			}
			if !tt.isModern {
				if _, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil {
					t.Fatal(err)
				}
				stream := c.Listen(t.Context())
				<-stream.Opened
				var reader sync.WaitGroup
				reader.Go(func() { c.Respond(t.Context(), stream, answer) })
				defer func() { stream.Cancel(); reader.Wait() }()
			}
			params := fmt.Sprintf(`{"name":"ask","arguments":{"method":"elicitation/create","params":{"mode":"url"},`+
				`"times":2,"aside":%t}}`, tt.aside)
			if got := c.Request(t.Context(), "tools/call", params, answer); got.Err != nil || !strings.Contains(got.Text(),
				"accept") {
				t.Errorf("got %d %s, error %v, want the response in the result", got.Status, got.Body, got.Err)
			}
		})
	}
}

func TestClientReadsEvents(t *testing.T) {
	script := &mcptest.Script{Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(": comment\n\nid: 1\r\ndata:\r\n\r\nid: 2\nevent: message\ndata: {\"id\":" + string(r.ID) +
			",\ndata: \"result\":1.0}\n\ndata: nothing\n\ndata: {\"cut"))
		return true
	}}
	x := (&mcpclient.Client{URL: serve(t, script)}).Start(t.Context(), "x", "")
	if m := <-x.Messages; string(m.ID) != x.ID || string(m.Result) != "1.0" || m.EventID != "2" {
		t.Errorf("got %+v, want the result in event 2", m)
	}
	if m := <-x.Messages; m.Raw != "nothing" || m.Method == "" {
		t.Errorf("got %+v, want an invalid message", m)
	}
	if m, ok := <-x.Messages; ok {
		t.Errorf("got %s, want nothing from an incomplete event", m)
	}
}

func TestNotifyNeeds202(t *testing.T) {
	script := &mcptest.Script{Handle: func(w http.ResponseWriter, _ *mcptest.Received) bool {
		w.WriteHeader(http.StatusTeapot)
		return true
	}}
	c := &mcpclient.Client{URL: serve(t, script)}
	if err := c.Notify(t.Context(), `{"jsonrpc":"2.0","method":"x"}`); err == nil {
		t.Error("got no error for a status other than 202")
	}
}
