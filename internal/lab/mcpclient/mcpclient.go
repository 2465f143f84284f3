// Package mcpclient has clients for the lab's tests.
//
// [Client] follows the specification of Streamable HTTP, in either era. [NewRequest] sends
// any bytes with any headers, for tests that violate it.
package mcpclient

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Revisions of the protocol.
const (
	Legacy = "2025-11-25" // latest revision with sessions
	Modern = "2026-07-28"
)

// Accept is the Accept header of each POST.
const Accept = "Accept: application/json, text/event-stream"

// NewRequest prepares a request with this body. Headers are "Name: value"; a header without a
// value is not sent.
func NewRequest(ctx context.Context, method, url, body string, headers ...string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, header := range headers {
		if name, value, _ := strings.Cut(header, ": "); value != "" {
			req.Header.Set(name, value)
		}
	}
	return req, nil
}

// Client is a client of an endpoint. In the legacy era, call [Client.Initialize] first.
type Client struct {
	URL          string
	Modern       bool         // use the modern era
	Capabilities string       // JSON object
	Headers      []string     // headers of each request, including those of the session
	Session      string       // header with the session id, or ""
	HTTP         *http.Client // http.DefaultClient if nil

	// Params are the tool arguments that a modern client repeats in headers.
	Params mcp.ParamHeaders

	ids atomic.Int64
}

// Initialize initializes a session. It adopts the version of the result, and the session id if
// there is one.
func (c *Client) Initialize(ctx context.Context, version string) (Response, error) {
	got := c.Start(ctx, "initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,`+
		`"clientInfo":{"name":"test","version":"1"}}`, version, c.Capabilities)).Finish()
	var result struct{ ProtocolVersion string }
	err := got.Err
	if err == nil {
		err = json.Unmarshal(got.Result, &result)
	}
	if err != nil || got.Status != http.StatusOK {
		return got, fmt.Errorf("initialize: %d %v %.500s, error %v", got.Status, got.Header, got.Body, err)
	}
	c.Headers = slices.Clone(c.Headers)
	if session := got.Header.Get("Mcp-Session-Id"); session != "" {
		c.Session = "Mcp-Session-Id: " + session
		c.Headers = append(c.Headers, c.Session)
	}
	c.Headers = append(c.Headers, "Mcp-Protocol-Version: "+result.ProtocolVersion)
	return got, c.Notify(ctx, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// Notify posts a notification or a response, and expects status 202.
func (c *Client) Notify(ctx context.Context, message string) error {
	got := c.Post(ctx, message).Finish()
	if got.Err != nil || got.Status != http.StatusAccepted || got.Body != "" {
		return fmt.Errorf("%s: got %d %s, error %v, want 202", message, got.Status, got.Body, got.Err)
	}
	return nil
}

// NextID returns an id that the client has not used yet.
func (c *Client) NextID() string { return fmt.Sprintf(`"%d"`, c.ids.Add(1)) }

// A Responder returns the result, as JSON, of a server request.
type Responder func(method string, params json.RawMessage) string

// Request makes a request and responds to server requests: those on the stream of the response,
// and results that require input, after which Request repeats its request, up to 10 times.
func (c *Client) Request(ctx context.Context, method, params string, answer Responder) (got Response) {
	attempt := params
	for range 10 {
		got = c.Respond(ctx, c.Start(ctx, method, attempt), answer)
		input, required := got.input()
		if !required {
			break
		}
		attempt = input.Retry(params, answer)
	}
	return got
}

// Respond reads a response to its end and responds to server requests on its stream. It
// cancels the exchange if it cannot send one of these responses.
func (c *Client) Respond(ctx context.Context, x *Exchange, answer Responder) Response {
	var failed error
	got := x.finish(func(m Message) {
		if m.ID == nil || failed != nil {
			return
		}
		failed = c.Notify(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, answer(m.Method, m.Params.Raw)))
		if failed != nil {
			x.Cancel()
		}
	})
	got.Err = cmp.Or(failed, got.Err)
	return got
}

// Start sends a request with the next id. The caller reads the response.
func (c *Client) Start(ctx context.Context, method, params string, headers ...string) *Exchange {
	id := c.NextID()
	body, all := c.Message(id, method, params)
	return c.exchange(ctx, id, http.MethodPost, body, append(all, headers...))
}

