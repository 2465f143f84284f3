package jsonrpc

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// The codes of JSON-RPC itself.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603
)

// The codes of the gateway. They are not unique in the world of MCP: what tells
// one failure from another is its symbol, and its status.
const (
	codeUnknownServer   = -32001
	codeUnavailable     = -32002
	codeInvalidResponse = -32003
	codeHeaderMismatch  = -32020 // MCP's own
	codeMissingAbility  = -32021 // MCP's own
	codeVersion         = -32022 // MCP's own
	codeLoginRequired   = -32042 // MCP's own: a URL elicitation is required
)

// A Failure is an error that is made here, in the place of an answer that did not
// come. It never tells more of its cause than a stranger may know.
type Failure struct {
	Status  int    // of the HTTP response
	Code    int    // of the JSON-RPC error
	Message string // for people
	Data    FailureData

	// Allow is the header of that name in the HTTP response, for status 405.
	Allow string
	// RetryAfter is the header of that name, in seconds; 0 for none.
	RetryAfter int

	// Cause is why a server could not be used; "" if Data says it all.
	Cause Cause
	// Err is the cause in full, for operators. Clients never get it.
	Err error
}

// FailureData is what programs can rely on.
type FailureData struct {
	Symbol     string   `json:"code"`
	ServerName string   `json:"server_name,omitempty"`
	StatusCode int      `json:"status_code,omitempty"`
	Hint       string   `json:"hint,omitempty"` // what the client can do about it
	URI        string   `json:"uri,omitempty"`
	Supported  []string `json:"supported,omitempty"` // versions of the protocol
	Requested  string   `json:"requested,omitempty"` // one of them that is not

	// Required are capabilities that the client has not declared.
	Required json.RawMessage `json:"requiredCapabilities,omitempty"`

	// Elicitations are the addresses that a person has to open before the request can be
	// answered.
	Elicitations []URLElicitation `json:"elicitations,omitempty"`
}

// A URLElicitation asks a person to open an address.
type URLElicitation struct {
	Mode    string `json:"mode"` // "url"
	Message string `json:"message"`
	URL     string `json:"url"`
	ID      string `json:"elicitationId"`
}

func (f *Failure) Error() string { return f.Message }

// Because returns f with its cause in full, for operators.
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

// Append appends the JSON-RPC error that answers the request with this id, given
// as a literal. No id is null.
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

// InvalidRequest says that a request is JSON but no JSON-RPC message.
func InvalidRequest(message string) *Failure {
	return failure(http.StatusBadRequest, CodeInvalidRequest, "invalid_request", message)
}

// InvalidParams says that a request lacks what its method or revision demands.
func InvalidParams(message string) *Failure {
	return failure(http.StatusBadRequest, CodeInvalidParams, "invalid_params", message)
}

// HeaderMismatch says that the headers of a request and its body do not agree.
func HeaderMismatch(message string) *Failure {
	return failure(http.StatusBadRequest, codeHeaderMismatch, "header_mismatch", message)
}

// MethodNotFound says that a method is none of this server.
func MethodNotFound(method string) *Failure {
	return failure(http.StatusNotFound, CodeMethodNotFound, "method_not_found", "method not found: "+method)
}

// UnsupportedVersion says that a request is of a revision that is not spoken here.
func UnsupportedVersion(requested string, supported []string) *Failure {
	f := failure(http.StatusBadRequest, codeVersion, "unsupported_version", "unsupported protocol version")
	f.Data.Requested, f.Data.Supported = requested, supported
	return f
}

// MissingCapability says that a server asks for what the client has not declared.
func MissingCapability(server, method string) *Failure {
	f := failure(http.StatusBadRequest, codeMissingAbility, "missing_capability", "the MCP server asks for "+method+", which the client has not declared")
	f.Data.ServerName = server
	return f
}

// MissingExtension says that a request needs an extension that the client has not declared.
func MissingExtension(name string) *Failure {
	f := failure(http.StatusBadRequest, codeMissingAbility, "missing_capability",
		"the client has not declared the extension "+name)
	f.Data.Required = Encode(map[string]any{"extensions": map[string]any{name: struct{}{}}})
	return f
}

