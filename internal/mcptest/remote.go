package mcptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Remote is an MCP server over Streamable HTTP that speaks the eras it is told to,
// and is strict about them: sessions and their versions in the legacy era, _meta and
// the headers that repeat the body in the modern one. It writes down what it gets.
//
// Its tools:
//
//	echo                        text = the params, byte for byte; its argument region
//	                            goes into the header Mcp-Param-Region
//	ask {method,params,times}   ask the client, once or several times in a row; text =
//	                            the list of its answers, or its error (isError). In
//	                            the legacy era aside has it ask on the streams of the
//	                            session, not on that of the call
//	ask-all {methods}           ask the client several things at the same time
//	hang {ask}                  no answer until it is cancelled; a question before, if
//	                            ask is its method
//	progress {steps,ask}        as many notifications/progress, if there is a token; and
//	                            as many after a question, if ask is its method
//	fail {code,message,data}    that error
//	change                      notifications/tools/list_changed
//	touch {uri}                 notifications/resources/updated, to who has subscribed
//	link                        content that links to and has a resource
//
// Its prompt is p, its resource <name>:///data, its template <name>:///{id}. With the
// argument ask, the prompt asks for roots first, and so does the resource
// <name>:///asking.
//
// A request of the legacy era ends when it is cancelled by a notification, whoever
// hangs up; one of the modern era ends when the client hangs up.
type Remote struct {
	Name           string
	Legacy, Modern bool
	Primes         bool // knows of the legacy era 2025-11-25 alone, and its event streams begin with an empty event

	mu       sync.Mutex
	sessions map[string]*remoteSession
	seen     []RemoteMessage
	listens  map[*remoteCall]listenFilter
	closed   context.Context
	close    context.CancelFunc
}

// Close ends the requests that nobody has cancelled.
func (s *Remote) Close() {
	s.life()
	s.close()
}

// life is done when the server is closed.
func (s *Remote) life() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed == nil {
		s.closed, s.close = context.WithCancel(context.Background())
	}
	return s.closed
}

// A RemoteMessage is a message that a Remote has got, or an event: "hanging", "hung
// up" and "cancelled", with the method and the id of the request. The stream of a session
// is the event "stream", its end "session ended".
type RemoteMessage struct {
	Event   string
	Method  string
	ID      string // the literal
	Session string
	Header  http.Header
	Body    string
}

// remoteSession is a client of the legacy era.
type remoteSession struct {
	id, version string

	mu         sync.Mutex
	nextAsk    int
	asked      map[string]chan message
	inFlight   map[string]context.CancelFunc
	subscribed map[string]bool
	streams    map[chan []byte]bool
}

// remoteCall is a request that is being served.
type remoteCall struct {
	*Remote
	message
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context
	modern  bool
	meta    map[string]json.RawMessage
	session *remoteSession
	aside   bool // ask on the streams of the session

	writing sync.Mutex
	stream  bool
}

// Seen returns what there was of a method or an event.
func (s *Remote) Seen(methodOrEvent string) (found []RemoteMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.seen {
		if m.Event == methodOrEvent || m.Event == "" && m.Method == methodOrEvent {
			found = append(found, m)
		}
	}
	return found
}

// Forget has the server forget its sessions.
func (s *Remote) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
}

// Become has the server speak other eras from now on, as after an upgrade.
func (s *Remote) Become(legacy, modern bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Legacy, s.Modern = legacy, modern
	clear(s.sessions)
}

// speaks returns the eras of the server.
func (s *Remote) speaks() (legacy, modern bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Legacy, s.Modern
}

func (s *Remote) note(m RemoteMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, m)
}

