package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// proxiedURI returns the URI of a server's resource at /mcp (A11).
func proxiedURI(server, uri string) string {
	return "proxy://resource/" + base64.RawURLEncoding.EncodeToString([]byte(`{"server":`+quote(server)+`,"uri":`+
		quote(uri)+`}`))
}

func TestAggregateDescriptors(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t)
	odd := []string{
		`{"name":"odd","title":"name","description":"é\u00e9\/ <&>","inputSchema":{"type":"object",` +
			`"properties":{"name":{"type":"string","default":"odd"},"n":{"minimum":1.0,"maximum":12345678901234567890}},` +
			`"additionalProperties":false},"annotations":{"readOnlyHint":true,"name":"odd"},"_meta":{"k":[1e2,-0,` +
			`{"name":"odd"}]},"x-unknown":null}`,
		`{ "inputSchema" : {"type":"object"}, "name" : "last" }`,
		`{"outputSchema":{"type":"object"},"inputSchema":{},"icons":[{"src":"data:,"}],"name":"\u006eamed",` +
			`"execution":{"taskSupport":"optional"}}`,
	}
	remote.Tools = odd
	url := serve(t, gateway(child("alpha"), remote.line("remote"), child("beta")))
	c := newLegacyClient(t, url, `{}`)

	// direct returns what a server lists at its own endpoint.
	direct := func(server, method, kind string) (items []json.RawMessage) {
		endpoint := mcpAt(url, server)
		var list struct{ Result map[string]json.RawMessage }
		body := answerIn(post(t, endpoint, rpc(method, `{}`), newSession(t, endpoint), acceptBoth).body)
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if err := json.Unmarshal(list.Result[kind], &items); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return items
	}
	for _, tt := range []struct{ method, kind string }{{"tools/list", "tools"}, {"prompts/list", "prompts"}} {
		t.Run("A7 A10 "+tt.method, func(t *testing.T) {
			var want []string
			for _, server := range []string{"alpha", "remote", "beta"} {
				if server == "remote" && tt.kind == "prompts" {
					continue // it has no items
				}
				for _, item := range direct(server, tt.method, tt.kind) {
					var named struct{ Name string }
					if err := json.Unmarshal(item, &named); err != nil {
						t.Fatal(err)
					}
					renamed := string(item)
					for _, spelling := range []string{`"name":` + quote(named.Name), `"name" : ` + quote(named.Name),
						`"name":"\u006eamed"`} {
						index := strings.LastIndex(renamed, spelling) // the last match in all but the first odd descriptor
						if strings.Contains(renamed, "x-unknown") {
							index = strings.Index(renamed, spelling)
						}
						if index >= 0 {
							colon := strings.LastIndexByte(spelling[:len(`"name" : `)], ':')
							space := spelling[colon+1:]
							space = space[:strings.IndexByte(space, '"')]
							renamed = renamed[:index] + spelling[:colon+1] + space + quote(server+"::"+named.Name) +
								renamed[index+len(spelling):]
							break
						}
					}
					want = append(want, renamed)
				}
			}
			pages, _ := c.withTest(t).pages(tt.method, "")
			var got []string
			for _, item := range slices.Concat(pages...) {
				got = append(got, string(item))
			}
			same(t, strings.Join(got, "\n"), strings.Join(want, "\n"))
		})
	}
}

