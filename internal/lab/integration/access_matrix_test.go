package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// matrixRules are the rules of clients, each with those that it has.
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
	"allow read_only\nredact s3cret", // lists of these clients are filtered elsewhere
	"deny read_only\nredact s3cret",
}

// A matrixTool is a tool of a server, with what it is by its annotations.
type matrixTool struct {
	server, name string
	definition   string
	is           []string
	shown        string // its name for clients
}

// listed returns the tool as lists of all servers have it.
func (t matrixTool) listed() string { return t.server + "::" + t.shown }

// matrixWords are the descriptions of tools.
var matrixWords = []string{"granite", "velvet", "harbor"}

// unannotated is what a tool is that has no annotations.
var unannotated = []string{"destructive", "open_world"}

// oddAnnotations are members of the definitions of tools that are not as the specification has
// them. Those that can be read in several ways count as none.
var oddAnnotations = []struct {
	members string
	is      []string
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

// newMatrixTool returns the nth tool, with these members in its definition.
func newMatrixTool(n int, server, members string, is []string) matrixTool {
	name := fmt.Sprintf("t%d", n)
	if members != "" {
		members = "," + members
	}
	definition := fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}%s}`,
		name, matrixWords[n%3], members)
	return matrixTool{server, name, definition, is, name}
}

// matrixTools returns the tools of two servers, with all combinations of annotations.
func matrixTools() (all []matrixTool) {
	add := func(server, members string, is []string) {
		all = append(all, newMatrixTool(len(all), server, members, is))
	}
	hints := []struct {
		name, hint string
		byDefault  bool
	}{
		{"read_only", "readOnlyHint", false}, {"destructive", "destructiveHint", true},
		{"idempotent", "idempotentHint", false}, {"open_world", "openWorldHint", true},
	}
	for n := range 3 * 3 * 3 * 3 {
		var said, is []string
		for _, h := range hints {
			value := n % 3 // absent, true, false
			if n /= 3; value > 0 {
				said = append(said, fmt.Sprintf("%q:%t", h.hint, value == 1))
			}
			set := value == 1 || value == 0 && h.byDefault
			if set && !(h.name == "destructive" && slices.Contains(is, "read_only")) { // which destroys nothing
				is = append(is, h.name)
			}
		}
		add("up", `"annotations":{`+strings.Join(said, ",")+`}`, is)
	}
	for _, odd := range oddAnnotations {
		add("up", odd.members, odd.is)
	}
	add("up", "", unannotated)
	add("peer", "", unannotated)
	add("peer", `"annotations":{"readOnlyHint":true}`, []string{"read_only", "open_world"})
	add("peer", `"annotations":{"destructiveHint":false,"idempotentHint":true}`, []string{"idempotent", "open_world"})
	return all
}

// A ruled is what rules say, and which of them.
type ruled struct {
	action, rule string
	at           int // which rule
}

// decidedBy returns what rules say to a call, as the documentation has it: the first that selects it
// decides. It knows nothing of how the gateway does that.
func decidedBy(rules, client string, tool matrixTool, arguments matrixArguments) ruled {
	byDefault, at := "allow", 0
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
		if at++; len(words) == 1 {
			words = append(words, "*")
		}
		for _, pattern := range words[1:] {
			if !tool.isSelectedBy(pattern) {
				continue
			}
			if !conditional {
				return ruled{words[0], words[0] + " " + pattern, at}
			}
			rule := strings.TrimSuffix(words[0]+" "+pattern, " *") + " when " + condition
			switch judged(condition, client, tool, arguments) {
			case isTrue:
				return ruled{words[0], rule, at}
			case isError:
				return ruled{"deny", rule, at}
			}
		}
	}
	if at == 0 {
		return ruled{byDefault, "no rules", 0}
	}
	return ruled{byDefault, "default " + byDefault, at + 1}
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
	return named && (annotation == "tool" || slices.Contains(t.is, annotation))
}

// explainedBy returns what rules say to a tool before its arguments are known, and whether that depends
// on them: the first of the decisions on all plain arguments by which it can be called, after those before it.
func explainedBy(rules, client string, tool matrixTool) (first ruled, depends bool) {
	found := map[ruled]bool{}
	for _, arguments := range plainArguments {
		found[decidedBy(rules, client, tool, arguments)] = true
	}
	for d := range found {
		switch callable := d.action != "deny"; {
		case first.action == "", callable && first.action == "deny":
			first = d
		case callable && d.at < first.at, !callable && first.action == "deny" && d.at > first.at:
			first = d
		}
	}
	if first.action == "deny" {
		return first, false
	}
	before := slices.DeleteFunc(slices.Collect(maps.Keys(found)), func(d ruled) bool { return d.at >= first.at })
	slices.SortFunc(before, func(a, b ruled) int { return cmp.Compare(b.at, a.at) })
	for _, d := range before {
		first.rule = d.rule + ", else " + first.rule
	}
	return first, len(found) > 1
}

// isListed reports whether there are plain arguments with which a client may call a tool.
func isListed(rules, client string, tool matrixTool, askable bool) bool {
	return slices.ContainsFunc(plainArguments, func(arguments matrixArguments) bool {
		action := decidedBy(rules, client, tool, arguments).action
		return action == "allow" || action == "confirm" && askable
	})
}

// A matrixPerson is in front of a client.
type matrixPerson struct {
	answer string // to questions; "" if the client cannot be asked
	asked  int    // how often
}

// A matrixClient is a client with a person in front of it.
type matrixClient struct {
	*speaker
	*matrixPerson
}

// call calls a tool.
func (c matrixClient) call(t *testing.T, params string) mcpclient.Message {
	t.Helper()
	got := c.Ask(t.Context(), "tools/call", params, func(method string, _ json.RawMessage) string {
		if c.asked++; method != "elicitation/create" {
			t.Errorf("asked for %s", method)
		}
		return `{"action":` + quote(c.answer) + `}`
	})
	if got.Err != nil {
		t.Errorf("%s: %v", params, got.Err)
	}
	return got.Message
}

// A matrixWay is how a client reaches tools: it lists them as server::tool, and calls them.
type matrixWay struct {
	name string
	*matrixPerson
	list func(t *testing.T) []string
	call func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message
}

// toolParams are the params of a tools/call.
func toolParams(name, arguments string) string {
	return `{"name":` + quote(name) + `,"arguments":` + arguments + `}`
}

// joinedWay is the way by an endpoint that has all servers as one.
func joinedWay(name string, c matrixClient) matrixWay {
	return matrixWay{name, c.matrixPerson, func(t *testing.T) []string { return toolsOf(t, c.speaker) },
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return c.call(t, toolParams(tool.listed(), arguments))
		}}
}

// discoveryWay is the way by the tools that find and call others.
func discoveryWay(name string, c matrixClient, all []matrixTool) matrixWay {
	list := func(t *testing.T) (names []string) {
		t.Helper()
		for _, word := range matrixWords { // each of them finds 50 tools at most
			query := fmt.Sprintf(`{"query":%q,"limit":50}`, word)
			for line := range strings.Lines(c.ask(t, "tools/call", toolParams("search_tools", query)).answer.Text()) {
				if found, _, ok := strings.Cut(line, ": "); ok {
					names = append(names, found)
				}
			}
		}
		for _, tool := range all {
			shown := tool.listed()
			got := c.ask(t, "tools/call", toolParams("describe_tool", `{"name":`+quote(shown)+`}`)).answer
			if described := strings.HasPrefix(got.Text(), "{"); described != slices.Contains(names, shown) {
				t.Errorf("%s is described: %t, is found: %t", shown, described, !described)
			}
		}
		return names
	}
	return matrixWay{name, c.matrixPerson, list,
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return c.call(t, byCallTool(tool.listed(), arguments))
		}}
}

// singleWay is the way by an endpoint for each server.
func singleWay(name string, p *matrixPerson, at func(server string) *speaker) matrixWay {
	to := map[string]matrixClient{"up": {at("up"), p}, "peer": {at("peer"), p}}
	list := func(t *testing.T) (names []string) {
		t.Helper()
		for server, c := range to {
			for _, tool := range toolsOf(t, c.speaker) {
				names = append(names, server+"::"+tool)
			}
		}
		return names
	}
	return matrixWay{name, p, list,
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return to[tool.server].call(t, toolParams(tool.shown, arguments))
		}}
}

// stdioWay is the way by `caddy mcp-stdio`, of a client that cannot be asked.
func stdioWay(t *testing.T, p *stdioProcess) matrixWay {
	t.Helper()
	ask := func(t *testing.T, method, params string) mcpclient.Message {
		t.Helper()
		p.say(t, rpc(method, params))
		return p.hear(t, "")
	}
	p.say(t, stdioGreeting)
	p.hear(t, "")
	list := func(t *testing.T) []string {
		t.Helper()
		return listedIn(t, ask(t, "tools/list", `{}`).Raw, "tools", "name")
	}
	return matrixWay{"mcp-stdio", &matrixPerson{}, list,
		func(t *testing.T, tool matrixTool, arguments string) mcpclient.Message {
			return ask(t, "tools/call", toolParams(tool.listed(), arguments))
		}}
}

// An accessMatrix has clients, each with rules of its own, list and call tools by all ways. A tool is
// listed if and only if there are arguments with which its call reaches the server.
type accessMatrix struct {
	rules     []string
	tools     []matrixTool
	overrides []string // lines of the server up
	arguments []matrixArguments
	answers   []string // of the people at clients; "" for a client that cannot be asked

	joined, discovery string // URLs
	config            string // path of the Caddyfile

	mu      sync.Mutex
	rows    int
	reaches map[string]bool // rows whose calls may reach a server, and whether they must
}

func (*accessMatrix) token(i int) string { return fmt.Sprintf("matrix-%04d-AbCdEf0123456789", i) }

// run returns how many calls were made.
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
	m.joined, m.discovery, m.config = "http://"+joined, "http://"+discovery, inFile(t, config)
	m.reaches = map[string]bool{}
	t.Run("clients", func(t *testing.T) {
		for i, rules := range m.rules {
			t.Run(cmp.Or(strings.ReplaceAll(rules, "\n", ", "), "no rules"), func(t *testing.T) {
				t.Parallel()
				m.explain(t, i)
				ways := m.ways(t, i)
				if i%6 == 1 { // each starts a process
					p := startStdio(t, m.config, "--client", "c"+strconv.Itoa(i))
					defer p.end(t)
					ways = append(ways, stdioWay(t, p))
				}
				for n := range ways {
					way := ways[(n+i)%len(ways)] // so that each is the first of some client
					m.goBy(t, i, way, i%2 == 0 && n%2 == 0)
				}
			})
		}
	})
	m.compare(t, servers)
	return m.rows
}

// ways returns those of a client.
func (m *accessMatrix) ways(t *testing.T, i int) (ways []matrixWay) {
	t.Helper()
	token := bearer(m.token(i))
	for _, answer := range m.answers {
		as, capabilities := cmp.Or(answer, "not asked"), `{"elicitation":{}}`
		if answer == "" {
			capabilities = `{}`
		}
		at := func(url string, modern bool) *speaker { return newSpeaker(t, url, modern, capabilities, token) }
		with := func(c *speaker) matrixClient { return matrixClient{c, &matrixPerson{answer: answer}} }
		ways = append(ways,
			joinedWay("legacy, "+as, with(at(joinedAt(m.joined), false))),
			joinedWay("modern, "+as, with(at(joinedAt(m.joined), true))),
			discoveryWay("discovery legacy, "+as, with(at(joinedAt(m.discovery), false)), m.tools),
			discoveryWay("discovery modern, "+as, with(at(joinedAt(m.discovery), true)), m.tools),
			singleWay("single modern, "+as, &matrixPerson{answer: answer}, func(server string) *speaker {
				return at(mcpAt(m.joined, server), true)
			}),
		)
	}
	return append(ways, // that have no means to ask
		singleWay("single legacy", &matrixPerson{}, func(server string) *speaker {
			return newSpeaker(t, mcpAt(m.joined, server), false, canAll, token)
		}),
		singleWay("rpc", &matrixPerson{}, func(server string) *speaker {
			return &speaker{&mcpclient.Client{URL: rpcAt(m.joined, server), Headers: []string{token}, HTTP: lasting}}
		}),
	)
}

// ruleRefusals are the codes of what rules refuse, by what they say and what the person answers.
var ruleRefusals = map[[2]string]string{
	{"deny", ""}: "acl_denied", {"deny", "accept"}: "acl_denied", {"deny", "decline"}: "acl_denied",
	{"confirm", ""}: "confirmation_required", {"confirm", "decline"}: "confirmation_declined",
}

// goBy has a client list and call all tools by one way.
func (m *accessMatrix) goBy(t *testing.T, i int, way matrixWay, listFirst bool) {
	t.Helper()
	rules, client := m.rules[i], "c"+strconv.Itoa(i)
	var listed, want, called []string
	if listFirst {
		listed = way.list(t) // otherwise the first calls come before it
	}
	for _, tool := range m.tools {
		if isListed(rules, client, tool, way.answer != "") {
			want = append(want, tool.listed())
		}
		for n, arguments := range m.arguments {
			decision := decidedBy(rules, client, tool, arguments).action
			row := fmt.Sprintf("row %s, %s, %s::%s, %d", client, way.name, tool.server, tool.name, n)
			asked, code := way.asked, ""
			got := way.call(t, tool, arguments.with(row))
			if got.Error != nil {
				code = got.Error.Symbol()
			}
			refusal := ruleRefusals[[2]string{decision, way.answer}]
			if arguments.isValid() && (code != refusal || (got.Error == nil) == (got.Result == nil)) ||
				refusal != "" && got.Error == nil {
				t.Errorf("%s: %s: %s: got %s, want %s", row, tool.definition, arguments.text, got.Raw, decision)
			}
			questions := 0
			if decision == "confirm" && way.answer != "" {
				questions = 1
			}
			if n := way.asked - asked; n != questions && arguments.isValid() || n > questions {
				t.Errorf("%s: asked %d times, want %d", row, n, questions)
			}
			if refusal == "" {
				m.mu.Lock()
				m.reaches[row] = arguments.isValid()
				m.mu.Unlock()
			}
			if got.Error == nil && !slices.Contains(called, tool.listed()) {
				called = append(called, tool.listed())
			}
		}
	}
	if !listFirst {
		listed = way.list(t)
	}
	slices.Sort(listed)
	if slices.Sort(want); !slices.Equal(listed, want) {
		t.Errorf("%s: listed %v, want %v", way.name, listed, want)
	}
	for _, tool := range called {
		if !slices.Contains(listed, tool) {
			t.Errorf("%s: %s can be called and is not listed", way.name, tool)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows += len(m.tools) * len(m.arguments)
}

// explain asks why a client may call tools, or not.
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
		want, depends := explainedBy(m.rules[i], client, tool)
		shown := tool.listed()
		if want.action == "deny" {
			shown = ""
		}
		d := explained[tool.server+"::"+tool.name]
		if d.Action != want.action || d.Rule != want.rule || d.Depends != depends || d.Shown != shown {
			t.Errorf("%s: explained as %+v, want %+v, depends: %t", tool.definition, d, want, depends)
		}
	}
}

var rowIn = regexp.MustCompile(`"(row [^"]+)"`)

