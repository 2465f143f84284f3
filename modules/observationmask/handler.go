// Package observationmask implements http.handlers.observation_mask, which keeps huge tool results
// out of an agent's context.
package observationmask

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler masks observations: it shortens every huge string in result and error.data of an MCP
// server's JSON-RPC responses to head + marker + tail. The marker says how long the string was.
// All other bytes pass unchanged, and so do the handshake, all lists, and responses that are
// not JSON-RPC.
//
// It works on JSON (application/json and any +json) and on event streams, event by event, as
// they arrive and in memory that does not grow with the response. It decodes responses with a
// Content-Encoding of gzip, zstd or br; put encode in front of it to compress the masked
// response. A response that cannot be rewritten safely passes unchanged.
//
// In the access log, mcp_server, mcp_method and mcp_tool name the call; mcp_masked_strings and
// mcp_masked_chars count the strings shortened and the characters removed. The metrics
// caddy_mcp_masked_strings_total and caddy_mcp_masked_chars_total count the same by server.
//
// Unless an enclosing mcp_gateway has set them, the handler sets these placeholders from the
// part of the request that has been read. They are complete once a response begins.
//
// Placeholder | Description
// ------------|-------------
// `{http.mcp.server}` | The name of the MCP server, from the configuration
// `{http.mcp.method}` | The JSON-RPC method
// `{http.mcp.tool}` | The name of the tool or prompt, from params.name
type Handler struct {
	// Maximum length of strings in characters (Unicode code points). Longer strings are masked. 0 or
	// less turns the handler off. Default: 4000
	MaxChars *int `json:"max_chars,omitempty"`

	// How many characters to keep of the beginning of a masked string. Default: 2000, or half of
	// max_chars if that is less
	HeadChars *int `json:"head_chars,omitempty"`

	// How many characters to keep of the end of a masked string. Default: 2000, or half of max_chars
	// if that is less
	TailChars *int `json:"tail_chars,omitempty"`

	// Maximum size in bytes of a response, or of one event of an event stream. Larger ones pass
	// unmasked. If a response has no Content-Length, up to this many bytes are held in memory to find
	// out. Default: no limit; responses are masked as they arrive
	BufferLimit int `json:"buffer_limit,omitempty"`

	// Never shorten the data of image and audio content, the blob of resources and the text of MCP
	// Apps UIs: model APIs reject half an image. Default: false
	KeepMedia bool `json:"keep_media,omitempty"`

	// Keep the originals of masked strings for a limited time, so that clients can recover them with
	// the handle in the marker. Default: originals are not kept
	Recover *Recover `json:"recover,omitempty"`

	// Shorten texts that are JSON without breaking their structure, so that they can still be parsed.
	// Default: false
	JSON bool `json:"json,omitempty"`

	// Patterns of results that are never masked, as in the rules of clients: server::tool,
	// prompt:server::name, resource:server::prefix, or server::* for a whole server. Default: none
	Exempt []string `json:"exempt,omitempty"`

	// The name of the MCP server behind this handler, as used in exempt, metrics and the access log.
	// Default: the server of the enclosing mcp_gateway, or none
	Server string `json:"server,omitempty"`

	policy mask.Policy
	exempt *acl.Policy // allows targets whose results are never masked; nil for none
	store  *storepool.Store
	logger *zap.Logger
}

