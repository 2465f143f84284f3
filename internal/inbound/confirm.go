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

// A rule may require that a person confirms each call of a tool. The client shows the request to
// its user before the server gets the call, see question.go. At Single, sessions are the server's,
// so only modern clients can be asked.

// AwaitsConfirmation reports whether the call still needs a confirmation.
func (q *Request) AwaitsConfirmation() bool { return q.Decision.Action == acl.Confirm && !q.Confirmed }

// TakeConfirmation handles the response to the request for confirmation.
func (q *Request) TakeConfirmation(answer json.RawMessage) *jsonrpc.Failure {
	q.Confirmed = mcp.IsAccepted(answer)
	if !q.Confirmed {
		return q.DeniedBy(q.Decision, jsonrpc.ConfirmationDeclined(q.Server.Name), q.Target())
	}
	return nil
}

// An Elicitation asks a person to fill in the members of an object. Its mode is form, the default.
type Elicitation struct {
	Message string          `json:"message"`
	Schema  json.RawMessage `json:"requestedSchema"`
}

// Confirmation returns the elicitation for a confirmation. Accepting it confirms the call, so the
// form is empty.
func (q *Request) Confirmation() Elicitation {
	target, arguments := q.Target(), q.Override.WithoutFixed(q.Message.Literal(jsonrpc.Arguments))
	return Elicitation{
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
