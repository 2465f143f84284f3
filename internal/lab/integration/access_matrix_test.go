package integration

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// every selects one of this many calls of an access matrix, others for each client and endpoint, and
// one of this many files of TestFocusAgent.
var every = flag.Int("every", 4, "make one of this many calls of tests that make thousands")

// matrixRules are the rules of each client.
var matrixRules = []string{
	"",
	"allow read_only",
	"allow idempotent",
	"allow destructive",
	"allow open_world",
	"deny read_only",
	"deny idempotent",
	"deny destructive",
	"deny open_world",
	"confirm destructive",
	"allow read_only idempotent",
	"allow read_only\nallow idempotent:up::*",
	"allow read_only:up::*1 destructive:peer::*",
	"deny destructive\nconfirm open_world",
	"confirm read_only\nallow *",
	"deny destructive:peer::*\nallow *::t1* open_world:*::t2*",
	"allow up::t1*\ndeny read_only:*::*\ndefault allow",
	"deny tool:up::*7\nallow open_world:*::*\nconfirm idempotent\ndefault deny",
	"allow read_only\nredact s3cret", // lists of these clients take another path in the gateway
	"deny read_only\nredact s3cret",
}

// A matrixTool is a tool of a server with its annotations.
type matrixTool struct {
	server, name string
	definition   string
	annotations  []string
	alias        string // its name for clients
}

// listedName returns the tool as server::alias.
func (t matrixTool) listedName() string { return t.server + "::" + t.alias }

// matrixWords are the descriptions of tools.
var matrixWords = []string{"granite", "velvet", "harbor"}

// unannotated are the annotations that a tool without any has by default.
var unannotated = []string{"destructive", "open_world"}

// oddAnnotations are members of tool definitions that violate the specification. Ambiguous ones
// count as missing.
var oddAnnotations = []struct {
	members     string
	annotations []string
}{
	{`"annotations":null`, unannotated},
	{`"annotations":true`, unannotated},
	{`"annotations":"readOnlyHint"`, unannotated},
	{`"annotations":[{"readOnlyHint":true}]`, unannotated},
	{`"annotations":{"annotations":{"readOnlyHint":true}}`, unannotated},
	{`"annotations":{"readOnlyHint":"true","destructiveHint":"false"}`, unannotated},
	{`"annotations":{"readOnlyHint":1,"destructiveHint":0}`, unannotated},
	{`"annotations":{"readOnlyHint":[true],"destructiveHint":null}`, unannotated},
	{`"annotations":{"ReadOnlyHint":true,"DESTRUCTIVEHINT":false}`, unannotated},
	{`"annotations":{"read_only":true,"readOnly":true}`, unannotated},
	{`"annotations":{"readOnlyHint":true,"readOnlyHint":false}`, unannotated},
	{`"annotations":{"readOnlyHint":false,"readOnlyHint":true}`, unannotated},
	{`"annotations":{"readOnlyHint":true,"readOnlyHint":true}`, unannotated},
	{`"annotations":{"readOnlyHint":true,"readOnly\u0048int":false}`, unannotated},
	{`"annotations":{"readOnlyHint":true},"annotations":{"readOnlyHint":true}`, unannotated},
	{`"annotations":{"openWorldHint":false},"annot\u0061tions":{"readOnlyHint":true}`, unannotated},
	{`"annotations":null,"annotations":{"readOnlyHint":true}`, unannotated},
	{`"_meta":{"annotations":{"readOnlyHint":true}}`, unannotated},
	{`"readOnlyHint":true,"destructiveHint":false`, unannotated},
	{`"annotations":{"readOnly\u0048int":true,"openWorldHint":false}`, []string{"read_only"}},
	{`"annot\u0061tions" : { "title" : "x" , "readOnlyHint" : true }`, []string{"read_only", "open_world"}},
}

