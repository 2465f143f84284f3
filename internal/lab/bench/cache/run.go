package main

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A run is the conversation of an agent with a model, as JSON of requests in OpenAI's chat
// format.
type run struct {
	opening []byte // tools, system prompt and question
	turns   []turn
	answer  []byte // last reply, not part of any request
}

// A turn is a reply with tool calls, and the results of the tools.
type turn struct{ reply, results []byte }

// closing ends each request. Everything before it is also in the next request.
const closing = `]}`

// requests returns the requests of a run, each with the model's reply. A request is valid
// until the next one.
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

// A kind describes a group of runs: see the package comment. Sizes are in characters.
type kind struct {
	name    string
	runs    int // number of runs
	turns   distribution
	opening int // tools, system prompt and question
	reply   distribution
	tools   []tool
	small   lognormal // exponent for result sizes: the higher, the smaller the results of a run
	long    lognormal // the same for runs of 40 turns and more
	several int       // percent of turns with more than one call
}

// A tool is a tool that the model may call.
type tool struct {
	name    string
	percent int // share of all calls
	result  distribution
	huge    int // results per 1,000 with 20,000 characters or more
	failed  int // percent of results that are errors, of 600 characters at most
	mention int // percent of results of 1,000 characters or more that mention an exception
}

// bulky returns a kind of runs that read much, the more the longer they are.
func bulky(turns int) kind {
	source := lognormal{median: 2070 * math.Pow(float64(turns)/60, 0.35), spread: 1.35, most: 60_000}
	return kind{
		name:    fmt.Sprintf("bulky, %d turns", turns),
		turns:   exactly(turns),
		opening: 5600 * chat.CharsPerToken,
		reply:   lognormal{median: 160, spread: 0.6, most: 4000},
		tools: []tool{
			{name: "read_file", percent: 50, result: source, failed: 5},
			{name: "shell", percent: 25, result: source, failed: 5},
			{name: "grep", percent: 13, result: source, failed: 5},
			{name: "edit_file", percent: 12, result: lognormal{median: 80, spread: 0.5, most: 1000}, failed: 5},
		},
		several: 20,
	}
}

// recorded are kinds of recorded runs: the quantiles are those of 359 runs of SWE-agent on
// issues of Java projects, and of 161 of mini-swe-agent on Terminal-Bench, all of at least 9 turns.
var recorded = []kind{
	{
		name:    "patches",
		turns:   quantiles{9, 10, 11, 13, 15, 18, 23, 29, 35, 49, 59},
		opening: 28_600,
		reply:   quantiles{22, 160, 200, 230, 270, 313, 380, 480, 630, 933, 4000},
		tools: []tool{
			{name: "shell", percent: 100, result: quantiles{74, 155, 175, 194, 219, 300, 693, 1703, 3690, 4610, 8000}, huge: 4,
				failed: 5, mention: 69},
		},
		small: lognormal{median: 0.75, spread: 0.7, most: 30},
		long:  lognormal{median: 2.6, spread: 1.2, most: 30},
	},
	{
		name:    "terminal",
		turns:   quantiles{9, 10, 11, 13, 16, 19, 21, 25, 28, 38, 58},
		opening: 5000,
		reply:   quantiles{12, 331, 480, 600, 700, 825, 1000, 1400, 2300, 4645, 8000},
		tools: []tool{
			{name: "shell", percent: 100, result: quantiles{1, 45, 45, 76, 117, 212, 337, 607, 1205, 3417, 10_000}, failed: 12,
				mention: 24},
		},
		small: lognormal{median: 1, spread: 0.4, most: 30},
		long:  lognormal{median: 1, spread: 0.4, most: 30},
	},
}

// A distribution draws random numbers. The higher the exponent small is above 1, the smaller
// they are, if the distribution supports that.
type distribution interface {
	draw(w writer, small float64) float64
}

type exactly int

func (n exactly) draw(writer, float64) float64 { return float64(n) }

