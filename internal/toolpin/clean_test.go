package toolpin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestCleanRemovesHiddenCharacters(t *testing.T) {
	for _, test := range []struct{ name, raw, want string }{
		{"an override, raw", "{\"description\":\"pay \u202Eecila\u202C\"}", `{"description":"pay ecila"}`},
		{"an override, escaped", `{"description":"pay \u202eecila\u202C"}`, `{"description":"pay ecila"}`},
		{"isolates and marks", `{"title":"\u2066a\u2069\u200e\u200f\u061c"}`, `{"title":"a"}`},
		{"zero-width characters", "{\"instructions\":\"a\u200Bb\u2060c\uFEFFd\u180Ee\u00ADf\"}", `{"instructions":"abcdef"}`},
		{"invisible operators", `{"title":"\u2061\u2062\u2063\u2064x"}`, `{"title":"x"}`},
		{"control characters, raw and escaped", `{"title":"\u0000a\bb\fc\u001b[8m` + "\x7f\u0085" + `\u009b\u007Fd"}`,
			`{"title":"abc[8md"}`},
		{"tags, raw", "{\"title\":\"a\U000E0041\U000E007F\"}", `{"title":"a"}`},
		{"tags, as surrogate pairs", `{"title":"a\udb40\udc41\uDB40\uDC7F"}`, `{"title":"a"}`},
		{"supplementary variation selectors", `{"title":"a` + "\U000E0100" + `\udb40\uddef"}`, `{"title":"a"}`},
		{"interlinear annotations", `{"title":"\ufff9a\ufffa` + "\uFFFB" + `"}`, `{"title":"a"}`},
		{"lone surrogates", `{"title":"a\ud800b\udc00\udc00c\ud83d"}`, `{"title":"abc"}`},
		{"surrogates that would become a pair", `{"title":"\ud83d\u200b\ude00"}`, `{"title":""}`},
		{"bytes that are not UTF-8", "{\"title\":\"a\xffb\xed\xa0\x80c\xc0\xaf\"}", `{"title":"abc"}`},
		{"bytes that would become a character", "{\"title\":\"\xe2\x80\u200B\xae\"}", `{"title":""}`},
		{"hidden characters only", `{"title":"\u202e"}`, `{"title":""}`},
		{"the description of a parameter", `{"inputSchema":{"properties":{"a":{"description":"\u202ex"}}}}`,
			`{"inputSchema":{"properties":{"a":{"description":"x"}}}}`},
		{"a parameter called description", `{"properties":{"description":{"description":"\u200bx"}}}`,
			`{"properties":{"description":{"description":"x"}}}`},
		{"a key with escapes", `{"descri\u0070tion":"\u200bx"}`, `{"descri\u0070tion":"x"}`},
		{"a key twice", `{"title":"\u200bx","title":"y\u200b"}`, `{"title":"x","title":"y"}`},
		{"several tools", `{"tools":[{"description":"\u200ba"}, {"description":"b\u200b"} ]}`,
			`{"tools":[{"description":"a"}, {"description":"b"} ]}`},
		{"all strings of a tool", `{"id":"\u200b","result":{"tools":[{"enum":["a\u200b"],"x":{"default":"\u202eb",` +
			`"examples":[["\u001bc"]],"y":"\udb40\udc41"}}],"nextCursor":"\u200b"}}`,
			`{"id":"\u200b","result":{"tools":[{"enum":["a"],"x":{"default":"b","examples":[["c"]],"y":""}}],` +
				`"nextCursor":"\u200b"}}`},
		{"all keys of a tool", "{\"result\":{\"tools\":[{\"inputSchema\":{\"properties\":{\"pa\\u200bth\":{}," +
			"\"\U000E0041x\":{\"y\u202e\":1}}}}]}}",
			`{"result":{"tools":[{"inputSchema":{"properties":{"path":{},"x":{"y":1}}}}]}}`},
		{"names inside of a tool", `{"result":{"tools":[{"name":"a\u200b","x":{"name":"b\u200b","uri":"c\u200b"}}]}}`,
			`{"result":{"tools":[{"name":"a\u200b","x":{"name":"b","uri":"c"}}]}}`},
		{"prompts, resources and templates", `{"result":{"prompts":[{"name":"\u200b","arguments":[{"name":"a\u200b"}]}],` +
			`"resources":[{"uri":"\u200b","name":"\u200b","mimeType":"b\u200b"}],` +
			`"resourceTemplates":[{"uriTemplate":"\u200b","x":"c\u200b"}]}}`,
			`{"result":{"prompts":[{"name":"\u200b","arguments":[{"name":"a"}]}],"resources":[{"uri":"\u200b",` +
				`"name":"\u200b","mimeType":"b"}],"resourceTemplates":[{"uriTemplate":"\u200b","x":"c"}]}}`},
		{"tools of a batch", `[{"result":{"tools":[{"name":"\u200b","x":"a\u200b"}]}},{"result":{"tools":["b\u200b"]}}]`,
			`[{"result":{"tools":[{"name":"\u200b","x":"a"}]}},{"result":{"tools":["b"]}}]`},
		{"a list with escapes in its key", `{"r\u0065sult":{"t\u006fols":[{"x":"a\u200b"}]}}`,
			`{"r\u0065sult":{"t\u006fols":[{"x":"a"}]}}`},
		{"depth", strings.Repeat(`[`, 5000) + `{"title":"\u200b"}` + strings.Repeat(`]`, 5000), strings.Repeat(`[`, 5000) +
			`{"title":""}` + strings.Repeat(`]`, 5000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			raw := []byte(test.raw)
			if got := Clean(raw); string(got) != test.want {
				t.Errorf("got %.200q", got)
			}
			if string(raw) != test.raw {
				t.Error("the input was changed")
			}
		})
	}
}

