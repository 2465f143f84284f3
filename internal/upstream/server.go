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

// A Server is a configured MCP server.
type Server struct {
	Name    string
	ID      string // equal for two servers that clients cannot tell apart
	Source  string // equal for two servers of this name with the same upstreams
	Aliases []string
	Expose  []string // patterns of the tools that the aggregate shows; all tools if empty
	Routes  Routes

	Overrides *toolview.Overrides // overrides of tool definitions; nil for none

	Target       *url.URL // path and query of requests
	URL          string   // URL without the query, for operators; "" if unknown
	DefaultPath  bool     // the path of Target was not configured
	Hosts        []string // host names, with ports, that the server may use in its URLs, as far as known
	Timeout      time.Duration
	ForwardAuth  bool // forward credentials of clients
	Answers      []Answer
	Mask         Mask            // nil if results are not masked
	MaskMCP      bool            // mask at Aggregate and Single, too, not only at RPC
	Focus        *toolview.Focus // argument with which clients set the focus of masks; nil for none, and without MaskMCP
	Pins         *toolpin.Pins
	ChildrenOnly bool            // all upstreams are child processes, without HTTP
	Streams      context.Context // done when streams that clients opened at Single must end
	Login        Login           // login of the gateway at the server; nil if not needed

	SideRequests SideRequests // messages to it in addition to requests of clients
	Missing      atomic.Bool  // some clients got responses without it

	toolChanges atomic.Uint64 // number that changes with the server's tools, unique over all configurations

	// mu guards the fields below.
	mu         sync.Mutex
	eraSupport [2]support // by era
	outage     outage
	httpSSE    bool             // known to use HTTP+SSE
	invalid    map[string]error // errors in tool definitions, by tool

	lastFailure *jsonrpc.Failure // failure of the last handshake; nil if it succeeded
}

// An outage is a time in which a server cannot be reached. Requests for it fail at once, while the
// gateway tries to reach it in the background.
type outage struct {
	failure     *jsonrpc.Failure // nil without an outage
	failures    int              // failed attempts in a row
	lastFailed  time.Time        // time of the last failed attempt
	nextAttempt time.Time        // earliest time of the next attempt
	lastNeeded  time.Time        // when a client last needed the server
	retrying    bool             // a retry loop is running
}

// outagePause is the pause between attempts to reach a server. childPause is the pause for a child
// process that is slow to start: an attempt does not start it again, it only checks whether it
// responds.
var (
	outagePause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}
	childPause  = backoff.Exponential{First: time.Second, Max: time.Second}
)

// retryTime is how long retries go on after a client last needed the server.
const retryTime = 10 * time.Minute

// Unavailable returns why the server cannot be reached, for a client that needs it. It returns nil
// if the server may be reachable, or if no client needed it for retryTime.
func (s *Server) Unavailable() *jsonrpc.Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.outage
	if o.failure == nil {
		return nil
	}
	if !o.retrying && time.Since(o.lastNeeded) > retryTime {
		s.outage = outage{}
		return nil
	}
	o.lastNeeded = time.Now()
	return o.failure
}

// IsUnavailable reports whether the server could not be reached at the last attempt.
func (s *Server) IsUnavailable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage.failure != nil
}

// NoteAttempt records the result of an attempt to reach the server that began at some time. It
// returns the pause until the next attempt.
func (s *Server) NoteAttempt(began time.Time, failure *jsonrpc.Failure) (pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, now := &s.outage, time.Now()
	if failure == nil {
		s.outage = outage{retrying: o.retrying}
		return 0
	}
	if o.failure == nil {
		o.lastNeeded = now
	} else if !began.After(o.lastFailed) { // another client recorded this failure
		return max(o.nextAttempt.Sub(now), 0)
	}
	pause = outagePause.Pause(o.failures)
	if s.ChildrenOnly && failure.Data.Symbol == "timeout" {
		pause = childPause.Pause(o.failures)
	}
	o.failure, o.lastFailed, o.nextAttempt = failure.Outage(), now, now.Add(pause)
	o.failures++
	return pause
}

// BeginRetrying reports whether the caller must retry the server until it calls EndRetrying.
func (s *Server) BeginRetrying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outage.failure == nil || s.outage.retrying {
		return false
	}
	s.outage.retrying = true
	return true
}

// EndRetrying ends the retries that BeginRetrying allowed.
func (s *Server) EndRetrying() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage.retrying = false
}

// WaitForRetry waits until the next attempt is due. It reports false if no attempt is needed: the
// outage is over, no client needs the server, or ctx is done.
func (s *Server) WaitForRetry(ctx context.Context) bool {
	s.mu.Lock()
	o := s.outage
	s.mu.Unlock()
	return o.failure != nil && time.Since(o.lastNeeded) <= retryTime &&
		backoff.Sleep(ctx, time.Until(o.nextAttempt)) && s.IsUnavailable()
}

// Unreachable reports whether a failure is caused by the server and not by the request.
func Unreachable(failure *jsonrpc.Failure) bool {
	return failure.Data.Symbol == "timeout" || failure.Data.Symbol == "connect_error"
}

// A support says whether a server supports something.
type support uint8

const (
	supportUnknown support = iota
	supported
	unsupported
)

