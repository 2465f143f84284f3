package integration

import (
	"strings"
	"testing"
)

// A client that runs the gateway over stdio logs in at an address that the process opens
// for logins.
func TestOAuthStdio(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, map[string]any{})
	p := startStdio(t, writeCaddyfile(t, site(freeAddress(t), gateway(a.line("oauth"), "separator __"))))
	ask := func(message string) string {
		t.Helper()
		p.send(t, message)
		return p.receive(t, "").Raw
	}
	ask(stdioHandshake)
	text := toolText(t, ask(toolCall{"notes__login", `{}`}.request()))
	address := loginAddress.FindString(text)
	if !strings.HasPrefix(address, "http://127.0.0.1:") {
		t.Fatalf("got %s, want a loopback address", text)
	}
	expectLoggedIn(t, newFormBrowser(t).logIn(t, address, "alice"))
	if got := toolText(t, ask(toolCall{"notes__whoami", `{}`}.request())); got != "whoami of alice" {
		t.Errorf("got %s", got)
	}
	// Only the login pages are served there.
	if page, _ := newFormBrowser(t).open(t, address[:strings.Index(address, "/oauth/")]); page.status == 200 &&
		page.text != "" {
		t.Errorf("the gateway itself is also served: %d %s", page.status, page.text)
	}
	p.close(t)
}