// Recover configures the store of originals. All handlers with the same bounds share one store,
// which survives configuration reloads.
type Recover struct {
	// A string of more than an eighth of max_bytes is masked without a handle.
	storepool.Bounds

	// A sentence in each marker that has a handle, which tells the model how to recover the original:
	// one line of at most 200 characters. If it is empty, markers have none. Default: To see more,
	// call recover_observation with this id and a goal.
	Hint *string `json:"hint,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.observation_mask",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	if err := h.compile(); err != nil {
		return err
	}
	if *h.MaxChars < 0 {
		h.logger.Warn("negative max_chars turns the mask off; write off", zap.Int("max_chars", *h.MaxChars))
	}
	err := telemetry.Register(ctx, collectors...)
	if err != nil || h.Recover == nil {
		return err
	}
	if h.store, err = storepool.OpenShared(ctx, observations, h.Recover.Limits()); err != nil {
		return err
	}
	return h.store.WarnIfUnreadable(ctx)
}

// compile sets the defaults and creates the policies.
func (h *Handler) compile() error {
	h.MaxChars = cmp.Or(h.MaxChars, new(mask.DefaultMaxChars))
	// A lower max_chars alone shortens head and tail, too.
	side := max(*h.MaxChars, 0) / 2
	h.HeadChars = cmp.Or(h.HeadChars, new(min(mask.DefaultHeadChars, side)))
	h.TailChars = cmp.Or(h.TailChars, new(min(mask.DefaultTailChars, side)))
	h.policy = mask.Policy{
		MaxChars: *h.MaxChars, HeadChars: *h.HeadChars, TailChars: *h.TailChars, KeepMedia: h.KeepMedia,
		HoldLimit: defaultHoldLimit,
	}
	if len(h.Exempt) > 0 {
		rules := make([]acl.Rule, len(h.Exempt))
		for i, pattern := range h.Exempt {
			rules[i] = acl.Rule{Action: acl.Allow, Pattern: pattern}
		}
		var err error
		if h.exempt, err = acl.New(rules, acl.Deny); err != nil {
			return fmt.Errorf("exempt: %w", err)
		}
		if h.exempt.UsesAnnotations() {
			return errors.New("exempt: conditions on tool annotations are not supported, name the tools")
		}
	}
	if h.Recover != nil {
		h.Recover.setDefaults()
		if err := h.Recover.validate(h.policy.MaxChars); err != nil {
			return err // before a store is opened with its values
		}
		h.policy.HoldLimit = h.Recover.maxOriginal()
		h.policy.Hint = string(jsonspan.AppendBody(nil, *h.Recover.Hint))
	}
	return nil
}

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	p := h.policy
	switch {
	case p.HeadChars < 0:
		return fmt.Errorf("head_chars: %d is negative", p.HeadChars)
	case p.TailChars < 0:
		return fmt.Errorf("tail_chars: %d is negative", p.TailChars)
	case p.MaxChars > 0 && p.HeadChars > p.MaxChars-p.TailChars: // the sum may overflow
		return fmt.Errorf("head_chars + tail_chars: %d + %d exceed max_chars %d",
			p.HeadChars, p.TailChars, p.MaxChars)
	case h.BufferLimit < 0:
		return fmt.Errorf("buffer_limit: %d is negative", h.BufferLimit)
	}
	return nil
}

// ServeHTTP masks the response of the next handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if h.policy.MaxChars <= 0 || r.Method == http.MethodHead {
		return next.ServeHTTP(w, r)
	}
	mw := &responseWriter{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		handler:               h,
		request:               r,
		shortener:             h.shortener(r), // created here because the log may be written while the response begins
	}
	mw.call.begin(h.Server, r)
	if request := requestOf(r); request.Goal != "" {
		focusCalls.WithLabelValues(request.labels(h.Server)...).Inc()
	}
	telemetry.JoinAccessLog(r, mw)
	// reverse_proxy panics when either side closes in mid-body. The panic passes through here; abort
	// first sends what has arrived.
	defer mw.abort()
	if err := next.ServeHTTP(mw, forwarded(r, &mw.call)); err != nil {
		return err
	}
	mw.finish()
	return nil
}

// forwarded returns r for the next handler: with its body watched and without Accept-Encoding, so
// that Go's transport negotiates gzip itself and decodes it. r does not change, because an encode
// handler in front needs its Accept-Encoding.
func forwarded(r *http.Request, call *call) *http.Request {
	body, encodings := call.watch(r), r.Header.Get("Accept-Encoding")
	if body == r.Body && encodings == "" {
		return r
	}
	r2 := new(http.Request)
	*r2 = *r
	r2.Body = body
	if encodings != "" {
		r2.Header = r.Header.Clone()
		r2.Header.Del("Accept-Encoding")
	}
	return r2
}

// defaultHoldLimit is the longest message, in bytes, that is cut as JSON or for a goal if originals
// are not kept. Longer ones are cut to head and tail.
const defaultHoldLimit = 8 << 20

// isExempt reports whether the result of a call is never masked. asked is the envelope as far as it
// has been read.
func (h *Handler) isExempt(call *call, asked *envelope) bool {
	if mcp.Describes(asked.method) {
		return true
	}
	target := call.target(asked)
	target.Server = call.server
	return h.Exempts(target)
}

// Exempts reports whether the result of a request for target is never masked.
func (h *Handler) Exempts(target mcp.Target) bool {
	if target.Kind == mcp.Resource && strings.HasPrefix(target.Name, mcp.UIScheme) {
		// The UI of an MCP App is shown to users, never to a model, and half of it is useless.
		return true
	}
	if h.exempt == nil {
		return false
	}
	switch target.Kind {
	case mcp.Tool:
		tool := acl.Tool{Facts: condition.Facts{Server: target.Server, Tool: target.Name}}
		return h.exempt.Tool(&tool).Action == acl.Allow
	case mcp.Prompt:
		return h.exempt.Prompt(target.Server, target.Name).Action == acl.Allow
	case mcp.Resource:
		return h.exempt.Resource(target.Server, target.Name).Action == acl.Allow
	}
	return h.exempt.AllowsOther(target.Server)
}

// hint returns the hint in markers of recoverable strings, or "".
func (h *Handler) hint() string {
	if h.Recover == nil {
		return ""
	}
	return *h.Recover.Hint
}

// Recovers reports whether originals are kept. maxChars is the length in characters up to which a
// string is not masked.
func (h *Handler) Recovers() (maxChars int, ok bool) { return h.policy.MaxChars, h.store != nil }

// Cleanup releases the store.
func (h *Handler) Cleanup() error { return h.store.Release() }

func (r *Recover) setDefaults() {
	r.SetDefaults()
	r.Hint = cmp.Or(r.Hint, new(mask.DefaultHint))
}

// maxOriginal returns the maximum size of an original in bytes.
func (r *Recover) maxOriginal() int { return int(r.MaxBytes / 8) }

func (r *Recover) validate(maxChars int) error {
	switch n := utf8.RuneCountInString(*r.Hint); {
	case n > mask.MaxHint:
		return fmt.Errorf("recover hint: %d characters exceed the limit of %d", n, mask.MaxHint)
	case strings.TrimSpace(*r.Hint) != *r.Hint:
		return errors.New("recover hint: must not begin or end with a space")
	case strings.ContainsFunc(*r.Hint, unicode.IsControl) || !utf8.ValidString(*r.Hint):
		return errors.New("recover hint: must be one line of text")
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if r.maxOriginal() <= maxChars {
		return fmt.Errorf("recover max_bytes: %d is too small: an original may take an eighth of it, "+
			"and has more than max_chars %d", r.MaxBytes, maxChars)
	}
	return nil
}

// An original is a masked text in the store.
type original struct {
	request Request // request of the response that contained it, without the goal
	focused bool    // the request had a goal
	body    []byte  // raw JSON string body, with escapes
}

// header returns the bytes that are stored before the body.
func (o *original) header() []byte {
	header := []byte{0, byte(o.request.About.Kind)}
	if o.focused {
		header[0] = 1
	}
	for _, text := range [...]string{o.request.About.Name, o.request.Label} {
		header = binary.AppendUvarint(header, uint64(len(text)))
		header = append(header, text...)
	}
	return header
}

// readOriginal decodes a stored original.
func readOriginal(server string, kept []byte) *original {
	o := &original{focused: kept[0] != 0}
	o.request.About = mcp.Target{Server: server, Kind: mcp.TargetKind(kept[1])}
	rest := kept[2:]
	for _, text := range [...]*string{&o.request.About.Name, &o.request.Label} {
		size, n := binary.Uvarint(rest)
		*text, rest = string(rest[n:][:size]), rest[n:][size:]
	}
	o.body = rest
	return o
}

// labels returns the label values of the counters of originals.
func (o *original) labels() []string {
	focused := "no"
	if o.focused {
		focused = "yes"
	}
	return append(o.request.labels(o.request.About.Server), focused)
}

// saver returns a function that stores an original for the client of r and returns its handle, or
// nil if originals are not kept.
func (h *Handler) saver(r *http.Request) func([]byte) string {
	if h.store == nil {
		return nil
	}
	owner := clientrequest.Identity(r)
	request := requestOf(r)
	o := original{request: *request, focused: request.Goal != ""}
	o.request.About.Server = h.Server
	header := o.header()
	return func(body []byte) string {
		handle := h.store.Handles.New(mask.HandlePrefix, []byte(owner), header, body)
		if !h.store.Put(h.scope(owner), handle, slices.Concat(header, body)) {
			return ""
		}
		originals.WithLabelValues(o.labels()...).Inc()
		if request.Report != nil {
			request.Report.AddOriginal(handle)
		}
		return handle
	}
}

// scope returns the owner of a client's originals in the store. It includes the server, because
// servers may share a store, and the client may not use all of them.
func (h *Handler) scope(client string) string { return h.Server + "\x00" + client }

// Place returns where a client's originals are stored.
func (h *Handler) Place(client string) storepool.Place {
	return storepool.Place{Store: h.store, Owner: h.scope(client)}
}

// Original returns a client's original: the raw body of a JSON string, with escapes, and the target
// of the request whose response contained it. The original counts as recovered.
func (h *Handler) Original(client, handle string) (body []byte, target mcp.Target, ok bool) {
	if h.store == nil {
		return nil, mcp.Target{}, false
	}
	kept, first, ok := h.store.GetFirst(h.scope(client), handle)
	if !ok {
		return nil, mcp.Target{}, false
	}
	o := readOriginal(h.Server, kept)
	if first {
		recovered.WithLabelValues(o.labels()...).Inc()
	}
	return o.body, o.request.About, true
}

// Kept returns the same body as Original, for an operator. The original does not count as
// recovered.
func (h *Handler) Kept(client, handle string) (body []byte, ok bool) {
	if h.store == nil {
		return nil, false
	}
	kept, ok := h.store.Get(h.scope(client), handle)
	if !ok {
		return nil, false
	}
	return readOriginal(h.Server, kept).body, true
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
