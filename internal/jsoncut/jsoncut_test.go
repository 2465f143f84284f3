package jsoncut

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
)

func TestCut(t *testing.T) {
	numbers := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ",%d", i)
		}
		return "[" + b.String()[1:] + "]"
	}
	numbered := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"n%d":0`, i)
		}
		return "{" + b.String()[1:] + "}"
	}
	for _, test := range []struct {
		name   string
		cutter Cutter
		text   string
		want   string // "" if it cannot be cut
	}{
		{"a text that fits is made compact", Cutter{MaxChars: 40},
			" { \"a\" : [ 1 , 2.50e+3 ] ,\n\t\"b\" : \"c d\" } ", `{"a":[1,2.50e+3],"b":"c d"}`},
		{"escapes become canonical", Cutter{MaxChars: 80},
			`["\u0041\/\u00e9\u0022\u000A\u001F\u005c\ud83d\ude00 \ud800 \u2028"]`,
			`["A/é\"\n\u001f\\😀 ` + "\uFFFD \u2028" + `"]`},
		{"invalid UTF-8 becomes U+FFFD", Cutter{MaxChars: 80}, "[\"a\xff\xc3b\"]", "[\"a\uFFFD\uFFFDb\"]"},
		{"repeated keys stay", Cutter{MaxChars: 80}, `{"a":1,"a":2}`, `{"a":1,"a":2}`},
		{"a long array keeps first and last items", Cutter{MaxChars: 60}, numbers(100),
			`[0,1,2,3,"... [92 of 100 items left out] ...",96,97,98,99]`},
		{"a marker has the note", Cutter{MaxChars: 60, Note: ` id="x"`}, numbers(100),
			`[0,1,2,"... [95 of 100 items left out id=\"x\"] ...",98,99]`},
		{"a bare array has no marker", Cutter{MaxChars: 40, Bare: true}, numbers(100),
			`[0,1,2,3,4,5,6,7,8,93,94,95,96,97,98,99]`},
		{"items that match the goal are kept", Cutter{MaxChars: 150, Goal: "failing disks"},
			`["` + strings.Repeat(`some text","`, 50) + `the disk failed","` + strings.Repeat(`more text","`, 50) + `end"]`,
			`["some text","some text","some text","... [47 of 102 items left out] ...","the disk failed",` +
				`"... [49 of 102 items left out] ...","more text","end"]`},
		{"other forms of the goal's words match", Cutter{MaxChars: 110, Goal: "QUERY of Äpfel"},
			`["` + strings.Repeat(`some text","`, 50) + `slowQueries","` + strings.Repeat(`more text","`, 50) + `ÄPFEL"]`,
			`["... [50 of 102 items left out] ...","slowQueries","... [50 of 102 items left out] ...","ÄPFEL"]`},
		{"of two items that match the goal, the shorter is kept", Cutter{MaxChars: 90, Goal: "disk"},
			`["` + strings.Repeat(`text","`, 50) + `much text with disk in it","` + strings.Repeat(`text","`, 50) +
				`disk","text","text"]`,
			`["... [101 of 104 items left out] ...","disk","text","text"]`},
		{"a goal that all items match has no effect", Cutter{MaxChars: 61, Goal: "id"},
			`[{"id":100000},` + strings.Repeat(`{"id":1},`, 50) + `{"id":20}]`,
			`[{"id":100000},"... [50 of 52 items left out] ...",{"id":20}]`},
		{"an item too long for its array is cut", Cutter{MaxChars: 60}, `["` + strings.Repeat("x", 500) + `"]`,
			`["xxxxxxxx... [484 of 500 characters left out] ...xxxxxxxx"]`},
		{"two long strings get equal room", Cutter{MaxChars: 110},
			`{"a":"` + strings.Repeat("x", 500) + `","b":"` + strings.Repeat("y", 600) + `"}`,
			`{"a":"xxxx... [493 of 500 characters left out] ...xxx","b":"yyyy... [592 of 600 characters left out] ...yyyy"}`},
		{"a string that matches the goal gets more room", Cutter{MaxChars: 160, Goal: "disk"},
			`{"a":"` + strings.Repeat("x", 500) + `","b":"disk ` + strings.Repeat("y", 500) + `"}`,
			`{"a":"x... [498 of 500 characters left out] ...x",` +
				`"b":"disk yyyyyyyyyyyyyyyyyyyyyyyyyyy... [442 of 505 characters left out] ...yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}`},
		{"an item that matches the goal gets more room", Cutter{MaxChars: 600, Goal: "disk"},
			`["` + strings.Repeat(strings.Repeat("x", 900)+`","`, 9) + `disk ` + strings.Repeat("y", 900) + `"]`,
			`["... [9 of 10 items left out] ...","disk ` + strings.Repeat("y", 255) +
				`... [385 of 905 characters left out] ...` + strings.Repeat("y", 260) + `"]`},
		{"a long string keeps its head and tail", Cutter{MaxChars: 70},
			`{"a":"` + strings.Repeat("x", 500) + `"}`,
			`{"a":"xxxxxxxxxxx... [478 of 500 characters left out] ...xxxxxxxxxxx"}`},
		{"a string is not cut inside an escape", Cutter{MaxChars: 66},
			`{"a":"` + strings.Repeat(`\u0001`, 500) + `"}`,
			`{"a":"\u0001... [498 of 500 characters left out] ...\u0001"}`},
		{"characters beyond ASCII count once", Cutter{MaxChars: 70},
			`{"a":"` + strings.Repeat("é", 500) + `"}`,
			`{"a":"ééééééééééé... [478 of 500 characters left out] ...ééééééééééé"}`},
		{"lines that match the goal are kept", Cutter{MaxChars: 150, Goal: "Panics"},
			`{"log":"` + strings.Repeat(`all is well\n`, 50) + `panic now!\n` +
				strings.Repeat(`all is well\n`, 50) + `end"}`,
			`{"log":"all is well\nall is well\n... [48 of 102 lines left out] ...\npanic now!` +
				`\n... [49 of 102 lines left out] ...\nall is well\nend"}`},
		{"short values next to a long one stay", Cutter{MaxChars: 97},
			`{"n":12345678901234567890.10,"t":true,"s":"` + strings.Repeat("x", 500) + `","z":null}`,
			`{"n":12345678901234567890.10,"t":true,"s":"xx... [497 of 500 characters left out] ...x","z":null}`},
		{"a string not much longer than a marker stays", Cutter{MaxChars: 130},
			`{"url":"https://example.com/` + strings.Repeat("a", 40) + `","text":"` + strings.Repeat("x", 500) + `"}`,
			`{"url":"https://example.com/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",` +
				`"text":"xxxxx... [490 of 500 characters left out] ...xxxxx"}`},
		{"a string not much longer than a marker is cut to keep a key", Cutter{MaxChars: 110},
			`{"url":"https://example.com/` + strings.Repeat("a", 40) + `","text":"` + strings.Repeat("x", 500) + `"}`,
			`{"url":"http... [53 of 60 characters left out] ...aaa","text":"xxx... [495 of 500 characters left out] ...xx"}`},
		{"a map with too many keys loses some", Cutter{MaxChars: 80},
			`{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"last":9}`,
			`{"first":1,"some":0,"... [99 of 102 members left out] ...":null,"last":9}`},
		{"keys around a map that loses some stay", Cutter{MaxChars: 100},
			`{"a":1,"m":{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"last":9},"z":[]}`,
			`{"a":1,"m":{"first":1,"some":0,"... [99 of 102 members left out] ...":null,"last":9},"z":[]}`},
		{"keys of many maps that lose some stay", Cutter{MaxChars: 236},
			`{"a":` + numbered(100) + `,"b":` + numbered(100) + `,"c":` + numbered(100) + `,"d":` + numbered(100) + `}`,
			`{"a":{"... [100 of 100 members left out] ...":null},"b":{"... [100 of 100 members left out] ...":null},` +
				`"c":{"n0":0,"... [99 of 100 members left out] ...":null},` +
				`"d":{"n0":0,"... [98 of 100 members left out] ...":null,"n99":0}}`},
		{"a bare map has no marker", Cutter{MaxChars: 40, Bare: true},
			`{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"last":9}`,
			`{"first":1,"some":0,"some":0,"last":9}`},
		{"members that match the goal are kept", Cutter{MaxChars: 142, Goal: "user names"},
			`{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"userName":"eve"` + strings.Repeat(`,"some":0`, 100) + `}`,
			`{"first":1,"... [100 of 202 members left out] ...":null,"userName":"eve",` +
				`"... [99 of 202 members left out] ... 2":null,"some":0}`},
		{"markers of a map are different keys", Cutter{MaxChars: 130, Goal: "user names"},
			`{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"userName":"eve"` + strings.Repeat(`,"some":0`, 100) + `}`,
			`{"first":1,"... [100 of 202 members left out] ...":null,"userName":"eve",` +
				`"... [100 of 202 members left out] ... 2":null}`},
		{"an image is left out as a whole", Cutter{MaxChars: 120},
			`{"type":"image","data":"` + strings.Repeat("not even base64 ", 50) + `","mimeType":"image/png"}`,
			`{"type":"image","data":"... [800 characters of media left out] ...","mimeType":"image/png"}`},
		{"a blob is left out as a whole", Cutter{MaxChars: 120},
			`{"blob":"` + strings.Repeat("not even base64 ", 50) + `","uri":"file:///x"}`,
			`{"blob":"... [800 characters of media left out] ...","uri":"file:///x"}`},
		{"a data URI is left out as a whole", Cutter{MaxChars: 120, Note: " id=1"},
			`{"src":"data:image/gif;base64,` + strings.Repeat("AAAA", 50) + `","alt":"x"}`,
			`{"src":"... [222 characters of media left out id=1] ...","alt":"x"}`},
		{"a string is not a container", Cutter{MaxChars: 100}, `"abc"`, ""},
		{"two values are not one text", Cutter{MaxChars: 100}, `{} {}`, ""},
		{"text in brackets is not JSON", Cutter{MaxChars: 100}, `[INFO] started [main]`, ""},
		{"an empty text is not JSON", Cutter{MaxChars: 100}, ``, ""},
		{"too deep", Cutter{MaxChars: 5000}, strings.Repeat("[", 1001) + strings.Repeat("]", 1001), ""},
		{"no room for a marker", Cutter{MaxChars: 20}, numbers(100), ""},
		{"no room at all", Cutter{}, `[]`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := test.cutter.Cut([]byte(test.text))
			if string(got) != test.want || ok != (test.want != "") {
				t.Errorf("got  %s, %v\nwant %s", got, ok, test.want)
			}
		})
	}
}

