// Package mcptest provides servers for tests, in the manner of net/http/httptest. Only tests and
// internal/lab import it.
//
// [Stub] is an upstream controlled by the client: the request says how the upstream behaves (a huge
// result, a slow one, a body cut off by a TCP reset), and the client can read back what the
// upstream received.
//
// [Remote] and [RunChild] are one MCP server of both eras, with two transports: Remote
// over Streamable HTTP, RunChild over stdio, as a child process. Both are strict about
// the protocol, and violate it only as their tools and flags say.
//
// [Script] is a scripted server: it checks nothing, and a test writes its responses, byte by byte
// if needed.
//
// [Chat] is a fake model API that records requests and answers "ok".
//
// [Reranker] is a fake reranker that records requests. The path selects a valid or invalid
// response.
//
// The package reads and writes JSON-RPC only with encoding/json. If it used the project's own
// parsers, it would share their bugs, and tests would not notice them.
package mcptest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// JSON-RPC error codes.
const (
	codeParseError     = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
)

// serverVersion is the version that the servers give in their handshake.
const serverVersion = "0.1.0"

// protocolVersions are the revisions of MCP with a handshake, newest first.
var protocolVersions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type textContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func newText(text string) textContent { return textContent{Type: "text", Text: text} }

// readMessage returns the message in body. It refuses batches, which only revision 2025-03-26 of
// the legacy era has.
func readMessage(body []byte) (message, *rpcError) {
	var m message
	if !json.Valid(body) {
		return m, &rpcError{Code: codeParseError, Message: "parse error"}
	}
	if json.Unmarshal(body, &m) != nil || m.JSONRPC != "2.0" || !validID(m.ID) {
		return m, &rpcError{Code: codeInvalidRequest, Message: "not a JSON-RPC 2.0 message"}
	}
	isReply := m.ID != nil && (m.Result != nil || m.Error != nil)
	if m.Method == "" && !isReply {
		return m, &rpcError{Code: codeInvalidRequest, Message: "neither a request nor a response"}
	}
	return m, nil
}

// validID reports whether id is absent, a string or a number. MCP, unlike
// JSON-RPC, has no null ids.
func validID(id json.RawMessage) bool {
	return id == nil || strings.IndexByte(`"-0123456789`, id[0]) >= 0
}

// refuse responds with an error. A nil id becomes null.
func refuse(w http.ResponseWriter, status int, id json.RawMessage, failure *rpcError) {
	writeJSON(w, status, errorReply(id, failure))
}

// message is a message of a client: a request, a notification (no id) or a response to a server
// request (no method).
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
}

// decodeParams fills p, which holds the defaults, from the message's params.
// Absent and null params leave the defaults.
func (m message) decodeParams(p any) *rpcError {
	if len(m.Params) == 0 {
		return nil
	}
	if err := json.Unmarshal(m.Params, p); err != nil {
		return invalidParams("invalid params: %v", err)
	}
	return nil
}

// errorReply returns the response to a request that fails. A nil id becomes null.
func errorReply(id json.RawMessage, failure *rpcError) []byte {
	return encode(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *rpcError       `json:"error"`
	}{"2.0", id, failure})
}

// rpcError is the error member of a reply.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func invalidParams(format string, args ...any) *rpcError {
	return &rpcError{Code: codeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

func methodNotFound(method string) *rpcError {
	return &rpcError{Code: codeMethodNotFound, Message: "method not found: " + method}
}

// resultReply returns the response to a request. It joins raw parts, because json.Marshal would
// compact and escape them.
func resultReply(id json.RawMessage, result []byte, resultFirst bool) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	if resultFirst {
		return fmt.Appendf(nil, `{"result":%s,"jsonrpc":"2.0","id":%s}`, result, id)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// outgoing returns a message of the server, with params unchanged. id is the member "id" followed
// by a comma, or "" for a notification.
func outgoing(id, method string, params json.RawMessage) []byte {
	if params != nil {
		params = slices.Concat([]byte(`,"params":`), params)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0",%s"method":%s%s}`, id, encode(method), params)
}

// encode is json.Marshal without its HTML escaping: "<" stays "<", as it does
// on the wire of servers written in other languages. It panics on values that
// JSON cannot express, since all values are made in this package.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("mcptest: encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// writeJSON sends a whole body. It sets the length, because net/http does so only for bodies that
// fit into its buffer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// startEvents begins an event stream. It asks proxies not to buffer the stream, as nginx does by
// default.
func startEvents(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// writeEvent sends one event and flushes it. The data must have no line breaks, as compact JSON.
func writeEvent(w http.ResponseWriter, data []byte) {
	_, _ = fmt.Fprintf(w, "event: message\ndata: %s\n\n", data)
	_ = http.NewResponseController(w).Flush()
}
