package mcpsample

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
)

// maxMessage is the largest message the server reads, in bytes.
const maxMessage = 1 << 20

// Server is the MCP server of mcp_sample and `caddy mcp-sample`. It is stateless and safe for
// concurrent use. Create one with NewServer.
type Server struct {
	tools []tool
}

// NewServer returns a Server.
func NewServer() *Server { return &Server{tools: sampleTools()} }

// ServeHTTP handles one JSON-RPC message over Streamable HTTP, on any path. It responds with an
// event stream if the client accepts one, else with JSON. A body that is not a message gets status
// 400, one over 1 MiB gets 413. All other errors are JSON-RPC errors with status 200.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		status := http.StatusBadRequest
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			status = http.StatusRequestEntityTooLarge
		}
		writeJSON(w, status, jsonrpc.ErrorResponse(noID, jsonrpc.CodeInvalidRequest, err.Error()))
		return
	}
	answer, valid := s.answer(body)
	switch {
	case !valid:
		writeJSON(w, http.StatusBadRequest, answer)
	case answer == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		out := streamable.NewWriter(w, r.Header)
		out.Begin()
		out.Answer(http.StatusOK, &streamable.Event{Type: "message", Data: answer})
	}
}

// ServeStdio handles messages line by line until in ends.
func (s *Server) ServeStdio(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		answer, _ := s.answer(lines.Bytes())
		if answer == nil {
			continue
		}
		if _, err := out.Write(append(answer, '\n')); err != nil {
			return err
		}
	}
	return lines.Err()
}

// noID is the id of a response to a message without a valid id.
var noID = []byte("null")

// answer returns the response to a message, or nil if the message needs none. valid is false if it
// is not a JSON-RPC message.
func (s *Server) answer(body []byte) (answer []byte, valid bool) {
	var m jsonrpc.Message
	if failure := m.Read(body); failure != nil && failure.Code == jsonrpc.CodeParseError {
		return jsonrpc.ErrorResponse(noID, failure.Code, "parse error"), false
	}
	id := m.Kind(jsonrpc.ID)
	switch {
	case !m.Is(jsonrpc.Version, "2.0"),
		m.Has(jsonrpc.Method) && m.Kind(jsonrpc.Method) != jsonspan.String,
		m.Has(jsonrpc.ID) && id != jsonspan.String && id != jsonspan.Number:
		return jsonrpc.ErrorResponse(noID, jsonrpc.CodeInvalidRequest, "not a JSON-RPC 2.0 message"), false
	case m.IsNotification(), m.IsResponse() && m.Has(jsonrpc.ID):
		return nil, true
	case !m.IsRequest():
		return jsonrpc.ErrorResponse(noID, jsonrpc.CodeInvalidRequest, "neither a request nor a response"), false
	}
	result, failure := s.call(&m)
	if failure != nil {
		return jsonrpc.ErrorResponse(m.Literal(jsonrpc.ID), failure.code, failure.message), true
	}
	return jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), jsonrpc.Encode(result)), true
}

// A failure is a JSON-RPC error.
type failure struct {
	code    int
	message string
}

func invalidParams(format string, args ...any) *failure {
	return &failure{jsonrpc.CodeInvalidParams, fmt.Sprintf(format, args...)}
}

// call runs the method of a request.
func (s *Server) call(m *jsonrpc.Message) (result any, _ *failure) {
	var params struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Name            string          `json:"name"`
		Arguments       json.RawMessage `json:"arguments"`
	}
	if m.Has(jsonrpc.Params) {
		if err := json.Unmarshal(m.Literal(jsonrpc.Params), &params); err != nil {
			return nil, invalidParams("invalid params: %v", err)
		}
	}
	switch method := m.Text(jsonrpc.Method); method {
	case "initialize":
		return initialization{
			ProtocolVersion: mcp.Negotiate(params.ProtocolVersion, mcp.Latest),
			Capabilities:    map[string]any{"tools": struct{}{}},
			ServerInfo:      map[string]string{"name": "sample", "version": version.Current()},
		}, nil
	case "ping":
		return struct{}{}, nil
	case "tools/list":
		return map[string]any{"tools": s.tools}, nil
	case "tools/call":
		return s.callTool(params.Name, params.Arguments)
	default:
		return nil, &failure{jsonrpc.CodeMethodNotFound, "method not found: " + method}
	}
}

// initialization is the result of initialize.
type initialization struct {
	ProtocolVersion string            `json:"protocolVersion"`
	Capabilities    map[string]any    `json:"capabilities"`
	ServerInfo      map[string]string `json:"serverInfo"`
}

func (s *Server) callTool(name string, arguments json.RawMessage) (any, *failure) {
	i := slices.IndexFunc(s.tools, func(t tool) bool { return t.Name == name })
	if i < 0 {
		return nil, invalidParams("unknown tool: %q", name)
	}
	result, err := s.tools[i].call(arguments)
	if err != nil {
		return nil, invalidParams("invalid arguments for %s: %v", name, err)
	}
	return result, nil
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	streamable.NewWriter(w, nil).Answer(status, &streamable.Event{Data: body})
}

// Interface guard
var _ http.Handler = (*Server)(nil)
