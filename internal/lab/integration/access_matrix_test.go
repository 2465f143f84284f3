package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
}

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

// matrixTools returns the tools of two servers, with all combinations of annotations.
func matrixTools() (all []matrixTool) {
	add := func(server, members string, is []string) {
		name := fmt.Sprintf("t%d", len(all))
		if members != "" {
			members = "," + members
		}
		definition := fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}%s}`,
			name, matrixWords[len(all)%3], members)
		all = append(all, matrixTool{server, name, definition, is})
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

// decidedBy returns what rules say to a tool, as the documentation has it: the first that selects it
// decides. It knows nothing of how the gateway does that.
func decidedBy(rules string, tool matrixTool) string {
	byDefault := "allow"
	for line := range strings.Lines(rules) {
		words := strings.Fields(line)
		if words[0] == "allow" {
			byDefault = "deny"
		}
	}
	for line := range strings.Lines(rules) {
		words := strings.Fields(line)
		switch words[0] {
		case "default":
			byDefault = words[1]
			continue
		case "redact":
			continue
		}
		for _, pattern := range words[1:] {
			annotation, names, ok := strings.Cut(pattern, ":")
			switch {
			case strings.HasPrefix(names, ":") || pattern == "*": // server::tool
				annotation, names = "tool", pattern
			case !ok:
				names = "*"
			}
			like := "^" + strings.ReplaceAll(regexp.QuoteMeta(names), `\*`, ".*") + "$"
			if regexp.MustCompile(like).MatchString(tool.server+"::"+tool.name) &&
				(annotation == "tool" || slices.Contains(tool.is, annotation)) {
				return words[0]
			}
		}
	}
	return byDefault
}

// ruleRefusals are the codes of what rules refuse to a client that cannot be asked.
var ruleRefusals = map[string]string{"allow": "", "deny": "acl_denied", "confirm": "confirmation_required"}

// A matrixWay is how a client reaches tools: it lists them as server::tool, and calls them.
type matrixWay struct {
	name string
	list func(t *testing.T) []string
	call func(t *testing.T, server, tool, arguments string) mcpclient.Message
}

// toolParams are the params of a tools/call.
func toolParams(name, arguments string) string {
	return `{"name":` + quote(name) + `,"arguments":` + arguments + `}`
}

// joinedWay is the way by an endpoint that has all servers as one.
func joinedWay(name string, c *speaker) matrixWay {
	return matrixWay{name, func(t *testing.T) []string { return toolsOf(t, c) },
		func(t *testing.T, server, tool, arguments string) mcpclient.Message {
			return c.ask(t, "tools/call", toolParams(server+"::"+tool, arguments)).answer
		}}
}

// discoveryWay is the way by the tools that find and call others.
func discoveryWay(name string, c *speaker, all []matrixTool) matrixWay {
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
			shown := tool.server + "::" + tool.name
			got := c.ask(t, "tools/call", toolParams("describe_tool", `{"name":`+quote(shown)+`}`)).answer
			if described := strings.HasPrefix(got.Text(), "{"); described != slices.Contains(names, shown) {
				t.Errorf("%s is described: %t, is found: %t", shown, described, !described)
			}
		}
		return names
	}
	return matrixWay{name, list, func(t *testing.T, server, tool, arguments string) mcpclient.Message {
		return c.ask(t, "tools/call", byCallTool(server+"::"+tool, arguments)).answer
	}}
}

// singleWay is the way by an endpoint for each server.
func singleWay(name string, at func(server string) *speaker) matrixWay {
	to := map[string]*speaker{"up": at("up"), "peer": at("peer")}
	list := func(t *testing.T) (names []string) {
		t.Helper()
		for server, c := range to {
			for _, tool := range toolsOf(t, c) {
				names = append(names, server+"::"+tool)
			}
		}
		return names
	}
	return matrixWay{name, list, func(t *testing.T, server, tool, arguments string) mcpclient.Message {
		return to[server].ask(t, "tools/call", toolParams(tool, arguments)).answer
	}}
}

// stdioWay is the way by `caddy mcp-stdio`.
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
	return matrixWay{"mcp-stdio", list, func(t *testing.T, server, tool, arguments string) mcpclient.Message {
		return ask(t, "tools/call", toolParams(server+"::"+tool, arguments))
	}}
}

// TestAccessMatrix has clients with rules of all kinds list and call tools with all combinations of
// annotations, by all ways. A tool is listed if and only if its call reaches the server.
func TestAccessMatrix(t *testing.T) {
	isolate(t)
	all := matrixTools()
	servers := map[string]*remoteServer{"up": newLenientServer(t), "peer": newLenientServer(t)}
	for _, tool := range all {
		servers[tool.server].Tools = append(servers[tool.server].Tools, tool.definition)
	}
	tokenOf := func(i int) string { return fmt.Sprintf("matrix-%04d-AbCdEf0123456789", i) }
	lines := []string{block(servers["up"].line("up"), "request_header X-Added yes"), servers["peer"].line("peer")}
	for i, rules := range matrixRules {
		lines = append(lines, block("client c"+strconv.Itoa(i), "token "+tokenOf(i), rules))
	}
	joined, discovery := freeAddress(t), freeAddress(t)
	config := site(joined, gateway(append(lines, "name joined")...))
	load(t, config+site(discovery, gateway(append(lines, "name discovery", "discovery on")...)))
	file := inFile(t, config)
	joined, discovery = "http://"+joined, "http://"+discovery

	var rows, allowed atomic.Int64
	t.Run("clients", func(t *testing.T) {
		for i, rules := range matrixRules {
			t.Run(cmp.Or(strings.ReplaceAll(rules, "\n", ", "), "no rules"), func(t *testing.T) {
				t.Parallel()
				at := func(url string, modern bool) *speaker {
					return newSpeaker(t, url, modern, `{}`, bearer(tokenOf(i)))
				}
				ways := []matrixWay{
					joinedWay("legacy", at(joinedAt(joined), false)),
					joinedWay("modern", at(joinedAt(joined), true)),
					discoveryWay("discovery legacy", at(joinedAt(discovery), false), all),
					discoveryWay("discovery modern", at(joinedAt(discovery), true), all),
					singleWay("single legacy", func(s string) *speaker { return at(mcpAt(joined, s), false) }),
					singleWay("single modern", func(s string) *speaker { return at(mcpAt(joined, s), true) }),
					singleWay("rpc", func(s string) *speaker {
						token := []string{bearer(tokenOf(i))}
						return &speaker{&mcpclient.Client{URL: rpcAt(joined, s), Headers: token, HTTP: lasting}}
					}),
				}
				if i%6 == 1 { // each starts a process
					p := startStdio(t, file, "--client", "c"+strconv.Itoa(i))
					defer p.end(t)
					ways = append(ways, stdioWay(t, p))
				}
				for n := range ways {
					way := ways[(n+i)%len(ways)] // so that each is the first of some client
					var listed, called []string
					if i%2 == 0 && n%2 == 0 {
						listed = way.list(t) // otherwise the first calls come before it
					}
					for _, tool := range all {
						shown, decision := tool.server+"::"+tool.name, decidedBy(rules, tool)
						arguments := fmt.Sprintf(`{"client":"c%d","tool":%q,"way":%q}`, i, shown, way.name)
						got, code := way.call(t, tool.server, tool.name, arguments), ""
						if got.Error != nil {
							code = got.Error.Symbol()
						}
						if code != ruleRefusals[decision] || (got.Error == nil) == (got.Result == nil) {
							t.Errorf("%s: %s: %s: got %s, want %s", way.name, shown, tool.definition, got.Raw, decision)
						}
						if decision == "allow" {
							called = append(called, shown)
						}
					}
					if listed == nil {
						listed = way.list(t)
					}
					slices.Sort(listed)
					if slices.Sort(called); !slices.Equal(listed, called) {
						t.Errorf("%s: listed %v, want %v", way.name, listed, called)
					}
					rows.Add(int64(len(all)))
					allowed.Add(int64(len(called)))
				}
			})
		}
	})
	reached := map[string]bool{}
	for name, s := range servers {
		for _, r := range s.Received("tools/call") {
			var call struct {
				Name      string
				Arguments struct{ Client, Tool, Way string }
			}
			if err := json.Unmarshal(r.Params, &call); err != nil {
				t.Fatal(err)
			}
			row := fmt.Sprint(call.Arguments)
			if reached[row] || call.Arguments.Tool != name+"::"+call.Name {
				t.Errorf("%s was called again, or as another tool: %s", row, r.Params)
			}
			reached[row] = true
		}
	}
	t.Logf("%d rows, %d calls let through", rows.Load(), len(reached))
	if int(allowed.Load()) != len(reached) {
		t.Errorf("%d calls reached the servers, want %d", len(reached), allowed.Load())
	}
	if rows.Load() < 10_000 {
		t.Errorf("%d rows, want 10,000", rows.Load())
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
