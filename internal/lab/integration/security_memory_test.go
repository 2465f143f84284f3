package integration

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A filling describes how one client, the thief, fills a store, and how to check the entries of
// another client, the victim.
type filling struct {
	fill  func(i int) // sends a request of the thief
	still func()      // checks that the victim still has its entries
	again func()      // lets the victim add an entry, like the thief
}

// fillings describe how to fill the stores of docs/reliability.md.
var fillings = []struct {
	name  string
	kinds []string
	more  int // MiB that one client may use in the store, in addition to memoryLimit
	times int // requests, of 10 MB if the store accepts that much: more than it may keep
	begin func(t *testing.T) filling
}{
	{"clients", []string{"clients", "audiences"}, 0, 16, fillClients},
	{"resting sessions", []string{"resting_sessions"}, 0, 16, fillRestingSessions},
	{"ended sessions", []string{"ended_sessions"}, 0, 60, fillEndedSessions},
	{"subscriptions", []string{"subscriptions"}, 8, 16, fillSubscriptions}, // 8 MiB for one owner
	{"streams", []string{"streams"}, 0, 16, fillStreams},
	{"sessions of HTTP+SSE", []string{"http_sse_sessions"}, 0, 16, fillHTTPSSESessions},
	{"held calls", []string{"held_calls"}, 32, 16, fillHeldCalls},                       // the limit for one owner
	{"tasks", []string{"tasks"}, 32, 16, fillTasks},                                     // 32 MiB in all
	{"lists", []string{"lists"}, 0, 16, fillLists},                                      // equal lists are kept once
	{"annotations", []string{"annotations"}, 16, 60, fillAnnotations},                   // 16 MiB for one owner
	{"observations", []string{"observations"}, 64, 16, fillObservations},                // max_bytes of recover
	{"pruned texts", []string{"pruned_texts", "prune_scores"}, 16, 48, fillPrunedTexts}, // store_limit
	{"shared children", []string{"stdio_sessions"}, 8, 16, fillSharedChildren},          // 8 MiB for one owner
	{"isolated children", []string{"stdio_sessions"}, 8, 16, fillIsolatedChildren},      // the same
	{"capabilities of children", []string{"stdio_groups"}, 8, 60, fillCapabilities},     // sessions, as above
	{"nonces", []string{"nonces"}, 0, 16, fillNonces},
	// half of max_buffered
	{"conversations", []string{"conversations"}, 32, 16, fillConversations},
	// max_bytes of recover
	{"tool results", []string{"tool_results"}, 64, 16, fillToolResults},
	// 16 MiB for one owner
	{"remembered conversations", []string{"remembered_conversations"}, 16, 16, fillRememberedConversations},
}

// filledElsewhere maps the stores that are not in fillings to the reason.
var filledElsewhere = map[string]string{
	"request_bodies":         "TestSecurityBytesInFlight",
	"unauthenticated_bodies": "TestSecurityBodiesOfStrangers",
	"unread_answers":         "TestUnreadAnswersAreLimited of internal/stdio",
	"background_requests":    "TestRequestsThatGoOnAreBounded of internal/gateway; each takes two seconds",
	"console_streams":        "TestStreamsAreBounded of modules/mcpconsole; a user has 8 entries without bytes",
	"calls":                  "TestCallsOfOthersAreNotPushedOut of internal/activity",
	"confirmations":          "TestConfirmationsAreBounded of internal/inbound; a client has 100 entries of a few bytes",
	"forwarded_calls":        "TestForwardedCallsAreBounded of internal/gateway; only replicas have them",
	"forwarded_messages":     "TestForwardedMessagesAreBounded of internal/gateway; only replicas have them",
	"focus_arguments":        "TestToolCache of internal/upstream; they belong to tools of servers",
	"rates":                  "a client has one entry",
	"store_writes":           "TestBehindIsBounded of internal/replicas; it needs a shared store",
	"templates":              "only operators add templates, by the admin API",
}