// ServerError is an error that a server has answered to a request of our own.
func ServerError(server string, m *Message) *Failure {
	f := failure(http.StatusOK, m.ErrorNumber(), "server_error", m.Text(ErrorMessage))
	f.Data.ServerName = server
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

// AsAnswer returns f as a server answers in JSON-RPC: with status 200. Clients take
// any other for a fault of the connection, and some then give up all of it.
func (f *Failure) AsAnswer() *Failure {
	answer := *f
	answer.Status = http.StatusOK
	return &answer
}

// UnknownSession says that a session has ended, or never was.
func UnknownSession() *Failure {
	return failure(http.StatusNotFound, codeUnknownServer, "unknown_session", "there is no such session: initialize again")
}

// TooManySessions says that no further client can be served.
func TooManySessions() *Failure {
	return later(failure(http.StatusServiceUnavailable, codeUnavailable, "too_many_sessions", "too many sessions"))
}

// TooManySubscriptions says that a client cannot hear of a further resource.
func TooManySubscriptions() *Failure {
	return failure(http.StatusServiceUnavailable, codeUnavailable, "too_many_subscriptions", "too many subscriptions, or their URIs are too long")
}

// PayloadTooLarge says that a request has too many bytes.
func PayloadTooLarge() *Failure {
	return failure(http.StatusRequestEntityTooLarge, CodeInvalidRequest, "payload_too_large", "the request is too large")
}

// TooEarly says that a request came before the TLS handshake was complete, so that it may
// be a replayed copy.
func TooEarly() *Failure {
	return failure(http.StatusTooEarly, CodeInvalidRequest, "invalid_request", "the request came before the TLS handshake was complete")
}

// RequestTimeout says that a request has not arrived in time.
func RequestTimeout() *Failure {
	return failure(http.StatusRequestTimeout, CodeInvalidRequest, "invalid_request", "the body of the request did not arrive in time")
}

// Busy says that there is no room for a request now.
func Busy() *Failure {
	return later(failure(http.StatusServiceUnavailable, codeUnavailable, "busy",
		"too many large requests at once: try again later"))
}

// StoreUnavailable says what cannot be done without what replicas share.
func StoreUnavailable(what string) *Failure {
	return later(failure(http.StatusServiceUnavailable, codeUnavailable, "store_unavailable",
		what+" while the store that the replicas of the gateway share is unavailable: try again later"))
}

// TooManyTools says that rules cannot decide on a tool because too much is known of others.
func TooManyTools(server string) *Failure {
	f := later(failure(http.StatusServiceUnavailable, codeUnavailable, "busy",
		"too many tools are listed at once to keep their annotations, by which rules decide: try again later"))
	f.Data.ServerName = server
	return f
}

// TooManyQuestions says that a client cannot be asked now because too many owe an answer.
func TooManyQuestions(server string) *Failure {
	f := later(failure(http.StatusServiceUnavailable, codeUnavailable, "busy",
		"too many calls wait for an answer of their client: try again later"))
	f.Data.ServerName = server
	return f
}

// TooMuchUnread says that an answer cannot be held for a client that has not read others.
func TooMuchUnread() *Failure {
	return later(failure(http.StatusServiceUnavailable, codeUnavailable, "busy",
		"too many large answers have not been read yet: read them, or try again later"))
}

// UnsupportedEncoding says that a request is compressed, which MCP does not know.
func UnsupportedEncoding() *Failure {
	return failure(http.StatusUnsupportedMediaType, CodeInvalidRequest, "invalid_request", "requests with a Content-Encoding are not accepted")
}

// UnsupportedCharset says that a request is in another charset than JSON is.
func UnsupportedCharset() *Failure {
	return failure(http.StatusUnsupportedMediaType, CodeInvalidRequest, "invalid_request", "requests in another charset than utf-8 are not accepted; see the charset of Content-Type")
}

// MethodNotAllowed says that an HTTP method has no meaning here, and which methods have.
func MethodNotAllowed(allow ...string) *Failure {
	f := failure(http.StatusMethodNotAllowed, CodeInvalidRequest, "invalid_request", "the HTTP method is not allowed here")
	f.Allow = strings.Join(allow, ", ")
	return f
}

// ForbiddenOrigin says that web pages of the request's origin may not use this
// gateway.
func ForbiddenOrigin(message string) *Failure {
	return failure(http.StatusForbidden, CodeInvalidRequest, "forbidden_origin", message)
}

// ForbiddenHost says that nobody here goes by the name in the request.
func ForbiddenHost(message string) *Failure {
	return failure(http.StatusForbidden, CodeInvalidRequest, "forbidden_host", message)
}

// UnknownServer says that there is no server of this name.
func UnknownServer(name string) *Failure {
	f := failure(http.StatusNotFound, codeUnknownServer, "unknown_server", "unknown MCP server")
	f.Data.ServerName = name
	return f
}

// Timeout says that a server did not answer in time.
func Timeout(server string) *Failure {
	return unavailable("timeout", server, "the MCP server did not answer in time")
}

// ConnectError says why a server could not be reached, or broke off in mid-answer.
func ConnectError(server string, cause Cause) *Failure {
	f := unavailable("connect_error", server, cause.of(server))
	f.Cause = cause
	return f
}

// StreamLost says that a server ended the stream of a request before the answer, and that the
// rest of it could not be had.
func StreamLost(server string) *Failure {
	f := unavailable("connect_error", server, "the MCP server ended its stream before the answer, "+
		"and the rest of it cannot be had: the request may have been carried out")
	f.Cause = CauseLost
	return f
}

// InvalidJSON says that what a server answered is not JSON.
func InvalidJSON(server string) *Failure {
	f := failure(http.StatusBadGateway, codeInvalidResponse, "invalid_json", "the MCP server's answer is not valid JSON")
	f.Data.ServerName = server
	return f
}

// InvalidResponse says that what a server answered is no JSON-RPC response.
func InvalidResponse(server string) *Failure {
	f := failure(http.StatusBadGateway, codeInvalidResponse, "invalid_response", "the MCP server's answer is not a JSON-RPC response")
	f.Data.ServerName = server
	return f
}

// ResponseTooLarge says that what a server answered has too many bytes.
func ResponseTooLarge(server string) *Failure {
	f := failure(http.StatusBadGateway, codeInvalidResponse, "invalid_response", "the MCP server's answer is too large")
	f.Data.ServerName, f.Cause = server, CauseTooLarge
	return f
}

// Refused says that a request was refused with this status: by the gateway, or by a
// handler on the way to a server.
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
		f = failure(status, CodeInternalError, "http_error", "the request was refused on its way to the MCP server")
		f.Data.StatusCode = status
	}
	f.Data.ServerName = server
	return f
}