func TestCleanKeepsTheRest(t *testing.T) {
	for _, test := range []struct{ name, raw string }{
		{"plain text", `{"title":"List files"}`},
		{"line breaks and tabs", `{"description":"a\n\tb\r\n\u000a\u0009\u000D"}`},
		{"joiners and selectors of emoji", "{\"title\":\"👩\u200D💻 ❤\uFE0F \\u200d\\ufe0f \u200C\"}"},
		{"other scripts", `{"title":"пример العربية עברית 漢字 \u6f22"}`},
		{"dashes and quotes", `{"title":"a – b “c” … → \u2014 \u00a0"}`},
		{"the replacement character", "{\"title\":\"\uFFFD \\ufffd \\uFFFD\"}"},
		{"text that is not an escape", `{"title":"\\u202e \\\\ud800 \\b"}`},
		{"names", `{"name":"\u202e"}`},
		{"text that a tool returned", `{"text":"\u202e"}`},
		{"text that a tool returned, as a message",
			`{"id":1,"result":{"content":[{"text":"\u202e"}],"structuredContent":{"tools":[{"x":"\u202e"}],"\u202e":1}}}`},
		{"text of a resource", `{"id":1,"result":{"contents":[{"uri":"x","text":"\u202e"}]}}`},
		{"lists elsewhere", `{"params":{"tools":[{"x":"\u202e"}]},"tools":[{"x":"\u202e"}],` +
			`"x":{"result":{"tools":["\u202e"]}}}`},
		{"other members", `{"pattern":"[\u0000-\u001f]","enum":["\u200b"],"default":"\u202e"}`},
		{"keys", `{"\u200bdescription":"x","Description":"\u200b"}`},
		{"elements of an array called title", `{"title":["\u200b"],"description":{"a":"\u200b"}}`},
		{"a string by itself", `"\u202e"`},
		{"invalid JSON", `{"title":"\u202e"`},
		{"an incomplete escape", `{"title":"\u20`},
		{"a backslash at the end", `\`},
		{"an empty text", ``},
	} {
		t.Run(test.name, func(t *testing.T) {
			raw := []byte(test.raw)
			got := Clean(raw)
			if string(got) != test.raw {
				t.Errorf("got %q", got)
			}
			if len(raw) > 0 && &got[0] != &raw[0] {
				t.Error("a copy was made")
			}
		})
	}
}

func TestCleanDecidesByTheCharacter(t *testing.T) {
	const block = 0x100
	for first := rune(0); first <= unicode.MaxRune; first += block {
		if plane := first >> 16; first&0xFFFF >= 0x200 && plane > 1 && plane != 0xE {
			continue // of planes without hidden characters, test only the beginning
		}
		var raw, escaped, want strings.Builder
		for r := first; r < first+block; r++ {
			if 0xD800 <= r && r < 0xE000 {
				continue
			}
			escaped.WriteString(escape(r))
			if r < 0x20 || r == '"' || r == '\\' {
				raw.WriteString(escape(r))
			} else {
				raw.WriteRune(r)
			}
			if !unicode.Is(hiding, r) {
				want.WriteRune(r)
			}
		}
		for _, spelled := range []string{raw.String(), escaped.String()} {
			var got struct{ Title string }
			if err := json.Unmarshal(Clean([]byte(`{"title":"`+spelled+`"}`)), &got); err != nil || got.Title != want.String() {
				t.Errorf("from %U on, written as %.20q: got %q, %v", first, spelled, got.Title, err)
			}
		}
	}
}

// escape returns a character as \u escapes.
func escape(r rune) string {
	if r < 0x10000 {
		return fmt.Sprintf(`\u%04x`, r)
	}
	r -= 0x10000
	return fmt.Sprintf(`\u%04X\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
}

// hiding is the set of hidden characters, defined independently of Clean.
var hiding = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x0000, 0x0008, 1}, {0x000B, 0x000C, 1}, {0x000E, 0x001F, 1}, {0x007F, 0x009F, 1}, {0x00AD, 0x00AD, 1},
		{0x034F, 0x034F, 1}, {0x061C, 0x061C, 1}, {0x115F, 0x1160, 1}, {0x17B4, 0x17B5, 1}, {0x180B, 0x180F, 1},
		{0x200B, 0x200B, 1}, {0x200E, 0x200F, 1}, {0x202A, 0x202E, 1}, {0x2060, 0x206F, 1}, {0x3164, 0x3164, 1},
		{0xFE00, 0xFE0E, 1}, {0xFEFF, 0xFEFF, 1}, {0xFFA0, 0xFFA0, 1}, {0xFFF0, 0xFFFB, 1},
	},
	R32: []unicode.Range32{{0x1BCA0, 0x1BCA3, 1}, {0x1D173, 0x1D17A, 1}, {0xE0000, 0xE0FFF, 1}},
}

