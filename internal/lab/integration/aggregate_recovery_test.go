package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// handlePattern matches the handle in a masked text.
var handlePattern = regexp.MustCompile(`\[KIMI_PROXY_OBSERVATION_MASKED original_chars=(\d+) head=\d+ tail=\d+ ` +
	`id=(obs_[A-Za-z0-9]{10})\]`)

// unicodeText returns a text that is hard to recover: characters of one to four bytes, and
// characters that JSON escapes. Each line has its number.
func unicodeText(lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "%d\té 🙂 \\ \"quoted\" <b>&amp;</b> \u2028 \u0001 ERROR%d\n", i, i%10)
	}
	return b.String()
}

// newTextServer starts a server whose tool "read" returns this JSON string.
func newTextServer(t *testing.T, spelled string) *remoteServer {
	s := newRemoteServer(t, "read")
	s.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":` + spelled + `}]}`}
	return s
}

// recoveredText is the result of recover_observation.
type recoveredText struct {
	Content []struct{ Text string }
	IsError bool
	Meta    struct {
		Total   int  `json:"total_chars"`
		Matches int  `json:"matches"`
		Next    *int `json:"next_start_char"`
	} `json:"_meta"`
}

func recoverObservation(t *testing.T, c *testClient, arguments string) (r recoveredText) {
	t.Helper()
	got := c.ask(t, "tools/call", `{"name":"recover_observation","arguments":`+arguments+`}`)
	if err := json.Unmarshal(got.answer.Result, &r); err != nil || got.status != 200 || len(r.Content) == 0 {
		t.Fatalf("%s: %d %s", arguments, got.status, got.answer.Raw)
	}
	return r
}

// callMasked makes a call whose result is masked, and returns its handle.
func callMasked(t *testing.T, c *testClient, server, tool, arguments string) (handle string) {
	t.Helper()
	text := c.use(t, server, tool, arguments)
	found := handlePattern.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no handle in %.200s…", text)
	}
	return found[2]
}