// newMatrixTool returns tool n, with these members in its definition.
func newMatrixTool(n int, server, members string, annotations []string) matrixTool {
	name := fmt.Sprintf("t%d", n)
	if members != "" {
		members = "," + members
	}
	definition := fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}%s}`,
		name, matrixWords[n%3], members)
	return matrixTool{server, name, definition, annotations, name}
}

// matrixTools returns the tools of two servers, with all combinations of annotations.
func matrixTools() (all []matrixTool) {
	add := func(server, members string, annotations []string) {
		all = append(all, newMatrixTool(len(all), server, members, annotations))
	}
	hints := []struct {
		name, hint string
		byDefault  bool
	}{
		{"read_only", "readOnlyHint", false}, {"destructive", "destructiveHint", true},
		{"idempotent", "idempotentHint", false}, {"open_world", "openWorldHint", true},
	}
	for n := range 3 * 3 * 3 * 3 {
		var members, annotations []string
		for _, h := range hints {
			value := n % 3 // absent, true, false
			n /= 3
			if value > 0 {
				members = append(members, fmt.Sprintf("%q:%t", h.hint, value == 1))
			}
			set := value == 1 || value == 0 && h.byDefault
			// a read-only tool is never destructive
			if set && !(h.name == "destructive" && slices.Contains(annotations, "read_only")) {
				annotations = append(annotations, h.name)
			}
		}
		add("up", `"annotations":{`+strings.Join(members, ",")+`}`, annotations)
	}
	for _, odd := range oddAnnotations {
		add("up", odd.members, odd.annotations)
	}
	add("up", "", unannotated)
	add("peer", "", unannotated)
	add("peer", `"annotations":{"readOnlyHint":true}`, []string{"read_only", "open_world"})
	add("peer", `"annotations":{"destructiveHint":false,"idempotentHint":true}`, []string{"idempotent", "open_world"})
	return all
}

// A ruling is the decision of a list of rules, with the rule that decided.
type ruling struct {
	action, rule string
	index        int // position of the rule
}

// decide returns the decision of rules on a call as documented: the first matching rule decides. It
// does not use any code of the gateway.
func decide(rules, client string, tool matrixTool, arguments matrixArguments) ruling {
	byDefault, index := "allow", 0
	for line := range strings.Lines(rules) {
		if strings.HasPrefix(line, "allow ") {
			byDefault = "deny"
		}
	}
	for line := range strings.Lines(rules) {
		selection, condition, conditional := strings.Cut(strings.TrimSpace(line), "when ")
		words := strings.Fields(selection)
		switch words[0] {
		case "default":
			byDefault = words[1]
			continue
		case "redact":
			continue
		}
		if index++; len(words) == 1 {
			words = append(words, "*")
		}
		for _, pattern := range words[1:] {
			if !tool.isSelectedBy(pattern) {
				continue
			}
			if !conditional {
				return ruling{words[0], words[0] + " " + pattern, index}
			}
			rule := strings.TrimSuffix(words[0]+" "+pattern, " *") + " when " + condition
			switch evaluate(condition, client, tool, arguments) {
			case isTrue:
				return ruling{words[0], rule, index}
			case isError:
				return ruling{"deny", rule, index}
			}
		}
	}
	if index == 0 {
		return ruling{byDefault, "no rules", 0}
	}
	return ruling{byDefault, "default " + byDefault, index + 1}
}

// isSelectedBy reports whether the pattern of a rule selects the tool.
func (t matrixTool) isSelectedBy(pattern string) bool {
	annotation, names, ok := strings.Cut(pattern, ":")
	switch {
	case strings.HasPrefix(names, ":") || pattern == "*": // server::tool
		annotation, names = "tool", pattern
	case !ok:
		names = "*"
	}
	named, _ := path.Match(names, t.server+"::"+t.name)
	return named && (annotation == "tool" || slices.Contains(t.annotations, annotation))
}

// explainTool returns the decision of rules on a tool before its arguments are known, and whether
// it depends on them. It is the first decision, in order of the rules, that lets any plain
// arguments through.
func explainTool(rules, client string, tool matrixTool) (first ruling, depends bool) {
	found := map[ruling]bool{}
	for _, arguments := range plainArguments {
		found[decide(rules, client, tool, arguments)] = true
	}
	for d := range found {
		switch callable := d.action != "deny"; {
		case first.action == "", callable && first.action == "deny":
			first = d
		case callable && d.index < first.index, !callable && first.action == "deny" && d.index > first.index:
			first = d
		}
	}
	if first.action == "deny" {
		return first, false
	}
	before := slices.DeleteFunc(slices.Collect(maps.Keys(found)), func(d ruling) bool { return d.index >= first.index })
	slices.SortFunc(before, func(a, b ruling) int { return cmp.Compare(b.index, a.index) })
	for _, d := range before {
		first.rule = d.rule + ", else " + first.rule
	}
	return first, len(found) > 1
}

// isListed reports whether a client may call a tool with some plain arguments.
func isListed(rules, client string, tool matrixTool, askable bool) bool {
	return slices.ContainsFunc(plainArguments, func(arguments matrixArguments) bool {
		action := decide(rules, client, tool, arguments).action
		return action == "allow" || action == "confirm" && askable
	})
}

// A matrixUser is the person at a client.
type matrixUser struct {
	answer  string // to confirmations; "" if the client cannot ask
	prompts int    // number of confirmations asked for
}

// A matrixClient is a client with its user.
type matrixClient struct {
	*testClient
	*matrixUser
}

// call calls a tool, and answers confirmations.
func (c matrixClient) call(t *testing.T, params string) mcpclient.Message {
	t.Helper()
	got := c.Request(t.Context(), "tools/call", params, func(method string, _ json.RawMessage) string {
		if c.prompts++; method != "elicitation/create" {
			t.Errorf("got server request %s", method)
		}
		return `{"action":` + quote(c.answer) + `}`
	})
	if got.Err != nil {
		t.Errorf("%s: %v", params, got.Err)
	}
	return got.Message
}

// A matrixEndpoint lists tools as server::tool and calls them, in one of the ways that clients
// have.
type matrixEndpoint struct {
	name string
	*matrixUser
	list func(t *testing.T) []string
	call func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message
}

// toolParams returns the params of a tools/call.
func toolParams(name, arguments string) string {
	return `{"name":` + quote(name) + `,"arguments":` + arguments + `}`
}

// joinedEndpoint uses the endpoint of all servers.
func joinedEndpoint(name string, c matrixClient) matrixEndpoint {
	return matrixEndpoint{name, c.matrixUser, func(t *testing.T) []string { return toolNames(t, c.testClient) },
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return c.call(t, toolParams(tool.listedName(), arguments))
		}}
}

// discoveryEndpoint uses the tools that search and call others.
func discoveryEndpoint(name string, c matrixClient, all []matrixTool) matrixEndpoint {
	list := func(t *testing.T) (names []string) {
		t.Helper()
		for _, word := range matrixWords { // each word finds at most 50 tools
			query := fmt.Sprintf(`{"query":%q,"limit":50}`, word)
			for line := range strings.Lines(c.ask(t, "tools/call", toolParams("search_tools", query)).answer.Text()) {
				if found, _, ok := strings.Cut(line, ": "); ok {
					names = append(names, found)
				}
			}
		}
		for _, tool := range all {
			shown := tool.listedName()
			got := c.ask(t, "tools/call", toolParams("describe_tool", `{"name":`+quote(shown)+`}`)).answer
			if described := strings.HasPrefix(got.Text(), "{"); described != slices.Contains(names, shown) {
				t.Errorf("%s: described: %t, found: %t", shown, described, !described)
			}
		}
		return names
	}
	return matrixEndpoint{name, c.matrixUser, list,
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return c.call(t, callToolParams(tool.listedName(), arguments))
		}}
}

// serverEndpoint uses one endpoint per server.
func serverEndpoint(name string, p *matrixUser, newClient func(server string) *testClient) matrixEndpoint {
	clients := map[string]matrixClient{"up": {newClient("up"), p}, "peer": {newClient("peer"), p}}
	list := func(t *testing.T) (names []string) {
		t.Helper()
		for server, c := range clients {
			for _, tool := range toolNames(t, c.testClient) {
				names = append(names, server+"::"+tool)
			}
		}
		return names
	}
	return matrixEndpoint{name, p, list,
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return clients[tool.server].call(t, toolParams(tool.alias, arguments))
		}}
}

// stdioEndpoint uses `caddy mcp-stdio`, with a client that cannot ask its user.
func stdioEndpoint(t *testing.T, p *stdioProcess) matrixEndpoint {
	t.Helper()
	ask := func(t *testing.T, method, params string) mcpclient.Message {
		t.Helper()
		p.send(t, rpc(method, params))
		return p.receive(t, "")
	}
	p.send(t, stdioHandshake)
	p.receive(t, "")
	list := func(t *testing.T) []string {
		t.Helper()
		return listedIn(t, ask(t, "tools/list", `{}`).Raw, "tools", "name")
	}
	return matrixEndpoint{"mcp-stdio", &matrixUser{}, list,
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return ask(t, "tools/call", toolParams(tool.listedName(), arguments))
		}}
}

// An accessMatrix has clients with different rules. They list and call tools at all endpoints. A
// tool is listed if and only if a call with some arguments reaches the server.
type accessMatrix struct {
	rules     []string
	tools     []matrixTool
	overrides []string // lines of the server "up"
	arguments []matrixArguments
	answers   []string // of the users; "" for a client that cannot ask

	joined, discovery string // URLs
	config            string // path of the Caddyfile

	mu      sync.Mutex
	rows    int
	reaches map[string]bool // rows whose calls may reach a server, and whether they must
}

func (*accessMatrix) token(i int) string { return fmt.Sprintf("matrix-%04d-AbCdEf0123456789", i) }

// run returns the number of calls.
func (m *accessMatrix) run(t *testing.T) (rows int) {
	servers := map[string]*remoteServer{"up": newLenientServer(t), "peer": newLenientServer(t)}
	for _, tool := range m.tools {
		servers[tool.server].Tools = append(servers[tool.server].Tools, tool.definition)
	}
	lines := []string{
		block(servers["up"].line("up"), append(m.overrides, "request_header X-Added yes")...), servers["peer"].line("peer"),
	}
	for i, rules := range m.rules {
		lines = append(lines, block("client c"+strconv.Itoa(i), "token "+m.token(i), rules))
	}
	joined, discovery := freeAddress(t), freeAddress(t)
	config := site(joined, gateway(append(lines, "name joined")...))
	load(t, config+site(discovery, gateway(append(lines, "name discovery", "discovery on")...)))
	m.joined, m.discovery, m.config = "http://"+joined, "http://"+discovery, writeCaddyfile(t, config)
	m.reaches = map[string]bool{}
	t.Run("clients", func(t *testing.T) {
		for i, rules := range m.rules {
			t.Run(cmp.Or(strings.ReplaceAll(rules, "\n", ", "), "no rules"), func(t *testing.T) {
				t.Parallel()
				m.explain(t, i)
				endpoints := m.endpoints(t, i)
				if i%6 == 1 { // each starts a process
					p := startStdio(t, m.config, "--client", "c"+strconv.Itoa(i))
					defer p.close(t)
					endpoints = append(endpoints, stdioEndpoint(t, p))
				}
				for n := range endpoints {
					endpoint := endpoints[(n+i)%len(endpoints)] // so that each endpoint is the first one of some client
					m.testEndpoint(t, i, n, endpoint, i%2 == 0 && n%2 == 0)
				}
			})
		}
	})
	m.compare(t, servers)
	return m.rows
}

// endpoints returns the endpoints of client i.
func (m *accessMatrix) endpoints(t *testing.T, i int) (endpoints []matrixEndpoint) {
	t.Helper()
	token := bearer(m.token(i))
	for _, answer := range m.answers {
		as, capabilities := cmp.Or(answer, "not asked"), `{"elicitation":{}}`
		if answer == "" {
			capabilities = `{}`
		}
		newClient := func(url string, modern bool) *testClient { return newTestClient(t, url, modern, capabilities, token) }
		withUser := func(c *testClient) matrixClient { return matrixClient{c, &matrixUser{answer: answer}} }
		endpoints = append(endpoints,
			joinedEndpoint("legacy, "+as, withUser(newClient(joinedAt(m.joined), false))),
			joinedEndpoint("modern, "+as, withUser(newClient(joinedAt(m.joined), true))),
			discoveryEndpoint("discovery legacy, "+as, withUser(newClient(joinedAt(m.discovery), false)), m.tools),
			discoveryEndpoint("discovery modern, "+as, withUser(newClient(joinedAt(m.discovery), true)), m.tools),
			serverEndpoint("single modern, "+as, &matrixUser{answer: answer}, func(server string) *testClient {
				return newClient(mcpAt(m.joined, server), true)
			}),
		)
	}
	return append(endpoints, // these cannot ask the user
		serverEndpoint("single legacy", &matrixUser{}, func(server string) *testClient {
			return newTestClient(t, mcpAt(m.joined, server), false, fullCapabilities, token)
		}),
		serverEndpoint("rpc", &matrixUser{}, func(server string) *testClient {
			return &testClient{&mcpclient.Client{URL: rpcAt(m.joined, server), Headers: []string{token}, HTTP: streamClient}}
		}),
	)
}

// ruleRefusals are the error codes by decision and answer of the user.
var ruleRefusals = map[[2]string]string{
	{"deny", ""}: "acl_denied", {"deny", "accept"}: "acl_denied", {"deny", "decline"}: "acl_denied",
	{"confirm", ""}: "confirmation_required", {"confirm", "decline"}: "confirmation_declined",
}

// testEndpoint makes client i list all tools at its endpoint k, and call them.
func (m *accessMatrix) testEndpoint(t *testing.T, i, k int, endpoint matrixEndpoint, listFirst bool) {
	t.Helper()
	rules, client := m.rules[i], "c"+strconv.Itoa(i)
	var listed, want, called []string
	if listFirst {
		listed = endpoint.list(t) // otherwise the first calls precede the list
	}
	rows := 0
	for j, tool := range m.tools {
		if isListed(rules, client, tool, endpoint.answer != "") {
			want = append(want, tool.listedName())
		}
		for n, arguments := range m.arguments {
			if (i+j+k+n)%*every != 0 {
				continue
			}
			rows++
			decision := decide(rules, client, tool, arguments).action
			row := fmt.Sprintf("row %s, %s, %s::%s, %d", client, endpoint.name, tool.server, tool.name, n)
			asked, code := endpoint.prompts, ""
			got := endpoint.call(t, tool, arguments.with(row))
			if got.Error != nil {
				code = got.Error.Symbol()
			}
			refusal := ruleRefusals[[2]string{decision, endpoint.answer}]
			if arguments.isValid() && (code != refusal || (got.Error == nil) == (got.Result == nil)) ||
				refusal != "" && got.Error == nil {
				t.Errorf("%s: %s: %s: got %s, want %s", row, tool.definition, arguments.text, got.Raw, decision)
			}
			confirmations := 0
			if decision == "confirm" && endpoint.answer != "" {
				confirmations = 1
			}
			if n := endpoint.prompts - asked; n != confirmations && arguments.isValid() || n > confirmations {
				t.Errorf("%s: got %d confirmations, want %d", row, n, confirmations)
			}
			if refusal == "" {
				m.mu.Lock()
				m.reaches[row] = arguments.isValid()
				m.mu.Unlock()
			}
			if got.Error == nil && !slices.Contains(called, tool.listedName()) {
				called = append(called, tool.listedName())
			}
		}
	}
	if !listFirst {
		listed = endpoint.list(t)
	}
	slices.Sort(listed)
	if slices.Sort(want); !slices.Equal(listed, want) {
		t.Errorf("%s: listed %v, want %v", endpoint.name, listed, want)
	}
	for _, tool := range called {
		if !slices.Contains(listed, tool) {
			t.Errorf("%s: %s can be called but is not listed", endpoint.name, tool)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows += rows
}

// explain checks why a client may or may not call tools.
func (m *accessMatrix) explain(t *testing.T, i int) {
	t.Helper()
	client := "c" + strconv.Itoa(i)
	var got struct{ Decisions []decision }
	text := admin(t, "GET", "/mcp_gateway/tools?why=true&gateway=joined&client="+client, "").body
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	explained := map[string]decision{}
	for _, d := range got.Decisions {
		explained[d.Server+"::"+d.Name] = d
	}
	for _, tool := range m.tools {
		want, depends := explainTool(m.rules[i], client, tool)
		shown := tool.listedName()
		if want.action == "deny" {
			shown = ""
		}
		d := explained[tool.server+"::"+tool.name]
		if d.Action != want.action || d.Rule != want.rule || d.Depends != depends || d.Shown != shown {
			t.Errorf("%s: explained as %+v, want %+v, depends: %t", tool.definition, d, want, depends)
		}
	}
}

var rowPattern = regexp.MustCompile(`"(row [^"]+)"`)

