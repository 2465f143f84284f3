// Package upstream is the MCP server behind all contestants. It does as little as possible:
// it reads a request and responds with prepared bytes, over Streamable HTTP or stdio. It runs
// as a separate process of the program that measures: see Main.
package upstream

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/process"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Prefixes of server paths, which select the behavior of a server. A number follows, and
// then any text that tells servers apart.
const (
	CallPath     = "/call/"     // has Tool, whose results have this number of characters
	ModernPath   = "/modern/"   // same, in both eras; all others support the legacy era only
	EventsPath   = "/events/"   // same, with responses to calls as a stream of one event
	FixedPath    = "/fixed/"    // has this number of tools, declared as fixed
	ChangingPath = "/changing/" // same, declared as changing
	ListenPath   = "/listen/"   // has a GET stream and Tool, and declares that tools may change
	SilentPath   = "/silent"    // has Tool, but no GET stream
)

// Tool is the tool of all servers without a number of tools.
const Tool = "read_log"

// SmallChars is the length of results if the path does not say it, in characters.
const SmallChars = 1000

// Result returns the result of a call: one text of this number of characters.
func Result(chars int) []byte { return append([]byte("{"), members(chars)...) }

// ModernResult returns the same in the modern era.
func ModernResult(chars int) []byte { return append([]byte("{"+resultTypeMember), members(chars)...) }

// members returns the result of a call without its opening brace.
func members(chars int) []byte {
	const before, after = `"content":[{"type":"text","text":"`, `"}]}`
	const phrase = "An observation of no consequence, with nothing to escape. "
	text := append(make([]byte, 0, len(before)+chars+len(after)), before...)
	for left := chars; left > 0; left -= len(phrase) {
		text = append(text, phrase[:min(left, len(phrase))]...)
	}
	return append(text, after...)
}

// resultTypeMember is the member that results have in the modern era.
const resultTypeMember = `"resultType":"complete",`

// Tools returns the result of tools/list with n tools for each prefix.
func Tools(n int, prefixes ...string) []byte {
	var names []string
	for _, prefix := range prefixes {
		for i := range n {
			names = append(names, fmt.Sprintf("%stool_%d", prefix, i))
		}
	}
	return tools(names...)
}

func tools(names ...string) []byte {
	list := []byte(`{"tools":[`)
	for i, name := range names {
		if i > 0 {
			list = append(list, ',')
		}
		list = fmt.Appendf(list, `{"name":"%s","description":"Reads the last lines of a log, oldest first, and says `+
			`which of them were left out.",`+
			`"inputSchema":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}}}}`, name)
	}
	return append(list, ']', '}')
}

// A server is one MCP server.
type server struct {
	call         []byte // result of a call, without its opening brace
	list         []byte
	capabilities string
	modern       bool // supports 2026-07-28 as well
	events       bool // responds to calls with event streams
}

// newServer makes the server for a path.
func newServer(path string) *server {
	chars, list, capabilities := SmallChars, tools(Tool), `{"tools":{}}`
	kind, number := path, 0
	if parts := strings.SplitN(path, "/", 4); len(parts) > 2 {
		kind = "/" + parts[1] + "/"
		number, _ = strconv.Atoi(parts[2])
	}
	switch kind {
	case CallPath, ModernPath, EventsPath:
		chars = number
	case ListenPath:
		capabilities = changingCapabilities
	case ChangingPath:
		capabilities = changingCapabilities
		fallthrough
	case FixedPath:
		list = Tools(number, "")
	}
	return &server{members(chars), list, capabilities, kind == ModernPath, kind == EventsPath}
}

// changingCapabilities are the capabilities of a server that sends notifications.
const changingCapabilities = `{"tools":{"listChanged":true}}`

// A response is a JSON-RPC response in three parts. The second is prepared and is not copied. A
// message that needs no response has an empty response.
type response struct {
	parts         [3][]byte
	startsSession bool // starts a session
	isEvent       bool // sent as an event
}

func (a *response) len() int { return len(a.parts[0]) + len(a.parts[1]) + len(a.parts[2]) }

