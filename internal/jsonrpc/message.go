// Package jsonrpc reads the envelope of JSON-RPC messages where they stand, and
// makes the errors a gateway answers in their place.
//
// A [Message] is the raw bytes and the places of a few members in them. Whoever
// stands between a client and a server decides on these places and replaces them
// there; everything else is passed on as it came.
package jsonrpc

import (
	"bytes"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Field is a member of a message that matters to somebody between client and
// server.
type Field uint8

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
	Limit              // params.limit, of lists: how long a page shall be
	Level              // params.level, of logging/setLevel
	Ref                // params.ref, of completion/complete
	RefName            // params.ref.name
	RefURI             // params.ref.uri
	InputResponses     // params.inputResponses, of a call that is made again
	RequestState       // params.requestState, of a call that is made again
	Notifications      // params.notifications, of subscriptions/listen
	Subscriptions      // params.notifications.resourceSubscriptions
	TaskIDs            // params.notifications.taskIds
	Proxy              // params.proxy: what is said between a client and a gateway only
	AuthToken          // params.proxy.authToken: what lets the client in
	Meta               // params._meta
	ProgressToken      // params._meta.progressToken: where progress is to be reported
	Traceparent        // params._meta.traceparent: the trace that the request belongs to
	ProtocolVersion    // the protocol version in params._meta, of the stateless era
	ClientCapabilities // the client's capabilities there
	ClientInfo         // who the client is, there
	LogLevel           // what the client wants to be told of this request, there
	SubscriptionID     // the id in params._meta of the listen request a notification belongs to
	Result             // of an answer
	ResultType         // result.resultType
	CacheScope         // result.cacheScope: who may be given the result again
	InputRequests      // result.inputRequests, of a result that asks for input
	ResultMeta         // result._meta
	ListenID           // the same id there
	Error              // of an answer
	ErrorCode          // error.code
	ErrorMessage       // error.message
	fieldCount
)

// Keys of _meta that the protocol defines begin with this.
const reserved = `io\.modelcontextprotocol/`

// fieldPaths are where the fields stand. No path leads through a place that is not a field.
var fieldPaths = []string{
	"jsonrpc", "id", "method",
	"params", "params.name", "params.uri", "params.taskId", "params.requestId", "params.progressToken",
	"params.arguments", "params.protocolVersion", "params.capabilities", "params.clientInfo",
	"params.cursor", "params.limit", "params.level", "params.ref", "params.ref.name", "params.ref.uri",
	"params.inputResponses", "params.requestState", "params.notifications", "params.notifications.resourceSubscriptions", "params.notifications.taskIds", "params.proxy", "params.proxy.authToken",
	"params._meta", "params._meta.progressToken", "params._meta.traceparent",
	"params._meta." + reserved + "protocolVersion", "params._meta." + reserved + "clientCapabilities",
	"params._meta." + reserved + "clientInfo", "params._meta." + reserved + "logLevel",
	"params._meta." + reserved + "subscriptionId",
	"result", "result.resultType", "result.cacheScope", "result.inputRequests", "result._meta", "result._meta." + reserved + "subscriptionId",
	"error", "error.code", "error.message",
}

var fields = CompilePaths()

// Paths are places in messages that are found while a message is read.
type Paths struct{ paths *jsonspan.Paths }

// CompilePaths makes Paths as [jsonspan.CompilePaths] does, which cannot be those of fields.
func CompilePaths(paths ...string) *Paths {
	return &Paths{jsonspan.CompilePaths(slices.Concat(fieldPaths, paths)...)}
}

// A Message is a JSON-RPC message: a request, a notification (no id) or an answer
// (no method).
//
// It is small, because most messages have few of the fields, and a call copies its messages.
type Message struct {
	Raw    []byte
	spans  []span   // of the fields that the message has, in any order
	has    fieldSet // the fields that spans are of
	folded fieldSet // fields that the message has under a name in another case
}

// A fieldSet has a bit for each field.
type fieldSet uint64

