package stdio

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// answering answers some server requests.
func answering(method string) (result []byte, ours bool) {
	switch method {
	case "roots/list":
		return RootsResult([]string{"file:///w"}), true
	case "sampling/createMessage":
		return nil, true
	}
	return nil, false
}

func TestQuestionsAreAnsweredWhereTheyAreAsked(t *testing.T) { // A59
	const roots = `{"roots":[{"uri":"file:///w"}]}`
	for _, tt := range []struct{ name, capabilities, method, want string }{
		{"roots without a session", "", "roots/list", roots},
		{"roots in a session", `{}`, "roots/list", roots},
		{"roots in the session of a client that has some", `{"roots":{}}`, "roots/list", roots},
		{"what is dropped without a session", "", "sampling/createMessage", `"code":-32601`},
		{"what is dropped in the session of a client that could", `{"sampling":{}}`, "sampling/createMessage",
			`"code":-32601`},
		{"what is left to others", "", "elicitation/create", `"code":-32601`},
	} {
		for name, change := range map[string]func(*Config){"": func(*Config) {}, ", of its own child": perSession} {
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
	t.Run("what is left to the client", func(t *testing.T) {
		p := newPool(t, "")
		p.AnswerWith("alpha:1", answering)
		c := p.client().initialize(`{"elicitation":{}}`)
		r := c.post(toolCall(`1`, "ask", `{"method":"elicitation/create"}`))
		question := r.next()
		contains(t, "question", question, `"elicitation/create"`)
		c.post(result(idOf(t, question), `{"action":"decline"}`))
		contains(t, "answer", r.last(), "decline")
	})
	t.Run("before any client is there", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", perSession)
		p.AnswerWith("alpha:1", answering)
		p.client().initialize(`{"roots":{}}`).call("echo", `{}`)
		p.eventually("the child has its roots", func() bool { return strings.Contains(p.messages(), `"result":`+roots) })
	})
	t.Run("of one host only", func(t *testing.T) {
		p := newPool(t, "")
		p.AnswerWith("beta:1", answering)
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), `{"roots":[]}`)
	})
	t.Run("no longer after the last release", func(t *testing.T) {
		p := newPool(t, "")
		release, other := p.AnswerWith("alpha:1", answering), p.AnswerWith("alpha:1", answering)
		release()
		release()
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), roots)
		other()
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), `{"roots":[]}`)
	})
	t.Run("while it is changed", func(t *testing.T) {
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

// A large answer takes twice its size on its way to the client: what is read of a line whose
// end is not known yet, and the line.
func TestMemoryOfLargeAnswers(t *testing.T) {
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
				t.Errorf("it took %.1f times its size", times)
			}
		})
	}
}
