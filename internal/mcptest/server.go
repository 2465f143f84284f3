package mcptest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
)

// More JSON-RPC error codes; all but the first are those of MCP.
const (
	codeInternalError      = -32603
	codeResourceNotFound   = -32002
	codeUnsupportedVersion = -32022
)

// modernVersion is the revision of the modern era.
const modernVersion = "2026-07-28"

// Keys of _meta in the modern era.
const (
	metaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	metaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel           = "io.modelcontextprotocol/logLevel"
	metaServerInfo         = "io.modelcontextprotocol/serverInfo"
	metaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
)

// server is an MCP server of both eras without a transport. [Remote] adds HTTP and [RunChild] adds
// stdio.
type server struct {
	name         string
	uri          string // of its resources, with * for their names
	capabilities json.RawMessage
	completions  []string   // nil to complete everything with the params received
	flags        childFlags // zero over HTTP
	child        *child     // nil over HTTP

	// strict makes the server require its requestState, and send resource updates only to subscribed
	// clients.
	strict bool

	mu       sync.Mutex
	tools    []tool // replaced when it changes
	sessions map[string]*session
	listens  map[*call]listenFilter
}

// session is an initialized client. On stdio it is the only client, in either era.
type session struct {
	mu          sync.Mutex
	id, version string
	initialized bool
	nextAsk     int
	asked       map[string]chan message            // by the id as sent
	inFlight    map[string]context.CancelCauseFunc // by the id as received
	subscribed  map[string]bool                    // by URI

	// streams send messages outside of calls, by their GET. On stdio there is one, without a GET.
	streams map[*http.Request]func(raw []byte)
}

func newSession() *session {
	return &session{
		asked: map[string]chan message{}, inFlight: map[string]context.CancelCauseFunc{},
		subscribed: map[string]bool{}, streams: map[*http.Request]func([]byte){},
	}
}

// errCancelled is the cause of contexts of requests that the client cancelled.
var errCancelled = errors.New("cancelled by the client")

