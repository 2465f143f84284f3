package stdio

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// event returns the id and the message of the next event of a stream.
func (r *reply) event() (id, message string) {
	r.t.Helper()
	for {
		line, err := r.events.ReadString('\n')
		if err != nil {
			return "", ""
		}
		if text, ok := strings.CutPrefix(line, "id: "); ok {
			id = strings.TrimSpace(text)
		}
		if text, ok := strings.CutPrefix(line, "data: "); ok {
			return id, strings.TrimSpace(text)
		}
	}
}

// A longCall is a call of a puppet that the test lets respond later.
type longCall struct {
	*reply
	c      *client
	id     string // the id that the child received
	hangUp context.CancelFunc
}

// step returns the message by which the child reports progress of a call.
func step(id string, n int) string {
	return fmt.Sprintf(
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`+
			"\n",
		id,
		n,
	)
}

// startLongCall makes a call and returns after its first event.
func (c *client) startLongCall() *longCall {
	c.p.t.Helper()
	ctx, hangUp := context.WithCancel(c.ctx)
	r := c.with(ctx).post(request(`"long"`, "say", `{"raw":`+quote(step("$ID", 1))+`,"_meta":{"progressToken":"t"}}`))
	call := &longCall{reply: r, c: c, hangUp: hangUp}
	for _, message := range call.input() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.Unmarshal([]byte(message), &m)
		if m.Method == "say" {
			call.id = string(m.ID)
		}
	}
	return call
}

// input returns the messages that the child has received.
func (call *longCall) input() (all []string) {
	call.t.Helper()
	var m struct{ Result []string }
	if err := json.Unmarshal([]byte(call.c.post(request(`"h"`, "heard", `{}`)).last()), &m); err != nil {
		call.t.Fatal(err)
	}
	return m.Result
}

// write makes the child write raw.
func (call *longCall) write(raw string) {
	call.t.Helper()
	call.c.post(request(`"s"`, "fill", `{"raw":`+quote(raw)+`}`)).last()
}

// respond makes the child respond to the call.
func (call *longCall) respond() {
	call.t.Helper()
	call.write(`{"jsonrpc":"2.0","id":` + call.id + `,"result":{"done":true}}` + "\n")
}

// leave closes the connection.
func (call *longCall) leave() {
	call.hangUp()
	call.Body.Close()
}

// resume requests the events of the call after an id.
func (call *longCall) resume(after string) *reply {
	call.t.Helper()
	res, err := call.c.do(http.MethodGet, "", "Accept", "text/event-stream", "Last-Event-Id", after)
	if err != nil {
		call.t.Fatal(err)
	}
	return newReply(call.t, res)
}

const answer = `{"jsonrpc":"2.0","id":"long","result":{"done":true}}`

// progress returns a step as the client receives it.
func progress(n int) string { return strings.TrimSpace(step(`"t"`, n)) }

func TestCallsAreResumed(t *testing.T) {
	for _, change := range []func(*Config){func(*Config) {}, perSession} {
		p := newPuppets(t, change)
		call := p.client().initialize(`{}`).startLongCall()
		first, message := call.event()
		equal(t, "first event", message, progress(1))
		call.write(step(call.id, 2))
		second, message := call.event()
		equal(t, "second event", message, progress(2))
		call.leave()
		call.write(step(call.id, 3)) // while the client is away

		// The client may have lost the last events.
		rest := call.resume(first)
		for n := 2; n <= 3; n++ {
			_, message = rest.event()
			equal(t, "event", message, progress(n))
		}
		again := call.resume(second) // the gateway does not know yet that the connection is broken
		third, message := again.event()
		equal(t, "event", message, progress(3))
		call.respond()
		last, message := again.event()
		equal(t, "answer", message, answer)
		equal(t, "end", again.next(), "")
		equal(t, "end of the earlier stream", rest.next(), "")

		// The client may also have lost the response.
		rest = call.resume(third)
		_, message = rest.event()
		equal(t, "answer", message, answer)
		equal(t, "end", rest.next(), "")
		equal(t, "after the answer", call.resume(last).next(), "")
		for _, message := range call.input() {
			if strings.Contains(message, "cancelled") {
				t.Errorf("the child received %s", message)
			}
		}
	}
}

func TestCallsThatCannotBeResumed(t *testing.T) {
	p := newPuppets(t)
	refused := func(what string, r *reply) {
		t.Helper()
		equal(t, what, r.StatusCode, http.StatusBadRequest)
		r.Body.Close()
	}
	t.Run("in another session", func(t *testing.T) {
		call := p.client().initialize(`{}`).startLongCall()
		id, _ := call.event()
		call.leave()
		other := *call
		other.c = p.client().initialize(`{}`)
		refused("status", other.resume(id))
		refused("an event that was not sent", call.resume(strings.TrimSuffix(id, "1")+"7"))
		call.respond()
		_, message := call.resume(id).event()
		equal(t, "answer", message, answer)
	})
	t.Run("canceled", func(t *testing.T) {
		call := p.client().initialize(`{}`).startLongCall()
		id, _ := call.event()
		call.leave()
		call.c.post(notification("notifications/cancelled", `{"requestId":"long"}`)).Body.Close()
		refused("status", call.resume(id))
		contains(t, "received", strings.Join(call.input(), "\n"), `"notifications/cancelled","params":{"requestId":`+call.id)
	})
	t.Run("in a closed session", func(t *testing.T) {
		call := p.client().initialize(`{}`).startLongCall()
		call.event()
		call.leave()
		res, err := call.c.do(http.MethodDelete, "")
		if err != nil || res.StatusCode != http.StatusNoContent {
			t.Fatal(res, err)
		}
		call.c = p.client().initialize(`{}`)
		p.eventually("the child receives the cancellation", func() bool {
			return strings.Contains(strings.Join(call.input(), "\n"), `"notifications/cancelled","params":{"requestId":`+call.id)
		})
	})
	t.Run("with too many events to keep", func(t *testing.T) {
		call := p.client().initialize(`{}`).startLongCall()
		first, _ := call.event()
		large := strings.Replace(
			step(call.id, 2),
			`"progress":2`,
			`"progress":2,"message":"`+strings.Repeat("x",
				maxReplayed)+`"`,
			1,
		)
		call.write(large)
		second, _ := call.event()
		call.leave()
		refused("status", call.resume(first))
		call.respond()
		_, message := call.resume(second).event()
		equal(t, "answer", message, answer)
	})
	t.Run("after a timeout", func(t *testing.T) {
		c := p.client().initialize(`{}`)
		ctx, cancel := context.WithTimeoutCause(c.ctx, time.Hour, nil)
		defer cancel()
		caused, end := context.WithCancelCause(ctx)
		call := c.with(caused).startLongCall()
		id, _ := call.event()
		end(context.DeadlineExceeded)
		call.Body.Close()
		call.c = c
		refused("status", call.resume(id))
		contains(t, "received", strings.Join(call.input(), "\n"), `"notifications/cancelled","params":{"requestId":`+call.id)
	})
	t.Run("with too many calls to keep", func(t *testing.T) {
		c := p.client().initialize(`{}`)
		var ids []string
		var calls []*longCall
		for range maxDetached + 1 {
			call := c.startLongCall()
			id, _ := call.event()
			call.leave()
			ids, calls = append(ids, id), append(calls, call)
		}
		refused("the last", calls[maxDetached].resume(ids[maxDetached]))
		calls[0].respond()
		_, message := calls[0].resume(ids[0]).event()
		equal(t, "answer", message, answer)
	})
}

