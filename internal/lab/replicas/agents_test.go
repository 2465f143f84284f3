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

// Number of agents, and how many of them take part in tests of faults.
var (
	maxAgents   = byLength(40, 500)
	faultAgents = byLength(12, 250)
)

// askerAgents is the number of agents that may use the server asker, a child per session at each
// replica.
const askerAgents = 20

// operationsOf returns the number of operations of an agent. Agents in tests of faults do more, to
// cover the time before, during and after a fault.
func operationsOf(i int) int {
	if i < faultAgents {
		return byLength(60, 200)
	}
	return byLength(20, 200)
}

func agentName(i int) string   { return fmt.Sprintf("agent%d", i) }
func agentToken(i int) string  { return fmt.Sprintf("token-of-agent-%d-0123456789abcdef", i) }
func agentSecret(i int) string { return fmt.Sprintf("secret-of-agent-%d-0123456789abcdef", i) }

// An agent is a client that does the same in every run and records the responses. Every second one
// uses the modern era.
type agent struct {
	number int
	client *mcpclient.Client
	base   string // URL of the site
	life   context.Context
	ctx    context.Context // context of the current operation
	limit  time.Duration   // timeout of an operation

	// ids replaces ids of originals by numbers in order of occurrence. The same content has the same
	// id at every replica.
	ids     map[string]string
	handles []string // ids of originals that can be recovered

	stream *updates // stream of the session, in the legacy era

	// rateUnknown reports whether the rest of its rate is unknown: a call that counts got no response,
	// or the store has lost its counts.
	rateUnknown bool
}

// connections are shared by all agents. The balancer chooses a replica for each request, not for
// each connection.
var connections = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}

// newClient returns a client with the token of an agent.
func newClient(i int, modern bool) *mcpclient.Client {
	return &mcpclient.Client{
		Modern: modern, HTTP: &http.Client{Transport: connections},
		Capabilities: `{"elicitation":{},"roots":{},"sampling":{}}`,
		Headers:      []string{"Authorization: Bearer " + agentToken(i)},
	}
}

// newAgent initializes an agent.
func newAgent(ctx context.Context, w *deployment, i int) (*agent, error) {
	a := &agent{number: i, base: w.url, life: ctx, ctx: ctx, limit: testTimeout, ids: map[string]string{},
		client: newClient(i, i%2 == 1)}
	a.client.URL = w.url + "/mcp"
	if a.client.Modern {
		return a, nil
	}
	if _, err := a.client.Initialize(ctx, mcpclient.Legacy); err != nil {
		return nil, err
	}
	a.stream = listen(ctx, a.client)
	return a, a.awaitStream()
}

// awaitStream waits until the stream of the session receives updates of both servers, which takes a
// moment after it opens.
func (a *agent) awaitStream() error {
	a.ctx = a.life
	for _, server := range sharedServers {
		uri := fmt.Sprintf("%s:///tune-%d", server, a.number)
		if err := a.subscribe("resources/subscribe", server, uri); err != nil {
			return err
		}
		received := await.Within(testTimeout, func() bool {
			a.touch(server, uri)
			return await.Within(200*time.Millisecond, func() bool { return a.stream.count(resourceAlias(server, uri)) > 0 })
		})
		if !received {
			return fmt.Errorf("%s: its stream receives no update of %s", agentName(a.number), uri)
		}
		if err := a.subscribe("resources/unsubscribe", server, uri); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) subscribe(method, server, uri string) error {
	got := a.client.Start(a.ctx, method, `{"uri":`+quote(resourceAlias(server, uri))+`}`).Finish()
	if got.Err != nil || got.Error != nil || got.Status != http.StatusOK {
		return fmt.Errorf("%s: %d %s, error %v", method, got.Status, got.Body, got.Err)
	}
	return nil
}

func (a *agent) touch(server, uri string) {
	a.client.Start(a.ctx, "tools/call", toolCall(server+"__touch", `{"uri":`+quote(uri)+`}`)).Finish()
}

// updates are the notifications on the stream of a session.
type updates struct {
	mu       sync.Mutex
	received map[string]int // number of updates by URI
	lost     int            // how often the stream ended
	ended    sync.WaitGroup
	close    context.CancelFunc
}

// listen opens the stream, and reopens it whenever it ends.
func listen(ctx context.Context, client *mcpclient.Client) *updates {
	ctx, cancel := context.WithCancel(ctx)
	u := &updates{received: map[string]int{}, close: cancel}
	u.ended.Go(func() {
		for ctx.Err() == nil {
			x := client.Listen(ctx)
			for m := range x.Messages {
				if m.Method == "notifications/resources/updated" {
					u.mu.Lock()
					u.received[m.Params.URI]++
					u.mu.Unlock()
				}
			}
			u.mu.Lock()
			u.lost++
			u.mu.Unlock()
			if ctx.Err() == nil {
				time.Sleep(20 * time.Millisecond) // as clients do before they retry
			}
		}
	})
	return u
}

func (u *updates) count(uri string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.received[uri]
}

// losses returns how often the stream ended.
func (u *updates) losses() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.lost
}