type lognormal struct{ median, spread, most float64 }

func (l lognormal) draw(w writer, _ float64) float64 {
	return min(l.median*math.Exp(l.spread*w.NormFloat64()), l.most)
}

// quantiles are a distribution given by its minimum, nine deciles and maximum.
type quantiles [11]float64

func (q quantiles) draw(w writer, small float64) float64 {
	position := 10 * math.Pow(w.Float64(), small)
	i := int(position)
	return q[i] * math.Pow(q[i+1]/q[i], position-float64(i))
}

// A writer generates texts.
type writer struct{ *rand.Rand }

func newRun(seed, number uint64, k kind) run {
	w := writer{rand.New(rand.NewPCG(seed, number))}
	turns := int(k.turns.draw(w, 1))
	small := k.small.draw(w, 1)
	if turns >= 40 {
		small = k.long.draw(w, 1)
	}
	r := run{opening: w.opening(k)}
	phase := 1.0
	for range turns {
		if w.IntN(8) == 0 { // from here on, the agent reads more or less
			phase = lognormal{median: 1, spread: 0.4, most: 30}.draw(w, 1)
		}
		r.turns = append(r.turns, w.turn(k, small*phase))
	}
	r.answer = fmt.Appendf(nil, `,{"role":"assistant","content":"%s"}`, w.text(int(k.reply.draw(w, 1))))
	return r
}

// opening returns the start of all requests. Tools precede messages, as in providers' prompts.
func (w writer) opening(k kind) []byte {
	b := []byte(`{"model":"sample","tools":[`)
	for i, t := range k.tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"type":"function","function":{"name":"%s","description":"%s"}}`,
			t.name, w.text(k.opening/2/len(k.tools)))
	}
	b = append(b, `],"messages":[{"role":"system","content":"`...)
	b = append(b, w.text(k.opening-len(b)-100)...)
	return fmt.Appendf(b, `"},{"role":"user","content":"%s"}`, w.text(100))
}

const argumentChars = 160

func (w writer) turn(k kind, small float64) turn {
	calls := 1
	if w.IntN(100) < k.several {
		calls = 2 + w.IntN(2)
	}
	t := turn{reply: fmt.Appendf(nil, `,{"role":"assistant","content":"%s","tool_calls":[`,
		w.text(int(k.reply.draw(w, 1))))}
	for i := range calls {
		if i > 0 {
			t.reply = append(t.reply, ',')
		}
		tool, id := w.tool(k), w.id()
		t.reply = fmt.Appendf(t.reply, `{"id":"%s","type":"function","function":{"name":"%s",`+
			`"arguments":"{\"query\":\"%s\"}"}}`,
			id, tool.name, strings.ReplaceAll(w.text(argumentChars), `\n`, " "))
		t.results = fmt.Appendf(t.results, `,{"role":"tool","tool_call_id":"%s","content":"%s"}`, id, w.result(tool, small))
	}
	t.reply = append(t.reply, `]}`...)
	return t
}

func (w writer) tool(k kind) tool {
	n := w.IntN(100)
	for _, t := range k.tools {
		if n -= t.percent; n < 0 {
			return t
		}
	}
	panic("percentages do not add up to 100")
}

// id returns an id like those of OpenAI.
func (w writer) id() string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	b := []byte("call_")
	for range 24 {
		b = append(b, digits[w.IntN(len(digits))])
	}
	return string(b)
}

func (w writer) result(t tool, small float64) string {
	const (
		failure = `Error: exit status 1\n`
		mention = `    // An exception here would leave the session open.\n`
	)
	size := int(t.result.draw(w, small))
	if w.IntN(1000) < t.huge {
		size = int(20_000 / (1 - 0.95*w.Float64()))
	}
	switch {
	case w.IntN(100) < t.failed:
		return failure + w.text(min(size, 600))
	case size >= 1000 && w.IntN(100) < t.mention:
		before := w.IntN(size - len(mention))
		return w.text(before) + `\n` + mention + w.text(size-before-len(mention))
	}
	return w.text(size)
}

