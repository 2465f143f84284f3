package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
)

// reportConversation compares masking old tool results with package chat and decoding
// the request, applying the same rules and encoding it again.
func reportConversation(ctx context.Context, chosen *regexp.Regexp, budget time.Duration) error {
	// This file mentions neither exceptions nor timeouts, so it is masked.
	source, err := goSource("encoding/json/scanner.go")
	if err != nil {
		return err
	}
	fast, sonicName := sonicJSON()
	type size struct {
		name  string
		bytes int
	}
	large := []size{{"2MB", 2_000_000}, {"20MB", 20_000_000}}
	titled := false
	for _, c := range []struct {
		name  string
		text  []string
		sizes []size
	}{
		{"log", logLines(), append([]size{{"200KB", 200_000}}, large...)},
		// A line of code is shorter than a placeholder, so a request of 200 KB is not masked.
		{"source", source, large},
	} {
		for _, size := range c.sizes {
			name := fmt.Sprintf("conversation/%s/%s", c.name, size.name)
			if !chosen.MatchString(name) {
				continue
			}
			if !titled {
				printTitle("chat", sonicName)
				titled = true
			}
			contestants := []contestant{conversationMasker(), reedit(decode, json.Marshal), reedit(fast.Unmarshal, fast.Marshal)}
			if err := reportCase(ctx, name, contestants, conversation(1000, size.bytes, c.text), budget); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// conversation returns a request with this number of turns and about size bytes, as an agent
// would send it. Each turn calls a tool and receives some lines.
func conversation(turns, size int, lines []string) []byte {
	body := []byte(`{"model":"sample","stream":true,"messages":[{"role":"system","content":"You are a careful ` +
		`engineer."},{"role":"user","content":"Find out why the build fails."}`)
	next := 0
	for turn := range turns {
		body = fmt.Appendf(body, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function",`+
			`"function":{"name":"read_file","arguments":"{\"path\":\"%d.go\"}"}}]}`, turn, turn)
		body = fmt.Appendf(body, `,{"role":"tool","tool_call_id":"call_%d","content":"`, turn)
		for first := true; first || len(body) < size/turns*(turn+1); first = false {
			body = append(body, jsonString(lines[next%len(lines)])...)
			next++
		}
		body = append(body, `"}`...)
	}
	return append(body, `]}`...)
}

// jsonString returns the JSON string literal of a text, without quotes, as most agents
// write it. Unlike encoding/json, they do not escape < and >.
func jsonString(text string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // strings do not fail
	return out.Bytes()[1 : out.Len()-2]
}

func logLines() []string {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("2026-11-15T08:%02d:%02d.%03dZ INFO  http request method=GET path=/users/%d "+
			"status=200 duration_ms=%d\n", i/60%60, i%60, i*7%1000, i*31%5000, i%90))
	}
	return lines
}

func conversationMasker() contestant {
	var (
		c   chat.Conversation
		out bytes.Buffer
	)
	policy := chat.Policy{WindowTurns: chat.DefaultWindowTurns, KeepErrors: chat.ErrorsOn}
	return func(body []byte) ([]byte, error) {
		if err := c.Parse(body); err != nil {
			return nil, err
		}
		out.Reset()
		err := jsonspan.Splice(&out, body, c.Mask(&policy).Edits)
		return out.Bytes(), err
	}
}

// reedit decodes, edits and encodes a request: the alternative to package chat.
func reedit(unmarshal func([]byte, any) error, marshal func(any) ([]byte, error)) contestant {
	return func(body []byte) ([]byte, error) {
		var request map[string]any
		if err := unmarshal(body, &request); err != nil {
			return nil, err
		}
		editConversation(request["messages"].([]any))
		return marshal(request)
	}
}

// editConversation masks the results of all but the last turns.
func editConversation(messages []any) {
	turns := 0
	turnOf, nameOf := map[string]int{}, map[string]string{}
	for _, m := range messages {
		calls, _ := m.(map[string]any)["tool_calls"].([]any)
		for _, c := range calls {
			call := c.(map[string]any)
			turnOf[call["id"].(string)] = turns
			nameOf[call["id"].(string)] = call["function"].(map[string]any)["name"].(string)
		}
		if len(calls) > 0 {
			turns++
		}
	}
	for _, m := range messages {
		message := m.(map[string]any)
		if message["role"] != "tool" {
			continue
		}
		id, content := message["tool_call_id"].(string), message["content"].(string)
		if turn, known := turnOf[id]; !known || turn >= turns-chat.DefaultWindowTurns || mentionsError(content) {
			continue
		}
		message["content"] = fmt.Sprintf("[Observation masquée: résultat d’outil ancien (tool_call_id=%s, outil=%s, "+
			"chars=%d)]",
			id, nameOf[id], utf8.RuneCountInString(content))
	}
}

func mentionsError(content string) bool {
	lower := strings.ToLower(content)
	for _, word := range []string{"traceback", "exception", "timeout", "connect_error", "connection refused"} {
		if strings.Contains(lower, word) {
			return true
		}
	}
	for line := range strings.Lines(lower) {
		if strings.HasPrefix(strings.TrimLeft(line, " \t"), "error") {
			return true
		}
	}
	return false
}

const (
	talkTurns    = 1000 // turns in the first request of a talk
	talkRequests = 50   // further requests of a talk, each one turn longer
)

// A talk is a growing conversation: the requests of one agent, each one turn longer than the last.
type talk struct {
	text       []byte // all turns, without the opening brace
	ends       []int  // end of each request in text
	maskedLens []int  // length of each request after masking
}

// newTalk returns a talk whose first request has about size bytes.
func newTalk(size int, lines []string) (*talk, error) {
	all := talkTurns + talkRequests
	t := &talk{text: conversation(all, size/talkTurns*all, lines)[1:]}
	for turn := talkTurns; turn <= all; turn++ {
		next := fmt.Appendf(nil, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d"`, turn)
		end := bytes.LastIndex(t.text, next)
		if end < 0 {
			end = len(t.text) - len(talkEnd)
		}
		t.ends = append(t.ends, end)
	}
	mask := conversationMasker()
	for i := range t.ends {
		short, err := mask(t.request(0, i))
		if err != nil {
			return nil, err
		}
		t.maskedLens = append(t.maskedLens, len(short))
	}
	return t, nil
}

const talkEnd = "]}"

// opening returns the start of a talk. Talks with different numbers share no prefix.
func opening(number int64) string { return fmt.Sprintf(`{"user":"%012d",`, number) }

// request returns request i of a talk.
func (t *talk) request(number int64, i int) []byte {
	return slices.Concat([]byte(opening(number)), t.text[:t.ends[i]], []byte(talkEnd))
}

// agents are clients of a model, each with its own talks.
type agents struct {
	url       string
	talk      *talk
	firstOnly bool // each request starts a new talk
	masked    bool // the model receives masked requests
	states    []agent
}

type agent struct {
	number int64
	next   int // request of the talk
}

func newAgents(url string, t *talk, kind string, masked bool, n int) *agents {
	return &agents{url + conversationPath, t, kind == "first_seen", masked, make([]agent, n)}
}

var talks atomic.Int64

func (a *agents) check(ctx context.Context) error { return a.call(ctx, 0) }

func (a *agents) load(ctx context.Context, connections int, d time.Duration) load.Result {
	return load.Loop(ctx, connections, d, a.call)
}

// call sends the next request of an agent.
func (a *agents) call(ctx context.Context, client int) error {
	agent := &a.states[client]
	if agent.number == 0 || a.firstOnly || agent.next == len(a.talk.ends) {
		agent.number, agent.next = talks.Add(1), 0
	}
	i := agent.next
	agent.next++
	head, end := opening(agent.number), a.talk.ends[i]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url,
		io.MultiReader(strings.NewReader(head), bytes.NewReader(a.talk.text[:end]), strings.NewReader(talkEnd)))
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(head) + end + len(talkEnd))
	want := modelResponse(int(req.ContentLength))
	if a.masked {
		want = modelResponse(a.talk.maskedLens[i])
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := load.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	got, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("the model returned %s, want %s", got, want)
	}
	return err
}

