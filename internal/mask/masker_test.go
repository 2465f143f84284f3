package mask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

var contract = Policy{MaxChars: DefaultMaxChars, HeadChars: DefaultHeadChars, TailChars: DefaultTailChars}

// apply masks a text that arrives in pieces of the given size. It checks that the text grows by
// at most one marker per masked string, which is a few percent with the default policy.
func apply(t testing.TB, p Policy, text string, piece int) (string, Stats) {
	t.Helper()
	var out bytes.Buffer
	m := NewMasker(&out, p)
	for rest := text; rest != ""; {
		n := min(piece, len(rest))
		if _, err := m.Write([]byte(rest[:n])); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := m.End(); err != nil {
		t.Fatal(err)
	}
	if most := len(text) + len(text)/(p.MaxChars+1)*maxMarker; out.Len() > most {
		t.Fatalf("%d bytes became %d", len(text), out.Len())
	}
	return out.String(), m.Stats()
}

// cutString applies O2 and O3 to a decoded string.
func cutString(p Policy, s string) string {
	chars := utf8.RuneCountInString(s)
	if chars <= p.MaxChars {
		return s
	}
	runes := []rune(s)
	return string(runes[:p.HeadChars]) +
		fmt.Sprintf("\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=%d tail=%d] ...\n", chars, p.HeadChars,
			p.TailChars) +
		string(runes[chars-p.TailChars:])
}

func repeat(c string, n int) string { return strings.Repeat(c, n) }

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func response(result string) string { return `{"jsonrpc":"2.0","id":1,"result":` + result + `}` }

// O1 O2 O3 O4 O8 O9
func TestStringsAreCutByTheContract(t *testing.T) {
	small := Policy{MaxChars: 100, HeadChars: 10, TailChars: 20}
	for _, test := range []struct {
		name   string
		policy Policy
		text   string
	}{
		{"at the limit", contract, repeat("A", 4000)},
		{"one over the limit", contract, repeat("A", 4001)},
		{"ten thousand characters", contract, repeat("A", 10000)},
		{"two-byte characters", contract, repeat("é", 4001)},
		{"three-byte characters", contract, repeat("漢", 4001)},
		{"four-byte characters at the limit", contract, repeat("😀", 4000)},
		{"four-byte characters", contract, repeat("😀", 4001)},
		{"a mixture", contract, repeat("aé漢😀\n\"", 3000)},
		{"base64", contract, repeat("QUJDRA==", 1000)},
		{"no head", Policy{MaxChars: 100, TailChars: 50}, repeat("0123456789", 20)},
		{"no tail", Policy{MaxChars: 100, HeadChars: 50}, repeat("0123456789", 20)},
		{"neither head nor tail", Policy{MaxChars: 100}, repeat("0123456789", 20)},
		{"a small policy", small, repeat("0123456789", 11)},
		{"long enough to stream", small, repeat("0123456789", 20000)},
		{"long, with multi-byte and escaped characters", contract, repeat("aé漢😀\n\t\"x", 30000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := cutString(test.policy, test.text)
			for _, literal := range []string{quote(test.text), escapeAll(test.text)} {
				for _, piece := range []int{7, 1000, 32 << 10, 1 << 30} {
					got, stats := apply(t, test.policy, response(literal), piece)
					var answer struct{ Result string }
					if err := json.Unmarshal([]byte(got), &answer); err != nil {
						t.Fatal(err)
					}
					if answer.Result != want {
						t.Fatalf("pieces of %d: got %d characters %.200q, want %d", piece, utf8.RuneCountInString(answer.Result),
							answer.Result, utf8.RuneCountInString(want))
					}
					chars := utf8.RuneCountInString(test.text)
					wantStats := Stats{}
					if chars > test.policy.MaxChars {
						wantStats = Stats{1, chars - test.policy.HeadChars - test.policy.TailChars}
					}
					if stats != wantStats {
						t.Errorf("counted %+v, want %+v", stats, wantStats)
					}
				}
			}
		})
	}
	if got, _ := apply(t, contract, response(quote(repeat("A", 10000))),
		1<<20); utf8.RuneCountInString(got)-len(response(`""`)) != 4082+2 {
		t.Errorf("10000 characters became %d in JSON", utf8.RuneCountInString(got)) // 4082, two of them escaped
	}
}

// escapeAll writes every character as \uXXXX.
func escapeAll(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r > 0xFFFF {
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
			continue
		}
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	b.WriteByte('"')
	return b.String()
}

// O5 O6 O7 O13 O17 O19 O21 R10
func TestOnlyObservationsChange(t *testing.T) {
	p := Policy{MaxChars: 20, HeadChars: 3, TailChars: 2}
	long := `"` + repeat("x", 30) + `"`
	cut := `"xxx\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=30 head=3 tail=2] ...\nxx"`
	mark := func(s string) string { return strings.ReplaceAll(s, "LONG", long) }
	for _, test := range []struct{ name, text, want string }{
		{"result", `{"jsonrpc":"2.0","id":1,"result":LONG}`, `{"jsonrpc":"2.0","id":1,"result":CUT}`},
		{"result before jsonrpc", `{"result":LONG,"jsonrpc":"2.0","id":1}`, `{"result":CUT,"jsonrpc":"2.0","id":1}`},
		{"at any depth, in order", `{"jsonrpc":"2.0","result":{"items":[LONG,{"inner":LONG}],"ok":"short"}}`,
			`{"jsonrpc":"2.0","result":{"items":[CUT,{"inner":CUT}],"ok":"short"}}`},
		{"error.data", `{"jsonrpc":"2.0","error":{"code":-1,"message":LONG,"data":{"a":[LONG]},"x":LONG},"id":1}`,
			`{"jsonrpc":"2.0","error":{"code":-1,"message":LONG,"data":{"a":[CUT]},"x":LONG},"id":1}`},
		{"both result and error.data", `{"jsonrpc":"2.0","result":LONG,"error":{"data":LONG}}`,
			`{"jsonrpc":"2.0","result":CUT,"error":{"data":CUT}}`},
		{"the envelope stays", `{"jsonrpc":"2.0","id":LONG,"method":LONG,"params":{"result":LONG},"x":LONG}`,
			`{"jsonrpc":"2.0","id":LONG,"method":LONG,"params":{"result":LONG},"x":LONG}`},
		{"keys stay", `{"jsonrpc":"2.0","result":{LONG:1}}`, `{"jsonrpc":"2.0","result":{LONG:1}}`},
		{"numbers, white space and escapes stay",
			"{\"jsonrpc\" :\t\"2.0\",\n\"result\":{\"n\":12345678901234567890.10e+5 , \"u\":\"\\u0041\\/\" , \"s\":LONG}}",
			"{\"jsonrpc\" :\t\"2.0\",\n\"result\":{\"n\":12345678901234567890.10e+5 , \"u\":\"\\u0041\\/\" , \"s\":CUT}}"},
		{"keys with escapes", `{"json\u0072pc":"\u0032.0","r\u0065sult":LONG}`,
			`{"json\u0072pc":"\u0032.0","r\u0065sult":CUT}`},
		{"each message of an array", `[{"jsonrpc":"2.0","result":LONG},{"result":LONG},LONG,[{"jsonrpc":"2.0",` +
			`"result":LONG}],{"result":LONG,"jsonrpc":"2.0"}]`,
			`[{"jsonrpc":"2.0","result":CUT},{"result":LONG},LONG,[{"jsonrpc":"2.0","result":LONG}],{"result":CUT,` +
				`"jsonrpc":"2.0"}]`},
		{"not JSON-RPC: no jsonrpc", `{"id":1,"result":LONG}`, `{"id":1,"result":LONG}`},
		{"not JSON-RPC: another version", `{"jsonrpc":"1.0","result":LONG}`, `{"jsonrpc":"1.0","result":LONG}`},
		{"not JSON-RPC: jsonrpc in another case", `{"JSONRPC":"2.0","result":LONG}`, `{"JSONRPC":"2.0","result":LONG}`},
		{"not JSON-RPC: nested jsonrpc", `{"a":{"jsonrpc":"2.0","result":LONG}}`, `{"a":{"jsonrpc":"2.0","result":LONG}}`},
		{"result in another case", `{"jsonrpc":"2.0","Result":LONG}`, `{"jsonrpc":"2.0","Result":LONG}`},
		{"a repeated result", `{"jsonrpc":"2.0","result":LONG,"result":LONG}`,
			`{"jsonrpc":"2.0","result":LONG,"result":LONG}`},
		{"a repeated id", `{"jsonrpc":"2.0","id":1,"result":LONG,"id":2}`, `{"jsonrpc":"2.0","id":1,"result":LONG,"id":2}`},
		{"a repeated method", `{"jsonrpc":"2.0","method":"a","result":LONG,"m\u0065thod":"b"}`,
			`{"jsonrpc":"2.0","method":"a","result":LONG,"m\u0065thod":"b"}`},
		{"a repeated error.data", `{"jsonrpc":"2.0","error":{"data":LONG,"data":LONG}}`,
			`{"jsonrpc":"2.0","error":{"data":LONG,"data":LONG}}`},
		{"a repeated key inside the result", `{"jsonrpc":"2.0","result":{"a":LONG,"a":LONG}}`,
			`{"jsonrpc":"2.0","result":{"a":CUT,"a":CUT}}`},
		{"incomplete", `{"jsonrpc":"2.0","result":LONG`, `{"jsonrpc":"2.0","result":LONG`},
		{"not JSON at the end", `{"jsonrpc":"2.0","result":LONG}}`, `{"jsonrpc":"2.0","result":LONG}}`},
		{"not JSON at all", `<html>LONG`, `<html>LONG`},
		{"a scalar", `LONG`, `LONG`},
		{"empty", ``, ``},
		{"too deep", `{"jsonrpc":"2.0","result":[LONG,` + repeat("[", 1000) + repeat("]", 1000) + `]}`,
			`{"jsonrpc":"2.0","result":[LONG,` + repeat("[", 1000) + repeat("]", 1000) + `]}`},
		{"deep", `{"jsonrpc":"2.0","result":` + repeat("[", 998) + `LONG` + repeat("]", 998) + `}`,
			`{"jsonrpc":"2.0","result":` + repeat("[", 998) + `CUT` + repeat("]", 998) + `}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, want := mark(test.text), strings.ReplaceAll(mark(test.want), "CUT", cut)
			for _, piece := range []int{1, 5, 1 << 20} {
				if got, _ := apply(t, p, text, piece); got != want {
					t.Errorf("in pieces of %d\ngot  %s\nwant %s", piece, got, want)
				}
			}
		})
	}
}

// O19
func TestIllFormedTextIsCutBetweenItsBytes(t *testing.T) {
	p := Policy{MaxChars: 5, HeadChars: 2, TailChars: 1}
	for _, test := range []struct{ name, body, head, tail string }{
		{"lone high surrogates", `\ud83d\ud83dxxxx\ud83d`, `\ud83d\ud83d`, `\ud83d`},
		{"a lone low surrogate first", `\ude00\ud83d\ude00xxxx`, `\ude00\ud83d\ude00`, `x`},
		{"bytes that are not UTF-8", "\xff\xe4\xb8xxx\xe4\xb8", "\xff\xe4", "\xb8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, piece := range []int{1, 1 << 20} {
				got, _ := apply(t, p, response(`"`+test.body+`"`), piece)
				got = got[len(response(`"`))-1:]
				if !strings.HasPrefix(got, test.head+`\n... [`) || !strings.HasSuffix(got, `] ...\n`+test.tail+`"}`) {
					t.Errorf("got %q", got)
				}
			}
		})
	}
}