// TestCutUsesTheLimit checks that results are not much shorter than the limit allows.
func TestCutUsesTheLimit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	records := func(n, words int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(`{"id":%d,"text":%q,"tags":["a","b"]}`, i, strings.Repeat("word ", words)))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	media := make([]byte, 30_000)
	for i := range media {
		media[i] = byte(random.Uint32())
	}
	image := base64.StdEncoding.EncodeToString(media)
	text := `"` + strings.Repeat(`some text\n`, 2000) + `"`
	images := strings.Repeat(`{"type":"image","data":"`+image+`"},`, 20)
	for name, test := range map[string]struct {
		least float64 // share of the limit
		text  string
	}{
		"records":        {0.85, records(1000, 10)},
		"long records":   {0.95, records(100, 1000)},
		"few records":    {0.99, records(3, 10_000)},
		"nested records": {0.8, `{"a":{"b":[{"c":` + records(1000, 10) + `},{"c":` + records(1000, 10) + `}]},"n":5}`},
		"deep arrays":    {0.8, strings.Repeat(`[`, 9) + records(1000, 10) + strings.Repeat(`]`, 9)},
		"a string":       {0.95, `{"a":` + text + `}`},
		"images":         {0.8, `{"content":[` + images + `{"type":"text","text":` + text + `}]}`},
		"a number":       {0.8, `{"a":[` + strings.Repeat("1", 30_000) + `],"b":` + text + `}`},
	} {
		for _, limit := range []int{2000, 4000, 10_000} {
			for _, goal := range []string{"", "word 77"} {
				short, ok := Cutter{MaxChars: limit, Goal: goal}.Cut([]byte(test.text))
				if share := float64(utf8.RuneCount(short)) / float64(limit); !ok || share < test.least || share > 1 {
					t.Errorf("%s, goal %q: uses %.2f of %d", name, goal, share, limit)
				}
			}
		}
	}
}

