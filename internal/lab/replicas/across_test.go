//go:build linux

package replicas

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestAcross begins things at one replica and goes on at another, where the balancer would do so by chance.
func TestAcross(t *testing.T) {
	redis := replicastest.StartRedis(t)
	w := several(t, 2, "redis://"+redis.Addr)
	w.servers.legacy.Forgetful = false
	a, b := w.replicas[0], w.replicas[1]
	defer connections.CloseIdleConnections()
	for i, test := range []struct {
		name   string
		modern bool
		run    func(*testing.T, *traveller)
	}{
		{"a session ends", false, func(t *testing.T, c *traveller) {
			c.at(b).mustCall(t, "legacy__echo", `{"text":"before"}`)
			c.at(a).end(t)
			await.Until(t, "the session to be over at the other replica", func() bool {
				return c.at(b).Begin(t.Context(), "tools/list", "{}").Finish().Status == http.StatusNotFound
			})
		}},
		{"a list changes", false, func(t *testing.T, c *traveller) {
			// A replica listens to its children for clients that have streams there, as another session of
			// this one has.
			other := newTraveller(t, c.number, false, a)
			other.mustCall(t, "child__echo", `{}`)
			heard := other.listen(t)
			defer heard.HangUp()
			other.Begin(t.Context(), "tools/list", "{}").Finish()
			stream := c.at(b).listen(t)
			c.Begin(t.Context(), "tools/list", "{}").Finish() // else there is nothing that could change
			defer stream.HangUp()
			c.at(a).mustCall(t, "child__add-tool", `{"name":"more"}`)
			await.Until(t, "the other replica to tell of it", func() bool {
				select {
				case m := <-stream.Messages:
					return m.Method == "notifications/tools/list_changed"
				case <-time.After(time.Second):
					return false
				}
			})
		}},
		{"a call is cancelled", false, func(t *testing.T, c *traveller) {
			x := c.at(a).Begin(t.Context(), "tools/call", toolCall("legacy__hang", "{}"))
			defer x.HangUp()
			await.Until(t, "the call", func() bool { return len(w.servers.legacy.Seen("hanging")) > 0 })
			if err := c.at(b).Notify(t.Context(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+x.ID+`}}`); err != nil {
				t.Fatal(err)
			}
			await.Until(t, "its end", func() bool { return len(w.servers.legacy.Seen("cancelled")) > 0 })
		}},
		{"a child asks, legacy", false, func(t *testing.T, c *traveller) { c.answersAt(t, "asker", a, b) }},
		{"a legacy server asks, legacy", false, func(t *testing.T, c *traveller) { c.answersAt(t, "legacy", a, b) }},
		{"a modern server asks, legacy", false, func(t *testing.T, c *traveller) { c.answersAt(t, "modern", a, b) }},
		{"a child asks, modern", true, func(t *testing.T, c *traveller) { c.answersAt(t, "asker", a, b) }},
		{"a legacy server asks, modern", true, func(t *testing.T, c *traveller) { c.answersAt(t, "legacy", a, b) }},
		{"a modern server asks, modern", true, func(t *testing.T, c *traveller) { c.answersAt(t, "modern", a, b) }},
		{"an original is asked for at once", true, func(t *testing.T, c *traveller) {
			for i := range 50 {
				got := c.at(a).mustCall(t, "legacy__echo", fmt.Sprintf(`{"text":"%d %s"}`, i, strings.Repeat("long ", 500)))
				c.at(b).mustCall(t, "recover_observation", `{"id":"`+originalID.FindString(got.Raw)+`"}`)
			}
		}},
		{"a large original", true, func(t *testing.T, c *traveller) {
			text := strings.Repeat("0123456789", 400_000)
			got := c.at(a).mustCall(t, "legacy__echo", `{"text":"`+text+`"}`)
			read := c.at(b).Begin(t.Context(), "resources/read", `{"uri":"proxy://observation/`+originalID.FindString(got.Raw)+`"}`).Finish()
			if !strings.Contains(read.Raw, text) {
				t.Errorf("%d bytes came back: %.300s", len(read.Raw), read.Raw)
			}
		}},
		{"another client's original", true, func(t *testing.T, c *traveller) {
			got := c.at(a).mustCall(t, "legacy__echo", `{"text":"`+strings.Repeat("secret ", 500)+`"}`)
			id := originalID.FindString(got.Raw)
			c.at(b).mustCall(t, "recover_observation", `{"id":"`+id+`"}`)
			other := newTraveller(t, 39, true, b)
			if got := other.call(t, "recover_observation", `{"id":"`+id+`"}`); !strings.Contains(got.Raw, `"isError":true`) && got.Error == nil || strings.Contains(got.Raw, "secret") {
				t.Errorf("got %.300s", got.Raw)
			}
		}},
		{"a hosted template", true, func(t *testing.T, c *traveller) {
			res, err := http.Post(a.admin+"/mcp_gateway/templates", "application/json",
				strings.NewReader(`{"gateway":"gateway","name":"runbook","uriTemplate":"runbook://{service}","text":"Ask {service}."}`))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusCreated {
				t.Fatalf("%d %s", res.StatusCode, text)
			}
			await.Until(t, "the template at the other replica", func() bool {
				return strings.Contains(c.at(b).Begin(t.Context(), "resources/templates/list", "{}").Finish().Raw, "runbook")
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newTraveller(t, i, test.modern, a)) })
	}
}

// A traveller is a client that chooses its replica.
type traveller struct {
	*mcpclient.Client
	*agent
}

func newTraveller(t *testing.T, number int, modern bool, first *caddy) *traveller {
	t.Helper()
	client := newClient(number, modern)
	c := &traveller{client, &agent{number: number}}
	c.at(first)
	if !modern {
		if _, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// at has the next requests go to a replica. No request may be on its way.
func (c *traveller) at(replica *caddy) *traveller {
	c.URL = replica.url + "/mcp"
	return c
}

// end ends the session.
func (c *traveller) end(t *testing.T) {
	t.Helper()
	req, err := mcpclient.NewRequest(t.Context(), http.MethodDelete, c.URL, "", c.Headers...)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
}

// call calls a tool that asks nothing.
func (c *traveller) call(t *testing.T, tool, arguments string) mcpclient.Answer {
	t.Helper()
	got := c.Begin(t.Context(), "tools/call", toolCall(tool, arguments)).Finish()
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got
}

// mustCall calls a tool that has to succeed.
func (c *traveller) mustCall(t *testing.T, tool, arguments string) mcpclient.Answer {
	t.Helper()
	got := c.call(t, tool, arguments)
	if got.Result == nil || strings.Contains(got.Raw, `"isError":true`) {
		t.Fatalf("%s at %s: %d %.500s", tool, c.URL, got.Status, got.Body)
	}
	return got
}

// listen opens the stream of the session.
func (c *traveller) listen(t *testing.T) *mcpclient.Exchange {
	t.Helper()
	x := c.Listen(t.Context())
	<-x.Opened
	if x.Err != nil || x.Status != http.StatusOK {
		t.Fatalf("the stream: %d %v", x.Status, x.Err)
	}
	return x
}

// answersAt calls a tool at one replica, and answers its questions at another one.
func (c *traveller) answersAt(t *testing.T, server string, called, answered *caddy) {
	t.Helper()
	asked := 0
	params := toolCall(server+"__ask", `{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}},"times":2}`)
	attempt := params
	var got mcpclient.Answer
	for range 3 {
		got = c.Converse(t.Context(), c.at(called).begin(t, attempt), func(method string, params json.RawMessage) string {
			asked++
			c.at(answered)
			return c.answer(method, string(params))
		})
		if !c.Modern || !strings.Contains(got.Raw, `"input_required"`) {
			break
		}
		asked++
		attempt = got.Input(t).Retry(params, func(method string, params json.RawMessage) string { return c.answer(method, string(params)) })
		called, answered = answered, called
	}
	if want := `[{\"action\":\"accept\",\"content\":{}},{\"action\":\"accept\",\"content\":{}}]`; !strings.Contains(got.Raw, want) || asked != 2 {
		t.Errorf("asked %d times, got %d %.500s, error %v", asked, got.Status, got.Body, got.Err)
	}
}

// begin begins a call, and returns when its response has begun, so that the next request can go elsewhere.
func (c *traveller) begin(t *testing.T, params string) *mcpclient.Exchange {
	t.Helper()
	x := c.Begin(t.Context(), "tools/call", params)
	<-x.Opened
	return x
}
