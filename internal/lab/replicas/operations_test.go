//go:build linux

package replicas

import (
	"crypto/hmac"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// Servers by what replicas have of them. Children are each replica's own, so only what they answer the same
// is asked of them. The asker is a child of each session, for the first agents.
var (
	allServers    = []string{"legacy", "modern", "child"}
	sharedServers = []string{"legacy", "modern"}
)

// An operation is what agents do, in one request or some that belong together.
type operation struct {
	name string
	run  func(*agent, *record, *rand.Rand)

	// away says what becomes of it while the store is unavailable, if not what becomes of it otherwise: an
	// expression for what is written down then. All that differs is here and in docs/scale.md.
	away string

	recovers bool // it asks for originals
}

var operations = []operation{
	{name: "call", run: (*agent).doCall},
	{name: "list", run: (*agent).doList},
	{name: "mask and recover", run: (*agent).doRecover, away: unavailable, recovers: true},
	{name: "prune and recover", run: (*agent).doPrune, away: unavailable, recovers: true},
	{name: "subscribe", run: (*agent).doSubscribe, away: `told (0 times|nothing)|` + unavailable},
	{name: "elicit", run: (*agent).doElicit, away: unavailable + `|` + errUnanswered.Error()},
	{name: "read", run: (*agent).doRead},
	{name: "progress", run: (*agent).doProgress},
	{name: "confirm", run: (*agent).doConfirm, away: unavailable + `|` + errUnanswered.Error()},
	{name: "recover again", run: (*agent).doRecoverAgain, away: unavailable, recovers: true},
	{name: "limit", run: (*agent).doLimit, away: `: 503\n.*` + unavailable},
	{name: "HMAC", run: (*agent).doHMAC, away: `: 503\n.*` + unavailable},
}

// unavailable is how errors say that the store is.
const unavailable = `store_unavailable`

func (a *agent) doCall(r *record, random *rand.Rand) {
	a.call(r, pick(random, allServers)+"__echo", `{"text":`+quote(text(random, 3))+`}`)
}

func (a *agent) doList(r *record, random *rand.Rand) {
	a.ask(r, pick(random, []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"}), "{}")
}

func (a *agent) doRead(r *record, random *rand.Rand) {
	server := pick(random, sharedServers)
	a.ask(r, "resources/read", `{"uri":`+quote(proxied(server, server+":///"+pick(random, []string{"data", "other"})))+`}`)
	a.ask(r, "prompts/get", fmt.Sprintf(`{"name":"%s__p","arguments":{"who":%q}}`, server, agentName(a.number)))
}

// doRecover has a result cut, and reads it back. Some texts come again.
func (a *agent) doRecover(r *record, random *rand.Rand) {
	again := rand.New(rand.NewPCG(uint64(a.number), random.Uint64N(8)))
	got := a.call(r, pick(random, allServers)+"__echo", `{"text":`+quote(text(again, 40+int(again.Uint64N(400))))+`}`)
	handle := originalID.FindString(got.Raw)
	if handle == "" {
		r.WriteString("nothing is cut\n")
		return
	}
	a.handles = append(a.handles, handle)
	a.recover(r, handle, random)
}

// doRecoverAgain reads back what was cut before.
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
		a.ask(r, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`)
	}
}

func (a *agent) doPrune(r *record, random *rand.Rand) {
	got := a.call(r, "pruner__prune_text", `{"text":`+quote(text(random, 200))+`,"source_type":"logs","goal_hint":"why does the upload time out",`+
		`"options":{"max_prune_ratio":0.9,"min_keep_lines":1,"timeout_ms":60000,"annotate_lines":false,"include_markers":true}}`)
	id := originalID.FindString(got.Raw)
	if id == "" {
		r.WriteString("nothing is pruned\n")
		return
	}
	from := 1 + random.IntN(190)
	a.call(r, "pruner__recover_text", fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":%d,"end_line":%d}],"include_line_numbers":true}`, id, from, from+10))
}

// doSubscribe subscribes to a resource of its own, and has it change.
func (a *agent) doSubscribe(r *record, random *rand.Rand) {
	server := pick(random, sharedServers)
	uri := fmt.Sprintf("%s:///of-%d-%x", server, a.number, random.Uint64())
	if a.client.Modern {
		a.listenOnce(r, server, uri)
		return
	}
	params := `{"uri":` + quote(proxied(server, uri)) + `}`
	losses := a.stream.losses()
	a.ask(r, "resources/subscribe", params)
	a.call(r, server+"__touch", `{"uri":`+quote(uri)+`}`)
	await.Within(min(patience/4, a.limit), func() bool {
		return r.err != nil || a.stream.count(proxied(server, uri)) > 0 || a.stream.losses() > losses
	})
	if a.stream.count(proxied(server, uri)) == 0 && a.stream.losses() > losses {
		r.err = fmt.Errorf("%w: the stream has ended", errUnanswered)
		return
	}
	a.ask(r, "resources/unsubscribe", params)
	fmt.Fprintf(r, "told %d times\n", a.stream.count(proxied(server, uri)))
}

// listenOnce is doSubscribe of the modern era.
func (a *agent) listenOnce(r *record, server, uri string) {
	x := a.client.Begin(a.ctx, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+quote(proxied(server, uri))+`]}}`)
	defer func() {
		x.HangUp()
		for range x.Messages {
		}
	}()
	isTouched := false
	timeout := time.After(min(patience/4, a.limit))
	for {
		select {
		case m, ok := <-x.Messages:
			switch {
			case !ok:
				r.err = fmt.Errorf("%w: the stream has ended: %d %v", errUnanswered, x.Status, x.Err)
				return
			case m.Method == "notifications/subscriptions/acknowledged" && !isTouched:
				fmt.Fprintf(r, "acknowledged %s\n", m.Params.Notifications)
				isTouched = true
				a.call(r, server+"__touch", `{"uri":`+quote(uri)+`}`)
			case m.Method == "notifications/resources/updated":
				fmt.Fprintf(r, "told of %s\n", m.Params.URI)
				return
			default:
				fmt.Fprintf(r, "told %s\n", m.Raw)
			}
		case <-timeout:
			r.WriteString("told nothing\n")
			return
		}
	}
}

// doElicit has a server ask.
func (a *agent) doElicit(r *record, random *rand.Rand) {
	method, params := "roots/list", "{}"
	switch random.IntN(5) {
	case 3:
		server := pick(random, sharedServers)
		a.ask(r, "resources/read", `{"uri":`+quote(proxied(server, server+":///asking"))+`}`)
		return
	case 4:
		a.ask(r, "prompts/get", fmt.Sprintf(`{"name":"%s__p","arguments":{"ask":"yes"}}`, pick(random, sharedServers)))
		return
	case 0:
		method, params = "elicitation/create", fmt.Sprintf(`{"message":"question %d","requestedSchema":{"type":"object","properties":{}}}`, random.IntN(1000))
	case 1:
		method, params = "sampling/createMessage", `{"messages":[],"maxTokens":10}`
	}
	servers := sharedServers
	if a.number < askers {
		servers = []string{"legacy", "modern", "asker"}
	}
	a.call(r, pick(random, servers)+"__ask", fmt.Sprintf(`{"method":%q,"params":%s,"times":%d}`, method, params, 1+random.IntN(3)))
}

func (a *agent) doProgress(r *record, random *rand.Rand) {
	a.ask(r, "tools/call", fmt.Sprintf(`{"name":"%s__progress","arguments":{"steps":5},"_meta":{"progressToken":%d}}`, pick(random, allServers), random.IntN(1000)))
}

// doConfirm calls a tool to which the person has to agree.
func (a *agent) doConfirm(r *record, random *rand.Rand) {
	a.call(r, pick(random, sharedServers)+"__link", `{"answer":"`+pick(random, []string{"agree", "refuse"})+`"}`)
}

// doLimit calls a tool that each agent can call a few times.
func (a *agent) doLimit(r *record, random *rand.Rand) {
	for range 3 {
		a.call(r, pick(random, sharedServers)+"__fail", fmt.Sprintf(`{"code":-32050,"message":"failed %d"}`, random.IntN(1000)))
	}
}

// doHMAC makes a signed request, and replays it.
func (a *agent) doHMAC(r *record, random *rand.Rand) {
	client := &mcpclient.Client{Modern: true, Capabilities: "{}"}
	body, headers := client.Message(`"1"`, "tools/call", toolCall("legacy__echo", `{"text":`+quote(text(random, 1))+`}`))
	signature := sign(a.number, "/signed/mcp", body)
	for range 2 {
		got := post(a.base+"/signed/mcp", body, append(headers, signature)...)
		a.note(r, "signed", got)
	}
}

// sign returns the header of a request that is sent now.
func sign(number int, path, body string) string {
	timestamp, nonce := strconv.FormatInt(time.Now().Unix(), 10), cryptorand.Text()
	sum := sha256.Sum256([]byte(body))
	mac := hmac.New(sha256.New, []byte(agentSecret(number)))
	_, _ = io.WriteString(mac, strings.Join([]string{"MCP-HMAC-SHA256", timestamp, nonce, http.MethodPost, path, hex.EncodeToString(sum[:])}, "\n"))
	return fmt.Sprintf("Authorization: MCP-HMAC-SHA256 client=%s, timestamp=%s, nonce=%s, signature=%x", agentName(number), timestamp, nonce, mac.Sum(nil))
}

// post posts a message.
func post(url, body string, headers ...string) (got mcpclient.Answer) {
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

// proxied is the URI that the gateway has for a resource of a server.
func proxied(server, uri string) string {
	return "proxy://resource/" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"server":%q,"uri":%q}`, server, uri))
}
