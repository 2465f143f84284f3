package integration

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

const (
	// focusGoal describes focusFact, which is between many less relevant lines.
	focusGoal = "which host did the failed database migration run on"
	focusFact = "ERROR migration 0042 of the database failed on host db-17.internal: lock timeout"
)

// focusText is the log of a service with focusFact as one of its lines.
var focusText = func() string {
	var b strings.Builder
	for i := range 600 {
		fmt.Fprintf(&b, "INFO request %d served in %d ms, status %d\n", i, i*7%90, 200+i%5)
		if i == 333 {
			b.WriteString(focusFact + "\n")
		}
	}
	return b.String()
}()

// focusedText matches the start of a text that was shortened to a goal.
var focusedText = regexp.MustCompile(
	`^\[KIMI_PROXY_OBSERVATION_MASKED original_chars=(\d+) lines=(\d+)/(\d+) id=(obs_[A-Za-z0-9]{10})\]`)

// focusArgument returns the schema of the focus argument.
func focusArgument(name string) string {
	return quote(name) + `:{"type":"string","description":"What you look for; a long result is cut to it."}`
}

// expectFocused fails the test unless a text is focusText shortened to focusGoal.
func expectFocused(t *testing.T, text string) {
	t.Helper()
	found := focusedText.FindStringSubmatch(text)
	if found == nil || found[1] != strconv.Itoa(len(focusText)) || found[3] != "601" {
		t.Errorf("no marker with the goal: %.300q", text)
	}
	if !strings.Contains(text, focusFact) {
		t.Errorf("not shortened to the goal: %.300q", text)
	}
	if n := utf8.RuneCountInString(text); n > 4000 {
		t.Errorf("got %d characters", n)
	}
}

// expectHeadAndTail fails the test unless a text is focusText without its middle.
func expectHeadAndTail(t *testing.T, text string) {
	t.Helper()
	if found := handlePattern.FindStringSubmatch(text); found == nil || found[1] != strconv.Itoa(len(focusText)) {
		t.Errorf("no marker of the middle in %.300q", text)
	}
	if !strings.HasPrefix(text, focusText[:2000]) || !strings.HasSuffix(text, focusText[len(focusText)-2000:]) {
		t.Errorf("not head and tail: %.300q", text)
	}
}

// focusTool is a tool that accepts only its own argument.
const focusTool = `{"name":"read","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},` +
	`"required":["path"],"additionalProperties":false}}`

// logServer starts a server whose tools return focusText.
func logServer(t *testing.T, tools ...string) *remoteServer {
	s := newLenientServer(t, tools...)
	s.Replies = map[string]string{}
	for _, tool := range tools {
		s.Replies[toolNameOf(t, tool)] = mcptest.Text(focusText)
	}
	return s
}

// toolNameOf returns the name in a tool definition.
func toolNameOf(t *testing.T, tool string) string {
	t.Helper()
	var d struct{ Name string }
	if err := json.Unmarshal([]byte(tool), &d); err != nil {
		t.Fatal(err)
	}
	return d.Name
}

// argumentsIn returns the arguments of the calls that a server received.
func argumentsIn(received []*mcptest.Received) (all []string) {
	for _, r := range received {
		all = append(all, r.Param("arguments"))
	}
	return all
}

// expectReceived fails the test unless a server received one call with these arguments since it had
// received before calls.
func expectReceived(t *testing.T, s *remoteServer, before int, arguments string) {
	t.Helper()
	if got := argumentsIn(s.Received("tools/call")[before:]); !slices.Equal(got, []string{arguments}) {
		t.Errorf("the server received %q, want %s", got, arguments)
	}
}

// goalArguments are the arguments of focusTool with a goal.
var goalArguments = `{"path":"a","focus":` + quote(focusGoal) + `}`

// A toolEndpoint is a way to call a tool of a server.
type toolEndpoint struct {
	name     string
	url      func(server string) string
	alias    func(server, tool string) string
	call     func(name, arguments string) string // params of the call
	searched bool                                // tools are searched instead of listed
}

// toolEndpoints returns the endpoints of a gateway at url, and of one with discovery.
func toolEndpoints(url, searched string) []toolEndpoint {
	own := func(_, tool string) string { return tool }
	plain := func(name, arguments string) string {
		return `{"name":` + quote(name) + `,"arguments":` + arguments + `}`
	}
	joined := func(server, tool string) string { return server + "__" + tool }
	return []toolEndpoint{
		{"joined", func(string) string { return joinedAt(url) }, joined, plain, false},
		{"single", func(server string) string { return mcpAt(url, server) }, own, plain, false},
		{"discovery", func(string) string { return joinedAt(searched) }, joined, callToolParams, true},
		{"discovery, called by name", func(string) string { return joinedAt(searched) }, joined, plain, true},
	}
}

func (w toolEndpoint) use(t *testing.T, c *testClient, server, tool, arguments string, headers ...string) reply {
	t.Helper()
	return c.ask(t, "tools/call", w.call(w.alias(server, tool), arguments), headers...)
}