func (a *response) writeTo(w io.Writer) error {
	for _, part := range a.parts {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// respond returns the response to a message.
func (s *server) respond(message []byte) (a response) {
	var m jsonrpc.Message
	if m.Read(message) != nil || !m.IsRequest() {
		return a
	}
	before, result := "", []byte("{}")
	switch method := m.Text(jsonrpc.Method); {
	case method == "initialize":
		version := m.Text(jsonrpc.Requested)
		if !mcp.IsLegacy(version) {
			version = mcp.Latest
		}
		a.startsSession = true
		result = []byte(`{"protocolVersion":"` + version + `","capabilities":` + s.capabilities +
			`,"serverInfo":{"name":"bench","version":"1"}}`)
	case method == "server/discover" && s.modern:
		result = []byte(`{` + resultTypeMember + `"supportedVersions":["` + mcp.Stateless + `"],"capabilities":` +
			s.capabilities + `,"ttlMs":60000,"cacheScope":"public"}`)
	case method == "tools/list":
		result = s.list
	case method == "tools/call":
		before, result, a.isEvent = "{", s.call, s.events
		if m.Has(jsonrpc.ProtocolVersion) {
			before = "{" + resultTypeMember
		}
	case method == "ping":
	default:
		a.parts[0] = jsonrpc.ErrorResponse(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "method not found")
		return a
	}
	head, tail := "", "}"
	if a.isEvent {
		head, tail = "event: message\ndata: ", "}\n\n"
	}
	a.parts[0] = fmt.Appendf(nil, `%s{"jsonrpc":"2.0","id":%s,"result":%s`, head, m.Literal(jsonrpc.ID), before)
	a.parts[1], a.parts[2] = result, []byte(tail)
	return a
}

// serveStdio serves the server of this path on standard input and output.
func serveStdio(path string, input io.Reader, output io.Writer) error {
	s := newServer(path)
	lines, answers := bufio.NewReaderSize(input, 1<<20), bufio.NewWriter(output)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return err
		}
		if a := s.respond(line); a.len() > 0 {
			_ = a.writeTo(answers) // Flush reports errors
			_ = answers.WriteByte('\n')
		}
		if lines.Buffered() == 0 {
			if err := answers.Flush(); err != nil {
				return err
			}
		}
	}
}

// A handler serves servers over HTTP by path. It creates each on its first request.
type handler struct{ byPath sync.Map }

func (h *handler) server(path string) *server {
	known, ok := h.byPath.Load(path)
	if !ok {
		known, _ = h.byPath.LoadOrStore(path, newServer(path))
	}
	return known.(*server)
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, ListenPath):
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	case r.Method == http.MethodDelete:
		return
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, _ := io.ReadAll(r.Body)
	a := h.server(r.URL.Path).respond(body)
	if a.len() == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if a.startsSession {
		w.Header().Set(mcp.SessionHeader, rand.Text())
	}
	if a.isEvent {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = a.writeTo(w)                          // fails only if the client has gone
		_ = http.NewResponseController(w).Flush() // as servers do after each event
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(a.len()))
	_ = a.writeTo(w)
}

// command is the first argument of a program that runs as the upstream.
const command = "serve"

// Main runs the upstream and exits if the arguments of the program ask for it. Every program
// that uses this package calls it first.
func Main() {
	if len(os.Args) < 4 || os.Args[1] != command {
		return
	}
	switch os.Args[2] {
	case "stdio":
		_ = serveStdio(os.Args[3], os.Stdin, os.Stdout) // until its input ends
	case "http":
		fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+os.Args[3], new(handler)))
		os.Exit(1)
	}
	os.Exit(0)
}

// Stdio returns the command of the stdio server of this path.
func Stdio(path string) ([]string, error) {
	self, err := os.Executable()
	return []string{self, command, "stdio", path}, err
}

// A Server is an upstream process over HTTP, with servers at all paths.
type Server struct {
	*process.Process
	Port int
}

// Start starts an upstream process and waits until it serves its port.
func Start(ctx context.Context) (*Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ports, err := loopback.FreePorts(1)
	if err != nil {
		return nil, err
	}
	p, err := process.Start(exec.Command(self, command, "http", strconv.Itoa(ports[0])))
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, ports[0]); err != nil {
		p.Stop()
		return nil, err
	}
	return &Server{p, ports[0]}, nil
}

// URL returns the URL of the server of this path.
func (s *Server) URL(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", s.Port, path) }
