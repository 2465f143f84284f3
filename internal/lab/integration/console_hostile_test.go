package integration

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Texts that attack a page that does not escape them.
const (
	hostileImage  = `<img src=x onerror=window.hacked=1>`
	hostileScript = `"><script>window.hacked=1</script>`
	hostileQuote  = `' onmouseover=window.hacked=1 x='`
	hostileLink   = `javascript:window.hacked=1`
	hostileEnds   = `</textarea></pre></title></template></select>` + "`${window.hacked=1}`"
	hostileRest   = `{{.}} &lt;b&gt; %3Cb%3E ` + "\u202Edrawkcab\u2028"
)

var hostileAll = strings.Join([]string{hostileImage, hostileScript, hostileQuote, hostileLink, hostileEnds,
	hostileRest}, " ")

// expectHarmless fails the test if one of these texts became more than text on the page.
func (b *tab) expectHarmless(t *testing.T) {
	t.Helper()
	const made = `[...document.querySelectorAll("img[onerror], img[src='x'], [onmouseover], script:not([src]), b, [href^='javascript:' i]," +
		"[src^='javascript:' i], [action^='javascript:' i], iframe, object, embed, base, [style]")].map(e => e.outerHTML.slice(0, 300))`
	if got := value[[]string](t, b, made); len(got) > 0 {
		t.Errorf("%s has elements made from texts: %q", b.path(t), got)
	}
	// Trigger handlers that wait for the mouse or a click.
	value[bool](t, b, `document.querySelectorAll("main *").forEach(e => e.dispatchEvent(new MouseEvent("mouseover", `+
		`{bubbles: true}))), true`)
	if value[bool](t, b, `"hacked" in window`) {
		t.Errorf("%s was hacked", b.path(t))
	}
}

// minimalJSON returns a text as JSON with as few escapes as possible, like most servers.
func minimalJSON(text string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(quote(text))
}

// hostileSite serves a site whose server, client and route have hostile names and texts. It returns
// its address and its client.
func hostileSite(t *testing.T) (string, *testClient) {
	t.Helper()
	text := minimalJSON(hostileAll)
	schema := func(name string) string {
		return fmt.Sprintf(`{"name":%s,"title":%s,"description":%s,"annotations":{"title":%s,"readOnlyHint":true},"inputSchema":{"type":"object","description":%s,
			"properties":{%s:{"type":"string","title":%s,"description":%s,"default":%s},"choice":{"type":"string","enum":[%s,"b"],"description":%s},
			"many":{"type":"array","items":{"type":%s},"default":[%s]}},"required":[%s]}}`,
			minimalJSON(name), text, text, text, text, text, text, text, text, text, text, text, text, text)
	}
	hostile := serveScript(t, &mcptest.Script{
		Tools: []string{schema("tool"), schema(hostileImage), schema(hostileScript),
			schema("a/b?c#d%2Fe&f=" + hostileQuote)},
		Resources: []string{"file:///" + hostileImage, hostileLink},
		Replies: map[string]string{
			"initialize": fmt.Sprintf(`"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{}},`+
				`"instructions":%s,`+
				`"serverInfo":{"name":%s,"title":%s,"version":%s,"websiteUrl":%s}}`, text, text, text, text,
				minimalJSON(hostileLink)),
			"tool":       mcptest.Text(hostileAll),
			hostileImage: `"error":{"code":-32000,"message":` + text + `,"data":` + text + `}`,
			hostileScript: `"result":{"isError":true,"content":[{"type":"text","text":` + text + `},{"type":` + text +
				`},{"type":"image","mimeType":` + text + `,"data":"AAAA"}],"structuredContent":{` + text + `:` + text + `}}`,
		},
	})
	site := serve(t,
		"mcp_console",
		block("basic_auth /mcp*", strconv.Quote(hostileImage)+
			" $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq"),
		gateway("name "+strconv.Quote("g"+hostileScript), "separator __", "record on", "pin_tools on", "mask 200 20 20",
			hostile.line("hostile"), child("alpha")),
		modelRoute(t, strconv.Quote(hostileImage)))
	user := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(hostileImage+":alice"))
	c := newTestClient(t, joinedAt(site), false, `{}`, user)
	for _, tool := range []string{"tool", hostileImage, hostileScript, "no such " + hostileScript} {
		c.begin(t, "tools/call", callOf("hostile", tool, `{`+text+`:`+text+`}`)).Finish()
	}
	c.begin(t, "resources/read", `{"uri":`+quote("file:///"+hostileImage)+`}`).Finish()
	c.begin(t, "prompts/get", `{"name":`+text+`}`).Finish()
	c.use(t, "alpha", "stderr", `{"lines":3,"text":`+text+`}`)
	c.begin(t, "tools/call", callOf("alpha", "die", `{"code":3}`)).Finish()
	post(t, site+"/v1/chat/completions", b2Sent)
	control[struct{}](t, "GET", "/tools", "", 200) // pins the tools
	hostile.Change(func(s *mcptest.Script) {
		s.Tools[0] = strings.Replace(s.Tools[0], `"many"`, minimalJSON("more "+hostileScript), 1)
	})
	control[struct{}](t, "POST", "/servers/hostile/refresh", "", 200)
	return site, c
}