// lines are the lines of all texts. None looks like an error or needs escapes in JSON.
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

// text returns n characters, escaped for a JSON string.
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

// An outcome sums up the costs of all runs of a kind with a policy.
type outcome struct {
	bill, tokens     float64
	breaks           int     // how often a request changed what was sent before
	worst            float64 // highest bill of a run, relative to no masking
	raised2, raised5 int     // runs whose bill is more than 2 or 5 percent higher
}

func (o *outcome) add(a account, prices bill.Prices, unmasked float64) {
	cost := a.Cost(prices)
	ratio := cost / unmasked
	o.bill += cost
	o.tokens += float64(a.Prompt())
	o.breaks += a.breaks
	o.worst = max(o.worst, ratio)
	if ratio > 1.02 {
		o.raised2++
	}
	if ratio > 1.05 {
		o.raised5++
	}
}

// simulate returns the outcomes of each policy: without pauses, and with them.
func simulate(s settings, k kind, rows []row) ([][2]outcome, error) {
	var c chat.Conversation
	outcomes := make([][2]outcome, len(rows))
	for i := range k.runs {
		r := newRun(s.seed, uint64(i), k)
		for pauses, percent := range []int{0, s.pauses} {
			sessions := openSessions(rows, s.minimum)
			if err := play(&c, r, sessions, percent); err != nil {
				return nil, fmt.Errorf("run %d: %w", i, err)
			}
			unmasked := sessions[0].account.Cost(s.prices)
			for i := range sessions {
				outcomes[i][pauses].add(sessions[i].account, s.prices, unmasked)
			}
		}
	}
	return outcomes, nil
}

// An account is the usage that a provider bills for the requests of a policy.
type account struct {
	bill.Tokens
	breaks int
}

// A session is the state of a run with one policy.
type session struct {
	policy   *chat.Policy
	progress chat.Progress
	cache    bill.Cache
	before   int // length of the last request in bytes
	account  account
}

func openSessions(rows []row, minimum int) []session {
	sessions := make([]session, len(rows))
	for i := range sessions {
		sessions[i] = session{policy: &rows[i].policy, cache: bill.Cache{Minimum: minimum, TTL: bill.TTL}}
	}
	return sessions
}

// play sends every request of a run in all sessions. Some requests follow a pause.
func play(c *chat.Conversation, r run, sessions []session, pauses int) error {
	now := time.Unix(0, 0)
	chance := rand.New(rand.NewPCG(uint64(len(r.opening)), uint64(len(r.turns))))
	for body, reply := range r.requests() {
		now = now.Add(10 * time.Second)
		if chance.IntN(100) < pauses {
			now = now.Add(2 * bill.TTL)
		}
		if err := c.Parse(body); err != nil {
			return err
		}
		for i := range sessions {
			s := &sessions[i]
			if _, err := s.send(c, body, now); err != nil {
				return err
			}
			s.account.Output += len(reply) / chat.CharsPerToken
		}
	}
	return nil
}

// send masks a parsed request and sends it. It reports whether the request changes what was
// sent before.
func (s *session) send(c *chat.Conversation, body []byte, now time.Time) (broken bool, err error) {
	plan, progress := c.MaskAfter(s.policy, &s.progress, s.cache.Expired(now))
	s.progress = progress
	billed, shared := s.cache.Send(body, plan.Edits, now)
	broken = shared < s.before-len(closing)
	if broken != plan.Broken { // one of the two is wrong
		return false, fmt.Errorf("turn %d: prefix broken: %t, but the plan says %t", plan.Turns, broken, plan.Broken)
	}
	if broken {
		s.account.breaks++
	}
	s.account.Tokens.Add(billed)
	s.before = jsonspan.NewReader(body, plan.Edits).Len()
	return broken, nil
}