// compare compares the calls that reached the servers with those that should have.
func (m *accessMatrix) compare(t *testing.T, servers map[string]*remoteServer) {
	t.Helper()
	reached := map[string]bool{}
	for name, s := range servers {
		for _, r := range s.Received("tools/call") {
			found := rowPattern.FindSubmatch(r.Params)
			if found == nil {
				t.Errorf("%s received a call of no row: %s", name, r.Params)
				continue
			}
			row := string(found[1])
			if _, ok := m.reaches[row]; !ok || reached[row] || !strings.Contains(row, ", "+name+"::"+r.Tool()+", ") {
				t.Errorf("%s: allowed: %t, called before: %t: %s", row, ok, reached[row], r.Params)
			}
			reached[row] = true
		}
	}
	for row, must := range m.reaches {
		if must && !reached[row] {
			t.Errorf("%s did not reach the server", row)
		}
	}
	t.Logf("%d rows, %d calls reached servers", m.rows, len(reached))
}

// Clients with rules of all kinds list and call tools with all combinations of annotations, at all
// endpoints.
func TestAccessMatrix(t *testing.T) {
	isolate(t)
	m := accessMatrix{
		rules: matrixRules, tools: matrixTools(), arguments: []matrixArguments{newArguments("")},
		answers: []string{""},
	}
	if rows, want := m.run(t), 10_000 / *every; rows < want {
		t.Errorf("%d rows, want %d", rows, want)
	}
}