// One client sends requests for each store, together more than the limit. The gateway keeps little
// of them, and another client keeps its entries.
func TestSecurityMemoryOfEveryStore(t *testing.T) {
	isolate(t)
	t.Run("all stores are covered", func(t *testing.T) {
		serve(t, gateway("server far http://127.0.0.1:1"))
		known := slices.Collect(maps.Keys(filledElsewhere))
		for _, row := range fillings {
			known = append(known, row.kinds...)
		}
		slices.Sort(known)
		var kinds []string
		for sample := range metrics(t) {
			if found := regexp.MustCompile(`^kept_entries\{kind="(.*)"\}$`).FindStringSubmatch(sample); found != nil {
				kinds = append(kinds, found[1])
			}
		}
		slices.Sort(kinds)
		if known = slices.Compact(known); !slices.Equal(kinds, known) {
			t.Errorf("the stores are %v, want %v", kinds, known)
		}
	})
	for _, row := range fillings {
		t.Run(row.name, func(t *testing.T) {
			isolate(t)
			f := row.begin(t)
			passed := func(kind string) (n float64) { // entries that were added or refused
				all := metrics(t)
				for _, metric := range []string{"entries", "dropped_total", "refused_total"} {
					n += all["kept_"+metric+`{kind="`+kind+`"}`]
				}
				return n
			}
			passedBefore := map[string]float64{}
			for _, kind := range row.kinds {
				passedBefore[kind] = passed(kind)
			}
			before := memoryInUse(t)
			for i := range row.times {
				f.fill(i)
			}
			expectMemoryBelow(t, before+memoryLimit+row.more)
			t.Logf("%+d MiB", memoryInUse(t)-before)
			for _, kind := range row.kinds {
				if passed(kind) <= passedBefore[kind] {
					t.Errorf("no entry reached the store %s", kind)
				}
			}
			f.still()
			f.again()
		})
	}
}

// padding makes a request as large as the gateway accepts.
var padding = strings.Repeat("A", 10_000_000)

// newRemote serves a gateway with one server for both clients, and returns the URL of its aggregate
// endpoint.
func newRemote(t *testing.T, lines ...string) (remote *mcptest.Remote, endpoint string) {
	t.Helper()
	return newRemoteOver(t, "/mcp", func(remote *mcptest.Remote) http.Handler { return remote }, lines...)
}

// newRemoteOver is newRemote with a server at path, whose transport is a handler.
func newRemoteOver(t *testing.T, path string, transport func(*mcptest.Remote) http.Handler,
	lines ...string) (remote *mcptest.Remote, endpoint string) {
	t.Helper()
	remote = &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	handler := transport(remote)
	server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead))
		_, _ = body.ReadFrom(r.Body)
		// The server records requests without the padding.
		before, after, _ := bytes.Cut(body.Bytes(), []byte(padding[:1000]))
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(before), bytes.NewReader(bytes.TrimLeft(after, padding[:1]))))
		handler.ServeHTTP(w, r)
	}))
	lines = append(lines, "separator __", twoTokens(), "in_flight_limit 64MiB", "server far http://"+server+path)
	return remote, joinedAt(serve(t, gateway(lines...)))
}

// named returns capabilities that are different for each i, so that a modern client counts as a new
// one.
func named(i int) string {
	return fmt.Sprintf(`{"elicitation":{"form":{}},"experimental":{"%d":{}}}`, i)
}

