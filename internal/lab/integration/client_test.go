package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// A speaker is a client of either era that reads what it asked for, message by message.
type speaker struct{ *mcpclient.Client }

// canAll are the capabilities of a client that can be asked everything.
const canAll = `{"roots":{},"sampling":{},"elicitation":{"form":{}}}`

// clients of both eras, which tests run with.
var clientEras = []struct {
	name   string
	modern bool
}{{"legacy client", false}, {"modern client", true}}

func newSpeaker(t *testing.T, at string, modern bool, capabilities string, headers ...string) *speaker {
	t.Helper()
	return newSpeakerBy(t, lasting, at, modern, capabilities, headers...)
}

// newSpeakerBy is newSpeaker with another client of HTTP.
func newSpeakerBy(t *testing.T, by *http.Client, at string, modern bool, capabilities string, headers ...string) *speaker {
	t.Helper()
	c := &speaker{&mcpclient.Client{URL: at, Modern: modern, Capabilities: capabilities, Headers: headers, HTTP: by}}
	if modern {
		return c
	}
	if got, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil || c.Session == "" {
		t.Fatalf("initialize: got %d %v, error %v, want a session", got.Status, got.Header, err)
	}
	return c
}

// A dialogue is a request whose response is read message by message.
type dialogue struct{ *mcpclient.Exchange }

// begin makes a request and leaves the response to be read.
func (c *speaker) begin(t *testing.T, method, params string, headers ...string) *dialogue {
	t.Helper()
	return &dialogue{c.Begin(t.Context(), method, params, headers...)}
}

// listen opens the stream of a session.
func (c *speaker) listen(t *testing.T) *dialogue {
	t.Helper()
	return &dialogue{c.Listen(t.Context())}
}

// listens opens a stream by which a client of either era hears of changes.
func (c *speaker) listens(t *testing.T) *dialogue {
	t.Helper()
	if !c.Modern {
		d := c.listen(t)
		wait(t, d.Opened, "the stream")
		return d
	}
	d := c.begin(t, "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
	d.hears(t, "notifications/subscriptions/acknowledged")
	return d
}

// next returns the next message.
func (d *dialogue) next(t *testing.T) mcpclient.Message {
	t.Helper()
	select {
	case m, ok := <-d.Messages:
		if !ok {
			t.Fatalf("the response ended with status %d, %v, want a message", d.Status, d.Err)
		}
		return m
	case <-time.After(patience):
		t.Fatal("waited in vain for a message")
		return mcpclient.Message{}
	}
}

// hears waits for a message of a method in a response that must not end.
func (d *dialogue) hears(t *testing.T, method string) mcpclient.Message {
	t.Helper()
	for {
		if m := d.next(t); m.Method == method {
			return m
		}
	}
}

// silent fails the test if there was anything in the response since.
func (d *dialogue) silent(t *testing.T) {
	t.Helper()
	select {
	case m, ok := <-d.Messages:
		t.Errorf("heard %q, ended: %t, want silence", m.Raw, !ok)
	default:
	}
}

// ended waits for the end of the response, whatever comes before.
func (d *dialogue) ended(t *testing.T) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-d.Messages:
			if !ok {
				return
			}
		case <-timer.C:
			t.Fatal("waited in vain for the end of the response")
		}
	}
}

// A said is a response that has been read up to its answer.
type said struct {
	status int
	header http.Header
	events []mcpclient.Message // before the answer
	answer mcpclient.Message
}

// finish reads the response up to its answer.
func (d *dialogue) finish(t *testing.T) (got said) {
	t.Helper()
	for {
		m := d.next(t)
		if m.Method == "" {
			got.status, got.header, got.answer = d.Status, d.Header, m
			return got
		}
		got.events = append(got.events, m)
	}
}

// ask makes a request and returns all that comes of it.
func (c *speaker) ask(t *testing.T, method, params string, headers ...string) said {
	t.Helper()
	d := c.begin(t, method, params, headers...)
	got := d.finish(t)
	if string(got.answer.ID) != d.ID {
		t.Errorf("%s: got %s, want an answer with id %s", method, got.answer.Raw, d.ID)
	}
	return got
}

// callOf returns the params of a tools/call.
func callOf(server, tool, arguments string, members ...string) string {
	return "{" + strings.Join(append([]string{`"name":` + quote(server+"__"+tool), `"arguments":` + arguments}, members...), ",") + "}"
}

// use calls a tool and returns the text of its result.
func (c *speaker) use(t *testing.T, server, tool, arguments string) string {
	t.Helper()
	got := c.ask(t, "tools/call", callOf(server, tool, arguments))
	if got.status != 200 {
		t.Errorf("%s of %s: got status %d, want 200", tool, server, got.status)
	}
	return got.answer.Text()
}