// Tools of the attacked server.
const (
	readTool  = `{"name":"read","annotations":{"readOnlyHint":true}}`
	writeTool = `{"name":"write","annotations":{"destructiveHint":true}}`
)

// longName is so long that its alias is shortened at the end.
var longName = strings.Repeat("long", 30)

// Clients try to call a denied tool in every possible way. The server never receives the call.
func TestAccessAttacks(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, readTool, writeTool, `{"name":"écrire"}`,
		`{"name":"`+longName+`read","annotations":{"readOnlyHint":true}}`, `{"name":"`+longName+`write"}`)
	const clients = 40
	lines := []string{"separator __", server.line("up")}
	tokenOf := func(i int) string { return fmt.Sprintf("attack-%04d-AbCdEf0123456789", i) }
	for i := range clients {
		lines = append(lines, block("client c"+strconv.Itoa(i), "token "+tokenOf(i), "allow read_only"))
	}
	lines = append(lines, block("client free", "token "+zoeToken))
	url := serve(t, gateway(lines...))
	next := 0
	fresh := func() string { // header of a client that the gateway has not listed tools for
		next++
		return bearer(tokenOf(next - 1))
	}
	endpoints := []struct {
		name, endpoint, prefix string
		modern, session        bool
	}{
		{"legacy", joinedAt(url), "up__", false, true},
		{"modern", joinedAt(url), "up__", true, false},
		{"single legacy", mcpAt(url, "up"), "", false, true},
		{"single modern", mcpAt(url, "up"), "", true, false},
		{"rpc", rpcAt(url, "up"), "", false, false},
	}
	reached := func(t *testing.T, want int) {
		t.Helper()
		calls := server.Received("tools/call")
		for _, call := range calls {
			if call.Tool() != "read" && call.Tool() != longName+"read" {
				t.Errorf("the server received %s", call.Body)
			}
		}
		if len(calls) != want {
			t.Errorf("the server received %d calls, want %d", len(calls), want)
		}
	}
	allowed := 0 // number of allowed calls
	for _, endpoint := range endpoints {
		clientWith := func(t *testing.T, token string) *testClient {
			t.Helper()
			c := &testClient{&mcpclient.Client{URL: endpoint.endpoint, Modern: endpoint.modern, Capabilities: `{}`,
				HTTP: streamClient}}
			c.Headers = []string{token}
			if endpoint.session {
				if _, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil {
					t.Fatal(err)
				}
			}
			return c
		}
		newClient := func(t *testing.T) *testClient { return clientWith(t, fresh()) }
		refuses := func(t *testing.T, c *testClient, params string) {
			t.Helper()
			if got := c.begin(t, "tools/call", params).finish(t); got.answer.Error == nil {
				t.Errorf("%s: got %s", params, got.answer.Raw)
			}
		}
		t.Run(endpoint.name+", before any list", func(t *testing.T) {
			c := newClient(t)
			expectDenied(t, "write", c.ask(t, "tools/call", toolParams(endpoint.prefix+"write", `{}`)))
			expectAllowed(t, "read", newClient(t).ask(t, "tools/call", toolParams(endpoint.prefix+"read", `{}`)))
			allowed++
			reached(t, allowed)
		})
		t.Run(endpoint.name+", a server that fails to list", func(t *testing.T) {
			server.Change(func(s *mcptest.Script) {
				s.Replies = map[string]string{"tools/list": `"error":{"code":-32603,"message":"not now"}`}
			})
			c := newClient(t)
			refuses(t, c, toolParams(endpoint.prefix+"read", `{}`))
			refuses(t, c, toolParams(endpoint.prefix+"write", `{}`))
			server.Change(func(s *mcptest.Script) { s.Replies = nil })
			reached(t, allowed)
		})
		t.Run(endpoint.name+", other spellings", func(t *testing.T) {
			c := newClient(t)
			for _, name := range []string{
				"Write", "WRITE", " write", "write ", "write\u0000", "write\u200b", "\ufeffwrite", "ｗrite", "wri\u0442e",
				"read\u0000", "read ", "e\u0301crire", "\u00e9crire", "up__write", "up::write", "./write", "unlisted", "",
				longName + "write",
			} {
				if !endpoint.modern || !strings.Contains(name, "\x00") { // a header cannot contain NUL
					refuses(t, c, toolParams(endpoint.prefix+name, `{}`))
				}
			}
			for _, params := range []string{
				`{"name":"` + endpoint.prefix + `wr\u0069te","arguments":{}}`,
				`{"n\u0061me":"` + endpoint.prefix + `write","arguments":{}}`,
				`{"name":"` + endpoint.prefix + `read","name":"` + endpoint.prefix + `write","arguments":{}}`,
				`{"name":"` + endpoint.prefix + `read","Name":"` + endpoint.prefix + `write","arguments":{}}`,
				`{"name":["` + endpoint.prefix + `write"],"arguments":{}}`,
				`{"name":"` + endpoint.prefix + `write","arguments":{},"task":{"ttl":60000}}`,
			} {
				refuses(t, c, params)
			}
			expectAllowed(t, "read", c.ask(t, "tools/call", `{"name":"`+endpoint.prefix+`r\u0065ad","arguments":{}}`))
			allowed++
			reached(t, allowed)
		})
		t.Run(endpoint.name+", messages of other kinds", func(t *testing.T) {
			c := newClient(t)
			call := `"method":"tools/call","params":` + toolParams(endpoint.prefix+"write", `{}`)
			for _, message := range []string{
				`{"jsonrpc":"2.0",` + call + `}`,
				`[{"jsonrpc":"2.0","id":1,` + call + `}]`,
				`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,` + call + `}]`,
				`{"jsonrpc":"2.0","id":null,` + call + `}`,
				`{"jsonrpc":"2.0","id":1,"method":"ping",` + call + `}`,
			} {
				c.Post(t.Context(), message).Finish()
			}
			reached(t, allowed)
		})
		t.Run(endpoint.name+", shortened names", func(t *testing.T) {
			c, free := newClient(t), clientWith(t, bearer(zoeToken))
			listed, all := toolNames(t, c), toolNames(t, free)
			if len(all) != 5 || len(listed) != 2 {
				t.Errorf("listed %v of %v", listed, all)
			}
			for _, name := range all {
				if slices.Contains(listed, name) {
					expectAllowed(t, name, c.ask(t, "tools/call", toolParams(name, `{}`)))
					allowed++
				} else {
					refuses(t, c, toolParams(name, `{}`))
				}
			}
			reached(t, allowed)
		})
	}
	if next > clients {
		t.Errorf("got %d clients", next)
	}
}

