// Package observationmask keeps huge tool results out of an agent's context: the
// HTTP handler http.handlers.observation_mask.
package observationmask

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler masks observations: in the JSON-RPC responses of an MCP server, every
// huge string of result and error.data becomes head + marker + tail. The marker
// says how long the string was. Everything else passes to the byte, and what is
// not JSON-RPC passes untouched.
//
// It works on JSON (application/json and any +json) and on event streams, event
// by event, as they arrive and in memory that does not grow with the response.
// Responses of a Content-Encoding it knows (gzip, zstd, br) are decoded; put
// encode in front of it to compress what is left. A response that cannot be
// rewritten safely passes as it is.
//
// In the access log, mcp_server, mcp_method and mcp_tool say what was called,
// mcp_masked_strings and mcp_masked_chars what was taken out of the answer. The
// same is counted in the metrics caddy_mcp_masked_strings_total and
// caddy_mcp_masked_chars_total, by server.
//
// Unless an enclosing mcp_gateway has set them, these placeholders tell what the
// request asks for, as far as it has been read: all of it, once a response begins.
//
// Placeholder | Description
// ------------|-------------
// `{http.mcp.server}` | The name of the MCP server, from the configuration
// `{http.mcp.method}` | The JSON-RPC method
// `{http.mcp.tool}` | The name of the tool, prompt or other thing called by name
type Handler struct {
	// Strings of more characters (Unicode code points) are masked. 0 or less
	// turns the handler off. Default: 4000
	MaxChars *int `json:"max_chars,omitempty"`

	// How many characters of the beginning are kept. Default: 2000, or half of
	// max_chars if that is less.
	HeadChars *int `json:"head_chars,omitempty"`

	// How many characters of the end are kept. Default: 2000, or half of
	// max_chars if that is less.
	TailChars *int `json:"tail_chars,omitempty"`

	// Responses, and single events of an event stream, of more bytes than this
	// pass unmasked. Where the length is not announced, up to this much is held
	// in memory to find out. Default: no limit; responses are masked as they
	// stream.
	BufferLimit int `json:"buffer_limit,omitempty"`

	// Leave the data of image and audio content, the blob of resources and the text of the UIs
	// of MCP Apps whole: model APIs refuse half an image. Default: false
	KeepMedia bool `json:"keep_media,omitempty"`

	// Keep the originals of masked strings for a while, and name in the marker
	// the handle under which they can be recovered. Default: not kept
	Recover *Recover `json:"recover,omitempty"`

	// Results of these tools are never masked: patterns of the form server::tool,
	// in which * stands for any characters. Default: none
	Exempt []string `json:"exempt,omitempty"`

	// The name of the MCP server behind this handler: the server of exempt, of
	// the metrics and of the access log. Default: that of the enclosing
	// mcp_gateway, or none
	Server string `json:"server,omitempty"`

	policy mask.Policy
	exempt []mcp.Pattern
	store  *storepool.Store
	logger *zap.Logger
}

// Recover bounds the store of originals. It is shared by all handlers with the
// same bounds and outlives configuration reloads.
type Recover struct {
	// How long an original is kept after it was last seen. Default: 1h
	TTL caddy.Duration `json:"ttl,omitempty"`

	// How many originals are kept. Default: 1000
	MaxEntries int `json:"max_entries,omitempty"`

	// How many bytes they may take together. A string of more than an eighth of
	// that is masked without a handle. Default: 64 MiB
	MaxBytes int64 `json:"max_bytes,omitempty"`
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
	if h.MaxChars == nil {
		h.MaxChars = new(mask.DefaultMaxChars)
	}
	// Who lowers max_chars alone wants less of both sides.
	side := max(*h.MaxChars, 0) / 2
	if h.HeadChars == nil {
		h.HeadChars = new(min(mask.DefaultHeadChars, side))
	}
	if h.TailChars == nil {
		h.TailChars = new(min(mask.DefaultTailChars, side))
	}
	h.policy = mask.Policy{MaxChars: *h.MaxChars, HeadChars: *h.HeadChars, TailChars: *h.TailChars, KeepMedia: h.KeepMedia}
	for _, s := range h.Exempt {
		pattern, err := mcp.ParsePattern(s)
		if err != nil {
			return fmt.Errorf("exempt: %w", err)
		}
		h.exempt = append(h.exempt, pattern)
	}
	if err := telemetry.Register(ctx, maskedStrings, maskedChars); err != nil {
		return err
	}
	if h.Recover != nil {
		h.Recover.setDefaults()
		if err := h.Recover.validate(h.policy.MaxChars); err != nil {
			return err
		}
		var err error
		if h.store, err = storepool.Open(observations, h.Recover.limits()); err != nil {
			return err
		}
		h.policy.SaveLimit = h.Recover.largest()
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
	case p.MaxChars > 0 && p.HeadChars > p.MaxChars-p.TailChars: // not their sum, which may wrap around
		return fmt.Errorf("head_chars + tail_chars: %d + %d exceed max_chars %d", p.HeadChars, p.TailChars, p.MaxChars)
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
	}
	mw.call.begin(h.Server, r)
	telemetry.JoinAccessLog(r, mw)
	// reverse_proxy panics when one side dies in mid-body. That passes through
	// here, and what has arrived by then goes out before it.
	defer mw.abort()
	if err := next.ServeHTTP(mw, forwarded(r, &mw.call)); err != nil {
		return err
	}
	mw.finish()
	return nil
}

