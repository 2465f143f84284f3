package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A Dialect is the protocol variant that a client uses.
type Dialect uint8

// Dialects of clients.
const (
	Legacy Dialect = iota // Streamable HTTP with initialize and a session, up to 2025-11-25
	Modern                // Streamable HTTP without a session, 2026-07-28
	Plain                 // one JSON-RPC message per POST, one response
	SSE                   // HTTP+SSE: responses arrive on the stream that opened the session
)

// Timeout is the limit for a response.
const Timeout = 60 * time.Second

// HTTP is shared by all clients without TLS. It does not accept compression, so that all
// contestants get the same requests.
var HTTP = &http.Client{Timeout: Timeout, Transport: &http.Transport{
	MaxIdleConnsPerHost: 64,
	DisableCompression:  true,
	ReadBufferSize:      64 << 10,
}}

// streaming is HTTP without a timeout, for streams.
var streaming = &http.Client{Transport: HTTP.Transport}

// newHTTP2 returns a client for HTTP/2 with TLS and its own connection: MCP clients are
// separate programs and do not share one. It does not verify the certificate.
func newHTTP2() *http.Client {
	var only http.Protocols
	only.SetHTTP2(true)
	return &http.Client{Timeout: Timeout, Transport: &http.Transport{
		Protocols:          &only,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableCompression: true,
	}}
}

