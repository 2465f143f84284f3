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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RunChild is the main function of a child process: an MCP server over stdio
// that does what its flags and the calls of its tools tell it to. The args are
// `<id> [flags]`; the id is the server's name and tells its answers from those
// of its twins. The exit code is 0 at the end of stdin and 2 for wrong args.
//
//	--caps-empty           declare {"tools":{}} and nothing else
//	--banner               print three lines on stdout at start that are no JSON
//	--no-ping              ping gets -32601
//	--hang-ping            ping gets no answer
//	--hang-init            initialize and server/discover get no answer
//	--init-delay S         they get one after so many seconds (0.5 will do)
//	--page N               lists come in pages of N
//	--strict-cursor        a cursor that it did not make for that list gets -32602,
//	                       otherwise such a cursor gets the first page
//	--list-error           lists get -32603
//	--list-delay S         lists take so many seconds
//	--framing F            how to write: line (default) or content-length
//	--ignore-term          stay, whatever comes: SIGTERM or the end of stdin
//	--exit-at-start CODE   exit with that code before reading anything
//	--roots-at-init        ask for roots/list after notifications/initialized
//	--result-first         write {"result":…,"jsonrpc":"2.0","id":…}, the order of
//	                       the TypeScript SDK; errors keep the usual one
//	--tools N              have tools t1 … tN besides the others
//	--modern               answer requests of 2026-07-28 as well
//	--modern-only          answer no others: initialize and ping get -32601
//
// Messages are read in either framing. Each request is served in a goroutine of
// its own, from the revisions 2024-11-05 to 2025-11-25 only after initialize
// has been received. The tools are listed at [childTools].
//
// With --modern the era is that of each request, so one connection serves both
// in any order. A request of 2026-07-28 is one whose _meta names that version;
// like the Go SDK it must have the client's capabilities there too. What has
// changed goes untagged to who has initialized, and tagged to each
// subscriptions/listen that wants to know.
//
// A request cancelled by the client gets no answer, in either era. At the end of
// stdin those that wait for something are given up, those that do not are still
// answered.
//
// If $DS_LOG names a file, each message received is appended to it as one line,
// in one write, {"pid":N,"id":"<id>","message":…}, before it is acted upon. So
// are events: {"pid":N,"id":"<id>","event":"start"}, "eof", "term" and, with the
// requestId, "cancelled", for a request that has stopped. What is no JSON is the
// event "garbage".
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
		c.writeLines(stdout, 3, "DS "+c.id+" is starting, and says so on stdout")
	}

	c.serve(stdin)
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
	set.SetOutput(io.Discard) // the error says what is wrong
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

// child is the state of RunChild.
type child struct {
	id     string
	flags  childFlags
	stderr io.Writer
	log    *os.File // nil if nobody wants it

	// ctx ends with stdin.
	ctx     context.Context
	stop    context.CancelFunc
	serving sync.WaitGroup

	writing sync.Mutex
	stdout  io.Writer

	mu          sync.Mutex
	initialized bool
	inFlight    map[string]context.CancelCauseFunc // by the id as received
	asked       map[string]chan message            // by the id as sent
	nextAsk     int
	tools       []childTool
	listens     []*listen
}

func newChild(args []string, stdout, stderr io.Writer) (*child, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return nil, errors.New("usage: ds <id> [flags]")
	}
	c := &child{
		id:       args[0],
		stdout:   stdout,
		stderr:   stderr,
		inFlight: make(map[string]context.CancelCauseFunc),
		asked:    make(map[string]chan message),
	}
	if err := c.flags.parse(args[1:]); err != nil {
		return nil, err
	}
	if name := os.Getenv("DS_LOG"); name != "" {
		var err error
		if c.log, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return nil, err
		}
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.tools = childTools()
	for i := range c.flags.tools {
		c.tools = append(c.tools, extraTool("t"+strconv.Itoa(i+1)))
	}
	return c, nil
}

// watchTerm logs SIGTERM and then lets it have its way, unless it shall be
// ignored. It does not ask the system to ignore it, for processes started from
// here would inherit that.
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

// serve reads messages until there are no more, and then waits for those who
// still have an answer to write. It does not wait long: the reader may be gone.
func (c *child) serve(stdin io.Reader) {
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

// readFrame returns the next message in the framing in which it comes. It may
// return a message together with an error, and neither for an empty line.
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
	// A line break in JSON is white space, and is in the way of those who write
	// one message to a line.
	return bytes.ReplaceAll(body, []byte("\n"), []byte(" ")), err
}

// errCancelled is the cause of contexts of requests that the client cancelled.
var errCancelled = errors.New("cancelled by the client")

