package jsonrpc

import (
	"strconv"
	"strings"
)

// A Cause is why a server cannot be used, in words from a fixed set. Clients may be told: it has
// no text of a server, no address and no secret.
type Cause string

const (
	CauseNotStarted Cause = "not started"                 // the process
	CauseEnded      Cause = "the process ended"           // after its handshake
	CauseExited     Cause = "exited during the handshake" // the process
	CauseStarting   Cause = "starting"                    // it has not failed yet
	CauseRefused    Cause = "connection refused"          // nothing listens
	CauseNoHost     Cause = "host not found"              // by DNS
	CauseTLS        Cause = "TLS error"                   // of the handshake or a certificate
	CauseNoRoute    Cause = "no connection"               // for another reason
	CauseLost       Cause = "connection lost"             // before the end of the answer
	CauseLate       Cause = "no answer in time"
	CauseNotMCP     Cause = "not an MCP server" // something else answers
	CauseTooLarge   Cause = "answer too large"  // for a limit
	CauseLogin      Cause = "login failed"      // of the gateway at the server
	CauseHandshake  Cause = "handshake refused" // by an error of JSON-RPC

	causeHTTP = "HTTP status " // and its number
)

// of says that a server is unavailable for this cause.
func (c Cause) of(server string) string {
	if server == "" {
		return "the MCP server is unavailable: " + string(c)
	}
	return "MCP server " + server + " is unavailable: " + string(c)
}

// IsOfHTTP reports whether the server has answered, but not as an MCP server does.
func (c Cause) IsOfHTTP() bool { return c == CauseNotMCP || strings.HasPrefix(string(c), causeHTTP) }

// Short returns why the server could not be used, for clients.
func (f *Failure) Short() Cause {
	switch {
	case f.Cause != "":
		return f.Cause
	case f.Data.StatusCode != 0:
		return Cause(causeHTTP + strconv.Itoa(f.Data.StatusCode))
	}
	switch f.Data.Symbol {
	case "timeout":
		return CauseLate
	case "invalid_json", "invalid_response":
		return CauseNotMCP
	case "login_failed", "login_required":
		return CauseLogin
	case "server_error":
		return CauseHandshake
	}
	return CauseNoRoute
}

// Outage returns the failure as clients get it that ask for the server before the next attempt to
// reach it.
func (f *Failure) Outage() *Failure {
	out := *f
	out.Message = f.Short().of(f.Data.ServerName) + "; it is tried again"
	return &out
}
