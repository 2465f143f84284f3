package rerank

import (
	"encoding/json"
	"errors"
	"math"
)

// Errors of unusable responses.
var (
	errNoJSON  = errors.New("the response is not JSON")
	errNoList  = errors.New("the response has no list of scores")
	errNoScore = errors.New("the response has no score for any document")
	errTooMany = errors.New("the response has more scores than there are documents")
	errNoType  = errors.New("the response has an item that is not a score")
)

// listNames are the members of a response that may hold the scores.
var listNames = [...]string{"scores", "results", "result", "output", "data"}

// readScores returns the scores in a response for n documents, NaN for documents that it omits or
// that have null.
//
// A score is a JSON number. The list of scores is the whole response, or a member with one of the
// listNames, or a member of such a member. It may be the only item of another list, because a
// request can have several queries, with a list for each.
func readScores(answer []byte, n int) ([]float64, error) {
	var value any
	if err := json.Unmarshal(answer, &value); err != nil {
		return nil, errNoJSON
	}
	list := findScores(value, 2, 1)
	if list == nil {
		return nil, errNoList
	}
	scores := make([]float64, n)
	for i := range scores {
		scores[i] = math.NaN()
	}
	if err := setScores(scores, list); err != nil {
		return nil, err
	}
	for _, score := range scores {
		if !math.IsNaN(score) {
			return scores, nil
		}
	}
	return nil, errNoScore
}

// findScores returns the list of scores in value, or nil. The list may be inside at most named
// members and nested lists.
func findScores(value any, named, nested int) []any {
	switch value := value.(type) {
	case []any:
		if len(value) == 1 && nested > 0 {
			if list := findScores(value[0], named, nested-1); list != nil {
				return list
			}
		}
		return value
	case map[string]any:
		if _, ok := scoreOf(value); ok || named == 0 {
			return nil
		}
		for _, name := range listNames {
			if list := findScores(value[name], named-1, nested); list != nil {
				return list
			}
		}
	}
	return nil
}

// setScores sets the scores from a list: by position, or by the index of each item.
func setScores(scores []float64, list []any) error {
	indexed := false
	if len(list) > 0 {
		_, indexed = list[0].(map[string]any)
	}
	if !indexed && len(list) > len(scores) {
		return errTooMany
	}
	for i, item := range list {
		if !indexed {
			if score, ok := number(item); ok {
				scores[i] = score
				continue
			}
			return errNoType
		}
		object, _ := item.(map[string]any)
		at, ok := object["index"].(float64)
		score, scored := scoreOf(object)
		if !ok || !scored || at != math.Trunc(at) {
			return errNoType
		}
		// The first of several scores counts.
		if at >= 0 && at < float64(len(scores)) && math.IsNaN(scores[int(at)]) {
			scores[int(at)] = score
		}
	}
	return nil
}

// scoreOf returns the score of an item with an index.
func scoreOf(item map[string]any) (score float64, ok bool) {
	for _, name := range [...]string{"score", "relevance_score"} {
		if value, has := item[name]; has {
			if score, ok = number(value); !ok || !math.IsNaN(score) {
				return score, ok
			}
		}
	}
	return score, ok
}

// number returns a score, NaN for null. json.Unmarshal rejects numbers too large for a float64.
func number(value any) (score float64, ok bool) {
	if value == nil {
		return math.NaN(), true
	}
	score, ok = value.(float64)
	return score, ok
}
