package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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

// A rule may want a person to confirm each call of a tool. The person at the client is asked before
// the server gets the call, see question.go. At Single, sessions are those of the server, so only
// clients of the modern era can be asked.

// confirm has the person at the client confirm the call, if a rule wants it. It reports whether the
// call can be made.
func (c *call) confirm() (ok bool, _ *jsonrpc.Failure) {
	switch {
	case !c.awaitsConfirmation():
		return true, nil
	case c.era == mcp.Modern:
		return false, c.answerAs(mcp.InputRequired, c.ask(confirmQuestion, c.confirmation()))
	}
	size := int64(len(c.message.Raw))
	if !c.g.holding.Take(c.client.owner, size) {
		return false, jsonrpc.TooManyQuestions(c.link.server)
	}
	defer c.g.holding.Give(c.client.owner, size)
	c.flight.held.Store(true)
	defer c.flight.held.Store(false)
	answer, failure := c.askInStream(confirmQuestion, c.confirmation())
	switch {
	case c.canceled():
		failure = c.answerFailure(jsonrpc.ConfirmationDeclined(c.link.server))
		c.outcome = OutcomeCanceled
		return false, failure
	case failure != nil && failure.Data.Symbol == "timeout":
		failure = c.deniedBy(c.decision, jsonrpc.ConfirmationTimeout(c.link.server), c.target())
	default: // an error that the client answers is no agreement
		failure = c.takeConfirmation(answer)
	}
	if failure != nil {
		return false, c.answerFailure(failure)
	}
	return true, nil
}

// confirmAtSingle does so at Single.
func (q *Request) confirmAtSingle() (ok bool, _ *jsonrpc.Failure) {
	asked, answer, failure := q.takeAnswer()
	if failure == nil && asked == confirmQuestion {
		failure = q.takeConfirmation(answer)
	}
	if failure != nil || !q.awaitsConfirmation() {
		return failure == nil, failure
	}
	result := q.g.info.sign(mcp.InputRequired, q.ask(confirmQuestion, q.confirmation()))
	out := streamable.NewWriter(q.w, q.r.Header)
	out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(q.message.Literal(jsonrpc.ID), result)})
	q.outcome = OutcomeOK
	return false, nil
}

// canBeAsked reports whether the sender of a request to one server can be asked.
func (q *Request) canBeAsked() bool {
	return q.caller.policy() != nil && q.to.Kind == Single && q.isModern() && q.message.IsRequest() &&
		mcp.CanFillForms(q.message.Literal(jsonrpc.ClientCapabilities))
}

// awaitsConfirmation reports whether the person is still to be asked.
func (q *Request) awaitsConfirmation() bool { return q.decision.Action == acl.Confirm && !q.confirmed }

// takeConfirmation takes what the person has answered.
func (q *Request) takeConfirmation(answer json.RawMessage) *jsonrpc.Failure {
	if q.confirmed = isAccepted(answer); !q.confirmed {
		return q.deniedBy(q.decision, jsonrpc.ConfirmationDeclined(q.server.Name), q.target())
	}
	return nil
}

// takeAnswers takes what a client of the modern era has answered to questions of the gateway.
func (c *call) takeAnswers() *jsonrpc.Failure {
	asked, answer, failure := c.takeAnswer()
	switch {
	case failure != nil:
		return failure
	case asked == confirmQuestion:
		return c.takeConfirmation(answer)
	case asked == loginQuestion && c.server.Login != nil: // as before a reload
		return c.awaitLogin(answer)
	}
	return nil
}

// withSealedState returns an answer of a server that asks for input with the state that the client gets.
// The client takes no other answer for one.
func (x *exchange) withSealedState(answer []byte) []byte {
	var m jsonrpc.Message
	if m.Read(answer) != nil {
		return answer
	}
	asks, is, err := mcp.ReadInput(&m)
	if !is || err != nil {
		return answer
	}
	result := m.Literal(jsonrpc.Result)
	if edit, ok := jsonspan.Remove(result, "requestState"); ok {
		result = jsonspan.Spliced(result, edit)
	}
	state := slices.Concat([]byte(`"requestState":`), jsonrpc.Quote(x.sealState(asks.State)))
	return jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.Result, jsonspan.Spliced(result, jsonspan.Insert(result, state))))
}

// An elicitation asks a person for the members of an object. It is in form mode, which is that of
// questions that name none.
type elicitation struct {
	Message string          `json:"message"`
	Schema  json.RawMessage `json:"requestedSchema"`
}

// confirmation returns what the person is asked. To accept is to agree, so there is nothing to fill in.
func (q *Request) confirmation() elicitation {
	target, arguments := q.target(), q.override.withoutFixed(q.message.Literal(jsonrpc.Arguments))
	return elicitation{
		Message: fmt.Sprintf("Do you want this tool to be called?\n\nServer: %s\nTool: %s\nArguments: %s",
			printable(target.Server), printable(target.Name), printableArguments(arguments)),
		Schema: json.RawMessage(`{"type":"object","properties":{}}`),
	}
}

// maxShown is how many characters of the arguments, and of each name, a person is shown.
const maxShown = 2_000

// printableArguments returns the arguments of a call as a person is shown them: as JSON, shortened where
// they are long, and on several lines if there is room.
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

// printable returns a text as a person is shown it: on one line, not too long, and with escapes for
// characters that cannot be seen or that change how others look.
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

// confirmations are those that clients of the modern era can still make use of: each once, within
// the time for an answer. One that had to make room for others is asked for again.
//
// Where there are replicas, any of them may get the answer. A key tells how old it is, and only the
// gateway can seal it into a state, so that all there is to keep is which have been used.
type confirmations struct {
	common *replicas.Space // nil if there are no other replicas

	mu   sync.Mutex
	open *quota.Cache[string, struct{}] // empty if there are
}

var (
	keptConfirmations  = quota.NewKind("confirmations")
	confirmationLimits = quota.Limits{Entries: 10_000, OwnerEntries: 100}
)

func newConfirmations(common *replicas.Space) *confirmations {
	if common != nil {
		common = common.Store.Space("confirmations") // all gateways of a store can open each other's states
	}
	return &confirmations{common: common, open: quota.NewCache[string, struct{}](
		keptConfirmations, confirmationLimits, streamable.QuestionTime, nil)}
}

// add returns the key of another confirmation.
func (c *confirmations) add(owner string) (key string) {
	key = rand.Text()
	if c.common != nil {
		return strconv.FormatInt(time.Now().Unix(), 10) + "-" + key
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Put(owner, key, struct{}{}, int64(len(key)))
	return key
}

// take uses a confirmation up. It reports whether there was one.
func (c *confirmations) take(ctx context.Context, key string) (bool, error) {
	if c.common != nil {
		begun, _, _ := strings.Cut(key, "-")
		at, err := strconv.ParseInt(begun, 10, 64)
		if err != nil || time.Since(time.Unix(at, 0)) > streamable.QuestionTime {
			return false, nil
		}
		// It is remembered for longer than the key is good, as clocks differ.
		return c.common.Swap(ctx, key, "confirmed", replicas.Version{}, []byte{}, 2*streamable.QuestionTime)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Expire()
	_, ok := c.open.Remove(key)
	return ok, nil
}

// close says that nothing more is kept.
func (c *confirmations) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Close()
}