// descriptor returns the definition of a tool for the client.
func (w toolEndpoint) descriptor(t *testing.T, c *testClient, server, tool string) string {
	t.Helper()
	name := w.alias(server, tool)
	if w.searched {
		return c.ask(t, "tools/call", `{"name":"describe_tool","arguments":{"name":`+quote(name)+`}}`).answer.Text()
	}
	var list struct{ Tools []json.RawMessage }
	got := c.ask(t, "tools/list", `{}`)
	if err := json.Unmarshal(got.answer.Result, &list); err != nil {
		t.Fatalf("%v: %.300s", err, got.answer.Raw)
	}
	for _, item := range list.Tools {
		if toolNameOf(t, string(item)) == name {
			return string(item)
		}
	}
	t.Fatalf("%s is not listed: %.500s", name, got.answer.Raw)
	return ""
}

// At every endpoint, results are shortened to the goal, and the server does not get the argument.
func TestFocusInEveryWay(t *testing.T) {
	isolate(t)
	remote, legacy, kid := logServer(t, focusTool), logServer(t, focusTool), newJournal(t)
	legacy.Legacy, legacy.Sessions = true, true
	events := logServer(t, focusTool)
	events.Events = true
	lines := []string{"separator __", block("mask", "recover on"), "focus on",
		remote.line("far"), legacy.line("old"), events.line("events"), block(child("kid"), kid.env())}
	addresses := []string{freeAddress(t), freeAddress(t)}
	load(t, site(addresses[0], gateway(lines...))+site(addresses[1], gateway(append(lines, "discovery on")...)))
	receivedBy := func(s *remoteServer) func(*testing.T) []string {
		return func(*testing.T) []string { return argumentsIn(s.Received("tools/call")) }
	}
	big := `{"n":1,"c":` + quote(focusText) + `}` // for a child, which returns its argument
	servers := []struct {
		name, tool, arguments string
		received              func(t *testing.T) []string
	}{
		{"far", "read", `{"path":"a"}`, receivedBy(remote)},
		{"old", "read", `{"path":"a"}`, receivedBy(legacy)},
		{"events", "read", `{"path":"a"}`, receivedBy(events)},
		{"kid", "big", big, func(t *testing.T) []string { return argumentsIn(kid.messages(t, "tools/call")) }},
	}
	for _, endpoint := range toolEndpoints("http://"+addresses[0], "http://"+addresses[1]) {
		for _, era := range clientEras {
			for _, s := range servers {
				if endpoint.name == "single" && era.modern && s.name == "old" {
					continue // it forwards requests unchanged
				}
				t.Run(endpoint.name+", "+era.name+", "+s.name, func(t *testing.T) {
					c := newTestClient(t, endpoint.url(s.name), era.modern, `{}`)
					definition := endpoint.descriptor(t, c, s.name, s.tool)
					if !strings.Contains(definition, ","+focusArgument("focus")+"}") {
						t.Errorf("the tool lacks the argument: %s", definition)
					}
					before := len(s.received(t))
					with := func(argument string) string {
						return strings.TrimSuffix(s.arguments, "}") + "," + argument + "}"
					}
					for _, arguments := range []string{
						with(`"focus":` + quote(focusGoal)),
						`{"focus":` + quote(focusGoal) + `,` + s.arguments[1:],
						with(`"f\u006fcus":` + quote(focusGoal)),
						with(`"focus":null,"focus":` + quote(focusGoal)),
					} {
						expectFocused(t, endpoint.use(t, c, s.name, s.tool, arguments).answer.Text())
					}
					for _, arguments := range []string{
						s.arguments, with(`"focus":null`), with(`"focus":""`), with(`"focus":" \n"`),
					} {
						expectHeadAndTail(t, endpoint.use(t, c, s.name, s.tool, arguments).answer.Text())
					}
					got := s.received(t)[before:]
					if len(got) != 8 || slices.ContainsFunc(got, func(a string) bool { return a != s.arguments }) {
						t.Errorf("the server received %.500q", got)
					}
					for _, wrong := range []string{`1`, `["x"]`, `{}`, `true`} {
						got := endpoint.use(t, c, s.name, s.tool, with(`"focus":`+wrong)).answer
						e := got.Error
						if e == nil || e.Code != -32602 || !strings.Contains(e.Message, "arguments.focus") {
							t.Errorf("focus %s: got %.300s", wrong, got.Raw)
						}
					}
					if n := len(s.received(t)); n != before+8 {
						t.Errorf("the server received %d invalid calls", n-before-8)
					}
				})
			}
		}
	}
}

