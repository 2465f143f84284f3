package rerank

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// no is a document without a score.
var no = math.NaN()

// alike compares scores; one that is missing is like another.
func alike(a, b []float64) bool {
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
		{"a list for each of one query", `[[0.5,-2,1]]`, all},
		{"scores for each of one query", `{"scores":[[0.5,-2,1]]}`, all},
		{"an object for each of one query", `[{"scores":[0.5,-2,1]}]`, all},
		{"results", `{"results":[0.5,-2,1]}`, all},
		{"result", `{"result":[0.5,-2,1]}`, all},
		{"output", `{"output":[0.5,-2,1]}`, all},
		{"data", `{"data":[0.5,-2,1]}`, all},
		{"one level deeper", `{"data":{"scores":[0.5,-2,1]}}`, all},
		{"one level deeper under other names", `{"output":{"result":[0.5,-2,1]}}`, all},
		{"one level deeper for each of one query", `{"result":{"scores":[[0.5,-2,1]]}}`, all},
		{"a name that has something else in it", `{"result":"ok","data":[0.5,-2,1]}`, all},
		{"items with an index", `{"scores":[{"index":2,"score":1},{"index":0,"score":0.5},{"index":1,"score":-2}]}`, all},
		{"items in Cohere's words", `{"results":[{"index":2,"relevance_score":1,"document":{"text":"c"}},{"index":0,` +
			`"relevance_score":0.5},{"index":1,"relevance_score":-2}]}`, all},
		{"a bare list of items", `[{"index":2,"score":1},{"index":0,"score":0.5},{"index":1,"score":-2}]`, all},
		{"items one level deeper", `{"output":{"results":[{"index":0,"score":0.5},{"index":1,"score":-2},{"index":2,` +
			`"score":1}]}}`, all},
		{"items for each of one query", `[[{"index":0,"score":0.5},{"index":1,"score":-2},{"index":2,"score":1}]]`, all},
		{"an index written as a fraction of none",
			`[{"index":0.0,"score":0.5},{"index":1e0,"score":-2},{"index":2,"score":1}]`, all},
		{"the first of two lists that are named", `{"data":[9,9,9],"scores":[0.5,-2,1]}`, all},
		{"a shorter list", `{"scores":[0.5]}`, []float64{0.5, no, no}},
		{"null is no score", `{"scores":[null,-2,null]}`, []float64{no, -2, no}},
		{"fewer items", `{"results":[{"index":2,"score":1}]}`, []float64{no, no, 1}},
		{"an item that has null", `{"results":[{"index":2,"score":1},{"index":1,"score":null}]}`, []float64{no, no, 1}},
		{"an item with null and another score", `[{"index":1,"score":null,"relevance_score":3}]`, []float64{no, 3, no}},
		{"an item with something in it that has a list", `[{"index":1,"score":3,"data":[1,2,3]}]`, []float64{no, 3, no}},
		{"of an index that comes twice the first counts", `[{"index":1,"score":3},{"index":1,"score":4}]`,
			[]float64{no, 3, no}},
		{"indices that do not exist beside one that does",
			`[{"index":-1,"score":9},{"index":3,"score":8},{"index":1e300,"score":8},{"index":1,"score":3}]`,
			[]float64{no, 3, no}},
		{"scores that are all the same", `[0,0,0]`, []float64{0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read([]byte(tt.answer), 3)
			if err != nil || !alike(got, tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	t.Run("one document", func(t *testing.T) {
		for _, answer := range []string{`[0.5]`, `[[0.5]]`, `{"scores":[0.5]}`, `{"scores":[[0.5]]}`,
			`[{"index":0,"score":0.5}]`, `{"results":[{"index":0,"score":0.5}]}`} {
			if got, err := read([]byte(answer), 1); err != nil || !alike(got, []float64{0.5}) {
				t.Errorf("%s: got %v, %v", answer, got, err)
			}
		}
	})
}

func TestAnswersThatCannotBeUsed(t *testing.T) { // P71, W1, three documents
	tests := []struct {
		name, answer string
		want         error
	}{
		{"nothing", ``, errNoJSON},
		{"text", `the model is loading`, errNoJSON},
		{"a page", `<html></html>`, errNoJSON},
		{"JSON that is cut short", `{"scores":[0.5,-2`, errNoJSON},
		{"JSON with something behind it", `{"scores":[1,2,3]} x`, errNoJSON},
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
		{"an empty list for each of one query", `{"scores":[[]]}`, errNoScore},
		{"nothing but null", `{"scores":[null,null,null]}`, errNoScore},
		{"an index that does not exist", `[{"index":3,"score":1}]`, errNoScore},
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
		{"an item with nothing but an index", `[{"index":1}]`, errNoType},
		{"an index that is a text", `[{"index":"1","score":2}]`, errNoType},
		{"an index in between", `[{"index":0.5,"score":2}]`, errNoType},
		{"a score that is a text", `[{"index":1,"score":"2"}]`, errNoType},
		{"very deep", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), errNoJSON},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := read([]byte(tt.answer), 3); !errors.Is(err, tt.want) {
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
		scores, err := read(answer, n)
		// What encoding/json takes for a list of numbers is one.
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

// plainLists returns the list of scores of an answer that is, or has, just one of numbers.
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
