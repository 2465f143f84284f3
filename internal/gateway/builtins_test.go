package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolsearch"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// text returns the text of a tool result.
func (s *reply) text() (text string, isError bool) {
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	if json.Unmarshal(s.Result, &result) != nil || len(result.Content) == 0 {
		return s.body, true
	}
	return result.Content[0].Text, result.IsError
}

func (u *testClient) use(tool, arguments string) reply {
	u.t.Helper()
	return u.ask("tools/call", `{"name":"`+tool+`","arguments":`+arguments+`}`)
}

// originalsMask is a Mask that changes nothing. It returns the originals in the map, by client and
// handle.
type originalsMask map[string]string

func (originalsMask) Serve(w http.ResponseWriter, r *http.Request, _ upstream.MaskRequest,
	next upstream.Handler) error {
	return next.ServeHTTP(w, r)
}

func (originalsMask) Exempts(mcp.Target) bool { return false }

func (originalsMask) Recovers() (int, bool) { return 1_000, true }

func (k originalsMask) Original(client, handle string) ([]byte, mcp.Target, bool) {
	body, ok := k[client+" "+handle]
	return []byte(body), mcp.Target{Kind: mcp.Tool, Name: "x"}, ok
}

func (k originalsMask) Kept(client, handle string) ([]byte, bool) {
	body, ok := k[client+" "+handle]
	return []byte(body), ok
}

func TestDiscovery(t *testing.T) {
	weather := `{"name":"get_weather","description":"Tells the weather of a city. And more.",` +
		`"inputSchema":{"type":"object","properties":{"city":{"type":"string","description":"Name of a town"}}}}`
	configure := func(c *Config) {
		c.Discovery = true
		c.Servers[1].Expose = []string{"send*"}
		c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{" obs_1": "original"}, true
	}
	both(t, configure, func() []*fakeServer {
		return []*fakeServer{
			newPeer("a").hasList("tools/list", "tools", weather, `{"name":"copy_file","description":"Copies a file."}`),
			newPeer("b").hasList("tools/list", "tools", `{"name":"send_mail","description":"Sends a letter."}`,
				`{"name":"delete_mail","description":"Deletes a letter."}`),
		}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got,
			[]string{"search_tools", "describe_tool", "call_tool", "recover_observation"}) {
			t.Errorf("listed: %v", got)
		}
		s := u.use("search_tools", `{"query":"weather in a town"}`)
		if text, isError := s.text(); isError || !strings.HasPrefix(text, "a::get_weather: Tells the weather of a city.") {
			t.Errorf("got %s", text)
		}
		s = u.use("search_tools", `{"query":"letter"}`)
		if text, isError := s.text(); isError || !strings.Contains(text, "b::send_mail") ||
			strings.Contains(text, "delete_mail") {
			t.Errorf("got %s", text)
		}
		s = u.use("search_tools", `{"query":"city letter","limit":1.0}`)
		if text, isError := s.text(); isError || text == "" || strings.Contains(text, "\n") {
			t.Errorf("got %s, want one tool", text)
		}
		s = u.use("search_tools", `{"query":"zebra"}`)
		if text, isError := s.text(); isError || !strings.Contains(text, "None") {
			t.Errorf("got %s", text)
		}
		s = u.use("describe_tool", `{"name":"a::get_weather"}`)
		if text, isError := s.text(); isError || text != strings.Replace(weather, `"get_weather"`, `"a::get_weather"`, 1) {
			t.Errorf("got %s", text)
		}
		for tool, arguments := range map[string][]string{
			"search_tools":  {`{"query":1}`, `[]`, `{"query":"x","limit":"y"}`, `{"query":"x","limit":1.5}`},
			"describe_tool": {`{}`, `{"name":1}`, `{"name":"a::no"}`, `{"name":"b::delete_mail"}`, `{"name":"search_tools"}`},
			"call_tool":     {`{}`, `{"name":1}`, `{"name":"no"}`, `{"name":"c::x"}`, `{"name":"b::delete_mail"}`, `[]`},
		} {
			for _, a := range arguments {
				s := u.use(tool, a)
				if text, isError := s.text(); !isError || s.Error != nil {
					t.Errorf("%s %s: got %s", tool, a, text)
				}
			}
		}
		if n := peers[0].count("tools/call") + peers[1].count("tools/call"); n != 0 {
			t.Errorf("%d calls reached the servers", n)
		}
		s = u.use("call_tool", `{"name":"a::get_weather","arguments":{`+oddJSON+`}}`)
		if text, _ := s.text(); text != "a" {
			t.Errorf("got %s", s.body)
		}
		call := peers[0].waitFor(t, "tools/call", 1)
		if call.message.Text(jsonrpc.Name) != "get_weather" ||
			string(call.message.Literal(jsonrpc.Arguments)) != `{`+oddJSON+`}` {
			t.Errorf("got %s", call.body)
		}
		for i, a := range []string{`{"name":"a::copy_file"}`, `{"name":"a::copy_file","arguments":null}`} {
			u.use("call_tool", a)
			if call := peers[0].waitFor(t, "tools/call", 2+i); call.message.Text(jsonrpc.Name) != "copy_file" ||
				string(call.message.Literal(jsonrpc.Arguments)) != `{}` {
				t.Errorf("%s: got %s", a, call.body)
			}
		}
		// Tools can be called directly by name.
		if s := u.call("b::send_mail"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		s = u.use("recover_observation", `{"id":"obs_1","start_char":4}`)
		if text, isError := s.text(); isError || text != "inal" {
			t.Errorf("got %s", s.body)
		}
	})
}

