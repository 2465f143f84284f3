package gateway

import (
	"net/http"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A readerReply gives an answer to a Reader of the aggregate.
type readerReply struct {
	*streamable.Reader
	x *exchange
}

func (w *readerReply) prepare(*http.Request) {}

func (w *readerReply) complete() *jsonrpc.Failure {
	err := w.Close()
	code, _ := w.Outcome()
	switch w.x.outcome = OutcomeOK; {
	case code != 0:
		w.x.outcome, w.x.errorCode = outcomeError, code
	case outcomeHTTP[w.Status()/100%10] != "":
		w.x.outcome = outcomeHTTP[w.Status()/100%10]
	case err != nil:
		w.x.outcome = "invalid_response"
	}
	return nil
}

func (w *readerReply) breakOff(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if fault := w.Fault(w.x.server.Name); fault != nil {
		return fault
	}
	return failure
}

func (w *readerReply) done() bool {
	_, answered := w.Outcome()
	return answered
}

func (w *readerReply) release() {}

func (w *readerReply) timeLeft(timeout time.Duration) time.Duration { return timeout - w.Idle() }

// Interface guard
var _ reply = (*readerReply)(nil)