func fillClients(t *testing.T) filling {
	remote, endpoint := newRemote(t, "max_sessions 20")
	victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
	echoes := func(c *testClient) {
		if got := c.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
			t.Errorf("another client got %s", got)
		}
	}
	echoes(victim)
	ofVictim := func() (n int) {
		for _, m := range remote.Seen("initialize") {
			if !strings.Contains(m.Body, "experimental") {
				n++
			}
		}
		return n
	}
	sessions := ofVictim()
	return filling{
		fill: func(i int) {
			if i%2 == 0 {
				c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"experimental":{"%d":{"pad":"%s"}}}`, i, padding),
					bearer(thiefToken))
				c.ask(t, "tools/call", callOf("far", "echo", `{}`))
			} else {
				c := newTestClient(t, endpoint, true, named(i), bearer(thiefToken))
				c.ask(t, "tools/call", callOf("far", "echo", `{"pad":"`+padding+`"}`))
			}
		},
		still: func() {
			echoes(victim)
			if ofVictim() != sessions {
				t.Errorf("the client had %d sessions with the server and now has started %d, want no new one", sessions, ofVictim())
			}
		},
		again: func() { echoes(newTestClient(t, endpoint, true, named(0), bearer(victimToken))) },
	}
}

func fillHTTPSSESessions(t *testing.T) filling {
	var server *mcptest.HTTPSSE
	_, endpoint := newRemoteOver(t, "/sse", func(remote *mcptest.Remote) http.Handler {
		server = &mcptest.HTTPSSE{Server: remote}
		return server
	})
	echoes := func(token string) *testClient {
		c := newTestClient(t, endpoint, false, fullCapabilities, bearer(token))
		if got := c.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
			t.Errorf("a client got %s", got)
		}
		return c
	}
	victim := echoes(victimToken)
	return filling{
		fill: func(int) { echoes(thiefToken).ask(t, "tools/call", callOf("far", "echo", `{"pad":"`+padding+`"}`)) },
		still: func() {
			_, before := server.Open()
			if got := victim.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
				t.Errorf("another client got %s", got)
			}
			if _, ever := server.Open(); ever != before {
				t.Error("the client lost its stream")
			}
		},
		again: func() { echoes(victimToken) },
	}
}

// subscribe subscribes a legacy client to a resource.
func subscribe(t *testing.T, c *testClient, uri, pad string) {
	t.Helper()
	if got := c.ask(t, "resources/subscribe", `{"uri":`+quote(proxiedURI("far", uri))+`,"pad":"`+pad+
		`"}`); got.answer.Error != nil {
		t.Errorf("resources/subscribe: got %.300s", got.answer.Raw)
	}
}

func fillRestingSessions(t *testing.T) filling {
	remote, endpoint := newRemote(t, "max_sessions 8")
	victim := newTestClient(t, endpoint, false, fullCapabilities, bearer(victimToken))
	subscribe(t, victim, "far:///data", "")
	return filling{
		fill: func(i int) {
			c := newTestClient(t, endpoint, false, fullCapabilities, bearer(thiefToken))
			subscribe(t, c, fmt.Sprintf("far:///%d%s", i, padding[:5_000]), padding)
		},
		still: func() {
			stream := victim.listen(t)
			await.Until(t, "the stream", func() bool { return len(remote.Seen("stream")) > 0 })
			victim.use(t, "far", "touch", `{"uri":"far:///data"}`)
			stream.awaitMessage(t, "notifications/resources/updated")
		},
		again: func() {
			subscribe(t, newTestClient(t, endpoint, false, fullCapabilities, bearer(victimToken)), "far:///data", "")
		},
	}
}

func fillEndedSessions(t *testing.T) filling {
	_, endpoint := newRemote(t)
	uses := func(session string, want int) {
		t.Helper()
		if got := post(t, endpoint, rpc("tools/list", `{}`), session, bearer(victimToken),
			acceptBoth); got.StatusCode != want {
			t.Errorf("got %d %.300s, want %d", got.StatusCode, got.body, want)
		}
	}
	end := func(session, token string) {
		t.Helper()
		if got := send(t, client, "DELETE", endpoint, "", session, bearer(token)); got.StatusCode != 204 {
			t.Errorf("DELETE: got %d %s, want 204", got.StatusCode, got.body)
		}
	}
	ended, live := sessionHeader(t, endpoint, bearer(victimToken)), sessionHeader(t, endpoint, bearer(victimToken))
	end(ended, victimToken)
	return filling{
		fill: func(int) {
			got := post(t, endpoint, strings.Replace(rpc("initialize", `{`+initParams+`}`), "{", `{"pad":"`+padding+`",`, 1),
				acceptBoth, bearer(thiefToken))
			end("Mcp-Session-Id: "+got.Header.Get("Mcp-Session-Id"), thiefToken)
		},
		still: func() {
			uses(ended, 404)
			uses(live, 200)
		},
		again: func() {
			end(live, victimToken)
			uses(live, 404)
		},
	}
}

func fillSubscriptions(t *testing.T) filling {
	_, endpoint := newRemote(t)
	wants := func(c *testClient, uris ...string) *exchange {
		return c.begin(t, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+strings.Join(uris, ",")+
			`]},"pad":"`+padding[:3_000_000]+`"}`)
	}
	data := quote(proxiedURI("far", "far:///data"))
	victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
	stream := wants(victim, data)
	stream.awaitMessage(t, "notifications/subscriptions/acknowledged")
	var uris []string
	for n := range 900 { // 7.5 KB each
		uris = append(uris, quote(proxiedURI("far", fmt.Sprintf("far:///%d/%s", n, padding[:5_500]))))
	}
	return filling{
		fill: func(i int) {
			wants(newTestClient(t, endpoint, true, named(i), bearer(thiefToken)), uris...).next(t)
		},
		still: func() {
			victim.use(t, "far", "touch", `{"uri":"far:///data"}`)
			stream.awaitMessage(t, "notifications/resources/updated")
		},
		again: func() {
			wants(newTestClient(t, endpoint, true, named(0), bearer(victimToken)), data).awaitMessage(t,
				"notifications/subscriptions/acknowledged")
		},
	}
}

func fillStreams(t *testing.T) filling {
	_, endpoint := newRemote(t)
	victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
	stream := victim.listenForChanges(t)
	return filling{
		fill: func(i int) {
			c := newTestClient(t, endpoint, true, named(i), bearer(thiefToken))
			c.begin(t, "subscriptions/listen", `{"notifications":{"toolsListChanged":true},"pad":"`+padding+`"}`).next(t)
		},
		still: func() {
			victim.use(t, "far", "change", `{}`)
			stream.awaitMessage(t, "notifications/tools/list_changed")
		},
		again: func() { newTestClient(t, endpoint, true, named(0), bearer(victimToken)).listenForChanges(t) },
	}
}

func fillHeldCalls(t *testing.T) filling {
	_, endpoint := newRemote(t)
	params := func(pad string) string {
		return callOf("far", "ask", `{"method":"elicitation/create","params":{"message":"m"},"pad":"`+pad+`"}`)
	}
	victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
	held := victim.ask(t, "tools/call", params("")).answer.Input(t)
	return filling{
		fill: func(i int) {
			newTestClient(t, endpoint, true, named(i), bearer(thiefToken)).ask(t, "tools/call", params(padding))
		},
		still: func() {
			got := victim.ask(t, "tools/call", retryParams(params(""), held, func(string) string { return formAnswer }))
			if got.answer.Result == nil || strings.Contains(got.answer.Raw, "input_required") {
				t.Errorf("the held call returned %s", got.answer.Raw)
			}
		},
		again: func() {
			newTestClient(t, endpoint, true, named(0), bearer(victimToken)).ask(t, "tools/call", params("")).answer.Input(t)
		},
	}
}

func fillTasks(t *testing.T) filling {
	var last atomic.Int64
	server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if bytes.Contains(body, []byte(`"tasks/get"`)) {
			_, _ = io.WriteString(w, result(`{"taskId":"x","status":"working"}`))
			return
		}
		_, _ = io.WriteString(w, result(fmt.Sprintf(`{"task":{"taskId":"t%d","status":"working"}}`, last.Add(1))))
	}))
	endpoint := rpcAt(serve(t, gateway(twoTokens(), "server far http://"+server+"/mcp")), "far")
	asks := func(token, method, params, want string) {
		t.Helper()
		if got := post(t, endpoint, rpc(method, params), bearer(token)); !strings.Contains(got.body, want) {
			t.Errorf("%s: got %d %.300s, want %s", method, got.StatusCode, got.body, want)
		}
	}
	asks(victimToken, "tools/call", `{"name":"dig","arguments":{},"task":{}}`, `"t1"`)
	return filling{
		fill: func(int) {
			asks(thiefToken, "tools/call", `{"name":"`+padding+`","arguments":{},"task":{}}`, `"taskId"`)
		},
		still: func() {
			asks(thiefToken, "tasks/get", `{"taskId":"t1"}`, "-32602")
			asks(victimToken, "tasks/get", `{"taskId":"t1"}`, "working")
		},
		again: func() {
			asks(victimToken, "tools/call", `{"name":"dig","arguments":{},"task":{}}`, `"taskId"`)
			asks(victimToken, "tasks/get", fmt.Sprintf(`{"taskId":"t%d"}`, last.Load()), "working")
		},
	}
}