// forwarded returns r as the next handler is to see it: with its call watched,
// and without Accept-Encoding. Go's transport then asks for gzip on its own
// account and decodes it, and encode in front still knows what the client takes.
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

// exempted reports whether the result of a call is never masked.
func (h *Handler) exempted(call *call) bool {
	if call.readsUI() {
		return true
	}
	if len(h.exempt) == 0 {
		return false
	}
	tool := call.read().name
	return slices.ContainsFunc(h.exempt, func(p mcp.Pattern) bool { return p.Match(call.server, tool) })
}

// saver returns what keeps originals for the client of r.
func (h *Handler) saver(r *http.Request) func([]byte) string {
	if h.store == nil {
		return nil
	}
	owner := clientrequest.Identity(r)
	target, _ := r.Context().Value(targetKey{}).(mcp.Target)
	label := appendTarget(nil, target)
	return func(body []byte) string {
		handle := store.Handle(mask.HandlePrefix, []byte(owner), label, body)
		if !h.store.Put(h.scope(owner), handle, slices.Concat(label, body)) {
			return ""
		}
		return handle
	}
}

// targetKey is where a context has what a request is about.
type targetKey struct{}

// WithTarget returns r as one that is about target. What is masked of the answer can be
// had again by who may use that.
func WithTarget(r *http.Request, target mcp.Target) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), targetKey{}, target))
}

// appendTarget appends what is kept before an original: what it was about.
func appendTarget(dst []byte, target mcp.Target) []byte {
	dst = append(dst, byte(target.Kind))
	dst = binary.AppendUvarint(dst, uint64(len(target.Name)))
	return append(dst, target.Name...)
}

// cutTarget returns what appendTarget has appended, and the rest.
func (h *Handler) cutTarget(kept []byte) (mcp.Target, []byte) {
	size, n := binary.Uvarint(kept[1:])
	name, body := kept[1+n:][:size], kept[1+n:][size:]
	return mcp.Target{Server: h.Server, Kind: mcp.TargetKind(kept[0]), Name: string(name)}, body
}

// scope returns who finds what is kept for a client: stores may be shared, and a client
// may not be allowed to use every server.
func (h *Handler) scope(client string) string { return h.Server + "\x00" + client }

// Original returns what was masked and is kept for a client under a handle: the body
// of a JSON string, escapes and all, and what the client had asked for.
func (h *Handler) Original(client, handle string) (body []byte, target mcp.Target, ok bool) {
	if h.store == nil {
		return nil, mcp.Target{}, false
	}
	kept, ok := h.store.Get(h.scope(client), handle)
	if !ok {
		return nil, mcp.Target{}, false
	}
	target, body = h.cutTarget(kept)
	return body, target, true
}

// Recovers reports whether originals are kept, and how long answers may be that are
// not to be masked again.
func (h *Handler) Recovers() (maxChars int, ok bool) { return h.policy.MaxChars, h.store != nil }

// Cleanup releases the store.
func (h *Handler) Cleanup() error { return h.store.Release() }

func (r *Recover) limits() store.Limits {
	return store.Limits{Entries: r.MaxEntries, Bytes: r.MaxBytes, TTL: time.Duration(r.TTL)}
}

func (r *Recover) setDefaults() {
	if r.TTL == 0 {
		r.TTL = caddy.Duration(time.Hour)
	}
	if r.MaxEntries == 0 {
		r.MaxEntries = 1000
	}
	if r.MaxBytes == 0 {
		r.MaxBytes = 64 << 20
	}
}

// largest is how many bytes one original may have.
func (r *Recover) largest() int { return int(r.MaxBytes / 8) }

func (r *Recover) validate(maxChars int) error {
	switch {
	case r.TTL < 0:
		return fmt.Errorf("recover ttl: %s is negative", time.Duration(r.TTL))
	case r.MaxEntries < 0:
		return fmt.Errorf("recover max_entries: %d is negative", r.MaxEntries)
	case r.MaxBytes < 0:
		return fmt.Errorf("recover max_bytes: %d is negative", r.MaxBytes)
	case r.largest() <= maxChars:
		return fmt.Errorf("recover max_bytes: with %d nothing is kept, as an original may take an eighth of it and has more than max_chars %d", r.MaxBytes, maxChars)
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
