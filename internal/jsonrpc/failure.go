package jsonrpc

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// Codes that JSON-RPC defines.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603
)

// Codes of the gateway. Other programs use the same codes: a failure is identified by its symbol
// and its status.
const (
	codeUnknownServer     = -32001
	codeUnavailable       = -32002
	codeInvalidResponse   = -32003
	codeHeaderMismatch    = -32020 // MCP's own
	codeMissingCapability = -32021 // MCP's own
	codeVersion           = -32022 // MCP's own
	codeLoginRequired     = -32042 // MCP's own: URL elicitation required
)

// A Failure is an error that the gateway sends instead of a response. Its texts and data are safe
// for clients: they contain no secrets, addresses or texts of servers.
type Failure struct {
	Status  int    // HTTP status
	Code    int    // JSON-RPC error code
	Message string // for people
	Data    FailureData

	// Allow is the Allow header of the HTTP response, for status 405.
	Allow string
	// RetryAfter is the Retry-After header of the HTTP response, in seconds; 0 for none.
	RetryAfter int

	// Cause is why a server could not be used; "" if Data is enough.
	Cause Cause
	// Err is the full cause, for operators. Clients never get it.
	Err error
}

// FailureData is the data of the JSON-RPC error, for programs.
type FailureData struct {
	Symbol     string   `json:"code"`
	ServerName string   `json:"server_name,omitempty"`
	StatusCode int      `json:"status_code,omitempty"`
	Hint       string   `json:"hint,omitempty"` // what the client can do about it
	URI        string   `json:"uri,omitempty"`
	Supported  []string `json:"supported,omitempty"` // protocol versions
	Requested  string   `json:"requested,omitempty"` // the unsupported version

	// Required are capabilities that the client has not declared.
	Required json.RawMessage `json:"requiredCapabilities,omitempty"`

	// Elicitations are URLs that a person must open before the request can succeed.
	Elicitations []URLElicitation `json:"elicitations,omitempty"`
}

// A URLElicitation asks a person to open a URL.
type URLElicitation struct {
	Mode    string `json:"mode"` // "url"
	Message string `json:"message"`
	URL     string `json:"url"`
	ID      string `json:"elicitationId"`
}

func (f *Failure) Error() string { return f.Message }

// Because returns f with err as its full cause, for operators. It keeps the first cause that is
// set.
func (f *Failure) Because(err error) *Failure {
	if f.Err == nil && err != error(f) {
		because := *f
		because.Err = err
		return &because
	}
	return f
}

// SetHeader sets the headers of the HTTP response that belong to the failure.
func (f *Failure) SetHeader(header http.Header) {
	if f.Allow != "" {
		header.Set("Allow", f.Allow)
	}
	if f.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
}

// Append appends the JSON-RPC error response to the request with this id, a JSON literal. A nil id
// becomes null.
func (f *Failure) Append(dst, id []byte) []byte {
	type rpcError struct {
		Code    int         `json:"code"`
		Message string      `json:"message"`
		Data    FailureData `json:"data"`
	}
	if id == nil {
		id = []byte("null")
	}
	message := f.Message
	for _, ask := range f.Data.Elicitations {
		message += " Open " + ask.URL // many clients show only the message
	}
	dst = append(dst, `{"jsonrpc":"2.0","error":`...)
	dst = append(dst, Encode(rpcError{f.Code, message, f.Data})...)
	dst = append(dst, `,"id":`...)
	dst = append(dst, id...)
	return append(dst, '}')
}

// ParseError says that a request is not JSON.
func ParseError() *Failure {
	return failure(http.StatusBadRequest, CodeParseError, "parse_error", "the request is not valid JSON")
}

// InvalidRequest says that a request is JSON but not a JSON-RPC message.
func InvalidRequest(message string) *Failure {
	return failure(http.StatusBadRequest, CodeInvalidRequest, "invalid_request", message)
}

// InvalidParams says that params lack something that the method or the protocol version requires.
func InvalidParams(message string) *Failure {
	return failure(http.StatusBadRequest, CodeInvalidParams, "invalid_params", message)
}

