package mcptest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RunChild is the main function of a child process: an MCP server over stdio whose flags and tools
// control its behavior. The args are `<id> [flags]`; the id is the server's name and distinguishes
// its responses from those of other children. The exit code is 0 at the end of stdin and 2 for
// wrong args.
//
//	--caps-empty           declare {"tools":{}} and nothing else
//	--banner               print three lines on stdout at start that are not JSON
//	--no-ping              ping gets -32601
//	--hang-ping            ping gets no answer
//	--hang-init            initialize and server/discover get no answer
//	--init-delay S         they get one after S seconds, such as 0.5
//	--page N               lists come in pages of N
//	--strict-cursor        a cursor that it did not make for that list gets -32602,
//	                       otherwise such a cursor gets the first page
//	--list-error           lists get -32603
//	--list-delay S         lists take S seconds
//	--framing F            how to write: line (default) or content-length
//	--ignore-term          keep running after SIGTERM and the end of stdin
//	--exit-at-start CODE   exit with that code before reading anything
//	--roots-at-init        ask for roots/list after notifications/initialized
//	--result-first         write {"result":…,"jsonrpc":"2.0","id":…}, the order of
//	                       the TypeScript SDK; errors keep the usual one
//	--tools N              have tools t1 … tN besides the others
//	--modern               answer requests of 2026-07-28, too
//	--modern-only          answer only these: initialize and ping get -32601
//
// Messages are read in either framing. Each request is served in its own goroutine. In the
// revisions 2024-11-05 to 2025-11-25, requests are refused before initialize. The tools are listed
// at [toolsNamed].
//
// With --modern each request has its own era, so one connection serves both in any order. A request
// of 2026-07-28 is one whose _meta names that version; as in the Go SDK it must have the client's
// capabilities there too. Change notifications are sent untagged if the client has initialized, and
// tagged to each subscriptions/listen that requested them.
//
// A request that the client cancels gets no response, in either era. At the end of stdin, waiting
// requests are abandoned; others are still answered.
//
// If $DS_LOG names a file, each received message is appended to it as one line, in one write,
// {"pid":N,"id":"<id>","message":…}, before it is handled. Events are appended as well:
// {"pid":N,"id":"<id>","event":"start"}, "eof", "term" and, with the requestId, "cancelled" for a
// request that has stopped. Input that is not JSON is the event "garbage".
func RunChild(args []string, stdin io.Reader, stdout, stderr io.Writer) (exit int) {
	c, err := newChild(args, stdout, stderr)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "ds:", err)
		return 2
	}
	if c.log != nil {
		defer c.log.Close()
	}
	c.logEvent("start")
	if c.flags.exitAtStart >= 0 {
		return c.flags.exitAtStart
	}
	defer c.watchTerm()()
	if c.flags.banner {
		c.writeLines(stdout, 3, "DS "+c.name+" is starting, and says so on stdout")
	}

	c.read(stdin)
	c.logEvent("eof")
	for c.flags.ignoreTerm {
		time.Sleep(time.Hour)
	}
	c.stop()
	return 0
}

// childFlags are the flags of RunChild.
type childFlags struct {
	capsEmpty, banner, noPing, hangPing, hangInit, strictCursor, listError,
	ignoreTerm, rootsAtInit, resultFirst, modern, modernOnly bool
	page, exitAtStart, tools int
	initDelay, listDelay     float64
	framing                  string
}

func (f *childFlags) parse(args []string) error {
	set := flag.NewFlagSet("ds", flag.ContinueOnError)
	set.SetOutput(io.Discard) // the returned error has the details
	set.BoolVar(&f.capsEmpty, "caps-empty", false, "")
	set.BoolVar(&f.banner, "banner", false, "")
	set.BoolVar(&f.noPing, "no-ping", false, "")
	set.BoolVar(&f.hangPing, "hang-ping", false, "")
	set.BoolVar(&f.hangInit, "hang-init", false, "")
	set.Float64Var(&f.initDelay, "init-delay", 0, "")
	set.IntVar(&f.page, "page", 0, "")
	set.BoolVar(&f.strictCursor, "strict-cursor", false, "")
	set.BoolVar(&f.listError, "list-error", false, "")
	set.Float64Var(&f.listDelay, "list-delay", 0, "")
	set.StringVar(&f.framing, "framing", "line", "")
	set.BoolVar(&f.ignoreTerm, "ignore-term", false, "")
	set.IntVar(&f.exitAtStart, "exit-at-start", -1, "")
	set.BoolVar(&f.rootsAtInit, "roots-at-init", false, "")
	set.BoolVar(&f.resultFirst, "result-first", false, "")
	set.IntVar(&f.tools, "tools", 0, "")
	set.BoolVar(&f.modern, "modern", false, "")
	set.BoolVar(&f.modernOnly, "modern-only", false, "")
	if err := set.Parse(args); err != nil {
		return err
	}
	f.modern = f.modern || f.modernOnly
	switch {
	case set.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	case f.framing != "line" && f.framing != "content-length":
		return fmt.Errorf("unknown framing %q", f.framing)
	case f.page < 0 || f.tools < 0:
		return errors.New("negative number")
	}
	return nil
}

// child is a server over stdio.
type child struct {
	server
	session *session
	stderr  io.Writer
	log     *os.File // nil without a log

	// ctx ends with stdin.
	ctx     context.Context
	stop    context.CancelFunc
	serving sync.WaitGroup

	writing sync.Mutex
	stdout  io.Writer
}

