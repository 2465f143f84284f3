//go:build linux

package chaos

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// model is the endpoint of a model.
const model endpoint = "/v1/chat/completions"

// TestModelFails has a model and its connection fail behind tool_result_mask and
// observation_mask. There, reverse_proxy alone handles timeouts and errors, and the masks must
// not interfere.
func TestModelFails(t *testing.T) {
	const size = 200_000
	stalls := make(chan struct{})
	t.Cleanup(func() { close(stalls) })
	chat := newUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 100 {
				_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", strings.Repeat("x", size/100))
				_ = http.NewResponseController(w).Flush()
				if i == 50 && strings.Contains(string(body), `"stall"`) {
					select {
					case <-r.Context().Done():
					case <-stalls:
					}
					panic(http.ErrAbortHandler)
				}
			}
			_, _ = io.WriteString(w, "data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"received":%d,"choices":[{"message":{"content":%q}}],"usage":{"prompt_tokens":1}}`,
			len(body), strings.Repeat("x", size))
	}))
	link := newLink(t, chat.Listener.Addr().String())
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{chat},
		site: []string{block("handle /patient/*", "observation_mask", block("tool_result_mask", "window_turns 2",
			"buffer_limit 8MiB"), "reverse_proxy "+chat.Listener.Addr().String()), block("handle /v1/*", "observation_mask",
			block("tool_result_mask", "window_turns 2", "buffer_limit 8MiB"),
			block("reverse_proxy "+link.Listen, block("transport http", "dial_timeout 1s", "response_header_timeout 5s",
				"read_timeout 5s")))}, // a busy machine takes a second for a good call
	})
	whole := conversation(`"stream":false`, 60, 2_000)
	streamed := conversation(`"stream":true`, 60, 2_000)
	for _, f := range []struct {
		name, path, body, encoding string
		begin                      func(*faultRun) func()
		class                      string
		budget                     int
	}{
		{name: "refuses connections", begin: link.down, body: whole, class: "502 empty body"},
		{name: "stalls", begin: link.toxic("timeout", `{"timeout":0}`), body: whole, class: "504 empty body"},
		{name: "stalls during a stream", body: strings.Replace(streamed, `"model":"m"`, `"model":"stall"`, 1), class: broken},
		{name: "is cut during a response", begin: link.toxic("limit_data", `{"bytes":50000}`), body: whole, class: broken},
		{name: "is cut during a stream", begin: link.toxic("limit_data", `{"bytes":50000}`), body: streamed, class: broken},
		{name: "resets connections", begin: link.toxic("reset_peer", `{"timeout":0}`), body: whole, class: "502 empty body"},
		{name: "is slow", begin: link.toxic("latency", `{"latency":100,"jitter":50}`), body: streamed, class: "200 done"},
		{name: "gets a conversation beyond buffer_limit", path: "/patient", body: conversation(`"stream":false`, 60,
			160_000), class: "200 received", budget: 256},
		{name: "gets a conversation that nests deeply", path: "/patient", body: `{"messages":` + strings.Repeat("[",
			1_000_000), class: "200 received", budget: 128},
		{name: "gets a compression bomb", path: "/patient", encoding: "gzip",
			body: compressed(conversation(`"stream":false`, 60, byLength(1<<20, 16<<20))), class: "200 received",
			budget: byLength(128, 320)},
	} {
		s.runFault(t, f.name, max(f.budget, 64), func(o *faultRun) {
			end := func() {}
			if f.begin != nil {
				end = f.begin(o)
			}
			client := newClient(t)
			var running sync.WaitGroup
			for range byLength(4, 16) {
				running.Go(func() {
					got := completeChat(t, client, s.url+f.path, f.body, f.encoding)
					o.record(model, got)
					if got.class != f.class {
						o.failOnce(model, "ended with %s, want %s: %.300q", got.class, f.class, got.body)
					}
				})
			}
			running.Wait()
			end()
			if got := completeChat(t, client, s.url, streamed, ""); got.class != "200 done" {
				o.Errorf("after the fault: got %s %.300q", got.class, got.body)
			}
			client.CloseIdleConnections()
		})
	}
}