func fillLists(t *testing.T) filling {
	server := newLenientServer(t)
	server.Resources = []string{"file:///a"}
	server.Replies = map[string]string{"tools/list": `"result":{"tools":[{"name":"echo",` +
		`"inputSchema":{"type":"object"},"description":"` + padding[:3_000_000] + `"}]}`}
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), server.line("far"))))
	lists := func(c *testClient, method, want string) {
		t.Helper()
		if got := c.ask(t, method, `{}`); !strings.Contains(got.answer.Raw, want) {
			t.Errorf("%s: got %.300s, want %s", method, got.answer.Raw, want)
		}
	}
	victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
	lists(victim, "resources/list", "proxy://resource/")
	return filling{
		fill: func(i int) {
			lists(newTestClient(t, endpoint, true, named(i), bearer(thiefToken)), "tools/list", "far__echo")
		},
		still: func() { lists(victim, "resources/list", "proxy://resource/") },
		again: func() { lists(victim, "tools/list", "far__echo") },
	}
}

func fillAnnotations(t *testing.T) filling {
	server := newLenientServer(t)
	for i := range 1_000 {
		server.Tools = append(server.Tools, fmt.Sprintf(`{"name":"t%d","annotations":{"readOnlyHint":true}}`, i))
	}
	rules := block("client *", "allow read_only")
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), rules, server.line("far"))))
	calls := func(token string, i int) {
		t.Helper()
		mode := fmt.Sprintf("X-Mode: %d", i) // servers may list other tools depending on it
		c := newTestClient(t, endpoint, true, fullCapabilities, bearer(token), mode)
		expectAllowed(t, "a call", c.ask(t, "tools/call", callOf("far", "t1", `{}`)))
	}
	calls(victimToken, 0)
	return filling{
		fill: func(i int) { calls(thiefToken, i) },
		still: func() {
			listed := server.Count("tools/list")
			calls(victimToken, 0)
			if server.Count("tools/list") != listed {
				t.Error("the annotations of the other client were dropped")
			}
		},
		again: func() { calls(victimToken, 1) },
	}
}

