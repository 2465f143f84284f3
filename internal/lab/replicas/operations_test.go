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