func TestCutHugeTexts(t *testing.T) {
	const size = 10_000_000
	for name, text := range map[string]string{
		"items":   "[" + strings.Repeat("0,", size/2) + "1]",
		"records": "[" + strings.Repeat(`{"name":"some name","n":123,"list":[1,2,3],"text":"to read"},`, size/60) + "{}]",
		"string":  `["` + strings.Repeat(`ab\n`, size/4) + `"]`,
		"digits":  `{"a":[` + strings.Repeat("1", size) + `],"b":"c"}`,
		"deep": strings.Repeat(`{"a":[`, 490) + strings.Repeat(`{"name":"some name of a value"},`, size/32) + "0" +
			strings.Repeat(`]}`, 490),
	} {
		t.Run(name, func(t *testing.T) {
			short, ok := Cutter{MaxChars: 8000, Goal: "name 0"}.Cut([]byte(text))
			if !ok || !json.Valid(short) || len(short) > 8000 {
				t.Errorf("%v, %d bytes: %.100s", ok, len(short), short)
			}
		})
	}
}

func TestIsJSON(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: true, ` [1, {"a": "]"}]` + "\n": true, `{"a":1}`: true,
		``: false, `1`: false, `"a"`: false, `[1] [2]`: false, `[1`: false, `{"a":}`: false, `[error]`: false, `{]`: false,
	} {
		if IsJSON([]byte(text)) != want {
			t.Errorf("IsJSON(%s) is not %v", text, want)
		}
	}
}

