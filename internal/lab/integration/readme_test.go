package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A command is a command block of a document, with the documented output.
type command struct {
	typed  string
	output string // empty if not documented
}

// commandBlocks matches a block of commands. A block that directly follows is the output.
var commandBlocks = regexp.MustCompile("(?m)^```sh\n([^`]*)^```\n(?:\n^```\n([^`]*)^```\n)?")

// commands returns the commands of a document. The path is relative to the project.
func commands(t *testing.T, document string) (found []command) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../..", document))
	if err != nil {
		t.Fatal(err)
	}
	found = commandsIn(string(text))
	if blocks := strings.Count(string(text), "```sh\n"); len(found) != blocks {
		t.Fatalf("%s: only %d of %d command blocks were parsed", document, len(found), blocks)
	}
	return found
}

// commandsIn returns the commands in an excerpt of a document.
func commandsIn(text string) (found []command) {
	for _, block := range commandBlocks.FindAllStringSubmatch(text, -1) {
		found = append(found, command{block[1], block[2]})
	}
	return found
}

// runCommands runs commands in order in one shell, in the project's folder, and returns the output
// of each.
func runCommands(t *testing.T, served *caddyProcess, typed []command) []string {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Dir = "../../.."
	shell.Env = append(os.Environ(), "CADDY_ADMIN="+served.addresses[":2019"]) // the admin address that commands use
	return runCommandsIn(t, shell, served, typed)
}

// runCommandsIn is runCommands with a shell command that is prepared to run with -c.
func runCommandsIn(t *testing.T, shell *exec.Cmd, served *caddyProcess, typed []command) []string {
	t.Helper()
	const end = "-- end of output --"
	var script strings.Builder
	for _, c := range typed {
		script.WriteString(c.typed + "echo; echo '" + end + "'\n")
	}
	calls := replaceAddresses(script.String(), served)
	for port, address := range served.addresses {
		if port != ":2019" { // a shell function in the README takes the other ports as numbers
			calls = strings.ReplaceAll(calls, "tell "+port[1:], "tell "+address[strings.LastIndex(address, ":")+1:])
		}
	}
	shell.Args = append(shell.Args, calls)
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Split(string(out), end)
}

// The commands of these documents run against the binary with the shipped Caddyfile. Their
// output must match the documented output.
func TestDocumentedCalls(t *testing.T) {
	isolate(t)
	for _, document := range []string{"README.md", "docs/mcp_pruner.md", "docs/tool_result_mask.md"} {
		t.Run(document, func(t *testing.T) {
			var typed []command
			for _, c := range commands(t, document) {
				if c.output != "" {
					typed = append(typed, c)
				}
			}
			if len(typed) == 0 {
				t.Fatal("no commands with their output")
			}
			got := runCommands(t, run(t, "../../../Caddyfile"), typed)
			for i, c := range typed {
				same(t, someSeconds.ReplaceAllString(strings.TrimSpace(got[i]), "0.0 s"), strings.TrimSpace(c.output))
			}
		})
	}
}

// The commands of docs/access.md: a signed request, and the approval of changed tools, which do
// not exist here.
func TestAccessCommands(t *testing.T) {
	isolate(t)
	for _, name := range []string{"openssl", "curl"} {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(`:8080 {
	bind 127.0.0.1
	mcp_gateway {
		auth hmac {
			client alice {env.ALICE_SECRET}
		}
		server files {
			mcp_sample
		}
	}
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := "ALICE_SECRET=" + strings.Repeat("s", 32)
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Env = append(os.Environ(), secret)
	got := runCommandsIn(t, shell, run(t, file, secret), commands(t, "docs/access.md"))
	for i, want := range []string{`"name":"read_log"`, `"code":"not_found"`} {
		if !strings.Contains(got[i], want) {
			t.Errorf("%s is not in %s", want, got[i])
		}
	}
}
