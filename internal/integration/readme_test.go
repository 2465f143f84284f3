package integration

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// What the README tells people to type is typed here, in its order and in one
// shell, against the binary with the shipped Caddyfile; and what it says comes out
// must come out.
func TestReadmeCalls(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const end = "-- end of output --"
	var script strings.Builder
	var want []string
	for _, block := range regexp.MustCompile("```sh\n([^`]*)```\n\n```\n([^`]*)```").FindAllStringSubmatch(string(readme), -1) {
		script.WriteString(block[1] + "echo; echo '" + end + "'\n")
		want = append(want, block[2])
	}
	if len(want) != 9 {
		t.Fatalf("%d commands with their output in the README", len(want))
	}

	served := run(t, "../../Caddyfile")
	calls := script.String()
	for port, address := range served.moved {
		calls = strings.ReplaceAll(calls, "127.0.0.1"+port, address)
		if port != ":2019" { // a function of the README takes the others as numbers
			calls = strings.ReplaceAll(calls, "tell "+port[1:], "tell "+address[strings.LastIndex(address, ":")+1:])
		}
	}
	shell := exec.CommandContext(t.Context(), "bash", "-c", calls)
	shell.Dir = "../.."
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := strings.Split(string(out), end)
	for i := range want {
		same(t, strings.TrimSpace(got[i]), strings.TrimSpace(want[i]))
	}
}
