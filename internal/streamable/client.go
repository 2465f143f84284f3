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

// A Session is what the headers of each request of a client to a server have in common.
// The zero value is that of a request that begins a session.
type Session struct {
	Era     mcp.Era
	Version string // of the protocol, once it is negotiated
	ID      string // empty if the server keeps no sessions
}

// Sign gives a POST or DELETE the headers of the session, in place of those that another
// client has given it. The headers that repeat parts of a message are up to
// [mcp.SetModern].
func (s Session) Sign(header http.Header) {
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

// SignGET gives a GET the headers of the session. It resumes the stream after the event
// with this id, if there is one.
func (s Session) SignGET(header http.Header, after string) {
	s.Sign(header)
	header.Set("Accept", "text/event-stream")
	if after != "" {
		header.Set(lastEventID, after)
	}
}

// Direct makes r a request for an address, in place as rewrites do, so that placeholders which
// stand for r have it, too.
func Direct(r *http.Request, target *url.URL) {
	r.URL.Path, r.URL.RawPath = target.Path, target.RawPath
	r.URL.RawQuery, r.URL.ForceQuery = target.RawQuery, target.ForceQuery
	r.RequestURI = r.URL.RequestURI()
}

const lastEventID = "Last-Event-Id"

// ReadResponse reads a response to its end. It returns why the response broke off, or what
// is wrong with it.
func (r *Reader) ReadResponse(res *http.Response) error {
	defer res.Body.Close()
	r.header = res.Header
	r.WriteHeader(res.StatusCode)
	if r.unwanted {
		return nil
	}
	if _, err := io.Copy(r, res.Body); err != nil {
		return err
	}
	return r.Close()
}

// A Position is how far a stream of events has been read. It outlives the connections that
// the stream comes over. The zero value is the beginning of a stream.
type Position struct {
	ID       string // of the last event that has one
	Attempts int    // to resume the stream since the last new event

	retry time.Duration // as the server wants it
}

// advance notes that an event was read. It is a new one if it has another id than the last one
// or, without an id, data.
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

// reconnect spaces out attempts to resume a stream.
var reconnect = backoff.Exponential{First: 250 * time.Millisecond, Max: maxPause}

// Wait waits until the stream may be resumed: for as long as the server says, and longer
// after each attempt in vain. It reports whether ctx allowed it to.
func (p *Position) Wait(ctx context.Context) bool {
	if !backoff.Sleep(ctx, p.pause()) {
		return false
	}
	p.Attempts++
	return true
}

func (p *Position) pause() time.Duration { return max(p.retry, reconnect.Pause(p.Attempts)) }

// Retry returns how long the server wants its clients to wait before they resume the stream.
func (p *Position) Retry() time.Duration { return p.retry }

// Resume makes r read the response that goes on with the stream of the request. Only an event
// stream does. Messages go to the same functions, and questions stay open.
func (r *Reader) Resume() {
	r.header, r.status, r.media, r.unwanted, r.err = nil, 0, httpbody.Other, false, nil
	r.events, r.fields = sse.Scanner{}, sse.Fields{}
	r.data, r.outline, r.newLine, r.skip = r.data[:0], nil, false, false
	r.resumed, r.owned = true, true // the server has answered the request with a stream
}