// receive handles a response or a notification.
func (s *session) receive(m message) {
	var p struct{ RequestID json.RawMessage }
	_ = m.decodeParams(&p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer := s.asked[string(m.ID)]; m.Method == "" && answer != nil {
		delete(s.asked, string(m.ID))
		answer <- m
	}
	if cancel := s.inFlight[string(p.RequestID)]; m.Method == "notifications/cancelled" && cancel != nil {
		cancel(errCancelled)
	}
}

// revision returns the revision that was negotiated.
func (s *session) revision() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// sendOnStreams sends a message on all streams of the session, outside of calls.
func (s *session) sendOnStreams(raw []byte) {
	s.mu.Lock()
	streams := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	for _, send := range streams {
		send(raw)
	}
}

// ask sends a request to the client. The response arrives in the channel. Ids count from 0 in each
// session, so different sessions use the same ids.
func (s *session) ask(send func(raw []byte), q inputRequest) <-chan message {
	answer := make(chan message, 1)
	s.mu.Lock()
	id := strconv.Itoa(s.nextAsk)
	s.nextAsk++
	s.asked[id] = answer
	s.mu.Unlock()
	send(outgoing(`"id":`+id+`,`, q.Method, q.Params))
	return answer
}

// wire sends the messages of a call to its client.
type wire interface {
	send(raw []byte)                      // sends a message before the response
	finish(raw []byte, failure *rpcError) // sends the response; failure is its error, if any
	event(m message, name string)         // records "hanging", "cancelled" or "hung up" for the request m
}

// call is a request that is being served.
type call struct {
	*server
	message
	wire        wire
	session     *session
	handshakes  []string                   // the revisions with a handshake that the server speaks, newest first
	meta        map[string]json.RawMessage // its params._meta
	modern      bool                       // it is of the modern era
	initialized bool                       // its session was initialized when it arrived
	ctx         context.Context
	cancel      context.CancelCauseFunc
}

// newCall reads _meta. The transport decides the era.
func newCall(s *server, w wire, m message, handshakes []string) *call {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if m.decodeParams(&p) != nil {
		p.Meta = nil // the method refuses invalid params, if it reads them
	}
	return &call{server: s, message: m, wire: w, handshakes: handshakes, meta: p.Meta}
}

// version is the revision in _meta.
func (c *call) version() (version string) {
	_ = json.Unmarshal(c.meta[metaProtocolVersion], &version)
	return version
}

// begin adds the call to a session. When it returns, the next message may be handled: the request
// can be cancelled, and requests after an initialize count as initialized.
func (c *call) begin(parent context.Context, s *session) {
	c.ctx, c.cancel = context.WithCancelCause(parent)
	c.session = s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[string(c.ID)] = c.cancel
	c.initialized = s.initialized
	if c.Method == "initialize" && !c.modern && c.handshakes != nil {
		s.initialized = true
	}
}

// run serves the request and responds, unless the client has cancelled it.
func (c *call) run() {
	defer c.cancel(nil)
	result, failure := c.serve()
	c.session.mu.Lock()
	delete(c.session.inFlight, string(c.ID))
	c.session.mu.Unlock()
	switch context.Cause(c.ctx) {
	case errCancelled:
		c.wire.event(c.message, "cancelled")
		return
	case nil:
	default:
		c.wire.event(c.message, "hung up")
	}
	if result != nil || failure != nil {
		c.answer(result, failure)
	}
}

// serve returns the result or the error, or neither if there is no response.
func (c *call) serve() (any, *rpcError) {
	if c.modern {
		return c.serveModern()
	}
	switch {
	case c.Method == "initialize":
		return c.initialize()
	case c.Method == "ping":
		return c.ping()
	case c.Method == "server/discover":
		return nil, methodNotFound(c.Method) // only the modern era has this method
	case !c.initialized:
		return nil, &rpcError{Code: codeInvalidRequest, Message: "not initialized"}
	}
	switch c.Method {
	case "logging/setLevel":
		return struct{}{}, nil
	case "resources/subscribe", "resources/unsubscribe":
		var p struct{ URI string }
		_ = c.decodeParams(&p)
		c.session.mu.Lock()
		defer c.session.mu.Unlock()
		c.session.subscribed[p.URI] = c.Method == "resources/subscribe"
		return struct{}{}, nil
	}
	return c.serveEither()
}

func (c *call) serveModern() (any, *rpcError) {
	if failure := c.checkMeta(); failure != nil {
		return nil, failure
	}
	switch c.Method {
	case "server/discover":
		return c.discover()
	case "subscriptions/listen":
		return c.listen()
	}
	return c.serveEither()
}

// checkMeta checks that a modern request has the required _meta.
func (c *call) checkMeta() *rpcError {
	const missing = "missing or invalid _meta field %q"
	switch version := c.version(); {
	case version == "":
		return invalidParams(missing, metaProtocolVersion)
	case version != modernVersion:
		return unsupportedVersion(version, c.handshakes)
	case !bytes.HasPrefix(c.meta[metaClientCapabilities], []byte("{")):
		return invalidParams(missing, metaClientCapabilities)
	}
	return nil
}

// unsupportedVersion returns the error for a version that the server does not support.
func unsupportedVersion(requested string, handshakes []string) *rpcError {
	return &rpcError{Code: codeUnsupportedVersion, Message: "unsupported protocol version", Data: struct {
		Supported []string `json:"supported"`
		Requested string   `json:"requested"`
	}{append([]string{modernVersion}, handshakes...), requested}}
}

// serveEither serves the methods of both eras.
func (c *call) serveEither() (any, *rpcError) {
	switch c.Method {
	case "tools/list":
		return list(c, "tools", c.listedTools())
	case "tools/call":
		return c.callTool()
	case "prompts/list":
		return list(c, "prompts", []json.RawMessage{json.RawMessage(
			`{"name":"p","description":"Greets.","arguments":[{"name":"who","description":"Name to greet.","required":false}]}`,
		)})
	case "prompts/get":
		return c.getPrompt()
	case "resources/list":
		return list(c, "resources", []json.RawMessage{encode(struct {
			URI      string `json:"uri"`
			Name     string `json:"name"`
			MIMEType string `json:"mimeType"`
		}{c.resource("data"), "data.txt", "text/plain"})})
	case "resources/templates/list":
		return list(c, "resourceTemplates", []json.RawMessage{encode(struct {
			URITemplate string `json:"uriTemplate"`
			Name        string `json:"name"`
			MIMEType    string `json:"mimeType"`
		}{c.resource("{name}"), "text files", "text/plain"})})
	case "resources/read":
		return c.readResource()
	case "completion/complete":
		return c.complete()
	default:
		return nil, methodNotFound(c.Method)
	}
}

// answer sends the response. Results of the modern era contain their type and the server. Those
// that clients may cache also say that they are stale at once.
func (c *call) answer(result any, failure *rpcError) {
	if failure != nil {
		c.wire.finish(errorReply(c.ID, failure), failure)
		return
	}
	raw := encode(result)
	if c.modern {
		raw = c.modernResult(result, raw)
	}
	c.wire.finish(resultReply(c.ID, raw, c.flags.resultFirst), nil)
}

func (c *call) modernResult(result any, raw []byte) []byte {
	resultType := "complete"
	if _, ok := result.(inputRequired); ok {
		resultType = "input_required"
	}
	b := fmt.Appendf(nil, `{"resultType":%q,"_meta":{%q:%s}`, resultType, metaServerInfo, encode(c.info()))
	if c.Method == "server/discover" || c.Method == "resources/read" || strings.HasSuffix(c.Method, "/list") {
		b = append(b, `,"ttlMs":0,"cacheScope":"public"`...)
	}
	if len(raw) > len("{}") {
		b = append(b, ',')
	}
	return append(b, raw[1:]...)
}

func (s *server) info() serverInfo { return serverInfo{Name: s.name, Version: serverVersion} }

// sleep waits, and reports whether the request is still open then.
func (c *call) sleep(d time.Duration) bool { return d <= 0 || backoff.Sleep(c.ctx, d) }

// hang waits until the request is canceled.
func (c *call) hang() (any, *rpcError) {
	<-c.ctx.Done()
	return nil, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (c *call) initialize() (any, *rpcError) {
	if c.handshakes == nil {
		return nil, methodNotFound(c.Method)
	}
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	if !slices.Contains(c.handshakes, p.ProtocolVersion) {
		p.ProtocolVersion = c.handshakes[0]
	}
	c.session.mu.Lock()
	c.session.version = p.ProtocolVersion
	c.session.mu.Unlock()
	return c.delayHandshake(struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ServerInfo      serverInfo      `json:"serverInfo"`
	}{p.ProtocolVersion, c.capabilities, c.info()})
}

func (c *call) discover() (any, *rpcError) {
	return c.delayHandshake(struct {
		SupportedVersions []string        `json:"supportedVersions"`
		Capabilities      json.RawMessage `json:"capabilities"`
	}{append([]string{modernVersion}, c.handshakes...), c.capabilities})
}

// delayHandshake returns the result, after the delay that the flags set.
func (c *call) delayHandshake(result any) (any, *rpcError) {
	if c.flags.hangInit {
		return c.hang()
	}
	if !c.sleep(seconds(c.flags.initDelay)) {
		return nil, nil
	}
	return result, nil
}

func (c *call) ping() (any, *rpcError) {
	switch {
	case c.flags.hangPing:
		return c.hang()
	case c.flags.noPing || c.handshakes == nil:
		return nil, methodNotFound(c.Method)
	}
	return struct{}{}, nil
}

// list returns the requested page of items.
func list(c *call, name string, items []json.RawMessage) (any, *rpcError) {
	if !c.sleep(seconds(c.flags.listDelay)) {
		return nil, nil
	}
	if c.flags.listError {
		return nil, &rpcError{Code: codeInternalError, Message: "no list today"}
	}
	var p struct {
		Cursor *string `json:"cursor"`
	}
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	start, end := 0, len(items)
	if p.Cursor != nil {
		var known bool
		if start, known = c.readCursor(*p.Cursor, len(items)); !known && c.flags.strictCursor {
			return nil, invalidParams("unknown cursor: %s", *p.Cursor)
		}
	}
	result := map[string]any{}
	if c.flags.page > 0 && start+c.flags.page < end {
		end = start + c.flags.page
		result["nextCursor"] = c.cursor(end)
	}
	result[name] = items[start:end]
	return result, nil
}

// cursor returns the cursor of the page that begins with an item. It is valid only for that list
// and server.
func (c *call) cursor(start int) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %s %d", c.name, c.Method, start))
}

