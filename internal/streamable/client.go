package streamable

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A Session has the headers that all requests to a server in a session share. The zero value is for
// the request that begins a session.
type Session struct {
	Era     mcp.Era
	Version string // protocol version, once negotiated
	ID      string // empty if the server has no sessions
}

// SetHeaders sets the headers of the session on a POST or DELETE, and removes headers of a client
// that must not be passed on. [mcp.SetModern] sets the headers that repeat parts of a message.
func (s Session) SetHeaders(header http.Header) {
	for _, name := range [...]string{"Accept-Encoding", "Content-Encoding", lastEventID, "Upgrade"} {
		delete(header, name)
	}
	if s.Era == mcp.Legacy {
		mcp.ClearModern(header)
	}
	httpbody.SetHeader(header, "Accept", "application/json, text/event-stream")
	for _, own := range [...]struct{ name, value string }{{mcp.VersionHeader, s.Version}, {mcp.SessionHeader, s.ID}} {
		if own.value == "" {
			delete(header, own.name)
		} else {
			httpbody.SetHeader(header, own.name, own.value)
		}
	}
}

// SetGETHeaders sets the headers of the session on a GET. after is the id of the last event, to
// resume a stream; "" for a new one.
func (s Session) SetGETHeaders(header http.Header, after string) {
	s.SetHeaders(header)
	header.Set("Accept", "text/event-stream")
	if after != "" {
		header.Set(lastEventID, after)
	}
}

// Direct sets the URL of r to target, in place as rewrites do, so placeholders for r see it, too.
func Direct(r *http.Request, target *url.URL) {
	r.URL.Path, r.URL.RawPath = target.Path, target.RawPath
	r.URL.RawQuery, r.URL.ForceQuery = target.RawQuery, target.ForceQuery
	r.RequestURI = r.URL.RequestURI()
}

const lastEventID = "Last-Event-Id"

// ReadResponse reads a response to its end. It returns why the response broke off or is invalid.
func (r *Reader) ReadResponse(res *http.Response) error {
	defer res.Body.Close()
	r.header = res.Header
	r.WriteHeader(res.StatusCode)
	if r.dropsBody {
		return nil
	}
	if _, err := io.Copy(r, res.Body); err != nil {
		return err
	}
	return r.Close()
}

// A Position records how far an event stream has been read. It outlives the connections of the
// stream. The zero value is the beginning.
type Position struct {
	ID       string // of the last event with an id
	Attempts int    // attempts to resume the stream since the last new event

	retry time.Duration // pause that the server has asked for
}

// advance records that an event was read. The event is new if its id differs from the last one or,
// without an id, if it has data.
func (p *Position) advance(f *sse.Fields, hasData bool) {
	if f.HasID && f.ID != p.ID || !f.HasID && hasData {
		p.Attempts = 0
	}
	if f.HasID {
		p.ID = f.ID
	}
	if ms, err := strconv.ParseUint(f.Retry, 10, 31); err == nil {
		p.retry = min(time.Duration(ms)*time.Millisecond, maxPause)
	}
}

// maxPause is the longest pause before a stream is resumed.
const maxPause = 30 * time.Second

// reconnect is the pause between attempts to resume a stream.
var reconnect = backoff.Exponential{First: 250 * time.Millisecond, Max: maxPause}

// Wait waits until the stream may be resumed: as long as the server asked, and longer after each
// failed attempt. It reports false if ctx ends first.
func (p *Position) Wait(ctx context.Context) bool {
	if !backoff.Sleep(ctx, p.pause()) {
		return false
	}
	p.Attempts++
	return true
}

func (p *Position) pause() time.Duration { return max(p.retry, reconnect.Pause(p.Attempts)) }

// Retry returns how long the server asked its clients to wait before they resume the stream.
func (p *Position) Retry() time.Duration { return p.retry }

// Resume prepares r for the response that continues the stream of the request. It must be an event
// stream. Callbacks stay the same, and server requests stay open.
func (r *Reader) Resume() {
	r.header, r.status, r.media, r.dropsBody, r.err = nil, 0, httpbody.Other, false, nil
	r.events, r.fields = sse.Scanner{}, sse.Fields{}
	r.data, r.outline, r.newLine, r.skip = r.data[:0], nil, false, false
	r.resumed, r.hasRequestID = true, true // the server has responded with a stream
}
