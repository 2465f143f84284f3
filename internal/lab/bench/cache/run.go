package main

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

// A run is what an agent and a model say to each other, as it stands in requests
// in OpenAI's chat format.
type run struct {
	opening []byte // tools, system prompt and question
	turns   []turn
	answer  []byte // ends the run, so no request has it
}

// A turn is a reply with calls, and what the tools answer to them.
type turn struct{ reply, results []byte }

// closing ends each request. All before it stands in the next one, too.
const closing = `]}`

// requests returns the requests of a run, each with the model's reply to it. A
// request is good until the next one.
func (r run) requests() iter.Seq2[[]byte, []byte] {
	return func(yield func(body, reply []byte) bool) {
		body := append([]byte(nil), r.opening...)
		for _, t := range r.turns {
			if !yield(append(body, closing...), t.reply) {
				return
			}
			body = append(append(body, t.reply...), t.results...)
		}
		yield(append(body, closing...), r.answer)
	}
}

// Sizes of what a run is made of, in characters; see the comment of the package.
const (
	openingChars  = 6000 * chat.CharsPerToken
	replyMedian   = 40 * chat.CharsPerToken
	replySpread   = 0.6
	argumentChars = 40 * chat.CharsPerToken
	maxResult     = 60_000
)

// A tool is one that the model may call, and how long its results are.
type tool struct {
	name           string
	percent        int // of all calls
	median, spread float64
}

var tools = []tool{
	{"read_file", 50, 1900, 1.35},
	{"shell", 25, 1900, 1.35},
	{"grep", 13, 1900, 1.35},
	{"edit_file", 12, 80, 0.5},
}

const (
	parallelPercent = 20 // of the turns have more than one call
	errorPercent    = 5  // of the results look like errors
)

// A writer makes up what is said.
type writer struct{ *rand.Rand }

func newRun(seed, number uint64, turns int) run {
	w := writer{rand.New(rand.NewPCG(seed, number))}
	r := run{opening: w.opening()}
	for range turns {
		r.turns = append(r.turns, w.turn())
	}
	r.answer = fmt.Appendf(nil, `,{"role":"assistant","content":"%s"}`, w.text(w.lognormal(replyMedian, replySpread)))
	return r
}

// opening has the tools before the messages: so providers put them together.
func (w writer) opening() []byte {
	b := []byte(`{"model":"sample","tools":[`)
	for i, t := range tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"type":"function","function":{"name":"%s","description":"%s"}}`, t.name, w.text(openingChars/8))
	}
	b = append(b, `],"messages":[{"role":"system","content":"`...)
	b = append(b, w.text(openingChars-len(b))...)
	return fmt.Appendf(b, `"},{"role":"user","content":"%s"}`, w.text(replyMedian))
}

func (w writer) turn() turn {
	calls := 1
	if w.IntN(100) < parallelPercent {
		calls = 2 + w.IntN(2)
	}
	t := turn{reply: fmt.Appendf(nil, `,{"role":"assistant","content":"%s","tool_calls":[`, w.text(w.lognormal(replyMedian, replySpread)))}
	for i := range calls {
		if i > 0 {
			t.reply = append(t.reply, ',')
		}
		tool, id := w.tool(), w.id()
		t.reply = fmt.Appendf(t.reply, `{"id":"%s","type":"function","function":{"name":"%s","arguments":"{\"query\":\"%s\"}"}}`,
			id, tool.name, strings.ReplaceAll(w.text(argumentChars), `\n`, " "))
		t.results = fmt.Appendf(t.results, `,{"role":"tool","tool_call_id":"%s","content":"%s"}`, id, w.result(tool))
	}
	t.reply = append(t.reply, `]}`...)
	return t
}

func (w writer) tool() tool {
	n := w.IntN(100)
	for _, t := range tools {
		if n -= t.percent; n < 0 {
			return t
		}
	}
	panic("percents do not make a hundred")
}

// id returns an id such as those of OpenAI.
func (w writer) id() string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	b := []byte("call_")
	for range 24 {
		b = append(b, digits[w.IntN(len(digits))])
	}
	return string(b)
}

func (w writer) result(t tool) string {
	const failure = `Error: exit status 1\n`
	size := min(w.lognormal(t.median, t.spread), maxResult)
	if w.IntN(100) < errorPercent {
		return failure + w.text(size-len(failure))
	}
	return w.text(size)
}

func (w writer) lognormal(median, spread float64) int {
	return int(median * math.Exp(spread*w.NormFloat64()))
}

// lines are what all texts are made of. None looks like an error, or has anything
// that JSON spells otherwise.
var lines = []string{
	"func (s *Server) Accept(ctx context.Context, conn net.Conn) (*Session, bool) {",
	"    session := s.sessions.Open(conn.RemoteAddr(), s.clock.Now())",
	"    for request := range session.Requests(ctx) {",
	"        s.queue <- job{session: session, request: request}",
	"    }",
	"    return session, true",
	"}",
	"2026-11-15T08:41:07.112Z INFO request method=GET path=/users/4117 status=200 duration_ms=12",
	"internal/orders/ledger.go:214: total += line.Amount.Times(line.Quantity)",
	"ok    example.com/shop/internal/orders  2.113s  coverage: 81.4% of statements",
	"The ledger adds up the lines of an order when it is closed, and not before.",
}

// text returns n characters, spelled as between the quotes of JSON.
func (w writer) text(n int) string {
	var b strings.Builder
	for i := w.IntN(len(lines)); n > 0; i++ {
		line := lines[i%len(lines)]
		b.WriteString(line[:min(n, len(line))])
		if n -= len(line); n > 0 {
			b.WriteString(`\n`)
			n--
		}
	}
	return b.String()
}
