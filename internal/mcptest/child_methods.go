package mcptest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// More JSON-RPC error codes, of MCP but for the first.
const (
	codeInternalError      = -32603
	codeResourceNotFound   = -32002
	codeUnsupportedVersion = -32022
)

// modernVersion is the revision of the stateless era.
const modernVersion = "2026-07-28"

// Keys of _meta in the stateless era.
const (
	metaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	metaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel           = "io.modelcontextprotocol/logLevel"
	metaServerInfo         = "io.modelcontextprotocol/serverInfo"
	metaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
)

// request is a request that is being served.
type request struct {
	*child
	message
	ctx         context.Context
	initialized bool                       // before it came
	modern      bool                       // it is of the stateless era
	meta        map[string]json.RawMessage // its params._meta
}

// serve returns the result or the error, or neither if there shall be no answer.
func (r *request) serve() (any, *rpcError) {
	if r.modern {
		return r.serveModern()
	}
	switch {
	case r.Method == "initialize":
		return r.initialize()
	case r.Method == "ping":
		return r.ping()
	case r.Method == "server/discover":
		return nil, methodNotFound(r.Method) // it has no meaning without _meta
	case !r.initialized:
		return nil, &rpcError{Code: codeInvalidRequest, Message: "not initialized"}
	}
	switch r.Method {
	case "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return struct{}{}, nil
	}
	return r.serveEither()
}

// readMeta reads _meta and decides the era. Its error is the answer.
func (r *request) readMeta() *rpcError {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if r.decodeParams(&p) != nil {
		return nil // for the method to refuse, if it minds
	}
	r.meta = p.Meta
	var version string
	_ = json.Unmarshal(r.meta[metaProtocolVersion], &version)
	if !r.flags.modern || version < modernVersion {
		return nil
	}
	if version != modernVersion {
		return &rpcError{Code: codeUnsupportedVersion, Message: "unsupported protocol version", Data: struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{r.versions(), version}}
	}
	if !bytes.HasPrefix(r.meta[metaClientCapabilities], []byte("{")) {
		return invalidParams("missing or invalid _meta field %q", metaClientCapabilities)
	}
	r.modern = true
	return nil
}

// versions are the revisions the child speaks, newest first.
func (c *child) versions() []string {
	var versions []string
	if !c.flags.modernOnly {
		versions = slices.Clone(protocolVersions)
	}
	if c.flags.modern {
		versions = append(versions, modernVersion)
	}
	slices.Reverse(versions)
	return versions
}

func (r *request) serveModern() (any, *rpcError) {
	switch r.Method {
	case "server/discover":
		return r.discover()
	case "subscriptions/listen":
		return r.listen()
	}
	return r.serveEither()
}

// serveEither serves the methods that are in both eras.
func (r *request) serveEither() (any, *rpcError) {
	switch r.Method {
	case "tools/list":
		return list(r, "tools", r.listedTools())
	case "tools/call":
		return r.callTool()
	case "prompts/list":
		return list(r, "prompts", []json.RawMessage{json.RawMessage(
			`{"name":"p","description":"Greets.","arguments":[{"name":"who","description":"Whom to greet.","required":false}]}`)})
	case "prompts/get":
		return r.getPrompt()
	case "resources/list":
		return list(r, "resources", []json.RawMessage{encode(struct {
			URI      string `json:"uri"`
			Name     string `json:"name"`
			MIMEType string `json:"mimeType"`
		}{r.uri("data"), "data.txt", "text/plain"})})
	case "resources/templates/list":
		return list(r, "resourceTemplates", []json.RawMessage{encode(struct {
			URITemplate string `json:"uriTemplate"`
			Name        string `json:"name"`
			MIMEType    string `json:"mimeType"`
		}{r.uri("{name}"), "text files", "text/plain"})})
	case "resources/read":
		return r.readResource()
	case "completion/complete":
		return r.complete()
	default:
		return nil, methodNotFound(r.Method)
	}
}

// answer sends the answer. Results of the stateless era say what they are, who
// gave them and, if they are lists or the like, that they are stale at once.
func (r *request) answer(result any, failure *rpcError) {
	if failure != nil {
		r.send(encode(reply{JSONRPC: "2.0", ID: r.ID, Error: failure}))
		return
	}
	raw := encode(result)
	if r.modern {
		raw = r.modernResult(result, raw)
	}
	if r.flags.resultFirst {
		r.send(fmt.Appendf(nil, `{"result":%s,"jsonrpc":"2.0","id":%s}`, raw, r.ID))
		return
	}
	r.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, r.ID, raw))
}

