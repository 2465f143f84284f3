package inbound

import (
	"bytes"
	"context"
	"crypto/rand"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A rule may want a person to confirm each call of a tool. The person at the client is asked before
// the server gets the call, see question.go. At Single, sessions are those of the server, so only
// clients of the modern era can be asked.

// AwaitsConfirmation reports whether the person is still to be asked.
func (q *Request) AwaitsConfirmation() bool { return q.Decision.Action == acl.Confirm && !q.Confirmed }

// TakeConfirmation takes what the person has answered.
func (q *Request) TakeConfirmation(answer json.RawMessage) *jsonrpc.Failure {
	if q.Confirmed = mcp.IsAccepted(answer); !q.Confirmed {
		return q.DeniedBy(q.Decision, jsonrpc.ConfirmationDeclined(q.Server.Name), q.Target())
	}
	return nil
}

// An Elicitation asks a person for the members of an object. It is in form mode, which is that of
// questions that name none.
type Elicitation struct {
	Message string          `json:"message"`
	Schema  json.RawMessage `json:"requestedSchema"`
}

// Confirmation returns what the person is asked. To accept is to agree, so there is nothing to fill in.
func (q *Request) Confirmation() Elicitation {
	target, arguments := q.Target(), q.Override.WithoutFixed(q.Message.Literal(jsonrpc.Arguments))
	return Elicitation{
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

// Confirmations are those that clients of the modern era can still make use of: each once, within
// the time for an answer. One that had to make room for others is asked for again.
//
// Where there are replicas, any of them may get the answer. A key tells how old it is, and only the
// gateway can seal it into a state, so that all there is to keep is which have been used.
type Confirmations struct {
	common *replicas.Space // nil if there are no other replicas

	mu   sync.Mutex
	open *quota.Cache[string, struct{}] // empty if there are
}

var (
	keptConfirmations  = quota.NewKind("confirmations")
	confirmationLimits = quota.Limits{Entries: 10_000, OwnerEntries: 100}
)

func NewConfirmations(common *replicas.Space) *Confirmations {
	if common != nil {
		common = common.Store.Space("confirmations") // all gateways of a store can open each other's states
	}
	return &Confirmations{common: common, open: quota.NewCache[string, struct{}](
		keptConfirmations, confirmationLimits, streamable.QuestionTime, nil)}
}

// add returns the key of another confirmation.
func (c *Confirmations) add(owner string) (key string) {
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
func (c *Confirmations) take(ctx context.Context, key string) (bool, error) {
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

// Close says that nothing more is kept.
func (c *Confirmations) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Close()
}
