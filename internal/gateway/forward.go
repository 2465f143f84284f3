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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A client of the modern era may go on with a call at another replica than the one that holds it open. That
// one gives the server the client's answers, and says what comes of it. All else is done where the client
// is: it is identified, admitted and answered there.

// A continuation is what the replica that holds a call has to know of the request that goes on with it. The
// answers of the client follow.
type continuation struct {
	Key     string
	Client  string // its key
	Server  string // its ID
	About   string
	Header  http.Header // for the server
	Answers int64       // their bytes
}

// maxContinuation is how large a continuation can be. Headers of requests are smaller.
const maxContinuation = 2 << 20

// A heldReply is what comes of a call that goes on: one of these. The first one has nothing, unless the call
// does not go on.
type heldReply struct {
	Refused  *jsonrpc.Failure
	Failure  *jsonrpc.Failure // why there is no answer
	Message  []byte
	Question *heldQuestion
	Large    *largeBegin
	Part     []byte // of the large answer
	End      *heldEnd
}

// A largeBegin begins an answer that is too large to be held.
type largeBegin struct {
	ID    []byte
	Typed bool
}

// A heldEnd is what is known of a call when it is over.
type heldEnd struct {
	Received, Sent int64
	Masked         mask.Report
	ErrorCode      int
	Broken         bool // this is not all of the large answer
}

var (
	forwardedCalls = quota.NewKind("forwarded_calls")
	forwardLimits  = quota.Limits{Entries: 1_000, OwnerEntries: 100, Bytes: 256 << 20, OwnerBytes: 64 << 20}
)

// named returns the key of a call that is held with the name of this replica, if there are others.
func (s *State) named(key string) string {
	if s.lines == nil {
		return key
	}
	s.lines.Listen()
	return key + " " + s.common.Replica
}

// learnTool has this replica know of the tool that is called what others do: calls have to be answered alike
// by one that has listed the tools of the server and by one that has not. What is wrong with the tool is not
// known without its definition, and neither is which arguments headers have to repeat.
func (c *call) learnTool() *jsonrpc.Failure {
	if c.g.State.common == nil || !c.Message.Is(jsonrpc.Method, "tools/call") ||
		c.client.knownList(c.g, c.Server, mcp.Tools) != nil || c.toolList() == nil {
		return nil
	}
	return checkTool(c.Server, c.g.shown(c.Server.Name, mcp.Tools, c.Server.Overrides.Shown(c.name)), c.name)
}

// goOnAt goes on with a call that another replica holds.
func (c *call) goOnAt(replica, key string) *jsonrpc.Failure {
	answers := c.Message.Literal(jsonrpc.InputResponses)
	bytes := replicas.ConnBytes + int64(len(answers))
	if !c.g.forwarding.Take(c.client.owner, bytes) {
		return jsonrpc.TooManyQuestions(c.link.server)
	}
	defer c.g.forwarding.Give(c.client.owner, bytes)
	conn := c.g.lines.Dial(replica)
	defer conn.Close()
	defer context.AfterFunc(c.ctx, func() { _ = conn.Close() })()
	err := gob.NewEncoder(conn).Encode(continuation{
		Key: key, Client: c.client.key, Server: c.Server.ID, About: c.About(),
		Header: c.HTTP.Header, Answers: int64(len(answers)),
	})
	if err == nil {
		_, _ = conn.Write(answers) // if that fails, so does what follows
	}
	f := &farCall{conn: conn, replies: gob.NewDecoder(bufio.NewReader(conn))}
	var first heldReply
	switch err := f.replies.Decode(&first); {
	case c.ctx.Err() != nil:
		return nil
	case err != nil:
		return lost(c.link.server, err)
	case first.Refused != nil:
		return first.Refused
	}
	c.PassedOn = true // the other replica records it
	return c.follow(f)
}

// A farCall is a held call at another replica.
type farCall struct {
	conn    *replicas.Conn
	replies *gob.Decoder
	ended   *heldEnd
}

// next implements heldSource.
func (f *farCall) next(c *call) (said heldMessage, ok bool) {
	var r heldReply
	err := f.replies.Decode(&r)
	switch {
	case c.ctx.Err() != nil:
		return said, false
	case err != nil:
		said.failure = lost(c.link.server, err)
	case r.Failure != nil:
		said.failure = r.Failure
	case r.Question != nil:
		said.question = r.Question
	case r.Large != nil:
		said.large = &largeHeld{&farLarge{farCall: f}, r.Large.ID, r.Large.Typed}
	default:
		var read nameReader
		if read.parse(&said.message, r.Message) != nil { // which the other replica has read
			said.failure = jsonrpc.InvalidResponse(c.link.server)
		}
		said.names = read.names
	}
	return said, true
}