func (r *request) modernResult(result any, raw []byte) []byte {
	resultType := "complete"
	if _, ok := result.(inputRequired); ok {
		resultType = "input_required"
	}
	b := fmt.Appendf(nil, `{"resultType":%q,"_meta":{%q:%s}`, resultType, metaServerInfo, encode(r.serverInfo()))
	if r.Method == "server/discover" || r.Method == "resources/read" || strings.HasSuffix(r.Method, "/list") {
		b = append(b, `,"ttlMs":0,"cacheScope":"public"`...)
	}
	if len(raw) > len("{}") {
		b = append(b, ',')
	}
	return append(b, raw[1:]...)
}

func (c *child) serverInfo() serverInfo { return serverInfo{Name: c.id, Version: serverVersion} }

func (c *child) capabilities() json.RawMessage {
	if c.flags.capsEmpty {
		return json.RawMessage(`{"tools":{}}`)
	}
	return json.RawMessage(`{"tools":{"listChanged":true},"prompts":{},` +
		`"resources":{"subscribe":true,"listChanged":true},"logging":{},"completions":{}}`)
}

// sleep waits and reports whether the request is still wanted then.
func (r *request) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-r.ctx.Done():
		return false
	}
}

// hang waits until the request is no longer wanted.
func (r *request) hang() (any, *rpcError) {
	<-r.ctx.Done()
	return nil, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (r *request) initialize() (any, *rpcError) {
	if r.flags.modernOnly {
		return nil, methodNotFound(r.Method)
	}
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if failure := r.decodeParams(&p); failure != nil {
		return nil, failure
	}
	if !slices.Contains(protocolVersions, p.ProtocolVersion) {
		p.ProtocolVersion = protocolVersions[len(protocolVersions)-1]
	}
	return r.introduce(struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ServerInfo      serverInfo      `json:"serverInfo"`
	}{p.ProtocolVersion, r.capabilities(), r.serverInfo()})
}

func (r *request) discover() (any, *rpcError) {
	return r.introduce(struct {
		SupportedVersions []string        `json:"supportedVersions"`
		Capabilities      json.RawMessage `json:"capabilities"`
	}{r.versions(), r.capabilities()})
}

// introduce returns the result, as late as the flags want it.
func (r *request) introduce(result any) (any, *rpcError) {
	if r.flags.hangInit {
		return r.hang()
	}
	if !r.sleep(seconds(r.flags.initDelay)) {
		return nil, nil
	}
	return result, nil
}

func (r *request) ping() (any, *rpcError) {
	switch {
	case r.flags.hangPing:
		return r.hang()
	case r.flags.noPing || r.flags.modernOnly:
		return nil, methodNotFound(r.Method)
	}
	return struct{}{}, nil
}

// list returns the page of items that the request asks for.
func list(r *request, name string, items []json.RawMessage) (any, *rpcError) {
	if !r.sleep(seconds(r.flags.listDelay)) {
		return nil, nil
	}
	if r.flags.listError {
		return nil, &rpcError{Code: codeInternalError, Message: "no list today"}
	}
	var p struct {
		Cursor *string `json:"cursor"`
	}
	if failure := r.decodeParams(&p); failure != nil {
		return nil, failure
	}
	start, end := 0, len(items)
	if p.Cursor != nil {
		var known bool
		if start, known = r.readCursor(*p.Cursor, len(items)); !known && r.flags.strictCursor {
			return nil, invalidParams("unknown cursor: %s", *p.Cursor)
		}
	}
	result := map[string]any{}
	if r.flags.page > 0 && start+r.flags.page < end {
		end = start + r.flags.page
		result["nextCursor"] = r.cursor(end)
	}
	result[name] = items[start:end]
	return result, nil
}

// cursor stands for the page that begins with the given item, of that list and
// that server only.
func (r *request) cursor(start int) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %s %d", r.id, r.Method, start))
}

func (r *request) readCursor(cursor string, items int) (start int, known bool) {
	for i := r.flags.page; i > 0 && i < items; i += r.flags.page {
		if cursor == r.cursor(i) {
			return i, true
		}
	}
	return 0, false
}

