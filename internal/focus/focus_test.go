package focus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// log returns a log with one relevant line.
func log(lines int) string {
	var b strings.Builder
	for i := range lines {
		if i == lines/3 {
			b.WriteString("2026-01-01 ERROR payment of order 4711 declined by the bank\n")
			continue
		}
		fmt.Fprintf(&b, "2026-01-01 INFO request %d served in %d ms\n", i, i%7)
	}
	return b.String()
}

func records(n int) string {
	var b strings.Builder
	for i := range n {
		note := "nothing"
		if i == n/3 {
			note = "payment declined by the bank"
		}
		fmt.Fprintf(&b, `,{"id": %d, "note": %q}`, i, note)
	}
	return `{"records": [` + b.String()[1:] + `]}`
}

func TestCut(t *testing.T) {
	const goal = "why was the payment declined"
	for _, test := range []struct {
		name string
		Cutter
		text string
		form Form
		has  []string
	}{
		{"lines", Cutter{Goal: goal, MaxChars: 1000, Handle: "obs_1", Hint: "Ask."}, log(500), Lines,
			[]string{"[KIMI_PROXY_OBSERVATION_MASKED original_chars=", " id=obs_1] Ask.\n",
				"167│ 2026-01-01 ERROR payment of order 4711"}},
		{"lines without a handle", Cutter{Goal: goal, MaxChars: 1000, Hint: "Ask."}, log(500), Lines,
			[]string{"/500]\n", "left out]"}},
		{"JSON with a goal", Cutter{Goal: goal, MaxChars: 500, Handle: "obs_1"}, records(300), JSON,
			[]string{"payment declined by the bank", "id=obs_1"}},
		{"JSON without a goal", Cutter{MaxChars: 500, Handle: "obs_1"}, records(300), JSON, []string{`{"id":0,`, `{"id":299,`,
			"id=obs_1"}},
		{"bare JSON", Cutter{Goal: goal, MaxChars: 500, Handle: "obs_1", Bare: true}, records(300), JSON,
			[]string{"payment declined by the bank"}},
		{"JSON after a byte order mark", Cutter{MaxChars: 500}, "\ufeff" + records(300), JSON, []string{`{"id":0,`}},
		{"lines are not cut without a goal", Cutter{MaxChars: 1000}, log(500), Uncut, nil},
		{"a single line is not cut", Cutter{Goal: goal, MaxChars: 100}, strings.Repeat("a", 5000), Uncut, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			short, form := test.Cut(context.Background(), test.text)
			if form != test.form {
				t.Fatalf("%d: %s", form, short)
			}
			if n := utf8.RuneCountInString(short); n > test.MaxChars {
				t.Errorf("%d characters are left", n)
			}
			for _, want := range test.has {
				if !strings.Contains(short, want) {
					t.Errorf("%q is missing in\n%s", want, short)
				}
			}
			if form == JSON && !json.Valid([]byte(short)) {
				t.Errorf("not JSON: %s", short)
			}
			if test.Bare && strings.Contains(short, "obs_1") {
				t.Errorf("a marker was added: %s", short)
			}
		})
	}
}

func TestNote(t *testing.T) {
	c := Cutter{Handle: "obs_1", Hint: "Ask."}
	if note := c.Note([]byte(`"é"`)); !strings.Contains(note, "original_chars=3 id=obs_1]") || !strings.HasSuffix(note,
		" Ask.") {
		t.Error(note)
	}
	c.Handle = ""
	if note := c.Note([]byte(`1`)); !strings.Contains(note, "original_chars=1]") || strings.Contains(note, "Ask") {
		t.Error(note)
	}
}

// Only a few large texts are cut at a time. A large text that gets no slot in time is not cut, and
// other texts need no slot.
func TestSlots(t *testing.T) {
	for range cap(slots) {
		slots <- struct{}{}
	}
	c := Cutter{Goal: "payment", MaxChars: 1000}
	usual := slotTimeout
	slotTimeout = time.Millisecond
	text := strings.Repeat("payment declined\n", maxUnqueued/16)
	if _, _, ok := c.Lines(t.Context(), text); ok {
		t.Error("a large text did not wait for a slot")
	}
	if _, ok := c.Value(t.Context(), []byte("["+strings.Repeat("1,", maxUnqueued/2)+"1]")); ok {
		t.Error("large JSON did not wait for a slot")
	}
	if _, _, ok := c.Lines(t.Context(), text[:maxUnqueued/2]); !ok {
		t.Error("a small text is not cut")
	}
	slotTimeout = usual
	for range cap(slots) {
		<-slots
	}
	for range cap(slots) + 1 {
		if _, _, ok := c.Lines(t.Context(), text); !ok {
			t.Error("a large text is not cut although a slot is free")
		}
	}
}