func (c *call) readCursor(cursor string, items int) (start int, known bool) {
	for i := c.flags.page; i > 0 && i < items; i += c.flags.page {
		if cursor == c.cursor(i) {
			return i, true
		}
	}
	return 0, false
}

// getPrompt returns the prompt p, after a roots request if its argument ask is not empty.
func (c *call) getPrompt() (any, *rpcError) {
	var p struct {
		Name      string
		Arguments struct{ Who, Ask string }
	}
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	if p.Name != "p" {
		return nil, invalidParams("Unknown prompt: %s", p.Name)
	}
	type promptMessage struct {
		Role    string      `json:"role"`
		Content textContent `json:"content"`
	}
	done := func(text string) (any, *rpcError) {
		return struct {
			Messages []promptMessage `json:"messages"`
		}{[]promptMessage{{"user", newText(text)}}}, nil
	}
	if p.Arguments.Ask == "" {
		return done(c.name + " greets " + p.Arguments.Who)
	}
	return c.ask(1, []inputRequest{{Method: "roots/list"}}, done)
}

// resource returns the URI of a resource.
func (s *server) resource(name string) string { return strings.Replace(s.uri, "*", name, 1) }

// readResource reads any resource of the template, after a roots request if its name is asking.
func (c *call) readResource() (any, *rpcError) {
	var p struct{ URI string }
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	before, after, _ := strings.Cut(c.uri, "*")
	name, isOurs := strings.CutPrefix(p.URI, before)
	name, isText := strings.CutSuffix(name, after)
	if !isOurs || !isText || name == "" {
		code := codeResourceNotFound
		if c.modern {
			code = codeInvalidParams
		}
		return nil, &rpcError{Code: code, Message: "Resource not found", Data: map[string]string{"uri": p.URI}}
	}
	type resourceContent struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType"`
		Text     string `json:"text"`
	}
	done := func(text string) (any, *rpcError) {
		return struct {
			Contents []resourceContent `json:"contents"`
		}{[]resourceContent{{p.URI, "text/plain", text}}}, nil
	}
	if name == "asking" {
		return c.ask(1, []inputRequest{{Method: "roots/list"}}, done)
	}
	return done(name + " of " + c.name)
}

