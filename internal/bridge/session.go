package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

var errSessionEnded = errors.New("the session has ended")

// A session is what initialize has begun. The methods of a nil session are those of
// messages that belong to none.
type session struct {
	run     *run
	id      string // none if the server keeps no sessions
	version string
	ctx     context.Context
	cancel  context.CancelFunc
	listens bool
	ended   atomic.Bool // the server knows it no more
}

func newSession(r *run, id string) *session {
	s := &session{run: r, id: id}
	s.ctx, s.cancel = context.WithCancel(r.ctx)
	return s
}

// read takes the protocol version from the result of initialize.
func (s *session) read(result []byte) {
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(result, &r); err == nil && validHeader(r.ProtocolVersion) {
		s.version = r.ProtocolVersion
	}
}

// sign adds the headers of the session.
func (s *session) sign(header http.Header) {
	if s == nil {
		return
	}
	if s.id != "" {
		header.Set(mcp.SessionHeader, s.id)
	}
	if s.version != "" {
		header.Set(mcp.VersionHeader, s.version)
	}
}

// lost reports whether a response says that the session is no more, and notes it.
func (s *session) lost(res *http.Response) bool {
	if s == nil || s.id == "" || res.StatusCode != http.StatusNotFound {
		return false
	}
	s.ended.Store(true)
	s.cancel()
	return true
}

// replaceSession makes s the session of all that follows.
func (r *run) replaceSession(s *session) {
	before := r.session
	r.session = s
	if before != nil {
		before.cancel()
		before.close()
	}
}

// close tells the server that the session is not needed any more, also when there is
// no time left for anything else.
func (s *session) close() {
	if s.id == "" || s.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), deleteTimeout)
	defer cancel()
	header := http.Header{}
	s.sign(header)
	res, err := s.run.send(ctx, http.MethodDelete, nil, header)
	if err != nil {
		s.run.log("session not ended", err)
		return
	}
	discard(res)
}

// listen opens the stream on which the server speaks first, and keeps it open.
func (s *session) listen() {
	if s.listens {
		return
	}
	s.listens = true
	s.run.listening.Go(func() {
		defer s.cancel()
		var at position
		for tries := 0; ; tries++ {
			before := at.count
			if !s.follow(&at) {
				return
			}
			if at.count > before {
				tries = 0
			}
			if !backoff.Sleep(s.ctx, max(at.retry, reconnect.Pause(tries))) {
				return
			}
		}
	})
}

// follow passes on the messages of the stream until it ends, and reports whether there
// is a point in opening it again.
func (s *session) follow(at *position) bool {
	res, err := s.run.send(s.ctx, http.MethodGet, nil, s.listenHeader(at))
	if err != nil {
		s.log("stream of the session not opened", err)
		return true
	}
	defer res.Body.Close()
	switch {
	case s.lost(res):
		s.run.log("stream of the session not opened", errSessionEnded)
		return false
	case res.StatusCode == http.StatusMethodNotAllowed, res.StatusCode == http.StatusNotFound:
		return false // this server has none
	case !isStream(res):
		s.log("stream of the session not opened", statusError(res.StatusCode))
		return res.StatusCode/100 != 2
	}
	for events := newEventReader(res.Body, at); ; {
		e, err := events.next()
		if err != nil {
			return true // that it ends is nothing special
		}
		if m := s.run.message(e); m != nil {
			s.run.say(m.Raw)
		}
	}
}

func (s *session) log(message string, err error) {
	if s.ctx.Err() == nil {
		s.run.log(message, err)
	}
}

// listenHeader returns the headers of a request for a stream from a position on.
func (s *session) listenHeader(at *position) http.Header {
	header := http.Header{}
	header.Set("Accept", "text/event-stream")
	s.sign(header)
	if at.id != "" {
		header.Set("Last-Event-ID", at.id)
	}
	return header
}

func isStream(res *http.Response) bool {
	return res.StatusCode == http.StatusOK && httpbody.TypeOf(res.Header.Get("Content-Type")) == httpbody.EventStream
}

// maxPause is the longest time between two attempts.
const maxPause = 30 * time.Second

// reconnect spaces out attempts to open a stream.
var reconnect = backoff.Exponential{First: 250 * time.Millisecond, Max: maxPause}

// validHeader reports whether a text can be sent back in a header.
func validHeader(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return true
}
