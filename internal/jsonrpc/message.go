// Package jsonrpc parses the envelope of JSON-RPC messages in place, and composes the errors that
// the gateway sends.
//
// A [Message] is the raw bytes and the positions of a few members in them. The gateway reads and
// replaces these members; all other bytes pass unchanged.
package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Field is a member of a message that the gateway reads or changes.
type Field uint8

// Fields of messages.
const (
	Version Field = iota
	ID
	Method
	Params
	Name               // params.name, of tools/call and prompts/get
	URI                // params.uri, of resources/*
	TaskID             // params.taskId, of tasks/*
	RequestID          // params.requestId, of notifications/cancelled
	Progress           // params.progressToken, of notifications/progress
	Arguments          // params.arguments, of tools/call
	Requested          // params.protocolVersion, of initialize
	Capabilities       // params.capabilities, of initialize
	Info               // params.clientInfo, of initialize
	Cursor             // params.cursor, of lists
	Limit              // params.limit, of lists: maximum length of a page
	Level              // params.level, of logging/setLevel
	Ref                // params.ref, of completion/complete
	RefName            // params.ref.name
	RefURI             // params.ref.uri
	InputResponses     // params.inputResponses, of a repeated call
	RequestState       // params.requestState, of a repeated call
	Notifications      // params.notifications, of subscriptions/listen
	Subscriptions      // params.notifications.resourceSubscriptions
	TaskIDs            // params.notifications.taskIds
	Proxy              // params.proxy: for the gateway only
	AuthToken          // params.proxy.authToken: token of the client
	Meta               // params._meta
	ProgressToken      // params._meta.progressToken: identifies progress notifications
	Traceparent        // params._meta.traceparent: trace of the request
	ProtocolVersion    // protocol version in params._meta, of the modern era
	ClientCapabilities // capabilities of the client, there
	ClientInfo         // name and version of the client, there
	LogLevel           // log level for this request, there
	SubscriptionID     // id of the listen request of a notification, in params._meta
	Result             // of a response
	ResultType         // result.resultType
	CacheScope         // result.cacheScope: who may get the cached result
	InputRequests      // result.inputRequests, of a result that asks for input
	ResultMeta         // result._meta
	ListenID           // id of the listen request, there
	Error              // of a response
	ErrorCode          // error.code
	ErrorMessage       // error.message
	fieldCount
)

// reserved is the prefix of _meta keys that MCP defines.
const reserved = `io\.modelcontextprotocol/`

// fieldPaths are the paths of the fields. Each part of a path is a field, too.
var fieldPaths = []string{
	"jsonrpc", "id", "method",
	"params", "params.name", "params.uri", "params.taskId", "params.requestId", "params.progressToken",
	"params.arguments", "params.protocolVersion", "params.capabilities", "params.clientInfo",
	"params.cursor", "params.limit", "params.level", "params.ref", "params.ref.name", "params.ref.uri",
	"params.inputResponses", "params.requestState",
	"params.notifications", "params.notifications.resourceSubscriptions", "params.notifications.taskIds",
	"params.proxy", "params.proxy.authToken",
	"params._meta", "params._meta.progressToken", "params._meta.traceparent",
	"params._meta." + reserved + "protocolVersion", "params._meta." + reserved + "clientCapabilities",
	"params._meta." + reserved + "clientInfo", "params._meta." + reserved + "logLevel",
	"params._meta." + reserved + "subscriptionId",
	"result", "result.resultType", "result.cacheScope", "result.inputRequests",
	"result._meta", "result._meta." + reserved + "subscriptionId",
	"error", "error.code", "error.message",
}

var fields = CompilePaths()

// Paths are further members that are found while a message is parsed.
type Paths struct{ paths *jsonspan.Paths }

// CompilePaths makes Paths like [jsonspan.CompilePaths]. They must differ from those of fields.
func CompilePaths(paths ...string) *Paths {
	return &Paths{jsonspan.CompilePaths(slices.Concat(fieldPaths, paths)...)}
}

// A Message is a JSON-RPC message: a request, a notification (no id) or a response (no method).
//
// It is small, because most messages have few of the fields, and a call copies its messages.
type Message struct {
	Raw    []byte
	spans  []span   // of the fields present, in any order
	has    fieldSet // fields present
	folded fieldSet // fields that have the right name, except for its case
}

// A fieldSet has a bit for each field.
type fieldSet uint64

func setOf(fields ...Field) (s fieldSet) {
	for _, f := range fields {
		s |= 1 << f
	}
	return s
}