// O12
func TestMaskingTwiceIsMaskingOnce(t *testing.T) {
	for _, p := range []Policy{contract, {MaxChars: 10, HeadChars: 5, TailChars: 5}, {MaxChars: 1},
		{MaxChars: 300, HeadChars: 20}} {
		for _, n := range []int{p.MaxChars + 1, p.MaxChars + 2, p.MaxChars + 80, 2*p.MaxChars + 500, 200000} {
			once, _ := apply(t, p, response(quote(repeat("é\n", n/2+1))), 1<<20)
			twice, stats := apply(t, p, once, 1<<20)
			if twice != once || stats.Strings != 0 {
				t.Errorf("%+v, %d characters: masked again\n%.300s\n%.300s", p, n, once, twice)
			}
		}
	}
	// The same in the middle of a long text, where strings are cut before their end arrives.
	once, _ := apply(t, contract, response("["+strings.Repeat(quote(repeat("é", 100000))+",", 20)+"0]"), 1<<20)
	long := strings.Replace(once, "[", "["+strings.Repeat(`"short",`, 20000), 1)
	for _, piece := range []int{100, 1000, 4050} {
		if twice, stats := apply(t, contract, long, piece); twice != long || stats.Strings != 0 {
			t.Errorf("in pieces of %d: masked again %d", piece, stats.Strings)
		}
	}

	marker := func(original, head, tail int) string {
		return string(appendMarker(nil, original, head, tail, "obs_0123456789", ""))
	}
	hinted := func(hint string) string {
		return repeat("x", 5) + string(appendMarker(nil, 1000, 5, 5, "obs_0123456789", hint)) + repeat("x", 5)
	}
	p := Policy{MaxChars: 100, HeadChars: 10, TailChars: 10}
	for _, test := range []struct {
		name, body string
		again      bool
	}{
		{"by a smaller policy", repeat("x", 5) + marker(1000, 5, 5) + repeat("x", 5), false},
		{"by a larger policy", repeat("x", 60) + marker(1000, 60, 60) + repeat("x", 60), true},
		{"a marker with wrong counts", repeat("x", 6) + marker(1000, 5, 5) + repeat("x", 5), true},
		{"a marker that replaces nothing", repeat("x", 50) + marker(100, 50, 50) + repeat("x", 50), true},
		{"a marker inside a longer text", repeat("x", 200) + marker(1000, 5, 5) + repeat("x", 5), true},
		{"a marker with a handle of any length", repeat("x", 5) + strings.Replace(marker(1000, 5, 5), "obs_",
			"obs_"+repeat("x", 5000), 1) + repeat("x", 5), true},
		{"a marker with a hint", hinted("To see more, call recover_observation with this id and a goal."), false},
		{"a marker with a hint in JSON", hinted(`\"é\u003c\ud83d\ude00\" ] [ ...`), false},
		{"a marker with the longest hint", hinted(repeat("é", MaxHint)), false},
		{"a marker with the longest hint of escapes", hinted(strings.Repeat(`\u00e9`, MaxHint)), false},
		{"a marker with a hint that is too long", hinted(repeat("é", MaxHint+1)), true},
		{"a marker with an unterminated hint", strings.Replace(hinted("hint"), `hint ...\n`, "hint ....", 1), true},
		{"a marker with a hint and no handle", strings.Replace(hinted(repeat("h", 50)), " id=obs_0123456789", "", 1), true},
		{"a marker without a space before its hint", strings.Replace(hinted("hint"), "] hint", "]hint", 1), true},
		{"a marker in the head of a masked text", repeat("x", 5) + marker(1000, 5, 5) + repeat("x", 5) +
			marker(1000, 5+len(marker(1000, 5, 5))-2+5, 5) + repeat("x", 5), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, stats := apply(t, p, response(`"`+test.body+`"`), 1<<20); (stats.Strings == 1) != test.again {
				t.Errorf("masked %d strings", stats.Strings)
			}
		})
	}
}