func TestIsMedia(t *testing.T) {
	for text, want := range map[string]bool{
		strings.Repeat("aB3+", 50) + "==":                          true,
		strings.Repeat("aB3_", 50):                                 true,
		"data:image/gif;base64," + strings.Repeat("A", 200):        true,
		"data:text/plain,a%20b" + strings.Repeat("%20", 50):        true,
		"data:" + strings.Repeat("A", 200):                         false,
		strings.Repeat("aB3+", 10):                                 false,
		strings.Repeat("x", 200):                                   false,
		strings.Repeat("0123456789abcdef", 20):                     false,
		strings.Repeat("aB3 ", 50):                                 false,
		"data: " + strings.Repeat("some text, and more of it ", 9): false,
	} {
		if isMedia([]byte(text)) != want {
			t.Errorf("isMedia(%.40s...) is not %v", text, want)
		}
	}
}

func BenchmarkCut(b *testing.B) {
	var text bytes.Buffer
	text.WriteByte('[')
	for i := 0; text.Len() < 1<<20; i++ {
		fmt.Fprintf(&text, `{"id":%d,"name":"user %d","email":"user%d@example.com","active":true,"roles":["admin","writer"],`+
			`"bio":"Writes \"short\" texts about many things.\nLives in town."},`, i, i, i)
	}
	text.WriteString("{}]")
	for name, goal := range map[string]string{"first and last": "", "goal": "email of user 777"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(text.Len()))
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := (Cutter{MaxChars: 4000, Goal: goal}).Cut(text.Bytes()); !ok {
					b.Fatal("not cut")
				}
			}
		})
	}
}

// Deep nesting counts the same hits at each level, up to a limit.
func TestHitsAreBounded(t *testing.T) {
	const n = 1 << 20
	w := work{hits: make([]hit, n)}
	for i := range w.hits {
		w.hits[i].offset = uint32(i)
	}
	spans := []span{{start: 0, end: n / 2}, {start: n / 2, end: n}}
	spans[0].end = 1 // has only one hit
	w.hits = w.hits[1:]
	scores := func() bool {
		score := w.scorer(slices.Values(spans), len(spans), value{end: n})
		return score(spans[0]) < score(spans[1])
	}
	for range maxHitsSeen / n {
		if !scores() {
			t.Fatalf("no score after %d hits", w.hitsSeen)
		}
	}
	if scores() {
		t.Errorf("there are scores after %d hits", w.hitsSeen)
	}
}

// Words without spaces between them are split once for each term, up to a limit.
func TestWordsAreBounded(t *testing.T) {
	w := work{text: bytes.Repeat([]byte("支払"), 1<<20/6)}
	found := 0
	for range 2 * maxSplitBytes / len(w.text) {
		w.findTerm(fold(w.text), "支", 0)
		if len(w.hits) > 0 {
			found++
		}
		w.hits = w.hits[:0]
	}
	if most := maxSplitBytes / len(w.text); found != most {
		t.Errorf("found %d times, want %d", found, most)
	}
}

// A generator writes random JSON texts. Generators with the same seed for values write the
// same values. Another seed for style changes only white space and escapes.
type generator struct {
	values, style *rand.Rand
	out           bytes.Buffer
}

func (g *generator) text(kind, size, depth int) []byte {
	g.out.Reset()
	if kind == 0 {
		g.array(size, depth)
	} else {
		g.object(size, depth)
	}
	return g.out.Bytes()
}