// A reload makes the rules of connected clients stricter.
func TestAccessReloadTightens(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, readTool, writeTool)
	address := freeAddress(t)
	configure := func(rules string) { load(t, site(address, gateway(append(rulesForEve(rules), server.line("up"))...))) }
	url := "http://" + address
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			configure("allow up::*")
			c := newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(eveToken))
			if got := toolNames(t, c); len(got) != 2 {
				t.Errorf("listed %v", got)
			}
			expectAllowed(t, "write", c.ask(t, "tools/call", callOf("up", "write", `{}`)))
			stream := c.listenForChanges(t)
			<-stream.Opened
			before := server.Count("tools/call")
			configure("allow read_only")
			stream.awaitMessage(t, listChanged)
			expectDenied(t, "write", c.ask(t, "tools/call", callOf("up", "write", `{}`)))
			if n := server.Count("tools/call"); n != before {
				t.Error("the server received the call")
			}
			expectAllowed(t, "read", c.ask(t, "tools/call", callOf("up", "read", `{}`)))
			if got := toolNames(t, c); !slices.Equal(got, []string{"up__read"}) {
				t.Errorf("listed %v", got)
			}
		})
	}
}

// callRules are rules that decide by the call, not only by the tool. No two conditions of one
// client contradict each other: the gateway lists a tool if each condition may hold.
var callRules = slices.Concat([]string{
	"deny when arguments.force",
	`deny when "force" in arguments && arguments.force`,
	"allow when !arguments.force",
	`allow when arguments.path.startsWith("/srv/")`,
	"confirm when arguments.n > 10",
	"confirm *",
	"confirm peer::*\nallow up::*",
	"confirm destructive when arguments.force\nallow *",
	`deny up::* when arguments.path == "/etc/b"` + "\nallow read_only\nconfirm idempotent",
	"confirm read_only\n" + `allow when client == "c9" && arguments.n > 10`,
	`deny when client == "c10" && tool == "t1"` + "\n" + `allow when server == "up"`,
	`deny when client == "c10"` + "\n" + `confirm when server == "peer"` + "\nallow *::t1 *::t5\ndefault deny",
	`allow when annotations.readOnlyHint || arguments.path.startsWith("/srv/")`,
	`deny when annotations.destructiveHint && !arguments.path.startsWith("/srv/")`,
	"confirm when annotations.openWorldHint && arguments.force || arguments.n > 10\ndeny destructive",
	"allow *::t5\nconfirm *::t6\ndeny tool:*::*",
	`deny when tool == "t5"` + "\n" + `confirm up::t6 when "path" in arguments`,
	`confirm destructive:up::* idempotent when !("force" in arguments)` + "\n" +
		`allow read_only when arguments.n > 10 || server == "peer"`,
	"deny read_only when arguments.force\nallow read_only\nconfirm *",
	`allow when "path" in arguments` + "\n" + `confirm when "force" in arguments` + "\nredact s3cret",
}, permutations("deny when arguments.force", "allow read_only", "confirm up::* when arguments.n > 10"))