// lost says why nothing more is known of a call that another replica holds. If that is gone, the call is as
// one that has not been gone on with for too long.
func lost(server string, err error) *jsonrpc.Failure {
	switch {
	case errors.Is(err, replicas.ErrNoReplica):
		return unknownState()
	case errors.Is(err, replicas.ErrUnavailable):
		return jsonrpc.StoreUnavailable("the call cannot go on")
	}
	return jsonrpc.StreamLost(server)
}

// end implements heldSource.
func (f *farCall) end(c *call, whole bool) (errorCode int) {
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

// A farLarge is a large answer at another replica.
type farLarge struct {
	*farCall
	part []byte
}

// Read implements heldReader.
func (f *farLarge) Read(p []byte) (n int, err error) {
	for len(f.part) == 0 {
		var r heldReply
		if err := f.replies.Decode(&r); err != nil {
			return 0, err
		}
		switch f.ended, f.part = r.End, r.Part; {
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
func (f *farLarge) CloseWithError(error) error { return f.conn.Close() }

// goOn goes on with a call that is held here, for a request at another replica.
func (s *State) goOn(conn *replicas.Conn) {
	limited := &io.LimitedReader{R: conn, N: maxContinuation}
	in, out := bufio.NewReader(limited), gob.NewEncoder(conn)
	var from continuation
	if gob.NewDecoder(in).Decode(&from) != nil || from.Answers < 0 {
		return
	}
	bytes := replicas.ConnBytes + from.Answers
	failure := unknownState()
	held := s.takeUp(from.Key, func(held *heldCall) bool {
		if held.client.key != from.Client || held.link.id != from.Server || held.about != from.About {
			return false
		}
		if !s.forwarding.Take(held.client.owner, bytes) {
			failure = jsonrpc.TooManyQuestions(held.link.server)
			return false
		}
		return true
	})
	if held == nil {
		_ = out.Encode(heldReply{Refused: failure})
		return
	}
	defer s.forwarding.Give(held.client.owner, bytes)
	_ = out.Encode(heldReply{})
	limited.N = from.Answers
	answers := make([]byte, from.Answers)
	if _, err := io.ReadFull(in, answers); err != nil {
		held.abandon()
		return
	}
	held.goOnFor(conn, out, from.Header, answers)
}

// current returns the Gateway that serves in the place of g.
func (g *Gateway) current() *Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.left && g.place.current != nil {
		g = g.place.current
	}
	return g
}

// goOnFor gives the server the answers of the client, and passes on what comes of that.
func (held *heldCall) goOnFor(conn *replicas.Conn, out *gob.Encoder, header http.Header, answers []byte) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(held.ctx))
	defer cancel()
	defer context.AfterFunc(conn.Context(), cancel)()
	var asides upstream.Asides
	defer asides.Wait()
	r := held.r.WithContext(ctx)
	if r.Header = header; header == nil {
		r.Header = http.Header{} // gob has no empty ones
	}
	o := behalf{ctx: ctx, g: held.g.current(), r: r, calls: true}
	if failure := held.reply(o, answers); failure != nil {
		held.abandon()
		_ = out.Encode(heldReply{Failure: withoutErr(failure)})
		return
	}
	answered := false
	for !answered {
		said, ok := held.listen(ctx, o, &asides)
		if !ok {
			held.abandon()
			return
		}
		var err error
		switch {
		case said.question != nil:
			_ = out.Encode(heldReply{Question: said.question})
			return
		case said.failure != nil:
			answered = true
			err = out.Encode(heldReply{Failure: withoutErr(said.failure)})
		case said.large != nil:
			answered = true
			err = held.sendLarge(ctx, out, said.large)
		default:
			answered = said.message.IsAnswer()
			err = out.Encode(heldReply{Message: said.message.Raw})
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

// sendLarge sends a large answer. One that breaks off ends the call.
func (held *heldCall) sendLarge(ctx context.Context, out *gob.Encoder, from *largeHeld) error {
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

// withoutErr returns a failure without what only operators of this replica get to know.
func withoutErr(failure *jsonrpc.Failure) *jsonrpc.Failure {
	plain := *failure
	plain.Err = nil
	return &plain
}
