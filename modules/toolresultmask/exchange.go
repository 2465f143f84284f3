package toolresultmask

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/toolresults"
)

// An exchange is a request to a model and the answer to it. The request is masked
// before it is sent on; the answer is written through, and its usage is read.
type exchange struct {
	caddyhttp.ResponseWriterWrapper
	handler *Handler
	masked  masked
	passed  reason // why nothing could be done
	size    int64  // bytes of the body as it came, as far as is known
	owner   string // the address that the request comes from, if something is held
	held    int64  // bytes in memory, of the handler's max_buffered
	bodies  []*httpbody.Held

	answered bool
	streamed bool // as events
	expected bool // the provider should have much of the request in its cache
	usage    *chat.UsageReader
	body     io.Writer         // takes the answer, or nil
	decoder  *httpbody.Decoder // body, if the answer is encoded
	told     chat.Usage
	cost     cost
}

// masked is what was done to a request.
type masked struct {
	turns, results, saved int
	broken                bool
	prompt                prompt
	unread                int // old results that cannot be masked
}

// add adds what another handler has done to the same request.
func (m *masked) add(other masked) {
	m.results += other.results
	m.saved += other.saved
	m.unread += other.unread
	m.broken = m.broken || other.broken
	m.prompt.become(other.prompt)
}

// A reason is why a request passes as it is: a label of metrics.
type reason string

const (
	tooLarge    reason = "too_large"
	unreadable  reason = "unreadable" // broken off, or refused by another handler
	stalled     reason = "stalled"    // the client has stopped sending it
	memoryFull  reason = "memory"     // other requests take all of max_buffered
	badEncoding reason = "encoding"
	invalidJSON reason = "invalid_json"
	repeatedKey reason = "repeated_key"
	otherShape  reason = "shape"
	grows       reason = "grows"  // placeholders are longer than what they stand for
	signed      reason = "signed" // the signature is one of the body, too
)

// mendable says what to do about requests that pass for a reason that the operator may
// remove. Others are not conversations, or broken.
var mendable = map[reason]string{
	tooLarge:    "raise buffer_limit",
	memoryFull:  "raise max_buffered",
	badEncoding: "have clients send it plain, or compressed with gzip, br or zstd",
	signed:      "sign requests behind this handler, or have clients use an API key",
}

// mask makes r what is to be sent on. It is r itself that changes, for whoever
// deals with it when the next handlers have failed has nothing else.
func (x *exchange) mask(r *http.Request) {
	x.size = max(r.ContentLength, 0)
	if x.handler.policy.WindowTurns <= 0 || r.Body == nil || r.ContentLength == 0 {
		return
	}
	raw := x.receive(r)
	if raw == nil {
		return
	}
	text := x.decode(raw, httpbody.Encoding(r.Header))
	if text == nil {
		return
	}
	plan := x.decide(text.Bytes())
	edits := plan.Edits
	if len(edits) == 0 {
		return
	}
	if x.handler.originals != nil {
		x.handler.keep(toolresults.Owner(r), plan.Originals)
	}
	setBody(r, text, func() io.Reader { return jsonspan.NewReader(text.Bytes(), edits) })
	r.ContentLength = int64(jsonspan.NewReader(text.Bytes(), edits).Len())
	r.TransferEncoding = nil
	httpbody.DropDescription(r.Header)
	httpbody.DropDescription(r.Trailer)
	r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
}