func TestAggregateCalls(t *testing.T) {
	isolate(t)
	alpha, beta := newJournal(t), newJournal(t)
	remote := newRemoteServer(t, "a::b", "alpha::echo", "x")
	url := serve(t, gateway(block(child("alpha"), alpha.env()), block(child("beta"), beta.env()), remote.line("remote")))
	c := newLegacyClient(t, url, `{}`)
	contacts := func() int {
		n := remote.Count("tools/call") + remote.Count("prompts/get")
		for _, j := range []journal{alpha, beta} {
			n += len(j.entries(t, "tools/call")) + len(j.entries(t, "prompts/get"))
		}
		return n
	}
	t.Run("A8 params and result are unchanged", func(t *testing.T) {
		c := c.withTest(t)
		for _, server := range []string{"alpha", "beta"} {
			params := `{"_meta":{"k":1.0,"z":{"name":"x"}} , "name":"%s","arguments":{"n":12345678901234567890,` +
				`"t":"é\u00e9","name":"beta::echo"},"unknown":[1e2]}`
			got := c.ask("tools/call", fmt.Sprintf(params, server+"::echo"))
			same(t, string(got.Result), `{"content":[{"type":"text","text":`+quote(fmt.Sprintf(params, "echo"))+`}]}`)
		}
	})
	t.Run("A8 names are split at the first separator", func(t *testing.T) {
		c := c.withTest(t)
		for _, name := range []string{"a::b", "alpha::echo"} {
			if got := c.use("remote::"+name, `{}`); got != `{"name":`+quote(name)+`,"arguments":{}}` {
				t.Errorf("got %s, want the server's own name", got)
			}
		}
	})
	t.Run("A8 a name never listed", func(t *testing.T) {
		// The session is new, so nothing was listed in it.
		if got := newLegacyClient(t, url, `{}`).use("beta::slow", `{"ms":0}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
	})
	for _, name := range []string{`"echo"`, `"zeta::echo"`, `5`, `null`, `""`, `"::"`, `"::echo"`, `["alpha::echo"]`,
		`"ALPHA::echo"`, `" alpha::echo"`, `"alpha:echo"`} {
		t.Run("A9 "+name, func(t *testing.T) {
			c := c.withTest(t)
			before := contacts()
			for _, method := range []string{"tools/call", "prompts/get"} {
				if got := c.expectError(method, `{"name":`+name+`}`, -32602); got.Error != nil && got.Error.Symbol() == "" {
					t.Errorf("R13 %s", got.Raw)
				}
			}
			if n := contacts() - before; n != 0 {
				t.Errorf("the servers received %d requests", n)
			}
		})
	}
	t.Run("A9 no name, no params", func(t *testing.T) {
		c, before := c.withTest(t), contacts()
		c.expectError("tools/call", `{}`, -32602)
		c.expectError("tools/call", ``, -32602)
		c.expectError("prompts/get", `{"arguments":{}}`, -32602)
		c.expectError("resources/read", `{}`, -32602)
		if n := contacts() - before; n != 0 {
			t.Errorf("the servers received %d requests", n)
		}
	})
	t.Run("A9 an unknown tool of a known server", func(t *testing.T) {
		if got := c.withTest(t).expectError("tools/call", `{"name":"alpha::nope"}`, -32602); got.Error != nil &&
			got.Error.Message != "Unknown tool: nope" {
			t.Errorf("got %s, want the server's message", got.Raw)
		}
	})
	t.Run("A10 a prompt", func(t *testing.T) {
		c := c.withTest(t)
		same(t, c.result("prompts/get", `{"name":"beta::p","arguments":{"who":"me"}}`),
			`{"messages":[{"role":"user","content":{"type":"text","text":"beta greets me"}}]}`)
		if got := beta.messages(t, "prompts/get"); len(got) != 1 || got[0].Param("name") != `"p"` {
			t.Errorf("%v", got)
		}
		if got := c.expectError("prompts/get", `{"name":"beta::nope"}`, -32602); got.Error != nil &&
			got.Error.Message != "Unknown prompt: nope" {
			t.Errorf("got %s, want the server's message", got.Raw)
		}
	})
	t.Run("A45 completions of a prompt", func(t *testing.T) {
		c := c.withTest(t)
		same(t, c.result("completion/complete",
			`{"ref":{"type":"ref/prompt","name":"beta::p"},"argument":{"name":"who","value":"o"}}`),
			`{"completion":{"values":["beta-one","beta-two"],"total":2,"hasMore":false}}`)
		got := beta.messages(t, "completion/complete")
		if len(got) != 1 || got[0].Param("ref") != `{"type":"ref/prompt","name":"p"}` ||
			got[0].Param("argument") != `{"name":"who","value":"o"}` {
			t.Errorf("%v", got)
		}
	})
	t.Run("A45 completions of a resource and of a template", func(t *testing.T) {
		c := c.withTest(t)
		templates := c.list("resources/templates/list", "uriTemplate")
		if len(templates) != 2 {
			t.Fatal(templates)
		}
		for i, tt := range []struct{ uri, server, want string }{
			{proxiedURI("alpha", "file://alpha/data.txt"), "alpha", "file://alpha/data.txt"},
			{templates[0], "alpha", "file://alpha/{name}.txt"},
			{templates[1], "beta", "file://beta/{name}.txt"},
		} {
			journal := map[string]journal{"alpha": alpha, "beta": beta}[tt.server]
			got := c.result("completion/complete", `{"ref":{"type":"ref/resource","uri":`+quote(tt.uri)+
				`},"argument":{"name":"name","value":"o"}}`)
			if !strings.Contains(got, tt.server+"-one") {
				t.Errorf("%d: %s", i, got)
			}
			outcome := journal.messages(t, "completion/complete")
			if len(outcome) == 0 || outcome[len(outcome)-1].Param("ref") != `{"type":"ref/resource","uri":`+quote(tt.want)+`}` {
				t.Errorf("%d: %v", i, outcome)
			}
		}
	})
	t.Run("A45 completions without a reference", func(t *testing.T) {
		c := c.withTest(t)
		for _, ref := range []string{`{"type":"ref/prompt","name":"p"}`, `{"type":"ref/prompt","name":"zeta::p"}`,
			`{"type":"ref/prompt"}`, `{"type":"ref/resource","uri":"file://gamma/data.txt"}`, `5`, `{}`} {
			c.expectError("completion/complete", `{"ref":`+ref+`,"argument":{"name":"who","value":"o"}}`, -32602)
		}
	})
}

func TestAggregateResources(t *testing.T) {
	isolate(t)
	alpha := newJournal(t)
	url := serve(t, gateway(block(child("alpha"), alpha.env()), child("beta")))
	c := newLegacyClient(t, url, `{}`)
	const data = "file://alpha/data.txt"
	t.Run("A11 listed", func(t *testing.T) {
		var servers []string
		for _, uri := range c.withTest(t).list("resources/list", "uri") {
			token, ok := strings.CutPrefix(uri, "proxy://resource/")
			text, err := base64.RawURLEncoding.DecodeString(token)
			var decoded map[string]string
			if !ok || err != nil || json.Unmarshal(text, &decoded) != nil || len(decoded) != 2 || decoded["uri"] != "file://"+
				decoded["server"]+"/data.txt" {
				t.Errorf("R20 %s: %v %s", uri, err, text)
			}
			servers = append(servers, decoded["server"])
		}
		if strings.Join(servers, " ") != "alpha beta" {
			t.Errorf("resources of %v", servers)
		}
		pages, _ := c.withTest(t).pages("resources/list", "")
		same(t, string(pages[0][0]), `{"uri":`+quote(proxiedURI("alpha", data))+`,"name":"data.txt","mimeType":"text/plain"}`)
	})
	t.Run("A12 read", func(t *testing.T) {
		listed := c.withTest(t).list("resources/list", "uri")[0]
		payload := []byte(`{"server":"alpha","uri":"` + data + `"}`)
		never := []byte(`{"uri":"file://alpha/??>>~~.txt","server":"alpha"}`)
		for _, uri := range []string{
			listed, proxiedURI("alpha", "file://alpha/never listed.txt"),
			"proxy://resource/" + base64.StdEncoding.EncodeToString(payload),
			"proxy://resource/" + base64.RawStdEncoding.EncodeToString(payload),
			"proxy://resource/" + base64.URLEncoding.EncodeToString(payload),
			"proxy://resource/" + base64.StdEncoding.EncodeToString(never),
			"proxy://resource/" + base64.RawURLEncoding.EncodeToString(never),
			"proxy://resource/" + base64.RawURLEncoding.EncodeToString([]byte(` { "server" : "alpha", "uri" : `+
				`"file:\/\/alpha\/data.txt" } `)),
		} {
			var got struct {
				Contents []struct{ URI, MIMEType, Text string }
			}
			// In a session that has not listed anything.
			text := newLegacyClient(t, url, `{}`).result("resources/read", `{"uri":`+quote(uri)+`}`)
			if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Contents) != 1 ||
				!strings.HasSuffix(got.Contents[0].Text, " of alpha") {
				t.Fatalf("%s: %v %s", uri, err, text)
			}
			back, ok := strings.CutPrefix(got.Contents[0].URI, "proxy://resource/")
			if decoded, err := base64.RawURLEncoding.DecodeString(back); !ok || err != nil || !strings.Contains(string(decoded),
				`"server":"alpha"`) {
				t.Errorf("the content of %s has URI %s", uri, got.Contents[0].URI)
			}
			if uri == listed && got.Contents[0].URI != listed {
				t.Errorf("%s became %s", listed, got.Contents[0].URI)
			}
		}
		for _, m := range alpha.messages(t, "resources/read") {
			if !strings.HasPrefix(m.Param("uri"), `"file:`) {
				t.Errorf("the server received %s", m.Body)
			}
		}
	})
	t.Run("A12 by the server's own URI", func(t *testing.T) {
		same(t, c.withTest(t).result("resources/read", `{"uri":`+quote(data)+`}`), `{"contents":[{"uri":`+quote(data)+
			`,"mimeType":"text/plain","text":"data of alpha"}]}`)
	})
	t.Run("A12 an unknown resource", func(t *testing.T) {
		c.withTest(t).expectError("resources/read", `{"uri":`+quote(proxiedURI("alpha", "file://nope"))+`}`, -32002)
	})
	reads := len(alpha.entries(t, "resources/read"))
	encoded := func(text string) string {
		return quote("proxy://resource/" + base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	for _, uri := range []string{
		`"proxy://resource/"`, `"proxy://resource/!!!"`, `"proxy://resource/A"`, encoded(`x`), encoded(`{}`), encoded(`[]`),
		encoded(`{"server":"alpha"}`), encoded(`{"uri":"x"}`),
		encoded(`{"server":5,"uri":"x"}`), encoded(`{"server":"alpha","uri":5}`),
		encoded(`{"server":"zeta","uri":"file://alpha/data.txt"}`), encoded(`{"server":"alpha","uri":"x"`),
		encoded("\xff\xfe"),
		`"file://gamma/data.txt"`, `"proxy://other/x"`, `"http://evil.test/"`, `""`, `5`, `null`, `{}`,
		`"proxy://resource/` + strings.Repeat("A", 100_000) + `"`,
	} {
		t.Run("A13 "+uri[:min(len(uri), 40)], func(t *testing.T) {
			c := c.withTest(t)
			for _, method := range []string{"resources/read", "resources/subscribe", "resources/unsubscribe"} {
				c.expectError(method, `{"uri":`+uri+`}`, -32602)
			}
			c.result("ping", "")
		})
	}
	if got := len(alpha.entries(t, "resources/read")); got != reads {
		t.Errorf("A13 the server received %d requests", got-reads)
	}
	t.Run("A14 A66 templates", func(t *testing.T) {
		c := c.withTest(t)
		templates := c.list("resources/templates/list", "uriTemplate")
		if len(templates) != 2 {
			t.Fatalf("A14 %v", templates)
		}
		for i, server := range []string{"alpha", "beta"} {
			if strings.Count(templates[i], "{") != 1 || !strings.Contains(templates[i], "name}") {
				t.Errorf("A66 %s", templates[i])
			}
			for value, escaped := range map[string]string{"hello": "hello", "a-b_c.d~1": "a-b_c.d~1",
				"a b&c=d": "a%20b%26c%3Dd", "é": "%C3%A9"} {
				uri := strings.NewReplacer("{name}", escaped, "{+name}", escaped).Replace(templates[i])
				got := c.result("resources/read", `{"uri":`+quote(uri)+`}`)
				if !strings.Contains(got, `"`+escaped+" of "+server+`"`) {
					t.Errorf("A66 %q as %s: %s", value, uri, got)
				}
				var contents struct{ Contents []struct{ URI string } }
				if err := json.Unmarshal([]byte(got), &contents); err != nil || !strings.HasPrefix(contents.Contents[0].URI,
					"proxy://resource/") {
					t.Errorf("A12 %v: %s", err, got)
				}
			}
		}
	})
}

func TestAggregateLogging(t *testing.T) {
	isolate(t)
	alpha, bare := newJournal(t), newJournal(t)
	url := serve(t, gateway(block(child("alpha"), alpha.env()), block(child("bare", "--caps-empty"), bare.env())))
	c := newLegacyClient(t, url, `{}`)
	same(t, c.result("logging/setLevel", `{"level":"debug"}`), `{}`)
	await.Until(t, "A15 the level to arrive", func() bool { return len(alpha.messages(t, "logging/setLevel")) == 1 })
	if got := alpha.messages(t, "logging/setLevel")[0].Param("level"); got != `"debug"` {
		t.Errorf("A15 %s", got)
	}
	for _, level := range []string{`{"level":"loud"}`, `{"level":5}`, `{}`, `{"level":"DEBUG"}`} {
		c.expectError("logging/setLevel", level, -32602)
	}
	c.use("bare::pid", `{}`)
	c.use("alpha::pid", `{}`)
	if a, b := alpha.entries(t, "logging/setLevel"), bare.entries(t, "logging/setLevel"); len(a) != 1 || len(b) != 0 {
		t.Errorf("A15 alpha received it %d times, bare %d times", len(a), len(b))
	}
}

func TestAggregatePages(t *testing.T) {
	isolate(t)
	one, two := newRemoteServer(t, "a", "b", "c"), newRemoteServer(t, "a", "b", "c")
	for _, s := range []*remoteServer{one, two} {
		s.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
			if m.Method == "tools/list" && (m.Param("cursor") != "" || m.Param("limit") != "" || m.Param("proxy") != "") {
				_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"what?"}}`, m.ID)
				return true
			}
			return false
		}
	}
	url := serve(t, gateway(one.line("one"), two.line("two")))
	c := newLegacyClient(t, url, `{}`)
	for limit, sizes := range map[string]string{"1": "[1 1 1 1 1 1]", "2": "[2 2 2]", "4": "[4 2]", "5": "[5 1]",
		"6": "[6]", "7": "[6]", "1000000": "[6]", "9223372036854775807": "[6]"} {
		t.Run("A18 6 tools, limit "+limit, func(t *testing.T) {
			pages, cursors := c.withTest(t).pages("tools/list", `"limit":`+limit)
			var got []int
			var names []string
			for _, page := range pages {
				got = append(got, len(page))
				for _, item := range page {
					var named struct{ Name string }
					_ = json.Unmarshal(item, &named)
					names = append(names, named.Name)
				}
			}
			if fmt.Sprint(got) != sizes || strings.Join(names, " ") != "one::a one::b one::c two::a two::b two::c" {
				t.Errorf("%v pages: %v", got, names)
			}
			if limit == "2" {
				if text, err := base64.RawURLEncoding.DecodeString(cursors[0]); err != nil || string(text) != `{"offset":2}` {
					t.Errorf("A19 R20 %s: %s, %v", cursors[0], text, err)
				}
			}
		})
	}
	t.Run("R20 cursors in any base64", func(t *testing.T) {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding,
			base64.RawURLEncoding} {
			for _, text := range []string{`{"offset":4}`, `{"offset": 4 }`} {
				got := c.withTest(t).result("tools/list", `{"cursor":`+quote(encoding.EncodeToString([]byte(text)))+`}`)
				if strings.Count(got, `"name"`) != 2 || !strings.Contains(got, `"two::c"`) || strings.Contains(got, "nextCursor") {
					t.Errorf("%s: %s", text, got)
				}
			}
		}
	})
	encoded := func(text string) string { return quote(base64.RawURLEncoding.EncodeToString([]byte(text))) }
	for _, cursor := range []string{`"!!!"`, `"A"`, encoded(`x`), encoded(`{}`), encoded(`[]`), encoded(`{"offset":-1}`),
		encoded(`{"offset":1.5}`), encoded(`{"offset":"2"}`), encoded(`{"offset":null}`),
		encoded(`{"offset":99999999999999999999}`), `5`, `{}`, `[]`} {
		t.Run("A20 cursor "+cursor, func(t *testing.T) {
			c := c.withTest(t)
			c.expectError("tools/list", `{"cursor":`+cursor+`}`, -32602)
			c.result("ping", "")
		})
	}
	for _, offset := range []string{"6", "7", "9223372036854775807"} {
		t.Run("A20 beyond the end "+offset, func(t *testing.T) {
			if got := c.withTest(t).result("tools/list", `{"limit":2,"cursor":`+encoded(`{"offset":`+offset+`}`)+
				`}`); got != `{"tools":[]}` {
				t.Errorf("got %s, want an empty list", got)
			}
		})
	}
	for _, limit := range []string{`0`, `-1`, `"2"`, `1.5`, `null`, `{}`, `99999999999999999999`} {
		t.Run("A20 limit "+limit, func(t *testing.T) {
			c := c.withTest(t)
			c.expectError("tools/list", `{"limit":`+limit+`}`, -32602)
			c.result("ping", "")
		})
	}
	t.Run("A21 an empty cursor and a proxy member", func(t *testing.T) {
		got := c.withTest(t).result("tools/list", `{"proxy":{"authToken":"x"},"_meta":{"k":1}}`)
		if strings.Count(got, `"name"`) != 6 {
			t.Errorf("got %s, want six tools", got)
		}
	})
}

func TestAggregateDrainsPages(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	loop, steps := newRemoteServer(t), newRemoteServer(t)
	var asked, stepped atomic.Int64
	page := func(w http.ResponseWriter, m *mcptest.Received, n int64, cursor string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t%d","inputSchema":{}}],`+
			`"nextCursor":%s}}`, m.ID, n, quote(cursor))
	}
	loop.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		if m.Method == "tools/list" {
			page(w, m, asked.Add(1), "same-forever")
			return true
		}
		return false
	}
	steps.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool { // a loop of three cursors
		if m.Method == "tools/list" {
			n := stepped.Add(1)
			page(w, m, n, fmt.Sprint("page ", n%3))
			return true
		}
		return false
	}
	url := serve(t, gateway(
		block(child("paged", "--page", "3", "--strict-cursor", "--tools", "10"), journal.env()),
		loop.line("loop"), steps.line("steps"),
		child("last", "--page", "1", "--strict-cursor")))
	c := newLegacyClient(t, url, `{}`)
	var names []string
	pages, _ := c.pages("tools/list", `"limit":7,"proxy":{"x":1}`)
	for _, item := range slices.Concat(pages...) {
		var named struct{ Name string }
		_ = json.Unmarshal(item, &named)
		names = append(names, named.Name)
	}
	count := map[string]int{}
	for _, name := range names {
		server, _, _ := strings.Cut(name, "::")
		count[server]++
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(names))); len(sorted) != len(names) {
		t.Errorf("A21 duplicates: %v", names)
	}
	if count["paged"] != count["last"]+10 || count["last"] < 15 {
		t.Errorf("A21 %v", count)
	}
	if n := asked.Load(); n > 1000 {
		t.Errorf("A21 a loop was followed %d times", n)
	}
	for _, m := range journal.messages(t, "tools/list") {
		if m.Param("limit")+m.Param("proxy") != "" {
			t.Errorf("R21 A21 forwarded %s", m.Body)
		}
	}
}

