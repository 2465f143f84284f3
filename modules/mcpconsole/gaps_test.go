package mcpconsole

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsoncut"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
)

// maskText returns a text as a mask shortens it.
func maskText(t *testing.T, text string, policy mask.Policy) string {
	t.Helper()
	var out bytes.Buffer
	message, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "result": map[string]any{"text": text}})
	if err != nil {
		t.Fatal(err)
	}
	m := mask.NewMasker(&out, policy)
	if _, err := m.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := m.End(); err != nil {
		t.Fatal(err)
	}
	var answer struct{ Result struct{ Text string } }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Result.Text
}

// TestGaps uses the real masks, so that their markers and splitGaps agree.
func TestGaps(t *testing.T) {
	const handle = "obs_BrQOO5w4Tf"
	policy := mask.Policy{MaxChars: 100, HeadChars: 60, TailChars: 40}
	kept := policy
	kept.HoldLimit, kept.Save, kept.Hint = 1<<20, func([]byte) string { return handle }, mask.DefaultHint
	var lines strings.Builder
	var items []int
	for i := range 2000 {
		fmt.Fprintf(&lines, "line %d of the log says that all is well\n", i)
		items = append(items, i)
	}
	list, _ := json.Marshal(items)
	cutList, ok := jsoncut.Cutter{MaxChars: 200, Note: " id=" + handle}.Cut(list)
	if !ok {
		t.Fatal("the list was not cut")
	}
	focused, _ := (&focus.Cutter{Goal: "line 1234", MaxChars: 1000, Handle: handle,
		Hint: mask.DefaultHint}).Cut(t.Context(), lines.String())

	for _, test := range []struct {
		name, text   string
		gaps         []string // ends of the descriptions of the first gaps
		handle, left string   // handle of the first gap, and text that is kept
	}{
		{"a whole text", "a text", nil, "", "a text"},
		{"no text", "", nil, "", ""},
		{"head and tail", maskText(t, strings.Repeat("x", 5100), policy), []string{"5,000 characters are missing"}, "",
			strings.Repeat("x", 60) + "\n"},
		{"head and tail with a handle", maskText(t, strings.Repeat("x", 5100), kept),
			[]string{"5,000 characters are missing"},
			handle, "\n" + strings.Repeat("x", 40)},
		{"items", string(cutList), []string{"of 2,000 items are missing"}, handle, ""},
		{"lines", focused, []string{"of 2,000 lines are missing", "lines are missing"}, handle, ""},
		{"one line", "a\n[line 7 left out]\nb", []string{"1 line is missing"}, "", "a\n"},
		{"media", `["... [52000 characters of media left out] ..."]`, []string{"52,000 characters of media are missing"}, "",
			`["`},
		{"a marker with inconsistent numbers",
			"... [KIMI_PROXY_OBSERVATION_MASKED original_chars=10 head=20 tail=0] ...", nil,
			"", "... [KIMI_PROXY_OBSERVATION_MASKED original_chars=10 head=20 tail=0] ..."},
		{"a marker with a number that is too large", "[lines 1-99999999999999999999 left out]", nil, "", ""},
	} {
		parts := splitGaps(test.text)
		var found, left []string
		var whole strings.Builder
		first := ""
		for _, p := range parts {
			whole.WriteString(p.Text)
			if p.Gap == "" {
				left = append(left, p.Text)
				continue
			}
			if len(found) == 0 {
				first = p.Handle
			}
			found = append(found, p.Gap)
		}
		if whole.String() != test.text {
			t.Errorf("%s: the parts join to %q, want %q", test.name, whole.String(), test.text)
		}
		if test.left != "" && !strings.Contains(strings.Join(left, "\x00"), test.left) {
			t.Errorf("%s: kept %q, want %q", test.name, left, test.left)
		}
		if len(test.gaps) == 0 && test.left != "" && !reflect.DeepEqual(left, []string{test.left}) {
			t.Errorf("%s: kept %q, want the whole text", test.name, left)
		}
		if first != test.handle {
			t.Errorf("%s: handle %q, want %q", test.name, first, test.handle)
		}
		for i, want := range test.gaps {
			if i >= len(found) || !strings.HasSuffix(found[i], want) {
				t.Errorf("%s: gaps %q, want %q", test.name, found, test.gaps)
				break
			}
		}
	}
}

// FuzzGaps checks that splitting a text loses no part of it.
func FuzzGaps(f *testing.F) {
	f.Add("a ... [KIMI_PROXY_OBSERVATION_MASKED original_chars=52310 head=2000 tail=2000 id=obs_4kXbZ0aQe7] " +
		"...\n[lines 1-9 left out]")
	f.Add(`"... [298 of 300 items left out id=obs_BrQOO5w4Tf] ..."`)
	f.Fuzz(func(t *testing.T, text string) {
		var whole strings.Builder
		for _, p := range splitGaps(text) {
			whole.WriteString(p.Text)
		}
		if whole.String() != text {
			t.Errorf("the parts join to %q, want %q", whole.String(), text)
		}
	})
}