func TestAggregateRecovery(t *testing.T) {
	isolate(t)
	original := unicodeText(300)
	// The same text, with every character escaped.
	escaped := new(strings.Builder)
	for _, c := range original {
		if c < 0x10000 {
			fmt.Fprintf(escaped, `\u%04x`, c)
		} else {
			fmt.Fprintf(escaped, `\u%04X\u%04X`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		}
	}
	items := new(strings.Builder)
	for i := range 500 {
		fmt.Fprintf(items, `{"id":%d,"name":"item %d","size":12345678901234567890},`, i, i)
	}
	url := serve(t, gateway("separator __", block("mask", "recover on"),
		newTextServer(t, quote(original)).line("plain"), newTextServer(t, `"`+escaped.String()+`"`).line("spelled"),
		newTextServer(t, quote(`{"items":[`+items.String()+`{}]}`)).line("listing"),
		child("alpha"), block(child("bare"), "mask off")))
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, `{}`)
		t.Run("O23 "+era.name+" sees the tool", func(t *testing.T) {
			got := c.ask(t, "tools/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"name":"recover_observation"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
			got = c.ask(t, "resources/templates/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"uriTemplate":"proxy://observation/{id}"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
		})
		for _, server := range []string{"plain", "spelled"} {
			t.Run("O23 "+era.name+" recovers a masked result, "+server, func(t *testing.T) {
				handle := callMasked(t, c, server, "read", `{}`)
				if again := callMasked(t, c, server, "read", `{}`); again != handle {
					t.Errorf("%s became %s", handle, again)
				}
				var whole strings.Builder
				for start := 0; ; {
					r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":%d}`, handle, start))
					whole.WriteString(r.Content[0].Text)
					if r.IsError || r.Meta.Total != len([]rune(original)) || strings.Contains(r.Content[0].Text,
						"OBSERVATION_MASKED") {
						t.Fatalf("got %+v", r)
					}
					if r.Meta.Next == nil {
						break
					}
					start = *r.Meta.Next
				}
				same(t, whole.String(), original)
				part := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":1999,"end_char":2500}`, handle))
				same(t, part.Content[0].Text, string([]rune(original)[1999:2500]))
				found := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"pattern":"^123\\t.*ERROR3$","context_lines":0}`, handle))
				if line := strings.Split(original, "\n")[123]; found.Meta.Matches != 1 || !strings.Contains(found.Content[0].Text,
					line) {
					t.Errorf("got %+v\nwant %q", found, line)
				}
				lines := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_line":124,"end_line":125}`, handle))
				same(t, lines.Content[0].Text, strings.Join(strings.SplitAfter(original, "\n")[123:125], ""))
				got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`)
				var read struct {
					Contents []struct{ URI, Text string }
				}
				if err := json.Unmarshal(got.answer.Result, &read); err != nil || len(read.Contents) != 1 ||
					read.Contents[0].URI != "proxy://observation/"+handle {
					t.Fatalf("%v: %.300s", err, got.answer.Raw)
				}
				same(t, read.Contents[0].Text, original)
			})
		}
		t.Run("O26 "+era.name+" queries masked JSON", func(t *testing.T) {
			handle := callMasked(t, c, "listing", "read", `{}`)
			r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"query":".items[] | select(.id == 321) | .name, .size"}`,
				handle))
			if r.IsError || r.Content[0].Text != "\"item 321\"\n12345678901234567890" {
				t.Errorf("got %+v", r)
			}
			r = recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"query":"[range(1e9)] | length"}`, handle))
			if !r.IsError || !strings.HasPrefix(r.Content[0].Text, "query: ") {
				t.Errorf("got %+v", r)
			}
		})
		t.Run("O23 "+era.name+" recovers a result of a child", func(t *testing.T) {
			handle := callMasked(t, c, "alpha", "big", `{"n":10000}`)
			got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`)
			if whole := c.use(t, "bare", "big", `{"n":10000}`); !strings.Contains(got.answer.Raw, `"text":"`+whole+`"`) {
				t.Errorf("got %.300s", got.answer.Raw)
			}
		})
		t.Run("O23 "+era.name+" asks for unknown observations", func(t *testing.T) {
			unknown := "obs_" + strings.Repeat("x", 10)
			for arguments, want := range map[string]string{
				`{"id":"` + unknown + `"}`: unknown, `{}`: "id is missing", `{"id":1}`: "must be a string",
				`{"id":"x","start":1}`: "unknown argument",
			} {
				if r := recoverObservation(t, c, arguments); !r.IsError || !strings.Contains(r.Content[0].Text, want) {
					t.Errorf("%s: %+v", arguments, r)
				}
			}
			uri := "proxy://observation/" + unknown
			got := c.ask(t, "resources/read", `{"uri":"`+uri+`"}`)
			if got.answer.Error == nil || got.answer.Error.Code != -32602 || !strings.Contains(string(got.answer.Error.Data),
				uri) {
				t.Errorf("got %s", got.answer.Raw)
			}
		})
	}
}

// A recovered text is never masked again, even with short masks.
func TestAggregateRecoveryOfShortMasks(t *testing.T) {
	isolate(t)
	original := unicodeText(20)
	url := serve(t, gateway("separator __",
		block(newTextServer(t, quote(original)).line("short"), block("mask 100 10 10", "recover on")),
		block(child("long"), block("mask 4000 10 10", "recover on"))))
	c := newTestClient(t, joinedAt(url), true, `{}`)
	handle := callMasked(t, c, "short", "read", `{}`)
	var whole strings.Builder
	for start := 0; ; {
		r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":%d}`, handle, start))
		if n := len([]rune(r.Content[0].Text)); n > 100 {
			t.Errorf("got %d characters, which another mask would cut", n)
		}
		whole.WriteString(r.Content[0].Text)
		if r.Meta.Next == nil {
			break
		}
		start = *r.Meta.Next
	}
	same(t, whole.String(), original)
	t.Run("O23 originals of each server", func(t *testing.T) {
		handle := callMasked(t, c, "long", "big", `{"n":5000}`)
		r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":4990}`, handle))
		if r.IsError || r.Content[0].Text != strings.Repeat("x", 10) {
			t.Errorf("got %+v", r)
		}
	})
}