// permutations returns three rules in all orders.
func permutations(a, b, c string) (all []string) {
	for _, rules := range [][]string{{a, b, c}, {a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}} {
		all = append(all, strings.Join(rules, "\n"))
	}
	return all
}

// callTools returns the tools of two servers. Overrides swap the names of two of them.
func callTools() (tools []matrixTool, overrides []string) {
	for n, tool := range []struct {
		server, members string
		annotations     []string
	}{
		{"up", `"annotations":{"readOnlyHint":true,"openWorldHint":false}`, []string{"read_only"}},
		{"up", "", unannotated},
		{"up", `"annotations":{"destructiveHint":false,"idempotentHint":true}`, []string{"idempotent", "open_world"}},
		{"peer", `"annotations":{"readOnlyHint":true}`, []string{"read_only", "open_world"}},
		{"peer", "", unannotated},
		{"up", "", []string{"read_only", "open_world"}}, // set by the override
		{"up", "", unannotated},
	} {
		tools = append(tools, newMatrixTool(n, tool.server, tool.members, tool.annotations))
	}
	tools[5].alias, tools[6].alias = "t6", "t5"
	return tools, []string{block("tool t5", "rename t6", "annotate read_only on"), block("tool t6", "rename t5")}
}

// matrixArguments are the arguments of a call.
type matrixArguments struct {
	text      string         // members of an object, or invalid arguments with "%s" for the row
	members   map[string]any // as the server parses them
	duplicate bool           // a member occurs twice, in the same case or not
}

func newArguments(text string) matrixArguments {
	a := matrixArguments{text: text, members: map[string]any{}}
	if a.isValid() && text != "" {
		if err := json.Unmarshal([]byte("{"+text+"}"), &a.members); err != nil {
			panic(err)
		}
	}
	return a
}

// isValid reports whether the arguments conform to MCP. The gateway may refuse others for that
// reason.
func (a matrixArguments) isValid() bool { return !strings.Contains(a.text, "%s") }

// with returns the arguments as JSON, with the name of a row.
func (a matrixArguments) with(row string) string {
	if !a.isValid() {
		return fmt.Sprintf(a.text, row)
	}
	if a.text == "" {
		return fmt.Sprintf(`{"row":%q}`, row)
	}
	return fmt.Sprintf(`{"row":%q,%s}`, row, a.text)
}

// callArguments are the arguments of all calls.
var callArguments = func() (all []matrixArguments) {
	for _, text := range []string{
		``,
		`"force":true,"n":5,"path":"/srv/a"`,
		`"force":false,"n":5,"path":"/srv/a"`,
		`"force":false,"n":50,"path":"/etc/b"`,
		`"force":"true","n":"50","path":7`,
		`"force":null,"n":50.5,"path":["/srv/a"]`,
		`"f\u006frce":true,"n":5e1,"path":"\/srv/a"`,
		`"FORCE":true,"Path":"/srv/a","n":5`,
		`["%s"]`,
	} {
		all = append(all, newArguments(text))
	}
	for _, text := range []string{
		`"force":true,"force":false,"n":5,"path":"/srv/a"`,
		`"force":false,"n":50,"path":"/srv/a","p\u0061th":"/etc/b"`,
		`"force":false,"Force":true,"n":5,"path":"/srv/a"`,
	} {
		twice := newArguments(text)
		twice.duplicate = true
		all = append(all, twice)
	}
	return all
}()