// A talkCase describes the talks of a case.
type talkCase struct {
	name  string
	size  int
	lines func() ([]string, error)
}

func (c talkCase) talk() (*talk, error) {
	lines, err := c.lines()
	if err != nil {
		return nil, err
	}
	return newTalk(c.size, lines)
}

var talkCases = func() (all []talkCase) {
	logs := func() ([]string, error) { return logLines(), nil }
	source := func() ([]string, error) { return goSource("encoding/json/scanner.go") }
	for _, size := range []int{2, 20} {
		all = append(all,
			talkCase{fmt.Sprintf("log/%dMB", size), size * 1_000_000, logs},
			talkCase{fmt.Sprintf("source/%dMB", size), size * 1_000_000, source})
	}
	return all
}()

// reportTalks compares tool_result_mask with reverse_proxy alone.
func reportTalks(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	model := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(modelResponse(int(n)))
	})}
	defer model.Close()
	go func() { _ = model.Serve(listener) }() // until model.Close
	r := talkReport{chosen: chosen, caddy: caddy, model: listener.Addr().String(), budget: budget}
	for _, c := range talkCases {
		if err := r.compare(ctx, c); err != nil {
			return err
		}
	}
	if r.titled {
		fmt.Printf("Conversations have %d to %d turns. In next_turn, each request continues the previous one of its "+
			"client,\n",
			talkTurns, talkTurns+talkRequests)
		fmt.Printf("%d times in a row, as an agent does. In first_seen, none does. The upstream returns how many bytes "+
			"it received.\n", talkRequests)
		fmt.Println("Client and upstream share the cores with caddy, so the work that masking saves them counts in its " +
			"favor.")
	}
	return r.reportMemory(ctx, talkCases[len(talkCases)-1])
}