// A client can use the argument even if it has not listed tools since Caddy started.
func TestFocusWithoutList(t *testing.T) {
	for _, era := range clientEras {
		for i, endpoint := range []string{"all servers", "one server"} {
			t.Run(endpoint+", "+era.name, func(t *testing.T) {
				isolate(t)
				remote := logServer(t, focusTool, `{"name":"own","inputSchema":{"type":"object","properties":{"focus":{}}}}`)
				url := serve(t, gateway("separator __", block("mask", "recover on"), "focus on", remote.line("far")))
				w := toolEndpoints(url, "")[i]
				c := newTestClient(t, w.url("far"), era.modern, `{}`)
				for range 2 {
					before := remote.Count("tools/call")
					expectFocused(t, w.use(t, c, "far", "read", goalArguments).answer.Text())
					expectReceived(t, remote, before, `{"path":"a"}`)
					before = remote.Count("tools/call")
					w.use(t, c, "far", "own", goalArguments)
					expectReceived(t, remote, before, goalArguments)
				}
				if n := remote.Count("tools/list"); n != 1 {
					t.Errorf("the server received %d × tools/list", n)
				}
			})
		}
	}
}

// If the gateway cannot get the list, the server gets the argument, and its result is cut to head
// and tail.
func TestFocusWithoutAnyList(t *testing.T) {
	isolate(t)
	remote := logServer(t, focusTool)
	remote.Replies["tools/list"] = `"error":{"code":-32603,"message":"not now"}`
	url := serve(t, gateway("separator __", block("mask", "recover on"), "focus on", remote.line("far")))
	for _, endpoint := range toolEndpoints(url, "")[:2] {
		for _, era := range clientEras {
			t.Run(endpoint.name+", "+era.name, func(t *testing.T) {
				c := newTestClient(t, endpoint.url("far"), era.modern, `{}`)
				before := remote.Count("tools/call")
				expectHeadAndTail(t, endpoint.use(t, c, "far", "read", goalArguments).answer.Text())
				expectReceived(t, remote, before, goalArguments)
			})
		}
	}
}

