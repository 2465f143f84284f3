package inbound

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsoncut"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// The gateway itself sends requests to the user of a client: to log in to a server, and to confirm
// calls. A legacy client gets them in the stream of its call. A modern client gets an
// input_required result, and repeats the request with the response. A sealed state in the repeated
// request contains what the gateway needs then.

// Keys of the gateway's own requests in such a result.
const (
	LoginRequest   = "login"
	ConfirmRequest = "confirm"
)

// A questionState is the state that a modern client sends back with its response.
type questionState struct {
	Asked                  string `json:",omitempty"` // key of the gateway's request; "" for one of the server
	Server, Account, About string

	// Of a call that a person has confirmed, or is asked to confirm.
	Confirmation string `json:",omitempty"` // key; valid once
	Arguments    []byte `json:",omitempty"` // hash of the arguments

	// State and responses for the server: those of the client's original request.
	State     json.RawMessage `json:",omitempty"`
	Responses json.RawMessage `json:",omitempty"`
}

// About returns the method and the target of the request, as the server knows them.
func (q *Request) About() string {
	return q.Message.Text(jsonrpc.Method) + "\x00" + q.Target().Name
}

// Target returns the target of the request, as the server knows it.
func (q *Request) Target() mcp.Target {
	target, _ := mcp.TargetOf(q.Server.Name, &q.Message)
	return target
}

// argumentsHash returns the hash of the arguments of a call.
func argumentsHash(m *jsonrpc.Message) []byte {
	sum := sha256.Sum256(m.Literal(jsonrpc.Arguments))
	return sum[:]
}

// An Elicitation asks the user of a client, while a request of the client is served.
type Elicitation struct {
	Confirmed bool // the user has confirmed the call

	q *Request
}

// newState returns the sealed state of the request, with the key of a request of the gateway; "" for
// a request of the server.
func (e *Elicitation) newState(key string, state, responses []byte) string {
	q := e.q
	s := questionState{
		Asked: key, Server: q.Server.ID, Account: q.Caller.Account(), About: q.About(), State: state, Responses: responses,
	}
	if e.Confirmed || key == ConfirmRequest {
		s.Confirmation, s.Arguments = q.gate.retained.Confirmations.add(q.Caller.Owner()), argumentsHash(&q.Message)
	}
	return q.gate.Shared.Sealer.Seal("question", jsonrpc.Encode(s))
}

// Ask returns the result that sends a request of the gateway to a modern client.
func (e *Elicitation) Ask(key string, params any) []byte {
	m := &e.q.Message
	state := e.newState(key, m.Literal(jsonrpc.RequestState), m.Literal(jsonrpc.InputResponses))
	return mcp.NewInputResult(key, mcp.Elicit(params), state)
}

// ConfirmedState returns the state of a server request as the client gets it. It contains that the
// call was confirmed, so the person is not asked again when the client goes on.
func (e *Elicitation) ConfirmedState(state []byte) string { return e.newState("", state, nil) }

// TakeResponse removes the response to a request of the gateway from a modern client's message, and
// restores the state and responses for the server. It returns the key of the request, "" for none,
// and the response.
func (e *Elicitation) TakeResponse() (key string, answer json.RawMessage, _ *jsonrpc.Failure) {
	q := e.q
	if mcp.EraOf(q.Version, &q.Message) != mcp.Modern || q.Message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return "", nil, nil
	}
	plain, ok := q.gate.Shared.Sealer.Open("question", q.Message.Text(jsonrpc.RequestState))
	if !ok {
		return "", nil, nil // the server's own state
	}
	var state questionState
	if json.Unmarshal(plain, &state) != nil || !state.belongsTo(q) {
		return "", nil, jsonrpc.InvalidParams("requestState: belongs to another request").WithStatusOK()
	}
	if state.Confirmation != "" {
		switch valid, err := q.gate.retained.Confirmations.take(q.HTTP.Context(), state.Confirmation); {
		case err != nil:
			return "", nil, jsonrpc.StoreUnavailable("the confirmation cannot be checked")
		case !valid:
			const why = "requestState: already used or expired; call the tool again without it"
			return "", nil, jsonrpc.InvalidParams(why).WithStatusOK()
		}
	}
	e.Confirmed = state.Confirmation != "" && state.Asked != ConfirmRequest
	if state.Asked != "" {
		var responses map[string]json.RawMessage
		_ = json.Unmarshal(q.Message.Literal(jsonrpc.InputResponses), &responses) // a missing response counts as declined
		answer = responses[state.Asked]
	}
	message, failure := withParam(q.Message, jsonrpc.RequestState, "requestState", state.State)
	if failure == nil && state.Asked != "" {
		message, failure = withParam(message, jsonrpc.InputResponses, "inputResponses", state.Responses)
	}
	if failure != nil {
		return "", nil, failure
	}
	q.Message = message
	return state.Asked, answer, nil
}

// belongsTo reports whether the state is that of a request.
func (s *questionState) belongsTo(q *Request) bool {
	return s.Server == q.Server.ID && s.Account == q.Caller.Account() && s.About == q.About() &&
		(s.Confirmation == "" || string(s.Arguments) == string(argumentsHash(&q.Message)))
}

