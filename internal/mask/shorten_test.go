package mask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// abbreviating is a Shortener that logs its calls.
type abbreviating struct{ log []string }

func (a *abbreviating) Text(body []byte, handle string, structured bool) []byte {
	a.log = append(a.log, fmt.Sprintf("text %c %s %t", body[0], handle, structured))
	switch body[0] {
	case '-':
		return nil // head and tail
	case '{':
		return []byte(`{\"cut\":1}`)
	}
	return []byte("short " + string(body[:1]))
}

func (a *abbreviating) Structured(value []byte) []byte {
	a.log = append(a.log, "structured")
	switch {
	case bytes.Contains(value, []byte("whole")):
		return nil
	case bytes.Contains(value, []byte("spaces")):
		return bytes.ReplaceAll(value, []byte(" "), nil)
	}
	return []byte(`{"cut":1}`)
}

func (a *abbreviating) Note(value []byte, handle string) string {
	return fmt.Sprintf("note of %d %s", len(value), handle)
}

// saving returns a policy whose Save gives bodies the handles obs_1, obs_2 and so on, and the kept
// bodies by handle.
func saving(s Shortener) (Policy, map[string]string) {
	kept := map[string]string{}
	return Policy{MaxChars: 40, HeadChars: 3, TailChars: 3, KeepMedia: true, Shorten: s, HoldLimit: 1000,
		Save: func(body []byte) string {
			for handle, known := range kept {
				if known == string(body) {
					return handle
				}
			}
			handle := fmt.Sprintf("%s%d", HandlePrefix, len(kept)+1)
			kept[handle] = string(body)
			return handle
		}}, kept
}

