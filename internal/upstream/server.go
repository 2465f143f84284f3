package upstream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
)

// A Server is one of the servers behind the gateway.
type Server struct {
	Name    string
	ID      string // equal for two servers that are the same to clients
	Source  string // equal for two servers of this name whose answers come from the same place
	Aliases []string
	Expose  []string // patterns of the tools that the aggregate shows; all if there are none
	Routes  Routes

	Overrides *toolview.Overrides // of its tools; nil for none

	Target       *url.URL // path and query of requests to it
	URL          string   // where that is, without the query, for operators; "" if it is not known
	DefaultPath  bool     // the path of Target was not configured
	Hosts        []string // by which it may call itself, with ports, as far as they are known
	Timeout      time.Duration
	ForwardAuth  bool // pass the credentials of clients on to it
	Answers      []Answer
	Mask         Mask            // nil if nothing is masked
	MaskMCP      bool            // mask at Aggregate and Single, too, not just at RPC
	Focus        *toolview.Focus // by which clients say what a result is cut to; nil for none, and without MaskMCP
	Pins         *toolpin.Pins
	ChildrenOnly bool            // its upstreams are child processes, which know no HTTP
	Streams      context.Context // done when streams that clients have opened to it at Single are to end
	Login        Login           // of the gateway at the server; nil if it needs none

	Asides  Asides      // messages to it besides requests of clients
	Missing atomic.Bool // clients were answered without it

	toolChanges atomic.Uint64 // another number after each change of its tools, in all configurations

	mu      sync.Mutex
	speaks  [2]opinion // by era
	outage  outage
	httpSSE bool             // it is known to speak HTTP+SSE
	invalid map[string]error // what is wrong with the definitions of tools, by name

	lastFailure *jsonrpc.Failure // of the last handshake; nil if it has not failed
}

// An outage is a time in which a server cannot be reached. It is tried beside requests whether it is over. Requests
// for the server fail at once.
type outage struct {
	failure  *jsonrpc.Failure // nil if there is none
	failures int              // in a row
	noted    time.Time        // the last of them
	retry    time.Time        // not before
	asked    time.Time        // when a client has last wanted the server
	retrying bool             // it is tried beside requests
}

// outagePause is how long a server that cannot be reached is left alone. childPause is how long a child process is
// that takes long to start: it is not started again, only asked whether it is there.
var (
	outagePause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}
	childPause  = backoff.Exponential{First: time.Second, Max: time.Second}
)

// retryTime is for how long a server that cannot be reached is tried after the last client has asked for it.
const retryTime = 10 * time.Minute

// Unavailable returns why the server cannot be reached now, for a client that wants it. It returns nil if that is not
// known, or no longer because clients did not want it for long.
func (s *Server) Unavailable() *jsonrpc.Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.outage
	if o.failure == nil {
		return nil
	}
	if !o.retrying && time.Since(o.asked) > retryTime {
		s.outage = outage{}
		return nil
	}
	o.asked = time.Now()
	return o.failure
}

// IsOut reports whether the server could not be reached at the last attempt.
func (s *Server) IsOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage.failure != nil
}

// NoteAttempt notes whether the server could be reached by an attempt that began at some time.
// It returns the pause until the next one.
func (s *Server) NoteAttempt(began time.Time, failure *jsonrpc.Failure) (pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, now := &s.outage, time.Now()
	if failure == nil {
		s.outage = outage{retrying: o.retrying}
		return 0
	}
	if o.failure == nil {
		o.asked = now
	} else if !began.After(o.noted) { // another client has noted this failure
		return max(o.retry.Sub(now), 0)
	}
	pause = outagePause.Pause(o.failures)
	if s.ChildrenOnly && failure.Data.Symbol == "timeout" {
		pause = childPause.Pause(o.failures)
	}
	o.failure, o.noted, o.retry = failure.Outage(), now, now.Add(pause)
	o.failures++
	return pause
}

// BeginRetrying reports whether the caller is to try the server, until it calls EndRetrying.
func (s *Server) BeginRetrying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outage.failure == nil || s.outage.retrying {
		return false
	}
	s.outage.retrying = true
	return true
}

func (s *Server) EndRetrying() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage.retrying = false
}

// WaitForRetry waits until the server is to be tried again. It reports false if it is not: because the outage is
// over, clients do not want the server, or ctx is done.
func (s *Server) WaitForRetry(ctx context.Context) bool {
	s.mu.Lock()
	o := s.outage
	s.mu.Unlock()
	return o.failure != nil && time.Since(o.asked) <= retryTime && backoff.Sleep(ctx, time.Until(o.retry)) && s.IsOut()
}

// Unreachable reports whether a failure is of the server and not of what was asked.
func Unreachable(failure *jsonrpc.Failure) bool {
	return failure.Data.Symbol == "timeout" || failure.Data.Symbol == "connect_error"
}

// An opinion is what is known of a server.
type opinion uint8

const (
	unknown opinion = iota
	yes
	no
)

// ShortID returns what tells a server from another of the same name.
func (s *Server) ShortID() string {
	sum := sha256.Sum256([]byte(s.ID))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

func (s *Server) NoteEra(era mcp.Era, speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.speaks[era] = no
	if speaks {
		s.speaks[era] = yes
	}
}

// SpeaksEra reports whether the server is known to speak in an era.
func (s *Server) SpeaksEra(era mcp.Era) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.speaks[era] == yes
}

