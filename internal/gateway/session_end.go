package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// A sessionEnd tells other replicas that a session has ended.
type sessionEnd struct {
	Owner   string
	Issued  time.Time
	Request wireRequest // request that ended it
}

// An unsentEnd is the end of a session that other replicas have not got yet.
type unsentEnd struct {
	key string
	end *sessionEnd
	// What has been done.
	counted bool // for the quota of the owner
	stored  bool // written to the store, or over the quota
	sent    bool // published to replicas
}

const (
	// maxUnsentEnds limits the ends that wait for the store. Other replicas never learn about those
	// beyond.
	maxUnsentEnds = 10_000
	// maxStoredEnds limits the ends per owner that are stored in sessionTime.
	maxStoredEnds = maxEndedSessions
	// maxUnsentRequest limits the bytes of the request in a waiting end.
	maxUnsentRequest = 4 << 10
)

// A sessionEnds tells other replicas which sessions have ended here, and ends those that ended
// there.
type sessionEnds struct {
	state *State
	bus   *bus

	mu      sync.Mutex
	unsent  []*unsentEnd // oldest first
	sending bool         // sendUnsent runs
}

// share implements [replicaSync.shareEnd].
func (e *sessionEnds) share(ctx context.Context, c *client, request *http.Request) {
	u := &unsentEnd{key: c.key, end: &sessionEnd{c.owner, c.issued, newWireRequest(request)}}
	if e.send(ctx, u) == nil {
		return
	}
	if len(jsonrpc.Encode(u.end.Request)) > maxUnsentRequest {
		u.end.Request = defaultEndRequest
	}
	e.mu.Lock()
	if len(e.unsent) < maxUnsentEnds {
		e.unsent = append(e.unsent, u)
	}
	begin := !e.sending
	e.sending = true
	e.mu.Unlock()
	if begin && !e.state.clients.runFor(c, e.sendUnsent) {
		e.handToStore() // the State has ended
	}
}

// defaultEndRequest is used if the request that ended the session is unknown or too large.
var defaultEndRequest = wireRequest{Method: http.MethodDelete, URL: "/"}

// send stores and publishes an end, as far as that is not done. It does both, because a replica may
// read the record before it is written. An end that exceeds the quota of its owner is not stored,
// so replicas that start later still accept the session.
func (e *sessionEnds) send(ctx context.Context, u *unsentEnd) (err error) {
	if left := sessionTime - time.Since(u.end.Issued); !u.stored && left > 0 {
		err = e.store(ctx, u, left)
		u.stored = err == nil
	}
	if !u.sent {
		_, failed := e.bus.publishContext(ctx, topicAll, replicaMessage{Session: u.key, Ended: u.end})
		u.sent = failed == nil
		err = errors.Join(err, failed)
	}
	return err
}

// store stores an end, unless that exceeds the quota of its owner. The quota is not that of other
// records: a client that has used that can still end sessions.
func (e *sessionEnds) store(ctx context.Context, u *unsentEnd, ttl time.Duration) error {
	if !u.counted {
		b := replicas.Bucket{
			Key: "session ends", Rate: maxStoredEnds / sessionTime.Seconds(), Burst: maxStoredEnds, Want: 1,
		}
		taken, _, err := e.bus.space.Spend(ctx, u.end.Owner, []replicas.Bucket{b})
		if err != nil || len(taken) == 0 {
			return err
		}
		u.counted = true
	}
	return e.bus.space.Set(ctx, u.key, recordName, jsonrpc.Encode(sessionRecord{Ended: true}), ttl)
}

// sendUnsent sends unsent ends until there are none.
func (e *sessionEnds) sendUnsent() {
	ctx := e.bus.ctx
	for backoff.Sleep(ctx, subscribePause) {
		for {
			e.mu.Lock()
			if len(e.unsent) == 0 {
				e.unsent, e.sending = nil, false
				e.mu.Unlock()
				return
			}
			u := e.unsent[0]
			e.mu.Unlock()
			if errors.Is(e.send(ctx, u), replicas.ErrUnavailable) {
				break
			}
			e.mu.Lock()
			e.unsent = e.unsent[1:]
			e.mu.Unlock()
		}
	}
}

// handToStore passes unsent ends to the store when the State has ended. The store tries again, at
// the latest when it is closed, and logs failures.
func (e *sessionEnds) handToStore() {
	e.mu.Lock()
	left := e.unsent
	e.unsent, e.sending = nil, false
	e.mu.Unlock()
	for _, u := range left {
		send := func(ctx context.Context) error { return e.send(ctx, u) }
		e.bus.space.WriteLater(u.key, recordName, len(u.key)+maxUnsentRequest, send, nil)
	}
}

// note notes that a session has ended at another replica.
func (e *sessionEnds) note(id string, end *sessionEnd) {
	e.state.endedSessions.add(hashKey(id), endedSession{end.Owner, end.Issued})
}

// endHere ends the streams of a session that has ended at another replica, and its sessions with
// servers that no other replica can end.
func (e *sessionEnds) endHere(c *client, end *sessionEnd) {
	c.ended.Store(true)
	for _, s := range c.openStreams() {
		s.end()
	}
	g := e.state.gateways().latest()
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.bus.ctx, g.config.JoinTimeout)
	defer cancel()
	r, err := end.Request.build(&inbound.Context{Context: ctx, Caller: g.callerOf(c)})
	if err != nil {
		return
	}
	for _, l := range c.allLinks() {
		if server := g.linkServer(l); server != nil && l.isLocal(server) {
			l.end(scope{ctx: r.Context(), g: g, r: r})
		}
	}
}
