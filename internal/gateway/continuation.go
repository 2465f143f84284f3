package gateway

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A modern client may continue a held call at another replica than the one that holds it. The
// holding replica passes the client's responses to the server and returns the messages of the
// server. The other replica does the rest: it identifies, admits and answers the client.

// A continuation tells the replica that holds a call about the request that continues it. The
// responses of the client follow on the connection.
type continuation struct {
	Key     string
	Client  string // key of the client
	Server  string // server ID
	About   string
	Header  http.Header // headers for the server
	Answers int64       // size of the responses in bytes
}

// maxContinuation is the largest continuation. HTTP limits headers to less.
const maxContinuation = 2 << 20

// A heldReply is a message of the holding replica, with one field set. The first one is empty if
// the call continues, or has Refused.
type heldReply struct {
	Refused  *jsonrpc.Failure
	Failure  *jsonrpc.Failure // set if the server did not answer
	Message  []byte
	Question *heldQuestion
	Large    *largeBegin
	Part     []byte // part of the large response
	End      *heldEnd
}

// A largeBegin starts a response that is too large for memory.
type largeBegin struct {
	ID    []byte
	Typed bool
}

// A heldEnd has the statistics of a call that has ended.
type heldEnd struct {
	Received, Sent int64
	Masked         mask.Report
	ErrorCode      int
	Broken         bool // the large response is incomplete
}

var (
	forwardedCallsQuota = quota.NewKind("forwarded_calls")
	forwardLimits       = quota.Limits{Entries: 1_000, OwnerEntries: 100, Bytes: 256 << 20, OwnerBytes: 64 << 20}
)

// continuations continue held calls at the replicas that hold them.
type continuations struct {
	waiting *waitingCalls
	meter   *quota.Meter    // calls continued for other replicas, or at them
	space   *replicas.Space // shared by replicas; nil if there are none
	peers   *replicas.Peers // connections to other replicas; nil if there are none
}

func newContinuations(space *replicas.Space, waiting *waitingCalls) *continuations {
	cs := &continuations{waiting: waiting, meter: quota.NewMeter(forwardedCallsQuota, forwardLimits), space: space}
	if space != nil {
		cs.peers = space.Peers("calls", cs.serve)
	}
	return cs
}

// close ends all connections and waits for the calls continued for other replicas.
func (cs *continuations) close() {
	if cs.peers != nil {
		cs.peers.Close()
	}
	cs.meter.Close()
}

// withReplica adds the name of this replica to the key of a held call, if there are other replicas.
func (cs *continuations) withReplica(key string) string {
	if cs.peers == nil {
		return key
	}
	cs.peers.Listen()
	return key + " " + cs.space.Replica
}

// otherHolder returns the replica that holds the call that the request continues, and the key of
// the call there. replica is "" if this replica holds it, or if the request continues no call.
func (c legacyRelay) otherHolder() (replica, key string) {
	key, replica = c.heldKey()
	if replica == c.g.continuations.space.Replica {
		return "", ""
	}
	return replica, key
}

// continueAt continues a call that another replica holds.
func (c legacyRelay) continueAt(replica, key string) *jsonrpc.Failure {
	answers := c.Message.Literal(jsonrpc.InputResponses)
	bytes := replicas.ConnBytes + int64(len(answers))
	cs := c.g.continuations
	if !cs.meter.Take(c.client.owner, bytes) {
		return jsonrpc.TooManyServerRequests(c.link.serverName)
	}
	defer cs.meter.Give(c.client.owner, bytes)
	conn := cs.peers.Dial(replica)
	defer conn.Close()
	defer context.AfterFunc(c.ctx, func() { _ = conn.Close() })()
	err := gob.NewEncoder(conn).Encode(continuation{
		Key: key, Client: c.client.key, Server: c.Server.ID, About: c.About(),
		Header: c.HTTP.Header, Answers: int64(len(answers)),
	})
	if err == nil {
		_, _ = conn.Write(answers) // if this fails, so does Decode
	}
	f := &remoteCall{conn: conn, replies: gob.NewDecoder(bufio.NewReader(conn))}
	var first heldReply
	switch err := f.replies.Decode(&first); {
	case c.ctx.Err() != nil:
		return nil
	case err != nil:
		return remoteFailure(c.link.serverName, err)
	case first.Refused != nil:
		return first.Refused
	}
	c.IsForwarded = true // the other replica records the exchange
	return c.passOn(f)
}

// A remoteCall is a call held by another replica.
type remoteCall struct {
	conn    *replicas.Conn
	replies *gob.Decoder
	ended   *heldEnd
}

// next implements heldSource.
func (f *remoteCall) next(c *call) (msg heldMessage, ok bool) {
	var r heldReply
	err := f.replies.Decode(&r)
	switch {
	case c.ctx.Err() != nil:
		return msg, false
	case err != nil:
		msg.failure = remoteFailure(c.link.serverName, err)
	case r.Failure != nil:
		msg.failure = r.Failure
	case r.Question != nil:
		msg.question = r.Question
	case r.Large != nil:
		msg.large = &largeResponse{&remoteLarge{remoteCall: f}, r.Large.ID, r.Large.Typed}
	default:
		var failure *jsonrpc.Failure
		if msg.names, failure = namePaths.ReadStrings(&msg.message, r.Message, nil); failure != nil {
			msg.failure = jsonrpc.InvalidResponse(c.link.serverName) // the other replica has parsed it, too
		}
	}
	return msg, true
}