// compare compares what has reached the servers with what should have.
func (m *accessMatrix) compare(t *testing.T, servers map[string]*remoteServer) {
	t.Helper()
	reached := map[string]bool{}
	for name, s := range servers {
		for _, r := range s.Received("tools/call") {
			found := rowIn.FindSubmatch(r.Params)
			if found == nil {
				t.Errorf("%s was called by no row: %s", name, r.Params)
				continue
			}
			row := string(found[1])
			if _, ok := m.reaches[row]; !ok || reached[row] || !strings.Contains(row, ", "+name+"::"+r.Tool()+", ") {
				t.Errorf("%s: may be called: %t, was called before: %t: %s", row, ok, reached[row], r.Params)
			}
			reached[row] = true
		}
	}
	for row, must := range m.reaches {
		if must && !reached[row] {
			t.Errorf("%s has not reached the server", row)
		}
	}
	t.Logf("%d rows, %d calls let through", m.rows, len(reached))
}

// TestAccessMatrix has clients with rules of all kinds list and call tools with all combinations of
// annotations, by all ways.
func TestAccessMatrix(t *testing.T) {
	isolate(t)
	m := accessMatrix{
		rules: matrixRules, tools: matrixTools(), arguments: []matrixArguments{newArguments("")},
		answers: []string{""},
	}
	if rows := m.run(t); rows < 10_000 {
		t.Errorf("%d rows, want 10,000", rows)
	}
}