// plainArguments are all arguments that conditions can distinguish.
var plainArguments = func() (all []matrixArguments) {
	for _, force := range []string{``, `,"force":true`, `,"force":false`} {
		for _, n := range []string{``, `,"n":5`, `,"n":50`} {
			for _, path := range []string{``, `,"path":"/srv/a"`, `,"path":"/etc/b"`} {
				all = append(all, newArguments(strings.TrimPrefix(force+n+path, ",")))
			}
		}
	}
	return all
}()

// A verdict is the result of a condition. isTrue minus a verdict negates it; && is the minimum and
// || the maximum.
type verdict int

const (
	isFalse verdict = iota
	isError
	isTrue
)

func verdictOf(holds bool) verdict {
	if holds {
		return isTrue
	}
	return isFalse
}

var namedArgument = regexp.MustCompile(`arguments\.(\w+)|"(\w+)" in arguments`)

// evaluate returns whether a condition holds for a call.
func evaluate(condition, client string, tool matrixTool, arguments matrixArguments) verdict {
	for _, named := range namedArgument.FindAllStringSubmatch(condition, -1) {
		for key := range arguments.members {
			if name := named[1] + named[2]; key != name && strings.EqualFold(key, name) {
				return isError
			}
		}
		if arguments.duplicate || !arguments.isValid() {
			return isError
		}
	}
	some := isFalse
	for terms := range strings.SplitSeq(condition, " || ") {
		all := isTrue
		for term := range strings.SplitSeq(terms, " && ") {
			bare, negated := strings.CutPrefix(term, "!")
			if inner, ok := strings.CutPrefix(bare, "("); ok {
				bare = strings.TrimSuffix(inner, ")")
			}
			v := evaluateTerm(bare, client, tool, arguments)
			if negated {
				v = isTrue - v
			}
			all = min(all, v)
		}
		some = max(some, all)
	}
	return some
}

// annotationHints maps the hints of MCP to the annotations that rules name.
var annotationHints = map[string]string{
	"readOnlyHint": "read_only", "destructiveHint": "destructive", "openWorldHint": "open_world",
}

// evaluateTerm evaluates a condition without logical operators.
func evaluateTerm(term, client string, tool matrixTool, arguments matrixArguments) verdict {
	if name, ok := strings.CutSuffix(term, " in arguments"); ok {
		_, has := arguments.members[strings.Trim(name, `"`)]
		return verdictOf(has)
	}
	words := strings.Split(term, " ")
	subject, prefix, starts := strings.Cut(words[0], ".startsWith(")
	variable, member, _ := strings.Cut(subject, ".")
	var value any
	switch variable {
	case "client":
		value = client
	case "server":
		value = tool.server
	case "tool":
		value = tool.name
	case "annotations":
		value = slices.Contains(tool.annotations, annotationHints[member])
	case "arguments":
		argument, has := arguments.members[member]
		if !has {
			return isError
		}
		value = argument
	}
	switch {
	case starts:
		if text, ok := value.(string); ok {
			return verdictOf(strings.HasPrefix(text, strings.Trim(prefix, `")`)))
		}
	case len(words) == 1:
		if on, ok := value.(bool); ok {
			return verdictOf(on)
		}
	case words[1] == "==":
		return verdictOf(value == any(strings.Trim(words[2], `"`)))
	case words[1] == ">" && words[2] == "10":
		if n, ok := value.(float64); ok {
			return verdictOf(n > 10)
		}
	}
	return isError
}

// Clients whose rules depend on arguments or require confirmation list and call tools at all
// endpoints. Their users accept, decline or cannot be asked.
func TestAccessMatrixOfCalls(t *testing.T) {
	isolate(t)
	m := accessMatrix{rules: callRules, arguments: callArguments, answers: []string{"accept", "decline", ""}}
	m.tools, m.overrides = callTools()
	if rows, want := m.run(t), 20_000 / *every; rows < want {
		t.Errorf("%d rows, want %d", rows, want)
	}
}

// A client sends arguments with duplicate members. The server never receives other values than the
// rules decided on.
func TestAccessOtherArguments(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, plainTool("run"))
	lines := append(rulesForEve(`deny when "force" in arguments && arguments.force`), server.line("up"))
	joined, discovery := freeAddress(t), freeAddress(t)
	load(t, site(joined, gateway(append(lines, "name joined")...))+
		site(discovery, gateway(append(lines, "name discovery", "discovery on")...)))
	for _, endpoint := range []struct{ name, endpoint, tool string }{
		{"joined", joinedAt("http://" + joined), "up__run"},
		{"discovery", joinedAt("http://" + discovery), "up__run"},
		{"single", mcpAt("http://"+joined, "up"), "run"},
		{"rpc", rpcAt("http://"+joined, "up"), "run"},
	} {
		for _, era := range clientEras {
			if endpoint.name == "rpc" && !era.modern {
				continue // this endpoint has no sessions
			}
			t.Run(endpoint.name+", "+era.name, func(t *testing.T) {
				c := newTestClient(t, endpoint.endpoint, era.modern, `{}`, bearer(eveToken))
				call := func(arguments string) reply {
					params := `{"name":` + quote(endpoint.tool) + "," + arguments + "}"
					if endpoint.name == "discovery" {
						params = `{"name":"call_tool","arguments":` + params + "}"
					}
					return c.begin(t, "tools/call", params).finish(t)
				}
				expectAllowed(t, "run", call(`"arguments":{"force":false}`))
				for _, arguments := range []string{
					`"arguments":{"force":true}`,
					`"argument\u0073":{"force":true}`,
					`"Arguments":{"force":true}`,
					`"arguments":{"force":false},"arguments":{"force":true}`,
					`"arguments":{"force":true},"arguments":{"force":false}`,
					`"arguments":{"force":false},"Arguments":{"force":true}`,
					`"ARGUMENTS":{"force":true},"arguments":{"force":false}`,
					`"arguments":{"force":false},"\u0061rguments":{"force":true}`,
				} {
					call(arguments)
				}
			})
		}
	}
	for _, params := range server.params("tools/call") {
		if strings.Contains(params, "true") {
			t.Errorf("the server received %s", params)
		}
	}
}