// ServeHTTP implements http.Handler.
func (s *Remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	version := r.Header.Get("Mcp-Protocol-Version")
	legacy, modern := s.speaks()
	if r.Method != http.MethodPost {
		if !legacy || version == modernVersion {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		s.serveSession(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	m, failure := readMessage(body)
	if failure != nil {
		refuse(w, http.StatusBadRequest, failure)
		return
	}
	s.note(RemoteMessage{Method: m.Method, ID: string(m.ID), Session: r.Header.Get("Mcp-Session-Id"), Header: r.Header.Clone(), Body: string(body)})
	c := &remoteCall{Remote: s, message: m, w: w, r: r}
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = m.decodeParams(&p)
	c.meta = p.Meta
	c.modern = p.Meta[metaProtocolVersion] != nil || version == modernVersion
	switch {
	case c.modern && modern:
		c.serveModern()
	case c.modern:
		refuse(w, http.StatusBadRequest, &rpcError{Code: -32000, Message: "Bad Request: Unsupported protocol version"})
	case legacy:
		c.serveLegacy()
	default:
		c.fail(http.StatusBadRequest, &rpcError{Code: codeUnsupportedVersion, Message: "unsupported protocol version", Data: map[string]any{
			"supported": []string{modernVersion}, "requested": "2025-11-25"}})
	}
}

// serveSession serves what is not posted.
func (s *Remote) serveSession(w http.ResponseWriter, r *http.Request) {
	session := s.find(w, r)
	if session == nil {
		return
	}
	if r.Method == http.MethodDelete {
		s.mu.Lock()
		delete(s.sessions, session.id)
		s.mu.Unlock()
		s.note(RemoteMessage{Event: "session ended", Session: session.id})
		w.WriteHeader(http.StatusNoContent)
		return
	}
	messages := make(chan []byte, 100)
	session.mu.Lock()
	session.streams[messages] = true
	session.mu.Unlock()
	startEvents(w)
	_ = http.NewResponseController(w).Flush()
	s.note(RemoteMessage{Event: "stream", Session: session.id})
	for {
		select {
		case message := <-messages:
			writeEvent(w, message)
		case <-r.Context().Done():
			session.mu.Lock()
			delete(session.streams, messages)
			session.mu.Unlock()
			return
		}
	}
}

// find returns the session of a request, or answers that there is none.
func (s *Remote) find(w http.ResponseWriter, r *http.Request) *remoteSession {
	id := r.Header.Get("Mcp-Session-Id")
	s.mu.Lock()
	session := s.sessions[id]
	s.mu.Unlock()
	switch version := r.Header.Get("Mcp-Protocol-Version"); {
	case id == "":
		refuse(w, http.StatusBadRequest, &rpcError{Code: -32000, Message: "Bad Request: Mcp-Session-Id header is required"})
		return nil
	case session == nil:
		refuse(w, http.StatusNotFound, &rpcError{Code: -32001, Message: "Session not found"})
		return nil
	case version != "" && version != session.version:
		refuse(w, http.StatusBadRequest, &rpcError{Code: -32000, Message: "Bad Request: Unsupported protocol version"})
		return nil
	}
	return session
}

func (c *remoteCall) serveLegacy() {
	if c.Method == "initialize" {
		c.initialize()
		return
	}
	if c.session = c.find(c.w, c.r); c.session == nil {
		return
	}
	switch {
	case c.Method == "":
		c.session.mu.Lock()
		answer := c.session.asked[string(c.ID)]
		delete(c.session.asked, string(c.ID))
		c.session.mu.Unlock()
		if answer != nil {
			answer <- c.message
		}
		c.w.WriteHeader(http.StatusAccepted)
	case c.ID == nil:
		if c.Method == "notifications/cancelled" {
			var p struct {
				RequestID json.RawMessage `json:"requestId"`
			}
			_ = c.decodeParams(&p)
			c.session.mu.Lock()
			cancel := c.session.inFlight[string(p.RequestID)]
			c.session.mu.Unlock()
			if cancel != nil {
				cancel()
			}
		}
		c.w.WriteHeader(http.StatusAccepted)
	default:
		ctx, cancel := context.WithCancel(c.life())
		defer cancel()
		c.ctx = ctx
		c.session.mu.Lock()
		c.session.inFlight[string(c.ID)] = cancel
		c.session.mu.Unlock()
		result, failure := c.serve()
		c.session.mu.Lock()
		delete(c.session.inFlight, string(c.ID))
		c.session.mu.Unlock()
		if ctx.Err() != nil {
			c.note(RemoteMessage{Event: "cancelled", Method: c.Method, ID: string(c.ID)})
			return
		}
		c.answer(result, failure)
	}
}

func (c *remoteCall) initialize() {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	_ = c.decodeParams(&p)
	if c.Primes || !slices.Contains(protocolVersions, p.ProtocolVersion) {
		p.ProtocolVersion = protocolVersions[len(protocolVersions)-1]
	}
	session := &remoteSession{
		id: rand.Text(), version: p.ProtocolVersion,
		asked: map[string]chan message{}, inFlight: map[string]context.CancelFunc{},
		subscribed: map[string]bool{}, streams: map[chan []byte]bool{},
	}
	c.mu.Lock()
	if c.sessions == nil {
		c.sessions = map[string]*remoteSession{}
	}
	c.sessions[session.id] = session
	c.mu.Unlock()
	c.w.Header().Set("Mcp-Session-Id", session.id)
	c.answer(struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ServerInfo      serverInfo      `json:"serverInfo"`
	}{p.ProtocolVersion, remoteCapabilities, serverInfo{c.Name, serverVersion}}, nil)
}

var remoteCapabilities = json.RawMessage(`{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"completions":{}}`)

func (c *remoteCall) serveModern() {
	if c.ID == nil || c.Method == "" {
		c.w.WriteHeader(http.StatusAccepted)
		return
	}
	if status, failure := c.checkModern(); failure != nil {
		c.fail(status, failure)
		return
	}
	c.ctx = c.r.Context()
	result, failure := c.serve()
	if c.ctx.Err() != nil {
		c.note(RemoteMessage{Event: "hung up", Method: c.Method, ID: string(c.ID)})
		return
	}
	c.answer(result, failure)
}

// checkModern checks what the modern era demands of a request.
func (c *remoteCall) checkModern() (status int, failure *rpcError) {
	var version string
	_ = json.Unmarshal(c.meta[metaProtocolVersion], &version)
	header := func(name string) string {
		value := c.r.Header.Get(name)
		if encoded, ok := strings.CutPrefix(value, "=?base64?"); ok {
			text, _ := base64.StdEncoding.DecodeString(strings.TrimSuffix(encoded, "?="))
			return string(text)
		}
		return value
	}
	var p struct {
		Name, URI string
		Arguments struct{ Region *string }
	}
	_ = c.decodeParams(&p)
	mismatch := func(what string) (int, *rpcError) {
		return http.StatusBadRequest, &rpcError{Code: -32020, Message: "header mismatch: " + what}
	}
	switch {
	case version == "" || !bytes.HasPrefix(c.meta[metaClientCapabilities], []byte("{")):
		return http.StatusBadRequest, invalidParams("missing _meta")
	case header("Mcp-Protocol-Version") != version:
		return mismatch("Mcp-Protocol-Version")
	case version != modernVersion:
		return http.StatusBadRequest, &rpcError{Code: codeUnsupportedVersion, Message: "unsupported protocol version"}
	case header("Mcp-Method") != c.Method:
		return mismatch("Mcp-Method")
	}
	want := ""
	switch c.Method {
	case "tools/call", "prompts/get":
		want = p.Name
	case "resources/read":
		want = p.URI
	}
	if header("Mcp-Name") != want {
		return mismatch("Mcp-Name")
	}
	if c.Method == "tools/call" && p.Name == "echo" {
		region := ""
		if p.Arguments.Region != nil {
			region = *p.Arguments.Region
		}
		if header("Mcp-Param-Region") != region {
			return mismatch("Mcp-Param-Region")
		}
	}
	return 0, nil
}

// serve serves the methods of both eras.
func (c *remoteCall) serve() (any, *rpcError) {
	uri := c.Name + ":///"
	switch c.Method {
	case "tools/list":
		return map[string]any{"tools": remoteTools}, nil
	case "tools/call":
		return c.callTool()
	case "prompts/list":
		return map[string]any{"prompts": []any{map[string]any{"name": "p", "description": "Greets."}}}, nil
	case "prompts/get":
		return c.getPrompt()
	case "resources/list":
		return map[string]any{"resources": []any{map[string]any{"uri": uri + "data", "name": "data"}}}, nil
	case "resources/templates/list":
		return map[string]any{"resourceTemplates": []any{map[string]any{"uriTemplate": uri + "{id}", "name": "any"}}}, nil
	case "resources/read":
		return c.readResource(uri)
	case "completion/complete":
		return map[string]any{"completion": map[string]any{"values": []string{string(c.Params)}}}, nil
	}
	if c.modern {
		switch c.Method {
		case "server/discover":
			versions := []string{modernVersion}
			if legacy, _ := c.speaks(); legacy {
				versions = append(versions, protocolVersions...)
			}
			return map[string]any{"supportedVersions": versions, "capabilities": remoteCapabilities}, nil
		case "subscriptions/listen":
			return c.listen()
		}
		return nil, methodNotFound(c.Method)
	}
	switch c.Method {
	case "ping", "logging/setLevel":
		return struct{}{}, nil
	case "resources/subscribe", "resources/unsubscribe":
		var p struct{ URI string }
		_ = c.decodeParams(&p)
		c.session.mu.Lock()
		defer c.session.mu.Unlock()
		c.session.subscribed[p.URI] = c.Method == "resources/subscribe"
		return struct{}{}, nil
	}
	return nil, methodNotFound(c.Method)
}

var remoteTools = func() (tools []json.RawMessage) {
	tools = append(tools, json.RawMessage(`{"name":"echo","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`))
	for _, name := range []string{"ask", "ask-all", "hang", "progress", "fail", "change", "touch", "link"} {
		tools = append(tools, fmt.Appendf(nil, `{"name":%q,"inputSchema":{"type":"object"}}`, name))
	}
	return tools
}()

func (c *remoteCall) callTool() (any, *rpcError) {
	var p struct {
		Name      string
		Arguments struct {
			Method  string
			Params  json.RawMessage
			Times   int
			Methods []string
			Steps   int
			Code    int
			Message string
			Data    json.RawMessage
			URI     string
			Ask     string
			Aside   bool
		}
	}
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	args := p.Arguments
	c.aside = args.Aside
	switch p.Name {
	case "echo":
		return says(string(c.Params))
	case "ask":
		return c.ask(max(args.Times, 1), func(int) []inputRequest { return []inputRequest{{args.Method, args.Params}} }, says)
	case "ask-all":
		return c.ask(1, func(int) (all []inputRequest) {
			for _, method := range args.Methods {
				all = append(all, inputRequest{Method: method})
			}
			return all
		}, says)
	case "hang":
		hang := func(string) (any, *rpcError) {
			c.note(RemoteMessage{Event: "hanging", Method: c.Method, ID: string(c.ID)})
			<-c.ctx.Done()
			return nil, nil
		}
		if args.Ask == "" {
			return hang("")
		}
		return c.ask(1, func(int) []inputRequest { return []inputRequest{{Method: args.Ask}} }, hang)
	case "progress":
		report := func(from int) {
			for i := range args.Steps {
				if token := c.meta["progressToken"]; token != nil {
					c.send(outgoing("", "notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":%d}`, token, from+i+1)))
				}
			}
		}
		if !bytes.Contains(c.Params, []byte(`"requestState"`)) {
			report(0)
		}
		if args.Ask == "" {
			return says("done")
		}
		return c.ask(1, func(int) []inputRequest { return []inputRequest{{Method: args.Ask}} }, func(string) (any, *rpcError) {
			report(args.Steps)
			return says("done")
		})
	case "fail":
		failure := &rpcError{Code: args.Code, Message: args.Message}
		if args.Data != nil {
			failure.Data = args.Data
		}
		return nil, failure
	case "change":
		c.announce("notifications/tools/list_changed", "", func(f listenFilter) bool { return f.ToolsListChanged }, func(*remoteSession) bool { return true })
		return says("changed")
	case "touch":
		c.announce("notifications/resources/updated", `"uri":`+string(encode(args.URI)),
			func(f listenFilter) bool { return slices.Contains(f.ResourceSubscriptions, args.URI) },
			func(s *remoteSession) bool { return s.subscribed[args.URI] })
		return says("touched")
	case "link":
		return json.RawMessage(fmt.Sprintf(`{"content":[{"type":"resource_link","uri":"%[1]s:///data","name":"data"},`+
			`{"type":"resource","resource":{"uri":"%[1]s:///data","text":"embedded"}}]}`, c.Name)), nil
	}
	return nil, invalidParams("Unknown tool: %s", p.Name)
}

func (c *remoteCall) getPrompt() (any, *rpcError) {
	var p struct {
		Name      string
		Arguments map[string]string
	}
	if c.decodeParams(&p); p.Name != "p" {
		return nil, invalidParams("Unknown prompt: %s", p.Name)
	}
	done := func(text string) (any, *rpcError) {
		return map[string]any{"messages": []any{map[string]any{"role": "user", "content": newText(text)}}}, nil
	}
	if p.Arguments["ask"] == "" {
		return done(c.Name + " greets " + p.Arguments["who"])
	}
	return c.ask(1, func(int) []inputRequest { return []inputRequest{{Method: "roots/list"}} }, done)
}

func (c *remoteCall) readResource(root string) (any, *rpcError) {
	var p struct{ URI string }
	_ = c.decodeParams(&p)
	done := func(text string) (any, *rpcError) {
		return map[string]any{"contents": []any{map[string]string{"uri": p.URI, "text": text}}}, nil
	}
	switch name, ours := strings.CutPrefix(p.URI, root); {
	case !ours || name == "":
		code := codeResourceNotFound
		if c.modern {
			code = codeInvalidParams
		}
		return nil, &rpcError{Code: code, Message: "Resource not found", Data: map[string]string{"uri": p.URI}}
	case name == "asking":
		return c.ask(1, func(int) []inputRequest { return []inputRequest{{Method: "roots/list"}} }, done)
	default:
		return done(name + " of " + c.Name)
	}
}

// ask asks the client, in some rounds, and gives all answers to done.
func (c *remoteCall) ask(rounds int, round func(int) []inputRequest, done func(string) (any, *rpcError)) (any, *rpcError) {
	if !c.modern {
		return c.askInCall(rounds, round, done)
	}
	var p struct {
		InputResponses map[string]json.RawMessage
		RequestState   string
	}
	_ = c.decodeParams(&p)
	var answers []json.RawMessage // of the rounds before
	if state, ok := strings.CutPrefix(p.RequestState, c.Name+":"); ok {
		if json.Unmarshal([]byte(state), &answers) != nil {
			return nil, invalidParams("requestState is not of this server")
		}
		for i := range round(0) {
			answer, ok := p.InputResponses["q"+strconv.Itoa(i)]
			if !ok {
				return nil, invalidParams("an answer is missing")
			}
			answers = append(answers, answer)
		}
	} else if p.RequestState != "" || p.InputResponses != nil {
		return nil, invalidParams("requestState is not of this server")
	}
	n := len(answers) / len(round(0))
	if n >= rounds {
		return done(string(encode(answers)))
	}
	questions := map[string]inputRequest{}
	for i, q := range round(n) {
		if q.Params == nil {
			q.Params = json.RawMessage("{}")
		}
		questions["q"+strconv.Itoa(i)] = q
	}
	if answers == nil {
		answers = []json.RawMessage{}
	}
	return inputRequired{questions, c.Name + ":" + string(encode(answers))}, nil
}

// askInCall asks in mid-call.
func (c *remoteCall) askInCall(rounds int, round func(int) []inputRequest, done func(string) (any, *rpcError)) (any, *rpcError) {
	var answers []json.RawMessage
	for n := range rounds {
		var waiting []chan message
		for _, q := range round(n) {
			answer := make(chan message, 1)
			c.session.mu.Lock()
			id := strconv.Itoa(c.session.nextAsk) // which counts from 0 in every session
			c.session.nextAsk++
			c.session.asked[id] = answer
			question := outgoing(`"id":`+id+`,`, q.Method, q.Params)
			for stream := range c.session.streams {
				if c.aside {
					stream <- question
				}
			}
			c.session.mu.Unlock()
			if !c.aside {
				c.send(question)
			}
			waiting = append(waiting, answer)
		}
		for _, answer := range waiting {
			select {
			case m := <-answer:
				if m.Error != nil {
					return childResult{Content: []textContent{newText(string(m.Error))}, IsError: true}, nil
				}
				answers = append(answers, m.Result)
			case <-c.ctx.Done():
				return nil, nil
			}
		}
	}
	return done(string(encode(answers)))
}

// listen lasts until the client hangs up.
func (c *remoteCall) listen() (any, *rpcError) {
	var p struct {
		Notifications *listenFilter `json:"notifications"`
	}
	if failure := c.decodeParams(&p); failure != nil || p.Notifications == nil {
		return nil, invalidParams("missing required 'notifications' field")
	}
	p.Notifications.ResourcesListChanged = false // they do not
	c.writing.Lock()
	c.mu.Lock()
	if c.listens == nil {
		c.listens = map[*remoteCall]listenFilter{}
	}
	c.listens[c] = *p.Notifications
	c.mu.Unlock()
	c.write(outgoing("", "notifications/subscriptions/acknowledged",
		fmt.Appendf(nil, `{"_meta":{%q:%s},"notifications":%s}`, metaSubscriptionID, c.ID, encode(p.Notifications))))
	c.writing.Unlock()
	<-c.ctx.Done()
	c.mu.Lock()
	delete(c.listens, c)
	c.mu.Unlock()
	c.writing.Lock() // who writes has done so
	defer c.writing.Unlock()
	return nil, nil
}

// announce tells about a change.
func (s *Remote) announce(method, members string, wanted func(listenFilter) bool, subscribed func(*remoteSession) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		session.mu.Lock()
		if subscribed(session) {
			for stream := range session.streams {
				select {
				case stream <- outgoing("", method, json.RawMessage("{"+members+"}")):
				default:
				}
			}
		}
		session.mu.Unlock()
	}
	if members != "" {
		members += ","
	}
	for l, filter := range s.listens {
		if wanted(filter) {
			l.send(outgoing("", method, fmt.Appendf(nil, `{%s"_meta":{%q:%s}}`, members, metaSubscriptionID, l.ID)))
		}
	}
}

// send sends a message before the answer.
func (c *remoteCall) send(raw []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.write(raw)
}

// write is send for who holds the lock.
func (c *remoteCall) write(raw []byte) {
	if !c.stream {
		c.stream = true
		startEvents(c.w)
		if c.Primes && !c.modern {
			_, _ = io.WriteString(c.w, "id: 1\nretry: 1000\ndata: \n\n")
		}
	}
	if c.r.Context().Err() == nil {
		writeEvent(c.w, raw)
	}
}

// answer sends the answer.
func (c *remoteCall) answer(result any, failure *rpcError) {
	if failure != nil {
		status := http.StatusOK
		if c.modern && failure.Code == codeMethodNotFound {
			status = http.StatusNotFound
		}
		c.fail(status, failure)
		return
	}
	raw := encode(result)
	if c.modern {
		raw = (&request{child: &child{id: c.Name}, message: c.message}).modernResult(result, raw)
	}
	c.finish(http.StatusOK, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, c.ID, raw))
}

func (c *remoteCall) fail(status int, failure *rpcError) {
	c.finish(status, encode(reply{JSONRPC: "2.0", ID: c.ID, Error: failure}))
}

func (c *remoteCall) finish(status int, raw []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.stream {
		c.write(raw)
		return
	}
	writeJSON(c.w, status, raw)
}

// Interface guard
var _ http.Handler = (*Remote)(nil)
