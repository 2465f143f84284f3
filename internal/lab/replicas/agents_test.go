//go:build linux

package replicas

import (
	"context"
	"crypto/hmac"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
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

// Names of servers. Each replica has its own children, so agents use only tools of them whose
// results are the same everywhere. The server asker is a child per session, for the first agents.
var (
	allServers    = []string{"legacy", "modern", "child"}
	sharedServers = []string{"legacy", "modern"}
)

// An operation is one request of an agent, or several that belong together.
type operation struct {
	name string
	run  func(*agent, *record, *rand.Rand)

	// outageRecord matches the record of the operation while the store is unavailable, if it differs
	// from the usual one. All differences are listed here and in docs/scale.md.
	outageRecord string

	recovers bool // recovers originals
}

var operations = []operation{
	{name: "call", run: (*agent).doCall},
	{name: "list", run: (*agent).doList},
	{name: "mask and recover", run: (*agent).doRecover, outageRecord: unavailable, recovers: true},
	{name: "prune and recover", run: (*agent).doPrune, outageRecord: unavailable, recovers: true},
	{name: "subscribe", run: (*agent).doSubscribe, outageRecord: `(0 updates|no update)|` + unavailable},
	{name: "elicit", run: (*agent).doElicit, outageRecord: unavailable + `|` + errUnanswered.Error()},
	{name: "read", run: (*agent).doRead},
	{name: "progress", run: (*agent).doProgress},
	{name: "confirm", run: (*agent).doConfirm, outageRecord: unavailable + `|` + errUnanswered.Error()},
	{name: "recover again", run: (*agent).doRecoverAgain, outageRecord: unavailable, recovers: true},
	{name: "limit", run: (*agent).doLimit, outageRecord: `: 503\n.*` + unavailable},
	{name: "HMAC", run: (*agent).doHMAC, outageRecord: `: 503\n.*` + unavailable},
}

// unavailable is the error code for an unavailable store.
const unavailable = `store_unavailable`

func (a *agent) doCall(r *record, random *rand.Rand) {
	a.call(r, pick(random, allServers)+"__echo", `{"text":`+quote(text(random, 3))+`}`)
}

func (a *agent) doList(r *record, random *rand.Rand) {
	a.request(r, pick(random, []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"}), "{}")
}

func (a *agent) doRead(r *record, random *rand.Rand) {
	server := pick(random, sharedServers)
	a.request(r, "resources/read",
		`{"uri":`+quote(resourceAlias(server, server+":///"+pick(random, []string{"data", "other"})))+`}`)
	a.request(r, "prompts/get", fmt.Sprintf(`{"name":"%s__p","arguments":{"who":%q}}`, server, agentName(a.number)))
}

// doRecover gets a shortened result and recovers the original. Some texts occur repeatedly.
func (a *agent) doRecover(r *record, random *rand.Rand) {
	repeated := rand.New(rand.NewPCG(uint64(a.number), random.Uint64N(8)))
	got := a.call(r, pick(random, allServers)+"__echo", `{"text":`+quote(text(repeated, 40+int(repeated.Uint64N(400))))+
		`}`)
	handle := originalID.FindString(got.Raw)
	if handle == "" {
		r.WriteString("not shortened\n")
		return
	}
	a.handles = append(a.handles, handle)
	a.recover(r, handle, random)
}

// doRecoverAgain recovers an earlier original.
func (a *agent) doRecoverAgain(r *record, random *rand.Rand) {
	if len(a.handles) == 0 {
		a.call(r, "recover_observation", `{"id":"obs_unknown123"}`)
		return
	}
	a.recover(r, pick(random, last(a.handles, 10)), random)
}

func (a *agent) recover(r *record, handle string, random *rand.Rand) {
	switch random.IntN(3) {
	case 0:
		a.call(r, "recover_observation", fmt.Sprintf(`{"id":%q,"start_char":%d}`, handle, random.IntN(1000)))
	case 1:
		a.call(r, "recover_observation", fmt.Sprintf(`{"id":%q,"pattern":"timeout retry","context_lines":1}`, handle))
	default:
		a.request(r, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`)
	}
}

func (a *agent) doPrune(r *record, random *rand.Rand) {
	got := a.call(r, "pruner__prune_text", `{"text":`+quote(text(random, 200))+
		`,"source_type":"logs","goal_hint":"why does the upload time out",`+
		`"options":{"max_prune_ratio":0.9,"min_keep_lines":1,"timeout_ms":60000,"annotate_lines":false,`+
		`"include_markers":true}}`)
	id := originalID.FindString(got.Raw)
	if id == "" {
		r.WriteString("not pruned\n")
		return
	}
	first := 1 + random.IntN(190)
	a.call(r, "pruner__recover_text", fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":%d,"end_line":%d}],`+
		`"include_line_numbers":true}`, id, first, first+10))
}

// doSubscribe subscribes to its own resource and changes it.
func (a *agent) doSubscribe(r *record, random *rand.Rand) {
	server := pick(random, sharedServers)
	uri := fmt.Sprintf("%s:///of-%d-%x", server, a.number, random.Uint64())
	if a.client.Modern {
		a.listenOnce(r, server, uri)
		return
	}
	params := `{"uri":` + quote(resourceAlias(server, uri)) + `}`
	losses := a.stream.losses()
	a.request(r, "resources/subscribe", params)
	a.call(r, server+"__touch", `{"uri":`+quote(uri)+`}`)
	await.Within(min(testTimeout/4, a.limit), func() bool {
		return r.err != nil || a.stream.count(resourceAlias(server, uri)) > 0 || a.stream.losses() > losses
	})
	if a.stream.count(resourceAlias(server, uri)) == 0 && a.stream.losses() > losses {
		r.err = fmt.Errorf("%w: the stream ended", errUnanswered)
		return
	}
	a.request(r, "resources/unsubscribe", params)
	fmt.Fprintf(r, "%d updates\n", a.stream.count(resourceAlias(server, uri)))
}

// listenOnce is doSubscribe in the modern era.
func (a *agent) listenOnce(r *record, server, uri string) {
	x := a.client.Start(a.ctx, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+
		quote(resourceAlias(server, uri))+`]}}`)
	defer func() {
		x.Cancel()
		for range x.Messages {
		}
	}()
	isTouched := false
	timeout := time.After(min(testTimeout/4, a.limit))
	for {
		select {
		case m, ok := <-x.Messages:
			switch {
			case !ok:
				r.err = fmt.Errorf("%w: the stream ended: %d %v", errUnanswered, x.Status, x.Err)
				return
			case m.Method == "notifications/subscriptions/acknowledged" && !isTouched:
				fmt.Fprintf(r, "acknowledged %s\n", m.Params.Notifications)
				isTouched = true
				a.call(r, server+"__touch", `{"uri":`+quote(uri)+`}`)
			case m.Method == "notifications/resources/updated":
				fmt.Fprintf(r, "update of %s\n", m.Params.URI)
				return
			default:
				fmt.Fprintf(r, "received %s\n", m.Raw)
			}
		case <-timeout:
			r.WriteString("no update\n")
			return
		}
	}
}

// doElicit makes a server send requests to the client.
func (a *agent) doElicit(r *record, random *rand.Rand) {
	method, params := "roots/list", "{}"
	switch random.IntN(5) {
	case 3:
		server := pick(random, sharedServers)
		a.request(r, "resources/read", `{"uri":`+quote(resourceAlias(server, server+":///asking"))+`}`)
		return
	case 4:
		a.request(r, "prompts/get", fmt.Sprintf(`{"name":"%s__p","arguments":{"ask":"yes"}}`, pick(random, sharedServers)))
		return
	case 0:
		method, params = "elicitation/create", fmt.Sprintf(`{"message":"question %d","requestedSchema":{"type":"object",`+
			`"properties":{}}}`, random.IntN(1000))
	case 1:
		method, params = "sampling/createMessage", `{"messages":[],"maxTokens":10}`
	}
	servers := sharedServers
	if a.number < askerAgents {
		servers = []string{"legacy", "modern", "asker"}
	}
	a.call(r, pick(random, servers)+"__ask", fmt.Sprintf(`{"method":%q,"params":%s,"times":%d}`, method, params,
		1+random.IntN(3)))
}

func (a *agent) doProgress(r *record, random *rand.Rand) {
	a.request(r, "tools/call", fmt.Sprintf(`{"name":"%s__progress","arguments":{"steps":5},"_meta":{"progressToken":%d}}`,
		pick(random, allServers), random.IntN(1000)))
}

// doConfirm calls a tool that needs a confirmation.
func (a *agent) doConfirm(r *record, random *rand.Rand) {
	a.call(r, pick(random, sharedServers)+"__link", `{"answer":"`+pick(random, []string{"agree", "refuse"})+`"}`)
}

// doLimit calls a tool with a small rate limit per agent.
func (a *agent) doLimit(r *record, random *rand.Rand) {
	for range 3 {
		a.call(r, pick(random, sharedServers)+"__fail", fmt.Sprintf(`{"code":-32050,"message":"failed %d"}`,
			random.IntN(1000)))
	}
}

// doHMAC makes a signed request and replays it.
func (a *agent) doHMAC(r *record, random *rand.Rand) {
	client := &mcpclient.Client{Modern: true, Capabilities: "{}"}
	body, headers := client.Message(`"1"`, "tools/call", toolCall("legacy__echo", `{"text":`+quote(text(random, 1))+`}`))
	signature := sign(a.number, "/signed/mcp", body)
	for range 2 {
		got := post(a.base+"/signed/mcp", body, append(headers, signature)...)
		a.recordResponse(r, "signed", got)
	}
}

// sign returns the Authorization header of a request that is sent now.
func sign(number int, path, body string) string {
	timestamp, nonce := strconv.FormatInt(time.Now().Unix(), 10), cryptorand.Text()
	sum := sha256.Sum256([]byte(body))
	mac := hmac.New(sha256.New, []byte(agentSecret(number)))
	_, _ = io.WriteString(mac, strings.Join([]string{"MCP-HMAC-SHA256", timestamp, nonce, http.MethodPost, path,
		hex.EncodeToString(sum[:])}, "\n"))
	return fmt.Sprintf("Authorization: MCP-HMAC-SHA256 client=%s, timestamp=%s, nonce=%s, signature=%x",
		agentName(number), timestamp, nonce, mac.Sum(nil))
}

// post posts a message.
func post(url, body string, headers ...string) (got mcpclient.Response) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		got.Err = err
		return got
	}
	req.Header.Set("Content-Type", "application/json")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Transport: connections}).Do(req)
	if err != nil {
		got.Err = err
		return got
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	got.Status, got.Header, got.Body, got.Err = res.StatusCode, res.Header, string(text), err
	if json.Valid(text) {
		got.Message = mcpclient.Parse(string(text))
	}
	return got
}

// resourceAlias returns the URI at the gateway for a resource of a server.
func resourceAlias(server, uri string) string {
	return "proxy://resource/" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"server":%q,"uri":%q}`, server,
		uri))
}
