package jsonrpc

import (
	"strconv"
	"strings"
)

// A Cause is why a server cannot be used, in words from a fixed set. It is safe for clients: it
// contains no text of a server, no address and no secret.
type Cause string

// Causes.
const (
	CauseNotStarted Cause = "not started"                 // the process could not be started
	CauseEnded      Cause = "the process ended"           // after its handshake
	CauseExited     Cause = "exited during the handshake" // the process exited
	CauseStarting   Cause = "starting"                    // no failure yet
	CauseRefused    Cause = "connection refused"          // nothing listens
	CauseNoHost     Cause = "host not found"              // DNS lookup failed
	CauseTLS        Cause = "TLS error"                   // handshake or certificate
	CauseNoRoute    Cause = "no connection"               // any other connection error
	CauseLost       Cause = "connection lost"             // before the end of the response
	CauseLate       Cause = "no answer in time"
	CauseNotMCP     Cause = "not an MCP server" // the response is not MCP
	CauseTooLarge   Cause = "answer too large"  // larger than a limit
	CauseLogin      Cause = "login failed"      // login of the gateway at the server
	CauseHandshake  Cause = "handshake refused" // with a JSON-RPC error

	causeHTTP = "HTTP status " // followed by the number
)

// message returns the message that a server is unavailable for this cause.
func (c Cause) message(server string) string {
	if server == "" {
		return "the MCP server is unavailable: " + string(c)
	}
	return "MCP server " + server + " is unavailable: " + string(c)
}

// IsHTTP reports whether the server responded, but not as an MCP server.
func (c Cause) IsHTTP() bool { return c == CauseNotMCP || strings.HasPrefix(string(c), causeHTTP) }

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

// Outage returns the failure for further requests until the next attempt to reach the server.
func (f *Failure) Outage() *Failure {
	out := *f
	out.Message = f.Short().message(f.Data.ServerName) + "; the gateway keeps trying"
	return &out
}