// The argument is added to tool definitions where possible. @ marks its place.
func TestFocusInDescriptors(t *testing.T) {
	isolate(t)
	property := focusArgument("focus")
	tests := []struct{ name, schema, added string }{
		{"no properties", `{"type":"object"@}`, `,"properties":{` + property + `}`},
		{"no type", `{@}`, `"properties":{` + property + `}`},
		{"empty properties", `{"type":"object","properties":{@}}`, property},
		{"required", `{"type":"object","required":["a"],"properties":{ "a" : {"type":"string"}@ } }`, `,` + property},
		{"additional false", `{"additionalProperties":false,"properties":{"a":{}@},"type":"object"}`, `,` + property},
		{"additional schema", `{"additionalProperties":{"type":"null"},"properties":{"a":{}@}}`, `,` + property},
		{"dialect", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{@}}`, property},
		{"definitions", `{"$defs":{"x":{"oneOf":[]}},"properties":{"a":{"$ref":"#/$defs/x"}@}}`, `,` + property},
		{"header", `{"properties":{"region":{"type":"string","x-mcp-header":"Region"}@}}`, `,` + property},
		{"unevaluated", `{"type":"object","properties":{"a":{}@},"unevaluatedProperties":false}`, `,` + property},
		{"own", `{"type":"object","properties":{"focus":{"type":"string"}}}`, ""},
		{"own escaped", `{"type":"object","properties":{"f\u006fcus":{"type":"string"}}}`, ""},
		{"own in capitals", `{"type":"object","properties":{"Focus":{"type":"integer"}}}`, ""},
		{"own required", `{"type":"object","required":["focus"]}`, ""},
		{"own dependent", `{"type":"object","dependentRequired":{"focus":["a"]},"properties":{"a":{}}}`, ""},
		{"oneOf", `{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`, ""},
		{"anyOf", `{"type":"object","properties":{"a":{}},"anyOf":[{"additionalProperties":false}]}`, ""},
		{"allOf", `{"allOf":[{"$ref":"#/$defs/a"}],"type":"object"}`, ""},
		{"not", `{"type":"object","not":{"required":["focus"]}}`, ""},
		{"if", `{"type":"object","if":{},"then":{"maxProperties":1}}`, ""},
		{"reference", `{"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}}`, ""},
		{"dynamic reference", `{"$dynamicRef":"#a","$defs":{"a":{"$dynamicAnchor":"a"}}}`, ""},
		{"pattern", `{"type":"object","patternProperties":{"^f":{"type":"integer"}}}`, ""},
		{"names", `{"type":"object","propertyNames":{"maxLength":1}}`, ""},
		{"count", `{"type":"object","maxProperties":1}`, ""},
		{"constant", `{"const":{}}`, ""},
		{"types", `{"type":["object","null"]}`, ""},
		{"properties twice", `{"type":"object","properties":{},"properties":{}}`, ""},
		{"no object", `{"type":"object","properties":[]}`, ""},
		{"true", `true`, ""},
	}
	server := newLenientServer(t)
	want := map[string]string{}
	for i, tt := range tests {
		name := fmt.Sprintf("t%d", i)
		tool := func(schema string) string {
			return `{ "inputSchema" : ` + schema + `,"x":[1.0, "\u00e9"], "name": "` + name + `" }`
		}
		server.Tools = append(server.Tools, tool(strings.Replace(tt.schema, "@", "", 1)))
		want[name] = tool(strings.Replace(tt.schema, "@", tt.added, 1))
	}
	url := serve(t, gateway("separator __", block("mask", "recover on"), "focus on", server.line("far")))
	for _, era := range clientEras {
		for _, endpoint := range toolEndpoints(url, "")[:2] {
			c := newTestClient(t, endpoint.url("far"), era.modern, `{}`)
			list := c.ask(t, "tools/list", `{}`).answer.Raw
			for i, tt := range tests {
				t.Run(tt.name+", "+endpoint.name+", "+era.name, func(t *testing.T) {
					name := fmt.Sprintf("t%d", i)
					shown := endpoint.alias("far", name)
					want := strings.Replace(want[name], `"name": "`+name+`"`, `"name": "`+shown+`"`, 1)
					if !strings.Contains(list, want) {
						index := strings.Index(list, `"name": "`+shown+`"`)
						t.Errorf("got …%.700s\nwant %s", list[max(0, index-500):], want)
					}
					before := server.Count("tools/call")
					endpoint.use(t, c, "far", name, `{"focus":"x"}`)
					if tt.added == "" {
						expectReceived(t, server, before, `{"focus":"x"}`)
					} else {
						expectReceived(t, server, before, `{}`)
					}
				})
			}
		}
	}
}

// Other arguments pass unchanged.
func TestFocusOfOthers(t *testing.T) {
	isolate(t)
	const own = `{"name":"own","inputSchema":{"type":"object","properties":{"focus":{"type":"object"}}}}`
	const whole = `{"name":"whole","inputSchema":{"type":"object","properties":{}}}`
	const task = `{"name":"task","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`
	tools := []string{focusTool, own, whole, task}
	remote, off := logServer(t, tools...), logServer(t, tools...)
	unmasked, named := logServer(t, tools...), logServer(t, tools...)
	url := serve(t, gateway("separator __", block("mask", "recover on", "exempt far::whole"), "focus on",
		remote.line("far"), block(off.line("off"), "focus off"), block(unmasked.line("unmasked"), "mask off"),
		block(named.line("named"), block("focus on", "argument looking-for"))))
	isWhole := func(t *testing.T, text string) { same(t, text, focusText) }
	tests := []struct {
		name, server, tool, argument string
		from                         *remoteServer
		ours                         bool
		check                        func(t *testing.T, text string)
	}{
		{"the argument of the gateway", "far", "read", "focus", remote, true, expectFocused},
		{"an argument of the tool", "far", "own", "focus", remote, false, expectHeadAndTail},
		{"an exempt tool", "far", "whole", "focus", remote, false, isWhole},
		{"a tool that is a task", "far", "task", "focus", remote, false, expectHeadAndTail},
		{"an unknown argument", "far", "read", "looking-for", remote, false, expectHeadAndTail},
		{"off", "off", "read", "focus", off, false, expectHeadAndTail},
		{"no mask", "unmasked", "read", "focus", unmasked, false, isWhole},
		{"another name", "named", "read", "looking-for", named, true, expectFocused},
		{"the default name", "named", "read", "focus", named, false, expectHeadAndTail},
		{"a free name", "named", "own", "looking-for", named, true, expectFocused},
	}
	for _, era := range clientEras {
		for _, endpoint := range toolEndpoints(url, "")[:2] {
			for _, tt := range tests {
				t.Run(tt.name+", "+endpoint.name+", "+era.name, func(t *testing.T) {
					c := newTestClient(t, endpoint.url(tt.server), era.modern, `{}`)
					got := endpoint.descriptor(t, c, tt.server, tt.tool)
					if strings.Contains(got, focusArgument(tt.argument)) != tt.ours {
						t.Errorf("got %s", got)
					}
					before := tt.from.Count("tools/call")
					arguments := `{` + quote(tt.argument) + `:` + quote(focusGoal) + `}`
					tt.check(t, endpoint.use(t, c, tt.server, tt.tool, arguments).answer.Text())
					if tt.ours {
						arguments = `{}`
					}
					expectReceived(t, tt.from, before, arguments)
				})
			}
		}
	}
}

// Headers that repeat arguments omit the argument of the gateway.
func TestFocusAndHeaders(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Modern: true}
	url := serve(t, gateway("separator __", block("mask", "recover on", "json on"), "focus on",
		"server far http://"+upstream(t, remote)+"/mcp"))
	t.Cleanup(remote.Close)
	for _, endpoint := range toolEndpoints(url, "")[:2] {
		t.Run(endpoint.name, func(t *testing.T) {
			c := newTestClient(t, endpoint.url("far"), true, `{}`)
			endpoint.descriptor(t, c, "far", "echo")
			given := `"region":"eu","text":` + quote(focusText)
			arguments := `{` + given + `,"focus":` + quote(focusGoal) + `}`
			got := endpoint.use(t, c, "far", "echo", arguments, "Mcp-Param-Region: eu")
			if text := got.answer.Text(); !strings.Contains(text, focusFact) || !json.Valid([]byte(text)) {
				t.Errorf("got %.500s", got.answer.Raw)
			}
			calls := remote.Seen("tools/call")
			last := calls[len(calls)-1]
			if !strings.Contains(last.Body, `"arguments":{`+given+`}`) || last.Header.Get("Mcp-Param-Region") != "eu" {
				t.Errorf("the server received %v %.300s", last.Header, last.Body)
			}
		})
	}
}

// Results are redacted before they are shortened, whatever the goal.
func TestFocusAndRedaction(t *testing.T) {
	isolate(t)
	const denied = `{"name":"denied","inputSchema":{"type":"object"}}`
	remote := logServer(t, focusTool, denied)
	remote.Replies["read"] = mcptest.Text(strings.Replace(focusText, "db-17.internal", aKey, 1))
	records := make([]string, 2000)
	for i := range records {
		records[i] = fmt.Sprintf(`{"user":"u%d","password":"hunter%d"}`, i, i)
	}
	const fields = `{"name":"users","inputSchema":{"type":"object"}}`
	remote.Tools = append(remote.Tools, fields)
	remote.Replies["users"] = mcptest.Text("[" + strings.Join(records, ",") + "]")
	url := serve(t, gateway(append(withRedaction(block("mask", "recover on", "json on"), "focus on", remote.line("far")),
		block("client max", "token max-AbCdEf0123456789", "deny far::denied"))...))
	for _, era := range clientEras {
		for _, endpoint := range toolEndpoints(url, "")[:2] {
			t.Run(endpoint.name+", "+era.name, func(t *testing.T) {
				c := newTestClient(t, endpoint.url("far"), era.modern, `{}`, bearer(eveToken))
				endpoint.descriptor(t, c, "far", "read")
				call := func(c *testClient, tool, goal string) reply {
					return endpoint.use(t, c, "far", tool, `{"focus":`+quote(goal)+`}`)
				}
				fact := strings.Replace(focusFact, "db-17.internal", redacted, 1)
				text := call(c, "read", focusGoal+" "+aKey).answer.Text()
				if strings.Contains(text, aKey) || !strings.Contains(text, fact) {
					t.Errorf("got %s", text)
				}
				users := call(c, "users", "the password hunter1234 of u1234").answer.Text()
				want := `{"user":"u1234","password":"[redacted]"}`
				if strings.Contains(users, "hunter") || !strings.Contains(users, want) {
					t.Errorf("got %s", users)
				}
				joined := newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(eveToken))
				handle := focusedText.FindStringSubmatch(text)
				if handle == nil {
					t.Fatalf("no handle in %.200s", text)
				}
				again := recoverObservation(t, joined, `{"id":"`+handle[4]+`","pattern":"migration"}`).Content[0].Text
				if strings.Contains(again, aKey) || !strings.Contains(again, redacted) {
					t.Errorf("recovered %s", again)
				}
				other := newTestClient(t, endpoint.url("far"), era.modern, `{}`, bearer("max-AbCdEf0123456789"))
				if text := call(other, "read", focusGoal).answer.Text(); !strings.Contains(text, aKey) {
					t.Errorf("another client got %.300s", text)
				}
				before := remote.Count("tools/call")
				got := call(other, "denied", focusGoal).answer
				if got.Error == nil || remote.Count("tools/call") != before {
					t.Errorf("denied: got %.300s", got.Raw)
				}
			})
		}
	}
}