func setOf(fields ...Field) (s fieldSet) {
	for _, f := range fields {
		s |= 1 << f
	}
	return s
}

// usualFields is how many fields most messages have at most.
const usualFields = 10

// A span is where a field stands. It is small, because a message of 2 GiB is not read.
type span struct {
	field      Field
	kind       jsonspan.Kind
	start, end int32
}

// at returns where a field stands. The zero span is that of an absent one.
func (m *Message) at(f Field) span {
	if m.Has(f) {
		for _, s := range m.spans {
			if s.field == f {
				return s
			}
		}
	}
	return span{}
}

// set notes where a field stands.
func (m *Message) set(s span) {
	if m.Has(s.field) {
		i := slices.IndexFunc(m.spans, func(other span) bool { return other.field == s.field })
		m.spans[i] = s
		return
	}
	if m.spans == nil {
		m.spans = make([]span, 0, usualFields)
	}
	m.spans, m.has = append(m.spans, s), m.has|1<<s.field
}

func (s span) isContainer() bool {
	return s.kind == jsonspan.BeginObject || s.kind == jsonspan.BeginArray
}

// ReadRequest is Read for what a client sends, of which no more is accepted than
// the standard says: a text in UTF-8, and a method that is a string.
func (m *Message) ReadRequest(data []byte) *Failure {
	if !utf8.Valid(data) {
		*m = Message{Raw: data}
		return ParseError()
	}
	failure := m.Read(data)
	if failure == nil && m.Has(Method) && m.Kind(Method) != jsonspan.String {
		failure = InvalidRequest("the method is no string")
	}
	return failure
}

var (
	// envelope are the fields that a message has whatever its method is.
	envelope = setOf(Version, ID, Method, Params, Proxy, AuthToken)
	// decisive are the fields of a server's message on which anything is decided.
	decisive = setOf(Version, ID, Method, Params, URI, TaskID, Result, ResultType, InputRequests, CacheScope, Error)
	// everything is what a client can send.
	everything = ^setOf(InputRequests)
)

// CheckExact refuses a message with members that some servers take for one of the fields,
// because they ignore the case of names: a decision must be made on what the server reads.
// Of an unknown method only the envelope matters.
func (m *Message) CheckExact(known bool) *Failure {
	if known {
		return m.checkFolded(everything)
	}
	return m.checkFolded(envelope)
}

func (m *Message) checkFolded(fields fieldSet) *Failure {
	if m.folded&fields != 0 {
		return InvalidRequest("the message has a member whose name differs from one of the protocol in case only")
	}
	return nil
}

// CheckDecisive refuses a message of a server with members that some clients take for a
// field on which something is decided, because they ignore the case of names.
func (m *Message) CheckDecisive() *Failure { return m.checkFolded(decisive) }

// ReadExact is Read and CheckDecisive. A message that the latter refuses has its fields
// nevertheless.
func (m *Message) ReadExact(data []byte) *Failure {
	if failure := m.Read(data); failure != nil {
		return failure
	}
	return m.CheckDecisive()
}

// Read finds the fields of the message that data is, in one pass. A message that
// repeats one of them is refused, because two readers could disagree about what it
// says. The message keeps data.
//
// The failure is ready to be answered. A message that was refused has no fields:
// its id cannot be trusted either.
func (m *Message) Read(data []byte) *Failure {
	return m.judge(m.find(data, fields, &jsonspan.Search{}))
}

// ReadWith is Read that also calls found for each value at one of the paths, in the order
// in which the values end. The error says why other readers could find other values there,
// although they find the same fields: [jsonspan.ErrDuplicate] or [jsonspan.ErrFolded]. What
// was found does not count after a failure or a duplicate.
func (m *Message) ReadWith(data []byte, paths *Paths, found func(path int, v jsonspan.Value)) (_ *Failure, ambiguous error) {
	err := m.find(data, paths, &jsonspan.Search{
		Found:  found,
		Folded: func(int) { ambiguous = jsonspan.ErrFolded },
	})
	if errors.Is(err, jsonspan.ErrDuplicate) {
		return m.Read(data), jsonspan.ErrDuplicate
	}
	return m.judge(err), ambiguous
}