// say posts a message that wants no answer.
func (c *speaker) say(t *testing.T, message string) {
	t.Helper()
	if err := c.Notify(t.Context(), message); err != nil {
		t.Error(err)
	}
}

// replyTo answers a question of a server.
func (c *speaker) replyTo(t *testing.T, question mcpclient.Message, result string) {
	t.Helper()
	c.say(t, `{"jsonrpc":"2.0","id":`+string(question.ID)+`,"result":`+result+`}`)
}

// retried returns the params of a call that is made again with the answers to what it
// asked for.
func retried(params string, in mcpclient.Input, answer func(method string) string) string {
	return in.Retry(params, func(method string, _ json.RawMessage) string { return answer(method) })
}

// legacyClient is a client of the revisions with sessions. It writes down what servers
// send unasked, on whichever stream, and answers what they ask.
type legacyClient struct {
	t *testing.T
	*legacySession
}

// legacySession is what all tests share that use the same client.
type legacySession struct {
	*mcpclient.Client
	t     *testing.T // the outermost
	hello mcpclient.Answer

	mu      sync.Mutex
	answers func(asked mcpclient.Message) string
	heard   []mcpclient.Message
}

const everyCapability = `{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}`

// joinAll begins a session of a client with these capabilities, and opens its stream
// for what servers send unasked.
func joinAll(t *testing.T, url, capabilities string) *legacyClient {
	t.Helper()
	c := newLegacyClient(t, url, capabilities)
	c.listen()
	return c
}

// newLegacyClient begins a session.
func newLegacyClient(t *testing.T, url, capabilities string) *legacyClient {
	t.Helper()
	c := unknownClient(t, url, capabilities)
	c.initialize(mcpclient.Legacy)
	return c
}

// unknownClient is a client before it has a session.
func unknownClient(t *testing.T, url, capabilities string) *legacyClient {
	return &legacyClient{t, &legacySession{t: t, Client: &mcpclient.Client{URL: joinedAt(url), Capabilities: capabilities, HTTP: lasting}}}
}

func (c *legacyClient) initialize(version string) {
	c.t.Helper()
	var err error
	c.hello, err = c.Initialize(c.legacySession.t.Context(), version)
	if err != nil || c.Session == "" {
		c.t.Fatalf("initialize: got %d %v, error %v, want a session", c.hello.Status, c.hello.Header, err)
	}
}

// in is the client in a test within the one that it was made for.
func (c *legacyClient) in(t *testing.T) *legacyClient { return &legacyClient{t, c.legacySession} }

// answer has what servers ask answered. The function returns the members of the
// answer, or nothing to leave it open.
func (s *legacySession) answer(with func(asked mcpclient.Message) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = with
}

// begin sends a request, whose answer is waited for later.
func (c *legacyClient) begin(id, method, params string) <-chan mcpclient.Answer {
	message, _ := c.Message(id, method, params)
	return c.send(message)
}

func (c *legacyClient) beginCall(tool, arguments string) <-chan mcpclient.Answer {
	return c.begin(c.NextID(), "tools/call", `{"name":`+quote(tool)+`,"arguments":`+arguments+`}`)
}

// send posts a message.
func (s *legacySession) send(message string) <-chan mcpclient.Answer {
	answers := make(chan mcpclient.Answer, 1)
	go func() { answers <- s.read(s.Post(s.t.Context(), message)) }()
	return answers
}