// receive acts upon one message.
func (c *child) receive(raw []byte) {
	if !json.Valid(raw) {
		c.logEvent("garbage")
		c.send(encode(reply{JSONRPC: "2.0", Error: &rpcError{Code: codeParseError, Message: "parse error"}}))
		return
	}
	c.logMember("message", raw)
	m, failure := readMessage(raw)
	switch {
	case failure != nil:
		c.send(encode(reply{JSONRPC: "2.0", Error: failure}))
	case m.Method == "":
		c.receiveAnswer(m)
	case m.ID == nil:
		c.receiveNotification(m)
	default:
		c.receiveRequest(m)
	}
}

func (c *child) receiveAnswer(m message) {
	c.mu.Lock()
	answer := c.asked[string(m.ID)]
	delete(c.asked, string(m.ID))
	c.mu.Unlock()
	if answer != nil {
		answer <- m
	}
}

func (c *child) receiveNotification(m message) {
	switch m.Method {
	case "notifications/cancelled":
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		_ = m.decodeParams(&p)
		c.mu.Lock()
		cancel := c.inFlight[string(p.RequestID)]
		c.mu.Unlock()
		if cancel != nil {
			cancel(errCancelled)
		}
	case "notifications/initialized":
		if c.flags.rootsAtInit {
			c.serving.Go(func() { _, _ = c.ask(c.ctx, "roots/list", nil) })
		}
	}
}

// receiveRequest serves a request. What the next message may depend on is done
// before it returns: the request can be cancelled, and those that follow an
// initialize count as initialized.
func (c *child) receiveRequest(m message) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	r := &request{child: c, message: m, ctx: ctx}
	refusal := r.readMeta()
	key := string(m.ID)
	c.mu.Lock()
	c.inFlight[key] = cancel
	r.initialized = c.initialized
	if m.Method == "initialize" && !r.modern && !c.flags.modernOnly {
		c.initialized = true
	}
	c.mu.Unlock()

	c.serving.Go(func() {
		defer cancel(nil)
		result, failure := any(nil), refusal
		if refusal == nil {
			result, failure = r.serve()
		}
		c.mu.Lock()
		delete(c.inFlight, key)
		c.mu.Unlock()
		switch {
		case context.Cause(ctx) == errCancelled:
			c.logEvent("cancelled", "requestId", m.ID)
		case result != nil || failure != nil:
			r.answer(result, failure)
		}
	})
}

// ask sends a request to the client and returns its answer. Ids count from 0 in
// each process, so those of any two servers are equal.
func (c *child) ask(ctx context.Context, method string, params json.RawMessage) (message, error) {
	answer := make(chan message, 1)
	c.mu.Lock()
	id := strconv.Itoa(c.nextAsk)
	c.nextAsk++
	c.asked[id] = answer
	c.mu.Unlock()
	c.send(outgoing(`"id":`+id+`,`, method, params))
	select {
	case m := <-answer:
		return m, nil
	case <-ctx.Done():
		return message{}, ctx.Err()
	}
}

func (c *child) notify(method string, params json.RawMessage) {
	c.send(outgoing("", method, params))
}

// outgoing is a message of the server's own, with the params byte for byte.
func outgoing(id, method string, params json.RawMessage) []byte {
	if params != nil {
		params = slices.Concat([]byte(`,"params":`), params)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0",%s"method":%s%s}`, id, encode(method), params)
}

// send writes one message.
func (c *child) send(raw []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.write(raw)
}

// write is send for who holds the lock.
func (c *child) write(raw []byte) {
	if c.flags.framing == "content-length" {
		_, _ = fmt.Fprintf(c.stdout, "Content-Length: %d\r\n\r\n%s", len(raw), raw)
		return
	}
	_, _ = c.stdout.Write(append(raw, '\n'))
}

// writeLines writes what is no message, between two messages.
func (c *child) writeLines(w io.Writer, n int, text string) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = io.WriteString(w, strings.Repeat(text+"\n", max(n, 0)))
}

// logEvent logs an event and, if given, one more member and its value.
func (c *child) logEvent(event string, member ...any) {
	value := encode(event)
	if len(member) == 2 {
		value = fmt.Appendf(value, `,%s:%s`, encode(member[0]), encode(member[1]))
	}
	c.logMember("event", value)
}

func (c *child) logMember(name string, value []byte) {
	if c.log != nil {
		_, _ = fmt.Fprintf(c.log, "{\"pid\":%d,\"id\":%s,%q:%s}\n", os.Getpid(), encode(c.id), name, value)
	}
}