// Eras returns in which eras the server is to be spoken to for a client, the most promising
// first. With a server that speaks both it is the era of the client. As long as that is not
// known, the server is asked in the modern era: its answer tells, and servers of that era may not
// understand what came before. Children are not asked, because each era starts a process.
func (s *Server) Eras(client mcp.Era) [2]mcp.Era {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := mcp.Modern
	if client == mcp.Legacy && (s.speaks[mcp.Legacy] == yes || s.ChildrenOnly) {
		first = mcp.Legacy
	}
	other := mcp.Modern - first
	if s.speaks[first] == no && s.speaks[other] != no {
		return [2]mcp.Era{other, first}
	}
	return [2]mcp.Era{first, other}
}

// maxInvalidTools is how many invalid tools of a server are remembered. Others are left out of
// lists, too, but not logged.
const maxInvalidTools = 1000

// NoteTool notes whether the definition of a tool is valid, and reports whether it is news that
// it is not.
func (s *Server) NoteTool(name string, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.invalid, name)
		return false
	}
	if _, known := s.invalid[name]; known || len(s.invalid) >= maxInvalidTools {
		return false
	}
	if s.invalid == nil {
		s.invalid = map[string]error{}
	}
	s.invalid[name] = err
	return true
}

// InvalidTool returns what is wrong with the definition of a tool, if that is known.
func (s *Server) InvalidTool(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.invalid[name]
}

// Shows reports whether the aggregate lists a tool of the server, and lets clients call it.
func (s *Server) Shows(tool string) bool {
	fits := func(pattern string) bool { return mcp.MatchName(pattern, tool) }
	return len(s.Expose) == 0 || slices.ContainsFunc(s.Expose, fits)
}

// Asides send messages to a server besides the answer to a request.
type Asides struct {
	// Max is how many can be under way at the same time. Default: 64
	Max int

	mu     sync.Mutex
	open   int
	silent chan struct{} // closed when none is under way anymore; nil if none is
	closed bool
}

// maxAsides is how many a request can have under way. A server that asks more at once of a
// client that cannot answer gets no more answers than that.
const maxAsides = 64

// Go runs send in a goroutine, unless there are too many or the Asides are closed. It reports
// whether it does.
func (a *Asides) Go(send func()) (begun bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.open >= cmp.Or(a.Max, maxAsides) {
		return false
	}
	a.open++
	if a.open == 1 {
		a.silent = make(chan struct{})
	}
	go func() {
		defer a.end()
		send()
	}()
	return true
}

func (a *Asides) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open--; a.open == 0 {
		close(a.silent)
		a.silent = nil
	}
}

// Wait waits for all that are under way.
func (a *Asides) Wait() {
	a.mu.Lock()
	silent := a.silent
	a.mu.Unlock()
	if silent != nil {
		<-silent
	}
}

// Close waits for all that are under way, and lets no more begin.
func (a *Asides) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.Wait()
}

const rootsList = "roots/list"

// Answer returns what happens to a method that the server uses. The first that fits decides.
func (s *Server) Answer(method string) Answer {
	i := slices.IndexFunc(s.Answers, func(a Answer) bool { return mcp.MatchName(a.Method, method) })
	if i < 0 {
		return Answer{Action: Deliver}
	}
	return s.Answers[i]
}

var errAborted = errors.New("the response broke off")

// serve has the routes of the server answer a request of our own.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, account string) error {
	return recovered(func() error { return s.Routes.Serve(w, r, account) })
}

// recovered returns the error of serve, or its panic as one.
func recovered(serve func() error) (err error) {
	defer func() {
		if reason := recover(); reason == http.ErrAbortHandler {
			err = errAborted
		} else if reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	return serve()
}

// A statusRecorder takes a response of which only the status matters.
type statusRecorder struct {
	header http.Header
	status int
}

func (w *statusRecorder) Header() http.Header { return w.header }

func (w *statusRecorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

func (w *statusRecorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(p), nil
}

// The messages that tell whether a server answers, one for each era.
var probes = [...][]byte{
	mcp.Legacy: []byte(`{"jsonrpc":"2.0","id":"gateway-health","method":"ping"}`),
	mcp.Modern: jsonrpc.RequestAs([]byte(`"gateway-health"`), "server/discover",
		mcp.WithMeta(nil, mcp.RequestMeta([]byte(`{"name":"gateway-health","version":"1"}`), []byte("{}"), ""))),
}

// Probe has the routes of the server answer a message that no client has sent.
func (s *Server) Probe(w http.ResponseWriter, r *http.Request) error {
	era := mcp.Legacy
	if s.SpeaksEra(mcp.Modern) && !s.SpeaksEra(mcp.Legacy) {
		era = mcp.Modern
	}
	message := probes[era]
	x := &Exchange{Server: s, Posted: new(Posted)}
	if failure := x.Message.Read(message); failure != nil {
		return failure
	}
	if era == mcp.Modern {
		mcp.SetModern(r.Header, &x.Message, mcp.Stateless)
	}
	streamable.Direct(r, s.Target)
	s.Routes.Describe(r, x.placeholder)
	httpbody.Post(r, message)
	return s.serve(w, r, "")
}

// AddFocus returns the edit of the definition of a tool that adds the argument, if its results
// are masked.
func (s *Server) AddFocus(item *mcp.Item) (jsonspan.Edit, bool) {
	if s.Focus == nil || s.Mask.Exempts(mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: item.Name}) {
		return jsonspan.Edit{}, false
	}
	if s.Overrides.Of(item.Name).HasArgument(s.Focus.Argument()) {
		return jsonspan.Edit{}, false // the server has its own
	}
	return s.Focus.Add(item.Raw)
}

// focusedTool returns a tool as one that clients at Single were told has the argument. Lists pass there
// as they are, and nothing else tells whether an argument is the gateway's.
func (s *Server) focusedTool(tool string) toldTool {
	return toldTool{s.Source, s.Focus.Argument(), tool}
}