// O22
func TestKeepMedia(t *testing.T) {
	p := Policy{MaxChars: 26, HeadChars: 3, TailChars: 2, KeepMedia: true}
	for _, test := range []struct{ name, text, want string }{
		{"a UI", `{"uri":"x:a","mimeType":"text/html;profile=mcp-app","text":LONG,"x":LONG}`,
			`{"uri":"x:a","mimeType":"text/html;profile=mcp-app","text":LONG,"x":CUT}`},
		{"a UI whose type comes last", `{"text":LONG,"mimeType":"text/html;profile=mcp-app"}`,
			`{"text":CUT,"mimeType":"text/html;profile=mcp-app"}`},
		{"another page", `{"uri":"x:a","mimeType":"text/html","text":LONG}`,
			`{"uri":"x:a","mimeType":"text/html","text":CUT}`},
		{"an image", `{"type":"image","data":LONG,"mimeType":"image/png"}`,
			`{"type":"image","data":LONG,"mimeType":"image/png"}`},
		{"a sound whose type comes last", `{"data":LONG,"mimeType":LONG,"type":"audio"}`,
			`{"data":LONG,"mimeType":CUT,"type":"audio"}`},
		{"text with data", `{"type":"text","data":LONG}`, `{"type":"text","data":CUT}`},
		{"text with data before its type", `{"data":LONG,"type":"text"}`, `{"data":CUT,"type":"text"}`},
		{"data without a type", `{"data":LONG}`, `{"data":CUT}`},
		{"data that is not a string", `{"data":[LONG],"type":"image"}`, `{"data":[CUT],"type":"image"}`},
		{"the type of a nested object", `{"data":LONG,"x":{"type":"image"}}`, `{"data":CUT,"x":{"type":"image"}}`},
		{"a resource", `{"type":"resource","resource":{"uri":"file:///a","blob":LONG,"text":LONG}}`,
			`{"type":"resource","resource":{"uri":"file:///a","blob":LONG,"text":CUT}}`},
		{"a resource whose uri comes last", `{"contents":[{"blob":LONG,"uri":"file:///a"}]}`,
			`{"contents":[{"blob":LONG,"uri":"file:///a"}]}`},
		{"a blob without a uri", `{"blob":LONG}`, `{"blob":CUT}`},
		{"an image between texts", `[{"text":LONG},{"data":LONG,"x":[{"text":LONG}],"type":"image"},{"text":LONG}]`,
			`[{"text":CUT},{"data":LONG,"x":[{"text":CUT}],"type":"image"},{"text":CUT}]`},
	} {
		for _, n := range []int{30, 300000} {
			t.Run(fmt.Sprint(test.name, ", ", n), func(t *testing.T) {
				long := `"` + repeat("x", n) + `"`
				cut := fmt.Sprintf(`"xxx\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=3 tail=2] ...\nxx"`, n)
				for _, envelope := range []string{response(`RESULT`), `{"jsonrpc":"2.0","error":{"data":RESULT,"code":1}}`,
					`{"result":RESULT,"jsonrpc":"2.0"}`} {
					text := strings.ReplaceAll(strings.ReplaceAll(envelope, "RESULT", test.text), "LONG", long)
					want := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(envelope, "RESULT", test.want), "LONG", long),
						"CUT", cut)
					for _, piece := range []int{1000, 1 << 20} {
						if got, _ := apply(t, p, text, piece); got != want {
							t.Errorf("in pieces of %d\ngot  %.500s\nwant %.500s", piece, got, want)
						}
					}
				}
			})
		}
	}
}

