// Package upstream is the MCP server behind everything that is measured. It does as
// little as an MCP server can: it reads what it is asked, and answers that id with bytes
// it has prepared, over Streamable HTTP or stdio. It is a process of its own, of the
// program that measures: see Main.
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// How the path of a server begins says what it is like. What follows is a number, and
// then anything, to tell servers apart.
const (
	CallPath     = "/call/"     // it has Tool, which answers with so many characters
	ModernPath   = "/modern/"   // it has the same, in both eras; all others know the legacy era only
	EventsPath   = "/events/"   // it has the same, and answers calls with a stream of one event
	FixedPath    = "/fixed/"    // it has so many tools, and says that they never change
	ChangingPath = "/changing/" // it has the same, and says that they may
	ListenPath   = "/listen/"   // it can be listened to, has Tool, and says that its tools may change
	SilentPath   = "/silent"    // it cannot
)

// Tool is the tool that there is where paths do not say otherwise.
const Tool = "read_log"

// Small is how many characters servers answer whose path does not say it.
const Small = 1000

// Result is the result of a call: one text of so many characters.
func Result(chars int) []byte { return append([]byte("{"), members(chars)...) }

// ModernResult is the same in the modern era.
func ModernResult(chars int) []byte { return append([]byte("{"+complete), members(chars)...) }

// members is what follows the opening brace of a result.
func members(chars int) []byte {
	const before, after = `"content":[{"type":"text","text":"`, `"}]}`
	const phrase = "An observation of no consequence, with nothing to escape. "
	text := append(make([]byte, 0, len(before)+chars+len(after)), before...)
	for left := chars; left > 0; left -= len(phrase) {
		text = append(text, phrase[:min(left, len(phrase))]...)
	}
	return append(text, after...)
}

// complete is what results say in the modern era.
const complete = `"resultType":"complete",`

// Tools is the result of tools/list where so many tools are there under each prefix.
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
		list = fmt.Appendf(list, `{"name":"%s","description":"Reads the last lines of a log, oldest first, and says which of them were left out.",`+
			`"inputSchema":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}}}}`, name)
	}
	return append(list, ']', '}')
}

// A server is one MCP server.
type server struct {
	call         []byte // members of results
	list         []byte
	capabilities string
	modern       bool // it knows 2026-07-28 as well
	events       bool // calls are answered with event streams
}

// newServer makes the server for a path.
func newServer(path string) *server {
	chars, list, capabilities := Small, tools(Tool), `{"tools":{}}`
	kind, number := path, 0
	if parts := strings.SplitN(path, "/", 4); len(parts) > 2 {
		kind = "/" + parts[1] + "/"
		number, _ = strconv.Atoi(parts[2])
	}
	switch kind {
	case CallPath, ModernPath, EventsPath:
		chars = number
	case ListenPath:
		capabilities = changing
	case ChangingPath:
		capabilities = changing
		fallthrough
	case FixedPath:
		list = Tools(number, "")
	}
	return &server{members(chars), list, capabilities, kind == ModernPath, kind == EventsPath}
}

// changing is the capabilities of a server that sends notifications.
const changing = `{"tools":{"listChanged":true}}`

// An answer is a message in three parts, of which the second is not copied from where it
// was prepared. It has none if none is wanted.
type answer struct {
	parts  [3][]byte
	begins bool // a session
	event  bool // it is one
}

func (a *answer) len() int { return len(a.parts[0]) + len(a.parts[1]) + len(a.parts[2]) }

func (a *answer) writeTo(w io.Writer) error {
	for _, part := range a.parts {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// answer answers a message.
func (s *server) answer(message []byte) (a answer) {
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
		a.begins = true
		result = []byte(`{"protocolVersion":"` + version + `","capabilities":` + s.capabilities + `,"serverInfo":{"name":"bench","version":"1"}}`)
	case method == "server/discover" && s.modern:
		result = []byte(`{` + complete + `"supportedVersions":["` + mcp.Stateless + `"],"capabilities":` + s.capabilities + `,"ttlMs":60000,"cacheScope":"public"}`)
	case method == "tools/list":
		result = s.list
	case method == "tools/call":
		before, result, a.event = "{", s.call, s.events
		if m.Has(jsonrpc.ProtocolVersion) {
			before = "{" + complete
		}
	case method == "ping":
	default:
		a.parts[0] = jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "method not found")
		return a
	}
	head, tail := "", "}"
	if a.event {
		head, tail = "event: message\ndata: ", "}\n\n"
	}
	a.parts[0] = fmt.Appendf(nil, `%s{"jsonrpc":"2.0","id":%s,"result":%s`, head, m.Literal(jsonrpc.ID), before)
	a.parts[1], a.parts[2] = result, []byte(tail)
	return a
}

// serveStdio is a server of that path on standard input and output.
func serveStdio(path string, in io.Reader, out io.Writer) error {
	s := newServer(path)
	lines, answers := bufio.NewReaderSize(in, 1<<20), bufio.NewWriter(out)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return err
		}
		if a := s.answer(line); a.len() > 0 {
			_ = a.writeTo(answers) // what fails will fail to be flushed
			_ = answers.WriteByte('\n')
		}
		if lines.Buffered() == 0 {
			if err := answers.Flush(); err != nil {
				return err
			}
		}
	}
}

// A handler is servers over HTTP, by their paths, each made when it is first asked for.
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
	a := h.server(r.URL.Path).answer(body)
	if a.len() == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if a.begins {
		w.Header().Set(mcp.SessionHeader, rand.Text())
	}
	if a.event {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = a.writeTo(w)                          // or the client has gone
		_ = http.NewResponseController(w).Flush() // as servers do after each event
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(a.len()))
	_ = a.writeTo(w)
}

// What begins the arguments of a program that is to be an upstream.
const command = "serve"

// Main is the upstream if the arguments of the program say so, and does not return then.
// Every program that uses this package calls it first.
func Main() {
	if len(os.Args) < 4 || os.Args[1] != command {
		return
	}
	switch os.Args[2] {
	case "stdio":
		_ = serveStdio(os.Args[3], os.Stdin, os.Stdout) // ends with its input
	case "http":
		fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+os.Args[3], new(handler)))
		os.Exit(1)
	}
	os.Exit(0)
}

// Stdio returns the command that is a server of that path on stdio.
func Stdio(path string) ([]string, error) {
	self, err := os.Executable()
	return []string{self, command, "stdio", path}, err
}

// A Server is an upstream over HTTP, with servers at all paths.
type Server struct {
	*process.Process
	Port int
}

// Start starts one.
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

// URL returns the address of the server of that path.
func (s *Server) URL(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", s.Port, path) }