// typicalFields is the number of fields that most messages do not exceed.
const typicalFields = 10

// A span is the position of a field. 32 bits are enough, because messages over 2 GiB are refused.
type span struct {
	field      Field
	kind       jsonspan.Kind
	start, end int32
}

// spanOf returns the span of a field; the zero span if it is absent.
func (m *Message) spanOf(f Field) span {
	if m.Has(f) {
		for _, s := range m.spans {
			if s.field == f {
				return s
			}
		}
	}
	return span{}
}

// set stores the span of a field.
func (m *Message) set(s span) {
	if m.Has(s.field) {
		i := slices.IndexFunc(m.spans, func(other span) bool { return other.field == s.field })
		m.spans[i] = s
		return
	}
	if m.spans == nil {
		m.spans = make([]span, 0, typicalFields)
	}
	m.spans, m.has = append(m.spans, s), m.has|1<<s.field
}

func (s span) isContainer() bool {
	return s.kind == jsonspan.BeginObject || s.kind == jsonspan.BeginArray
}

// ReadRequest is Read for messages of clients. It is stricter: the text must be UTF-8, and the
// method a string.
func (m *Message) ReadRequest(data []byte) *Failure {
	if !utf8.Valid(data) {
		*m = Message{Raw: data}
		return ParseError()
	}
	failure := m.Read(data)
	if failure == nil && m.Has(Method) && m.Kind(Method) != jsonspan.String {
		failure = InvalidRequest("the method is not a string")
	}
	return failure
}

var (
	// envelopeFields are the fields of messages with any method.
	envelopeFields = setOf(Version, ID, Method, Params, Proxy, AuthToken)
	// decisiveFields are the fields of a server's message on which decisions depend.
	decisiveFields = setOf(Version, ID, Method, Params, URI, TaskID, Result, ResultType, InputRequests, CacheScope, Error)
	// clientFields are the fields that a client can send.
	clientFields = ^setOf(InputRequests)
)

// CheckExact refuses a message with a member whose name equals that of a field except for case.
// Some servers ignore case, and decisions must be made on what the server reads. For an unknown
// method, only the envelope counts.
func (m *Message) CheckExact(known bool) *Failure {
	if known {
		return m.checkFolded(clientFields)
	}
	return m.checkFolded(envelopeFields)
}

func (m *Message) checkFolded(fields fieldSet) *Failure {
	if m.folded&fields != 0 {
		return InvalidRequest("the message has a member whose name differs from a protocol name only in case")
	}
	return nil
}

// CheckDecisive refuses a server's message with a member whose name equals that of a decisive field
// except for case. Some clients ignore case.
func (m *Message) CheckDecisive() *Failure { return m.checkFolded(decisiveFields) }

// ReadExact is Read and CheckDecisive. If the latter fails, the message still has its fields.
func (m *Message) ReadExact(data []byte) *Failure {
	if failure := m.Read(data); failure != nil {
		return failure
	}
	return m.CheckDecisive()
}

// Read parses data and finds the fields, in one pass. A message that repeats a field is refused,
// because two readers could disagree on its value. An error that is null counts as absent next to a
// result, and a result that is null next to an error. The message keeps data.
//
// The failure can be sent to the client. A refused message has no fields: its id cannot be trusted
// either.
func (m *Message) Read(data []byte) *Failure {
	return m.finishRead(m.find(data, fields, &jsonspan.Search{}))
}

// ReadWith is Read that also calls found for each value at one of the paths, in the order in which
// the values end. If the values at these paths are ambiguous, although the fields are not,
// ambiguous is [jsonspan.ErrDuplicate] or [jsonspan.ErrFolded]. After a failure or a duplicate, the
// values found are not valid.
func (m *Message) ReadWith(
	data []byte, paths *Paths, found func(path int, v jsonspan.Value),
) (_ *Failure, ambiguous error) {
	err := m.find(data, paths, &jsonspan.Search{
		Found:  found,
		Folded: func(int) { ambiguous = jsonspan.ErrFolded },
	})
	if errors.Is(err, jsonspan.ErrDuplicate) {
		return m.Read(data), jsonspan.ErrDuplicate
	}
	return m.finishRead(err), ambiguous
}

// A FoundString is a string in a message, at one of the paths that were looked for.
type FoundString struct {
	Path  int // index of the path
	Value jsonspan.Value
}