func (g *generator) space() {
	if g.style != nil && g.style.IntN(3) == 0 {
		g.out.WriteString([]string{" ", "\n  ", "\t", "\r\n"}[g.style.IntN(4)])
	}
}

func (g *generator) value(size, depth int) {
	g.space()
	switch k := g.values.IntN(12); {
	case k < 2 && depth > 0:
		g.array(size, depth)
	case k < 4 && depth > 0:
		g.object(size, depth)
	case k < 5:
		g.out.WriteString([]string{"true", "false", "null"}[g.values.IntN(3)])
	case k < 7:
		g.out.WriteString([]string{"0", "-1", "1.50", "1e400", "-0.0E-7", "123456789012345678901234567890"}[g.values.IntN(6)])
	case k < 8:
		fmt.Fprint(&g.out, g.values.Int64())
	default:
		g.string(g.words(size))
	}
	g.space()
}

func (g *generator) array(size, depth int) {
	g.out.WriteByte('[')
	for i := range g.values.IntN(size + 1) {
		if i > 0 {
			g.out.WriteByte(',')
		}
		g.value(size/2, depth-1)
	}
	g.space()
	g.out.WriteByte(']')
}

func (g *generator) object(size, depth int) {
	g.out.WriteByte('{')
	media := g.values.IntN(20) == 0
	for i := range g.values.IntN(size + 1) {
		if i > 0 {
			g.out.WriteByte(',')
		}
		g.space()
		key := []string{"id", "name", "text", "url", "é", "", "type", "data", "a\nb", "uri", "blob"}[g.values.IntN(11)]
		if g.values.IntN(4) > 0 {
			key += fmt.Sprint(i)
		}
		if media && i == 0 {
			key = "type"
		}
		g.string(key)
		g.space()
		g.out.WriteByte(':')
		if media && i == 0 {
			g.string("image")
			continue
		}
		g.value(size/2, depth-1)
	}
	g.out.WriteByte('}')
}

func (g *generator) words(size int) string {
	var b strings.Builder
	for range g.values.IntN(size*3 + 3) {
		b.WriteString([]string{"error ", "disk ", "Full", "line\n", "é", "日本", "😀", "\"", "\\", "\x01", "/", "\t",
			"user_name ", "AbCd0123", " ", "lorem ipsum dolor "}[g.values.IntN(16)])
	}
	if g.values.IntN(30) == 0 {
		return strings.Repeat("aB3+", g.values.IntN(200))
	}
	return b.String()
}

func (g *generator) string(s string) {
	g.out.WriteByte('"')
	for _, r := range s {
		switch {
		case g.style != nil && g.style.IntN(8) == 0 && r < 0x10000:
			fmt.Fprintf(&g.out, []string{`\u%04x`, `\u%04X`}[g.style.IntN(2)], r)
		case g.style != nil && r == '/':
			g.out.WriteString(`\/`)
		default:
			g.out.Write(jsonspan.AppendBody(nil, string(r)))
		}
	}
	g.out.WriteByte('"')
}

var texts = flag.Int("texts", 5000, "number of random texts to cut")

func TestCutRandomTexts(t *testing.T) {
	cut := 0
	for i := range *texts {
		seed := uint64(i)
		random := rand.New(rand.NewPCG(seed, 1))
		kind, size, depth := random.IntN(2), 1+random.IntN(30), random.IntN(7)
		plain := generator{values: rand.New(rand.NewPCG(seed, 2))}
		text := plain.text(kind, size, depth)
		styled := generator{values: rand.New(rand.NewPCG(seed, 2)), style: rand.New(rand.NewPCG(seed, 3))}
		other := styled.text(kind, size, depth)

		c := Cutter{MaxChars: 1 + random.IntN(2+utf8.RuneCount(text)), Bare: random.IntN(2) == 0}
		if random.IntN(2) == 0 {
			c.Goal = "user names with disk errors 7"
		}
		if random.IntN(2) == 0 {
			c.Note = ` id="obs_é"`
		}
		short, ok := c.Cut(text)
		if ok && len(short) < len(text) {
			cut++
		}
		if err := check(c, text, other, short, ok); err != nil {
			t.Fatalf("seed %d: %v\n%+v\n%s\n%s", seed, err, c, text, short)
		}
	}
	if cut < *texts/4 {
		t.Errorf("only %d of %d texts were cut", cut, *texts)
	}
}