// Without a separator, a server can have a tool with the name of the gateway's. Model APIs refuse two
// tools of the same name.
func TestAToolWithTheNameOfTheGateways(t *testing.T) {
	for recovers, want := range map[bool][]string{
		false: {"recover_observation", "x"}, true: {"x", "recover_observation"},
	} {
		p := legacyPeer("a").hasTools("recover_observation", "x")
		u := newGateway(t, func(c *Config) {
			c.Naming.Separator = ""
			if recovers {
				c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{}, true
			}
		}, p).legacy(t)
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
			t.Errorf("recovers %v: listed %v, want %v", recovers, got, want)
		}
		u.call("recover_observation")
		if n := p.count("tools/call"); (n == 0) != recovers {
			t.Errorf("recovers %v: %d calls reached the server", recovers, n)
		}
	}
}

// Calls through call_tool get the required headers.
func TestDiscoveryRepeatsArgumentsInHeaders(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := modernPeer("a").hasList("tools/list", "tools",
			`{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`)
		u := newGateway(t, func(c *Config) { c.Discovery = true }, p).user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		u.use("call_tool", `{"name":"a::x","arguments":{"region":"eu"}}`)
		if call := p.waitFor(t, "tools/call", 1); call.Header.Get("Mcp-Param-Region") != "eu" ||
			call.Header.Get("Mcp-Name") != "x" {
			t.Errorf("client of era %d: got %v", era, call.Header)
		}
	}
}

// The index follows changes of the tools.
func TestDiscoveryOfToolsThatChange(t *testing.T) {
	p := legacyPeer("a").hasList("tools/list", "tools", `{"name":"old","description":"zebra"}`)
	u := newGateway(t, func(c *Config) { c.Discovery = true }, p).legacy(t)
	s := u.use("search_tools", `{"query":"zebra"}`)
	if text, _ := s.text(); text != "a::old: zebra" {
		t.Errorf("got %s", text)
	}
	p.hasList("tools/list", "tools", `{"name":"new","description":"zebra"}`)
	s = u.use("search_tools", `{"query":"zebra"}`)
	if text, _ := s.text(); text != "a::new: zebra" {
		t.Errorf("got %s", text)
	}
}

func TestOwnToolsAndTemplates(t *testing.T) {
	configure := func(c *Config) {
		c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{"ann 1": "of ann", "bob 2": "of bob"}, true
	}
	both(t, configure, func() []*fakeServer {
		p := newPeer("a").hasTools("x", "recover_observation").
			hasList("resources/templates/list", "resourceTemplates", `{"uriTemplate":"x://{a}","name":"t"}`)
		p.capabilities = `{"tools":{},"resources":{}}`
		return []*fakeServer{p}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		u.identity = "ann"
		if u.era == mcp.Legacy {
			u.session = ""
			u.connect()
		}
		for limit := range 4 {
			if got, _ := u.walk("tools/list", "tools", "name", limit); !slices.Equal(got,
				[]string{"a::x", "a::recover_observation", "recover_observation"}) {
				t.Errorf("got %v", got)
			}
		}
		if got, _ := u.walk("resources/templates/list", "resourceTemplates", "uriTemplate", 1); len(got) != 2 ||
			got[1] != "proxy://observation/{id}" {
			t.Errorf("got %v", got)
		}
		s := u.use("recover_observation", `{"id":"1"}`)
		if text, _ := s.text(); text != "of ann" || peers[0].count("tools/call") != 0 {
			t.Errorf("got %s", s.body)
		}
		u.call("a::recover_observation")
		if peers[0].count("tools/call") != 1 {
			t.Error("the tool of the server was not called")
		}
		if s := u.ask("resources/read", `{"uri":"proxy://observation/1"}`); !strings.Contains(string(s.Result),
			`"contents":[{"uri":"proxy://observation/1","mimeType":"text/plain","text":"of ann"}]`) {
			t.Errorf("got %s", s.body)
		}
		if s := u.ask("resources/read", `{"uri":"proxy://observation/2"}`); s.code() != jsonrpc.CodeInvalidParams ||
			s.Error.Data.URI != "proxy://observation/2" {
			t.Errorf("got %s", s.body)
		}
		if n := peers[0].count("resources/read"); n != 0 {
			t.Errorf("%d requests reached the server", n)
		}
	})
}