func fillObservations(t *testing.T) filling {
	server := newLenientServer(t, "read")
	server.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
		if r.Method != "tools/call" {
			return false
		}
		r.Answer(w, `"result":{"content":[{"type":"text","text":`+quote(r.Param("arguments")+padding[:8_000_000])+`}]}`)
		return true
	}
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), block("mask 4000 2000 2000", "recover on"),
		server.line("far"))))
	victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
	thief := newTestClient(t, endpoint, true, fullCapabilities, bearer(thiefToken))
	recovers := func(handle string) {
		t.Helper()
		if got := recoverObservation(t, victim, `{"id":"`+handle+`"}`); got.IsError || got.Meta.Total < 8_000_000 {
			t.Errorf("got %+v, want the original", got.Meta)
		}
	}
	handle := callMasked(t, victim, "far", "read", `{"mine":0}`)
	return filling{
		fill:  func(i int) { callMasked(t, thief, "far", "read", fmt.Sprintf(`{"n":%d}`, i)) },
		still: func() { recovers(handle) },
		again: func() { recovers(callMasked(t, victim, "far", "read", `{"mine":1}`)) },
	}
}

func fillPrunedTexts(t *testing.T) filling {
	_, reranker := newFakeReranker(t, "/cohere")
	endpoint := serve(t, basicAuthAccounts, pruner("store_limit 1000 16MiB", block("backend rerank", "url "+reranker))) +
		"/rpc"
	text := strings.Repeat(strings.Repeat("words ", 1_600)+"\n", 199) // at most 2,000,000 characters
	mine := prunable{text: numbered(300)}
	id := pruneText(t, endpoint, mine, basicAuthHeader("bob")).PruneID
	has := func(id string) {
		t.Helper()
		if isGone(t, endpoint, id, basicAuthHeader("bob")) {
			t.Error("the original is gone")
		}
	}
	return filling{
		fill: func(i int) {
			got := post(t, endpoint, prunable{text: fmt.Sprintln(i) + text}.request(), basicAuthHeader("alice"))
			if payload[pruned](t, got.body).Stats.Pruned == 0 {
				t.Errorf("got %d %.300s, want a pruned text", got.StatusCode, got.body)
			}
		},
		still: func() { has(id) },
		again: func() { has(pruneText(t, endpoint, prunable{text: numbered(310)}, basicAuthHeader("bob")).PruneID) },
	}
}