// HeaderMismatch says that the headers of a request contradict its body.
func HeaderMismatch(message string) *Failure {
	return failure(http.StatusBadRequest, codeHeaderMismatch, "header_mismatch", message)
}

// MethodNotFound says that the server does not know a method.
func MethodNotFound(method string) *Failure {
	return failure(http.StatusNotFound, CodeMethodNotFound, "method_not_found", "method not found: "+method)
}

// UnsupportedVersion says that the protocol version of a request is not supported.
func UnsupportedVersion(requested string, supported []string) *Failure {
	f := failure(http.StatusBadRequest, codeVersion, "unsupported_version", "unsupported protocol version")
	f.Data.Requested, f.Data.Supported = requested, supported
	return f
}

// MissingCapability says that a server request needs a capability the client has not declared.
func MissingCapability(server, method string) *Failure {
	return serverFailure(server, http.StatusBadRequest, codeMissingCapability, "missing_capability",
		"the MCP server asks for "+method+", which the client has not declared")
}

// MissingExtension says that a request needs an extension the client has not declared.
func MissingExtension(name string) *Failure {
	f := failure(http.StatusBadRequest, codeMissingCapability, "missing_capability",
		"the client has not declared the extension "+name)
	f.Data.Required = Encode(map[string]any{"extensions": map[string]any{name: struct{}{}}})
	return f
}

// ServerError is the error with which a server responded to a request of the gateway.
func ServerError(server string, m *Message) *Failure {
	f := serverFailure(server, http.StatusOK, m.ErrorNumber(), "server_error", m.Text(ErrorMessage))
	var refusal struct {
		Data struct {
			Supported []string `json:"supported"`
		} `json:"data"`
	}
	if json.Unmarshal(m.Literal(Error), &refusal) == nil {
		f.Data.Supported = refusal.Data.Supported
	}
	return f
}

// WithStatusOK returns f with HTTP status 200, as a JSON-RPC response of a server. Clients treat
// other statuses as connection faults, and some then close the connection.
func (f *Failure) WithStatusOK() *Failure {
	answer := *f
	answer.Status = http.StatusOK
	return &answer
}

// UnknownSession says that a session has ended or never existed.
func UnknownSession() *Failure {
	return failure(http.StatusNotFound, codeUnknownServer, "unknown_session", "unknown session: initialize again")
}

// TooManySessions says that no further client can be served.
func TooManySessions() *Failure {
	return overloaded("", "too_many_sessions", "too many sessions")
}

// TooManySubscriptions says that a client cannot subscribe to a further resource.
func TooManySubscriptions() *Failure {
	return failure(http.StatusServiceUnavailable, codeUnavailable, "too_many_subscriptions",
		"too many subscriptions, or their URIs are too long")
}

// PayloadTooLarge says that a request has too many bytes.
func PayloadTooLarge() *Failure {
	return failure(http.StatusRequestEntityTooLarge, CodeInvalidRequest, "payload_too_large", "the request is too large")
}

// TooEarly says that a request came before the TLS handshake was complete. It may be a replayed
// copy.
func TooEarly() *Failure {
	return failure(http.StatusTooEarly, CodeInvalidRequest, "invalid_request",
		"the request came before the TLS handshake was complete")
}

// RequestTimeout says that a request has not arrived in time.
func RequestTimeout() *Failure {
	return failure(http.StatusRequestTimeout, CodeInvalidRequest, "invalid_request",
		"the body of the request did not arrive in time")
}

// Busy says that there is no memory for a request now.
func Busy() *Failure {
	return overloaded("", "busy", "too many large requests at once: try again later")
}

// StoreUnavailable says that the store that replicas share is unavailable. problem is what fails
// without it, such as "rate limits cannot be checked".
func StoreUnavailable(problem string) *Failure {
	return overloaded("", "store_unavailable",
		problem+" while the store shared by the gateway's replicas is unavailable: try again later")
}

