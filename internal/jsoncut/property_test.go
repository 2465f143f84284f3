package jsoncut

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
)

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
	for m := range jsonspan.Members(short) {
		if n, of, ok := marked(m.Key, "members"); ok && !c.Bare && of == len(members) {
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
