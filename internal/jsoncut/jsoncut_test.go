package jsoncut

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
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
		{"keys of many maps that lose some stay", Cutter{MaxChars: 220},
			`{"a":` + numbered(100) + `,"b":` + numbered(100) + `,"c":` + numbered(100) + `,"d":` + numbered(100) + `}`,
			`{"a":{"... [100 of 100 members left out] ...":null},"b":{"... [100 of 100 members left out] ...":null},` +
				`"c":{"n0":0,"... [99 of 100 members left out] ...":null},` +
				`"d":{"n0":0,"... [99 of 100 members left out] ...":null}}`},
		{"a bare map has no marker", Cutter{MaxChars: 40, Bare: true},
			`{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"last":9}`,
			`{"first":1,"some":0,"some":0,"last":9}`},
		{"members that match the goal are kept", Cutter{MaxChars: 130, Goal: "user names"},
			`{"first":1` + strings.Repeat(`,"some":0`, 100) + `,"userName":"eve"` + strings.Repeat(`,"some":0`, 100) + `}`,
			`{"first":1,"... [100 of 202 members left out] ...":null,"userName":"eve",` +
				`"... [99 of 202 members left out] ...":null,"some":0}`},
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
