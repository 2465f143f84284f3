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

// A modelRequest is a request to a model and its response. The request is masked before it is
// forwarded. The response passes unchanged, and its usage is read.
type modelRequest struct {
	caddyhttp.ResponseWriterWrapper
	handler *Handler
	masked  masked
	passed  reason // why the request was not masked, or empty
	size    int64  // bytes of the body as received, as far as known
	owner   string // client address whose quota counts; empty if nothing is held
	held    int64  // bytes in memory, counted in the handler's max_buffered
	bodies  []*httpbody.Held

	observing     bool // observe has run
	isStream      bool // the response is a stream
	expectsCached bool // the provider should have much of the request in its cache
	usageReader   *chat.UsageReader
	body          io.Writer         // reads the response, or nil
	decoder       *httpbody.Decoder // body, if the response is encoded
	reported      chat.Usage
	cost          cost
}

// masked summarizes the changes to a request.
type masked struct {
	turns, results, saved int
	broken                bool
	prompt                prompt
	unread                int // old results that cannot be masked
}

// add adds the changes another handler made to the same request.
func (m *masked) add(other masked) {
	m.results += other.results
	m.saved += other.saved
	m.unread += other.unread
	m.broken = m.broken || other.broken
	m.prompt.maskedBy(other.prompt)
}

// A reason says why a request passes unchanged. It is a metric label.
type reason string

const (
	tooLarge    reason = "too_large"
	unreadable  reason = "unreadable" // body broken off, or rejected by another handler
	stalled     reason = "stalled"    // the client stopped sending
	memoryFull  reason = "memory"     // other requests use all of max_buffered
	badEncoding reason = "encoding"
	invalidJSON reason = "invalid_json"
	repeatedKey reason = "repeated_key"
	otherShape  reason = "shape"
	grows       reason = "grows"  // placeholders are longer than the results
	signed      reason = "signed" // the signature covers the body
)

// hints holds what the operator can do, by reason. Requests with other reasons are invalid, or not
// conversations.
var hints = map[reason]string{
	tooLarge:    "raise buffer_limit",
	memoryFull:  "raise max_buffered",
	badEncoding: "have clients send requests uncompressed, or with gzip, br or zstd",
	signed:      "sign requests behind this handler, or have clients use an API key",
}

// mask masks the request. It changes r in place, because error handlers see the same request if the
// next handler fails.
func (x *modelRequest) mask(r *http.Request) {
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
	plan := x.planChanges(text.Bytes())
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

// receive reads the body of r into memory. It returns nil if r passes unchanged.
func (x *modelRequest) receive(r *http.Request) *httpbody.Held {
	limit := x.handler.BufferLimit
	switch {
	case isSigned(r):
		x.recordUnmasked(signed, nil)
		return nil
	case r.ContentLength > limit:
		x.recordUnmasked(tooLarge, nil)
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
		x.recordUnmasked(memoryFull, nil)
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.recordUnmasked(stalled, err)
		rest = brokenReader{err}
	case err != nil:
		x.recordUnmasked(unreadable, err)
		rest = brokenReader{err}
	case int64(len(raw.Bytes())) > limit:
		x.recordUnmasked(tooLarge, nil)
	default:
		setBody(r, raw, content)
		return raw
	}
	r.Body = body{io.MultiReader(raw.Reader(content()), rest), r.Body}
	return nil
}

// setBody sets the body of r, and GetBody for retries, to content backed by held memory.
func setBody(r *http.Request, held *httpbody.Held, content func() io.Reader) {
	r.Body = body{held.Reader(content()), r.Body}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(held.Reader(content())), nil }
}

// planChanges returns the changes to a conversation.
func (x *modelRequest) planChanges(text []byte) chat.Plan {
	c, err := x.handler.memory.Parse(x.owner, text)
	if err != nil {
		x.recordUnmasked(parseReason(err), err)
		return chat.Plan{}
	}
	past, now := c.Past(), time.Now()
	plan, progress := c.MaskAfter(&x.handler.policy, &past.Progress, x.handler.isCold(c, past, now))
	defer x.handler.memory.Keep(x.owner, c, chat.Past{Progress: progress, At: now})
	x.expectsCached = expectsCache(plan, past, now)
	if plan.Grows {
		x.recordUnmasked(grows, nil)
	}
	x.masked = masked{
		turns: plan.Turns, results: plan.Results, saved: plan.Saved, broken: plan.Broken,
		prompt: promptOf(text, plan),
	}
	if plan.Results > 0 {
		maskedResults.WithLabelValues().Add(float64(plan.Results))
		savedChars.WithLabelValues().Add(float64(max(plan.Saved, 0)))
	}
	for why, n := range plan.Unread {
		if n > 0 {
			x.countUnread(chat.Unread(why), n, c.Format())
		}
	}
	if plan.Broken {
		prefixBreaks.WithLabelValues().Inc()
	}
	return plan
}

