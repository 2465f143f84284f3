package mcptest

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
)

// Stub is an upstream that does what the request says. It serves any path and HTTP method; the
// JSON-RPC method in the body selects the response:
//
//	echo                  result = params, byte for byte
//	big {n,c}             result = the string c (default "A") n times, with c
//	                      spelled as in the request, escapes included
//	err {n}               error -32050 "boom", data = "E" n times
//	raw {status,ctype,body,headers,chunked,gzip,encoding}
//	                      that HTTP response, see below
//	sleep {ms}            result true after that time
//	reset {n}             the first half of a reply whose result has n characters
//	                      (default 100), then a TCP reset
//	note                  202 with no body
//	sse {interval_ms,n,size}
//	                      n (3) events, interval_ms (200) apart, each flushed:
//	                      log notifications and, last, the response, each with a
//	                      text of size characters (default "event 1", "event 2" …)
//
// Anything else gets a JSON-RPC error: -32601 for another method, -32602 for params of the wrong
// type, and -32700 with HTTP status 400 for a body that is not a message.
//
// In raw, status defaults to 200 and ctype to application/json; ctype "" sends no Content-Type.
// Headers are set last and replace those of the stub, including Content-Length. The length is sent
// unless chunked is true. With gzip the body is compressed if the request's Accept-Encoding allows
// it; with encoding "gzip" it is always compressed.
//
// Last and Count return what was received; so do /__last (JSON) and /__count (a number) for other
// processes. These two paths are neither recorded nor counted. /__last is JSON text and shows bytes
// that are not UTF-8 as U+FFFD; Last has the bytes.
//
// The zero value is ready for use. A Stub reads bodies of any size, so it must not be reachable
// from other machines.
type Stub struct {
	// ResultFirst writes results as {"result":…,"jsonrpc":"2.0","id":…}, the
	// order of the official TypeScript SDK, where the id is known only after a
	// result of any size. Errors keep the usual order, as they do there.
	// Set it before the first request. Default: false.
	ResultFirst bool

	recorder
}

// Request is a request as a fixture received it.
type Request struct {
	Method string `json:"method"`
	Path   string `json:"path"`

	// Headers include Host and Transfer-Encoding, which net/http keeps apart.
	Headers http.Header `json:"headers"`

	// Body is the raw body, a string only so that it shows as text in JSON.
	Body string `json:"body"`
}

// recorder records what a fixture receives. Requests to /__last and /__count are neither recorded
// nor counted.
type recorder struct {
	mu    sync.Mutex
	kept  []Request // in the order of arrival
	size  int       // of the kept bodies
	count int
}

// maxKeptBytes bounds the size of the recorded bodies. The latest one is kept whatever its size.
const maxKeptBytes = 64 << 20

// Last returns the latest request, or the zero Request before the first.
func (rec *recorder) Last() Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if len(rec.kept) == 0 {
		return Request{}
	}
	last := rec.kept[len(rec.kept)-1]
	last.Headers = last.Headers.Clone()
	return last
}

// Requests returns the latest requests in the order of arrival: one for a Stub, 1000 for the
// others, or fewer if their bodies exceed 64 MiB.
func (rec *recorder) Requests() []Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	requests := slices.Clone(rec.kept)
	for i := range requests {
		requests[i].Headers = requests[i].Headers.Clone()
	}
	return requests
}

// Count returns the number of received requests.
func (rec *recorder) Count() int {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.count
}

// serveRecorded serves /__last and /__count, and reports whether the request was for one of them.
func (rec *recorder) serveRecorded(w http.ResponseWriter, r *http.Request) bool {
	switch r.URL.Path {
	case "/__last":
		writeJSON(w, http.StatusOK, encode(rec.Last()))
	case "/__count":
		_, _ = fmt.Fprint(w, rec.Count())
	default:
		return false
	}
	return true
}

// record records the request, drops the oldest if there are more than keep, and returns the body. A
// body that ends early is recorded as far as it was received.
func (rec *recorder) record(r *http.Request, keep int) []byte {
	body, _ := io.ReadAll(r.Body)
	headers := r.Header.Clone()
	headers.Set("Host", r.Host)
	if len(r.TransferEncoding) > 0 {
		headers["Transfer-Encoding"] = r.TransferEncoding
	}

	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.count++
	rec.kept = append(rec.kept, Request{Method: r.Method, Path: r.URL.Path, Headers: headers, Body: string(body)})
	rec.size += len(body)
	for len(rec.kept) > keep || len(rec.kept) > 1 && rec.size > maxKeptBytes {
		rec.size -= len(rec.kept[0].Body)
		rec.kept = slices.Delete(rec.kept, 0, 1)
	}
	return body
}

// ServeHTTP responds as the request says.
func (s *Stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.serveRecorded(w, r) {
		return
	}

	body := s.record(r, 1)
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		failure := &rpcError{Code: codeParseError, Message: "parse error: " + err.Error()}
		refuse(w, http.StatusBadRequest, nil, failure)
		return
	}
	if failure := s.respond(w, r, m); failure != nil {
		refuse(w, http.StatusOK, m.ID, failure)
	}
}

// respond responds to m, or returns the error to respond with.
func (s *Stub) respond(w http.ResponseWriter, r *http.Request, m message) *rpcError {
	switch m.Method {
	case "echo":
		result := m.Params
		if result == nil {
			result = json.RawMessage("null")
		}
		writeJSON(w, http.StatusOK, s.result(m.ID, result))
		return nil
	case "big":
		return s.big(w, m)
	case "err":
		return s.boom(m)
	case "raw":
		return s.raw(w, r, m)
	case "sleep":
		return s.sleep(w, r, m)
	case "reset":
		return s.reset(w, m)
	case "note":
		w.WriteHeader(http.StatusAccepted)
		return nil
	case "sse":
		return s.events(w, r, m)
	default:
		return methodNotFound(m.Method)
	}
}