// Sessions and listed tools from before a reload can still use the argument.
func TestFocusAfterReload(t *testing.T) {
	isolate(t)
	remote, address := logServer(t, focusTool), freeAddress(t)
	config := func(mask string) string {
		return site(address, gateway("separator __", block(mask, "recover on"), "focus on", remote.line("far")))
	}
	load(t, config("mask"))
	type listed struct {
		*testClient
		endpoint toolEndpoint
		name     string
	}
	var clients []listed
	for _, era := range clientEras {
		for _, endpoint := range toolEndpoints("http://"+address, "")[:2] {
			c := newTestClient(t, endpoint.url("far"), era.modern, `{}`, connectionClose)
			endpoint.descriptor(t, c, "far", "read")
			clients = append(clients, listed{c, endpoint, endpoint.name + ", " + era.name})
		}
	}
	for _, reload := range []struct{ name, config string }{
		{"nothing", config("mask")},
		{"another site", config("mask") + site(freeAddress(t), "respond x")},
		{"the mask", config("mask 4000 2000 1999") + site(freeAddress(t), "respond x")},
	} {
		load(t, reload.config)
		for _, c := range clients {
			t.Run("reload of "+reload.name+", "+c.name, func(t *testing.T) {
				before := remote.Count("tools/call")
				expectFocused(t, c.endpoint.use(t, c.testClient, "far", "read", goalArguments).answer.Text())
				expectReceived(t, remote, before, `{"path":"a"}`)
			})
		}
	}
}