// Open returns a client. It initializes a session if the dialect has sessions. Requests carry
// the token unless it is empty. An https endpoint must support HTTP/2. Request ids are unique
// over all clients, so that a client detects a response to another one.
func Open(ctx context.Context, endpoint string, dialect Dialect, token string) (*Client, error) {
	c := &Client{endpoint: endpoint, dialect: dialect, http: HTTP, id: clients.Add(1) << 32, header: http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json, text/event-stream"},
	}}
	if strings.HasPrefix(endpoint, "https:") {
		c.http = newHTTP2()
	}
	if token != "" {
		c.header.Set("Authorization", "Bearer "+token)
	}
	switch dialect {
	case Modern:
		c.header.Set(mcp.VersionHeader, mcp.Stateless)
		return c, nil
	case Plain:
		return c, nil
	case SSE:
		if err := c.listen(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.initialize(ctx); err != nil {
		c.Close(ctx)
		return nil, err
	}
	return c, nil
}

var clients atomic.Uint64

// A Client is an MCP client. It must not be used by several goroutines at once.
type Client struct {
	endpoint string
	dialect  Dialect
	http     *http.Client  // HTTP, or a client with TLS
	header   http.Header   // header of each request
	id       uint64        // id of the last request
	body     bytes.Buffer  // last response
	in       *bufio.Reader // reader of events, reused
	data     []byte        // data of an event, reused

	stream *eventStream // stream of an SSE client
}

func (c *Client) initialize(ctx context.Context) error {
	const hello = `{"protocolVersion":"` + mcp.Latest +
		`","capabilities":{"sampling":{},"elicitation":{}},"clientInfo":{"name":"bench","version":"1"}}`
	answer, err := c.Request(ctx, "initialize", []byte(hello))
	if err != nil {
		return err
	}
	version := mcp.Latest
	if err := versionPath.Find(answer, func(_ int, v jsonspan.Value) { version = string(v.Body(answer)) }); err != nil {
		return err
	}
	if c.dialect == Legacy {
		c.header.Set(mcp.VersionHeader, version)
	}
	return c.post(ctx, jsonrpc.Notification("notifications/initialized", nil), nil)
}

var versionPath = jsonspan.CompilePaths("result.protocolVersion")

// Session returns the session id, or an empty string if the server assigned none.
func (c *Client) Session() string { return c.header.Get(mcp.SessionHeader) }

// Header returns a copy of the header that requests of this session carry.
func (c *Client) Header() http.Header { return c.header.Clone() }

// Close ends the session. If ctx has ended, it sends nothing to the server.
func (c *Client) Close(ctx context.Context) {
	if c.stream != nil {
		c.stream.close()
	}
	if c.http != HTTP {
		defer c.http.CloseIdleConnections()
	}
	if c.Session() == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.endpoint, nil)
	if err != nil {
		return
	}
	req.Header = c.header
	if resp, err := c.http.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

// modernMeta is the _meta of every request in the modern era.
const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + mcp.Stateless + `",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// Request makes a request and returns the response, a result or an error. The response is
// valid until the next request. Params are an object or nil.
func (c *Client) Request(ctx context.Context, method string, params []byte) ([]byte, error) {
	c.id++
	if c.dialect == Modern {
		if params == nil {
			params = []byte("{}")
		}
		params = jsonspan.Spliced(params, jsonspan.Insert(params, []byte(modernMeta)))
	}
	request := jsonrpc.Request(c.id, method, params)
	if c.dialect == Modern {
		var m jsonrpc.Message
		if f := m.Read(request); f != nil {
			return nil, f
		}
		mcp.SetModern(c.header, &m, mcp.Stateless)
	}
	var answer []byte
	err := c.post(ctx, request, func(resp *http.Response) (err error) {
		if session := resp.Header.Get(mcp.SessionHeader); session != "" && c.dialect == Legacy {
			c.header.Set(mcp.SessionHeader, session)
		}
		if c.dialect != SSE {
			answer, err = c.read(resp)
		}
		return err
	})
	if err == nil && c.dialect == SSE {
		answer, err = c.stream.nextResponse(ctx)
	}
	return answer, err
}

// Call calls a tool and verifies that the result is one text of this length.
func (c *Client) Call(ctx context.Context, tool string, chars int) error {
	answer, err := c.Request(ctx, "tools/call", []byte(`{"name":"`+tool+`","arguments":{}}`))
	if err != nil {
		return err
	}
	return Verify(answer, c.id, chars)
}

// List lists tools and verifies their number.
func (c *Client) List(ctx context.Context, tools int) error {
	answer, err := c.Request(ctx, "tools/list", nil)
	if err != nil {
		return err
	}
	return VerifyList(answer, c.id, tools)
}

// post posts a message and passes the response to read, unless read is nil.
func (c *Client) post(ctx context.Context, message []byte, read func(*http.Response) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(message))
	if err != nil {
		return err
	}
	req.Header = c.header // net/http does not modify it
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.TLS != nil && resp.ProtoMajor != 2 {
		return fmt.Errorf("%s, not HTTP/2", resp.Proto)
	}
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	if read != nil {
		if err := read(resp); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, resp.Body) // so that the connection is reused
	return err
}

// read returns the JSON-RPC response in an HTTP response: its body, or one of its events.
func (c *Client) read(resp *http.Response) ([]byte, error) {
	c.body.Reset()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "text/event-stream" {
		if n := resp.ContentLength; n > 0 {
			c.body.Grow(int(n) + bytes.MinRead)
		}
		_, err := c.body.ReadFrom(resp.Body)
		return c.body.Bytes(), err
	}
	if c.in == nil {
		c.in = bufio.NewReaderSize(nil, 64<<10)
	}
	c.in.Reset(resp.Body)
	events := eventStream{body: resp.Body, in: c.in, data: c.data[:0]}
	message, err := events.next(func(_ string, message []byte) bool { return isResponse(message) })
	c.data = events.data
	if errors.Is(err, io.EOF) {
		err = errors.New("the event stream ends without a response")
	}
	return message, err
}

// isResponse reports whether a message is a response.
func isResponse(message []byte) bool {
	var m jsonrpc.Message
	return m.Read(message) == nil && m.IsResponse()
}

var callPaths = jsonspan.CompilePaths("id", "result", "result.isError", "result.content.*.text", "error.message")

// Verify checks that a message is the response to this id, with one text of chars characters.
func Verify(answer []byte, id uint64, chars int) error {
	texts, err := checkResponse(callPaths, answer, id)
	if err != nil {
		return err
	}
	if len(texts) != 1 || texts[0].Chars != chars {
		got := 0
		for _, v := range texts {
			got += v.Chars
		}
		return fmt.Errorf("%d texts of %d characters, not one of %d", len(texts), got, chars)
	}
	return nil
}

var listPaths = jsonspan.CompilePaths("id", "result", "result.isError", "result.tools.*.name", "error.message")

// VerifyList checks that a message is the response to this id, with this number of tools.
func VerifyList(answer []byte, id uint64, tools int) error {
	names, err := checkResponse(listPaths, answer, id)
	if err == nil && len(names) != tools {
		err = fmt.Errorf("%d tools, not %d", len(names), tools)
	}
	return err
}

// checkResponse checks id and result of a response and returns the values at the fourth path.
func checkResponse(paths *jsonspan.Paths, answer []byte, id uint64) (found []jsonspan.Value, err error) {
	var answers, has, failed bool
	var message string
	err = paths.Find(answer, func(path int, v jsonspan.Value) {
		literal := answer[v.Start:v.End]
		switch path {
		case 0:
			answers = jsonrpc.SameID(literal, fmt.Append(nil, id))
		case 1:
			has = true
		case 2:
			failed = v.Kind == jsonspan.True
		case 3:
			found = append(found, v)
		case 4:
			message = string(v.Body(answer))
		}
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("a response of %d bytes: %w", len(answer), err)
	case message != "":
		return nil, fmt.Errorf("error response: %s", message)
	case !answers:
		return nil, errors.New("a response to another request")
	case !has:
		return nil, errors.New("a response without a result")
	case failed:
		return nil, errors.New("the tool failed")
	}
	return found, nil
}

// listen opens the stream of HTTP+SSE. Its first event is the endpoint for messages.
func (c *Client) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.endpoint, nil)
	if err != nil {
		cancel()
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := streaming.Do(req)
	if err != nil {
		cancel()
		return err
	}
	c.stream = &eventStream{body: resp.Body, in: bufio.NewReaderSize(resp.Body, 64<<10), cancel: cancel}
	if resp.StatusCode != http.StatusOK {
		c.stream.close()
		return errors.New(resp.Status)
	}
	location, err := c.stream.next(func(kind string, _ []byte) bool { return kind == "endpoint" })
	if err != nil {
		c.stream.close()
		return err
	}
	base, err := url.Parse(c.endpoint)
	if err != nil {
		return err
	}
	endpoint, err := base.Parse(strings.TrimSpace(string(location)))
	if err != nil {
		return err
	}
	c.endpoint = endpoint.String()
	return nil
}

// An eventStream is a response with events.
type eventStream struct {
	body    io.Closer
	in      *bufio.Reader
	cancel  func()
	scanner sse.Scanner
	fields  sse.Fields
	data    []byte
}

func (s *eventStream) close() {
	s.cancel()
	_ = s.body.Close()
}

// nextResponse waits for the next JSON-RPC response on the stream, up to Timeout.
func (s *eventStream) nextResponse(ctx context.Context) ([]byte, error) {
	late := time.AfterFunc(Timeout, s.cancel)
	defer late.Stop()
	done := context.AfterFunc(ctx, s.cancel)
	defer done()
	return s.next(func(kind string, message []byte) bool { return kind != "endpoint" && isResponse(message) })
}

// next returns the data of the next event that wanted accepts. The data is valid until the
// next call.
func (s *eventStream) next(wanted func(kind string, data []byte) bool) ([]byte, error) {
	s.data = s.data[:0]
	for {
		kind, part := s.scanner.Next()
		switch kind {
		case sse.More:
			if n := s.in.Buffered(); n > 0 {
				_, _ = s.in.Discard(n) // consumed by the scanner
			}
			if _, err := s.in.Peek(1); err != nil {
				return nil, err
			}
			piece, _ := s.in.Peek(s.in.Buffered())
			s.scanner.Feed(piece)
		case sse.Data:
			s.data = append(s.data, part...)
		case sse.Frame:
			s.fields.Read(part)
		case sse.Dispatch:
			event := s.fields.Type
			s.fields.Reset()
			if len(s.data) > 0 && wanted(event, s.data) {
				return s.data, nil
			}
			s.data = s.data[:0]
		}
	}
}

// ErrNoStream is returned by Listen if the server has no GET stream.
var ErrNoStream = errors.New("sessions have no stream")

// Listen opens the GET stream of a session, identified by its header. It returns a bare
// connection: ten thousand clients of net/http would take more memory than the contestants.
func Listen(ctx context.Context, endpoint string, session http.Header) (net.Conn, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/event-stream")
	for _, name := range [...]string{mcp.VersionHeader, mcp.SessionHeader} {
		r.Header.Set(name, session.Get(name))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.URL.Host)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(Timeout))
	err = r.Write(conn) // same User-Agent as other requests: the gateway may identify clients by headers
	status := make([]byte, len("HTTP/1.1 200"))
	if err == nil {
		_, err = io.ReadFull(conn, status)
	}
	switch code := string(status[len(status)-3:]); {
	case err != nil || code == "200":
	case code == "405":
		err = ErrNoStream
	default:
		err = fmt.Errorf("GET: %q", status)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
