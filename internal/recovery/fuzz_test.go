package recovery

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// parseArguments reads the same values as encoding/json and math/big, or returns an error of
// limited length.
func FuzzArguments(f *testing.F) {
	for _, arguments := range []string{
		`{"id":"obs_1"}`, `{"id":" proxy://observation/obs_1 ","start_char":1e2,"end_char":200.0}`,
		`{"id":"id=x","pattern":"a+(b|c)*","context_lines":99,"max_matches":0}`, `{"id":7}`, `{"id":"x","start_char":-1}`,
		`{"id":"x","start_char":1.5}`, `{"id":"x","start_char":"5"}`, `{"id":"x","end_char":1e400,"pattern":null}`,
		`{"id":"x","pattern":"("}`, `{"id":"x","pattern":"a+"}`, `{"id":"x","other":1}`, `[]`, ``, `null`,
		`{"id":"x","start_char":9223372036854775808}`, `{"ID":"x"}`,
		`{"id":"x","goal":"a b","ratio":0.5,"max_chars":100,"start_line":2,"end_line":3e0}`,
		`{"id":"x","query":".a","pattern":""}`, `{"id":"x","goal":"a","query":"b"}`,
		`{"id":"x","start_line":1,"start_char":1}`, `{"id":"x","ratio":2}`,
	} {
		f.Add([]byte(arguments))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseArguments(data)
		if err != nil {
			if text := err.Error(); text == "" || len(text) > 1000 {
				t.Fatalf("%q: %q", data, text)
			}
			return
		}
		var given map[string]json.RawMessage
		if err := json.Unmarshal(data, &given); err != nil {
			t.Fatalf("%q was read as %+v", data, a)
		}
		var id, pattern string
		_ = json.Unmarshal(given["pattern"], &pattern)
		if json.Unmarshal(given["id"], &id) != nil || a.id == "" || !strings.Contains(id, a.id) {
			t.Fatalf("%q: id %q", data, a.id)
		}
		if (a.pattern != nil) != (pattern != "") || a.pattern != nil && (a.pattern.String() != pattern ||
			utf8.RuneCountInString(pattern) > maxPattern || a.steps <= 0) {
			t.Fatalf("%q has the pattern %v of %d steps", data, a.pattern, a.steps)
		}
		for name, number := range map[string]struct{ got, otherwise, most int }{
			"max_chars": {a.maxChars, 0, 1 << 53}, "start_line": {a.firstLine, 0, 1 << 53}, "end_line": {a.endLine, 0, 1 << 53},
			"start_char": {a.start, 0, 1 << 53}, "end_char": {a.end, -1, 1 << 53}, "context_lines": {a.context, defaultContext,
				maxContext}, "max_matches": {a.matches, defaultMatches, maxMatches},
		} {
			literal, has := given[name]
			if !has || string(literal) == "null" {
				if number.got != number.otherwise {
					t.Fatalf("%q: %s is %d", data, name, number.got)
				}
				continue
			}
			want, ok := new(big.Float).SetPrec(2000).SetString(string(literal))
			if !ok || want.Sign() < 0 {
				t.Fatalf("%q: %s is %d", data, name, number.got)
			}
			if most := big.NewFloat(float64(number.most)); want.Cmp(most) >= 0 {
				if number.got < number.most {
					t.Fatalf("%q: %s is %d", data, name, number.got)
				}
			} else if n, accuracy := want.Int64(); accuracy != big.Exact && len(literal) < 20 || n != int64(number.got) &&
				accuracy == big.Exact {
				t.Fatalf("%q: %s is %d", data, name, number.got)
			}
		}
		if !(0 <= a.ratio && a.ratio <= 1) || a.goal != "" && (a.query != "" || pattern != "") || a.query != "" &&
			pattern != "" || a.endLine > 0 && a.endLine < a.firstLine {
			t.Fatalf("%q is read as %+v", data, a)
		}
		if a.end >= 0 && a.end <= a.start {
			t.Fatalf("%q: from %d to %d", data, a.start, a.end)
		}
		for name, value := range given {
			if !slices.Contains(names, name) && string(value) != "null" {
				t.Fatalf("%q has the argument %s", data, name)
			}
		}
	})
}