// ShortID returns a short hash of ID, which tells servers of the same name apart.
func (s *Server) ShortID() string {
	sum := sha256.Sum256([]byte(s.ID))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

// NoteEra records whether the server speaks an era.
func (s *Server) NoteEra(era mcp.Era, supports bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraSupport[era] = unsupported
	if supports {
		s.eraSupport[era] = supported
	}
}

// SpeaksEra reports whether the server is known to speak an era.
func (s *Server) SpeaksEra(era mcp.Era) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eraSupport[era] == supported
}

// Eras returns the eras to try with the server for a client, the most promising first. If the
// server speaks both, that is the client's era. If that is unknown, modern comes first: the
// response tells the era, and modern servers may not understand the legacy handshake. Child
// processes are not probed like that, because each era starts a process.
func (s *Server) Eras(client mcp.Era) [2]mcp.Era {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := mcp.Modern
	if client == mcp.Legacy && (s.eraSupport[mcp.Legacy] == supported || s.ChildrenOnly) {
		first = mcp.Legacy
	}
	other := mcp.Modern - first
	if s.eraSupport[first] == unsupported && s.eraSupport[other] != unsupported {
		return [2]mcp.Era{other, first}
	}
	return [2]mcp.Era{first, other}
}

// maxInvalidTools is how many invalid tools of a server are remembered. Any further ones are
// removed from lists, too, but not logged.
const maxInvalidTools = 1000

// NoteTool records whether the definition of a tool is valid. It reports whether the tool is newly
// invalid.
func (s *Server) NoteTool(name string, err error) (isNew bool) {
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

// InvalidTool returns the error in the definition of a tool; nil if none is known.
func (s *Server) InvalidTool(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.invalid[name]
}

// Shows reports whether the aggregate lists a tool of the server, and lets clients call it.
func (s *Server) Shows(tool string) bool {
	matches := func(pattern string) bool { return mcp.MatchName(pattern, tool) }
	return len(s.Expose) == 0 || slices.ContainsFunc(s.Expose, matches)
}

// SideRequests are messages to a server that are sent in addition to requests of clients.
type SideRequests struct {
	// Max is how many can be in progress at the same time. Default: 64
	Max int

	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when none is in progress; nil while none is
	closed  bool
}

// maxSideRequests is the default of SideRequests.Max. It limits how many server requests the
// gateway answers at a time.
const maxSideRequests = 64

// Go runs send in a goroutine, unless too many are running or s is closed. It reports whether it
// does.
func (s *SideRequests) Go(send func()) (started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= cmp.Or(s.Max, maxSideRequests) {
		return false
	}
	s.running++
	if s.running == 1 {
		s.idle = make(chan struct{})
	}
	go func() {
		defer s.end()
		send()
	}()
	return true
}

// end notes the end of a message.
func (s *SideRequests) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running == 0 {
		close(s.idle)
		s.idle = nil
	}
}

// Wait waits for all messages in progress.
func (s *SideRequests) Wait() {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// Close prevents new messages, and waits for those in progress.
func (s *SideRequests) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Wait()
}

const rootsList = "roots/list"

// Answer returns what happens to a message from the server with this method. The first matching
// pattern decides.
func (s *Server) Answer(method string) Answer {
	i := slices.IndexFunc(s.Answers, func(a Answer) bool { return mcp.MatchName(a.Method, method) })
	if i < 0 {
		return Answer{Action: Deliver}
	}
	return s.Answers[i]
}

var errAborted = errors.New("the response ended before it was complete")

// serve runs the routes of the server for a request of the gateway.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, account string) error {
	return recovered(func() error { return s.Routes.Serve(w, r, account) })
}

// recovered returns the error of serve, and turns a panic into an error.
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

// A statusRecorder discards a response except for its status.
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

// probes are the messages that check whether a server responds, by era.
var probes = [...][]byte{
	mcp.Legacy: []byte(`{"jsonrpc":"2.0","id":"gateway-health","method":"ping"}`),
	mcp.Modern: jsonrpc.RequestAs([]byte(`"gateway-health"`), "server/discover",
		mcp.WithMeta(nil, mcp.RequestMeta([]byte(`{"name":"gateway-health","version":"1"}`), []byte("{}"), ""))),
}

// Probe sends a health check to the routes of the server.
func (s *Server) Probe(w http.ResponseWriter, r *http.Request) error {
	era := mcp.Legacy
	if s.SpeaksEra(mcp.Modern) && !s.SpeaksEra(mcp.Legacy) {
		era = mcp.Modern
	}
	message := probes[era]
	x := &Exchange{Server: s, PostedMessage: new(PostedMessage)}
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

// AddFocus returns the edit that adds the focus argument to the definition of a tool. It reports
// false if results of the tool are not masked, or the tool has such an argument already.
func (s *Server) AddFocus(item *mcp.Item) (jsonspan.Edit, bool) {
	if s.Focus == nil || s.Mask.Exempts(mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: item.Name}) {
		return jsonspan.Edit{}, false
	}
	if s.Overrides.Of(item.Name).HidesArgument(s.Focus.Argument()) {
		return jsonspan.Edit{}, false // the server's own argument
	}
	return s.Focus.Add(item.Raw)
}

// focusedTool returns the key of a tool that has the focus argument for clients at Single. A call
// there does not say whether the argument is the gateway's or the server's.
func (s *Server) focusedTool(tool string) toolKey {
	return toolKey{s.Source, s.Focus.Argument(), tool}
}