// The result of a call with a server request is shortened to its goal, too.
func TestFocusOfCallWithServerRequest(t *testing.T) {
	isolate(t)
	roots := make([]string, 500)
	for i := range roots {
		roots[i] = fmt.Sprintf(`{"uri":"file:///projects/%d","name":"project %d"}`, i, i)
	}
	roots[321] = `{"uri":"file:///harbour","name":"cranes of the harbour"}`
	answer := `{"roots":[` + strings.Join(roots, ",") + `]}`
	for _, server := range clientEras {
		remote := &mcptest.Remote{Name: "far", Legacy: !server.modern, Modern: server.modern}
		url := serve(t, gateway("separator __", block("mask", "recover on", "json on"), "focus on",
			"server far http://"+upstream(t, remote)+"/mcp"))
		t.Cleanup(remote.Close)
		for _, era := range clientEras {
			t.Run(era.name+", server of the era of a "+server.name, func(t *testing.T) {
				c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
				before := len(remote.Seen("tools/call"))
				params := callOf("far", "ask", `{"method":"roots/list","params":{},"focus":"where are cranes"}`)
				got := c.Request(t.Context(), "tools/call", params, func(string, json.RawMessage) string { return answer })
				text := got.Text()
				if !json.Valid([]byte(text)) || !strings.Contains(text, "id=obs_") || len(text) > 4000 {
					t.Errorf("not shortened as JSON: %d %.500s", len(text), got.Raw)
				}
				if !strings.Contains(text, roots[321]) {
					t.Errorf("not shortened to the goal: %.500s", text)
				}
				calls := remote.Seen("tools/call")[before:]
				for _, call := range calls {
					if strings.Contains(call.Body, `"focus"`) {
						t.Errorf("the server received %.500s", call.Body)
					}
				}
				if len(calls) == 0 {
					t.Error("the server received no call")
				}
			})
		}
	}
}

// Behind another gateway with the argument, the outer gateway leaves it to the inner one.
func TestFocusBehindFocus(t *testing.T) {
	isolate(t)
	remote, inner, outer := logServer(t, focusTool), freeAddress(t), freeAddress(t)
	lines := []string{"separator __", block("mask", "recover on"), "focus on"}
	load(t, site(inner, gateway(append(lines, remote.line("far"))...))+
		site(outer, gateway(append(lines, "server inner http://"+inner+"/mcp/far")...)))
	for _, era := range clientEras {
		for _, endpoint := range toolEndpoints("http://"+outer, "")[:2] {
			t.Run(endpoint.name+", "+era.name, func(t *testing.T) {
				c := newTestClient(t, endpoint.url("inner"), era.modern, `{}`)
				if got := endpoint.descriptor(t, c, "inner", "read"); strings.Count(got, focusArgument("focus")) != 1 {
					t.Errorf("got %s", got)
				}
				before := remote.Count("tools/call")
				expectFocused(t, endpoint.use(t, c, "inner", "read", goalArguments).answer.Text())
				expectReceived(t, remote, before, `{"path":"a"}`)
			})
		}
	}
}

// Endpoints that mask results but do not change lists do not have the argument.
func TestFocusAtRPC(t *testing.T) {
	isolate(t)
	remote := logServer(t, focusTool)
	url := serve(t, gateway(block("mask", "recover on"), "focus on", remote.line("far")))
	if got := post(t, rpcAt(url, "far"), rpc("tools/list", `{}`)); !strings.Contains(got.body, focusTool) {
		t.Errorf("got %s", got.body)
	}
	arguments := `{"path":"a","focus":"x"}`
	got := post(t, rpcAt(url, "far"), rpc("tools/call", `{"name":"read","arguments":`+arguments+`}`))
	expectHeadAndTail(t, toolText(t, got.body))
	expectReceived(t, remote, 0, arguments)
}

// structuredResult is the result of a tool with structured content.
type structuredResult struct {
	Content []struct {
		Type, Text, Data string
	} `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent"`
}

const (
	recordsSchema = `{"type":"object","properties":{"records":{"type":"array","items":{"type":"object","properties":{` +
		`"id":{"type":"integer"},"name":{"type":"string"},"note":{"type":"string"},` +
		`"tags":{"type":"array","items":{"type":"string","maxLength":9}}},` +
		`"required":["id","name","note","tags"],"additionalProperties":false}},"total":{"type":"integer"}},` +
		`"required":["records","total"],"additionalProperties":false}`
	resultSchema = `{"type":"object","properties":{"result":{"type":"string"}},"required":["result"]}`
)

// recordsJSON returns 2,000 records, one of which matches recordGoal, as compact and as indented
// JSON.
func recordsJSON(t *testing.T) (compact, indented string) {
	t.Helper()
	var records []string
	for i := range 2000 {
		note := fmt.Sprintf("Delivered on day %d without remarks.", i%365)
		if i == 1234 {
			note = recordNote
		}
		const format = `{"id":%d,"name":"order %d","note":%q,"tags":["t%d","é"]}`
		records = append(records, fmt.Sprintf(format, i, i, note, i%7))
	}
	compact = `{"records":[` + strings.Join(records, ",") + `],"total":2000}`
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(compact), "", "  "); err != nil {
		t.Fatal(err)
	}
	return compact, b.String()
}