// find makes m the message that data is. The search is one for what is not a field.
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
		Known: other.Known,
	})
}

var errTooLarge = errors.New("message of more than 2 GiB")

// judge returns what is wrong with a message in which find met err. It has no fields then.
func (m *Message) judge(err error) *Failure {
	failure := m.fault(err)
	if failure != nil {
		*m = Message{Raw: m.Raw}
	}
	return failure
}

func (m *Message) fault(err error) *Failure {
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

// Check reports what is wrong with a message that has been read, if it is none of
// JSON-RPC 2.0 after all. A gateway can pass such a thing on, and let its reader
// decide; where many share one reader, it must not.
func (m *Message) Check() *Failure {
	answer := m.Has(Result) || m.Has(Error)
	switch {
	case !m.Is(Version, "2.0"):
		return InvalidRequest("jsonrpc is not \"2.0\"")
	case m.Has(Method) == answer || m.Has(Result) && m.Has(Error):
		return InvalidRequest("the message is neither a request nor an answer")
	case m.Has(Method) && m.Kind(Method) != jsonspan.String:
		return InvalidRequest("the method is not a string")
	case m.Has(Params) && m.Kind(Params) != jsonspan.BeginObject && m.Kind(Params) != jsonspan.BeginArray:
		return InvalidRequest("params is neither an object nor an array")
	case answer && !m.Has(ID):
		return InvalidRequest("the answer has no id")
	case m.Has(Error) && !m.isError():
		return InvalidRequest("the error has no code or no message")
	}
	return nil
}

// isError reports whether the error is one: an object with a code, which is a whole
// number, and a message.
func (m *Message) isError() bool {
	_, err := strconv.ParseInt(string(m.Literal(ErrorCode)), 10, 32)
	return err == nil && m.Kind(ErrorMessage) == jsonspan.String
}

// ErrorNumber returns the code of the error that the message is, 0 if it is none.
func (m *Message) ErrorNumber() int {
	if !m.Has(ErrorCode) {
		return 0
	}
	code, _ := strconv.Atoi(string(m.Literal(ErrorCode)))
	return code
}

// IsUnsupportedVersion reports whether an answer says that the request is of a revision
// which is not spoken there.
func (m *Message) IsUnsupportedVersion() bool { return m.ErrorNumber() == codeVersion }

// IsHeaderMismatch reports whether an answer says that the headers of the request and its body
// do not agree.
func (m *Message) IsHeaderMismatch() bool { return m.ErrorNumber() == codeHeaderMismatch }

// IsUnknownSession reports whether an answer says what servers say of sessions that they
// do not know.
func (m *Message) IsUnknownSession() bool {
	switch m.ErrorNumber() {
	case -32000, codeUnknownServer, CodeInvalidRequest:
		return true
	}
	return false
}

// Status returns the HTTP status of an answer in the modern era. In the legacy era it is
// always 200.
func (m *Message) Status() int { return StatusOf(m.ErrorNumber()) }

// StatusOf returns the HTTP status of an answer in the stateless era, by the code of its error,
// 0 for a result.
func StatusOf(code int) int {
	switch code {
	case CodeMethodNotFound:
		return http.StatusNotFound
	case CodeInvalidParams, codeHeaderMismatch, codeMissingAbility, codeVersion:
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

// Absent is the kind of a field that a message does not have.
const Absent = jsonspan.More

// Kind returns what a field is.
func (m *Message) Kind(f Field) jsonspan.Kind { return m.at(f).kind }

// Has reports whether the message has a field.
func (m *Message) Has(f Field) bool { return m.has&(1<<f) != 0 }

// Literal returns the bytes of a field as they stand in the message, or nil.
func (m *Message) Literal(f Field) []byte {
	if !m.Has(f) {
		return nil
	}
	s := m.at(f)
	return m.Raw[s.start:s.end]
}

// Text returns what a field says, or nothing if it is not a string.
func (m *Message) Text(f Field) string {
	s := m.at(f)
	if s.kind != jsonspan.String {
		return ""
	}
	return jsonspan.Text(m.body(s))
}

// Is reports whether a field is a string that says this.
func (m *Message) Is(f Field, text string) bool {
	s := m.at(f)
	return s.kind == jsonspan.String && jsonspan.TextIs(m.body(s), text)
}

// body returns what stands between the quotes of a string.
func (m *Message) body(s span) []byte { return m.Raw[s.start+1 : s.end-1] }

// Replace returns the edit that puts a literal in the place of a field, which the
// message must have.
func (m *Message) Replace(f Field, literal []byte) jsonspan.Edit {
	s := m.at(f)
	return jsonspan.Edit{Start: int(s.start), End: int(s.end), New: literal}
}

// ReplaceAll returns the edits, in order, that put a literal in the place of those of the fields
// that the message has.
func (m *Message) ReplaceAll(literal []byte, fields ...Field) (edits []jsonspan.Edit) {
	for _, f := range fields {
		if m.Has(f) {
			edits = append(edits, m.Replace(f, literal))
		}
	}
	slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	return edits
}

// Edited returns the message with edits made, as Read would read it. Of objects and arrays
// that are fields it only reads those that an edit may have changed otherwise than by another
// text for one of their fields; the others move along. The edits may come in any order, but
// must not overlap.
func (m *Message) Edited(edits ...jsonspan.Edit) (edited Message, _ *Failure) {
	raw := jsonspan.Spliced(m.Raw, edits...)
	if m.folded != 0 { // names are not kept by place
		failure := edited.Read(raw)
		return edited, failure
	}
	moved := func(s span) span { // with edits before it, and in it
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
	err := edited.find(raw, fields, &jsonspan.Search{Known: func(path, start int) (end int) {
		old := m.at(Field(path))
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
	failure := edited.judge(err)
	return edited, failure
}

// onlyChangesText reports whether an edit gives another text to a field that is a string, and does nothing else.
func (m *Message) onlyChangesText(e jsonspan.Edit) bool {
	return isPlainString(e.New) && slices.ContainsFunc(m.spans, func(s span) bool {
		return s.kind == jsonspan.String && int(s.start) == e.Start && int(s.end) == e.End
	})
}

// isPlainString reports whether a literal is a string in ASCII without escapes.
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

// Within returns an edit of the literal of a field as one of the whole message.
func (m *Message) Within(f Field, e jsonspan.Edit) jsonspan.Edit {
	return e.Moved(int(m.at(f).start))
}

// Insert returns the edit that puts a member into the params. A message that has none
// gets some, also in the place of others than an object.
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

// InsertMeta returns the edit that puts a member into the _meta of the params. A message
// that has none gets one, also in the place of another than an object.
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

// IsRequest reports whether the message wants an answer.
func (m *Message) IsRequest() bool { return m.Has(Method) && m.Has(ID) }

// IsNotification reports whether the message has a method and wants no answer.
func (m *Message) IsNotification() bool { return m.Has(Method) && !m.Has(ID) }

// IsAnswer reports whether the message answers a request.
func (m *Message) IsAnswer() bool { return m.Has(Result) != m.Has(Error) && !m.Has(Method) }

// WithID returns the edits that give an answer the id of the request, to the byte.
func (m *Message) WithID(id []byte) []jsonspan.Edit {
	switch {
	case !m.Has(ID):
		return []jsonspan.Edit{jsonspan.Insert(m.Raw, append([]byte(`"id":`), id...))}
	case !bytes.Equal(m.Literal(ID), id):
		return []jsonspan.Edit{m.Replace(ID, id)}
	}
	return nil
}