func TestShorten(t *testing.T) {
	var (
		long   = repeat("a", 50)
		other  = repeat("b", 60)
		ends   = repeat("-", 50)
		marker = func(handle string) string {
			return `---\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=50 head=3 tail=3 id=` + handle + `] ...\n---`
		}
		text = func(s string) string { return `{"type":"text","text":"` + s + `"}` }
		rows = `{"rows":[` + strings.TrimSuffix(repeat(`{"n":1},`, 20), ",") + `]}`
		json = strings.ReplaceAll(rows, `"`, `\"`)
	)
	for _, test := range []struct {
		name, result, want string
		log                string
	}{
		{"texts", `{"content":[` + text(long) + `,` + text("x") + `,` + text(other) + `]}`, `{"content":[` +
			text("short a") + `,` + text("x") + `,` + text("short b") + `]}`, "text a obs_1 false, text b obs_2 false"},
		{"head and tail of a text that is not shortened", `{"content":[` + text(ends) + `]}`, `{"content":[` +
			text(marker("obs_1")) + `]}`, "text - obs_1 false"},
		{"a text that is masked stays", `{"content":[` + text(marker("obs_1")) + `]}`, "", ""},
		{"media stay", `{"content":[{"type":"image","data":"` + long + `"}]}`, "", ""},
		{"structured content with the same string", `{"content":[` + text(long) + `],"structuredContent":{"result":"` +
			long + `"}}`,
			`{"content":[` + text("short a") + `],"structuredContent":{"result":"short a"}}`, "text a obs_1 false"},
		{"structured content before the text", `{"structuredContent":{"result":"` + ends + `"},"content":[` + text(ends) +
			`]}`,
			`{"structuredContent":{"result":"` + marker("obs_1") + `"},"content":[` + text(marker("obs_1")) + `]}`,
			"text - obs_1 false"},
		{"structured content with another string", `{"content":[` + text(long) + `],"structuredContent":{"result":"` +
			other + `"}}`,
			`{"content":[` + text("short a") + `],"structuredContent":{"result":"short b"}}`,
			"text a obs_1 false, text b obs_2 false"},
		{"structured content that a text repeats", `{"content":[` + text(json) + `],"structuredContent":` + rows + `}`,
			fmt.Sprintf(`{"content":[`+text(`{\"cut\":1}`)+`,`+text("note of %d obs_1")+`],"structuredContent":{"cut":1}}`,
				len(rows)), "structured, text { obs_1 true"},
		{"structured content that a text repeats with white space", `{"content":[` + text(`{ `+json[1:]) +
			`],"structuredContent":` + rows + `}`,
			fmt.Sprintf(`{"content":[`+text(`{\"cut\":1}`)+`,`+text("note of %d obs_1")+`],"structuredContent":{"cut":1}}`,
				len(rows)), "structured, text { obs_1 true"},
		{"structured content and a text with other JSON",
			`{"content":[` + text(json) + `],"structuredContent":{"n":1,"rows":` +
				rows + `}}`,
			fmt.Sprintf(`{"content":[`+text(`{\"cut\":1}`)+`,`+text("note of %d obs_1")+`],"structuredContent":{"cut":1}}`,
				len(rows)+len(`{"n":1,"rows":}`)), "structured, text { obs_2 false"},
		{"structured content that is long because of white space",
			`{"content":[],"structuredContent":{"spaces":` + repeat(" ", 60) +
				`1}}`,
			`{"content":[],"structuredContent":{"spaces":1}}`, "structured"},
		{"short structured content and a text with JSON", `{"content":[` + text(json) + `],"structuredContent":{"n":1}}`,
			`{"content":[` + text(`{\"cut\":1}`) + `],"structuredContent":{"n":1}}`, "text { obs_1 false"},
		{"structured content of few characters in many bytes", `{"content":[],"structuredContent":{"é":"` + repeat("é", 30) +
			`"}}`, "", ""},
		{"JSON as a string in structured content", `{"content":[` + text(json) + `],"structuredContent":{"result":"` + json +
			`"}}`,
			`{"content":[` + text(`{\"cut\":1}`) + `],"structuredContent":{"result":"{\"cut\":1}"}}`, "text { obs_1 false"},
		{"structured content that a text repeats, but that cannot be cut", `{"content":[` + text(`{\"whole\":`+json+`}`) +
			`],"structuredContent":{"whole":` + rows + `}}`,
			`{"content":[` + text(`{\"cut\":1}`) + `],"structuredContent":{"whole":` + rows + `}}`,
			"structured, text { obs_1 false"},
		{"structured content alone", `{"content":[ ],"structuredContent":` + rows + `}`,
			fmt.Sprintf(`{"content":[`+` `+text("note of %d obs_1")+`],"structuredContent":{"cut":1}}`, len(rows)),
			"structured"},
		{"structured content without content", `{"structuredContent":` + rows + `}`, `{"structuredContent":{"cut":1}}`,
			"structured"},
		{"structured content that cannot be cut, with a long string",
			`{"content":[],"structuredContent":{"whole":` + rows + `,"s":"` + long + `"}}`,
			`{"content":[],"structuredContent":{"whole":` + rows + `,"s":"short a"}}`, "structured, text a obs_1 false"},
		{"short structured content and a long text",
			`{"content":[` + text(long) + `],"structuredContent":{"n":1}}`, `{"content":[` +
				text("short a") + `],"structuredContent":{"n":1}}`, "text a obs_1 false"},
		{"nested members of the same names", `{"x":{"content":[],"structuredContent":` + rows + `}}`, "", ""},
		{"too long to be held", `{"content":[` + text(ends) + `,` + text(repeat("c", 1000)) + `]}`, `{"content":[` +
			text(marker("obs_1")) + `,` +
			text(`ccc\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=1000 head=3 tail=3 id=obs_2] ...\nccc`) + `]}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func(size int) { window = size }(window)
			window = 16
			for _, piece := range []int{1, 7, 1 << 20} {
				if test.want == "" {
					test.want = test.result
				}
				if strings.HasPrefix(test.name, "too long") && piece > 7 {
					continue // a text in one piece is not held
				}
				s := new(abbreviating)
				policy, _ := saving(s)
				got, stats := apply(t, policy, response(test.result), piece)
				if got != response(test.want) {
					t.Errorf("in pieces of %d:\n%s\nwant\n%s", piece, got, response(test.want))
				}
				if log := strings.Join(s.log, ", "); log != test.log {
					t.Errorf("in pieces of %d: %s", piece, log)
				}
				if changed := test.want != test.result; changed != (stats.Strings > 0) {
					t.Errorf("stats are %+v", stats)
				}
			}
		})
	}
}

// The Shortener is not used for an event of several lines, which has gaps between its tokens.
func TestShortenEventsOfSeveralLines(t *testing.T) {
	s := new(abbreviating)
	policy, _ := saving(s)
	var out bytes.Buffer
	m := NewMasker(&out, policy)
	for i, line := range []string{`{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"rows":[`, repeat(`1,`, 30),
		`1]},"content":[{"type":"text","text":"` + repeat("a", 50) + `"}]}}`} {
		if i > 0 {
			if err := m.Gap([]byte("\ndata: ")); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = m.Write([]byte(line))
	}
	if err := m.End(); err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(out.String(), "\ndata: ", "")
	if !json.Valid([]byte(got)) || strings.Contains(got, `"cut"`) || !strings.Contains(got, "id=obs_1") || len(s.log) > 0 {
		t.Errorf("%s\n%v", out.String(), s.log)
	}
}

// The held part of an incomplete message is written unchanged.
func TestShortenMessagesThatBreakOff(t *testing.T) {
	message := response(`{"content":[{"type":"text","text":"` + repeat("a", 50) + `"}],"structuredContent":{"n":1}}`)
	for end := range len(message) - 1 {
		s := new(abbreviating)
		policy, _ := saving(s)
		var out bytes.Buffer
		m := NewMasker(&out, policy)
		_, _ = m.Write([]byte(message[:end]))
		if err := m.Abort(); err != nil || out.String() != message[:end] || len(s.log) > 0 {
			t.Fatalf("%v, %s, %v", err, out.String(), s.log)
		}
	}
}