// parseReason returns the reason for a parse error.
func parseReason(err error) reason {
	switch {
	case errors.Is(err, chat.ErrShape):
		return otherShape
	case errors.Is(err, jsonspan.ErrDuplicate):
		return repeatedKey
	}
	return invalidJSON
}

// recordUnmasked records why the request passes unchanged. It warns once of each reason that the
// operator can fix.
func (x *modelRequest) recordUnmasked(why reason, err error) {
	x.passed = why
	passedConversations.WithLabelValues(string(why)).Inc()
	level, hint := zapcore.DebugLevel, hints[why]
	if hint != "" && x.handler.warned.first(string(why)) {
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

// countUnread counts old results that cannot be masked. Results that are not text, such as images,
// stay on purpose. Others may come from a client that this handler should support, so it warns once
// of each reason.
func (x *modelRequest) countUnread(why chat.Unread, n int, format string) {
	x.masked.unread += n
	unreadResults.WithLabelValues(why.String()).Add(float64(n))
	level := zapcore.DebugLevel
	if why != chat.NotText && x.handler.warned.first(why.String()) {
		level = zapcore.WarnLevel
	}
	if c := x.handler.logger.Check(level, "old tool results not masked"); c != nil {
		c.Write(zap.String("reason", why.String()), zap.String("format", format), zap.Int("results", n))
	}
}

// onceLog records which reasons were logged as warnings.
type onceLog struct{ reasons sync.Map }

// first reports whether it is called for the first time with this reason.
func (s *onceLog) first(reason string) bool {
	_, before := s.reasons.LoadOrStore(reason, true)
	return !before
}

// isSigned reports whether a request has an AWS signature, which covers the body.
func isSigned(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") ||
		strings.Contains(r.URL.RawQuery, "X-Amz-Signature=")
}

// decode returns the decoded body. It returns nil if the request passes unchanged.
func (x *modelRequest) decode(raw *httpbody.Held, encoding string) *httpbody.Held {
	if encoding == "" {
		return raw
	}
	r, err := httpbody.NewReader(encoding, bytes.NewReader(raw.Bytes()))
	if err == nil && r == nil {
		err = fmt.Errorf("unknown content encoding %q", encoding)
	}
	if err != nil {
		x.recordUnmasked(badEncoding, err)
		return nil
	}
	defer r.Close()
	text, err := x.hold(r, -1, 0)
	switch {
	case errors.Is(err, httpbody.ErrNoRoom):
		x.recordUnmasked(memoryFull, nil)
	case err != nil:
		x.recordUnmasked(badEncoding, err)
	case int64(len(text.Bytes())) > x.handler.BufferLimit:
		x.recordUnmasked(tooLarge, errors.New("larger than the limit when decoded"))
	default:
		return text
	}
	return nil
}

// hold reads a body into memory, counted in max_buffered.
func (x *modelRequest) hold(r io.Reader, length int64, within time.Duration) (*httpbody.Held, error) {
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

// release returns the request's share of max_buffered.
func (x *modelRequest) release() {
	if x.owner != "" {
		x.handler.held.Give(x.owner, x.held)
	}
}

// send forwards the request, and then releases the memory of its body. After an error it does not,
// because error handlers may read the body again.
func (x *modelRequest) send(next caddyhttp.Handler, w http.ResponseWriter, r *http.Request) error {
	err := next.ServeHTTP(w, r)
	if err == nil {
		for _, held := range x.bodies {
			held.Release()
		}
	}
	return err
}

// A body is a request body whose Close closes the original body.
type body struct {
	io.Reader
	io.Closer
}

// A brokenReader fails. It stands for the rest of a body that could not be read.
type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// WriteHeader starts to observe the response.
func (x *modelRequest) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		x.observe()
	}
	x.ResponseWriter.WriteHeader(status)
}

// observe prepares to read the usage once the response header is known.
func (x *modelRequest) observe() {
	if x.observing {
		return
	}
	x.observing = true
	framing, ok := chat.FramingOf(x.Header().Get("Content-Type"))
	if !ok {
		return
	}
	x.isStream = framing != chat.Unframed
	x.usageReader = chat.NewUsageReader(framing)
	x.body = &bounded{x.usageReader, maxObserved}
	if encoding := httpbody.Encoding(x.Header()); encoding != "" {
		x.decoder = httpbody.NewDecoder(encoding, x.body)
		if x.decoder == nil {
			x.body = nil
			return
		}
		x.body = x.decoder
	}
}

// Write writes the response before reading its usage.
func (x *modelRequest) Write(p []byte) (int, error) {
	x.observe()
	n, err := x.ResponseWriter.Write(p)
	if x.body != nil {
		if _, err := x.body.Write(p[:n]); err != nil {
			x.body = nil
		}
	}
	return n, err
}

// ReadFrom keeps io.Copy from using ReadFrom of the underlying writer, which would bypass the usage
// reader.
func (x *modelRequest) ReadFrom(r io.Reader) (int64, error) {
	x.observe()
	if x.body == nil {
		return x.ResponseWriterWrapper.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{x}, r)
}

// maxObserved bounds how much of a decoded response is read, against decompression bombs.
const maxObserved = 64 << 20

// A bounded writer fails when more than left bytes are written.
type bounded struct {
	io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.left -= len(p)
	if b.left < 0 {
		return 0, io.ErrShortWrite
	}
	return b.Writer.Write(p)
}

// finish reads the usage and reports the request.
func (x *modelRequest) finish() {
	if x.decoder != nil {
		_ = x.decoder.Close() // a response that broke off may still have usage
	}
	if x.usageReader != nil {
		x.countUsage()
	}
	x.report()
}

// countUsage counts the usage of the response.
func (x *modelRequest) countUsage() {
	x.reported = x.usageReader.Usage()
	x.handler.provider.update(x.reported, x.expectsCached)
	for _, tokens := range x.tokens() {
		if tokens.n > 0 {
			usageTokens.WithLabelValues(x.handler.Route, tokens.kind).Add(float64(tokens.n))
		}
	}
	if x.isProcessed() {
		x.cost = x.masked.prompt.cost(x.reported, x.handler.CachePrices)
	}
	if x.cost != (cost{}) {
		promptCost.WithLabelValues(x.handler.Route, "sent").Add(x.cost.sent)
		promptCost.WithLabelValues(x.handler.Route, "unmasked").Add(x.cost.unmasked)
	}
}

// isProcessed reports whether the model processed the request. A rejected one costs nothing.
func (x *modelRequest) isProcessed() bool { return x.reported.Input > 0 || x.isStream }

// report adds the request to the activity that the console shows.
func (x *modelRequest) report() {
	sent := x.masked.prompt
	if sent.sent == 0 { // the request passed unchanged
		sent = prompt{unmasked: int(x.size), sent: int(x.size)}
	}
	done := activity.Request{
		Route: x.handler.Route, Masked: x.masked.results, SavedChars: max(x.masked.saved, 0),
		Moved: x.masked.broken, BytesBefore: int64(sent.unmasked), BytesAfter: int64(sent.sent),
		Cost: x.cost.sent, CostBefore: x.cost.unmasked,
		Usage: activity.Usage{
			Input: int64(x.reported.Input), Cached: int64(x.reported.Cached),
			CacheWrite: int64(x.reported.CacheWrite), Output: int64(x.reported.Output),
		},
	}
	if x.isProcessed() {
		done.TokensBefore, done.TokensAfter = sent.tokens(x.reported)
	}
	activity.Models.Add(&done)
}

type tokens struct {
	kind string
	n    int
}

func (x *modelRequest) tokens() [4]tokens {
	return [...]tokens{
		{"input", x.reported.Input}, {"cached", x.reported.Cached},
		{"cache_write", x.reported.CacheWrite}, {"output", x.reported.Output},
	}
}

// MarshalLogObject adds what was masked, the usage and the cost to the access log.
func (x *modelRequest) MarshalLogObject(enc zapcore.ObjectEncoder) error {
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
	_ http.ResponseWriter     = (*modelRequest)(nil)
	_ io.ReaderFrom           = (*modelRequest)(nil)
	_ zapcore.ObjectMarshaler = (*modelRequest)(nil)
)