// A call ends if its client does not come back in time.
func TestResumableCallsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := quota.NewMeter(sessionQuota, quota.Limits{Bytes: 1, OwnerBytes: 1})
		defer kept.Close()
		s := &session{memory: account{meter: kept}}
		s.events = keptEvents{memory: &s.memory, byNumber: map[uint64]*callEvents{}, detached: map[*callEvents]detachment{}}
		waiting := &call{session: s, inbox: newInbox("", maxUnread), id: 1}
		c := newChild(&server{pool: &Pool{}}, &process{})
		c.calls.waiting[1] = waiting
		events := s.events.add(c, waiting)
		st := newStream(t.Context(), waiting.inbox, func() bool { return false })
		events.startStream(st, letter{message: frame{[]byte("x")}})
		time.Sleep(2 * resumeTime) // the client is connected
		if !events.detach(st, context.Canceled) {
			t.Error("the call is not kept")
		}
		time.Sleep(resumeTime - 1)
		other := newStream(t.Context(), waiting.inbox, func() bool { return false })
		if !events.resume(other, 0) {
			t.Error("the call cannot be resumed")
		}
		s.events.attach(events)
		events.detach(other, nil) // a write has failed before the request was canceled
		if s.memory.bytes != 1 || kept.Fits("", 1) {
			t.Errorf("%d bytes are counted", s.memory.bytes)
		}
		time.Sleep(resumeTime + 1)
		synctest.Wait()
		if events.resume(st, 0) || len(s.events.byNumber)+len(s.events.detached) != 0 ||
			c.calls.waiting[1] != nil || s.memory.bytes != 0 || !kept.Fits("", 1) {
			t.Errorf("the call is kept: %v, %v", s.events.byNumber, c.calls.waiting)
		}
	})
}

// Events that make room for others are not kept for longer than they are counted.
func TestDroppedEventsAreFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := quota.NewMeter(sessionQuota, quota.Limits{})
		defer kept.Close()
		s := &session{memory: account{meter: kept}}
		s.events = keptEvents{memory: &s.memory, byNumber: map[uint64]*callEvents{}, detached: map[*callEvents]detachment{}}
		c := newChild(&server{pool: &Pool{}}, &process{})
		var all []*callEvents
		for range maxDetached + 1 {
			ended := &call{session: s, inbox: newInbox("", maxUnread)}
			events := s.events.add(c, ended)
			st := newStream(t.Context(), ended.inbox, func() bool { return false })
			events.startStream(st, letter{message: frame{[]byte("x")}})
			ended.inbox.End(letter{message: frame{[]byte("y")}})
			events.take(st)
			if !events.detach(st, nil) {
				t.Error("the events are not kept")
			}
			all = append(all, events)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		ended := 0
		for _, events := range all {
			if events.unavailable {
				ended++
			} else {
				events.end() // stops its timer
			}
		}
		if ended != 1 || s.memory.bytes != 2*maxDetached {
			t.Errorf("%d of %d ended, and %d bytes are counted", ended, len(all), s.memory.bytes)
		}
	})
}