func fillSharedChildren(t *testing.T) filling { return fillChildren(t) }

func fillIsolatedChildren(t *testing.T) filling {
	return fillChildren(t, "isolation session", "max_sessions 4")
}

func fillChildren(t *testing.T, lines ...string) filling {
	endpoint := mcpAt(serve(t, gateway(twoTokens(), block(child("kid"), lines...))), "kid")
	session := sessionHeader(t, endpoint, bearer(victimToken))
	pid := pidAt(t, endpoint, session, bearer(victimToken))
	return filling{
		fill: func(int) {
			post(t, endpoint, strings.Replace(rpc("initialize", `{`+initParams+`}`), "{", `{"pad":"`+padding+`",`, 1),
				acceptBoth, bearer(thiefToken))
		},
		still: func() {
			if now := pidAt(t, endpoint, session, bearer(victimToken)); now != pid {
				t.Errorf("the child of the session was %d, is %d", pid, now)
			}
		},
		again: func() { pidAt(t, endpoint, sessionHeader(t, endpoint, bearer(victimToken)), bearer(victimToken)) },
	}
}

func fillCapabilities(t *testing.T) filling {
	journal := newJournal(t)
	endpoint := mcpAt(serve(t, gateway(twoTokens(), block(child("kid"), journal.env()))), "kid")
	pid := func(token, capabilities string) int {
		c := newTestClient(t, endpoint, false, capabilities, bearer(token))
		return pidAt(t, endpoint, c.Session, bearer(token))
	}
	mine := pid(victimToken, `{"sampling":{}}`)
	return filling{
		fill: func(i int) {
			pid(thiefToken, fmt.Sprintf(`{"sampling":{},"experimental":{"%d":{"pad":%q}}}`, i, padding[:15_000]))
		},
		still: func() {
			if now := pid(victimToken, `{"sampling":{}}`); now != mine {
				t.Errorf("the child of the client was %d, is %d", mine, now)
			}
			if started := len(journal.entries(t, "start")); started != 5 {
				t.Errorf("%d children were started, want 4 for one client and 1 for the other", started)
			}
		},
		again: func() {
			if other := pid(victimToken, `{"elicitation":{}}`); other == mine {
				t.Error("a client with other capabilities did not get its own child")
			}
		},
	}
}

func fillNonces(t *testing.T) filling {
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result(`{}`))
	}))
	endpoint := rpcAt(serve(t, gateway(hmacAuth, "server far http://"+server+"/mcp")), "far")
	sends := func(message, signed string, want int) {
		t.Helper()
		if got := post(t, endpoint, message, signed); got.StatusCode != want {
			t.Errorf("got %d %.300s, want %d", got.StatusCode, got.body, want)
		}
	}
	small, large := rpc("ping", `{}`), rpc("ping", `{"pad":"`+padding+`"}`)
	first := signedHeader("bob", bobSecret, "POST", pathOf(t, endpoint), small)
	sends(small, first, 200)
	return filling{
		fill:  func(int) { sends(large, signedHeader("alice", aliceSecret, "POST", pathOf(t, endpoint), large), 200) },
		still: func() { sends(small, first, 401) },
		again: func() { sends(small, signedHeader("bob", bobSecret, "POST", pathOf(t, endpoint), small), 200) },
	}
}

