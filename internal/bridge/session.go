package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

var errSessionEnded = errors.New("the session has ended")

// A session is a legacy session. A nil session is for messages without one.
type session struct {
	streamable.Session
	run       *run
	ctx       context.Context
	cancel    context.CancelFunc
	listening bool
	ended     atomic.Bool // the server does not know it anymore
}

func newSession(r *run, id string) *session {
	s := &session{run: r, Session: streamable.Session{ID: id}}
	s.ctx, s.cancel = context.WithCancel(r.ctx)
	return s
}

// readVersion takes the protocol version from the result of initialize.
func (s *session) readVersion(result []byte) {
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(result, &r); err == nil && !strings.ContainsFunc(r.ProtocolVersion, unicode.IsControl) {
		s.Version = r.ProtocolVersion
	}
}

// setHeaders sets the headers of the session.
func (s *session) setHeaders(header http.Header) {
	if s == nil {
		streamable.Session{}.SetHeaders(header)
		return
	}
	s.SetHeaders(header)
}

// checkLost reports whether a response says that the server does not know the session, and ends the
// session then.
func (s *session) checkLost(res *http.Response) bool {
	if s == nil || s.ID == "" || res.StatusCode != http.StatusNotFound {
		return false
	}
	s.ended.Store(true)
	s.cancel()
	return true
}

// replaceSession makes s the session of all later messages.
func (r *run) replaceSession(s *session) {
	before := r.session
	r.session = s
	if before != nil {
		before.cancel()
		before.close()
	}
}

// close ends the session at the server, even if the run is canceled.
func (s *session) close() {
	if s.ID == "" || s.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), deleteTimeout)
	defer cancel()
	header := http.Header{}
	s.setHeaders(header)
	res, err := s.run.send(ctx, http.MethodDelete, nil, header)
	if err != nil {
		s.run.log(s.run.ctx, "session not ended", err)
		return
	}
	discard(res)
}

// listen opens the stream for messages outside of calls, and keeps it open.
func (s *session) listen() {
	if s.listening {
		return
	}
	s.listening = true
	s.run.listening.Go(func() {
		defer s.cancel()
		var position streamable.Position
		for s.readStream(&position) && position.Wait(s.ctx) {
		}
	})
}

// readStream forwards the messages of the stream until it ends. It reports whether to open it
// again.
func (s *session) readStream(position *streamable.Position) bool {
	res, err := s.get(s.ctx, position)
	if err != nil {
		s.run.log(s.ctx, "session stream not opened", err)
		return true
	}
	defer res.Body.Close()
	switch {
	case s.checkLost(res):
		s.run.log(s.run.ctx, "session stream not opened", errSessionEnded)
		return false
	case res.StatusCode == http.StatusMethodNotAllowed, res.StatusCode == http.StatusNotFound:
		return false // the server has no such stream
	case !isStream(res):
		s.run.log(s.ctx, "session stream not opened", statusError(res))
		return res.StatusCode/100 != 2
	}
	reader := streamable.Reader{Limit: maxMessage, Position: position, OnMessage: func(e *streamable.Event) error {
		if e.HasMessage() {
			s.run.sendToClient(e.Data)
		}
		return nil
	}}
	_ = reader.ReadResponse(res) // a stream may end with any error
	return true
}

// get requests the rest of a stream, after position.
func (s *session) get(ctx context.Context, position *streamable.Position) (*http.Response, error) {
	header := http.Header{}
	s.SetGETHeaders(header, position.ID)
	return s.run.send(ctx, http.MethodGet, nil, header)
}

func isStream(res *http.Response) bool {
	return res.StatusCode == http.StatusOK && httpbody.TypeOf(res.Header.Get("Content-Type")) == httpbody.EventStream
}