func (c *call) complete() (any, *rpcError) {
	values := c.completions
	if values == nil {
		values = []string{string(c.Params)}
	}
	type completion struct {
		Values  []string `json:"values"`
		Total   int      `json:"total"`
		HasMore bool     `json:"hasMore"`
	}
	return struct {
		Completion completion `json:"completion"`
	}{completion{Values: values, Total: len(values)}}, nil
}

// inputRequest is a server request in a result.
type inputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// inputRequired is the result of a modern request that continues after responses of the client.
type inputRequired struct {
	InputRequests map[string]inputRequest `json:"inputRequests"`
	RequestState  string                  `json:"requestState"`
}

// ask sends server requests to the client, all at once, and again in each of several rounds. It
// calls done with the response or, if there is more than one, the list of responses.
func (c *call) ask(rounds int, questions []inputRequest, done func(text string) (any, *rpcError)) (any, *rpcError) {
	if c.modern {
		return c.askInResult(rounds, questions, done)
	}
	return c.askInCall(rounds, questions, c.wire.send, done)
}

func joined(answers []json.RawMessage) string {
	if len(answers) == 1 {
		return string(answers[0])
	}
	return string(encode(answers))
}

// askInCall sends server requests during the call, as in the legacy era.
func (c *call) askInCall(
	rounds int,
	questions []inputRequest,
	send func([]byte),
	done func(string) (any, *rpcError),
) (any, *rpcError) {
	var answers []json.RawMessage
	for range rounds {
		var waiting []<-chan message
		for _, q := range questions {
			waiting = append(waiting, c.session.ask(send, q))
		}
		for _, answer := range waiting {
			select {
			case m := <-answer:
				if m.Error != nil {
					return toolResult{Content: []textContent{newText(string(m.Error))}, IsError: true}, nil
				}
				answers = append(answers, m.Result)
			case <-c.ctx.Done():
				return nil, nil
			}
		}
	}
	return done(joined(answers))
}