// close closes the stream of the agent.
func (a *agent) close() {
	if a.stream != nil {
		a.stream.close()
		a.stream.ended.Wait()
	}
}

// A record is what an agent records of one operation.
type record struct {
	strings.Builder
	err error // why there is no response
}

// errUnanswered is the error for a lost connection, or for a balancer that cannot reach a replica.
var errUnanswered = errors.New("request without response")

// recordResponse records a response, without what differs between runs: the id of the message and
// the ids of originals.
func (a *agent) recordResponse(r *record, what string, got mcpclient.Response) mcpclient.Response {
	if got.Err != nil || got.Status >= 502 && !strings.HasPrefix(got.Body, "{") && got.Raw == "" {
		r.err = errors.Join(r.err, fmt.Errorf("%w: %s: status %d %.200s, error %v", errUnanswered, what, got.Status,
			got.Body, got.Err))
		return got
	}
	fmt.Fprintf(r, "%s: %d", what, got.Status)
	for _, m := range got.Before {
		if m.Method != "notifications/tools/list_changed" {
			fmt.Fprintf(r, "\n\tbefore: %s %s", m.Method, a.normalize(string(m.Params.Raw)))
		}
	}
	switch {
	case got.Error != nil:
		fmt.Fprintf(r, "\n\terror: %d %s %s", got.Error.Code, a.normalize(got.Error.Message),
			a.normalize(string(got.Error.Data)))
	case got.Result != nil:
		fmt.Fprintf(r, "\n\tresult: %s", a.normalize(string(got.Result)))
	default:
		fmt.Fprintf(r, "\n\t%s", a.normalize(got.Body))
	}
	r.WriteString("\n")
	return got
}

var (
	originalID = regexp.MustCompile(`\b(obs|prn)_[A-Za-z0-9]+`)
	// Durations, and estimates that depend on the letters of an id.
	varying = regexp.MustCompile(`\b(elapsed_ms|retry_after_ms|tokens_est_after|tokens_saved_est|cost_estimated_usd)(\\?":)[0-9.e-]+`)
)

// normalize returns a text without what differs between runs.
func (a *agent) normalize(text string) string {
	text = varying.ReplaceAllString(text, `$1${2}0`)
	return originalID.ReplaceAllStringFunc(text, func(id string) string {
		if a.ids[id] == "" {
			a.ids[id] = fmt.Sprintf("%s-%d", id[:3], len(a.ids))
		}
		return a.ids[id]
	})
}

// request makes a request, responds to server requests, and records the response.
func (a *agent) request(r *record, method, params string) mcpclient.Response {
	got := a.client.Request(a.ctx, method, params, func(method string, params json.RawMessage) string {
		fmt.Fprintf(r, "server request: %s %s\n", method, params)
		return a.respond(method, string(params))
	})
	return a.recordResponse(r, method, got)
}

// respond returns the client's response to a server request.
func (a *agent) respond(method, params string) string {
	switch {
	case method == "roots/list":
		return fmt.Sprintf(`{"roots":[{"uri":"file:///home/%s"}]}`, agentName(a.number))
	case method == "sampling/createMessage":
		return fmt.Sprintf(`{"model":"m","role":"assistant","content":{"type":"text","text":"hi from %s"}}`,
			agentName(a.number))
	case strings.Contains(params, "refuse"):
		return `{"action":"decline"}`
	}
	return `{"action":"accept","content":{}}`
}

func (a *agent) call(r *record, tool, arguments string) mcpclient.Response {
	return a.request(r, "tools/call", toolCall(tool, arguments))
}

func toolCall(tool, arguments string) string {
	return `{"name":` + quote(tool) + `,"arguments":` + arguments + `}`
}

func quote(text string) string {
	quoted, _ := json.Marshal(text) // never fails for strings
	return string(quoted)
}

// text returns random lines, the same for the same seed.
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

// do runs an operation and returns its record.
func (a *agent) do(j int) (string, error) {
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithTimeout(a.life, a.limit)
	defer cancel()
	r := new(record)
	random := rand.New(rand.NewPCG(uint64(a.number), uint64(j)))
	operationOf(a.number, j).run(a, r, random)
	return r.String(), r.err
}

// operationOf returns operation j of an agent. In len(operations) operations in a row, each occurs
// once.
func operationOf(number, j int) operation { return operations[(number+j)%len(operations)] }

// pick returns a random item.
func pick[T any](random *rand.Rand, items []T) T { return items[random.IntN(len(items))] }

// last returns the last n items.
func last[T any](items []T, n int) []T { return items[max(0, len(items)-n):] }