// O20
func TestTextsOverTheLimitPass(t *testing.T) {
	p := contract
	p.Limit = 100000
	for _, n := range []int{99000, 101000, 5000000} {
		text := response(quote(repeat("x", n)))
		for _, piece := range []int{1000, 32 << 10} {
			got, stats := apply(t, p, text, piece)
			if n > p.Limit && got != text {
				t.Errorf("%d bytes: changed", n)
			}
			if n < p.Limit && stats.Strings != 1 {
				t.Errorf("%d bytes: not masked", n)
			}
		}
	}
}

// O23
func TestSave(t *testing.T) {
	var saved []string
	p := Policy{MaxChars: 100, HeadChars: 10, TailChars: 10, HoldLimit: 200000, Save: func(body []byte) string {
		saved = append(saved, string(body))
		return fmt.Sprint("obs_", len(saved))
	}}
	one, two, three := quote(repeat("aé\n😀", 100)), quote(repeat("b", 150000)), quote(repeat("c", 300000))
	got, _ := apply(t, p, response("["+one+","+two+","+three+"]"), 1000)
	if len(saved) != 2 || `"`+saved[0]+`"` != one || `"`+saved[1]+`"` != two {
		t.Errorf("saved %d strings: %.50q", len(saved), saved)
	}
	for _, want := range []string{"original_chars=400 head=10 tail=10 id=obs_1] ",
		"original_chars=150000 head=10 tail=10 id=obs_2] ", "original_chars=300000 head=10 tail=10] "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if twice, _ := apply(t, p, got, 1<<20); twice != got {
		t.Errorf("masked again: %s", twice)
	}
	saved = nil
	if apply(t, p, `{"result":`+one+`}`, 1<<20); len(saved) != 0 {
		t.Error("saved a string that is not masked")
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	m := new(Masker)
	text := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + repeat("x", 500000) +
		`"},{"data":"` + repeat("y", 10000) + `","type":"image"}]}}`)
	p := contract
	p.KeepMedia = true
	if n := testing.AllocsPerRun(20, func() {
		m.Reset(io.Discard, p)
		_, _ = m.Write(text)
		_ = m.End()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMemoryDoesNotGrowWithTheText(t *testing.T) {
	m := NewMasker(io.Discard, contract)
	write := func(s string) {
		if _, err := m.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"jsonrpc":"2.0","id":1,"result":"`)
	piece, grown := repeat("x", 32<<10), 0
	for range 2048 { // 64 MiB
		write(piece)
		grown = max(grown, m.hold.Cap())
	}
	write(`"}`)
	if err := m.End(); err != nil || m.Stats().Strings != 1 {
		t.Fatal(err, m.Stats())
	}
	if limit := 4*window + 12*contract.MaxChars; grown > limit {
		t.Errorf("held %d bytes, more than %d", grown, limit)
	}
}

func TestNothingIsHeldLongerThanNeeded(t *testing.T) {
	p := contract
	p.KeepMedia = true
	long := repeat("x", 200000)
	for _, test := range []struct{ name, text string }{
		{"data in a complete object without a type", `{"jsonrpc":"2.0","result":[{"data":"` + long + `"},`},
		{"a blob in a complete object without a uri", `{"jsonrpc":"2.0","result":[{"blob":"` + long + `"},`},
		{"an image after its type", `{"jsonrpc":"2.0","result":[{"type":"image","data":"` + long},
		{"a request", `{"jsonrpc":"2.0","params":{"text":"` + long},
		{"a text without jsonrpc and with nothing to cut", `{"items":["short","` + repeat("short\",\"", 50000)},
		{"a message whose jsonrpc follows the result", `{"result":"` + long + `","jsonrpc":"2.0",`},
		{"an array after a complete message", `[{"result":"` + long + `"},`},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := NewMasker(io.Discard, p)
			m.Write([]byte(test.text))
			if m.hold.Len() > 100 {
				t.Errorf("%d bytes held", m.hold.Len())
			}
		})
	}
}

// Masking a text as it streams gives the same result as masking it as a whole. The small window
// makes it stream from the first bytes on.
func TestStreamingMakesNoDifference(t *testing.T) {
	defer func(size int) { window = size }(window)
	for _, test := range []struct{ window, longest, documents int }{{100, 13, 200}, {64 << 10, 17, 20}} {
		window = test.window
		checkStreaming(t, test.longest, test.documents)
	}
}

func checkStreaming(t *testing.T, longest, documents int) {
	random := rand.New(rand.NewPCG(3, 4))
	streamed := Policy{MaxChars: 200, HeadChars: 20, TailChars: 30, KeepMedia: true, HoldLimit: 1 << (longest - 2)}
	streamed.Save = func(body []byte) string { return fmt.Sprint("obs_", len(body)) }
	streamed.AnyMethod = true
	whole := streamed
	whole.Limit = 1 << 30
	document := func() string {
		var items []string
		for range 1 + random.IntN(8) {
			text := quote(repeat([]string{"x", "é漢", "😀\n"}[random.IntN(3)], 1<<random.IntN(longest)))
			items = append(items, []string{
				text, `{"uri":` + text + `,"blob":` + text + `}`, `{"type":` + text + `,"data":` + text + `}`,
				`{"type":"image","data":` + text + `}`, `{"data":` + text + `,"x":` + text + `,"type":"audio"}`,
				`{"type":"text","data":` + text + `}`, `{"blob":` + text + `,"y":[` + text + `]}`, `{"blob":` + text +
					`,"uri":"u"}`,
			}[random.IntN(8)])
		}
		result := "[" + strings.Join(items, ",") + "]"
		if random.IntN(2) == 0 {
			result = `{"a":` + result + `,"requestState":` + items[0] + `,"b":` + items[0] + `,"tools":` + result + `,"c":` +
				result + `}`
		}
		return []string{response(result), `{"result":` + result + `,"jsonrpc":"2.0"}`, `{"result":` + result + `}`,
			`{"error":{"data":` + result + `},"jsonrpc":"2.0"}`}[random.IntN(4)]
	}
	for range documents {
		text := document()
		if random.IntN(2) == 0 {
			text = "[" + text + "," + document() + "," + document() + "]"
		}
		want, wantStats := apply(t, whole, text, len(text))
		got, stats := apply(t, streamed, text, 1+random.IntN(1<<random.IntN(longest)))
		if got != want || stats != wantStats {
			t.Fatalf("streamed %+v, as a whole %+v of %.300s", stats, wantStats, text)
		}
	}
}

func TestUndecidedStringsAreHeldUpToALimit(t *testing.T) {
	defer func(limit int) { holdLimit = limit }(holdLimit)
	holdLimit = 1 << 20
	p := contract
	p.KeepMedia = true
	long := repeat("x", 3<<20)
	for _, text := range []string{`{"result":"` + long + `","jsonrpc":"2.0"}`,
		response(`{"data":"` + long + `","type":"image"}`), response(`{"data":"` + long + `"}`)} {
		var out bytes.Buffer
		m := NewMasker(&out, p)
		m.Write([]byte(text[:2<<20]))
		if m.hold.Len() > holdLimit+blockSize {
			t.Errorf("%d bytes held", m.hold.Len())
		}
		m.Write([]byte(text[2<<20:]))
		if err := m.End(); err != nil || out.String() != text {
			t.Errorf("%.40s was changed, %v", text, err)
		}
	}
}

func TestALongReplyIsTakenForJSONRPC(t *testing.T) {
	for _, reply := range []bool{false, true} {
		p := contract
		p.IsReply = func() bool { return reply }
		var out bytes.Buffer
		m := NewMasker(&out, p)
		m.Write([]byte(`{"result":{"content":[{"text":"` + repeat("x", 2*assumeAfter)))
		if held := m.hold.Len(); (held < window) != reply {
			t.Errorf("reply %v: %d bytes held", reply, held)
		}
		m.Write([]byte(repeat("x", 1000) + `"}]},"jsonrpc":"2.0","id":1}`))
		if err := m.End(); err != nil || m.Stats().Strings != 1 || !json.Valid(out.Bytes()) {
			t.Errorf("reply %v: %+v, %v", reply, m.Stats(), err)
		}
	}
	// If the end of the text shows that it is not, the masked part stays masked.
	for _, rest := range []string{`","jsonrpc":"1.0","pad":"` + repeat("y", 100000) + `"}`,
		`","jsonrpc":"2.0","jsonrpc":"2.0"}`, `"}`, `",}`} {
		p := contract
		p.IsReply = func() bool { return true }
		if got, stats := apply(t, p, `{"result":"`+repeat("x", 2*assumeAfter)+rest, 1000); stats.Strings != 1 ||
			!strings.HasSuffix(got, rest) {
			t.Errorf("%.30s: %+v", rest, stats)
		}
	}
	// A shorter text is read to its end before it is masked.
	p := contract
	p.IsReply = func() bool { return true }
	text := `{"result":"` + repeat("x", assumeAfter-1000) + `"}`
	if got, _ := apply(t, p, text, 1000); got != text {
		t.Error("a text without jsonrpc was changed")
	}
}

func TestAbort(t *testing.T) {
	p := Policy{MaxChars: 100, HeadChars: 10, TailChars: 10}
	for _, test := range []struct {
		name, text string
		whole      bool // nothing is lost
	}{
		{"before anything was written", response(`"` + repeat("x", 1000)), true},
		{"after the head was written", `{"jsonrpc":"2.0","result":"` + repeat("x", 200000), false},
		{"after the head was written, with invalid JSON", `{"jsonrpc":"2.0","result":"` + repeat("x", 200000) + "\n" +
			repeat("y", 1000), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			m := NewMasker(&out, p)
			for chunk := range strings.SplitSeq(test.text, "x") { // many writes
				m.Write([]byte(chunk + "x"))
			}
			if err := m.Abort(); err != nil {
				t.Fatal(err)
			}
			got := out.String()
			if test.whole {
				if got != test.text+"x" && got != test.text {
					t.Errorf("got %.200q", got)
				}
				return
			}
			if !strings.HasPrefix(got, test.text[:30]) || strings.Count(got, "KIMI_PROXY") != 1 || len(got) > 50000 {
				t.Errorf("got %d bytes: %.200q", len(got), got)
			}
			if strings.Contains(test.text, "y") && !strings.HasSuffix(got, repeat("y", 1000)+"x") {
				t.Errorf("lost the rest of the text: %q", got[len(got)-50:])
			}
		})
	}
}

// O16: the framing of an event stream passes through gaps.
func TestGap(t *testing.T) {
	p := Policy{MaxChars: 20, HeadChars: 3, TailChars: 2}
	long := `"` + repeat("x", 30) + `"`
	cut := `"xxx\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=30 head=3 tail=2] ...\nxx"`
	for _, test := range []struct {
		name  string
		parts []string // text and gaps in turn
		want  string
	}{
		{"around and between tokens", []string{"", "data: ", `{"jsonrpc":"2.0",`, "\ndata: ", `"result":` + long + `}`,
			"\n\n"}, "data: {\"jsonrpc\":\"2.0\",\ndata: \"result\":" + cut + "}\n\n"},
		{"inside a string", []string{"", "data: ", `{"jsonrpc":"2.0","result":"` + repeat("x", 15), "\ndata: ",
			repeat("x", 15) + `"}`, "\n\n"}, "data: {\"jsonrpc\":\"2.0\",\"result\":\"xxxxxxxxxxxxxxx\ndata: " +
			"xxxxxxxxxxxxxxx\"}\n\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			m := NewMasker(&out, p)
			for i, part := range test.parts {
				if i%2 == 0 {
					m.Write([]byte(part))
				} else if err := m.Gap([]byte(part)); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.End(); err != nil || out.String() != test.want {
				t.Errorf("got %q, %v\nwant %q", out.String(), err, test.want)
			}
		})
	}
	var out bytes.Buffer
	if m := NewMasker(&out, p); m.Gap([]byte(": ping\n")) != nil || out.String() != ": ping\n" {
		t.Errorf("a gap before the text was held back: %q", out.String())
	}
}

// reference masks a decoded message in the simplest way.
func reference(p Policy, v any) any {
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case string:
			if body := quote(v); p.isMasked([]byte(body[1:len(body)-1]), utf8.RuneCountInString(v)) {
				return v
			}
			return cutString(p, v)
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case map[string]any:
			for k := range v {
				v[k] = walk(v[k])
			}
		}
		return v
	}
	message := func(v any) {
		if m, ok := v.(map[string]any); ok && m["jsonrpc"] == "2.0" {
			if result, ok := m["result"].(map[string]any); ok {
				for k := range result {
					if resultMembers[k] != clientInput {
						result[k] = walk(result[k])
					}
				}
			} else if result, ok := m["result"]; ok {
				m["result"] = walk(result)
			}
			if e, ok := m["error"].(map[string]any); ok {
				if data, ok := e["data"]; ok {
					e["data"] = walk(data)
				}
			}
		}
	}
	if batch, ok := v.([]any); ok {
		for i := range batch {
			message(batch[i])
		}
	}
	message(v)
	return v
}