// askInResult sends server requests in a result, as in the modern era. The client repeats its
// request with the responses and the requestState, which contains the responses of earlier rounds.
func (c *call) askInResult(rounds int, questions []inputRequest, done func(string) (any, *rpcError)) (any, *rpcError) {
	var p struct {
		InputResponses map[string]json.RawMessage
		RequestState   string
	}
	_ = c.decodeParams(&p)
	var answers, latest []json.RawMessage
	requests, state := map[string]inputRequest{}, c.name+" asked"
	for i, q := range questions {
		if q.Params == nil {
			q.Params = json.RawMessage(`{}`) // the Go SDK does not read requests without params
		}
		key := strconv.Itoa(i)
		requests[key], state = q, state+" "+q.Method
		if answer, ok := p.InputResponses[key]; ok {
			latest = append(latest, answer)
		}
	}
	before, isOurs := strings.CutPrefix(p.RequestState, state)
	if isOurs && before != "" {
		isOurs = json.Unmarshal([]byte(before), &answers) == nil
	}
	isComplete := len(latest) == len(questions)
	if c.strict && (p.RequestState != "" || p.InputResponses != nil) {
		switch {
		case !isOurs:
			return nil, invalidParams("requestState is not of this server")
		case !isComplete:
			return nil, invalidParams("an answer is missing")
		}
	}
	if isComplete {
		answers = append(answers, latest...)
	}
	if len(answers) >= rounds*len(questions) {
		return done(joined(answers))
	}
	if len(answers) > 0 {
		state += string(encode(answers))
	}
	return inputRequired{requests, state}, nil
}

// listenFilter says which notifications a client requests. Prompts never change on this server, so
// they are not included in the acknowledgement.
type listenFilter struct {
	ToolsListChanged      bool     `json:"toolsListChanged,omitempty"`
	ResourcesListChanged  bool     `json:"resourcesListChanged,omitempty"`
	ResourceSubscriptions []string `json:"resourceSubscriptions,omitempty"`
}

// listen acknowledges what the capabilities declare, and then lasts until the client cancels it.
func (c *call) listen() (any, *rpcError) {
	var p struct {
		Notifications *listenFilter `json:"notifications"`
	}
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	wants := p.Notifications
	if wants == nil {
		return nil, invalidParams("missing required 'notifications' field")
	}
	var can struct {
		Tools     struct{ ListChanged bool }
		Resources struct{ Subscribe, ListChanged bool }
	}
	_ = json.Unmarshal(c.capabilities, &can)
	wants.ToolsListChanged = wants.ToolsListChanged && can.Tools.ListChanged
	wants.ResourcesListChanged = wants.ResourcesListChanged && can.Resources.ListChanged
	if !can.Resources.Subscribe {
		wants.ResourceSubscriptions = nil
	}

	// announce waits for the lock, so a client gets the acknowledgement before any notification, and
	// misses none after it.
	c.mu.Lock()
	c.listens[c] = *wants
	c.wire.send(outgoing("", "notifications/subscriptions/acknowledged",
		fmt.Appendf(nil, `{"_meta":{%q:%s},"notifications":%s}`, metaSubscriptionID, c.ID, encode(wants))))
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listens, c)
	}()
	return c.hang()
}

// announce sends a change notification: without a tag to sessions, and with the subscription ID to
// each listen that requested it. members are the members of params, or "".
func (s *server) announce(method, members string, wanted func(listenFilter) bool, subscribed func(*session) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var params json.RawMessage
	if members != "" {
		params = json.RawMessage("{" + members + "}")
		members += ","
	}
	for _, session := range s.sessions {
		session.mu.Lock()
		tell := session.initialized && (!s.strict || subscribed(session))
		session.mu.Unlock()
		if tell {
			session.sendOnStreams(outgoing("", method, params))
		}
	}
	for l, filter := range s.listens {
		if wanted(filter) {
			l.wire.send(outgoing("", method, fmt.Appendf(nil, `{%s"_meta":{%q:%s}}`, members, metaSubscriptionID, l.ID)))
		}
	}
}

// toolsChanged announces another list of tools.
func (s *server) toolsChanged() {
	s.announce("notifications/tools/list_changed", "",
		func(f listenFilter) bool { return f.ToolsListChanged }, func(*session) bool { return true })
}