// A decision is an item in the output of `caddy mcp tools --why --json`.
type decision struct {
	Server, Kind, Name, Shown, Action, Rule, Annotations string

	Depends bool
}

// itemOf maps list kinds to the item kinds of decisions.
var itemOf = map[string]string{
	"tools/list": "tool", "prompts/list": "prompt", "resources/list": "resource", "resources/templates/list": "template",
}

// The explanations of a running Caddy for items of the reference server agree with the lists of the
// client, its calls and the log.
func TestExplain(t *testing.T) {
	isolate(t)
	modules, err := filepath.Abs(nodeModules)
	if err != nil {
		t.Fatal(err)
	}
	// Caddy runs in another directory
	everything := strings.Replace(everythingOf(t, "everything"), nodeModules, modules+"/", 1)
	log := filepath.Join(t.TempDir(), "caddy.log")
	served := run(t, writeCaddyfile(t, logTo(log)+site("127.0.0.1:8080", gateway(append(
		rulesForEve("deny everything::get-env", `deny everything::echo when arguments.message == "x"`,
			"allow read_only prompt:everything::simple* resource:everything::demo:"),
		"join_timeout 2m", everything, block("server sample", "mcp_sample", "expose read_*"),
		"server gone http://"+freeAddress(t)+"/mcp",
	)...))))
	command := func(args ...string) (string, string) {
		t.Helper()
		cmd := caddy(t, slices.Concat([]string{"mcp", "tools", "--address", served.addresses[":2019"], "--client", "eve",
			"--why"}, args)...)
		var out, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, &stderr)
		}
		return out.String(), stderr.String()
	}
	text, _ := command("--json")
	var found struct{ Decisions []decision }
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatal(err)
	}
	rules := map[string]int{}
	for _, d := range found.Decisions {
		rules[d.Kind+" "+d.Rule]++
	}
	for _, want := range []string{
		"tool deny everything::get-env", "tool allow read_only", "tool default deny", "tool not in the server's expose list",
		"prompt allow prompt:everything::simple*", "prompt default deny",
		"resource allow resource:everything::demo:", "template allow resource:everything::demo:",
	} {
		if rules[want] == 0 {
			t.Errorf("no %s in %v", want, rules)
		}
	}

	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			eve := newTestClient(t, joinedAt("http://"+served.address), era.modern, `{}`, bearer(eveToken))
			for _, kind := range listKinds {
				var want []string
				for _, d := range found.Decisions {
					if d.Action == "allow" && d.Kind == itemOf[kind.method] {
						want = append(want, d.Shown)
					}
				}
				if got := membersOf(t, eve, kind.method, kind.kind, kind.member); !slices.Equal(got, want) {
					t.Errorf("%s: got %q, want %q", kind.method, got, want)
				}
			}
			for _, d := range found.Decisions {
				if d.Kind != "tool" || d.Action == "allow" || d.Server != "everything" {
					continue
				}
				before := len(linesOfLog(t, log, ".audit"))
				eve.refuses(t, "tools/call", fmt.Sprintf(`{"name":"everything__%s","arguments":{}}`, d.Name), 403, "acl_denied")
				if lines := linesOfLog(t, log, ".audit")[before:]; len(lines) != 1 || lines[0].Rule != d.Rule ||
					lines[0].MCPTool != d.Name {
					t.Errorf("%+v: logged %+v", d, lines)
				}
			}
		})
	}

	table, stderr := command()
	if !strings.Contains(stderr, "gone is not listed: connect_error") {
		t.Errorf("stderr: %s", stderr)
	}
	counts := map[string]int{}
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	for i, d := range found.Decisions {
		counts[d.Kind]++
		counts[d.Action]++
		if d.Depends != (d.Server == "everything" && d.Name == "echo") {
			t.Errorf("%+v", d)
		}
		if d.Depends {
			d.Action += ", by arguments"
		}
		want := strings.Fields(strings.Join([]string{d.Server, d.Kind, d.Name, d.Action, d.Rule}, " "))
		if fields := strings.Fields(lines[i+1]); !slices.Equal(fields, want) {
			t.Errorf("got %s, want %+v", lines[i+1], d)
		}
	}
	sums := fmt.Sprintf("%d tools, %d prompts, %d resources, %d templates: %d allowed, %d denied",
		counts["tool"], counts["prompt"], counts["resource"], counts["template"], counts["allow"], counts["deny"])
	if last := lines[len(lines)-1]; last != sums {
		t.Errorf("got %s, want %s", last, sums)
	}
	some, _ := command("everything::get-*")
	if rows := regexp.MustCompile(`(?m)^everything +tool +get-`).FindAllString(some, -1); len(rows) != strings.Count(some,
		"\n")-2 || len(rows) < 2 {
		t.Errorf("for a pattern: %s", some)
	}
	toolsFail(t, "--why needs --client", "--why", "--address", served.addresses[":2019"])
	toolsFail(t, `unknown client "bob"`, "--why", "--client", "bob", "--address", served.addresses[":2019"])
}
