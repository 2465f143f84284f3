package jsonspan

import (
	"errors"
	"slices"
	"testing"
)

func TestFindExactRefusesLookAlikes(t *testing.T) {
	paths := CompilePaths("method", "params", "params.name", "params.kind", "list.*.name")
	for _, test := range []struct {
		name, text string
		want       error
	}{
		{"exact keys", `{"method":1,"params":{"name":2,"other":3}}`, nil},
		{"another case", `{"Method":1}`, ErrFolded},
		{"next to the key itself", `{"method":1,"METHOD":2}`, ErrFolded},
		{"in a nested object", `{"params":{"nAme":1}}`, ErrFolded},
		{"in a list", `{"list":[{"name":1,"NAME":2}]}`, ErrFolded},
		{"with a numeric escape", `{"\u004dethod":1}`, ErrFolded},
		{"the Kelvin sign", "{\"params\":{\"\u212aind\":1}}", ErrFolded},
		{"a null character at the end", `{"params":{"name":1,"name\u0000":2}}`, ErrFolded},
		{"several null characters and another case", `{"METHOD\u0000\u0000":1}`, ErrFolded},
		{"a null character elsewhere", `{"na\u0000me":1,"\u0000":2}`, nil},
		{"outside the paths", `{"params":{"other":{"Name":1}}}`, nil},
		{"another key", `{"methods":1,"param":2,"":3}`, nil},
		{"a repeated key", `{"method":1,"method":2}`, ErrDuplicate},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := paths.FindExact([]byte(test.text), func(int, Value) {}); !errors.Is(err, test.want) {
				t.Errorf("got %v", err)
			}
			if err := paths.Find([]byte(test.text), func(int, Value) {}); errors.Is(err, ErrFolded) {
				t.Errorf("Find: %v", err)
			}
		})
	}
}

func TestSearchReportsLookAlikes(t *testing.T) {
	paths := CompilePaths("method", "params.name", "params.kind")
	for _, test := range []struct {
		name, text string
		want       []int
	}{
		{"exact keys", `{"method":1,"params":{"name":2}}`, nil},
		{"another case", `{"METHOD":1,"params":{"Kind":1,"name":2}}`, []int{0, 2}},
		{"a key that paths lead through", `{"Params":{"Name":1}}`, []int{-1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var folded []int
			err := paths.Search([]byte(test.text), &Search{Found: func(int, Value) {},
				Folded: func(path int) { folded = append(folded, path) }})
			if err != nil || !slices.Equal(folded, test.want) {
				t.Errorf("got %v, %v", folded, err)
			}
		})
	}
}
