package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A replayer is a server whose streams can be resumed, by ids that can be guessed and without
// sessions: to it, all clients are one.
type replayer struct {
	mu     sync.Mutex
	events []string
}

func (s *replayer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		last, err := strconv.Atoi(r.Header.Get("Last-Event-Id"))
		if err != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i, event := range s.events[min(last, len(s.events)):] {
			fmt.Fprintf(w, "id: %d\ndata: %s\n\n", last+i+1, event)
		}
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Arguments struct{ Patient string } }
	}
	_ = json.NewDecoder(r.Body).Decode(&m)
	switch {
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "initialize":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}`, m.ID)
	default:
		s.events = append(s.events, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"results of %s"}]}}`, m.ID, m.Params.Arguments.Patient))
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: %d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n", len(s.events)-1)
		fmt.Fprintf(w, "id: %d\ndata: %s\n\n", len(s.events), s.events[len(s.events)-1])
	}
}

// A stream that broke off goes on for the client that had it, and for no other one.
func TestSecurityStreamsOfOthers(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", strangers(), "server up http://"+upstream(t, new(replayer))+"/mcp"))
	for _, at := range []string{joinedAt(url), mcpAt(url, "up")} {
		t.Run(strings.TrimPrefix(at, url), func(t *testing.T) {
			tool, guesses := "x", []string{"0", "1"}
			session := map[string][]string{victimToken: nil, thiefToken: nil}
			if at == joinedAt(url) {
				tool, guesses = "up__x", []string{"call/up/0", "call/up/1"}
				for token := range session {
					session[token] = []string{sessionAt(t, at, bearer(token))}
				}
			}
			resumes := func(token, last string) answer {
				t.Helper()
				return send(t, client, "GET", at, "", append(session[token], bearer(token), "Accept: text/event-stream", "Last-Event-Id: "+last)...)
			}
			stream := post(t, at, rpc("tools/call", `{"name":"`+tool+`","arguments":{"patient":"victim"},"_meta":{"progressToken":1}}`), append(session[victimToken], bearer(victimToken), acceptBoth)...).body
			_, last, _ := strings.Cut(stream, "id: ")
			last, _, _ = strings.Cut(last, "\n")
			if got := resumes(victimToken, last); got.StatusCode != 200 || !strings.Contains(got.body, "results of victim") {
				t.Errorf("the victim goes on after %q and gets %d %s", last, got.StatusCode, got.body)
			}
			for _, last := range append(guesses, last) {
				if got := resumes(thiefToken, last); got.StatusCode != 400 || strings.Contains(got.body, "victim") {
					t.Errorf("the thief goes on after %q and gets %d %s", last, got.StatusCode, got.body)
				}
			}
		})
	}
}