func FuzzCut(f *testing.F) {
	f.Add(`{"a":[1,2,{"b":"`+strings.Repeat("some text ", 30)+`"}]}`, 100, "text", " id=1", false)
	f.Add(`[`+strings.Repeat(`{"n":1.0,"t":"a\n\u0041\ud800"}, `, 30)+`0]`, 200, "", "\"", true)
	f.Add(`{"type":"image","data":"`+strings.Repeat("aB3+", 50)+`"}`, 90, "é 日本", "", false)
	f.Add("[\"\xff"+strings.Repeat(`\\\"`, 60)+`"]`, 60, "x", "", false)
	f.Fuzz(func(t *testing.T, text string, limit int, goal, note string, bare bool) {
		c := Cutter{MaxChars: limit, Goal: goal, Note: note, Bare: bare}
		short, ok := c.Cut([]byte(text))
		if !ok && limit >= utf8.RuneCountInString(text) && IsJSON([]byte(text)) {
			t.Fatal("a text that fits was refused")
		}
		if err := check(c, []byte(text), []byte(text), short, ok); err != nil {
			t.Fatal(err)
		}
	})
}

// check returns what is wrong with the output for text. other is a text with the same value.
func check(c Cutter, text, other, short []byte, ok bool) error {
	if same, sameOK := c.Cut(other); sameOK != ok || !bytes.Equal(same, short) {
		return fmt.Errorf("the same value in another style gives %s, %v", same, sameOK)
	}
	if !ok {
		if short != nil {
			return fmt.Errorf("refused, but gives %s", short)
		}
		return nil
	}
	if chars := utf8.RuneCount(short); chars > c.MaxChars {
		return fmt.Errorf("%d characters of %d", chars, c.MaxChars)
	}
	if !json.Valid(short) || !utf8.Valid(short) {
		return fmt.Errorf("not valid")
	}
	if again, ok := c.Cut(short); !ok || !bytes.Equal(again, short) {
		return fmt.Errorf("cut again: %s, %v", again, ok)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, text) == nil && compact.Len() <= c.MaxChars &&
		!reflect.DeepEqual(jsontest.Value(text), jsontest.Value(short)) {
		return fmt.Errorf("changed although it fits")
	}
	_, least := measured(c, text)
	return kept(c, text, short, least <= c.MaxChars)
}

// measured returns how many characters a value has, and its minimum if its objects outside
// of arrays keep their keys.
func measured(c Cutter, text []byte) (chars, least int) {
	w := work{noteChars: utf8.RuneCount(jsonspan.AppendBody(nil, c.Note))}
	text = bytes.TrimSpace(text)
	canonical := func(literal []byte) int {
		return 2 + utf8.RuneCount(jsonspan.AppendBody(nil, jsonspan.Text(literal[1:len(literal)-1])))
	}
	switch text[0] {
	case '[':
		chars, n := 2, 0
		for v := range jsonspan.Elements(text) {
			item, _ := measured(c, text[v.Start:v.End])
			chars += item + min(n, 1)
			n++
		}
		if chars <= maxSmall {
			return chars, chars
		}
		least = len(`["... [ of  items left out] ..."]`) + 2*len(fmt.Sprint(n)) + w.noteChars
		if c.Bare {
			least = len(`[]`)
		}
		return chars, min(chars, least)
	case '{':
		chars, least = 2, 2
		for m := range jsonspan.Members(text) {
			literal := jsonspan.AppendBody([]byte{'"'}, m.Key)
			key := utf8.RuneCount(append(literal, '"', ':'))
			if chars > 2 {
				key++
			}
			value, valueLeast := measured(c, text[m.Value.Start:m.Value.End])
			chars, least = chars+key+value, least+key+valueLeast
		}
		return chars, least
	case '"':
		chars = canonical(text)
		n := len(fmt.Sprint(utf8.RuneCountInString(jsonspan.Text(text[1 : len(text)-1]))))
		least = max(len(`"... [ of  characters left out] ..."`)+2*n, len(`"... [ characters of media left out] ..."`)+n)
		return chars, min(chars, least+w.noteChars)
	}
	return len(text), len(text)
}

