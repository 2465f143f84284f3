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

// A session is what initialize begins. The methods of a nil session are for messages
// without one.
type session struct {
	streamable.Session
	run     *run
	ctx     context.Context
	cancel  context.CancelFunc
	listens bool
	ended   atomic.Bool // the server does not know it anymore
}

func newSession(r *run, id string) *session {
	s := &session{run: r, Session: streamable.Session{ID: id}}
	s.ctx, s.cancel = context.WithCancel(r.ctx)
	return s
}

// read takes the protocol version from the result of initialize.
func (s *session) read(result []byte) {
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(result, &r); err == nil && !strings.ContainsFunc(r.ProtocolVersion, unicode.IsControl) {
		s.Version = r.ProtocolVersion
	}
}

// sign adds the headers of the session.
func (s *session) sign(header http.Header) {
	if s == nil {
		streamable.Session{}.Sign(header)
		return
	}
	s.Sign(header)
}

// lost reports whether a response says that the server does not know the session, and
// notes it.
func (s *session) lost(res *http.Response) bool {
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
	s.sign(header)
	res, err := s.run.send(ctx, http.MethodDelete, nil, header)
	if err != nil {
		s.run.log(s.run.ctx, "session not ended", err)
		return
	}
	discard(res)
}

// listen opens the stream for messages of the server that belong to no call, and keeps it
// open.
func (s *session) listen() {
	if s.listens {
		return
	}
	s.listens = true
	s.run.listening.Go(func() {
		defer s.cancel()
		var at streamable.Position
		for s.follow(&at) && at.Wait(s.ctx) {
		}
	})
}

// follow passes on the messages of the stream until it ends. It reports whether to open
// it again.
func (s *session) follow(at *streamable.Position) bool {
	res, err := s.get(s.ctx, at)
	if err != nil {
		s.run.log(s.ctx, "stream of the session not opened", err)
		return true
	}
	defer res.Body.Close()
	switch {
	case s.lost(res):
		s.run.log(s.run.ctx, "stream of the session not opened", errSessionEnded)
		return false
	case res.StatusCode == http.StatusMethodNotAllowed, res.StatusCode == http.StatusNotFound:
		return false // the server does not offer it
	case !isStream(res):
		s.run.log(s.ctx, "stream of the session not opened", statusError(res))
		return res.StatusCode/100 != 2
	}
	reader := streamable.Reader{Limit: maxMessage, Position: at, OnMessage: func(e *streamable.Event) error {
		if e.HasMessage() {
			s.run.say(e.Data)
		}
		return nil
	}}
	_ = reader.ReadResponse(res) // a stream may end in any way
	return true
}

// get asks for the rest of a stream.
func (s *session) get(ctx context.Context, at *streamable.Position) (*http.Response, error) {
	header := http.Header{}
	s.SignGET(header, at.ID)
	return s.run.send(ctx, http.MethodGet, nil, header)
}

func isStream(res *http.Response) bool {
	return res.StatusCode == http.StatusOK && httpbody.TypeOf(res.Header.Get("Content-Type")) == httpbody.EventStream
}