const (
	recordGoal = "the order that was damaged by water"
	recordNote = "Water damage: two boxes were soaked, the customer wants a refund."
)

// Shortened results still satisfy SDKs and agents: the structured content matches its schema, the
// text says the same, and both are within the limit.
func TestFocusStructuredContent(t *testing.T) {
	isolate(t)
	compact, indented := recordsJSON(t)
	image := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("not really a picture"), 1000))
	tool := func(name, schema string) string {
		if schema != "" {
			schema = `,"outputSchema":` + schema
		}
		return `{"name":"` + name + `","inputSchema":{"type":"object"}` + schema + `}`
	}
	server := newLenientServer(t, tool("records", recordsSchema), tool("pictured", recordsSchema),
		tool("silent", recordsSchema), tool("wrapped", resultSchema), tool("plain", ""))
	text := func(s string) string { return `{"type":"text","text":` + quote(s) + `}` }
	server.Replies = map[string]string{
		"records": `"result":{"content":[` + text(indented) + `],"structuredContent":` + compact + `}`,
		"pictured": `"result":{"structuredContent":` + compact + `,"content":[` +
			`{"type":"image","data":"` + image + `","mimeType":"image/png"},` + text(compact) + `]}`,
		"silent": `"result":{"content":[],"structuredContent":` + compact + `}`,
		"wrapped": `"result":{"content":[` + text(focusText) + `],` +
			`"structuredContent":{"result":` + quote(focusText) + `}}`,
		"plain": mcptest.Text(compact),
	}
	url := serve(t, gateway("separator __", block("mask", "keep_media on", "recover on", "json on"), "focus on",
		server.line("far")))
	for _, era := range []string{"v1", "legacy", "modern"} {
		call := callAll(t, joinedAt(url), era, server.Tools)
		for _, goal := range []string{"", recordGoal} {
			name := era + ", without focus"
			if goal != "" {
				name = era + ", with focus"
			}
			// isCut checks shortened JSON of the records.
			isCut := func(t *testing.T, value string) {
				t.Helper()
				if n := utf8.RuneCountInString(value); n > 4000 || n < 2000 {
					t.Errorf("got %d characters", n)
				}
				if strings.Contains(value, recordNote) != (goal != "") {
					t.Errorf("contains the record: %t", goal == "")
				}
			}
			for _, tt := range []struct {
				tool, original string
				text, note     int // positions in the content
			}{{"records", indented, 0, 1}, {"pictured", compact, 1, 2}} {
				t.Run(name+", "+tt.tool, func(t *testing.T) {
					got := call(t, tt.tool, goal)
					if len(got.Content) != tt.note+1 {
						t.Fatalf("got %d parts: %.1000v", len(got.Content), got)
					}
					text := got.Content[tt.text].Text
					isCut(t, text)
					isCut(t, string(got.StructuredContent))
					if !reflect.DeepEqual(parseJSON(t, text), parseJSON(t, string(got.StructuredContent))) {
						t.Errorf("got text %s\nstructured content %s", text, got.StructuredContent)
					}
					expectRecovers(t, url, got.Content[tt.note].Text, tt.original)
					if tt.text == 1 && got.Content[0].Data != image {
						t.Errorf("got an image of %d characters", len(got.Content[0].Data))
					}
				})
			}
			t.Run(name+", no text", func(t *testing.T) {
				got := call(t, "silent", goal)
				isCut(t, string(got.StructuredContent))
				if len(got.Content) != 1 {
					t.Fatalf("%.1000v", got)
				}
				expectRecovers(t, url, got.Content[0].Text, compact)
			})
			t.Run(name+", no structured content", func(t *testing.T) {
				got := call(t, "plain", goal)
				if len(got.Content) != 1 || got.StructuredContent != nil {
					t.Fatalf("%.1000v", got)
				}
				text := got.Content[0].Text
				isCut(t, text)
				items := parseJSON(t, text).(map[string]any)["records"].([]any)
				markers := 0
				for _, item := range items {
					if s, ok := item.(string); ok && strings.Contains(s, "items left out id=obs_") {
						markers++
					}
				}
				if markers == 0 {
					t.Errorf("no note about the items left out: %s", text)
				}
				expectRecovers(t, url, text, compact)
			})
			t.Run(name+", a text in structured content", func(t *testing.T) {
				goal := goal
				if goal != "" {
					goal = focusGoal
				}
				got := call(t, "wrapped", goal)
				value, _ := parseJSON(t, string(got.StructuredContent)).(map[string]any)
				if len(got.Content) != 1 || value["result"] != got.Content[0].Text {
					t.Fatalf("%.1000v", got)
				}
				text := got.Content[0].Text
				if goal == "" {
					expectHeadAndTail(t, text)
				} else {
					expectFocused(t, text)
				}
				expectRecovers(t, url, got.Content[0].Text, focusText)
			})
		}
	}
}