// receive returns the body of r as it came, or nil if r passes as it is.
func (x *exchange) receive(r *http.Request) *httpbody.Held {
	limit := x.handler.BufferLimit
	switch {
	case isSigned(r):
		x.pass(signed, nil)
		return nil
	case r.ContentLength > limit:
		x.pass(tooLarge, nil)
		return nil
	}
	x.owner = "@" + ratelimit.Address(clientrequest.Address(r))
	x.handler.held.Take(x.owner, 0)
	raw, err := x.hold(r.Body, r.ContentLength, time.Duration(x.handler.BodyTimeout))
	x.size = max(x.size, int64(len(raw.Bytes())))
	content := func() io.Reader { return bytes.NewReader(raw.Bytes()) }
	rest := io.Reader(r.Body)
	switch {
	case errors.Is(err, httpbody.ErrNoRoom):
		x.pass(memoryFull, nil)
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.pass(stalled, err)
		rest = broken{err}
	case err != nil:
		x.pass(unreadable, err)
		rest = broken{err}
	case int64(len(raw.Bytes())) > limit:
		x.pass(tooLarge, nil)
	default:
		setBody(r, raw, content)
		return raw
	}
	r.Body = body{io.MultiReader(raw.Reader(content()), rest), r.Body}
	return nil
}

// setBody gives r a body, of what is held, that can be read again by those who know how.
func setBody(r *http.Request, held *httpbody.Held, content func() io.Reader) {
	r.Body = body{held.Reader(content()), r.Body}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(held.Reader(content())), nil }
}

// decide returns what to change in a conversation.
func (x *exchange) decide(text []byte) chat.Plan {
	c, err := x.handler.memory.Parse(x.owner, text)
	if err != nil {
		x.pass(whyNot(err), err)
		return chat.Plan{}
	}
	past, now := c.Past(), time.Now()
	plan, progress := c.MaskAfter(&x.handler.policy, &past.Progress, x.handler.isCold(c, past, now))
	defer x.handler.memory.Keep(x.owner, c, chat.Past{Progress: progress, At: now})
	x.expected = expectsCache(plan, past, now)
	if plan.Grows {
		x.pass(grows, nil)
	}
	x.masked = masked{
		turns: plan.Turns, results: plan.Results, saved: plan.Saved, broken: plan.Broken, prompt: promptOf(text, plan),
	}
	if plan.Results > 0 {
		maskedResults.WithLabelValues().Add(float64(plan.Results))
		savedChars.WithLabelValues().Add(float64(max(plan.Saved, 0)))
	}
	for why, n := range plan.Unread {
		if n > 0 {
			x.leave(chat.Unread(why), n, c.Format())
		}
	}
	if plan.Broken {
		prefixBreaks.WithLabelValues().Inc()
	}
	return plan
}

// whyNot tells what is wrong with a body that is no conversation.
func whyNot(err error) reason {
	switch {
	case errors.Is(err, chat.ErrShape):
		return otherShape
	case errors.Is(err, jsonspan.ErrDuplicate):
		return repeatedKey
	}
	return invalidJSON
}

// pass notes that nothing can be done about the request.
func (x *exchange) pass(why reason, err error) {
	x.passed = why
	passedConversations.WithLabelValues(string(why)).Inc()
	level, hint := zapcore.DebugLevel, mendable[why]
	if hint != "" && x.handler.said.first(string(why)) {
		level = zapcore.WarnLevel
	}
	if c := x.handler.logger.Check(level, "request not masked"); c != nil {
		fields := []zap.Field{zap.String("reason", string(why)), zap.Error(err)}
		if hint != "" {
			fields = append(fields, zap.String("hint", hint))
		}
		c.Write(fields...)
	}
}

// leave counts old results that cannot be masked. Images are meant to stay; the others may
// be of a client that this handler should know.
func (x *exchange) leave(why chat.Unread, n int, format string) {
	x.masked.unread += n
	unreadResults.WithLabelValues(why.String()).Add(float64(n))
	level := zapcore.DebugLevel
	if why != chat.NotText && x.handler.said.first(why.String()) {
		level = zapcore.WarnLevel
	}
	if c := x.handler.logger.Check(level, "old tool results not masked"); c != nil {
		c.Write(zap.String("reason", why.String()), zap.String("format", format), zap.Int("results", n))
	}
}

// said are the reasons that were logged for the operator, once each.
type said struct{ reasons sync.Map }