// read reads a response to its end. What servers say unasked is kept.
func (s *legacySession) read(x *mcpclient.Exchange) mcpclient.Answer {
	var answer mcpclient.Message
	for m := range x.Messages {
		if m.Method == "" {
			answer = m
			continue
		}
		s.mu.Lock()
		s.heard = append(s.heard, m)
		answers := s.answers
		s.mu.Unlock()
		if m.ID != nil && answers != nil {
			go func() {
				if members := answers(m); members != "" {
					<-s.send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,` + members + `}`)
				}
			}()
		}
	}
	got := x.Finish()
	got.Message = answer
	return got
}

// listen opens the stream of the session, and opens it again if it ends, as clients do.
func (c *legacyClient) listen() {
	c.t.Helper()
	ctx := c.legacySession.t.Context()
	stream := c.Listen(ctx)
	<-stream.Opened
	if stream.Status != 200 || !strings.HasPrefix(stream.Header.Get("Content-Type"), "text/event-stream") {
		c.t.Fatalf("GET: got %d %v, want an event stream", stream.Status, stream.Header)
	}
	go func() {
		pause := time.NewTicker(10 * time.Millisecond)
		defer pause.Stop()
		for ctx.Err() == nil {
			c.read(stream)
			<-pause.C
			stream = c.Listen(ctx)
		}
	}()
}

// await waits for the answer to a request.
func (c *legacyClient) await(answers <-chan mcpclient.Answer) mcpclient.Answer {
	c.t.Helper()
	select {
	case got := <-answers:
		return got
	case <-time.After(2 * patience):
		c.t.Fatal("waited in vain for an answer")
		return mcpclient.Answer{}
	}
}

// ask sends a request and waits for its answer, which must have its id.
func (c *legacyClient) ask(method, params string) mcpclient.Answer {
	c.t.Helper()
	id := c.NextID()
	got := c.await(c.begin(id, method, params))
	if got.Err != nil || string(got.ID) != id || (got.Result == nil) == (got.Error == nil) {
		c.t.Fatalf("%s: got %d %.500s, error %v, want an answer with id %s", method, got.Status, got.Body, got.Err, id)
	}
	return got
}

// result asks for a result.
func (c *legacyClient) result(method, params string) string {
	c.t.Helper()
	got := c.ask(method, params)
	if got.Error != nil || got.Status != 200 {
		c.t.Fatalf("%s %s: got %d %.500s, want a result", method, params, got.Status, got.Raw)
	}
	return string(got.Result)
}

// fails asks for what must be refused with this code, and status 200.
func (c *legacyClient) fails(method, params string, code int) mcpclient.Answer {
	c.t.Helper()
	got := c.ask(method, params)
	if got.Error == nil || got.Error.Code != code || got.Error.Message == "" || got.Status != 200 {
		c.t.Errorf("%s %s: got %d %.500s, want 200 and error %d", method, params, got.Status, got.Raw, code)
	}
	return got
}

// use calls a tool and returns the text of its result.
func (c *legacyClient) use(tool, arguments string) string {
	c.t.Helper()
	return toolText(c.t, `{"result":`+c.result("tools/call", `{"name":`+quote(tool)+`,"arguments":`+arguments+`}`)+`}`)
}

// notify sends a notification.
func (c *legacyClient) notify(method, params string) {
	c.t.Helper()
	if params != "" {
		params = `,"params":` + params
	}
	if err := c.Notify(c.legacySession.t.Context(), `{"jsonrpc":"2.0","method":`+quote(method)+params+`}`); err != nil {
		c.t.Fatal(err)
	}
}

// heardOf returns what was heard of a method so far.
func (c *legacyClient) heardOf(method string) (found []mcpclient.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.heard {
		if m.Method == method {
			found = append(found, m)
		}
	}
	return found
}

// hears waits until so many messages of a method were heard, and returns them.
func (c *legacyClient) hears(method string, n int) []mcpclient.Message {
	c.t.Helper()
	await.Until(c.t, fmt.Sprintf("%d × %s", n, method), func() bool { return len(c.heardOf(method)) >= n })
	return c.heardOf(method)
}

// pages lists everything, page by page. The params are those besides the cursor.
func (c *legacyClient) pages(method, params string) (pages [][]json.RawMessage, cursors []string) {
	c.t.Helper()
	kind := strings.TrimSuffix(method, "/list")
	if kind == "resources/templates" {
		kind = "resourceTemplates"
	}
	next := ""
	for {
		all := strings.Trim(params+next, ",")
		var page map[string]json.RawMessage
		text := c.result(method, `{`+all+`}`)
		var items []json.RawMessage
		if err := errors.Join(json.Unmarshal([]byte(text), &page), json.Unmarshal(page[kind], &items)); err != nil || page[kind][0] != '[' {
			c.t.Fatalf("%s: got %.500s, error %v, want a page", method, text, err)
		}
		pages = append(pages, items)
		if page["nextCursor"] == nil {
			return pages, cursors
		}
		var cursor string
		if err := json.Unmarshal(page["nextCursor"], &cursor); err != nil || len(cursors) > 20_000 {
			c.t.Fatalf("%s: after %d pages got %.500s, error %v, want a cursor, and an end at last", method, len(cursors), text, err)
		}
		cursors = append(cursors, cursor)
		next = `,"cursor":` + quote(cursor)
	}
}

// list lists everything and returns a member of each item.
func (c *legacyClient) list(method, member string) (values []string) {
	c.t.Helper()
	pages, _ := c.pages(method, "")
	for _, item := range slices.Concat(pages...) {
		var members map[string]json.RawMessage
		var value string
		if err := errors.Join(json.Unmarshal(item, &members), json.Unmarshal(members[member], &value)); err != nil {
			c.t.Fatalf("%s lists %s, error %v, want a %s", method, item, err, member)
		}
		values = append(values, value)
	}
	return values
}

// has reports whether a tool is listed.
func (c *legacyClient) has(tool string) bool {
	c.t.Helper()
	return slices.Contains(c.list("tools/list", "name"), tool)
}