// ToolChanged says that a tool is not the one that was first seen, and that nobody has
// accepted the other one yet.
func ToolChanged(server string) *Failure {
	f := failure(http.StatusForbidden, CodeInvalidRequest, "tool_changed", "the definition of the tool has changed: it is withheld until it is accepted at the admin API")
	f.Data.ServerName = server
	return f
}

// ConfirmationRequired says that a person has to agree to the call of a tool, and that the client cannot
// ask one. atAll is whether that is at the endpoint of all servers, where more clients can.
func ConfirmationRequired(server string, atAll bool) *Failure {
	message := "a person has to confirm this call, and the client cannot be asked"
	if atAll {
		message += ": it needs the capability elicitation, and to accept event streams"
	} else {
		message += " here: call the tool at the endpoint of all servers, /mcp by default, with a client that has " +
			"the capability elicitation"
	}
	f := failure(http.StatusForbidden, CodeInvalidRequest, "confirmation_required", message)
	f.Data.ServerName = server
	return f
}

// ConfirmationDeclined says that a person was asked to confirm a call, and has not agreed.
func ConfirmationDeclined(server string) *Failure {
	f := failure(http.StatusOK, CodeInvalidRequest, "confirmation_declined",
		"the call was not confirmed: the person at the client declined")
	f.Data.ServerName = server
	return f
}

// ConfirmationTimeout says that a person was asked to confirm a call, and has not answered.
func ConfirmationTimeout(server string) *Failure {
	f := failure(http.StatusOK, codeUnavailable, "timeout",
		"the call was not confirmed: the person at the client did not answer in time")
	f.Data.ServerName = server
	return f
}

// LoginRequired says that the gateway has to log in to a server first. ask is how the client
// can do that; nil if only the operator can.
func LoginRequired(server string, ask *URLElicitation) *Failure {
	f := failure(http.StatusOK, codeLoginRequired, "login_required", "the operator of the gateway has to log in to the MCP server "+server)
	f.Data.ServerName = server
	if ask != nil {
		f.Message, f.Data.Elicitations = ask.Message, []URLElicitation{*ask}
	}
	return f
}

// LoginFailed says that the gateway cannot log in to a server.
func LoginFailed(server, reason string) *Failure {
	f := failure(http.StatusBadGateway, CodeInternalError, "login_failed", "the gateway cannot log in to the MCP server: "+reason)
	f.Data.ServerName = server
	return f
}

// NoHandler says that of the handlers of a server none has answered.
func NoHandler(server string) *Failure {
	f := failure(http.StatusNotFound, CodeInternalError, "http_error", "no handler of the MCP server has answered")
	f.Data.ServerName, f.Data.StatusCode = server, http.StatusNotFound
	return f
}

// HTTPError says that a server answered with a status that stands for no answer.
func HTTPError(server string, status int) *Failure {
	f := failure(http.StatusBadGateway, CodeInternalError, "http_error", "the MCP server answered with HTTP status "+strconv.Itoa(status))
	f.Data.ServerName, f.Data.StatusCode = server, status
	return f
}

func unavailable(symbol, server, message string) *Failure {
	f := failure(http.StatusBadGateway, codeUnavailable, symbol, message)
	f.Data.ServerName = server
	return f
}

func failure(status, code int, symbol, message string) *Failure {
	return &Failure{Status: status, Code: code, Message: message, Data: FailureData{Symbol: symbol}}
}

// later has the client try again soon.
func later(f *Failure) *Failure {
	f.RetryAfter = 1
	return f
}

// IsLoginRequired reports whether a login mends the failure, which may be nil.
func (f *Failure) IsLoginRequired() bool { return f != nil && f.Data.Symbol == "login_required" }
