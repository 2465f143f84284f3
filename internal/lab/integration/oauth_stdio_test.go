package integration

import (
	"strings"
	"testing"
)

// A client that starts the gateway as a process logs in at an address that the process opens
// for that.
func TestOAuthStdio(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, map[string]any{})
	p := startStdio(t, inFile(t, site(freeAddress(t), gateway(a.line("oauth"), "separator __"))))
	ask := func(message string) string {
		t.Helper()
		p.say(t, message)
		return p.hear(t, "").Raw
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
	p.end(t)
}
