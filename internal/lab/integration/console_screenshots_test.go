package integration

import (
	"bytes"
	"fmt"
	"image/png"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// screenshotTools are the tools of the servers in the screenshots.
var screenshotTools = []struct {
	server, tool, description, arguments string
	lines                                int // of its result
}{
	{"files", "read_file", "Reads a text file.", `{"path":"internal/orders/store.go"}`, 700},
	{"files", "list_directory", "Lists what is in a directory.", `{"path":"internal/orders"}`, 12},
	{"github", "list_issues", "Lists the issues of a repository.", `{"path":"orders"}`, 280},
	{"files", "read_file", "", `{"path":"internal/orders/handler.go"}`, 0}, // the most frequent call of agents
	{"files", "search_files", "Finds the files whose text fits a pattern.", `{"path":"internal"}`, 450},
	{"database", "query", "Runs a query that only reads.", `{"path":"select * from orders"}`, 1100},
	{"github", "get_pull_request", "Shows a pull request with its comments.", `{"path":"orders/412"}`, 160},
}

// screenshotServer returns one of the servers in the screenshots.
func screenshotServer(t *testing.T, name string) string {
	t.Helper()
	script := &mcptest.Script{Replies: map[string]string{}}
	for _, p := range screenshotTools {
		if p.server != name || p.lines == 0 {
			continue
		}
		script.Tools = append(script.Tools, fmt.Sprintf(`{"name":%q,"description":%q,"annotations":{"readOnlyHint":true},`+
			`"inputSchema":{"type":"object",`+
			`"properties":{"path":{"type":"string","description":"Where to look."},"limit":{"type":"integer",`+
			`"description":"How many lines at most.","default":1000}},"required":["path"]}}`,
			p.tool, p.description))
		var text strings.Builder
		for i := range p.lines {
			fmt.Fprintf(&text, "%4d  case state%d: return s.order(ctx, %d)\n", i+1, i+1, i+1)
		}
		script.Replies[p.tool] = mcptest.Text(text.String())
	}
	script.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
		if r.Tool() == "" {
			return false
		}
		n := script.Count("tools/call")
		time.Sleep(time.Duration(3+n%5*n%7*9) * time.Millisecond) // like a server that does some work
		if r.Tool() != "query" || n%9 != 0 {
			return false
		}
		r.Answer(w, `"result":{"isError":true,"content":[{"type":"text","text":"canceling statement due to statement `+
			`timeout"}]}`)
		return true
	}
	return serveScript(t, script).line(name)
}

// The screenshots of the documentation can be taken. $UPDATE_SCREENSHOTS updates them, which takes
// ten minutes: the period that one of them shows.
func testConsoleScreenshots(t *testing.T, c *chromium) {
	url := serve(t, block("mcp_console", "price 3"),
		gateway("name local", "separator __", "record on", block("mask", "json on"),
			block("client cline", "token "+tokenOfAlice), block("client codex", "token "+tokenOfBob, "deny database::*"),
			screenshotServer(t, "files"), screenshotServer(t, "github"), screenshotServer(t, "database")),
		modelRoute(t, "coding"))
	agents := []*testClient{newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice)),
		newTestClient(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))}
	update := os.Getenv("UPDATE_SCREENSHOTS") != ""
	began := time.Now()
	for i := 0; i < 30 || update && time.Since(began) < 10*time.Minute; i++ {
		p := screenshotTools[i%len(screenshotTools)]
		agents[i/5%2].Start(t.Context(), "tools/call", callOf(p.server, p.tool, p.arguments)).Finish()
		if update { // more or less load, like real users
			time.Sleep(time.Duration(300+200*math.Sin(float64(i)/40)+90*math.Sin(float64(i)/7)) * time.Millisecond)
		}
		if i%10 == 0 {
			post(t, url+"/v1/chat/completions", b2Sent)
		}
	}
	b := c.newTab(t, url)
	b.setView(t, 1280, false)
	for _, tt := range []struct {
		name string
		show func()
	}{
		{"overview", func() { b.open(t, "/console/"); b.awaitLive(t) }},
		{"calls", func() { b.open(t, "/console/calls"); b.awaitLive(t) }},
		{"tool", func() {
			b.open(t, "/console/tools/files__read_file")
			b.fill(t, "path", "internal/orders/store.go")
			b.press(t, "Call it")
			b.until(t, "the gap", `document.querySelector("#result mark")`)
			value[bool](t, b, `document.querySelector("#result mark").scrollIntoView({block: "center"}),
				scrollTo(0, document.querySelector("#result").offsetTop - 430), document.activeElement.blur(), true`)
		}},
	} {
		tt.show()
		got, err := act(t, b, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.DecodeConfig(bytes.NewReader(got))
		if err != nil || picture.Width != 1280 || picture.Height != 900 || len(got) > 200_000 {
			t.Errorf("%s: %d by %d pixels, %d bytes, %v", tt.name, picture.Width, picture.Height, len(got), err)
		}
		if update {
			if err := os.WriteFile(filepath.Join("../../../docs", "console-"+tt.name+".png"), got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