func decode(t *testing.T, text string) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%.500q: %v", text, err)
	}
	return v
}

func FuzzMasker(f *testing.F) {
	for _, text := range []string{
		response(quote(repeat("x", 50))), response(`["` + repeat("é", 30) + `",{"a":"` + repeat(`\ud83d\ude00`, 30) + `"}]`),
		`{"result":"` + repeat(`\n\"`, 30) + `","jsonrpc":"2.0"}`, `[{"jsonrpc":"2.0","error":{"data":"` + repeat("ab", 30) +
			`"}},{"jsonrpc":"2.0","result":1}]`,
		`{"jsonrpc":"2.0","result":"","result":1}`, `{"jsonrpc":"2.0","result":{"type":"image","data":"` + repeat("x", 50) +
			`"}}`,
		`{"error":{"data":"` + repeat("ab", 30) + `"}},{"jsonrp`, `{"\n\n"`, response(`["`+repeat("é", 30)+`"`) + `} x` +
			repeat("y", 30), ``, `{"` + repeat("x", 200) + `":1,"id":"x"}`,
		response(`"` + string(appendMarker(nil, 5, 3, 2, "", "")) + repeat("x", 20) + `"`),
		"{\"jsonrpc\":\"2.0\",\"result\":\"" + repeat("\xff", 50) + "\"}",
		response(`"` + repeat("x", 3) + string(appendMarker(nil, 50, 3, 2, "", "")) + `xx"`),
	} {
		f.Add(text, uint16(3))
	}
	f.Add(response(`{"requestState":"`+repeat("x", 50)+`","a":"`+repeat("x", 50)+`","tools":"`+repeat("x", 50)+`"}`),
		uint16(3))
	p := Policy{MaxChars: 20, HeadChars: 3, TailChars: 2}
	f.Fuzz(func(t *testing.T, text string, piece uint16) {
		got, stats := apply(t, p, text, len(text)+1)
		if again, _ := apply(t, p, text, int(piece)+1); again != got {
			t.Fatalf("%q in pieces of %d: %q, in one: %q", text, int(piece)+1, again, got)
		}
		if stats.Strings == 0 && got != text {
			t.Fatalf("%q became %q without a cut", text, got)
		}
		if twice, stats := apply(t, p, got, len(got)+1); twice != got || stats.Strings != 0 {
			t.Fatalf("%q became %q, then %q", text, got, twice)
		}
		unknown := p
		unknown.AnyMethod = true
		some, of := apply(t, unknown, text, len(text)+1)
		if again, _ := apply(t, unknown, text, int(piece)+1); again != some || of.Strings > stats.Strings {
			t.Fatalf("%q in pieces of %d: %q, in one: %q", text, int(piece)+1, again, some)
		}
		media := p
		media.KeepMedia = true
		if kept, s := apply(t, media, text, int(piece)+1); s.Strings > stats.Strings || s.Strings == 0 && kept != text {
			t.Fatalf("%q became %q with media kept", text, kept)
		}
		if !json.Valid([]byte(text)) {
			if got != text {
				t.Fatalf("%q is not JSON and became %q", text, got)
			}
			return
		}
		if stats.Strings == 0 {
			return
		}
		// Decoding drops repeated keys on both sides.
		if want := reference(p, decode(t, text)); !reflect.DeepEqual(decode(t, got), want) {
			t.Fatalf("%q became %q, want %v", text, got, want)
		}
	})
}