func fillToolResults(t *testing.T) filling {
	model := new(mcptest.Chat)
	url := serve(t, withModel(upstream(t, model), "recover on"))
	victim, thief := &agent{model: model, http: clientFrom(t, "127.0.0.2"), url: url}, &agent{model: model, http: client,
		url: url}
	recovers := func(id string) {
		t.Helper()
		if !victim.canRecover(t, id) {
			t.Error("the original is gone")
		}
	}
	id := victim.send(t, withOldResult("mine"+padding[:8_000_000]))
	return filling{
		fill:  func(i int) { thief.send(t, withOldResult(fmt.Sprint(i)+padding[:8_000_000])) },
		still: func() { recovers(id) },
		again: func() { recovers(victim.send(t, withOldResult("another"+padding[:8_000_000]))) },
	}
}

func fillConversations(t *testing.T) filling {
	arrived := make(chan struct{})
	model := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Waits") == "" {
			_, _ = fmt.Fprint(w, n)
			return
		}
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	url := serve(t, conversationMask("window_turns 1", "buffer_limit 16MiB", "max_buffered 64MiB"), proxy(model))
	asks := oneTurnLater(chatMessage("user", "hi"), callsMessage("call_1 read"), resultMessage("call_1", padding))
	victim := clientFrom(t, "127.0.0.2")
	isMasked := func() {
		t.Helper()
		if got := send(t, victim, "POST", url, asks, "Content-Type: application/json"); got.StatusCode != 200 ||
			len(got.body) > 4 {
			t.Errorf("got %d, the model received %s bytes, want a masked request", got.StatusCode, got.body)
		}
	}
	isMasked()
	return filling{
		fill: func(int) {
			req := request(t, t.Context(), "POST", url, asks, "Content-Type: application/json", "X-Waits: 1")
			go func() {
				if res, err := streamClient.Do(req); err == nil {
					res.Body.Close()
				}
			}()
			wait(t, arrived, "the request at the model")
		},
		still: isMasked,
		again: isMasked,
	}
}

// fillRememberedConversations: conversations with as many small results as fit into 2 MB need more
// memory than their own size.
func fillRememberedConversations(t *testing.T) filling {
	model := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	}))
	url := serve(t, conversationMask("window_turns 1"), proxy(model))
	victim := clientFrom(t, "127.0.0.2")
	isMasked := func() {
		t.Helper()
		asks := oneTurnLater(chatMessage("user", "hi"), callsMessage("call_1 read"),
			resultMessage("call_1", padding[:50_000]))
		if got := send(t, victim, "POST", url, asks, "Content-Type: application/json"); got.StatusCode != 200 ||
			len(got.body) > 4 {
			t.Errorf("got %d, the model received %s bytes, want a masked request", got.StatusCode, got.body)
		}
		if n := metrics(t)[`kept_entries{kind="remembered_conversations"}`]; n == 0 {
			t.Error("no conversation is remembered")
		}
	}
	isMasked()
	small := strings.Repeat(resultMessage("call_1", "")+",", 40_000) + resultMessage("call_1", "")
	return filling{
		fill: func(i int) {
			asks := oneTurnLater(chatMessage("user", fmt.Sprint(i)), callsMessage("call_1 read"), small)
			if got := send(t, http.DefaultClient, "POST", url, asks, "Content-Type: application/json"); got.StatusCode != 200 {
				t.Errorf("got %d", got.StatusCode)
			}
		},
		still: isMasked,
		again: isMasked,
	}
}

// memoryInUse returns the memory in use by the Caddy of the test, in MiB, after garbage collection.
func memoryInUse(t *testing.T) int {
	t.Helper()
	const profile = "/debug/pprof/heap?gc=1&debug=1"
	admin(t, "GET", profile, "") // sync.Pool releases memory at the second collection
	found := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindStringSubmatch(admin(t, "GET", profile, "").body)
	if found == nil {
		t.Fatal("the profile has no HeapAlloc")
	}
	n, _ := strconv.Atoi(found[1])
	return n >> 20
}

