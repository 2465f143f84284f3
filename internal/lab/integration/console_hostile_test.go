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

// Texts that would be more than texts, if a page let them.
const (
	hostileImage  = `<img src=x onerror=window.hacked=1>`
	hostileScript = `"><script>window.hacked=1</script>`
	hostileQuote  = `' onmouseover=window.hacked=1 x='`
	hostileLink   = `javascript:window.hacked=1`
	hostileEnds   = `</textarea></pre></title></template></select>` + "`${window.hacked=1}`"
	hostileRest   = `{{.}} &lt;b&gt; %3Cb%3E ` + "\u202Edrawkcab\u2028"
)

var hostileAll = strings.Join([]string{hostileImage, hostileScript, hostileQuote, hostileLink, hostileEnds, hostileRest}, " ")

// isHarmless wants nothing of these texts to have become more than text.
func (b *tab) isHarmless(t *testing.T) {
	t.Helper()
	const made = `[...document.querySelectorAll("img[onerror], img[src='x'], [onmouseover], script:not([src]), b, [href^='javascript:' i]," +
		"[src^='javascript:' i], [action^='javascript:' i], iframe, object, embed, base, [style]")].map(e => e.outerHTML.slice(0, 300))`
	if got := value[[]string](t, b, made); len(got) > 0 {
		t.Errorf("%s has elements that are made of texts: %q", b.path(t), got)
	}
	// What waits for the mouse or for a click gets it.
	value[bool](t, b, `document.querySelectorAll("main *").forEach(e => e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}))), true`)
	if value[bool](t, b, `"hacked" in window`) {
		t.Errorf("%s was hacked", b.path(t))
	}
}

// written is a text in JSON as most servers write it: with no more escapes than needed.
func written(text string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(quote(text))
}

// hostileSite has a server, a client and a route that are called, and say, what they should not. It returns its address
// and its client.
func hostileSite(t *testing.T) (string, *speaker) {
	t.Helper()
	text := written(hostileAll)
	schema := func(name string) string {
		return fmt.Sprintf(`{"name":%s,"title":%s,"description":%s,"annotations":{"title":%s,"readOnlyHint":true},"inputSchema":{"type":"object","description":%s,
			"properties":{%s:{"type":"string","title":%s,"description":%s,"default":%s},"choice":{"type":"string","enum":[%s,"b"],"description":%s},
			"many":{"type":"array","items":{"type":%s},"default":[%s]}},"required":[%s]}}`,
			written(name), text, text, text, text, text, text, text, text, text, text, text, text, text)
	}
	hostile := serveScript(t, &mcptest.Script{
		Tools:     []string{schema("tool"), schema(hostileImage), schema(hostileScript), schema("a/b?c#d%2Fe&f=" + hostileQuote)},
		Resources: []string{"file:///" + hostileImage, hostileLink},
		Replies: map[string]string{
			"initialize": fmt.Sprintf(`"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{}},"instructions":%s,`+
				`"serverInfo":{"name":%s,"title":%s,"version":%s,"websiteUrl":%s}}`, text, text, text, text, written(hostileLink)),
			"tool":        mcptest.Text(hostileAll),
			hostileImage:  `"error":{"code":-32000,"message":` + text + `,"data":` + text + `}`,
			hostileScript: `"result":{"isError":true,"content":[{"type":"text","text":` + text + `},{"type":` + text + `},{"type":"image","mimeType":` + text + `,"data":"AAAA"}],"structuredContent":{` + text + `:` + text + `}}`,
		},
	})
	site := serve(t,
		"mcp_console",
		block("basic_auth /mcp*", strconv.Quote(hostileImage)+" $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq"),
		gateway("name "+strconv.Quote("g"+hostileScript), "separator __", "record on", "pin_tools on", "mask 200 20 20", hostile.line("hostile"), child("alpha")),
		modelRoute(t, strconv.Quote(hostileImage)))
	user := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(hostileImage+":alice"))
	c := newSpeaker(t, joinedAt(site), false, `{}`, user)
	for _, tool := range []string{"tool", hostileImage, hostileScript, "no such " + hostileScript} {
		c.begin(t, "tools/call", callOf("hostile", tool, `{`+text+`:`+text+`}`)).Finish()
	}
	c.begin(t, "resources/read", `{"uri":`+quote("file:///"+hostileImage)+`}`).Finish()
	c.begin(t, "prompts/get", `{"name":`+text+`}`).Finish()
	c.use(t, "alpha", "stderr", `{"lines":3,"text":`+text+`}`)
	c.begin(t, "tools/call", callOf("alpha", "die", `{"code":3}`)).Finish()
	post(t, site+"/v1/chat/completions", b2Sent)
	control[struct{}](t, "GET", "/tools", "", 200) // which pins them
	hostile.Change(func(s *mcptest.Script) {
		s.Tools[0] = strings.Replace(s.Tools[0], `"many"`, written("more "+hostileScript), 1)
	})
	control[struct{}](t, "POST", "/servers/hostile/refresh", "", 200)
	return site, c
}

// Whatever servers, clients, configurations and addresses say, pages show it as text, and nothing else comes of it.
func testConsoleHostile(t *testing.T, c *chromium) {
	site, agent := hostileSite(t)
	b := c.newTab(t, site)
	b.looks(t, 1280, false)
	paths := []string{"/console/", "/console/conversations", "/console/connect"}
	for _, list := range []string{"/console/servers", "/console/tools?server=hostile", "/console/calls"} {
		b.open(t, list)
		b.isHarmless(t)
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
			b.isGood(t, path)
		} else {
			b.open(t, path)
		}
		b.isHarmless(t)
		if value[bool](t, b, `document.body.innerText.includes(`+quote(hostileImage)+`) ||
			[...document.querySelectorAll("input, textarea")].some(e => (e.value + e.placeholder).includes(`+quote(hostileImage)+`))`) {
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
	b.isGood(t, "/console/servers/hostile")

	b.open(t, "/console/tools/hostile__"+url.PathEscape(hostileScript))
	b.press(t, "Call it")
	b.until(t, "the result", `document.querySelector("#result").innerText.includes(`+quote(hostileImage)+`)`)
	b.isHarmless(t)

	b.open(t, "/console/calls")
	b.isLive(t)
	agent.begin(t, "tools/call", callOf("hostile", hostileImage+" now", `{}`)).Finish()
	b.until(t, "a row that comes in", rowsWith(hostileImage+" now"))
	b.isSame(t)
	b.isHarmless(t)

	query, part := url.QueryEscape(hostileAll), url.PathEscape(hostileAll)
	for _, path := range []string{
		"/console/tools?q=" + query, "/console/tools?client=" + query, "/console/tools?server=" + query, "/console/?gateway=" + query,
		"/console/servers?gateway=" + query, "/console/servers?did=" + query, "/console/servers/alpha?did=" + query,
		"/console/calls?client=" + query + "&server=" + query + "&tool=" + query + "&outcome=" + query, "/console/connect?gateway=" + query,
		"/console/tools/hostile__tool?client=" + query, "/console/tools/hostile__tool?gateway=" + query, "/console/" + part, "/console/servers/" + part,
		"/console/tools/" + part, "/console/calls/" + part, "/console/calls/1/originals/" + part, "/console/assets/" + part, "/console/live/" + part,
	} {
		status := b.opens(t, path)
		if status >= 500 {
			t.Errorf("%s: status %d\n%s", path, status, b.text())
		}
		b.isHarmless(t)
	}
	b.expects(t, "the server responded with a status of 40") // of what is not there
}
