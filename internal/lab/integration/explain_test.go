package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