func (s *Stub) result(id json.RawMessage, result []byte) []byte {
	return resultReply(id, result, s.ResultFirst)
}

func (s *Stub) big(w http.ResponseWriter, m message) *rpcError {
	p := struct {
		N int             `json:"n"`
		C json.RawMessage `json:"c"`
	}{C: json.RawMessage(`"A"`)}
	if err := m.decodeParams(&p); err != nil {
		return err
	}
	if p.N < 0 {
		return invalidParams("n must not be negative")
	}
	if p.C[0] != '"' {
		return invalidParams("c must be a string")
	}
	spelling := p.C[1 : len(p.C)-1]
	writeJSON(w, http.StatusOK, s.result(m.ID, quoted(bytes.Repeat(spelling, p.N))))
	return nil
}

func (s *Stub) boom(m message) *rpcError {
	var p struct {
		N int `json:"n"`
	}
	if err := m.decodeParams(&p); err != nil {
		return err
	}
	if p.N < 0 {
		return invalidParams("n must not be negative")
	}
	return &rpcError{Code: -32050, Message: "boom", Data: strings.Repeat("E", p.N)}
}

func (s *Stub) raw(w http.ResponseWriter, r *http.Request, m message) *rpcError {
	p := struct {
		Status   int               `json:"status"`
		CType    string            `json:"ctype"`
		Body     string            `json:"body"`
		Headers  map[string]string `json:"headers"`
		Chunked  bool              `json:"chunked"`
		Gzip     bool              `json:"gzip"`
		Encoding string            `json:"encoding"`
	}{Status: http.StatusOK, CType: "application/json"}
	if err := m.decodeParams(&p); err != nil {
		return err
	}
	if p.Status < 100 || p.Status > 999 {
		return invalidParams("status must have three digits")
	}
	if p.Encoding != "" && p.Encoding != "gzip" {
		return invalidParams("encoding must be gzip; to mislabel a body, set the header")
	}

	header, body := w.Header(), []byte(p.Body)
	header.Set("Content-Type", p.CType)
	if p.CType == "" {
		header["Content-Type"] = nil // else net/http would guess one
	}
	if p.Encoding == "gzip" || p.Gzip && acceptsGzip(r.Header) {
		body = compress(body)
		header.Set("Content-Encoding", "gzip")
	}
	if !p.Chunked {
		header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	for name, value := range p.Headers {
		header.Set(name, value)
	}
	w.WriteHeader(p.Status)
	if p.Chunked {
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = w.Write(body)
	return nil
}

func (s *Stub) sleep(w http.ResponseWriter, r *http.Request, m message) *rpcError {
	var p struct {
		MS int `json:"ms"`
	}
	if err := m.decodeParams(&p); err != nil {
		return err
	}
	if backoff.Sleep(r.Context(), milliseconds(p.MS)) {
		writeJSON(w, http.StatusOK, s.result(m.ID, []byte("true")))
	}
	return nil
}

func (s *Stub) reset(w http.ResponseWriter, m message) *rpcError {
	p := struct {
		N int `json:"n"`
	}{N: 100}
	if err := m.decodeParams(&p); err != nil {
		return err
	}
	if p.N < 0 {
		return invalidParams("n must not be negative")
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// HTTP/2 has no connection to reset; aborting the handler comes closest.
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()

	body := s.result(m.ID, quoted(bytes.Repeat([]byte("A"), p.N)))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body[:len(body)/2])
	abort(conn)
	return nil
}

// abort closes conn with RST instead of FIN, so that the peer gets an error instead of a normal
// end. It bypasses TLS, which would send close_notify first.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (s *Stub) events(w http.ResponseWriter, r *http.Request, m message) *rpcError {
	p := struct {
		IntervalMS int  `json:"interval_ms"`
		N          int  `json:"n"`
		Size       *int `json:"size"`
	}{IntervalMS: 200, N: 3}
	if err := m.decodeParams(&p); err != nil {
		return err
	}
	if p.Size != nil && *p.Size < 0 {
		return invalidParams("size must not be negative")
	}

	startEvents(w)
	for i := 1; i <= p.N; i++ {
		if i > 1 && !backoff.Sleep(r.Context(), milliseconds(p.IntervalMS)) {
			return nil
		}
		text := fmt.Sprintf("event %d", i)
		if p.Size != nil {
			text = strings.Repeat("A", *p.Size)
		}
		if i < p.N {
			params := struct {
				Level string `json:"level"`
				Data  string `json:"data"`
			}{"info", text}
			writeEvent(w, outgoing("", "notifications/message", encode(params)))
			continue
		}
		writeEvent(w, s.result(m.ID, encode(toolResult{Content: []textContent{newText(text)}})))
	}
	return nil
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func quoted(spelling []byte) []byte {
	return fmt.Appendf(make([]byte, 0, len(spelling)+2), `"%s"`, spelling)
}

func compress(body []byte) []byte {
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	_, _ = zw.Write(body) // a bytes.Buffer does not fail
	_ = zw.Close()
	return b.Bytes()
}

// acceptsGzip reports whether Accept-Encoding names gzip, or failing that "*",
// with a weight other than zero.
func acceptsGzip(header http.Header) bool {
	var wildcard bool
	for coding := range strings.SplitSeq(strings.Join(header.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		_, q, weighted := strings.Cut(weight, "=")
		value, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
		accepted := !weighted || err == nil && value > 0
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip":
			return accepted
		case "*":
			wildcard = accepted
		}
	}
	return wildcard
}

// Interface guard
var _ http.Handler = (*Stub)(nil)