// remoteFailure returns the failure for an error of the connection to the holding replica. If that
// replica is gone, the call has expired.
func remoteFailure(server string, err error) *jsonrpc.Failure {
	switch {
	case errors.Is(err, replicas.ErrNoReplica):
		return unknownState()
	case errors.Is(err, replicas.ErrUnavailable):
		return jsonrpc.StoreUnavailable("the call cannot be continued")
	}
	return jsonrpc.StreamLost(server)
}

// end implements heldSource.
func (f *remoteCall) end(c *call, whole bool) (errorCode int) {
	if !whole {
		return 0
	}
	c.out.Flush()
	if f.ended == nil {
		var r heldReply
		if f.replies.Decode(&r) != nil || r.End == nil {
			return 0
		}
		f.ended = r.End
	}
	c.Traffic.Add(&upstream.Traffic{Received: f.ended.Received, Sent: f.ended.Sent, Masked: f.ended.Masked})
	return f.ended.ErrorCode
}

// A remoteLarge reads a large response from another replica.
type remoteLarge struct {
	*remoteCall
	part []byte
}

// Read implements heldReader.
func (f *remoteLarge) Read(p []byte) (n int, err error) {
	for len(f.part) == 0 {
		var r heldReply
		if err := f.replies.Decode(&r); err != nil {
			return 0, err
		}
		f.ended, f.part = r.End, r.Part
		switch {
		case f.ended == nil:
		case f.ended.Broken:
			return 0, io.ErrUnexpectedEOF
		default:
			return 0, io.EOF
		}
	}
	n = copy(p, f.part)
	f.part = f.part[n:]
	return n, nil
}

// CloseWithError implements heldReader.
func (f *remoteLarge) CloseWithError(error) error { return f.conn.Close() }

// serve continues a call that this replica holds, for a request at another replica.
func (cs *continuations) serve(conn *replicas.Conn) {
	limited := &io.LimitedReader{R: conn, N: maxContinuation}
	in, out := bufio.NewReader(limited), gob.NewEncoder(conn)
	var from continuation
	if gob.NewDecoder(in).Decode(&from) != nil || from.Answers < 0 {
		return
	}
	bytes := replicas.ConnBytes + from.Answers
	failure := unknownState()
	held := cs.waiting.take(from.Key, func(held *heldCall) bool {
		if held.client.key != from.Client || held.link.serverID != from.Server || held.about != from.About {
			return false
		}
		if !cs.meter.Take(held.client.owner, bytes) {
			failure = jsonrpc.TooManyServerRequests(held.link.serverName)
			return false
		}
		return true
	})
	if held == nil {
		_ = out.Encode(heldReply{Refused: failure})
		return
	}
	defer cs.meter.Give(held.client.owner, bytes)
	_ = out.Encode(heldReply{})
	limited.N = from.Answers
	answers := make([]byte, from.Answers)
	if _, err := io.ReadFull(in, answers); err != nil {
		held.abandon()
		return
	}
	held.continueFor(conn, out, from.Header, answers)
}

// continueFor sends the responses of the client to the server, and the messages of the server to
// the other replica.
func (held *heldCall) continueFor(conn *replicas.Conn, out *gob.Encoder, header http.Header, answers []byte) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(held.ctx))
	defer cancel()
	defer context.AfterFunc(conn.Context(), cancel)()
	var sideRequests upstream.SideRequests
	defer sideRequests.Wait()
	r := held.r.WithContext(ctx)
	r.Header = header
	if header == nil {
		r.Header = http.Header{} // gob omits empty maps
	}
	sc := scope{ctx: ctx, g: held.g.latest(), r: r, isCall: true}
	if failure := held.sendResponses(sc, answers); failure != nil {
		held.abandon()
		_ = out.Encode(heldReply{Failure: withoutErr(failure)})
		return
	}
	answered := false
	for !answered {
		msg, ok := held.receive(ctx, sc, &sideRequests)
		if !ok {
			held.abandon()
			return
		}
		var err error
		switch {
		case msg.question != nil:
			_ = out.Encode(heldReply{Question: msg.question})
			return
		case msg.failure != nil:
			answered = true
			err = out.Encode(heldReply{Failure: withoutErr(msg.failure)})
		case msg.large != nil:
			answered = true
			err = held.sendLarge(ctx, out, msg.large)
		default:
			answered = msg.message.IsResponse()
			err = out.Encode(heldReply{Message: msg.message.Raw})
		}
		if err != nil {
			held.abandon()
			return
		}
	}
	held.awaitEnd(func() {})
	t := &held.traffic
	_ = out.Encode(heldReply{End: &heldEnd{t.Received, t.Sent, t.Masked, held.errorCode(), false}})
}

// sendLarge sends a large response. If the response is incomplete, it returns an error.
func (held *heldCall) sendLarge(ctx context.Context, out *gob.Encoder, from *largeResponse) error {
	defer context.AfterFunc(ctx, func() { _ = from.CloseWithError(ctx.Err()) })()
	err := out.Encode(heldReply{Large: &largeBegin{from.id, from.typed}})
	for part := make([]byte, 32<<10); err == nil; {
		n, ended := from.Read(part)
		if n > 0 {
			err = out.Encode(heldReply{Part: part[:n]})
		}
		if ended == io.EOF {
			return err
		}
		if ended != nil {
			_ = out.Encode(heldReply{End: &heldEnd{Broken: true}})
			return ended
		}
	}
	_ = from.CloseWithError(err)
	return err
}

// withoutErr returns a failure without the error that only operators of this replica may see.
func withoutErr(failure *jsonrpc.Failure) *jsonrpc.Failure {
	plain := *failure
	plain.Err = nil
	return &plain
}