// kept compares a value with its cut form. If allKeys, objects must have all their keys.
func kept(c Cutter, text, short []byte, allKeys bool) error {
	text, short = bytes.TrimSpace(text), bytes.TrimSpace(short)
	if kindOf(text) != kindOf(short) {
		return fmt.Errorf("%.50s became %.50s", text, short)
	}
	switch text[0] {
	case '{':
		return keptMembers(c, text, short, allKeys)
	case '[':
		return keptItems(c, text, short)
	case '"':
		before, after := jsonspan.Text(text[1:len(text)-1]), jsonspan.Text(short[1:len(short)-1])
		marker := fmt.Sprintf("... [%d characters of media left out", utf8.RuneCountInString(before))
		if isMedia([]byte(before)) && before != after && !strings.HasPrefix(after, marker) {
			return fmt.Errorf("media became %q", after)
		}
		return keptString(before, after)
	}
	if !bytes.Equal(text, short) {
		return fmt.Errorf("%s became %s", text, short)
	}
	return nil
}

func kindOf(text []byte) byte {
	switch text[0] {
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return '0'
	}
	return text[0]
}

func keptMembers(c Cutter, text, short []byte, allKeys bool) error {
	var members []jsonspan.Member
	for m := range jsonspan.Members(text) {
		members = append(members, m)
	}
	at, left := 0, 0
	markers := map[string]bool{}
	for m := range jsonspan.Members(short) {
		if n, of, ok := marked(m.Key, "members"); ok && !c.Bare && of == len(members) {
			if markers[m.Key] {
				return fmt.Errorf("two markers are %q", m.Key)
			}
			markers[m.Key] = true
			left, at = left+n, at+n
			continue
		}
		// Without markers, find the next member with this key and a matching value.
		for {
			if at >= len(members) {
				return fmt.Errorf("%q is not a member of the original", m.Key)
			}
			from := members[at]
			at++
			err := fmt.Errorf("%q is not %q", m.Key, from.Key)
			if from.Key == m.Key {
				err = kept(c, text[from.Value.Start:from.Value.End], short[m.Value.Start:m.Value.End], allKeys)
			}
			if err == nil {
				break
			}
			if !c.Bare || allKeys {
				return err
			}
			left++
		}
	}
	if !c.Bare && at != len(members) {
		return fmt.Errorf("%d of %d members are accounted for", at, len(members))
	}
	if left += len(members) - at; allKeys && left > 0 {
		return fmt.Errorf("%d of %d members are left out of %.50s", left, len(members), text)
	}
	return nil
}

func keptItems(c Cutter, text, short []byte) error {
	var items []jsonspan.Value
	for v := range jsonspan.Elements(text) {
		items = append(items, v)
	}
	// An item keeps its keys if they fit into the array together with two markers.
	marker := len(`"... [ of  items left out] ...",`) + 2*len(fmt.Sprint(len(items))) +
		utf8.RuneCount(jsonspan.AppendBody(nil, c.Note))
	room := utf8.RuneCount(short) - len(`[,]`) - 2*marker
	at := 0
	for v := range jsonspan.Elements(short) {
		if v.Kind == jsonspan.String && !c.Bare {
			if n, of, ok := marked(jsonspan.Text(v.Body(short)), "items"); ok && of == len(items) {
				at += n
				continue
			}
		}
		for {
			if at >= len(items) {
				return fmt.Errorf("%.50s is not an item of the original", short[v.Start:v.End])
			}
			item := text[items[at].Start:items[at].End]
			_, least := measured(c, item)
			err := kept(c, item, short[v.Start:v.End], least <= room)
			at++
			if err == nil {
				break
			}
			if !c.Bare {
				return err
			}
		}
	}
	if !c.Bare && at != len(items) {
		return fmt.Errorf("%d of %d items are accounted for", at, len(items))
	}
	return nil
}

// marked parses a marker and reports whether text is one.
func marked(text, unit string) (left, total int, ok bool) {
	_, err := fmt.Sscanf(text, "... [%d of %d "+unit+" left out", &left, &total)
	return left, total, err == nil
}

// keptString compares a string with its cut form: parts in order with markers between them.
func keptString(text, short string) error {
	if text == short {
		return nil
	}
	for rest := short; ; {
		part, marker, found := strings.Cut(rest, markerStart)
		part = strings.Trim(part, "\n")
		at := strings.Index(text, part)
		if at < 0 {
			return fmt.Errorf("%q is not in %q", part, text)
		}
		text = text[at+len(part):]
		if !found {
			if rest == short {
				return fmt.Errorf("%q has no marker", short)
			}
			return nil
		}
		if _, rest, found = strings.Cut(marker, markerEnd); !found {
			return fmt.Errorf("a marker in %q has no end", short)
		}
	}
}
