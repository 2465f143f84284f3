package stdio

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// answering answers roots/list and drops sampling/createMessage.
func answering(method string) (result []byte, ours bool) {
	switch method {
	case "roots/list":
		return RootsResult([]string{"file:///w"}), true
	case "sampling/createMessage":
		return nil, true
	}
	return nil, false
}

func TestServerRequestsAreAnsweredLocally(t *testing.T) { // A59
	const roots = `{"roots":[{"uri":"file:///w"}]}`
	for _, tt := range []struct{ name, capabilities, method, want string }{
		{"roots without a session", "", "roots/list", roots},
		{"roots in a session", `{}`, "roots/list", roots},
		{"roots in the session of a client with roots", `{"roots":{}}`, "roots/list", roots},
		{"a dropped method without a session", "", "sampling/createMessage", `"code":-32601`},
		{"a dropped method that the client supports", `{"sampling":{}}`, "sampling/createMessage",
			`"code":-32601`},
		{"a method that is not answered here", "", "elicitation/create", `"code":-32601`},
	} {
		for name, change := range map[string]func(*Config){"": func(*Config) {}, ", with its own child": perSession} {
			t.Run(tt.name+name, func(t *testing.T) {
				p := newPool(t, "", change, func(c *Config) { c.Roots = []string{"file:///other"} })
				p.AnswerWith("alpha:1", answering)
				c := p.client()
				if tt.capabilities != "" {
					c.initialize(tt.capabilities)
				}
				contains(t, "answer", c.call("ask", `{"method":"`+tt.method+`"}`), tt.want)
			})
		}
	}
	t.Run("a server request for the client", func(t *testing.T) {
		p := newPool(t, "")
		p.AnswerWith("alpha:1", answering)
		c := p.client().initialize(`{"elicitation":{}}`)
		r := c.post(toolCall(`1`, "ask", `{"method":"elicitation/create"}`))
		req := r.next()
		contains(t, "server request", req, `"elicitation/create"`)
		c.post(result(idOf(t, req), `{"action":"decline"}`))
		contains(t, "answer", r.last(), "decline")
	})
	t.Run("roots requested during the handshake", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", perSession)
		p.AnswerWith("alpha:1", answering)
		p.client().initialize(`{"roots":{}}`).call("echo", `{}`)
		p.eventually("the child receives roots", func() bool { return strings.Contains(p.messages(), `"result":`+roots) })
	})
	t.Run("another host", func(t *testing.T) {
		p := newPool(t, "")
		p.AnswerWith("beta:1", answering)
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), `{"roots":[]}`)
	})
	t.Run("after the last release", func(t *testing.T) {
		p := newPool(t, "")
		release, other := p.AnswerWith("alpha:1", answering), p.AnswerWith("alpha:1", answering)
		release()
		release()
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), roots)
		other()
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), `{"roots":[]}`)
	})
	t.Run("during concurrent changes", func(t *testing.T) {
		p := newPool(t, "")
		c := p.client()
		var changes sync.WaitGroup
		changes.Go(func() {
			for range 100 {
				p.AnswerWith("alpha:1", answering)()
			}
		})
		c.call("ask", `{"method":"roots/list"}`)
		changes.Wait()
	})
}

// A large response allocates twice its size: once in the buffer of an unfinished line, once for the
// complete line.
func TestMemoryOfLargeResponses(t *testing.T) {
	const size = 32 << 20
	for name, raw := range map[string]string{
		"JSON":     "",
		"an event": `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPuppets(t, func(config *Config) { config.MaxMessage = 2 * size })
			c := p.client().initialize("{}")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := c.post(request(`"theirs"`, "fill", fmt.Sprintf(`{"code":%d,"raw":%s}`, size, quote(raw))))
			n, err := io.Copy(io.Discard, r.Body)
			runtime.ReadMemStats(&after)
			r.Body.Close()
			if err != nil || n < size {
				t.Fatalf("got %d bytes, %v", n, err)
			}
			if times := float64(after.TotalAlloc-before.TotalAlloc) / size; times > 2.2 {
				t.Errorf("allocated %.1f times the size of the response", times)
			}
		})
	}
}