// Tools of the gateway are listed even if no server has tools.
func TestOwnCapabilities(t *testing.T) {
	p := legacyPeer("a")
	p.capabilities = `{"logging":{}}`
	configure := func(c *Config) {
		c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{}, true
	}
	u := newGateway(t, configure, p).legacy(t)
	for _, name := range []string{`"tools":{`, `"resources":{`, `"logging":{}`} {
		if !strings.Contains(string(u.hello.Result), name) {
			t.Errorf("no %s in %s", name, u.hello.Result)
		}
	}
	if strings.Contains(string(u.hello.Result), `"prompts"`) {
		t.Errorf("got %s", u.hello.Result)
	}
	if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"recover_observation"}) {
		t.Errorf("got %v", got)
	}
}

// A blockedWriter is a client that reads nothing at first.
type blockedWriter struct {
	*httptest.ResponseRecorder
	writing chan<- struct{}
	read    <-chan struct{}
}

func (w blockedWriter) Write(p []byte) (int, error) {
	select {
	case w.writing <- struct{}{}:
		<-w.read
	case <-w.read:
	}
	return w.ResponseRecorder.Write(p)
}

// A client cannot fill the memory with originals that it requests and does not read.
func TestUnreadOriginalsAreLimited(t *testing.T) {
	g := newGateway(t, func(c *Config) {
		c.RequestLimit, c.InFlightLimit = 1<<20, 4<<20
		c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{" 1": strings.Repeat("x", 1<<20)}, true
	}, modernPeer("a"))
	writing, read := make(chan struct{}), make(chan struct{})
	request := func(address string, w http.ResponseWriter) {
		r := g.modern(t).serverRequest("resources/read", `{"uri":"proxy://observation/1"}`)
		g.NewRequest(w, r, inbound.Endpoint{Kind: upstream.Aggregate}, inbound.Peer{Address: address}).Serve()
	}
	var slow sync.WaitGroup
	first := blockedWriter{httptest.NewRecorder(), writing, read}
	slow.Go(func() { request("192.0.2.1", first) })
	<-writing
	refused := httptest.NewRecorder()
	request("192.0.2.1", refused)
	if !strings.Contains(refused.Body.String(), `"code":"busy"`) || refused.Code != http.StatusServiceUnavailable {
		t.Errorf("a second read of the client: %d %.200s", refused.Code, refused.Body)
	}
	other := httptest.NewRecorder()
	request("192.0.2.2", other)
	if other.Body.Len() < 1<<20 {
		t.Errorf("a read of another client: %d %.200s", other.Code, other.Body)
	}
	close(read)
	slow.Wait()
	again := httptest.NewRecorder()
	request("192.0.2.1", again)
	for _, w := range []*httptest.ResponseRecorder{first.ResponseRecorder, again} {
		if w.Body.Len() < 1<<20 {
			t.Errorf("a read of the client: %d %.200s", w.Code, w.Body)
		}
	}
}

// Clients with different rules search without building the index again for each search.
func TestIndexesOfSeveralClients(t *testing.T) {
	x := new(index)
	lists := make([][]*catalog.List, maxIndexes)
	built := make([]*toolsearch.Index, maxIndexes)
	for i := range lists {
		lists[i] = []*catalog.List{new(catalog.List), new(catalog.List)}
		built[i] = x.forLists(lists[i])
	}
	for i := range lists {
		if x.forLists(lists[i]) != built[i] {
			t.Errorf("index %d is built again", i)
		}
	}
	x.forLists(nil)
	if len(x.latest) != maxIndexes || x.forLists(lists[maxIndexes-1]) != built[maxIndexes-1] {
		t.Errorf("%d indexes are kept, without the one used last", len(x.latest))
	}
	if x.forLists(lists[0]) == built[0] {
		t.Error("the index used least recently is kept")
	}
	x.forLists([]*catalog.List{{Joined: make([]byte, maxIndexedBytes+1)}})
	if len(x.latest) != 1 {
		t.Errorf("%d indexes are kept besides a large one", len(x.latest)-1)
	}
}
