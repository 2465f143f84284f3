package jsoncut

import (
	"bytes"
	"slices"
	"testing"
)

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