func FuzzClean(f *testing.F) {
	for _, seed := range []string{
		`{"tools":[{"name":"a","description":"pay \u202eecila\udb40\udc41",` +
			`"inputSchema":{"properties":{"title":{"title":"\ud83d\u200b\ude00"}}}}]}`,
		"{\"title\":\"\xe2\x80\u200B\xae\", \"title\":[\"\u200B\"],\"instructions\":\"\\b\\f\\n\\u009b\x7f\"}",
		`{"descri\u0070tion":"\\u202e\u202E\ud800","text":"\u202e"}`,
		`[[{"title":"\u20`,
		`{"title":"\u200c\ufe0f\`, `{"title":"\u|"}`, `{"title":"\u0001"}`, `{"title":"\u200b"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		got := Clean(raw)
		if !bytes.Equal(raw, before) {
			t.Fatal("the input was changed")
		}
		if again := Clean(got); !bytes.Equal(again, got) {
			t.Fatalf("%q becomes %q, then %q", raw, got, again)
		}
		if !json.Valid(raw) {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%q becomes %q", raw, got)
		}
		rest, texts := part(t, raw)
		restGot, textsGot := part(t, got)
		if rest != restGot {
			t.Fatalf("%q becomes %q", raw, got)
		}
		for i := range texts {
			texts[i] = strings.Map(visible, texts[i])
			if strings.ContainsFunc(textsGot[i], func(r rune) bool { return unicode.Is(hiding, r) }) {
				t.Fatalf("%q is left in %q", textsGot[i], got)
			}
			textsGot[i] = strings.Map(visible, textsGot[i])
		}
		if !slices.Equal(texts, textsGot) {
			t.Fatalf("%q becomes %q, not %q", raw, textsGot, texts)
		}
	})
}