func (s *said) first(reason string) bool {
	_, before := s.reasons.LoadOrStore(reason, true)
	return !before
}

// isSigned reports whether a request is signed as AWS has it. The signature is of the body,
// too.
func isSigned(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") ||
		strings.Contains(r.URL.RawQuery, "X-Amz-Signature=")
}

// decode returns a body without its encoding, if it has one, or nil if the request passes as
// it is.
func (x *exchange) decode(raw *httpbody.Held, encoding string) *httpbody.Held {
	if encoding == "" {
		return raw
	}
	r, err := httpbody.NewReader(encoding, bytes.NewReader(raw.Bytes()))
	if err == nil && r == nil {
		err = fmt.Errorf("unknown content encoding %q", encoding)
	}
	if err != nil {
		x.pass(badEncoding, err)
		return nil
	}
	defer r.Close()
	text, err := x.hold(r, -1, 0)
	switch {
	case errors.Is(err, httpbody.ErrNoRoom):
		x.pass(memoryFull, nil)
	case err != nil:
		x.pass(badEncoding, err)
	case int64(len(text.Bytes())) > x.handler.BufferLimit:
		x.pass(tooLarge, errors.New("larger than the limit when decoded"))
	default:
		return text
	}
	return nil
}

// hold reads a body into memory, which counts as held.
func (x *exchange) hold(r io.Reader, length int64, within time.Duration) (*httpbody.Held, error) {
	held, err := httpbody.Hold(r, length, x.handler.BufferLimit, within, func(bytes int64) bool {
		ok := x.handler.held.Grow(x.owner, bytes)
		if ok {
			x.held += bytes
		}
		return ok
	})
	x.bodies = append(x.bodies, held)
	return held, err
}

// release says that nothing of the request is held any more.
func (x *exchange) release() {
	if x.owner != "" {
		x.handler.held.Give(x.owner, x.held)
	}
}

// send passes the request on. After an error, other handlers may read its body again; else
// other requests get its memory.
func (x *exchange) send(next caddyhttp.Handler, w http.ResponseWriter, r *http.Request) error {
	err := next.ServeHTTP(w, r)
	if err == nil {
		for _, held := range x.bodies {
			held.Release()
		}
	}
	return err
}

// A body closes the one that it stands for.
type body struct {
	io.Reader
	io.Closer
}

// broken is a body where it breaks off.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// WriteHeader looks at what the answer is.
func (x *exchange) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		x.observe()
	}
	x.ResponseWriter.WriteHeader(status)
}

// observe prepares to read the usage, once the header of the answer is known.
func (x *exchange) observe() {
	if x.answered {
		return
	}
	x.answered = true
	framing, ok := chat.FramingOf(x.Header().Get("Content-Type"))
	if !ok {
		return
	}
	x.streamed = framing != chat.Unframed
	x.usage = chat.NewUsageReader(framing)
	x.body = &bounded{x.usage, maxObserved}
	if encoding := httpbody.Encoding(x.Header()); encoding != "" {
		if x.decoder = httpbody.NewDecoder(encoding, x.body); x.decoder == nil {
			x.body = nil
			return
		}
		x.body = x.decoder
	}
}

// Write passes the next bytes of the answer on before it looks at them.
func (x *exchange) Write(p []byte) (int, error) {
	x.observe()
	n, err := x.ResponseWriter.Write(p)
	if x.body != nil {
		if _, err := x.body.Write(p[:n]); err != nil {
			x.body = nil
		}
	}
	return n, err
}

// ReadFrom keeps io.Copy from finding the ReadFrom of the writer below, which
// would pass the answer by.
func (x *exchange) ReadFrom(r io.Reader) (int64, error) {
	x.observe()
	if x.body == nil {
		return x.ResponseWriterWrapper.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{x}, r)
}

// maxObserved is how much of an answer is looked at: a bomb is none.
const maxObserved = 64 << 20

