package fakemcp

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
)

// serverVersion is the version that the servers of tests give in their handshake.
const serverVersion = "0.1.0"

// maxMessage bounds a request body.
const maxMessage = 1 << 20

// protocolVersions are the revisions of MCP the Server speaks, oldest first.
var protocolVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}

// Server is a small MCP server over Streamable HTTP, on any path, or stdio. It keeps no
// sessions and has nothing to say unasked, so it takes POST only. Like most
// servers it answers with an event stream if the client accepts one, which
// every MCP client does, and with plain JSON otherwise.
//
// Its tools give the same answer each time: read_log (a long text), read_image
// (a PNG that must survive untouched), list_files (short structured content)
// and echo.
//
// It is safe for concurrent use. Use NewServer to make one.
type Server struct {
	tools []tool
}

// NewServer returns a Server with its picture drawn.
func NewServer() *Server {
	return &Server{tools: sampleTools()}
}

// ServeHTTP takes one JSON-RPC message. What is no message is refused with
// status 400, one of more than 1 MiB with 413; every other error is a JSON-RPC
// reply with status 200.
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
		refuse(w, status, &rpcError{Code: codeInvalidRequest, Message: err.Error()})
		return
	}
	m, failure := readMessage(body)
	if failure != nil {
		refuse(w, http.StatusBadRequest, failure)
		return
	}
	if m.ID == nil || m.Method == "" {
		// A notification or a reply of the client: nothing to answer.
		w.WriteHeader(http.StatusAccepted)
		return
	}

	answer := s.answer(m)
	if !acceptsEvents(r.Header) {
		writeJSON(w, http.StatusOK, answer)
		return
	}
	startEvents(w)
	writeEvent(w, answer)
}

// ServeStdio takes messages line by line, as a child process does, until in ends.
func (s *Server) ServeStdio(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		m, failure := readMessage(lines.Bytes())
		var answer []byte
		switch {
		case failure != nil:
			answer = encode(reply{JSONRPC: "2.0", Error: failure})
		case m.ID == nil || m.Method == "":
			continue
		default:
			answer = s.answer(m)
		}
		if _, err := out.Write(append(answer, '\n')); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (s *Server) answer(m message) []byte {
	answer := reply{JSONRPC: "2.0", ID: m.ID}
	answer.Result, answer.Error = s.call(m)
	return encode(answer)
}

// readMessage returns the one message in body. Batches are refused; of the
// revisions spoken here only 2025-03-26 has them.
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
		return m, &rpcError{Code: codeInvalidRequest, Message: "neither a method nor a reply"}
	}
	return m, nil
}

// validID reports whether id is absent, a string or a number. MCP, unlike
// JSON-RPC, has no null ids.
func validID(id json.RawMessage) bool {
	return id == nil || strings.IndexByte(`"-0123456789`, id[0]) >= 0
}

// refuse answers what has no id to answer to.
func refuse(w http.ResponseWriter, status int, failure *rpcError) {
	writeJSON(w, status, encode(reply{JSONRPC: "2.0", Error: failure}))
}

func acceptsEvents(header http.Header) bool {
	for accepted := range strings.SplitSeq(strings.Join(header.Values("Accept"), ","), ",") {
		mediaType, _, _ := strings.Cut(accepted, ";")
		if strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream") {
			return true
		}
	}
	return false
}

// call runs the method of m.
func (s *Server) call(m message) (any, *rpcError) {
	switch m.Method {
	case "initialize":
		return initialize(m)
	case "ping":
		return struct{}{}, nil
	case "tools/list":
		return struct {
			Tools []tool `json:"tools"`
		}{s.tools}, nil
	case "tools/call":
		return s.callTool(m)
	default:
		return nil, methodNotFound(m.Method)
	}
}

type initializeResult struct {
	ProtocolVersion string       `json:"protocolVersion"`
	Capabilities    capabilities `json:"capabilities"`
	ServerInfo      serverInfo   `json:"serverInfo"`
}

type capabilities struct {
	Tools struct{} `json:"tools"`
}

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// initialize agrees to the client's revision if it is known and otherwise
// offers the latest.
func initialize(m message) (any, *rpcError) {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := m.decodeParams(&p); err != nil {
		return nil, err
	}
	if !slices.Contains(protocolVersions, p.ProtocolVersion) {
		p.ProtocolVersion = protocolVersions[len(protocolVersions)-1]
	}
	return initializeResult{
		ProtocolVersion: p.ProtocolVersion,
		ServerInfo:      serverInfo{Name: "sample", Version: version.Current()},
	}, nil
}

func (s *Server) callTool(m message) (any, *rpcError) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := m.decodeParams(&p); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.tools, func(t tool) bool { return t.Name == p.Name })
	if i < 0 {
		return nil, invalidParams("unknown tool: %q", p.Name)
	}
	result, err := s.tools[i].call(p.Arguments)
	if err != nil {
		return nil, invalidParams("invalid arguments for %s: %v", p.Name, err)
	}
	return result, nil
}

// Interface guard
var _ http.Handler = (*Server)(nil)
