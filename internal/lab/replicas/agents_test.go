//go:build linux

package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// How many agents there are, and how many of them meet faults.
var (
	maxAgents = more(40, 500)
	meetFault = more(12, 250)
)

// askers is how many agents have a child of their own at each replica.
const askers = 20

// operationsOf returns how many operations an agent does. Those who meet faults do more, to be there before,
// while and after.
func operationsOf(i int) int {
	if i < meetFault {
		return more(60, 200)
	}
	return more(20, 200)
}

func agentName(i int) string   { return fmt.Sprintf("agent%d", i) }
func agentToken(i int) string  { return fmt.Sprintf("token-of-agent-%d-0123456789abcdef", i) }
func agentSecret(i int) string { return fmt.Sprintf("secret-of-agent-%d-0123456789abcdef", i) }

// An agent is a client that does the same whenever it is run, and writes down what it is answered. Every
// second one speaks the modern era.
type agent struct {
	number int
	client *mcpclient.Client
	base   string // URL of the site
	life   context.Context
	ctx    context.Context // of the operation
	limit  time.Duration   // that an operation may take

	// ids are those of originals, numbered as they first came: the same content has the same id,
	// whichever replica cut it.
	ids     map[string]string
	handles []string // of originals that can be asked for

	stream *updates // of the session, in the legacy era

	// anyRate says that what is left of its rate is not known: a call that took of it was not answered, or
	// the store has lost what was taken.
	anyRate bool
}

// connections are those of all agents. A balancer chooses for each request, whatever its connection.
var connections = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}

// newClient returns a client with the token of an agent.
func newClient(i int, modern bool) *mcpclient.Client {
	return &mcpclient.Client{
		Modern: modern, HTTP: &http.Client{Transport: connections},
		Capabilities: `{"elicitation":{},"roots":{},"sampling":{}}`,
		Headers:      []string{"Authorization: Bearer " + agentToken(i)},
	}
}

// newAgent introduces an agent.
func newAgent(ctx context.Context, w *world, i int) (*agent, error) {
	a := &agent{number: i, base: w.url, life: ctx, ctx: ctx, limit: patience, ids: map[string]string{}, client: newClient(i, i%2 == 1)}
	a.client.URL = w.url + "/mcp"
	if a.client.Modern {
		return a, nil
	}
	if _, err := a.client.Initialize(ctx, mcpclient.Legacy); err != nil {
		return nil, err
	}
	a.stream = listen(ctx, a.client)
	return a, a.tune()
}

// tune waits until the stream of the session hears of both servers: to open it takes as long as it takes.
func (a *agent) tune() error {
	a.ctx = a.life
	for _, server := range sharedServers {
		uri := fmt.Sprintf("%s:///tune-%d", server, a.number)
		if err := a.subscribe("resources/subscribe", server, uri); err != nil {
			return err
		}
		heard := await.Within(patience, func() bool {
			a.touch(server, uri)
			return await.Within(200*time.Millisecond, func() bool { return a.stream.count(proxied(server, uri)) > 0 })
		})
		if !heard {
			return fmt.Errorf("%s: its stream does not hear of %s", agentName(a.number), uri)
		}
		if err := a.subscribe("resources/unsubscribe", server, uri); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) subscribe(method, server, uri string) error {
	got := a.client.Begin(a.ctx, method, `{"uri":`+quote(proxied(server, uri))+`}`).Finish()
	if got.Err != nil || got.Error != nil || got.Status != http.StatusOK {
		return fmt.Errorf("%s: %d %s, error %v", method, got.Status, got.Body, got.Err)
	}
	return nil
}

func (a *agent) touch(server, uri string) {
	a.client.Begin(a.ctx, "tools/call", toolCall(server+"__touch", `{"uri":`+quote(uri)+`}`)).Finish()
}

// updates are what the stream of a session tells.
type updates struct {
	mu    sync.Mutex
	heard map[string]int // by URI
	lost  int            // how often the stream has ended
	ended sync.WaitGroup
	close context.CancelFunc
}

// listen opens the stream, and again whenever it ends.
func listen(ctx context.Context, client *mcpclient.Client) *updates {
	ctx, cancel := context.WithCancel(ctx)
	u := &updates{heard: map[string]int{}, close: cancel}
	u.ended.Go(func() {
		for ctx.Err() == nil {
			x := client.Listen(ctx)
			for m := range x.Messages {
				if m.Method == "notifications/resources/updated" {
					u.mu.Lock()
					u.heard[m.Params.URI]++
					u.mu.Unlock()
				}
			}
			u.mu.Lock()
			u.lost++
			u.mu.Unlock()
			if ctx.Err() == nil {
				time.Sleep(20 * time.Millisecond) // as clients wait before they try again
			}
		}
	})
	return u
}

func (u *updates) count(uri string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.heard[uri]
}

// losses returns how often the stream was lost.
func (u *updates) losses() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lost
}

