package integration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
	if rows := m.run(t); rows < 20_000 {
		t.Errorf("%d rows, want 20,000", rows)
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