// callAll calls all tools of the server "far" with an SDK, without focus and with each goal. It
// returns a function that returns the results.
func callAll(t *testing.T, endpoint, era string, tools []string) func(t *testing.T, tool,
	goal string) structuredResult {
	t.Helper()
	type request struct {
		Method string         `json:"method"`
		Params map[string]any `json:"params"`
	}
	var requests []request
	var keys []string
	for _, tool := range tools {
		for _, goal := range []string{"", recordGoal, focusGoal} {
			arguments := map[string]string{}
			if goal != "" {
				arguments["focus"] = goal
			}
			name := toolNameOf(t, tool)
			params := map[string]any{"name": "far__" + name, "arguments": arguments}
			requests = append(requests, request{"tools/call", params})
			keys = append(keys, name+" "+goal)
		}
	}
	type outcome struct {
		Result structuredResult
		Error  *struct{ Message string }
	}
	results := runJSON[struct{ Requests []outcome }](t, peer(t, "joined.mjs", endpoint, era), requests)
	return func(t *testing.T, tool, goal string) structuredResult {
		t.Helper()
		got := results.Requests[slices.Index(keys, tool+" "+goal)]
		if got.Error != nil {
			t.Fatalf("the client rejects the result: %s", got.Error.Message)
		}
		return got.Result
	}
}

// parseJSON returns the value of a JSON text.
func parseJSON(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Errorf("%v: %.300s", err, text)
	}
	return value
}

// expectRecovers fails the test unless the id in a note recovers this original.
func expectRecovers(t *testing.T, url, note, original string) {
	t.Helper()
	_, id, _ := strings.Cut(note, "id=")
	if id = id[:min(len(id), len("obs_")+10)]; id == "" {
		t.Fatalf("no id in %q", note)
	}
	c := newTestClient(t, joinedAt(url), false, `{}`)
	same(t, c.read(t, "proxy://observation/"+id), original)
}

// An agentRun is the search of an agent in one file.
type agentRun struct {
	ID    string
	Chars []int // of the response to each call
	Found bool
}

// An agent searches for a fact in each of 50 large files. It finds all of them in at most two calls
// each, and can recover the parts left out.
func TestFocusAgent(t *testing.T) {
	isolate(t)
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as the server sees it
	if err != nil {
		t.Fatal(err)
	}
	type file struct {
		Path string `json:"path"`
		Goal string `json:"goal"`
		Then string `json:"then"`
		Want string `json:"want"`
	}
	var files []file
	texts := haystacks(t)
	if len(texts) != 50 {
		t.Fatalf("got %d texts", len(texts))
	}
	all := texts
	texts = nil
	for i, p := range all {
		if i%*every != 0 {
			continue
		}
		texts = append(texts, p)
		path := filepath.Join(dir, p.name)
		if err := os.WriteFile(path, []byte(p.text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file{path, p.goal, cmp.Or(p.nextGoal, p.goal), p.want})
	}
	filesystem := nodeModules + "@modelcontextprotocol/server-filesystem/dist/index.js"
	url := serve(t, patientGateway("separator __", block("mask", "recover on", "json on"), "focus on",
		block("server files stdio node "+filesystem+" "+dir, "start_timeout 2m")))
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			type outcome struct {
				Focused, Plain  agentRun
				Parts, Resource string
			}
			task := map[string]any{"tool": "files__read_text_file", "files": files}
			runs := runJSON[struct {
				Version string
				ByGoal  bool
				Files   []outcome
			}](t, peer(t, "agent.mjs", joinedAt(url), era), task)
			if (runs.Version == "2026-07-28") != (era == "modern") || len(runs.Files) != len(texts) {
				t.Fatalf("got version %s, %d files", runs.Version, len(runs.Files))
			}
			var atOnce, focused, plain int
			for i, got := range runs.Files {
				p := texts[i]
				for _, run := range []struct {
					name string
					agentRun
					count *int
				}{{"with focus", got.Focused, &focused}, {"without", got.Plain, &plain}} {
					if !run.Found {
						t.Errorf("%s: did not find %q %s, in %v characters", p.name, p.goal, run.name, run.Chars)
						continue
					}
					*run.count++
				}
				if got.Focused.Found && len(got.Focused.Chars) == 1 {
					atOnce++
				}
				if slices.Max(got.Focused.Chars) > 4000+500 { // plus a note
					t.Errorf("%s: got responses with %v characters", p.name, got.Focused.Chars)
				}
				sum := sha256.Sum256([]byte(p.text))
				if want := hex.EncodeToString(sum[:]); got.Parts != want || got.Resource != want {
					t.Errorf("%s: the original has changed", p.name)
				}
			}
			t.Logf("of %d facts: %d found by focus, %d of them in one call; %d found without focus, then by goal: %t",
				len(texts), focused, atOnce, plain, runs.ByGoal)
		})
	}
}