// ReadStrings is [Message.Read] that also appends the strings at the paths to found. It appends none
// if the message repeats a member, because parsers could disagree about the values.
func (p *Paths) ReadStrings(m *Message, data []byte, found []FoundString) ([]FoundString, *Failure) {
	before := len(found)
	failure, ambiguous := m.ReadWith(data, p, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String {
			found = append(found, FoundString{path, v})
		}
	})
	if failure != nil || ambiguous == jsonspan.ErrDuplicate {
		found = found[:before]
	}
	return found, failure
}

// find parses data into m. other gets the values at paths that are not fields.
func (m *Message) find(data []byte, paths *Paths, other *jsonspan.Search) error {
	*m = Message{Raw: data}
	if len(data) > math.MaxInt32 {
		return errTooLarge
	}
	return paths.paths.Search(data, &jsonspan.Search{
		Found: func(path int, v jsonspan.Value) {
			if path < int(fieldCount) {
				m.set(span{Field(path), v.Kind, int32(v.Start), int32(v.End)})
			} else {
				other.Found(path-int(fieldCount), v)
			}
		},
		Folded: func(path int) {
			if uint(path) < uint(fieldCount) {
				m.folded |= 1 << path
			} else {
				other.Folded(path)
			}
		},
		KnownEnd: other.KnownEnd,
	})
}

var errTooLarge = errors.New("message of more than 2 GiB")

// finishRead returns the failure for an error of find, and clears the fields then.
func (m *Message) finishRead(err error) *Failure {
	failure := m.readFailure(err)
	switch {
	case failure != nil:
		*m = Message{Raw: m.Raw}
	case m.Has(Result) && m.Has(Error): // some servers write both, one of them as null
		if m.Kind(Error) == jsonspan.Null {
			m.drop(Error)
		} else if m.Kind(Result) == jsonspan.Null {
			m.drop(Result)
		}
	}
	return failure
}

// drop makes the message one without a field.
func (m *Message) drop(f Field) {
	m.spans = slices.DeleteFunc(m.spans, func(s span) bool { return s.field == f })
	m.has &^= 1 << f
}

// readFailure returns the failure for an error of find, or for a message that is not an object or
// has an invalid id.
func (m *Message) readFailure(err error) *Failure {
	switch {
	case err == errTooLarge:
		return PayloadTooLarge()
	case errors.Is(err, jsonspan.ErrDuplicate):
		return InvalidRequest("the message repeats a member")
	case errors.Is(err, jsonspan.ErrDepth):
		return InvalidRequest("the message is nested too deeply")
	case err != nil:
		return ParseError()
	case !isObject(m.Raw):
		return InvalidRequest("the message is not a JSON object")
	}
	switch m.Kind(ID) {
	case Absent, jsonspan.String, jsonspan.Number, jsonspan.Null:
		return nil
	}
	return InvalidRequest("the id is neither a string nor a number")
}

// Check returns the failure for a parsed message that does not conform to JSON-RPC 2.0. Most such
// messages can be forwarded, and the receiver decides. Where clients share one connection to the
// receiver, they must be refused.
func (m *Message) Check() *Failure {
	response := m.Has(Result) || m.Has(Error)
	switch {
	case !m.Is(Version, "2.0"):
		return InvalidRequest("jsonrpc is not \"2.0\"")
	case m.Has(Method) == response || m.Has(Result) && m.Has(Error):
		return InvalidRequest("the message is neither a request nor a response")
	case m.Has(Method) && m.Kind(Method) != jsonspan.String:
		return InvalidRequest("the method is not a string")
	case m.Has(Params) && m.Kind(Params) != jsonspan.BeginObject && m.Kind(Params) != jsonspan.BeginArray:
		return InvalidRequest("params is neither an object nor an array")
	case response && !m.Has(ID):
		return InvalidRequest("the response has no id")
	case m.Has(Error) && !m.isError():
		return InvalidRequest("the error has no integer code or no message")
	}
	return nil
}

// isError reports whether the error has an integer code and a message.
func (m *Message) isError() bool {
	_, err := strconv.ParseInt(string(m.Literal(ErrorCode)), 10, 32)
	return err == nil && m.Kind(ErrorMessage) == jsonspan.String
}

// ErrorNumber returns the code of an error response; 0 for other messages.
func (m *Message) ErrorNumber() int {
	if !m.Has(ErrorCode) {
		return 0
	}
	code, _ := strconv.Atoi(string(m.Literal(ErrorCode)))
	return code
}

// IsUnsupportedVersion reports whether the message is the error for an unsupported protocol
// version.
func (m *Message) IsUnsupportedVersion() bool { return m.ErrorNumber() == codeVersion }

