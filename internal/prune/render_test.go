package prune

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRender(t *testing.T) { // P23 to P28
	for _, test := range []struct {
		name, text         string
		blocks             []block
		annotated, markers bool
		want               string // with <1>, <2> for the markers
	}{
		{"a block in the middle", "a\nb\nc\nd\n", []block{{1, 3}}, false, true, "a\n<1>\nd\n"},
		{"a block at the beginning", "a\nb\nc\n", []block{{0, 2}}, false, true, "<1>\nc\n"},
		{"a block at the end", "a\nb\nc\n", []block{{1, 3}}, false, true, "a\n<1>\n"},
		{"a block at the end, without a line feed", "a\nb\nc", []block{{1, 3}}, false, true, "a\n<1>"},
		{"a block that ends with a blank line", "a\n\nb\n", []block{{1, 2}}, false, true, "a\n<1>\nb\n"},
		{"everything", "a\nb", []block{{0, 2}}, false, true, "<1>"},
		{"everything, without markers", "a\nb", []block{{0, 2}}, false, false, ""},
		{"two blocks", "a\nb\nc\nd\ne\n", []block{{0, 1}, {2, 4}}, false, true, "<1>\nb\n<2>\ne\n"},
		{"without markers", "a\nb\nc\nd\ne\n", []block{{0, 1}, {2, 4}}, false, false, "b\ne\n"},
		{"with numbers", "a\nb\nc\nd\ne\n", []block{{1, 3}}, true, true, "1│ a\n<1>\n4│ d\n5│ e\n"},
		{"with numbers and without markers", "a\nb\nc\n", []block{{1, 2}}, true, false, "1│ a\n3│ c\n"},
		{"with numbers and nothing removed", "a\n\nc", nil, true, true, "1│ a\n2│ \n3│ c"},
		{"numbers count LF, CRLF and CR alone", "a\u2028b\r\nc\u0085d\re\ff\ng", nil, true, true,
			"1│ a\u2028b\r\n2│ c\u0085d\r3│ e\ff\n4│ g"},
		{"nothing removed", "a\r\n\r\nc\r", nil, false, true, "a\r\n\r\nc\r"},
		{"carriage returns with line feeds", "a\r\nb\r\nc\r\n", []block{{1, 2}}, false, true, "a\r\n<1>\nc\r\n"},
		{"carriage returns alone", "a\rb\rc\r", []block{{1, 2}}, false, true, "a\r<1>\nc\r"},
		{"kept lines are unchanged to the byte", " \xff\u2028\t\nb\n\tc \f\n", []block{{1, 2}}, false, true,
			" \xff\u2028\t\n<1>\n\tc \f\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := request(Docs, test.text, "")
			r.Options.AnnotateLines, r.Options.IncludeMarkers = test.annotated, test.markers
			l := split(test.text)
			got := render(r, l, outlineOf(l, Docs, never), l.tokens(), test.blocks)
			want := test.want
			for i, a := range got.Annotations {
				want = strings.ReplaceAll(want, []string{"<1>", "<2>"}[i], a.Marker)
			}
			if got.PrunedText != want || len(got.Annotations) != len(test.blocks) {
				t.Errorf("got %q, want %q", got.PrunedText, want)
			}
		})
	}
}

func TestReasons(t *testing.T) { // P21, R4
	for _, test := range []struct {
		name   string
		source Source
		text   string
		want   string
	}{
		{"lines of several kinds", Code, "x = 1\n# a\ny = 2\n", "hors focus"},
		{"comments", Code, "# a\n# b\n# c\n\n", "commentaires"},
		{"imports", Code, "import a\nimport b\n\nimport c\n", "imports"},
		{"blank lines", Code, "\n\n \n", "lignes vides"},
		{"records", Logs, "INFO a\nINFO b\n", "routine"},
		{"prose", Docs, "a\n\nb\n", "hors focus"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := split("first\n" + test.text)
			o := outlineOf(l, test.source, never)
			if got := o.reasonOf(block{1, l.len()}, test.source); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestMarkerMatchesAnnotation(t *testing.T) { // P22
	got := annotate("prn_x", block{9, 12}, "hors focus")
	want := Annotation{"pruned_block", 10, 12, 3, "hors focus",
		"⟦PRUNÉ: prune_id=prn_x lignes 10-12 (3) raison=hors focus⟧"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestResultsHaveAllTheirMembers(t *testing.T) { // P18, P20
	var got map[string]json.RawMessage
	text, err := json.Marshal(Prune(t.Context(), request(Docs, "", "")))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if string(got["annotations"]) != "[]" || string(got["warnings"]) != "[]" || string(got["pruned_text"]) != `""` ||
		len(got["prune_id"]) != len(`"prn_0123456789"`) {
		t.Errorf("%s", text)
	}
	for _, member := range []string{"original_lines", "kept_lines", "pruned_lines", "pruned_ratio", "tokens_est_before",
		"tokens_est_after", "tokens_saved_est", "cost_estimated_usd", "elapsed_ms", "used_fallback"} {
		if !strings.Contains(string(got["stats"]), `"`+member+`":`) {
			t.Errorf("no %s in %s", member, got["stats"])
		}
	}
}
