package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// unread returns the number of responses that hold long messages that were not read.
func unread() int64 {
	for _, kind := range quota.Kinds() {
		if kind.Name == "unread_answers" {
			return kind.Usage().Entries
		}
	}
	return -1
}

// The memory of responses that a client does not read is limited, and leaves room for other
// clients. A client that does not read does not block the child.
func TestUnreadAnswersAreLimited(t *testing.T) {
	const size, fit = 10 << 20, 3 // fit in half of the 64 MiB that TestMain sets
	progress := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}` + "\n"
	for name, raw := range map[string]string{"JSON": "", "events": progress} {
		t.Run(name, func(t *testing.T) {
			p := newPuppets(t)
			answer := func(owner string, size int) (*http.Response, error) {
				c := p.client()
				return c.with(WithOwner(c.ctx, owner)).
					do(http.MethodPost, request(`1`, "fill", fmt.Sprintf(`{"code":%d,"raw":%s}`,
						size, quote(raw))))
			}
			var open []io.Closer
			hold := func(owner string, size int) {
				t.Helper()
				before := unread()
				res, err := answer(owner, size)
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, res.Body)
				p.eventually("the response is complete", func() bool { return unread() == before+1 })
			}
			for range fit {
				hold("alice", size)
			}
			res, err := answer("alice", size)
			if raw == "" {
				if failure, ok := errors.AsType[*jsonrpc.Failure](err); !ok || failure.Status != http.StatusServiceUnavailable ||
					failure.RetryAfter == 0 {
					t.Errorf("one response too many: %v", err)
				}
			} else {
				contains(t, "one response too many", newReply(t, res).last(), `"code":"busy"`)
			}
			res, err = answer("alice", 1000)
			if err != nil {
				t.Fatal(err)
			}
			contains(t, "small response", newReply(t, res).last(), `"result":"xxx`)
			hold("bob", size)
			equal(t, "unread", unread(), fit+1)
			open[0].Close()
			open[0].Close()
			equal(t, "unread after one was closed", unread(), fit)
			hold("alice", size)
			for _, body := range open {
				body.Close()
			}
			equal(t, "unread after all were closed", unread(), 0)
		})
	}
}

// Responses count until they are read or their session ends.
func TestResponsesCountUntilRead(t *testing.T) {
	p := newPuppets(t)
	long := `{"code":200000}`
	for range 3 {
		p.client().post(request(`1`, "fill", long)).whole()
	}
	c := p.client().initialize("{}")
	ctx, leave := context.WithCancel(c.ctx)
	res, err := c.with(ctx).do(http.MethodPost, request(`1`, "fill", `{"code":200000,"raw":`+
		quote(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`+"\n")+`}`))
	if err != nil {
		t.Fatal(err)
	}
	p.eventually("the response is complete", func() bool { return unread() == 1 })
	leave()
	res.Body.Close()
	equal(t, "kept while the client is away", unread(), 1)
	if _, err := c.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	equal(t, "unread after the session", unread(), 0)
}