// IsHeaderMismatch reports whether the message is the error for headers that contradict the body.
func (m *Message) IsHeaderMismatch() bool { return m.ErrorNumber() == codeHeaderMismatch }

// IsUnknownSession reports whether the message has one of the error codes that servers use for
// unknown sessions.
func (m *Message) IsUnknownSession() bool {
	switch m.ErrorNumber() {
	case -32000, codeUnknownServer, CodeInvalidRequest:
		return true
	}
	return false
}

// Status returns the HTTP status of a response in the modern era. In the legacy era it is always
// 200.
func (m *Message) Status() int { return StatusOf(m.ErrorNumber()) }

// StatusOf returns the HTTP status of a response in the modern era, given its error code. The code
// of a result is 0.
func StatusOf(code int) int {
	switch code {
	case CodeMethodNotFound:
		return http.StatusNotFound
	case CodeInvalidParams, codeHeaderMismatch, codeMissingCapability, codeVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// isObject reports whether a JSON text is an object.
func isObject(data []byte) bool {
	for _, c := range data {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return c == '{'
	}
	return false
}

// Absent is the kind of a missing field.
const Absent = jsonspan.More

// Kind returns the JSON type of a field.
func (m *Message) Kind(f Field) jsonspan.Kind { return m.spanOf(f).kind }

// Has reports whether the message has a field.
func (m *Message) Has(f Field) bool { return m.has&(1<<f) != 0 }

// Literal returns the bytes of a field in the message; nil if it is absent.
func (m *Message) Literal(f Field) []byte {
	if !m.Has(f) {
		return nil
	}
	s := m.spanOf(f)
	return m.Raw[s.start:s.end]
}

// Text returns the value of a string field; "" if it is not a string.
func (m *Message) Text(f Field) string {
	s := m.spanOf(f)
	if s.kind != jsonspan.String {
		return ""
	}
	return jsonspan.Text(m.body(s))
}

// Is reports whether a field is a string with this value.
func (m *Message) Is(f Field, text string) bool {
	s := m.spanOf(f)
	return s.kind == jsonspan.String && jsonspan.TextIs(m.body(s), text)
}

// body returns the bytes between the quotes of a string.
func (m *Message) body(s span) []byte { return m.Raw[s.start+1 : s.end-1] }

// Replace returns the edit that replaces a field with a literal. The message must have the field.
func (m *Message) Replace(f Field, literal []byte) jsonspan.Edit {
	s := m.spanOf(f)
	return jsonspan.Edit{Start: int(s.start), End: int(s.end), New: literal}
}

// ReplaceAll returns the edits, in order, that replace each of the fields present with a literal.
func (m *Message) ReplaceAll(literal []byte, fields ...Field) (edits []jsonspan.Edit) {
	for _, f := range fields {
		if m.Has(f) {
			edits = append(edits, m.Replace(f, literal))
		}
	}
	slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	return edits
}

// Edited returns the message with edits, as Read would parse it. It does not parse objects and
// arrays again if the edits only replace strings in them. The edits may come in any order, but must
// not overlap.
func (m *Message) Edited(edits ...jsonspan.Edit) (edited Message, _ *Failure) {
	raw := jsonspan.Spliced(m.Raw, edits...)
	if m.folded != 0 { // the positions of folded fields are not stored
		failure := edited.Read(raw)
		return edited, failure
	}
	moved := func(s span) span { // moves and resizes s, for the edits before it and in it
		from := s
		for _, e := range edits {
			by := int32(len(e.New) - (e.End - e.Start))
			if e.End <= int(from.start) {
				s.start += by
			}
			if e.Start < int(from.end) {
				s.end += by
			}
		}
		return s
	}
	err := edited.find(raw, fields, &jsonspan.Search{KnownEnd: func(path, start int) (end int) {
		old := m.spanOf(Field(path))
		if !old.isContainer() || int(moved(old).start) != start {
			return 0
		}
		for _, e := range edits {
			if e.Start < int(old.end) && e.End > int(old.start) && !m.onlyChangesText(e) {
				return 0
			}
		}
		for _, in := range m.spans {
			if in.start >= old.start && in.end <= old.end {
				edited.set(moved(in))
			}
		}
		return int(moved(old).end)
	}})
	failure := edited.finishRead(err)
	return edited, failure
}

// onlyChangesText reports whether an edit replaces exactly one string field with a plain string.
func (m *Message) onlyChangesText(e jsonspan.Edit) bool {
	return isPlainString(e.New) && slices.ContainsFunc(m.spans, func(s span) bool {
		return s.kind == jsonspan.String && int(s.start) == e.Start && int(s.end) == e.End
	})
}

// isPlainString reports whether a literal is an ASCII string without escapes.
func isPlainString(literal []byte) bool {
	if len(literal) < 2 || literal[0] != '"' || literal[len(literal)-1] != '"' {
		return false
	}
	for _, c := range literal[1 : len(literal)-1] {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Within converts an edit of the literal of a field to an edit of the message.
func (m *Message) Within(f Field, e jsonspan.Edit) jsonspan.Edit {
	return e.Moved(int(m.spanOf(f).start))
}

// Insert returns the edit that adds a member to the params. Params that are missing, or not an
// object, are replaced with an object.
func (m *Message) Insert(member []byte) jsonspan.Edit {
	object := slices.Concat([]byte("{"), member, []byte("}"))
	switch {
	case m.Kind(Params) == jsonspan.BeginObject:
		return m.Within(Params, jsonspan.Insert(m.Literal(Params), member))
	case m.Has(Params):
		return m.Replace(Params, object)
	}
	return jsonspan.Insert(m.Raw, append([]byte(`"params":`), object...))
}

// InsertMeta returns the edit that adds a member to params._meta. If that is missing, or not an
// object, it is replaced with an object.
func (m *Message) InsertMeta(member []byte) jsonspan.Edit {
	object := slices.Concat([]byte("{"), member, []byte("}"))
	switch {
	case m.Kind(Meta) == jsonspan.BeginObject:
		return m.Within(Meta, jsonspan.Insert(m.Literal(Meta), member))
	case m.Has(Meta):
		return m.Replace(Meta, object)
	}
	return m.Insert(append([]byte(`"_meta":`), object...))
}

// IsRequest reports whether the message needs a response.
func (m *Message) IsRequest() bool { return m.Has(Method) && m.Has(ID) }

// IsNotification reports whether the message is a notification.
func (m *Message) IsNotification() bool { return m.Has(Method) && !m.Has(ID) }

// IsResponse reports whether the message is a response.
func (m *Message) IsResponse() bool { return m.Has(Result) != m.Has(Error) && !m.Has(Method) }

// WithID returns the edits that give a response exactly this id.
func (m *Message) WithID(id []byte) []jsonspan.Edit {
	switch {
	case !m.Has(ID):
		return []jsonspan.Edit{jsonspan.Insert(m.Raw, append([]byte(`"id":`), id...))}
	case !bytes.Equal(m.Literal(ID), id):
		return []jsonspan.Edit{m.Replace(ID, id)}
	}
	return nil
}

// Request composes a request. params are JSON, or nil.
func Request(id uint64, method string, params []byte) []byte {
	return RequestAs(strconv.AppendUint(nil, id, 10), method, params)
}

// RequestAs is Request with an id that is a JSON literal.
func RequestAs(id []byte, method string, params []byte) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	return compose(m, method, params)
}

// Notification composes a notification. params are JSON, or nil.
func Notification(method string, params []byte) []byte {
	return compose([]byte(`{"jsonrpc":"2.0"`), method, params)
}

func compose(m []byte, method string, params []byte) []byte {
	m = append(m, `,"method":`...)
	m = append(m, Quote(method)...)
	if params != nil {
		m = append(m, `,"params":`...)
		m = append(m, params...)
	}
	return append(m, '}')
}

// ResultResponse composes the response with a result to the request with this id, a JSON literal.
func ResultResponse(id, result []byte) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	m = append(m, `,"result":`...)
	m = append(m, result...)
	return append(m, '}')
}

// ErrorResponse composes an error response without data.
func ErrorResponse(id []byte, code int, message string) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	m = append(m, `,"error":{"code":`...)
	m = strconv.AppendInt(m, int64(code), 10)
	m = append(m, `,"message":`...)
	m = append(m, Quote(message)...)
	return append(m, "}}"...)
}

// Quote returns a string as JSON.
func Quote(s string) []byte {
	if isPlain(s) {
		quoted := make([]byte, 0, len(s)+2)
		return append(append(append(quoted, '"'), s...), '"')
	}
	quoted, _ := json.Marshal(s) // never fails for a string
	return quoted
}

// isPlain reports whether json.Marshal would escape nothing in a string.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// Encode returns a value as JSON, and panics if it cannot. HTML characters are not escaped, because
// the text may go to a model, which pays for each escape.
func Encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