// Without recover there is no tool, no template and no handle (A44, O23).
func TestAggregateWithoutRecovery(t *testing.T) {
	isolate(t)
	tests := []struct {
		name  string
		lines []string
	}{
		{"O23 no mask", []string{child("alpha")}},
		{"O23 a mask without recover", []string{"mask 4000 2000 2000", child("alpha")}},
		{"O23 recover off", []string{block("mask", "recover off"), child("alpha")}},
		{"O23 the mask with recover is off", []string{block("mask off", "recover on"), child("alpha")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newLegacyClient(t, serve(t, gateway(tt.lines...)), `{}`)
			if c.listsTool("recover_observation") {
				t.Error("the tool is listed")
			}
			if got := c.list("resources/templates/list", "uriTemplate"); slices.Contains(got, "proxy://observation/{id}") {
				t.Errorf("templates: %v", got)
			}
			if got := c.use("alpha::big", `{"n":10000}`); strings.Contains(got, "id=obs_") {
				t.Error("the marker has a handle")
			}
			c.expectError("tools/call", `{"name":"recover_observation","arguments":{"id":"obs_x"}}`, -32602)
			c.expectError("resources/read", `{"uri":"proxy://observation/obs_x"}`, -32602)
		})
	}
}

// The passwords of alice and bob are their names.
const basicAuthAccounts = `basic_auth {
	alice $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq
	bob $2a$04$O1gTu59shVOJBWJWCimZkO513JyfgU.NganN/RzsohuSPY3jwsgcy
}`

func basicAuthHeader(user string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+user))
}

// A handle belongs to the client that got it (O23).
func TestAggregateRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	config := site(address, basicAuthAccounts, gateway("separator __", block("mask", "recover on"), child("alpha")))
	load(t, config)
	endpoint := joinedAt("http://" + address)
	refused := func(t *testing.T, c *testClient, handle string) {
		t.Helper()
		if r := recoverObservation(t, c, `{"id":"`+handle+`"}`); !r.IsError {
			t.Errorf("got %.100s…", r.Content[0].Text)
		}
		if got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`); got.answer.Error == nil ||
			got.answer.Error.Code != -32602 {
			t.Errorf("got %.300s", got.answer.Raw)
		}
	}
	for i, era := range clientEras {
		t.Run("O23 "+era.name, func(t *testing.T) {
			alice, bob := newTestClient(t, endpoint, era.modern, `{}`, basicAuthHeader("alice")),
				newTestClient(t, endpoint, era.modern, `{}`, basicAuthHeader("bob"))
			arguments := fmt.Sprintf(`{"n":%d}`, 10000+i) // no client has a handle for it yet
			handle := callMasked(t, alice, "alpha", "big", arguments)
			refused(t, bob, handle)
			for _, c := range []*testClient{alice, newTestClient(t, endpoint, !era.modern, `{}`, basicAuthHeader("alice"))} {
				if r := recoverObservation(t, c, `{"id":"`+handle+`","start_char":2000}`); r.IsError {
					t.Errorf("got %+v", r)
				}
			}
			if handle := callMasked(t, bob, "alpha", "big", arguments); recoverObservation(t, bob, `{"id":"`+handle+
				`"}`).IsError {
				t.Error("bob cannot recover his own result")
			}
		})
	}
	t.Run("O23 after a reload", func(t *testing.T) {
		alice, bob := newTestClient(t, endpoint, false, `{}`, connectionClose, basicAuthHeader("alice")),
			newTestClient(t, endpoint, false, `{}`, connectionClose, basicAuthHeader("bob"))
		handle := callMasked(t, alice, "alpha", "big", `{"n":20001}`)
		load(t, config+site(freeAddress(t), "respond x"))
		if r := recoverObservation(t, alice, `{"id":"`+handle+`"}`); r.IsError {
			t.Errorf("got %+v", r)
		}
		refused(t, bob, handle)
	})
	t.Run("O23 after a reload that denies the tool", func(t *testing.T) {
		alice := newTestClient(t, endpoint, false, `{}`, connectionClose, basicAuthHeader("alice"))
		handle := callMasked(t, alice, "alpha", "big", `{"n":20002}`)
		denying := func(pattern string) string {
			return site(address, basicAuthAccounts, gateway("separator __", block("mask", "recover on"),
				block("client alice", "deny "+pattern), child("alpha")))
		}
		load(t, denying("alpha::big"))
		refused(t, alice, handle)
		load(t, denying("alpha::echo"))
		if r := recoverObservation(t, alice, `{"id":"`+handle+`"}`); r.IsError {
			t.Errorf("with another tool denied: %+v", r)
		}
	})
}
