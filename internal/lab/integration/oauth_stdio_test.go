package integration

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
)

// A client that starts the gateway as a process logs in at an address that the process opens
// for that.
func TestOAuthStdio(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, map[string]any{})
	cmd := caddy(t, "mcp-stdio", "--config", inFile(t, site(freeAddress(t), gateway(a.line("oauth"), "separator __"))))
	var logged bytes.Buffer
	cmd.Stderr = &logged
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	// ask sends a request, and returns the answer.
	ask := func(message string) string {
		t.Helper()
		if _, err := io.WriteString(stdin, strings.TrimSpace(message)+"\n"); err != nil {
			t.Fatalf("%v\n%s", err, &logged)
		}
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v\n%s", err, &logged)
			}
			if strings.Contains(line, `"result":`) || strings.Contains(line, `"error":`) {
				return line
			}
		}
	}
	ask(stdioGreeting)
	text := toolText(t, ask(toolCall{"notes__login", `{}`}.request()))
	address := loginAddress.FindString(text)
	if !strings.HasPrefix(address, "http://127.0.0.1:") {
		t.Fatalf("got %s, want an address of this machine", text)
	}
	isLoggedIn(t, newFormBrowser(t).logIn(t, address, "alice"))
	if got := toolText(t, ask(toolCall{"notes__whoami", `{}`}.request())); got != "whoami of alice" {
		t.Errorf("got %s", got)
	}
	// Only the pages are served there.
	if at, _ := newFormBrowser(t).open(t, address[:strings.Index(address, "/oauth/")]); at.status == 200 && at.text != "" {
		t.Errorf("the gateway itself is served, too: %d %s", at.status, at.text)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, lines)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, &logged)
	}
}