// memoryLimit limits the memory, in MiB, that one client or server may make the gateway keep.
const memoryLimit = 64

// However much a client sends, and with however many different capabilities, the gateway keeps
// little of it.
func TestSecurityMemoryOfClients(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), "server far http://"+upstream(t, remote)+"/mcp")))
	pad := strings.Repeat("A", 9_900_000)
	thief := newTestClient(t, endpoint, false, fullCapabilities, bearer(thiefToken))
	for _, tt := range []struct {
		name  string
		times int
		send  func(i int) reply
	}{
		{"large capabilities", 15, func(i int) reply {
			c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"experimental":{"%d":{"pad":"%s"}}}`, i, pad),
				bearer(thiefToken))
			return c.ask(t, "tools/list", `{}`)
		}},
		{"large requests with changing capabilities", 8, func(i int) reply {
			c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"experimental":{"%d":{}}}`, i), bearer(thiefToken))
			return c.ask(t, "tools/call", callOf("far", "echo", `{"pad":"`+pad+`"}`))
		}},
		{"subscriptions", 12, func(i int) reply {
			return thief.ask(t, "resources/subscribe", `{"uri":`+quote(proxiedURI("far", fmt.Sprint(pad[:7_000_000], i)))+`}`)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := memoryInUse(t)
			for i := range tt.times {
				tt.send(i)
			}
			expectMemoryBelow(t, before+memoryLimit)
			victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
			if got := victim.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
				t.Errorf("another client got %s", got)
			}
		})
	}
}

// A server with ever-changing lists and descriptions fills only its own share of memory. Other
// servers and clients are not affected.
func TestSecurityMemoryOfServers(t *testing.T) {
	isolate(t)
	var last atomic.Int64
	hostile := newLenientServer(t)
	hostile.Legacy = true
	hostile.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
		format, text := "", ""
		switch r.Method {
		case "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", last.Load()))
			format, text = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},`+
				`"serverInfo":{"name":"x","version":"1"},"instructions":"%d %s"}`, strings.Repeat("i", 15<<20)
		case "tools/list":
			format, text = `{"tools":[{"name":"x","inputSchema":{"type":"object"},"description":"%d %s"}]}`,
				strings.Repeat("t", 10<<20)
		case "prompts/list":
			format, text = `{"prompts":[{"name":"x","description":"%d %s"}]}`, strings.Repeat("p", 10<<20)
		case "resources/list":
			format, text = `{"resources":[{"uri":"x://x","name":"%d %s"}]}`, strings.Repeat("r", 20<<20) // over the limit
		default:
			return false
		}
		r.Answer(w, `"result":`+fmt.Sprintf(format, last.Add(1), text))
		return true
	}
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", hostile.line("hostile"), "server far http://"+
		upstream(t, remote)+"/mcp")))
	before := memoryInUse(t)
	for range 10 {
		c := newTestClient(t, endpoint, false, `{}`)
		for method, want := range map[string]string{"tools/list": "far__echo", "prompts/list": "far__p",
			"resources/list": "proxy://resource/eyJzZXJ2ZXIiOiJmYXIi"} {
			if got := c.ask(t, method, `{}`); !strings.Contains(got.answer.Raw, want) {
				t.Errorf("%s: %.300s", method, got.answer.Raw)
			}
		}
	}
	expectMemoryBelow(t, before+memoryLimit+8) // the limit for a server's lists
}

// expectMemoryBelow waits until Caddy has at most this many MiB in use. Memory that Caddy retains,
// it retains for longer than the test waits.
func expectMemoryBelow(t *testing.T, most int) {
	t.Helper()
	used := 0
	defer func() {
		if t.Failed() {
			t.Logf("Caddy has %d MiB in use, want at most %d", used, most)
		}
	}()
	await.Until(t, "memory to be given back", func() bool {
		used = memoryInUse(t)
		return used <= most
	})
}