// withParam returns a request with a new value of one of its params, or without it if value is nil.
func withParam(m jsonrpc.Message, f jsonrpc.Field, name string, value []byte) (jsonrpc.Message, *jsonrpc.Failure) {
	switch {
	case !m.Has(f):
		return m, nil
	case value != nil:
		return m.Edited(m.Replace(f, value))
	}
	edit, _ := jsonspan.Remove(m.Literal(jsonrpc.Params), name)
	return m.Edited(m.Within(jsonrpc.Params, edit))
}

// A rule may require that a person confirms each call of a tool. The client shows the request to
// its user before the server gets the call. At Single, sessions are the server's,
// so only modern clients can be asked.

// AwaitsConfirmation reports whether the call still needs a confirmation.
func (e *Elicitation) AwaitsConfirmation() bool {
	return e.q.Decision.Action == acl.Confirm && !e.Confirmed
}

// TakeConfirmation handles the response to the request for confirmation.
func (e *Elicitation) TakeConfirmation(answer json.RawMessage) *jsonrpc.Failure {
	q := e.q
	e.Confirmed = mcp.IsAccepted(answer)
	if !e.Confirmed {
		return q.DeniedBy(q.Decision, jsonrpc.ConfirmationDeclined(q.Server.Name), q.Target())
	}
	return nil
}

// A Form asks a person to fill in the members of an object. Its mode is form, the default.
type Form struct {
	Message string          `json:"message"`
	Schema  json.RawMessage `json:"requestedSchema"`
}

// Confirmation returns the form for a confirmation. Accepting it confirms the call, so it is empty.
func (e *Elicitation) Confirmation() Form {
	q := e.q
	target, arguments := q.Target(), q.Override.WithoutFixed(q.Message.Literal(jsonrpc.Arguments))
	return Form{
		Message: fmt.Sprintf("Do you want this tool to be called?\n\nServer: %s\nTool: %s\nArguments: %s",
			printable(target.Server), printable(target.Name), printableArguments(arguments)),
		Schema: json.RawMessage(`{"type":"object","properties":{}}`),
	}
}

// maxShown is how many characters of the arguments, and of each name, a person sees.
const maxShown = 2_000

// printableArguments returns the arguments of a call for a person: as JSON, shortened, and indented
// if there is room.
func printableArguments(arguments []byte) string {
	if arguments == nil {
		return "none"
	}
	if short, ok := (jsoncut.Cutter{MaxChars: maxShown}).Cut(arguments); ok {
		arguments = short
	}
	text := printable(string(arguments))
	var indented bytes.Buffer
	if len(text) < maxShown && json.Indent(&indented, []byte(text), "", "  ") == nil && indented.Len() <= maxShown {
		return indented.String()
	}
	return text
}

// printable returns a text for a person: on one line, shortened, and with escapes for invisible
// characters and those that change how others look.
func printable(text string) string {
	b := make([]byte, 0, min(len(text), maxShown))
	chars := 0
	for i, r := range text {
		if chars >= maxShown {
			return fmt.Sprintf("%s… (%d more characters)", b, utf8.RuneCountInString(text[i:]))
		}
		before := len(b)
		switch {
		case unicode.IsGraphic(r) && toolpin.IsPlainName(string(r)):
			b = utf8.AppendRune(b, r)
			chars++
			continue
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
		chars += len(b) - before
	}
	return string(b)
}

// Confirmations are the open confirmations of modern clients. Each can be used once, within
// streamable.ServerRequestTimeout. If one was evicted, the client must make the call again.
//
// With several replicas, any of them may get the response. Then keys contain their time and are
// sealed into a state, so only the used ones must be stored.
type Confirmations struct {
	space *replicas.Space // nil if there are no other replicas

	mu   sync.Mutex
	open *quota.Cache[string, struct{}] // empty with several replicas
}

var (
	confirmationsQuota = quota.NewKind("confirmations")
	confirmationLimits = quota.Limits{Entries: 10_000, OwnerEntries: 100}
)

// NewConfirmations returns an empty set of confirmations. space is nil if there are no other
// replicas.
func NewConfirmations(space *replicas.Space) *Confirmations {
	if space != nil {
		space = space.Store.Space("confirmations") // all gateways of a store can open each other's states
	}
	return &Confirmations{space: space, open: quota.NewCache[string, struct{}](
		confirmationsQuota, confirmationLimits, streamable.ServerRequestTimeout, nil)}
}

// add returns the key of a new confirmation.
func (c *Confirmations) add(owner string) (key string) {
	key = rand.Text()
	if c.space != nil {
		return strconv.FormatInt(time.Now().Unix(), 10) + "-" + key
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Put(owner, key, struct{}{}, int64(len(key)))
	return key
}

// take uses up a confirmation. It reports whether it was valid.
func (c *Confirmations) take(ctx context.Context, key string) (bool, error) {
	if c.space != nil {
		created, _, _ := strings.Cut(key, "-")
		seconds, err := strconv.ParseInt(created, 10, 64)
		if err != nil || time.Since(time.Unix(seconds, 0)) > streamable.ServerRequestTimeout {
			return false, nil
		}
		// It is stored for longer than the key is valid, because clocks differ.
		return c.space.Swap(ctx, key, "confirmed", replicas.Version{}, []byte{}, 2*streamable.ServerRequestTimeout)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Expire()
	_, ok := c.open.Remove(key)
	return ok, nil
}

// Close forgets all confirmations.
func (c *Confirmations) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Close()
}