func TestAggregateManyTools(t *testing.T) {
	isolate(t)
	const servers, each = 20, 500
	var lines []string
	var want []string
	for i := range servers {
		s := newRemoteServer(t)
		var names []string
		for j := range each {
			names = append(names, fmt.Sprintf("tool_%d", (j*7)%each)) // in its own order
			want = append(want, fmt.Sprintf("s%d__%s", i, names[j]))
		}
		for _, name := range names {
			s.Tools = append(s.Tools, `{"name":`+quote(name)+`,"inputSchema":{"type":"object"}}`)
		}
		lines = append(lines, s.line(fmt.Sprintf("s%d", i)))
	}
	url := serve(t, gateway(append(lines, "separator __")...))
	c := newLegacyClient(t, url, `{}`)
	for _, params := range []string{"", `"limit":999`} {
		pages, _ := c.pages("tools/list", params)
		var got []string
		for _, item := range slices.Concat(pages...) {
			var named struct{ Name string }
			_ = json.Unmarshal(item, &named)
			got = append(got, named.Name)
		}
		same(t, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := c.use("s19__tool_499", `{}`); got != `{"name":"tool_499","arguments":{}}` {
		t.Errorf("got %q, want %q", got, `{"name":"tool_499","arguments":{}}`)
	}
}

func TestAggregateListsWithoutFailedServers(t *testing.T) {
	isolate(t)
	silent := newRemoteServer(t, "tool")
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	silent.Handle = func(_ http.ResponseWriter, m *mcptest.Received) bool {
		if m.Method == "tools/list" {
			<-over
		}
		return false
	}
	url := serve(t, gateway("join_timeout 2s", child("alpha"), child("broken", "--list-error"), silent.line("silent"),
		child("beta")))
	for _, server := range []string{"alpha", "broken", "beta"} {
		pidAt(t, mcpAt(url, server)) // it has started, so its list does not take as long as that of silent
	}
	c := newLegacyClient(t, url, `{}`)
	for _, tt := range []struct{ method, member string }{{"tools/list", "name"}, {"prompts/list", "name"},
		{"resources/list", "name"}, {"resources/templates/list", "name"}} {
		t.Run("A22 "+tt.method, func(t *testing.T) {
			pages, _ := c.withTest(t).pages(tt.method, "")
			text := fmt.Sprintf("%s", pages)
			if len(pages[0]) < 2 || strings.Contains(text, "broken::") || strings.Contains(text, "silent::") {
				t.Errorf("listed %s", text)
			}
			if tt.member == "name" && strings.HasPrefix(tt.method, "tools") && (!strings.Contains(text, "alpha::echo") ||
				!strings.Contains(text, "beta::echo")) {
				t.Errorf("listed %s", text)
			}
		})
	}
	if got := c.use("broken::slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	if got := c.use("silent::tool", `{}`); got != `{"name":"tool","arguments":{}}` {
		t.Errorf("got %q, want %q", got, `{"name":"tool","arguments":{}}`)
	}
}

func TestAggregateSeparators(t *testing.T) {
	isolate(t)
	t.Run("R11 another separator", func(t *testing.T) {
		s := newRemoteServer(t, "x", "a__b", "__c", "d::e")
		url := serve(t, gateway("separator __", s.line("one"), s.line("one_more")))
		c := newLegacyClient(t, url, `{}`)
		if got := strings.Join(c.list("tools/list", "name"),
			" "); got != "one__x one__a__b one____c one__d::e one_more__x one_more__a__b one_more____c one_more__d::e" {
			t.Errorf("got %q, want %q", got, "one__x one__a__b one____c one__d::e one_more__x one_more__a__b one_more____c "+
				"one_more__d::e")
		}
		for name, want := range map[string]string{
			"one__x": "x", "one::x": "x", "one__a__b": "a__b", "one::a__b": "a__b", "one____c": "__c", "one__d::e": "d::e",
			"one::d::e":   "d::e",
			"one_more__x": "x", "one_more::x": "x", "one_more____c": "__c",
		} {
			if got := c.use(name, `{}`); got != `{"name":`+quote(want)+`,"arguments":{}}` {
				t.Errorf("%s: %s", name, got)
			}
		}
		for _, name := range []string{"one_x", "x", "one", "one_", "two__x"} {
			c.expectError("tools/call", `{"name":`+quote(name)+`}`, -32602)
		}
	})
	t.Run("A43 no separator", func(t *testing.T) {
		url := serve(t, gateway("separator none", child("alpha")))
		c := newLegacyClient(t, url, `{}`)
		if !c.listsTool("echo") || c.listsTool("alpha::echo") {
			t.Error(c.list("tools/list", "name"))
		}
		if got := c.use("slow", `{"ms":0}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
		if got := c.list("prompts/list", "name"); strings.Join(got, " ") != "p" {
			t.Errorf("got %q, want p alone", got)
		}
		c.result("prompts/get", `{"name":"p"}`)
		for _, uri := range c.list("resources/list", "uri") {
			c.result("resources/read", `{"uri":`+quote(uri)+`}`)
		}
		c.result("completion/complete", `{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"who","value":"o"}}`)
	})
}

func TestAggregateLongNames(t *testing.T) {
	isolate(t)
	long := strings.Repeat("long_", 30)
	s := newRemoteServer(t, "short", long+"1", long+"2", strings.Repeat("é", 70), long[:57], long[:58])
	address := freeAddress(t)
	for _, tt := range []struct {
		line    string
		longest int
	}{{"", 64}, {"max_name_length 32", 32}, {"max_name_length 128", 128}} {
		t.Run(fmt.Sprint(tt.longest), func(t *testing.T) {
			load(t, site(address, gateway(tt.line, s.line("one"), s.line("two"))))
			c := newLegacyClient(t, "http://"+address, `{}`)
			names := c.list("tools/list", "name")
			if len(names) != 12 || len(slices.Compact(slices.Sorted(slices.Values(names)))) != 12 || names[0] != "one::short" ||
				names[6] != "two::short" {
				t.Errorf("%q", names)
			}
			for i, name := range names {
				if len([]rune(name)) > tt.longest {
					t.Errorf("%s has %d characters", name, len([]rune(name)))
				}
				own := s.Tools[i%6]
				want := `{"name":` + quote(own) + `,"arguments":{}}`
				for _, called := range []string{name, []string{"one::", "two::"}[i/6] + own} { // its alias and its full name
					if got := c.use(called, `{}`); got != want {
						t.Errorf("%s: got %s, want %s", called, got, want)
					}
				}
				if got := newLegacyClient(t, "http://"+address, `{}`).use(name, `{}`); got != want { // without a list
					t.Errorf("%s, in a new session: got %s, want %s", name, got, want)
				}
			}
			load(t, site(address, gateway(tt.line, s.line("one"), s.line("two"))))
			if again := newLegacyClient(t, "http://"+address, `{}`).list("tools/list", "name"); !slices.Equal(again, names) {
				t.Errorf("%q became %q", names, again)
			}
		})
	}
}

func TestAggregateExpose(t *testing.T) {
	isolate(t)
	alpha := newJournal(t)
	url := serve(t, gateway(block(child("alpha"), alpha.env(), "expose echo s*"), child("beta")))
	c := newLegacyClient(t, url, `{}`)
	var names []string
	for _, name := range c.list("tools/list", "name") {
		if strings.HasPrefix(name, "alpha::") {
			names = append(names, name)
		}
	}
	if got := strings.Join(names, " "); got != "alpha::echo alpha::slow alpha::stderr alpha::spawn" {
		t.Errorf("got %q, want %q", got, "alpha::echo alpha::slow alpha::stderr alpha::spawn")
	}
	if !c.listsTool("beta::pid") {
		t.Error("beta hides tools")
	}
	if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	calls := len(alpha.entries(t, "tools/call"))
	for _, name := range []string{"alpha::pid", "alpha::nope"} {
		if got := c.ask("tools/call", `{"name":`+quote(name)+`}`); got.Error == nil || got.Status != 200 {
			t.Errorf("%d %s", got.Status, got.Raw)
		}
	}
	if got := len(alpha.entries(t, "tools/call")); got != calls {
		t.Errorf("got %d calls of hidden tools", got-calls)
	}
}

// toolNames returns the names of tools on the first page of the list.
func toolNames(t *testing.T, c *testClient) (names []string) {
	t.Helper()
	got := c.ask(t, "tools/list", `{}`)
	var result struct {
		Tools      []struct{ Name string }
		NextCursor *string
	}
	if err := json.Unmarshal(got.answer.Result, &result); err != nil || result.NextCursor != nil {
		t.Fatalf("%v: %.300s", err, got.answer.Raw)
	}
	for _, tool := range result.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// searchTools returns the names that search_tools finds, best match first.
func searchTools(t *testing.T, c *testClient, query string) (names []string) {
	t.Helper()
	got := c.ask(t, "tools/call", `{"name":"search_tools","arguments":{"query":`+quote(query)+`}}`)
	for line := range strings.Lines(got.answer.Text()) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.Contains(name, "__") {
			names = append(names, name)
		}
	}
	return names
}

// callToolParams returns the params of a call through call_tool.
func callToolParams(name, arguments string) string {
	return `{"name":"call_tool","arguments":{"name":` + quote(name) + `,"arguments":` + arguments + `}}`
}

// Three tools are enough to find and call all others.
func TestAggregateDiscovery(t *testing.T) {
	isolate(t)
	journal, hidden := newJournal(t), newJournal(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	postal := newRemoteServer(t)
	postal.Tools = []string{
		`{"name":"dispatch","description":"Sends a parcel to a recipient.","inputSchema":{"type":"object",` +
			`"properties":{"recipient":{"type":"string"},"weight_grams":{"type":"integer"}},"required":["recipient"]}}`,
		`{"name":"track","description":"Tells where a shipment is right now.","inputSchema":{"type":"object",` +
			`"properties":{"waybill":{"type":"string"}}}}`,
	}
	url := serve(t, gateway("discovery on", "separator __", block(child("near", "--tools", "50"), journal.env()),
		block(child("shy"), hidden.env(), "expose slow"), "server far http://"+upstream(t, remote)+"/mcp",
		postal.line("postal")))
	t.Cleanup(remote.Close)
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
		t.Run(era.name+" sees three tools", func(t *testing.T) {
			if got := toolNames(t, c); !slices.Equal(got, []string{"search_tools", "describe_tool", "call_tool"}) {
				t.Errorf("listed %v", got)
			}
		})
		t.Run(era.name+" searches", func(t *testing.T) {
			for query, want := range map[string]string{
				"send a parcel":               "postal__dispatch", // in the description
				"where is my shipment":        "postal__track",
				"weight":                      "postal__dispatch", // in a parameter
				"waybill":                     "postal__track",
				"working directory":           "near__cwd",
				"dispatch":                    "postal__dispatch", // in the name
				"says that a resource update": "near__touch",
			} {
				if got := searchTools(t, c, query); len(got) == 0 || got[0] != want {
					t.Errorf("%s: found %v, want %s", query, got, want)
				}
			}
			if got := searchTools(t, c, "xyzzy"); len(got) > 0 {
				t.Errorf("found %v", got)
			}
		})
		t.Run(era.name+" describes a tool", func(t *testing.T) {
			got := c.ask(t, "tools/call", `{"name":"describe_tool","arguments":{"name":"postal__dispatch"}}`).answer.Text()
			if want := strings.Replace(postal.Tools[0], `"dispatch"`, `"postal__dispatch"`, 1); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
		})
		t.Run(era.name+" calls", func(t *testing.T) {
			arguments := `{"text":"é\u00e9","n":12345678901234567890,"deep":[{"a":1.0}, null]}`
			for _, server := range []string{"near", "far"} {
				got := c.ask(t, "tools/call", callToolParams(server+"__echo", arguments))
				if text := got.answer.Text(); !strings.Contains(text, `"name":"echo"`) || !strings.Contains(text, `"arguments":`+
					arguments) {
					t.Errorf("%s received %s", server, text)
				}
				direct := c.ask(t, "tools/call", callOf(server, "echo", arguments))
				if got.answer.Text() != direct.answer.Text() {
					t.Errorf("%s: by call_tool %s\nby its name %s", server, got.answer.Raw, direct.answer.Raw)
				}
			}
			got := c.ask(t, "tools/call", callToolParams("far__fail", `{"code":-32055,"message":"no","data":{"x":[1]}}`))
			if got.answer.Error == nil || got.answer.Error.Code != -32055 || string(got.answer.Error.Data) != `{"x":[1]}` {
				t.Errorf("got %s", got.answer.Raw)
			}
			got = c.ask(t, "tools/call", callToolParams("near__big", `{"n":10000}`))
			same(t, got.answer.Text(), strings.Repeat("x", 10000)) // unchanged (A44)
		})
		t.Run(era.name+" gets a server request during a call", func(t *testing.T) {
			params := callToolParams("far__ask", `{"method":"roots/list","params":{}}`)
			d := c.begin(t, "tools/call", params)
			m := d.next(t)
			if era.modern {
				m = c.begin(t, "tools/call", retryParams(params, m.Input(t), func(string) string { return rootsAnswer })).next(t)
			} else {
				c.respond(t, m, rootsAnswer)
				m = d.next(t)
			}
			if !isAnswer(m.Text(), rootsAnswer) {
				t.Errorf("got %s", m.Raw)
			}
		})
		t.Run(era.name+" does not find hidden tools", func(t *testing.T) {
			if got := searchTools(t, c, "returns the process id"); slices.Contains(got, "shy__pid") || !slices.Contains(got,
				"near__pid") {
				t.Errorf("found %v", got)
			}
			if got := searchTools(t, c, "sleeps"); !slices.Contains(got, "shy__slow") {
				t.Errorf("found %v", got)
			}
			for _, params := range []string{
				callToolParams("shy__pid", `{}`), callToolParams("absent__x", `{}`), callToolParams("echo", `{}`),
				callToolParams("call_tool", `{}`), `{"name":"call_tool"}`, `{"name":"call_tool","arguments":{"name":7}}`,
				`{"name":"describe_tool","arguments":{"name":"shy__pid"}}`, `{"name":"describe_tool","arguments":{}}`,
				`{"name":"search_tools","arguments":{"query":1}}`,
			} {
				got := c.ask(t, "tools/call", params)
				var result struct{ IsError bool }
				if json.Unmarshal(got.answer.Result, &result) != nil || !result.IsError {
					t.Errorf("%s: got %s", params, got.answer.Raw)
				}
			}
			if calls := hidden.entries(t, "tools/call"); len(calls) > 0 {
				t.Errorf("got %d calls of hidden tools", len(calls))
			}
		})
	}
	t.Run("the server gets its own name of the tool", func(t *testing.T) {
		for _, m := range journal.messages(t, "tools/call") {
			if name := m.Param("name"); strings.Contains(name, "__") || strings.Contains(name, "call_tool") {
				t.Errorf("called %s", name)
			}
		}
	})
}

// The recovery tool of the gateway is listed as well, and can be called by name.
func TestAggregateDiscoveryWithRecovery(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("discovery on", "separator __", block("mask", "recover on"), child("alpha")))
	for _, era := range clientEras {
		t.Run("O23 "+era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			if got := toolNames(t, c); !slices.Equal(got, []string{"search_tools", "describe_tool", "call_tool",
				"recover_observation"}) {
				t.Errorf("listed %v", got)
			}
			text := c.ask(t, "tools/call", callToolParams("alpha__big", `{"n":10000}`)).answer.Text()
			handle := handlePattern.FindStringSubmatch(text)
			if handle == nil {
				t.Fatalf("not masked: %.100s…", text)
			}
			if r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":9990}`, handle[2])); r.IsError ||
				r.Content[0].Text != strings.Repeat("x", 10) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// Search finds new tools and servers, and no removed ones.
func TestAggregateDiscoveryOfChanges(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	config := func(servers ...string) string {
		return site(address, gateway(append([]string{"discovery on", "separator __"}, servers...)...))
	}
	load(t, config(child("alpha")))
	c := newTestClient(t, joinedAt("http://"+address), false, `{}`, connectionClose)
	c.use(t, "alpha", "add-tool", `{"name":"brew_coffee"}`)
	await.Until(t, "the new tool", func() bool {
		return slices.Contains(searchTools(t, c, "brew coffee"), "alpha__brew_coffee")
	})
	load(t, config(child("alpha"), child("beta", "--tools", "1")))
	await.Until(t, "the new server", func() bool {
		return slices.Contains(searchTools(t, c, "one more tool t1"), "beta__t1")
	})
	load(t, config(child("alpha")))
	await.Until(t, "the removal of the server",
		func() bool { return !slices.Contains(searchTools(t, c, "one more tool t1"), "beta__t1") })
}