// TooManyTools says that rules cannot decide on a tool because there is no room to cache its
// annotations.
func TooManyTools(server string) *Failure {
	return overloaded(server, "busy", "too many tools to cache the annotations that rules need: try again later")
}

// TooManyServerRequests says that too many server requests wait for a response from their client.
func TooManyServerRequests(server string) *Failure {
	return overloaded(server, "busy", "too many calls wait for a response from their client: try again later")
}

// TooMuchUnread says that a response cannot be kept for a client that has not read others.
func TooMuchUnread() *Failure {
	return overloaded("", "busy", "too many large responses are unread: read them, or try again later")
}

// UnsupportedEncoding says that a request is compressed, which MCP does not define.
func UnsupportedEncoding() *Failure {
	return failure(http.StatusUnsupportedMediaType, CodeInvalidRequest, "invalid_request",
		"requests with a Content-Encoding are not accepted")
}

// UnsupportedCharset says that a request is not in UTF-8.
func UnsupportedCharset() *Failure {
	return failure(http.StatusUnsupportedMediaType, CodeInvalidRequest, "invalid_request",
		"the request is not in UTF-8: check the charset in Content-Type")
}

// MethodNotAllowed says that the HTTP method of a request is not one of the allowed methods.
func MethodNotAllowed(allow ...string) *Failure {
	f := failure(http.StatusMethodNotAllowed, CodeInvalidRequest, "invalid_request",
		"the HTTP method is not allowed here")
	f.Allow = strings.Join(allow, ", ")
	return f
}

// ForbiddenOrigin says that web pages of the request's origin may not use this gateway.
func ForbiddenOrigin(message string) *Failure {
	return failure(http.StatusForbidden, CodeInvalidRequest, "forbidden_origin", message)
}

// ForbiddenHost says that the gateway does not serve the host of the request.
func ForbiddenHost(message string) *Failure {
	return failure(http.StatusForbidden, CodeInvalidRequest, "forbidden_host", message)
}

// UnknownServer says that no server has this name.
func UnknownServer(name string) *Failure {
	return serverFailure(name, http.StatusNotFound, codeUnknownServer, "unknown_server", "unknown MCP server")
}

// Timeout says that a server did not respond in time.
func Timeout(server string) *Failure {
	return serverFailure(server, http.StatusBadGateway, codeUnavailable, "timeout",
		"the MCP server did not answer in time")
}

// ConnectError says why a server could not be reached, or broke off its response.
func ConnectError(server string, cause Cause) *Failure {
	f := serverFailure(server, http.StatusBadGateway, codeUnavailable, "connect_error", cause.message(server))
	f.Cause = cause
	return f
}

// StreamLost says that a server ended the stream of a request before the response, and that the
// stream could not be resumed.
func StreamLost(server string) *Failure {
	f := ConnectError(server, CauseLost)
	f.Message = "the MCP server ended its stream before the response, " +
		"and it cannot be resumed: the request may have been executed"
	return f
}

// InvalidJSON says that the response of a server is not JSON.
func InvalidJSON(server string) *Failure {
	return serverFailure(server, http.StatusBadGateway, codeInvalidResponse, "invalid_json",
		"the MCP server's answer is not valid JSON")
}

// InvalidResponse says that the response of a server is not a JSON-RPC response.
func InvalidResponse(server string) *Failure {
	return serverFailure(server, http.StatusBadGateway, codeInvalidResponse, "invalid_response",
		"the MCP server's answer is not a JSON-RPC response")
}

// ResponseTooLarge says that the response of a server has too many bytes.
func ResponseTooLarge(server string) *Failure {
	f := InvalidResponse(server)
	f.Message, f.Cause = "the MCP server's answer is too large", CauseTooLarge
	return f
}

// Refused says that a request was refused with this status: by the gateway, or by a handler in
// front of a server.
func Refused(server string, status int) *Failure {
	var f *Failure
	switch status {
	case http.StatusUnauthorized:
		f = failure(status, CodeInvalidRequest, "unauthorized", "Unauthorized")
	case http.StatusForbidden:
		f = failure(status, CodeInvalidRequest, "acl_denied", "Access denied")
	case http.StatusTooManyRequests:
		f = failure(status, CodeInvalidRequest, "rate_limited", "Rate limit exceeded")
	default:
		f = failure(status, CodeInternalError, "http_error",
			"the request was refused with HTTP status "+strconv.Itoa(status)+" before it reached the MCP server")
		f.Data.StatusCode = status
	}
	f.Data.ServerName = server
	return f
}