// Post posts a message. The caller reads the response.
func (c *Client) Post(ctx context.Context, message string) *Exchange {
	return c.exchange(ctx, "", http.MethodPost, message, c.HeadersOf(message))
}

// Listen opens the GET stream of the session.
func (c *Client) Listen(ctx context.Context) *Exchange {
	return c.exchange(ctx, "", http.MethodGet, "", append(slices.Clone(c.Headers), "Accept: text/event-stream"))
}

// Message returns a request and its headers. Params are an object or "".
func (c *Client) Message(id, method, params string) (body string, headers []string) {
	if c.Modern {
		meta := `"io.modelcontextprotocol/protocolVersion":"` + Modern +
			`","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},` +
			`"io.modelcontextprotocol/clientCapabilities":` + c.Capabilities
		switch {
		case strings.Contains(params, `"_meta":{`):
			params = strings.Replace(params, `"_meta":{`, `"_meta":{`+meta+`,`, 1)
		case params == "{}" || params == "":
			params = `{"_meta":{` + meta + `}}`
		default:
			params = strings.TrimSuffix(params, "}") + `,"_meta":{` + meta + `}}`
		}
	}
	if params != "" {
		params = `,"params":` + params
	}
	name, _ := json.Marshal(method) // never fails for strings
	body = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%s%s}`, id, name, params)
	return body, c.HeadersOf(body)
}

// HeadersOf returns the headers for a POST of this message.
func (c *Client) HeadersOf(message string) []string {
	headers := append(slices.Clone(c.Headers), Accept)
	if !c.Modern {
		return headers
	}
	var m jsonrpc.Message
	_ = m.Read([]byte(message))
	method := m.Text(jsonrpc.Method)
	headers = append(headers, "Mcp-Protocol-Version: "+Modern, "Mcp-Method: "+method)
	switch method {
	case "tools/call", "prompts/get":
		headers = append(headers, "Mcp-Name: "+m.Text(jsonrpc.Name))
	case "resources/read":
		headers = append(headers, "Mcp-Name: "+m.Text(jsonrpc.URI))
	case "tasks/get", "tasks/update", "tasks/cancel":
		headers = append(headers, "Mcp-Name: "+m.Text(jsonrpc.TaskID))
	}
	return headers
}

// exchange starts an HTTP request.
func (c *Client) exchange(ctx context.Context, id, method, body string, headers []string) *Exchange {
	ctx, hangUp := context.WithCancel(ctx)
	messages := make(chan Message, 100)
	opened := make(chan struct{})
	x := &Exchange{ID: id, Cancel: hangUp, Opened: opened, Messages: messages}
	go func() {
		defer close(messages)
		defer hangUp()
		res, err := c.do(ctx, method, body, headers)
		if err != nil {
			x.Err = err
			close(opened)
			return
		}
		defer res.Body.Close()
		x.Status, x.Header = res.StatusCode, res.Header
		close(opened)
		x.body, x.Err = read(res, messages)
	}()
	return x
}

func (c *Client) do(ctx context.Context, method, body string, headers []string) (*http.Response, error) {
	req, err := NewRequest(ctx, method, c.URL, body, headers...)
	if err != nil {
		return nil, err
	}
	var m jsonrpc.Message
	if c.Modern && c.Params != nil && m.Read([]byte(body)) == nil {
		c.Params.Set(req.Header, &m)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	return client.Do(req)
}

// read sends the messages of a response to the channel and returns its body.
func read(res *http.Response, messages chan<- Message) (body string, err error) {
	var text strings.Builder
	stream := io.TeeReader(res.Body, &text)
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err = readEvents(stream, func(id, data string) { messages <- parse(id, data) })
		return text.String(), err
	}
	_, err = io.Copy(io.Discard, stream)
	if err == nil && text.Len() > 0 {
		messages <- parse("", text.String())
	}
	return text.String(), err
}

// readEvents calls each for every event with data until the stream ends.
func readEvents(stream io.Reader, each func(id, data string)) error {
	lines := bufio.NewReader(stream)
	var id string
	var data []string
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "data":
			if value != "" {
				data = append(data, value)
			}
		case "":
			if value == "" && len(data) > 0 { // not a comment
				each(id, strings.Join(data, "\n"))
			}
			if value == "" {
				id, data = "", nil
			}
		}
	}
}

// Exchange is a request whose response is read message by message.
type Exchange struct {
	ID     string
	Cancel context.CancelFunc

	Opened <-chan struct{} // closed when Status and Header, or Err, are set
	Status int
	Header http.Header

	Messages <-chan Message // closed at the end of the response
	Err      error          // valid once Messages is closed

	body string
}

// Response is a complete response.
type Response struct {
	Message
	Status int
	Header http.Header
	Body   string
	Before []Message // messages before the JSON-RPC response
	Err    error
}

// Finish reads the response to its end.
func (x *Exchange) Finish() Response { return x.finish(func(Message) {}) }

// finish reads the response to its end and calls each with every message but the JSON-RPC response.
func (x *Exchange) finish(each func(Message)) (got Response) {
	for m := range x.Messages {
		if m.Method == "" {
			got.Message = m
		} else {
			got.Before = append(got.Before, m)
			each(m)
		}
	}
	got.Status, got.Header, got.Body, got.Err = x.Status, x.Header, x.body, x.Err
	return got
}

// Message is a message that a client received.
type Message struct {
	ID     json.RawMessage
	Method string
	Params Params
	Result json.RawMessage
	Error  *Error

	Raw     string `json:"-"` // complete message
	EventID string `json:"-"`
}

// Params are the params of a message from a server.
type Params struct {
	Meta          map[string]json.RawMessage `json:"_meta"`
	Proxy         struct{ Server string }
	URI           string
	ProgressToken json.RawMessage
	Progress      float64
	Message       string
	Notifications json.RawMessage
	Data          json.RawMessage

	Raw json.RawMessage `json:"-"` // complete params
}

// UnmarshalJSON implements json.Unmarshaler. Params of another shape are only in Raw.
func (p *Params) UnmarshalJSON(text []byte) error {
	type plain Params
	_ = json.Unmarshal(text, (*plain)(p))
	p.Raw = slices.Clone(text)
	return nil
}

// Error is the error member of a message.
type Error struct {
	Code    int
	Message string
	Data    json.RawMessage
}

// Symbol returns the code in the data of an error from the gateway.
func (e *Error) Symbol() string { return e.member("code") }

// Server returns the server name in the data of an error from the gateway.
func (e *Error) Server() string { return e.member("server_name") }

func (e *Error) member(name string) (value string) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(e.Data, &members)
	_ = json.Unmarshal(members[name], &value)
	return value
}

// Parse parses a message. If the text is not a message, Method contains the error.
func Parse(raw string) Message { return parse("", raw) }

func parse(eventID, raw string) (m Message) {
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		m = Message{Method: "not a message: " + err.Error()}
	}
	m.Raw, m.EventID = raw, eventID
	return m
}

func (m Message) String() string { return m.Raw }

// Param returns a member of the params as raw JSON, or "".
func (m Message) Param(name string) string {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(m.Params.Raw, &members)
	return string(members[name])
}

// Input is an input_required result.
type Input struct {
	ResultType    string
	InputRequests map[string]struct {
		Method string
		Params json.RawMessage
	}
	RequestState string
}

// Input returns the input_required result of the message, or fails the test.
func (m Message) Input(t testing.TB) Input {
	t.Helper()
	input, ok := m.input()
	if !ok {
		t.Fatalf("got %s, want an input_required result", m.Raw)
	}
	return input
}

func (m Message) input() (result Input, ok bool) {
	ok = json.Unmarshal(m.Result, &result) == nil && result.ResultType == "input_required" && len(result.InputRequests) > 0
	return result, ok
}

// Retry returns the params for repeating a request with responses to the input requests of
// its result.
func (input Input) Retry(params string, answer Responder) string {
	responses := map[string]json.RawMessage{}
	for key, request := range input.InputRequests {
		responses[key] = json.RawMessage(answer(request.Method, request.Params))
	}
	encoded, _ := json.Marshal(responses)
	params = strings.TrimSuffix(params, "}") + `,"inputResponses":` + string(encoded)
	if input.RequestState != "" {
		state, _ := json.Marshal(input.RequestState)
		params += `,"requestState":` + string(state)
	}
	return params + "}"
}

// Text returns the text of a tool result, or a text that starts with "not a text" if the message is
// something else.
func (m Message) Text() string {
	var result struct{ Content []struct{ Text string } }
	if json.Unmarshal(m.Result, &result) != nil || len(result.Content) != 1 {
		return "not a text: " + m.Raw
	}
	return result.Content[0].Text
}