// The tools of a server that is attacked.
const (
	readTool  = `{"name":"read","annotations":{"readOnlyHint":true}}`
	writeTool = `{"name":"write","annotations":{"destructiveHint":true}}`
)

// longName is so long that clients get a shorter one, for its end.
var longName = strings.Repeat("long", 30)

// TestAccessAttacks has clients call a tool that they may not call, in whatever way. The server never
// sees it.
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
	fresh := func() string { // the header of a client for which the server was not asked yet
		next++
		return bearer(tokenOf(next - 1))
	}
	ways := []struct {
		name, at, prefix string
		modern, session  bool
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
				t.Errorf("the server has got %s", call.Body)
			}
		}
		if len(calls) != want {
			t.Errorf("the server has got %d calls, want %d", len(calls), want)
		}
	}
	let := 0 // calls through
	for _, way := range ways {
		clientWith := func(t *testing.T, token string) *speaker {
			t.Helper()
			c := &speaker{&mcpclient.Client{URL: way.at, Modern: way.modern, Capabilities: `{}`, HTTP: lasting}}
			c.Headers = []string{token}
			if way.session {
				if _, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil {
					t.Fatal(err)
				}
			}
			return c
		}
		newClient := func(t *testing.T) *speaker { return clientWith(t, fresh()) }
		refuses := func(t *testing.T, c *speaker, params string) {
			t.Helper()
			if got := c.begin(t, "tools/call", params).finish(t); got.answer.Error == nil {
				t.Errorf("%s: got %s", params, got.answer.Raw)
			}
		}
		t.Run(way.name+", before any list", func(t *testing.T) {
			c := newClient(t)
			mayNot(t, "write", c.ask(t, "tools/call", toolParams(way.prefix+"write", `{}`)))
			may(t, "read", newClient(t).ask(t, "tools/call", toolParams(way.prefix+"read", `{}`)))
			let++
			reached(t, let)
		})
		t.Run(way.name+", a server that does not list", func(t *testing.T) {
			server.Change(func(s *mcptest.Script) {
				s.Replies = map[string]string{"tools/list": `"error":{"code":-32603,"message":"not now"}`}
			})
			c := newClient(t)
			refuses(t, c, toolParams(way.prefix+"read", `{}`))
			refuses(t, c, toolParams(way.prefix+"write", `{}`))
			server.Change(func(s *mcptest.Script) { s.Replies = nil })
			reached(t, let)
		})
		t.Run(way.name+", other spellings", func(t *testing.T) {
			c := newClient(t)
			for _, name := range []string{
				"Write", "WRITE", " write", "write ", "write\u0000", "write\u200b", "\ufeffwrite", "ｗrite", "wri\u0442e",
				"read\u0000", "read ", "e\u0301crire", "\u00e9crire", "up__write", "up::write", "./write", "unlisted", "",
				longName + "write",
			} {
				if !way.modern || !strings.Contains(name, "\x00") { // which no header can have
					refuses(t, c, toolParams(way.prefix+name, `{}`))
				}
			}
			for _, params := range []string{
				`{"name":"` + way.prefix + `wr\u0069te","arguments":{}}`,
				`{"n\u0061me":"` + way.prefix + `write","arguments":{}}`,
				`{"name":"` + way.prefix + `read","name":"` + way.prefix + `write","arguments":{}}`,
				`{"name":"` + way.prefix + `read","Name":"` + way.prefix + `write","arguments":{}}`,
				`{"name":["` + way.prefix + `write"],"arguments":{}}`,
				`{"name":"` + way.prefix + `write","arguments":{},"task":{"ttl":60000}}`,
			} {
				refuses(t, c, params)
			}
			may(t, "read", c.ask(t, "tools/call", `{"name":"`+way.prefix+`r\u0065ad","arguments":{}}`))
			let++
			reached(t, let)
		})
		t.Run(way.name+", messages of other kinds", func(t *testing.T) {
			c := newClient(t)
			call := `"method":"tools/call","params":` + toolParams(way.prefix+"write", `{}`)
			for _, message := range []string{
				`{"jsonrpc":"2.0",` + call + `}`,
				`[{"jsonrpc":"2.0","id":1,` + call + `}]`,
				`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,` + call + `}]`,
				`{"jsonrpc":"2.0","id":null,` + call + `}`,
				`{"jsonrpc":"2.0","id":1,"method":"ping",` + call + `}`,
			} {
				c.Post(t.Context(), message).Finish()
			}
			reached(t, let)
		})
		t.Run(way.name+", names that were shortened", func(t *testing.T) {
			c, free := newClient(t), clientWith(t, bearer(zoeToken))
			listed, all := toolsOf(t, c), toolsOf(t, free)
			if len(all) != 5 || len(listed) != 2 {
				t.Errorf("listed %v of %v", listed, all)
			}
			for _, name := range all {
				if slices.Contains(listed, name) {
					may(t, name, c.ask(t, "tools/call", toolParams(name, `{}`)))
					let++
				} else {
					refuses(t, c, toolParams(name, `{}`))
				}
			}
			reached(t, let)
		})
	}
	if next > clients {
		t.Errorf("there were %d clients", next)
	}
}

// TestAccessReloadTightens has rules become stricter while clients are there.
func TestAccessReloadTightens(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, readTool, writeTool)
	address := freeAddress(t)
	configure := func(rules string) { load(t, site(address, gateway(append(restricted(rules), server.line("up"))...))) }
	url := "http://" + address
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			configure("allow up::*")
			c := newSpeaker(t, joinedAt(url), era.modern, `{}`, bearer(eveToken))
			if got := toolsOf(t, c); len(got) != 2 {
				t.Errorf("listed %v", got)
			}
			may(t, "write", c.ask(t, "tools/call", callOf("up", "write", `{}`)))
			stream := c.listens(t)
			<-stream.Opened
			before := server.Count("tools/call")
			configure("allow read_only")
			stream.hears(t, listChanged)
			mayNot(t, "write", c.ask(t, "tools/call", callOf("up", "write", `{}`)))
			if n := server.Count("tools/call"); n != before {
				t.Error("the server has got the call")
			}
			may(t, "read", c.ask(t, "tools/call", callOf("up", "read", `{}`)))
			if got := toolsOf(t, c); !slices.Equal(got, []string{"up__read"}) {
				t.Errorf("listed %v", got)
			}
		})
	}
}
