package mcp

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestPattern(t *testing.T) {
	for _, test := range []struct {
		pattern, server, tool string
		want                  bool
	}{
		{"fs::read", "fs", "read", true},
		{"fs::read", "fs", "Read", false},
		{"fs::read", "fs2", "read", false},
		{"fs::*", "fs", "anything/at.all", true},
		{"fs::*", "fs", "", true},
		{"*::read_*", "fs", "read_file", true},
		{"*::read_*", "fs", "thread_file", false},
		{"*::*_file", "", "read_file", true},
		{"*::a*b*c", "x", "abc", true},
		{"*::a*b*c", "x", "a-b-b-c", true},
		{"*::a*b*c", "x", "acb", false},
		{"*::ab*ba", "x", "aba", false},
		{"fs::a::b", "fs", "a::b", true},
		{"fs::[a]", "fs", "[a]", true},
	} {
		p, err := ParsePattern(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(test.server, test.tool); got != test.want {
			t.Errorf("%s on %s::%s: %v", test.pattern, test.server, test.tool, got)
		}
	}
	for _, s := range []string{"", "read", "fs:read", "::read", "fs::"} {
		if _, err := ParsePattern(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func TestJoin(t *testing.T) { // A7, R11
	long := strings.Repeat("x", 100)
	tests := []struct {
		name   string
		naming Naming
		server string
		tool   string
		want   string
	}{
		{"the default", Naming{Separator: "::"}, "alpha", "echo", "alpha::echo"},
		{"the rules of model APIs", Naming{"__", 64}, "alpha", "echo", "alpha__echo"},
		{"one server", Naming{"", 64}, "alpha", long, long},
		{"a name with the separator", Naming{"__", 64}, "alpha", "a__b::c", "alpha__a__b::c"},
		{"any length", Naming{Separator: "::"}, "alpha", long, "alpha::" + long},
		{"the maximum length", Naming{"__", 64}, "alpha", long[:57], "alpha__" + long[:57]},
		{"too long", Naming{"__", 64}, "alpha", long[:58], "alpha__" + long[:46] + "_pe5t234yxz"},
		{"a name that looks shortened", Naming{"__", 64}, "alpha", long[:46] + "_0123456789", "alpha__" + long[:46] +
			"_dbszety64k"},
		{"a capital in the suffix", Naming{"__", 64}, "alpha", long[:46] + "_A123456789",
			"alpha__" + long[:46] + "_A123456789"},
		{"a shorter name with a suffix", Naming{"__", 64}, "alpha", long[:45] + "_0123456789", "alpha__" + long[:45] +
			"_0123456789"},
		{"a wide character at the end", Naming{"__", 64}, "alpha", long[:45] + strings.Repeat("é", 10),
			"alpha__" + long[:45] + "__ncpgltr3qw"},
		{"a server without room for a tool", Naming{"__", 20}, "alphabetagamma", "a-tool-of-it",
			"alphabetagamma___5ilplsbpt3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.naming.Join(tt.server, tt.tool); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSplit(t *testing.T) { // A8, A9, R11
	known := func(server string) bool { return server == "alpha" || server == "alpha_x" || server == "beta" }
	tests := []struct {
		name         string
		separator    string
		joined       string
		server, tool string
		ok           bool
	}{
		{"the default", "::", "alpha::echo", "alpha", "echo", true},
		{"another separator", "__", "alpha__echo", "alpha", "echo", true},
		{"the default separator", "__", "alpha::echo", "alpha", "echo", true},
		{"two separators", "__", "alpha__beta__echo", "alpha", "beta__echo", true},
		{"two default separators", "__", "alpha::beta::echo", "alpha", "beta::echo", true},
		{"the default one before another", "__", "alpha::a__b", "alpha", "a__b", true},
		{"the default one after another", "__", "alpha__a::b", "alpha", "a::b", true},
		{"the default one after an unknown server", "__", "x__alpha::b", "", "", false},
		{"a server with half a separator", "__", "alpha_x__echo", "alpha_x", "echo", true},
		{"a tool that begins with half a separator", "__", "alpha___x", "alpha", "_x", true},
		{"a tool without a name", "__", "alpha__", "alpha", "", true},
		{"no separator", "__", "echo", "", "", false},
		{"only a server", "__", "alpha", "", "", false},
		{"an empty server", "__", "__echo", "", "", false},
		{"empty", "__", "", "", "", false},
		{"an unknown server", "__", "gamma__echo", "", "", false},
		{"a server in another case", "__", "Alpha__echo", "", "", false},
		{"one server", "", "alpha::echo", "", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, tool, ok := Naming{Separator: tt.separator}.Split(tt.joined, known)
			if server != tt.server || tool != tt.tool || ok != tt.ok {
				t.Errorf("got %q, %q, %t", server, tool, ok)
			}
		})
	}
}

func TestMayBeShort(t *testing.T) {
	naming := Naming{"__", 20}
	tests := []struct {
		name   string
		naming Naming
		joined string
		want   bool
	}{
		{"a shortened name", naming, naming.Join("a", "quite-a-long-tool-of-it"), true},
		{"a similar name", naming, "a__tool12_0123456789", true},
		{"a shorter name", naming, "a__tool1_0123456789", false},
		{"a longer name", naming, "a__tool123_0123456789", false},
		{"a capital", naming, "a__tool12_012345678A", false},
		{"two marks", naming, "a__tool12_01234_6789", false},
		{"no mark", naming, "a__tool12-0123456789", false},
		{"any length", Naming{Separator: "__"}, "a__tool12_0123456789", false},
		{"one server", Naming{Longest: 20}, "a__tool12_0123456789", false},
		{"a very short limit", Naming{"_", 5}, "_abcd", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.naming.MayBeShort(tt.joined); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestCheckNames(t *testing.T) { // A2
	tests := []struct {
		name   string
		naming Naming
		server string
		want   string // part of the error, "" for none
	}{
		{"a name", Naming{"__", 64}, "alpha", ""},
		{"half a separator inside", Naming{"__", 64}, "al_pha", ""},
		{"half a separator at the start", Naming{"__", 64}, "_alpha", ""},
		{"one server", Naming{"", 64}, strings.Repeat("x", 100), ""},
		{"the maximum length", Naming{"__", 64}, strings.Repeat("x", 46), ""},
		{"any length", Naming{Separator: "__"}, strings.Repeat("x", 100), ""},
		{"another separator", Naming{"__", 64}, "a.b", ""},
		{"no name", Naming{"__", 64}, "", "name is empty"},
		{"the separator", Naming{"__", 64}, "al__pha", "contains __"},
		{"half a separator at the end", Naming{"__", 64}, "alpha_", "overlaps with __,"},
		{"a part of the separator at the end", Naming{"-_-", 64}, "alpha-_", "overlaps with -_-,"},
		{"the end of a separator without overlap", Naming{"_-", 64}, "alpha_", ""},
		{"the default separator", Naming{"__", 64}, "al::pha", "contains ::"},
		{"half the default separator", Naming{"__", 64}, "alpha:", "overlaps with ::,"},
		{"the default separator with one server", Naming{}, "al::pha", "contains ::"},
		{"too long", Naming{"__", 64}, strings.Repeat("x", 47), "leaves room for 46"},
		{"no room for a tool", Naming{"__", 10}, "a", "leaves room for 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantError(t, tt.naming.Check(tt.server), tt.want)
		})
	}
}

func TestCheckSeparator(t *testing.T) {
	for separator, want := range map[string]string{
		"": "", "::": "", "__": "", ".": "", "/": "", "-": "", "_x_": "", "________": "",
		"_________": "longer than 8",
		"x":         "only letters and digits",
		"A1":        "only letters and digits",
		"_ _":       `contains ' '`,
		"é":         `contains 'é'`,
		"_\n":       `contains '\n'`,
		"_\xff":     "allowed are",
		"{sep}":     `contains '{'`,
	} {
		t.Run(fmt.Sprintf("%q", separator), func(t *testing.T) {
			wantError(t, Naming{Separator: separator}.CheckSeparator(), want)
		})
	}
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case (err == nil) != (want == ""):
		t.Errorf("got %v, want %q", err, want)
	case err != nil && !strings.Contains(err.Error(), want):
		t.Errorf("got %q, want %q", err, want)
	}
}

// someName returns a random name of pieces that are easily confused.
func someName(random *rand.Rand, pieces int) string {
	alphabet := []string{"a", "b", "7", "_", "__", ":", "::", "-", ".", "/", "é", "世", "😀", "_abcdefghij"}
	var name strings.Builder
	for range random.IntN(pieces) + 1 {
		name.WriteString(alphabet[random.IntN(len(alphabet))])
	}
	return name.String()
}

func TestJoinedNamesCanBeSplit(t *testing.T) { // A8
	random := rand.New(rand.NewPCG(1, 2))
	for _, naming := range []Naming{{"::", 0}, {"__", 0}, {"__", 64}, {".", 32}, {"-_-", 40}, {"/", 64}, {":::", 48}} {
		servers := map[string]bool{}
		var names []string
		for len(names) < 200 {
			server := someName(random, 6)
			if naming.Check(server) == nil && !servers[server] {
				servers[server] = true
				names = append(names, server)
			}
		}
		known := func(server string) bool { return servers[server] }
		for range 5000 {
			server, name := names[random.IntN(len(names))], someName(random, 25)
			joined := naming.Join(server, name)
			if naming.Longest > 0 && len(joined) > naming.Longest || !utf8.ValidString(joined) {
				t.Fatalf("%+v: %q and %q became %q", naming, server, name, joined)
			}
			whose, called, ok := naming.Split(joined, known)
			if !ok || whose != server {
				t.Fatalf("%+v: %q and %q became %q, split into %q and %q", naming, server, name, joined, whose, called)
			}
			if called != name && !naming.MayBeShort(joined) {
				t.Fatalf("%+v: %q of %q became %q after a round trip, but MayBeShort is false", naming, name, server, called)
			}
			if called == name && naming.MayBeShort(joined) {
				t.Fatalf("%+v: %q of %q looks shortened, but is not", naming, name, server)
			}
			if strings.Contains(naming.Separator, ":") {
				continue // ambiguous with Separator
			}
			if whose, called, ok := naming.Split(server+"::"+name, known); !ok || whose != server || called != name {
				t.Fatalf("%+v: %s::%s was split into %q and %q", naming, server, name, whose, called)
			}
		}
	}
}

func TestJoinedNamesDiffer(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	naming := Naming{"__", 64}
	servers := []string{"alpha", "alpha_x", "beta", "b", "_b"}
	for _, server := range servers {
		if err := naming.Check(server); err != nil {
			t.Fatal(err)
		}
	}
	type tool struct{ server, name string }
	common := strings.Repeat("common-", 8)
	seen := map[tool]bool{}
	joined := map[string]tool{}
	for len(seen) < 20000 {
		it := tool{servers[random.IntN(len(servers))], common + someName(random, 25)}
		if seen[it] {
			continue
		}
		seen[it] = true
		short := naming.Join(it.server, it.name)
		if other, taken := joined[short]; taken {
			t.Fatalf("%v and %v both became %q", it, other, short)
		}
		joined[short] = it
		if again := naming.Join(it.server, it.name); again != short {
			t.Fatalf("%v became %q and then %q", it, short, again)
		}
		// A server cannot offer a tool under the shortened name of another tool.
		double := tool{it.server, strings.TrimPrefix(short, it.server+"__")}
		if naming.MayBeShort(short) && naming.Join(double.server, double.name) == short {
			t.Fatalf("%v can replace %v", double, it)
		}
	}
}

func TestShortened(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a name", "echo", "echo"},
		{"empty", "", ""},
		{"256 characters", strings.Repeat("é", 256), strings.Repeat("é", 256)},
		{"more than 256 characters", strings.Repeat("é", 5000), strings.Repeat("é", 256) + "…"},
		{"bytes that are not UTF-8", strings.Repeat("\xff", 5000), "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Shortened(test.text); got != test.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The name or URI for clients is at most a third longer than the original, plus a constant that
// depends on the name of the server. This limits the growth of a list per item.
func TestShownNamesAreLimited(t *testing.T) {
	const server = "a-server"
	const constant = 80
	for _, name := range []string{"", "a", "\x01\"\\<>&é\u2028😀", strings.Repeat("n", 10_000),
		strings.Repeat("\x01", 1000), strings.Repeat("é", 1000), strings.Repeat("%", 1000)} {
		literal, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		for what, shown := range map[string]string{
			"a resource": ResourceURI(server, name), "a template": TemplateURI(server, name),
			"a tool": Naming{Separator: "__"}.Join(server, name), "a tool with a short name": Naming{Separator: "__",
				Longest: 64}.Join(server, name),
		} {
			spelled, err := json.Marshal(shown)
			if err != nil {
				t.Fatal(err)
			}
			if len(spelled) > len(literal)+len(literal)/3+constant {
				t.Errorf("%s: %.40q grew from %d to %d bytes", what, name, len(literal), len(spelled))
			}
		}
	}
}

func TestTargetOf(t *testing.T) { // A53, A54, A55
	tool := func(name string) Target { return Target{"s", Tool, name} }
	prompt := func(name string) Target { return Target{"s", Prompt, name} }
	resource := func(uri string) Target { return Target{"s", Resource, uri} }
	anything, other := Target{Server: "s"}, Target{Server: "s", Kind: Other}
	for _, tt := range []struct {
		name, message string
		want          Target
		known         bool
	}{
		{"a tool", `"method":"tools/call","params":{"name":"x"}`, tool("x"), true},
		{"a tool with escapes", `"m\u0065thod":"tools\/call","params":{"n\u0061me":"\u0078"}`, tool("x"),
			true},
		{"a tool without a name", `"method":"tools/call","params":{}`, tool(""), false},
		{"a tool without params", `"method":"tools/call"`, tool(""), false},
		{"a tool whose name is a list", `"method":"tools/call","params":{"name":["x"]}`, tool(""), false},
		{"a tool whose name is a number", `"method":"tools/call","params":{"name":1}`, tool(""), false},
		{"params as an array", `"method":"tools/call","params":["x"]`, tool(""), false},
		{"a prompt", `"method":"prompts/get","params":{"name":"x"}`, prompt("x"), true},
		{"a prompt whose name is an object", `"method":"prompts/get","params":{"name":{}}`, prompt(""), false},
		{"a resource", `"method":"resources/read","params":{"uri":"x://a"}`, resource("x://a"), true},
		{"a subscription", `"method":"resources/subscribe","params":{"uri":"x://a"}`, resource("x://a"), true},
		{"the end of a subscription", `"method":"resources/unsubscribe","params":{"uri":"x://a"}`, resource("x://a"), true},
		{"a resource whose URI is null", `"method":"resources/read","params":{"uri":null}`, resource(""), false},
		{"a prompt argument", `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"}}`,
			prompt("x"), true},
		{"a template argument",
			`"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"x://{a}"}}`, resource("x://{a}"),
			true},
		{"a reference to a prompt and a resource",
			`"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x","uri":"x://a"}}`, anything, false},
		{"a prompt and an empty URI",
			`"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x","uri":null}}`, anything, false},
		{"a prompt without a name", `"method":"completion/complete","params":{"ref":{"type":"ref/prompt"}}`, prompt(""),
			false},
		{"a prompt with a list as name", `"method":"completion/complete","params":{"ref":{"name":["x"]}}`, prompt(""),
			false},
		{"a task", `"method":"tasks/result","params":{"taskId":"1"}`, other, true},
		{"all tasks", `"method":"tasks/list"`, other, true},
		{"a skill", `"method":"skills/get","params":{"uri":"a:b"}`, resource("a:b"), true},
		{"a directory", `"method":"resources/directory/read","params":{"uri":"a:b"}`, resource("a:b"), true},
		{"a directory of a list", `"method":"resources/directory/read","params":{"uri":["a:b"]}`, resource(""), false},
		{"all skills", `"method":"skills/list"`, anything, true},
		{"an unknown method", `"method":"admin/deleteEverything"`, other, true},
		{"an empty method", `"method":""`, other, true},
		{"a list", `"method":"tools/list"`, anything, true},
		{"initialize", `"method":"initialize"`, anything, true},
		{"a notification", `"method":"notifications/initialized"`, anything, true},
		{"an unknown notification", `"method":"notifications/vendor"`, anything, true},
		{"a response", `"result":{}`, anything, true},
	} {
		for _, id := range []string{``, `"id":1,`} {
			if id == "" && tt.name == "a response" {
				continue
			}
			if id != "" && tt.name == "an unknown notification" {
				tt.want = other // with an id, it is not a notification
			}
			t.Run(tt.name+" "+id, func(t *testing.T) {
				var m jsonrpc.Message
				if failure := m.ReadRequest([]byte(`{"jsonrpc":"2.0",` + id + tt.message + `}`)); failure != nil {
					t.Fatal(failure)
				}
				if got, known := TargetOf("s", &m); got != tt.want || known != tt.known {
					t.Errorf("got %+v, %t", got, known)
				}
			})
		}
	}
}