// modelResponse returns the response of a model that received n bytes.
func modelResponse(n int) []byte { return fmt.Appendf(nil, `{"bytes":%d}`, n) }

type talkReport struct {
	chosen       *regexp.Regexp
	caddy, model string
	budget       time.Duration
	titled       bool
}

// talkKinds are requests that continue others, and requests that do not.
var talkKinds = []string{"next_turn", "first_seen"}

func (r *talkReport) compare(ctx context.Context, c talkCase) (err error) {
	var t *talk
	for _, clients := range []int{1, connections} {
		for _, kind := range talkKinds {
			name := fmt.Sprintf("proxy%s%s/%s/%d", conversationPath, c.name, kind, clients)
			if !r.chosen.MatchString(name) {
				continue
			}
			if !r.titled {
				printHeading("requests/s", "plain", "masked")
				r.titled = true
			}
			if t == nil {
				if t, err = c.talk(); err != nil {
					return err
				}
			}
			gw, err := startGateway(ctx, r.caddy, caddyfile, r.model)
			if err != nil {
				return err
			}
			contest := contest{name: name, connections: clients}
			for i := range contest.sites {
				contest.sites[i] = newAgents(gw.urls[i], t, kind, i == masked, clients)
			}
			err = contest.run(ctx, gw, r.budget/(2*rounds))
			gw.stop()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// reportMemory reports how much memory the concurrent requests of all clients take, with
// a new process for each case.
func (r *talkReport) reportMemory(ctx context.Context, c talkCase) (err error) {
	var t *talk
	for i, site := range []string{"plain", "masked"} {
		for _, kind := range talkKinds {
			name := fmt.Sprintf("proxy/conversation-memory/%s/%s", site, kind)
			if !r.chosen.MatchString(name) {
				continue
			}
			if t == nil {
				if t, err = c.talk(); err != nil {
					return err
				}
				printMemoryHeading()
			}
			gw, err := startGateway(ctx, r.caddy, caddyfile, r.model)
			if err != nil {
				return err
			}
			before := gw.peakMiB()
			calls := newAgents(gw.urls[i], t, kind, i == masked, connections).load(ctx, connections, r.budget)
			printMemory(name, before, gw.peakMiB())
			gw.stop()
			if calls.Err != nil {
				return fmt.Errorf("%s: %w", name, calls.Err)
			}
		}
	}
	if t != nil {
		fmt.Printf("%d concurrent requests have %.0f MiB.\n", connections, float64(connections*t.ends[0])/(1<<20))
	}
	return nil
}