// 10,000 random documents with strings under the limit come out byte-identical.
func TestRandomDocumentsUnderTheLimitAreUntouched(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 10000 {
		text := response(randomJSON(random, 5))
		if i%3 == 0 {
			text = `{"result":` + randomJSON(random, 5) + `,"jsonrpc":"2.0"}`
		}
		if got, stats := apply(t, contract, text, 1+random.IntN(len(text))); got != text || stats.Strings != 0 {
			t.Fatalf("%q became %q", text, got)
		}
	}
}

func randomJSON(r *rand.Rand, depth int) string {
	space := repeat(" ", r.IntN(2))
	switch k := r.IntN(8); {
	case k < 2 && depth > 0:
		var items []string
		for range r.IntN(5) {
			items = append(items, randomJSON(r, depth-1))
		}
		return "[" + space + strings.Join(items, ","+space) + "]"
	case k < 4 && depth > 0:
		var items []string
		for i := range r.IntN(5) {
			items = append(items, fmt.Sprintf(`"k%d"%s:%s`, i, space, randomJSON(r, depth-1)))
		}
		return "{" + strings.Join(items, space+",") + "}"
	case k == 4:
		return []string{"null", "true", "false", "0", "-0.0", "1e400", "12345678901234567890", "0.10"}[r.IntN(8)]
	case k == 5:
		return escapeAll(repeat("😀é", r.IntN(60)))
	default:
		return quote(repeat([]string{"x", "é", "漢", "😀", "\n\"", "\u2028<&"}[r.IntN(6)], r.IntN(300)))
	}
}