func (r *request) getPrompt() (any, *rpcError) {
	var p struct {
		Name      string `json:"name"`
		Arguments struct {
			Who string `json:"who"`
		} `json:"arguments"`
	}
	if failure := r.decodeParams(&p); failure != nil {
		return nil, failure
	}
	if p.Name != "p" {
		return nil, invalidParams("Unknown prompt: %s", p.Name)
	}
	type promptMessage struct {
		Role    string      `json:"role"`
		Content textContent `json:"content"`
	}
	return struct {
		Messages []promptMessage `json:"messages"`
	}{[]promptMessage{{"user", newText(fmt.Sprintf("%s greets %s", r.id, p.Arguments.Who))}}}, nil
}

// uri is the address of a text file of this server.
func (c *child) uri(name string) string { return "file://" + c.id + "/" + name + ".txt" }

func (r *request) readResource() (any, *rpcError) {
	var p struct {
		URI string `json:"uri"`
	}
	if failure := r.decodeParams(&p); failure != nil {
		return nil, failure
	}
	before, after, _ := strings.Cut(r.uri("\n"), "\n")
	name, isOurs := strings.CutPrefix(p.URI, before)
	name, isText := strings.CutSuffix(name, after)
	if !isOurs || !isText || name == "" || strings.Contains(name, "/") {
		code := codeResourceNotFound
		if r.modern {
			code = codeInvalidParams
		}
		return nil, &rpcError{Code: code, Message: "Resource not found", Data: map[string]string{"uri": p.URI}}
	}
	type resourceContent struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType"`
		Text     string `json:"text"`
	}
	return struct {
		Contents []resourceContent `json:"contents"`
	}{[]resourceContent{{p.URI, "text/plain", name + " of " + r.id}}}, nil
}

func (r *request) complete() (any, *rpcError) {
	type completion struct {
		Values  []string `json:"values"`
		Total   int      `json:"total"`
		HasMore bool     `json:"hasMore"`
	}
	return struct {
		Completion completion `json:"completion"`
	}{completion{Values: []string{r.id + "-one", r.id + "-two"}, Total: 2}}, nil
}

// listen is a subscriptions/listen that is being served.
type listen struct {
	id    json.RawMessage
	wants listenFilter
}

// listenFilter says what a client wants to hear about. Prompts do not change
// here, so they are not agreed to.
type listenFilter struct {
	ToolsListChanged      bool     `json:"toolsListChanged,omitempty"`
	ResourcesListChanged  bool     `json:"resourcesListChanged,omitempty"`
	ResourceSubscriptions []string `json:"resourceSubscriptions,omitempty"`
}

// listen says what it agrees to and then lasts until the client cancels it.
func (r *request) listen() (any, *rpcError) {
	var p struct {
		Notifications *listenFilter `json:"notifications"`
	}
	if failure := r.decodeParams(&p); failure != nil {
		return nil, failure
	}
	if p.Notifications == nil {
		return nil, invalidParams("missing required 'notifications' field")
	}
	if r.flags.capsEmpty {
		p.Notifications = &listenFilter{}
	}
	l := &listen{id: r.ID, wants: *p.Notifications}
	acknowledgement := outgoing("", "notifications/subscriptions/acknowledged",
		fmt.Appendf(nil, `{"_meta":{%q:%s},"notifications":%s}`, metaSubscriptionID, l.id, encode(l.wants)))

	// Who has read the acknowledgement misses nothing, and reads nothing before it.
	r.writing.Lock()
	r.mu.Lock()
	r.listens = append(r.listens, l)
	r.mu.Unlock()
	r.write(acknowledgement)
	r.writing.Unlock()

	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.listens = slices.DeleteFunc(r.listens, func(other *listen) bool { return other == l })
	}()
	return r.hang()
}

// announce tells about a change: who initialized, untagged, and each listen that
// wants to know, tagged. The members are those of params, or none.
func (c *child) announce(method string, members string, wanted func(listenFilter) bool) {
	c.mu.Lock()
	initialized, listens := c.initialized, slices.Clone(c.listens)
	c.mu.Unlock()
	if initialized {
		var params json.RawMessage
		if members != "" {
			params = json.RawMessage("{" + members + "}")
		}
		c.notify(method, params)
	}
	if members != "" {
		members += ","
	}
	for _, l := range listens {
		if wanted(l.wants) {
			c.notify(method, fmt.Appendf(nil, `{%s"_meta":{%q:%s}}`, members, metaSubscriptionID, l.id))
		}
	}
}