// visible is for [strings.Map]. It drops hidden characters, and U+FFFD, which encoding/json inserts
// where Clean removes bytes.
func visible(r rune) rune {
	if r == unicode.ReplacementChar || unicode.Is(hiding, r) {
		return -1
	}
	return r
}

// part returns the strings of a text that Clean may change, and the rest of the text. It reads the
// tokens with encoding/json.
func part(t *testing.T, raw []byte) (rest string, texts []string) {
	t.Helper()
	type container struct {
		object bool
		key    string
		inside bool // after a key
	}
	var stack []container
	var around strings.Builder
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	for read := int64(0); ; {
		token, err := d.Token()
		if err == io.EOF {
			around.Write(raw[read:])
			return around.String(), texts
		}
		if err != nil {
			t.Fatal(err)
		}
		piece := raw[read:d.InputOffset()]
		read = d.InputOffset()
		if token == json.Delim('}') || token == json.Delim(']') {
			stack = stack[:len(stack)-1]
			around.Write(piece)
			continue
		}
		var top *container
		if len(stack) > 0 {
			top = &stack[len(stack)-1]
		}
		text, isText := token.(string)
		switch {
		case top != nil && top.object && !top.inside:
			top.key, top.inside = text, true
			around.Write(piece)
			continue
		case isText && top != nil && top.object && slices.Contains([]string{"description", "title", "instructions"}, top.key):
			texts = append(texts, text)
			around.Write(piece[:bytes.IndexByte(piece, '"')])
		default:
			around.Write(piece)
		}
		if top != nil {
			top.inside = false
		}
		if token == json.Delim('{') || token == json.Delim('[') {
			stack = append(stack, container{object: token == json.Delim('{')})
		}
	}
}

func TestHiddenCharactersAreThoseOfTheTables(t *testing.T) {
	for r := rune(0xA0); r <= unicode.MaxRune; r++ {
		want := unicode.In(r, hiddenTables...) && r != 0x200C && r != 0x200D && r != 0xFE0F
		if isHidden(r) != want {
			t.Fatalf("%U is hidden: %t", r, !want)
		}
	}
}

func BenchmarkClean(b *testing.B) {
	page := func(description string) []byte {
		var page bytes.Buffer
		page.WriteString(`{"tools":[`)
		for i := 0; page.Len() < 500_000; i++ {
			if i > 0 {
				page.WriteByte(',')
			}
			fmt.Fprintf(
				&page,
				`{"name":"tool_%d","description":"%s","inputSchema":{"type":"object",`+
					`"properties":{"path":{"type":"string","description":"%s"}},"required":["path"]}}`,
				i,
				description,
				description,
			)
		}
		page.WriteString(`]}`)
		return page.Bytes()
	}
	for _, text := range []struct{ name, description string }{
		{"ascii", `Reads a file of the project and returns its lines, each with its number.\nUse \"start\" and \"end\" ` +
			`for a part of it.`},
		{"dashes", `Reads a file – or “a part of it” – and returns its lines… each with its number \u2014 from 1.`},
		{"cjk", `プロジェクトのファイルを読み、行番号付きの行を返します。一部だけを読むこともできます。`},
		{"hidden", `Reads a file of the project and returns its lines, \u202eeach with its number.`},
	} {
		b.Run(text.name, func(b *testing.B) {
			raw := page(text.description)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				Clean(raw)
			}
		})
	}
}

func TestIsPlainName(t *testing.T) {
	for name, want := range map[string]bool{
		"read_file": true, "files/read-all.v2": true, "日本": true, "lire é": true, "": true, "file:///a%20b": true,
		"read\u200b": false, "read\u200d": false, "read\ufe0f": false, "re\u202ead": false, "read\n": false, "read\t": false,
		"read\x1b[8m": false, "read\U000e0041": false,
		"read\u00ad": false, "read\u3164": false, "read\xff": false, "read\ufffd": false, "read\u0085": false,
	} {
		if got := IsPlainName(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}