// ToolChanged says that the definition of a tool differs from its pin, and that the new one is not
// accepted yet.
func ToolChanged(server string) *Failure {
	return serverFailure(server, http.StatusForbidden, CodeInvalidRequest, "tool_changed",
		"the definition of the tool has changed: it is withheld until it is accepted at the admin API")
}

// ConfirmationRequired says that a person must confirm the call of a tool, and that the client
// cannot ask for it. atAggregate is whether the call was made at the endpoint of all servers, where
// more clients can.
func ConfirmationRequired(server string, atAggregate bool) *Failure {
	message := "a person must confirm this call, but the client cannot be asked"
	if atAggregate {
		message += ": it needs the elicitation capability and must accept event streams"
	} else {
		message += " here: call the tool at the endpoint of all servers, /mcp by default, with a client that has " +
			"the elicitation capability"
	}
	return serverFailure(server, http.StatusForbidden, CodeInvalidRequest, "confirmation_required", message)
}

// ConfirmationDeclined says that a person declined to confirm a call.
func ConfirmationDeclined(server string) *Failure {
	return serverFailure(server, http.StatusOK, CodeInvalidRequest, "confirmation_declined",
		"the call was not confirmed: the person at the client declined")
}

// ConfirmationTimeout says that a person did not confirm a call in time.
func ConfirmationTimeout(server string) *Failure {
	return serverFailure(server, http.StatusOK, codeUnavailable, "timeout",
		"the call was not confirmed: the person at the client did not answer in time")
}

// LoginRequired says that the gateway must first log in to a server. ask is what the client shows
// to its user; nil if only the operator can log in.
func LoginRequired(server string, ask *URLElicitation) *Failure {
	f := serverFailure(server, http.StatusOK, codeLoginRequired, "login_required",
		"the operator of the gateway must log in to the MCP server "+server)
	if ask != nil {
		f.Message, f.Data.Elicitations = ask.Message, []URLElicitation{*ask}
	}
	return f
}

// LoginFailed says that the gateway cannot log in to a server.
func LoginFailed(server, reason string) *Failure {
	return serverFailure(server, http.StatusBadGateway, CodeInternalError, "login_failed",
		"the gateway cannot log in to the MCP server: "+reason)
}

// NoHandler says that no handler in the routes of a server handled the request.
func NoHandler(server string) *Failure {
	f := serverFailure(server, http.StatusNotFound, CodeInternalError, "http_error",
		"no handler of the MCP server has answered")
	f.Data.StatusCode = http.StatusNotFound
	return f
}

// HTTPError says that a server responded with an HTTP status that has no JSON-RPC response.
func HTTPError(server string, status int) *Failure {
	f := serverFailure(server, http.StatusBadGateway, CodeInternalError, "http_error",
		"the MCP server answered with HTTP status "+strconv.Itoa(status))
	f.Data.StatusCode = status
	return f
}

func failure(status, code int, symbol, message string) *Failure {
	return serverFailure("", status, code, symbol, message)
}

// serverFailure returns a failure about a server.
func serverFailure(server string, status, code int, symbol, message string) *Failure {
	return &Failure{Status: status, Code: code, Message: message, Data: FailureData{Symbol: symbol, ServerName: server}}
}

// overloaded asks the client to try again after a second.
func overloaded(server, symbol, message string) *Failure {
	f := serverFailure(server, http.StatusServiceUnavailable, codeUnavailable, symbol, message)
	f.RetryAfter = 1
	return f
}

// IsLoginRequired reports whether a login is required. f may be nil.
func (f *Failure) IsLoginRequired() bool { return f != nil && f.Data.Symbol == "login_required" }

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