// leave ends what the agent holds.
func (a *agent) leave() {
	if a.stream != nil {
		a.stream.close()
		a.stream.ended.Wait()
	}
}

// A record is what an agent has written down of one operation.
type record struct {
	strings.Builder
	err error // why there is no answer
}

// errUnanswered says that the connection was lost, or that the balancer reaches no replica.
var errUnanswered = errors.New("unanswered")

// note writes down an answer. What differs from run to run is left out: the id of the message, and names
// of originals.
func (a *agent) note(r *record, what string, got mcpclient.Answer) mcpclient.Answer {
	if got.Err != nil || got.Status >= 502 && !strings.HasPrefix(got.Body, "{") && got.Raw == "" {
		r.err = errors.Join(r.err, fmt.Errorf("%w: %s: status %d %.200s, error %v", errUnanswered, what, got.Status, got.Body, got.Err))
		return got
	}
	fmt.Fprintf(r, "%s: %d", what, got.Status)
	for _, m := range got.Before {
		if m.Method != "notifications/tools/list_changed" {
			fmt.Fprintf(r, "\n\tbefore: %s %s", m.Method, a.plain(string(m.Params.Raw)))
		}
	}
	switch {
	case got.Error != nil:
		fmt.Fprintf(r, "\n\terror: %d %s %s", got.Error.Code, a.plain(got.Error.Message), a.plain(string(got.Error.Data)))
	case got.Result != nil:
		fmt.Fprintf(r, "\n\tresult: %s", a.plain(string(got.Result)))
	default:
		fmt.Fprintf(r, "\n\t%s", a.plain(got.Body))
	}
	r.WriteString("\n")
	return got
}

var (
	originalID = regexp.MustCompile(`\b(obs|prn)_[A-Za-z0-9]+`)
	// How long something took, and what the letters of an id are worth.
	varying = regexp.MustCompile(`\b(elapsed_ms|retry_after_ms|tokens_est_after|tokens_saved_est|cost_estimated_usd)(\\?":)[0-9.e-]+`)
)

// plain returns a text without what differs from run to run.
func (a *agent) plain(text string) string {
	text = varying.ReplaceAllString(text, `$1${2}0`)
	return originalID.ReplaceAllStringFunc(text, func(id string) string {
		if a.ids[id] == "" {
			a.ids[id] = fmt.Sprintf("%s-%d", id[:3], len(a.ids))
		}
		return a.ids[id]
	})
}

// ask makes a request, answers what is asked, and writes down what comes back.
func (a *agent) ask(r *record, method, params string) mcpclient.Answer {
	got := a.client.Ask(a.ctx, method, params, func(method string, params json.RawMessage) string {
		fmt.Fprintf(r, "asked: %s %s\n", method, params)
		return a.answer(method, string(params))
	})
	return a.note(r, method, got)
}

// answer is what the person at the client says.
func (a *agent) answer(method, params string) string {
	switch {
	case method == "roots/list":
		return fmt.Sprintf(`{"roots":[{"uri":"file:///home/%s"}]}`, agentName(a.number))
	case method == "sampling/createMessage":
		return fmt.Sprintf(`{"model":"m","role":"assistant","content":{"type":"text","text":"hi from %s"}}`, agentName(a.number))
	case strings.Contains(params, "refuse"):
		return `{"action":"decline"}`
	}
	return `{"action":"accept","content":{}}`
}

func (a *agent) call(r *record, tool, arguments string) mcpclient.Answer {
	return a.ask(r, "tools/call", toolCall(tool, arguments))
}

func toolCall(tool, arguments string) string {
	return `{"name":` + quote(tool) + `,"arguments":` + arguments + `}`
}

func quote(text string) string {
	quoted, _ := json.Marshal(text) // of a string, which does not fail
	return string(quoted)
}

// text returns lines that the same seed gives again.
func text(random *rand.Rand, lines int) string {
	words := strings.Fields("alpha beta gamma delta error timeout retry upload server client cache token limit replica")
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "%d", i)
		for range 6 {
			b.WriteString(" " + words[random.IntN(len(words))])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// do carries out an operation, and returns what was written down.
func (a *agent) do(j int) (string, error) {
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithTimeout(a.life, a.limit)
	defer cancel()
	r := new(record)
	random := rand.New(rand.NewPCG(uint64(a.number), uint64(j)))
	operationOf(a.number, j).run(a, r, random)
	return r.String(), r.err
}

// operationOf returns the operation that an agent does as its j-th. Within as many as there are, it does
// each of them.
func operationOf(number, j int) operation { return operations[(number+j)%len(operations)] }

// pick returns one of the items.
func pick[T any](random *rand.Rand, items []T) T { return items[random.IntN(len(items))] }

// last returns the last items.
func last[T any](items []T, n int) []T { return items[max(0, len(items)-n):] }
