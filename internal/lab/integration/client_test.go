package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// A testClient is a client of either era that reads responses message by message.
type testClient struct{ *mcpclient.Client }

// fullCapabilities are the capabilities of a client that supports all server requests.
const fullCapabilities = `{"roots":{},"sampling":{},"elicitation":{"form":{}}}`

// clientEras are the kinds of clients that tests run with.
var clientEras = []struct {
	name   string
	modern bool
}{{"legacy client", false}, {"modern client", true}}

func newTestClient(t *testing.T, endpoint string, modern bool, capabilities string, headers ...string) *testClient {
	t.Helper()
	return newTestClientWith(t, streamClient, endpoint, modern, capabilities, headers...)
}

// newTestClientWith is newTestClient with another HTTP client.
func newTestClientWith(t *testing.T, httpClient *http.Client, endpoint string, modern bool, capabilities string,
	headers ...string) *testClient {
	t.Helper()
	c := &testClient{&mcpclient.Client{URL: endpoint, Modern: modern, Capabilities: capabilities, Headers: headers,
		HTTP: httpClient}}
	if modern {
		return c
	}
	if got, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil || c.Session == "" {
		t.Fatalf("initialize: got %d %v, error %v, want a session", got.Status, got.Header, err)
	}
	return c
}

// An exchange is a request whose response is read message by message.
type exchange struct{ *mcpclient.Exchange }

// begin sends a request and leaves its response to be read.
func (c *testClient) begin(t *testing.T, method, params string, headers ...string) *exchange {
	t.Helper()
	return &exchange{c.Start(t.Context(), method, params, headers...)}
}

// listen opens the stream of a session.
func (c *testClient) listen(t *testing.T) *exchange {
	t.Helper()
	return &exchange{c.Listen(t.Context())}
}

// listenForChanges opens the stream for list_changed notifications in either era.
func (c *testClient) listenForChanges(t *testing.T) *exchange {
	t.Helper()
	if !c.Modern {
		d := c.listen(t)
		wait(t, d.Opened, "the stream")
		return d
	}
	d := c.begin(t, "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
	d.awaitMessage(t, "notifications/subscriptions/acknowledged")
	return d
}

// next returns the next message.
func (d *exchange) next(t *testing.T) mcpclient.Message {
	t.Helper()
	select {
	case m, ok := <-d.Messages:
		if !ok {
			t.Fatalf("the response ended with status %d, %v, want a message", d.Status, d.Err)
		}
		return m
	case <-time.After(patience):
		t.Fatal("timeout waiting for a message")
		return mcpclient.Message{}
	}
}

// awaitMessage waits for a message with a method. The response must not end before.
func (d *exchange) awaitMessage(t *testing.T, method string) mcpclient.Message {
	t.Helper()
	for {
		if m := d.next(t); m.Method == method {
			return m
		}
	}
}

// expectSilence fails the test if a message has arrived that was not read.
func (d *exchange) expectSilence(t *testing.T) {
	t.Helper()
	select {
	case m, ok := <-d.Messages:
		t.Errorf("got %q, ended: %t, want no message", m.Raw, !ok)
	default:
	}
}

// awaitEnd waits for the end of the response and drops all messages before it.
func (d *exchange) awaitEnd(t *testing.T) {
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
			t.Fatal("timeout waiting for the end of the response")
		}
	}
}

// A reply is all messages of a response.
type reply struct {
	status int
	header http.Header
	events []mcpclient.Message // before the answer
	answer mcpclient.Message
}