// If the method is unknown, results are recognized by their members. O25
func TestResultsAreRecognizedByTheirMembers(t *testing.T) {
	long := `"` + repeat("x", 30) + `"`
	cut := `"xxx\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=30 head=3 tail=2] ...\nxx"`
	for _, test := range []struct{ name, result, known, unknown string }{ // known is "" if it equals unknown
		{"a tool's result", `{"content":[{"type":"text","text":LONG}],"structuredContent":{"tools":[LONG],` +
			`"instructions":LONG}}`, "",
			`{"content":[{"type":"text","text":CUT}],"structuredContent":{"tools":[CUT],"instructions":CUT}}`},
		{"tools", `{"tools":[{"name":"a","description":LONG,"inputSchema":{"description":LONG}}]}`,
			`{"tools":[{"name":"a","description":CUT,"inputSchema":{"description":CUT}}]}`,
			`{"tools":[{"name":"a","description":LONG,"inputSchema":{"description":LONG}}]}`},
		{"prompts", `{"prompts":[LONG]}`, `{"prompts":[CUT]}`, `{"prompts":[LONG]}`},
		{"resources", `{"resources":[LONG]}`, `{"resources":[CUT]}`, `{"resources":[LONG]}`},
		{"templates", `{"resourceTemplates":[LONG]}`, `{"resourceTemplates":[CUT]}`, `{"resourceTemplates":[LONG]}`},
		{"tasks", `{"tasks":[LONG]}`, `{"tasks":[CUT]}`, `{"tasks":[LONG]}`},
		{"skills", `{"skills":[LONG]}`, `{"skills":[CUT]}`, `{"skills":[LONG]}`},
		{"metadata and a cursor before a list", `{"_meta":{"a":LONG},"nextCursor":LONG,"tools":[LONG],"x":LONG}`,
			`{"_meta":{"a":CUT},"nextCursor":CUT,"tools":[CUT],"x":CUT}`,
			`{"_meta":{"a":LONG},"nextCursor":LONG,"tools":[LONG],"x":LONG}`},
		{"initialize", `{"protocolVersion":"2025-06-18","instructions":LONG,"x":LONG}`,
			`{"protocolVersion":"2025-06-18","instructions":CUT,"x":CUT}`,
			`{"protocolVersion":"2025-06-18","instructions":LONG,"x":LONG}`},
		{"server/discover", `{"supportedVersions":[],"capabilities":{"a":LONG},"serverInfo":{"title":LONG}}`,
			`{"supportedVersions":[],"capabilities":{"a":CUT},"serverInfo":{"title":CUT}}`,
			`{"supportedVersions":[],"capabilities":{"a":LONG},"serverInfo":{"title":LONG}}`},
		{"names with escapes", `{"\u0074ools":[LONG],"x":LONG}`, `{"\u0074ools":[CUT],"x":CUT}`,
			`{"\u0074ools":[LONG],"x":LONG}`},
		{"a name of escapes only", `{` + escapeAll("resourceTemplates") + `:[LONG]}`, `{` + escapeAll("resourceTemplates") +
			`:[CUT]}`, `{` + escapeAll("resourceTemplates") + `:[LONG]}`},
		{"a name in another case", `{"Tools":[LONG]}`, "", `{"Tools":[CUT]}`},
		{"an array of lists", `[{"tools":[LONG]}]`, "", `[{"tools":[CUT]}]`},
		{"a request for input from the client",
			`{"resultType":"input_required","inputRequests":{"a":{"params":{"message":LONG}}},` +
				`"requestState":LONG,"x":LONG}`, "",
			`{"resultType":"input_required","inputRequests":{"a":{"params":{"message":LONG}}},"requestState":LONG,"x":CUT}`},
		{"a nested state", `{"content":[{"requestState":LONG}]}`, "", `{"content":[{"requestState":CUT}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.known == "" {
				test.known = test.unknown
			}
			for _, media := range []bool{false, true} {
				for _, unknown := range []bool{false, true} {
					p := Policy{MaxChars: 20, HeadChars: 3, TailChars: 2, KeepMedia: media, AnyMethod: unknown}
					want := test.known
					if unknown {
						want = test.unknown
					}
					// The messages after a result do not depend on it.
					batch := func(result string) string {
						text := "[" + response(result) + `,{"result":{"y":CUT},"jsonrpc":"2.0"},{"jsonrpc":"2.0","error":{"data":CUT}}]`
						return strings.NewReplacer("LONG", long, "CUT", cut).Replace(text)
					}
					text := strings.ReplaceAll(batch(test.result), cut, long)
					for _, piece := range []int{1, 5, 1 << 20} {
						if got, _ := apply(t, p, text, piece); got != batch(want) {
							t.Errorf("%+v, in pieces of %d\ngot  %s\nwant %s", p, piece, got, batch(want))
						}
					}
				}
			}
		})
	}
}
