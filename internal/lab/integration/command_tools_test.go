package integration

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The command lists the tools of a running Caddy, with a reachable server and an unreachable one.
func TestCommandTools(t *testing.T) {
	isolate(t)
	sample := block("server sample", "mcp_sample")
	gone := "server gone " + "http://" + freeAddress(t) + "/mcp"
	ann := block("client ann", "allow sample::read_*")
	all := []string{"sample__read_log", "sample__read_image", "sample__list_files", "sample__echo"}
	for _, tt := range []struct {
		name    string
		lines   []string
		args    []string
		want    []string // tools of the server
		focused bool
		gone    bool // the unreachable server is named
	}{
		{"all", []string{sample, gone}, nil, all, false, true},
		{"with focus", []string{"mask", "focus on", sample, gone}, nil, all, true, true},
		{"a client", []string{ann, sample, gone}, []string{"--client", "ann"}, all[:2], false, false},
		{"a client, with focus", []string{"mask", "focus on", ann, sample, gone}, []string{"--client", "ann"},
			all[:2], true, false},
		{"the operator, if a client has rules", []string{ann, sample, gone}, nil, all, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			served := run(t, writeCaddyfile(t, site("127.0.0.1:8080", gateway(append(tt.lines, "separator __")...))))
			cmd := caddy(t, slices.Concat([]string{"mcp", "tools", "--address", served.addresses[":2019"]}, tt.args)...)
			var out, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &stderr
			err := cmd.Run()
			var names []string
			for line := range strings.Lines(out.String()) {
				if fields := strings.Fields(line); fields[0] == "sample" {
					names = append(names, fields[1])
				}
			}
			if err != nil || !slices.Equal(names, tt.want) {
				t.Errorf("%v: %s%s", err, &out, &stderr)
			}
			if named := strings.Contains(stderr.String(), "gone is not listed: connect_error"); named != tt.gone {
				t.Errorf("stderr: %s", &stderr)
			}
			checkTokens(t, out.String(), len(tt.want), tt.focused)
			if restricted := strings.Contains(tt.name, "the operator"); restricted != strings.Contains(out.String(),
				"clients") ||
				restricted && !regexp.MustCompile(`read_log +\d+ +all\n(?s:.*)echo +\d+ +none\n`).MatchString(out.String()) {
				t.Errorf("clients: %s", &out)
			}

			clients := send(t, client, "GET", "http://"+served.addresses[":2019"]+"/mcp_gateway/clients", "").body
			if strings.Contains(clients, `"sessions"`) || strings.Contains(clients, "last_seen") {
				t.Errorf("the command counts as a client: %s", clients)
			}
		})
	}
	t.Run("an unknown client", func(t *testing.T) {
		served := run(t, writeCaddyfile(t, site("127.0.0.1:8080", gateway(ann, sample))))
		toolsFail(t, `unknown client "bob"`, "--client", "bob", "--address", served.addresses[":2019"])
		toolsFail(t, `unknown gateway "none"`, "--gateway", "none", "--address", served.addresses[":2019"])
		served.stop(t)
		toolsFail(t, "refused", "--address", served.addresses[":2019"])
	})
	t.Run("no gateway", func(t *testing.T) {
		served := run(t, writeCaddyfile(t, site("127.0.0.1:8080", "respond hello")))
		toolsFail(t, "no mcp_gateway is running", "--address", served.addresses[":2019"])
	})
}

var (
	toolRow  = regexp.MustCompile(`(?m)^(sample|-) +\S+ +(\d+)(?: +(\d+))?(?: +(?:all|none))?$`)
	toolSums = regexp.MustCompile(`(?m)^(\d+) tools?: ([\d,]+) tokens(?:, of which focus ([\d,]+))?\n\z`)
)

// checkTokens checks the token columns, and their sums in the last line.
func checkTokens(t *testing.T, out string, tools int, focused bool) {
	t.Helper()
	rows, sums := toolRow.FindAllStringSubmatch(out, -1), toolSums.FindStringSubmatch(out)
	if len(rows) < tools || sums == nil || !strings.HasPrefix(strings.Join(strings.Fields(out), " "),
		"server name tokens ") ||
		(sums[3] != "") != focused {
		t.Fatalf("got %s", out)
	}
	tokens, focus := 0, 0
	for _, row := range rows {
		var ofRow, ofFocus int
		if _, err := fmt.Sscan(row[2]+" "+cmp.Or(row[3], "0"), &ofRow, &ofFocus); err != nil {
			t.Fatal(err)
		}
		if ofRow < 20 || (ofFocus > 0) != (focused && row[1] == "sample") || ofFocus > 40 {
			t.Errorf("%s", row[0])
		}
		tokens, focus = tokens+ofRow, focus+ofFocus
	}
	want := fmt.Sprint(len(rows), tokens, focus)
	if got := strings.ReplaceAll(strings.Join(append(sums[1:3], cmp.Or(sums[3], "0")), " "), ",", ""); got != want {
		t.Errorf("got sums %s, want %s:\n%s", got, want, out)
	}
}

// toolsFail runs the command, which must exit with status 1 and this error.
func toolsFail(t *testing.T, why string, args ...string) {
	t.Helper()
	cmd := caddy(t, append([]string{"mcp", "tools"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), why) {
		t.Errorf("%q: %v: %s", args, err, out)
	}
}
