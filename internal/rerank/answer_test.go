package rerank

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// nan is a missing score.
var nan = math.NaN()

// equalScores compares scores. Missing scores are equal.
func equalScores(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
			return false
		}
	}
	return true
}

func TestAnswers(t *testing.T) { // W1, three documents
	all := []float64{0.5, -2, 1}
	tests := []struct {
		name, answer string
		want         []float64
	}{
		{"scores", `{"scores":[0.5,-2,1]}`, all},
		{"scores among other members", `{"request_id":"x","scores":[0.5,-2,1],"input_tokens":7,` +
			`"inference_status":{"status":"ok"}}`, all},
		{"a bare list", ` [0.5, -2, 1e0] `, all},
		{"a list of scores for a single query", `[[0.5,-2,1]]`, all},
		{"a member with a list for a single query", `{"scores":[[0.5,-2,1]]}`, all},
		{"an object for a single query", `[{"scores":[0.5,-2,1]}]`, all},
		{"results", `{"results":[0.5,-2,1]}`, all},
		{"result", `{"result":[0.5,-2,1]}`, all},
		{"output", `{"output":[0.5,-2,1]}`, all},
		{"data", `{"data":[0.5,-2,1]}`, all},
		{"one level deeper", `{"data":{"scores":[0.5,-2,1]}}`, all},
		{"one level deeper under other names", `{"output":{"result":[0.5,-2,1]}}`, all},
		{"one level deeper, with a list for a single query", `{"result":{"scores":[[0.5,-2,1]]}}`, all},
		{"a known name without a list", `{"result":"ok","data":[0.5,-2,1]}`, all},
		{"items with an index", `{"scores":[{"index":2,"score":1},{"index":0,"score":0.5},{"index":1,"score":-2}]}`, all},
		{"items in Cohere's format", `{"results":[{"index":2,"relevance_score":1,"document":{"text":"c"}},{"index":0,` +
			`"relevance_score":0.5},{"index":1,"relevance_score":-2}]}`, all},
		{"a bare list of items", `[{"index":2,"score":1},{"index":0,"score":0.5},{"index":1,"score":-2}]`, all},
		{"items one level deeper", `{"output":{"results":[{"index":0,"score":0.5},{"index":1,"score":-2},{"index":2,` +
			`"score":1}]}}`, all},
		{"items for a single query", `[[{"index":0,"score":0.5},{"index":1,"score":-2},{"index":2,"score":1}]]`, all},
		{"an index in another notation",
			`[{"index":0.0,"score":0.5},{"index":1e0,"score":-2},{"index":2,"score":1}]`, all},
		{"the first of two known names", `{"data":[9,9,9],"scores":[0.5,-2,1]}`, all},
		{"a shorter list", `{"scores":[0.5]}`, []float64{0.5, nan, nan}},
		{"null is not a score", `{"scores":[null,-2,null]}`, []float64{nan, -2, nan}},
		{"fewer items", `{"results":[{"index":2,"score":1}]}`, []float64{nan, nan, 1}},
		{"an item with null", `{"results":[{"index":2,"score":1},{"index":1,"score":null}]}`, []float64{nan, nan, 1}},
		{"an item with null and another score", `[{"index":1,"score":null,"relevance_score":3}]`, []float64{nan, 3, nan}},
		{"an item with a member that is a list", `[{"index":1,"score":3,"data":[1,2,3]}]`, []float64{nan, 3, nan}},
		{"the first item of a repeated index counts", `[{"index":1,"score":3},{"index":1,"score":4}]`,
			[]float64{nan, 3, nan}},
		{"unknown indices and a known one",
			`[{"index":-1,"score":9},{"index":3,"score":8},{"index":1e300,"score":8},{"index":1,"score":3}]`,
			[]float64{nan, 3, nan}},
		{"equal scores", `[0,0,0]`, []float64{0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readScores([]byte(tt.answer), 3)
			if err != nil || !equalScores(got, tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	t.Run("one document", func(t *testing.T) {
		for _, answer := range []string{`[0.5]`, `[[0.5]]`, `{"scores":[0.5]}`, `{"scores":[[0.5]]}`,
			`[{"index":0,"score":0.5}]`, `{"results":[{"index":0,"score":0.5}]}`} {
			if got, err := readScores([]byte(answer), 1); err != nil || !equalScores(got, []float64{0.5}) {
				t.Errorf("%s: got %v, %v", answer, got, err)
			}
		}
	})
}

func TestUnusableAnswers(t *testing.T) { // P71, W1, three documents
	tests := []struct {
		name, answer string
		want         error
	}{
		{"an empty body", ``, errNoJSON},
		{"text", `the model is loading`, errNoJSON},
		{"a page", `<html></html>`, errNoJSON},
		{"truncated JSON", `{"scores":[0.5,-2`, errNoJSON},
		{"text after the JSON", `{"scores":[1,2,3]} x`, errNoJSON},
		{"NaN", `{"scores":[NaN,1,2]}`, errNoJSON},
		{"an infinite number", `{"scores":[Infinity,1,2]}`, errNoJSON},
		{"a number that is too large", `{"scores":[1e999,1,2]}`, errNoJSON},
		{"null", `null`, errNoList},
		{"a number", `0.5`, errNoList},
		{"an object without a list", `{"detail":"no"}`, errNoList},
		{"an object with a text", `{"scores":"0.1,0.2,0.3"}`, errNoList},
		{"a list under another name", `{"ranking":[1,2,3]}`, errNoList},
		{"a list two levels deeper", `{"data":{"output":{"scores":[1,2,3]}}}`, errNoList},
		{"an empty list", `{"scores":[]}`, errNoScore},
		{"an empty list for a single query", `{"scores":[[]]}`, errNoScore},
		{"only null", `{"scores":[null,null,null]}`, errNoScore},
		{"an unknown index", `[{"index":3,"score":1}]`, errNoScore},
		{"items without a score", `[{"index":0,"score":null}]`, errNoScore},
		{"too many scores", `{"scores":[1,2,3,4]}`, errTooMany},
		{"texts", `{"scores":["0.1","0.2","0.3"]}`, errNoType},
		{"a text among numbers", `{"scores":[1,"2",3]}`, errNoType},
		{"truth values", `{"scores":[true,false,true]}`, errNoType},
		{"a list for each document", `[[1],[2],[3]]`, errNoType},
		{"lists in lists in a list", `[[[1,2,3]]]`, errNoType},
		{"an item among numbers", `[1,{"index":1,"score":2},3]`, errNoType},
		{"a number among items", `[{"index":1,"score":2},3]`, errNoType},
		{"items without an index", `[{"score":1},{"score":2},{"score":3}]`, errNoType},
		{"an item with only an index", `[{"index":1}]`, errNoType},
		{"an index that is a text", `[{"index":"1","score":2}]`, errNoType},
		{"a fractional index", `[{"index":0.5,"score":2}]`, errNoType},
		{"a score that is a text", `[{"index":1,"score":"2"}]`, errNoType},
		{"very deep", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), errNoJSON},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := readScores([]byte(tt.answer), 3); !errors.Is(err, tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

func FuzzAnswers(f *testing.F) { // W1
	for _, answer := range []string{
		`{"scores":[0.5,-2,1]}`, `[[0.5,null]]`,
		`{"data":{"results":[{"index":2,"score":1},{"index":9,"relevance_score":null}]}}`,
		`0`, `[1,2,3,4]`, `{"scores":[[[]]]}`, `[1e308]`, `[{"index":-1e300,"score":1}]`, `{"scores":[]}`, `[NaN]`,
	} {
		f.Add([]byte(answer), 3)
	}
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		n &= 0xff
		scores, err := readScores(answer, n)
		// A list of numbers for encoding/json is a list of scores.
		for _, list := range plainLists(answer) {
			if known := slices.ContainsFunc(list, func(score *float64) bool { return score != nil }); (err == nil) != (known &&
				len(list) <= n) {
				t.Fatalf("%q for %d documents: %v", answer, n, err)
			}
			for i, score := range list {
				if err == nil && (score == nil) != math.IsNaN(scores[i]) || err == nil && score != nil && scores[i] != *score {
					t.Fatalf("%q has the scores %v", answer, scores)
				}
			}
		}
		if err != nil {
			return
		}
		known := 0
		for _, score := range scores {
			if math.IsInf(score, 0) {
				t.Fatalf("an infinite score of %q", answer)
			}
			if !math.IsNaN(score) {
				known++
			}
		}
		if len(scores) != n || known == 0 {
			t.Fatalf("%d scores for %d documents of %q", known, n, answer)
		}
	})
}

// plainLists returns the list of numbers that an answer is, or that is its only member.
func plainLists(answer []byte) (lists [][]*float64) {
	var list []*float64
	if json.Unmarshal(answer, &list) == nil && len(list) != 0 {
		lists = append(lists, list)
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(answer, &object) == nil && len(object) == 1 && json.Unmarshal(object["scores"], &list) == nil &&
		len(list) != 0 {
		lists = append(lists, list)
	}
	return lists
}