// finish reads the response up to the JSON-RPC response.
func (d *exchange) finish(t *testing.T) (got reply) {
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

// ask sends a request and returns its reply.
func (c *testClient) ask(t *testing.T, method, params string, headers ...string) reply {
	t.Helper()
	d := c.begin(t, method, params, headers...)
	got := d.finish(t)
	if string(got.answer.ID) != d.ID {
		t.Errorf("%s: got %s, want a response with id %s", method, got.answer.Raw, d.ID)
	}
	return got
}

// callOf returns the params of a tools/call.
func callOf(server, tool, arguments string, members ...string) string {
	return "{" + strings.Join(append([]string{`"name":` + quote(server+"__"+tool), `"arguments":` + arguments},
		members...), ",") + "}"
}

// use calls a tool and returns the text of its result.
func (c *testClient) use(t *testing.T, server, tool, arguments string) string {
	t.Helper()
	got := c.ask(t, "tools/call", callOf(server, tool, arguments))
	if got.status != 200 {
		t.Errorf("%s of %s: got status %d, want 200", tool, server, got.status)
	}
	return got.answer.Text()
}

// post sends a message that needs no response.
func (c *testClient) post(t *testing.T, message string) {
	t.Helper()
	if err := c.Notify(t.Context(), message); err != nil {
		t.Error(err)
	}
}

// respond answers a server request.
func (c *testClient) respond(t *testing.T, request mcpclient.Message, result string) {
	t.Helper()
	c.post(t, `{"jsonrpc":"2.0","id":`+string(request.ID)+`,"result":`+result+`}`)
}

// retryParams returns the params of a call that is retried with the answers to its server requests.
func retryParams(params string, input mcpclient.Input, answer func(method string) string) string {
	return input.Retry(params, func(method string, _ json.RawMessage) string { return answer(method) })
}

// A legacyClient is a client of a revision with sessions. It records unsolicited messages on all
// streams, and answers server requests.
type legacyClient struct {
	t *testing.T
	*legacySession
}

// A legacySession is the state that a legacyClient shares with its subtests.
type legacySession struct {
	*mcpclient.Client
	t           *testing.T // the outermost test
	initialized mcpclient.Response

	mu       sync.Mutex
	answers  func(serverRequest mcpclient.Message) string
	received []mcpclient.Message
}

const everyCapability = `{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}`

// newListeningClient begins a session with these capabilities, and opens its stream for unsolicited
// messages.
func newListeningClient(t *testing.T, url, capabilities string) *legacyClient {
	t.Helper()
	c := newLegacyClient(t, url, capabilities)
	c.listen()
	return c
}

// newLegacyClient begins a session.
func newLegacyClient(t *testing.T, url, capabilities string) *legacyClient {
	t.Helper()
	c := newUninitializedClient(t, url, capabilities)
	c.initialize(mcpclient.Legacy)
	return c
}

// newUninitializedClient returns a client without a session.
func newUninitializedClient(t *testing.T, url, capabilities string) *legacyClient {
	return &legacyClient{t, &legacySession{t: t, Client: &mcpclient.Client{URL: joinedAt(url), Capabilities: capabilities,
		HTTP: streamClient}}}
}

func (c *legacyClient) initialize(version string) {
	c.t.Helper()
	var err error
	c.initialized, err = c.Initialize(c.legacySession.t.Context(), version)
	if err != nil || c.Session == "" {
		c.t.Fatalf("initialize: got %d %v, error %v, want a session", c.initialized.Status, c.initialized.Header, err)
	}
}

// withTest returns the client for a subtest.
func (c *legacyClient) withTest(t *testing.T) *legacyClient { return &legacyClient{t, c.legacySession} }

// setAnswers sets the function that answers server requests. It returns the members of the
// response, or "" for no response.
func (s *legacySession) setAnswers(with func(serverRequest mcpclient.Message) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = with
}

// begin sends a request. The response is read from the channel.
func (c *legacyClient) begin(id, method, params string) <-chan mcpclient.Response {
	message, _ := c.Message(id, method, params)
	return c.send(message)
}

func (c *legacyClient) beginCall(tool, arguments string) <-chan mcpclient.Response {
	return c.begin(c.NextID(), "tools/call", `{"name":`+quote(tool)+`,"arguments":`+arguments+`}`)
}

// send sends a message.
func (s *legacySession) send(message string) <-chan mcpclient.Response {
	answers := make(chan mcpclient.Response, 1)
	go func() { answers <- s.read(s.Post(s.t.Context(), message)) }()
	return answers
}

// read reads a response to its end, and records unsolicited messages.
func (s *legacySession) read(x *mcpclient.Exchange) mcpclient.Response {
	var answer mcpclient.Message
	for m := range x.Messages {
		if m.Method == "" {
			answer = m
			continue
		}
		s.mu.Lock()
		s.received = append(s.received, m)
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

// listen opens the stream of the session, and reopens it when it ends.
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

// await waits for the response to a request.
func (c *legacyClient) await(answers <-chan mcpclient.Response) mcpclient.Response {
	c.t.Helper()
	select {
	case got := <-answers:
		return got
	case <-time.After(2 * patience):
		c.t.Fatal("timeout waiting for a response")
		return mcpclient.Response{}
	}
}

// ask sends a request and waits for its response, which must have its id.
func (c *legacyClient) ask(method, params string) mcpclient.Response {
	c.t.Helper()
	id := c.NextID()
	got := c.await(c.begin(id, method, params))
	if got.Err != nil || string(got.ID) != id || (got.Result == nil) == (got.Error == nil) {
		c.t.Fatalf("%s: got %d %.500s, error %v, want a response with id %s", method, got.Status, got.Body, got.Err, id)
	}
	return got
}

// result sends a request and returns its result.
func (c *legacyClient) result(method, params string) string {
	c.t.Helper()
	got := c.ask(method, params)
	if got.Error != nil || got.Status != 200 {
		c.t.Fatalf("%s %s: got %d %.500s, want a result", method, params, got.Status, got.Raw)
	}
	return string(got.Result)
}

// expectError sends a request that must fail with this code, and status 200.
func (c *legacyClient) expectError(method, params string, code int) mcpclient.Response {
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

func (c *legacyClient) notify(method, params string) {
	c.t.Helper()
	if params != "" {
		params = `,"params":` + params
	}
	if err := c.Notify(c.legacySession.t.Context(), `{"jsonrpc":"2.0","method":`+quote(method)+params+`}`); err != nil {
		c.t.Fatal(err)
	}
}

// receivedMessages returns the messages with a method received so far.
func (c *legacyClient) receivedMessages(method string) (found []mcpclient.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.received {
		if m.Method == method {
			found = append(found, m)
		}
	}
	return found
}

// awaitMessages waits for n messages with a method, and returns all of them.
func (c *legacyClient) awaitMessages(method string, n int) []mcpclient.Message {
	c.t.Helper()
	await.Until(c.t, fmt.Sprintf("%d × %s", n, method), func() bool { return len(c.receivedMessages(method)) >= n })
	return c.receivedMessages(method)
}

// pages lists everything, page by page. The params do not include the cursor.
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
		if err := errors.Join(json.Unmarshal([]byte(text), &page), json.Unmarshal(page[kind], &items)); err != nil ||
			page[kind][0] != '[' {
			c.t.Fatalf("%s: got %.500s, error %v, want a page", method, text, err)
		}
		pages = append(pages, items)
		if page["nextCursor"] == nil {
			return pages, cursors
		}
		var cursor string
		if err := json.Unmarshal(page["nextCursor"], &cursor); err != nil || len(cursors) > 20_000 {
			c.t.Fatalf("%s: after %d pages got %.500s, error %v, want a cursor and fewer pages", method, len(cursors), text, err)
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

// listsTool reports whether a tool is listed.
func (c *legacyClient) listsTool(tool string) bool {
	c.t.Helper()
	return slices.Contains(c.list("tools/list", "name"), tool)
}

// A directServer is a child that the test talks to without a gateway.
type directServer struct {
	in  io.WriteCloser
	out *bufio.Reader
	ids int
}

// startDirect starts a server. It does not wait, so that several can start at once.
func startDirect(t *testing.T, cmd *exec.Cmd) *directServer {
	t.Helper()
	in, out := startPiped(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return &directServer{in: in, out: out}
}

// startPiped starts a program and returns its standard input and output.
func startPiped(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, *bufio.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return in, bufio.NewReader(out)
}

// initialize makes a handshake with these client capabilities.
func (s *directServer) initialize(t *testing.T, capabilities string) {
	t.Helper()
	s.ask(t, "initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"test",`+
		`"version":"1"}}`,
		mcpclient.Legacy, capabilities))
	fmt.Fprintln(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// ask returns the result of a request.
func (s *directServer) ask(t *testing.T, method, params string) json.RawMessage {
	t.Helper()
	s.ids++
	fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", s.ids, method, params)
	for {
		line, err := s.out.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		var m struct{ ID, Result, Error json.RawMessage }
		if json.Unmarshal(line, &m) == nil && string(m.ID) == fmt.Sprint(s.ids) {
			if m.Result == nil {
				t.Fatalf("%s: %s", method, m.Error)
			}
			return m.Result
		}
	}
}
