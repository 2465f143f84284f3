package mcpsample

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

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

// A tool is the definition of a tool in tools/list, and its implementation. An error of call means
// that the arguments are invalid; the tools cannot fail otherwise.
type tool struct {
	Name         string          `json:"name"`
	Title        string          `json:"title"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
	Annotations  json.RawMessage `json:"annotations"`

	call func(arguments json.RawMessage) (toolResult, error)
}

// toolResult is the result of tools/call.
type toolResult struct {
	Content           []any `json:"content"`
	StructuredContent any   `json:"structuredContent,omitempty"`
}

type textContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type imageContent struct {
	Type     string `json:"type"`
	Data     []byte `json:"data"` // base64 in JSON
	MIMEType string `json:"mimeType"`
}

func newText(text string) textContent { return textContent{Type: "text", Text: text} }

// harmless marks a tool that changes nothing and does not use the network. Without it, clients ask
// the user before each call.
const harmless = `{"readOnlyHint": true, "openWorldHint": false}`

const noArguments = `{"type": "object", "properties": {}, "additionalProperties": false}`

func sampleTools() []tool {
	picture := noise(64, 64)
	return []tool{
		{
			Name:  "read_log",
			Title: "Read the service log",
			Description: "Returns the log of an imaginary order service, oldest line first. " +
				"Long by design: the errors are in the middle and the outcome is in the last line.",
			InputSchema: json.RawMessage(`{
				"type": "object",
				"properties": {
					"lines": {
						"type": "integer",
						"description": "How many lines to return.",
						"minimum": 1,
						"maximum": 200000,
						"default": 2000
					}
				},
				"additionalProperties": false
			}`),
			Annotations: json.RawMessage(harmless),
			call:        readLog,
		},
		{
			Name:        "read_image",
			Title:       "Read an image",
			Description: "Returns a PNG picture of noise, 64 by 64 pixels, as image content.",
			InputSchema: json.RawMessage(noArguments),
			Annotations: json.RawMessage(harmless),
			call: func(arguments json.RawMessage) (toolResult, error) {
				return toolResult{Content: []any{imageContent{"image", picture, "image/png"}}},
					decodeArguments(arguments, &struct{}{})
			},
		},
		{
			Name:  "list_files",
			Title: "List files",
			Description: "Lists the files of an imaginary project with their sizes, " +
				"as structured content and as the same JSON in text.",
			InputSchema: json.RawMessage(noArguments),
			OutputSchema: json.RawMessage(`{
				"type": "object",
				"properties": {
					"files": {
						"type": "array",
						"items": {
							"type": "object",
							"properties": {
								"path": {"type": "string"},
								"kind": {"type": "string"},
								"size": {"type": "integer"}
							},
							"required": ["path", "kind", "size"]
						}
					}
				},
				"required": ["files"]
			}`),
			Annotations: json.RawMessage(harmless),
			call:        listFiles,
		},
		{
			Name:        "echo",
			Title:       "Echo",
			Description: "Returns the given text unchanged.",
			InputSchema: json.RawMessage(`{
				"type": "object",
				"properties": {
					"text": {"type": "string", "description": "The text to return."}
				},
				"required": ["text"],
				"additionalProperties": false
			}`),
			Annotations: json.RawMessage(harmless),
			call:        echo,
		},
	}
}

// decodeArguments decodes arguments into v, which holds the defaults, and rejects unknown
// arguments.
func decodeArguments(arguments json.RawMessage, v any) error {
	if len(arguments) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(arguments))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

func readLog(arguments json.RawMessage) (toolResult, error) {
	args := struct {
		Lines int `json:"lines"`
	}{Lines: 2000}
	if err := decodeArguments(arguments, &args); err != nil {
		return toolResult{}, err
	}
	if args.Lines < 1 || args.Lines > 200000 {
		return toolResult{}, errors.New("lines must be from 1 to 200000")
	}
	return toolResult{Content: []any{newText(serviceLog(args.Lines))}}, nil
}

// serviceLog returns n lines without a final line break. If there are at least 5, two in the middle
// are errors, which the last line mentions: a reader of only the beginning and the end learns that
// they exist.
func serviceLog(n int) string {
	var b strings.Builder
	at := time.Date(2026, time.January, 15, 8, 0, 0, 0, time.UTC)
	for i := range n {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(at.Format("2006-01-02T15:04:05.000Z "))
		b.WriteString(logEvent(i, n))
		at = at.Add(time.Duration(40+i*37%211) * time.Millisecond)
	}
	return b.String()
}

func logEvent(i, n int) string {
	order := 1000 + i*7919%9000
	switch {
	case i == n-1:
		return "WARN  breaker circuit opened upstream=payments failures=2 pending_orders=17 next_retry=30s"
	case i == n/2:
		return fmt.Sprintf("ERROR payments charge failed order=%d "+
			"error=\"dial tcp 10.0.4.17:8443: connect: connection refused\"", order)
	case i == n/2+1:
		return fmt.Sprintf("ERROR orders checkout rolled back order=%d cause=\"payment unavailable\"", order)
	case i%97 == 96:
		return fmt.Sprintf("WARN  storage slow query table=orders duration_ms=%d", 500+i%700)
	case i%50 == 49:
		return fmt.Sprintf("DEBUG cache sweep finished evicted=%d", i%40)
	default:
		return fmt.Sprintf("INFO  http request completed method=GET path=/orders/%d status=200 duration_ms=%d",
			order, 3+i*31%90)
	}
}

type fileList struct {
	Files []file `json:"files"`
}

type file struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Size int    `json:"size"`
}

func listFiles(arguments json.RawMessage) (toolResult, error) {
	if err := decodeArguments(arguments, &struct{}{}); err != nil {
		return toolResult{}, err
	}
	list := fileList{[]file{
		{"README.md", "text/markdown", 2381},
		{"cmd/orders/main.go", "text/x-go", 1874},
		{"internal/payments/client.go", "text/x-go", 9120},
		{"internal/payments/client_test.go", "text/x-go", 6655},
		{"deploy/orders.yaml", "application/yaml", 1203},
	}}
	return toolResult{Content: []any{newText(string(jsonrpc.Encode(list)))}, StructuredContent: list}, nil
}

func echo(arguments json.RawMessage) (toolResult, error) {
	var args struct {
		Text *string `json:"text"`
	}
	if err := decodeArguments(arguments, &args); err != nil {
		return toolResult{}, err
	}
	if args.Text == nil {
		return toolResult{}, errors.New("text is required")
	}
	return toolResult{Content: []any{newText(*args.Text)}}, nil
}

// noise returns a PNG of random pixels, the same each time. Noise does not compress, so a small
// picture is long enough to be masked.
func noise(width, height int) []byte {
	source := rand.New(rand.NewPCG(1, 2))
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range picture.Pix {
		picture.Pix[i] = byte(source.Uint32())
		if i%4 == 3 {
			picture.Pix[i] = 0xff // opaque
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, picture); err != nil {
		panic(fmt.Sprintf("mcpsample: encode picture: %v", err)) // a bytes.Buffer does not fail
	}
	return b.Bytes()
}

// Interface guard
var _ http.Handler = (*Server)(nil)