func newChild(args []string, stdout, stderr io.Writer) (*child, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return nil, errors.New("usage: ds <id> [flags]")
	}
	id := args[0]
	c := &child{session: newSession(), stdout: stdout, stderr: stderr}
	c.session.streams[nil] = c.send
	c.server = server{
		name: id, uri: "file://" + id + "/*.txt", completions: []string{id + "-one", id + "-two"}, child: c,
		capabilities: json.RawMessage(`{"tools":{"listChanged":true},"prompts":{},` +
			`"resources":{"subscribe":true,"listChanged":true},"logging":{},"completions":{}}`),
		tools:    toolsNamed(childToolNames),
		sessions: map[string]*session{"": c.session}, listens: map[*call]listenFilter{},
	}
	if err := c.flags.parse(args[1:]); err != nil {
		return nil, err
	}
	if c.flags.capsEmpty {
		c.capabilities = json.RawMessage(`{"tools":{}}`)
	}
	for i := range c.flags.tools {
		c.tools = append(c.tools, extraTool("t"+strconv.Itoa(i+1), ""))
	}
	if name := os.Getenv("DS_LOG"); name != "" {
		var err error
		if c.log, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return nil, err
		}
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// watchTerm logs SIGTERM and then ends the process, unless the flag says to ignore it. The handler
// is installed in any case: if the system ignored the signal, child processes would inherit that.
func (c *child) watchTerm() (unwatch func()) {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	go func() {
		for range terms {
			c.logEvent("term")
			if c.flags.ignoreTerm {
				continue
			}
			signal.Reset(syscall.SIGTERM)
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Signal(syscall.SIGTERM)
			}
			if err != nil {
				os.Exit(1)
			}
		}
	}()
	return func() {
		signal.Stop(terms)
		close(terms)
	}
}

// read handles messages until the end of stdin. Then it waits for responses that are still being
// written, but at most a second, because nothing may read them.
func (c *child) read(stdin io.Reader) {
	r := bufio.NewReader(stdin)
	for {
		raw, err := readFrame(r)
		if len(raw) > 0 {
			c.receive(raw)
		}
		if err != nil {
			break
		}
	}
	if c.flags.ignoreTerm {
		return
	}
	c.stop()
	served := make(chan struct{})
	go func() {
		c.serving.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-time.After(time.Second):
	}
}

// readFrame returns the next message in either framing. It may return a message together with an
// error, and neither for an empty line.
func readFrame(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	line = bytes.TrimSpace(line)
	length := -1
	for err == nil && len(line) > 0 {
		name, value, isHeader := bytes.Cut(line, []byte(":"))
		if !isHeader || line[0] == '{' {
			break
		}
		if strings.EqualFold(string(name), "Content-Length") {
			n, bad := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 31)
			if bad != nil {
				return line, nil
			}
			length = int(n)
		} else if length < 0 && !strings.EqualFold(string(name), "Content-Type") {
			break
		}
		line, err = r.ReadBytes('\n')
		line = bytes.TrimSpace(line)
	}
	if length < 0 || err != nil {
		return line, err
	}
	body := make([]byte, length)
	_, err = io.ReadFull(r, body)
	// A line break in JSON is white space, and would end the line in the log and in the framing by
	// lines.
	return bytes.ReplaceAll(body, []byte("\n"), []byte(" ")), err
}

// receive logs and handles one message.
func (c *child) receive(raw []byte) {
	m, failure := readMessage(raw)
	if failure != nil && failure.Code == codeParseError {
		c.logEvent("garbage")
	} else {
		c.logMember("message", raw)
	}
	switch {
	case failure != nil:
		c.send(errorReply(nil, failure))
	case m.Method == "" || m.ID == nil:
		c.session.receive(m)
		if m.Method == "notifications/initialized" && c.flags.rootsAtInit {
			c.serving.Go(func() { c.session.ask(c.send, inputRequest{Method: "roots/list"}) })
		}
	default:
		handshakes := protocolVersions
		if c.flags.modernOnly {
			handshakes = nil
		}
		request := newCall(&c.server, c, m, handshakes)
		request.modern = c.flags.modern && request.version() >= modernVersion
		request.begin(c.ctx, c.session)
		c.serving.Go(request.run)
	}
}

// send implements wire.
func (c *child) send(raw []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.flags.framing == "content-length" {
		_, _ = fmt.Fprintf(c.stdout, "Content-Length: %d\r\n\r\n%s", len(raw), raw)
		return
	}
	_, _ = c.stdout.Write(append(raw, '\n'))
}

// finish implements wire.
func (c *child) finish(raw []byte, _ *rpcError) { c.send(raw) }

// event implements wire. It logs only cancellations.
func (c *child) event(m message, event string) {
	if event == "cancelled" {
		c.logMember("event", fmt.Appendf(nil, `"cancelled","requestId":%s`, m.ID))
	}
}

// writeLines writes lines that are not messages, between two messages.
func (c *child) writeLines(w io.Writer, n int, text string) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = io.WriteString(w, strings.Repeat(text+"\n", max(n, 0)))
}

func (c *child) logEvent(event string) { c.logMember("event", encode(event)) }

func (c *child) logMember(name string, value []byte) {
	if c.log != nil {
		_, _ = fmt.Fprintf(c.log, "{\"pid\":%d,\"id\":%s,%q:%s}\n", os.Getpid(), encode(c.name), name, value)
	}
}