// conversation returns a request with this many turns and this many characters in each tool result.
func conversation(stream string, turns, size int) string {
	var b strings.Builder
	b.WriteString(`{"model":"m",` + stream + `,"messages":[{"role":"user","content":"go on"}`)
	for i := range turns {
		fmt.Fprintf(&b, `,{"role":"assistant","tool_calls":[{"id":"c%d","type":"function","function":{"name":"read",`+
			`"arguments":"{}"}}]},{"role":"tool","tool_call_id":"c%[1]d","content":"%s"}`, i, strings.Repeat("x", size))
	}
	b.WriteString("]}")
	return b.String()
}

// compressed returns a body in gzip.
func compressed(body string) string {
	var b strings.Builder
	zw := gzip.NewWriter(&b)
	_, _ = io.WriteString(zw, body) // a strings.Builder never fails
	_ = zw.Close()
	return b.String()
}

// completeChat sends a request to the model.
func completeChat(t *testing.T, client *http.Client, url, body, encoding string) (got outcome) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	began := time.Now()
	defer func() { got.took = time.Since(began) }()
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	res, err := client.Do(req)
	if err != nil {
		return outcome{class: "no response", body: err.Error()}
	}
	defer res.Body.Close()
	reply, err := io.ReadAll(res.Body)
	got.body = string(reply)
	switch {
	case ctx.Err() != nil:
		got.class = "never ended"
	case err != nil:
		got.class = broken
	case len(reply) == 0:
		got.class = fmt.Sprint(res.StatusCode, " empty body")
	case strings.HasSuffix(got.body, "[DONE]\n\n"):
		got.class = fmt.Sprint(res.StatusCode, " done")
	case json.Valid(reply):
		got.class = fmt.Sprint(res.StatusCode, " received")
	default:
		got.class = fmt.Sprint(res.StatusCode, " something else")
	}
	return got
}

// TestPrunerFails gives mcp_pruner large texts and a failing reranker: it fails open.
func TestPrunerFails(t *testing.T) {
	reranker := newUpstream(t, new(mcptest.Reranker))
	pruner := func(name, path string) string {
		return block("server "+name, "mask off", block("mcp_pruner", block("backend rerank", "url "+reranker.URL+path,
			"timeout 1s")))
	}
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{reranker},
		gateway: []string{"request_limit 64MiB", block("server pruner", "mask off", "mcp_pruner"),
			pruner("hanging", "/hang"), pruner("trickling", "/slowbody"), pruner("resetting", "/reset"),
			pruner("huge", "/huge")},
	})
	arguments := func(size int) string {
		line := `func handler(w http.ResponseWriter) { fail(w, 500) } // of no consequence\n`
		return `{"text":"` + strings.Repeat(line, size/len(line)) + `","goal_hint":"why does it fail","source_type":"code",` +
			`"options":{"max_prune_ratio":0.5,"min_keep_lines":1,"timeout_ms":2000,"annotate_lines":false,` +
			`"include_markers":true}}`
	}
	fallback := []string{"200 result used_fallback"}
	for _, f := range []struct {
		name, server, arguments string
		ends                    []string // allowed classes
		budget                  int
	}{
		{"a reranker does not respond", "hanging", arguments(20_000), fallback, 64},
		{"a reranker sends half a response", "trickling", arguments(20_000), fallback, 64},
		{"a reranker resets the connection", "resetting", arguments(20_000), fallback, 64},
		{"a reranker sends 16 MiB more than scores", "huge", arguments(20_000), append(fallback, "200 result"), 128},
		// depends on the speed
		{"texts of 2 MB at once", "pruner", arguments(1_900_000), append(fallback, "200 result", "200 forwarded"), 512},
		{"texts beyond max_input_chars", "pruner", arguments(6_000_000), append(fallback, "200 forwarded"), 768},
	} {
		s.runFault(t, f.name, f.budget, func(o *faultRun) {
			var running sync.WaitGroup
			for _, w := range []endpoint{rpc, joinedModern} {
				c := s.initializedClient(t, w)
				for range byLength(2, 4) {
					running.Go(func() {
						got := c.call(o, f.server, "prune_text", f.arguments)
						got.class = strings.TrimSuffix(got.class+" "+map[bool]string{true: "used_fallback"}[strings.Contains(got.text,
							`"used_fallback":true`)], " ")
						o.record(w, got)
						if !slices.Contains(f.ends, got.class) {
							o.failOnce(w, "ended with %s, want %s: %.300q", got.class, f.ends, got.body)
						}
					})
				}
				defer c.http.CloseIdleConnections()
			}
			running.Wait()
		})
	}
}