// bounded fails when more than left bytes are written.
type bounded struct {
	io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, io.ErrShortWrite
	}
	return b.Writer.Write(p)
}

// finish counts the request, and what the answer has told.
func (x *exchange) finish() {
	if x.decoder != nil {
		_ = x.decoder.Close() // an answer that broke off has told what it has told
	}
	if x.usage != nil {
		x.learn()
	}
	x.report()
}

// learn counts what the answer has told.
func (x *exchange) learn() {
	x.told = x.usage.Usage()
	x.handler.provider.learn(x.told, x.expected)
	for _, tokens := range x.tokens() {
		if tokens.n > 0 {
			usageTokens.WithLabelValues(x.handler.Route, tokens.kind).Add(float64(tokens.n))
		}
	}
	if x.isRead() {
		x.cost = x.masked.prompt.cost(x.told, x.handler.CachePrices)
	}
	if x.cost != (cost{}) {
		promptCost.WithLabelValues(x.handler.Route, "sent").Add(x.cost.sent)
		promptCost.WithLabelValues(x.handler.Route, "unmasked").Add(x.cost.unmasked)
	}
}

// isRead reports whether the model has read the request: one that is refused costs nothing.
func (x *exchange) isRead() bool { return x.told.Input > 0 || x.streamed }

// report tells of the request where conversations are shown.
func (x *exchange) report() {
	sent := x.masked.prompt
	if sent.sent == 0 { // it has passed
		sent = prompt{unmasked: int(x.size), sent: int(x.size)}
	}
	done := activity.Request{
		Route: x.handler.Route, Masked: x.masked.results, SavedChars: max(x.masked.saved, 0), Moved: x.masked.broken,
		BytesBefore: int64(sent.unmasked), BytesAfter: int64(sent.sent), Cost: x.cost.sent, CostBefore: x.cost.unmasked,
		Usage: activity.Usage{
			Input: int64(x.told.Input), Cached: int64(x.told.Cached),
			CacheWrite: int64(x.told.CacheWrite), Output: int64(x.told.Output),
		},
	}
	if x.isRead() {
		done.TokensBefore, done.TokensAfter = sent.tokens(x.told)
	}
	activity.Models.Add(&done)
}

type tokens struct {
	kind string
	n    int
}

func (x *exchange) tokens() [4]tokens {
	return [...]tokens{
		{"input", x.told.Input}, {"cached", x.told.Cached}, {"cache_write", x.told.CacheWrite}, {"output", x.told.Output},
	}
}

// MarshalLogObject puts what was done, and what it has cost, into the access log.
func (x *exchange) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if x.passed != "" {
		enc.AddString("mcp_conversation_passed", string(x.passed))
	}
	if x.masked.turns > 0 {
		enc.AddInt("mcp_turns", x.masked.turns)
	}
	if x.masked.results > 0 {
		enc.AddInt("mcp_tool_results_masked", x.masked.results)
		enc.AddInt("mcp_tool_result_chars_saved", x.masked.saved)
	}
	if x.masked.unread > 0 {
		enc.AddInt("mcp_tool_results_unread", x.masked.unread)
	}
	if x.masked.broken {
		enc.AddBool("mcp_prompt_prefix_break", true)
	}
	for _, tokens := range x.tokens() {
		if tokens.n > 0 {
			enc.AddInt("mcp_usage_"+tokens.kind, tokens.n)
		}
	}
	if x.cost != (cost{}) {
		enc.AddInt("mcp_cost_sent", int(math.Round(x.cost.sent)))
		enc.AddInt("mcp_cost_unmasked", int(math.Round(x.cost.unmasked)))
	}
	return nil
}

// Interface guards
var (
	_ http.ResponseWriter     = (*exchange)(nil)
	_ io.ReaderFrom           = (*exchange)(nil)
	_ zapcore.ObjectMarshaler = (*exchange)(nil)
)