// Pages show hostile texts of servers, clients, configurations and URLs as text, without other
// effects.
func testConsoleHostile(t *testing.T, c *chromium) {
	site, agent := hostileSite(t)
	b := c.newTab(t, site)
	b.setView(t, 1280, false)
	paths := []string{"/console/", "/console/conversations", "/console/connect"}
	for _, list := range []string{"/console/servers", "/console/tools?server=hostile", "/console/calls"} {
		b.open(t, list)
		b.expectHarmless(t)
		before, _, _ := strings.Cut(list, "?")
		found := b.links(t, before+"/")
		if len(found) == 0 {
			t.Errorf("%s has no links", list)
		}
		paths = append(paths, found...)
	}
	seen := map[string]bool{} // kinds of pages that show a hostile text
	for _, path := range paths {
		if kind := strings.Split(path, "/")[2]; !seen[kind] {
			b.checkPage(t, path)
		} else {
			b.open(t, path)
		}
		b.expectHarmless(t)
		if value[bool](t, b, `document.body.innerText.includes(`+quote(hostileImage)+`) ||
			[...document.querySelectorAll("input, textarea")].some(e => (e.value + e.placeholder).includes(`+
			quote(hostileImage)+`))`) {
			seen[strings.Split(path, "/")[2]] = true
		}
	}
	for _, kind := range []string{"servers", "tools", "calls", "conversations"} {
		if !seen[kind] {
			t.Errorf("no page of %s shows %s", kind, hostileImage)
		}
	}

	b.open(t, "/console/servers/hostile")
	b.until(t, "the difference", `document.querySelector(".diff").innerText.includes(`+quote(`more `+`\"><script>`)+`)`)
	b.checkPage(t, "/console/servers/hostile")

	b.open(t, "/console/tools/hostile__"+url.PathEscape(hostileScript))
	b.press(t, "Call it")
	b.until(t, "the result", `document.querySelector("#result").innerText.includes(`+quote(hostileImage)+`)`)
	b.expectHarmless(t)

	b.open(t, "/console/calls")
	b.awaitLive(t)
	agent.begin(t, "tools/call", callOf("hostile", hostileImage+" now", `{}`)).Finish()
	b.until(t, "a new row", rowsWith(hostileImage+" now"))
	b.expectSamePage(t)
	b.expectHarmless(t)

	query, part := url.QueryEscape(hostileAll), url.PathEscape(hostileAll)
	for _, path := range []string{
		"/console/tools?q=" + query, "/console/tools?client=" + query, "/console/tools?server=" + query,
		"/console/?gateway=" + query,
		"/console/servers?gateway=" + query, "/console/servers?did=" + query, "/console/servers/alpha?did=" + query,
		"/console/calls?client=" + query + "&server=" + query + "&tool=" + query + "&outcome=" + query,
		"/console/connect?gateway=" + query,
		"/console/tools/hostile__tool?client=" + query, "/console/tools/hostile__tool?gateway=" + query, "/console/" + part,
		"/console/servers/" + part,
		"/console/tools/" + part, "/console/calls/" + part, "/console/calls/1/originals/" + part, "/console/assets/" + part,
		"/console/live/" + part,
	} {
		status := b.openStatus(t, path)
		if status >= 500 {
			t.Errorf("%s: status %d\n%s", path, status, b.text())
		}
		b.expectHarmless(t)
	}
	b.expectFaults(t, "the server responded with a status of 40") // of unknown pages
}
