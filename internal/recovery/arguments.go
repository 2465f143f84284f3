package recovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxID          = 200  // characters
	maxGoal        = 1000 // characters
	maxPattern     = 1000 // characters
	maxContext     = 20
	defaultContext = 2
	maxMatches     = 200
	defaultMatches = 20
)

// arguments are the arguments of a call.
type arguments struct {
	id       string
	maxChars int // 0 if not given

	// Range.
	start, end         int // characters; end is -1 if not given
	firstLine, endLine int // from 1, both included; 0 if not given
	lines              int // lines of the original, if a line range is given

	goal  string // or ""
	ratio float64

	query string // or ""

	pattern *regexp.Regexp // or nil
	steps   int            // instructions of the compiled pattern
	context int
	matches int
}

// names are the arguments, in the order of error messages.
var names = []string{
	"id", "goal", "ratio", "max_chars", "query", "pattern", "context_lines", "max_matches",
	"start_line", "end_line", "start_char", "end_char",
}

// parse reads the arguments of a call. Its errors tell the model how to correct them. null and empty
// strings count as not given, because models like to fill in everything.
func parse(data []byte) (a arguments, err error) {
	given := make(map[string]json.RawMessage)
	if len(data) > 0 {
		if err := json.Unmarshal(data, &given); err != nil {
			return a, errors.New("the arguments must be a JSON object such as {\"id\":\"obs_…\"}")
		}
	}
	for name, value := range given {
		if string(value) == "null" {
			delete(given, name)
		}
	}
	if a.id, err = text(given, "id", math.MaxInt); err != nil {
		return a, err
	}
	a.id = strings.TrimSpace(a.id)
	a.id = strings.TrimPrefix(strings.TrimPrefix(a.id, "proxy://observation/"), "id=")
	if a.id == "" {
		return a, errors.New("id is missing: give the one in the marker, which begins with obs_")
	}
	if err := a.numbers(given); err != nil {
		return a, err
	}
	if a.goal, err = text(given, "goal", maxGoal); err != nil {
		return a, err
	}
	a.goal = strings.TrimSpace(a.goal)
	if a.query, err = text(given, "query", maxQuery); err != nil {
		return a, err
	}
	a.query = strings.TrimSpace(a.query)
	pattern, err := text(given, "pattern", maxPattern)
	if err != nil {
		return a, err
	}
	if pattern != "" {
		if err := a.compile(pattern); err != nil {
			return a, err
		}
	}
	if err := a.contradiction(); err != nil {
		return a, err
	}
	// Checked last, because the errors above are more helpful.
	for _, name := range names {
		delete(given, name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		return a, fmt.Errorf("unknown argument %s; expected %s", shortly(name), strings.Join(names, ", "))
	}
	return a, nil
}

// numbers reads the numeric arguments.
func (a *arguments) numbers(given map[string]json.RawMessage) (err error) {
	for _, n := range []struct {
		into                 *int
		name                 string
		otherwise, low, high int
	}{
		{&a.maxChars, "max_chars", 0, 1, math.MaxInt},
		{&a.start, "start_char", 0, 0, math.MaxInt},
		{&a.end, "end_char", -1, 0, math.MaxInt},
		{&a.firstLine, "start_line", 0, 1, math.MaxInt},
		{&a.endLine, "end_line", 0, 1, math.MaxInt},
		{&a.context, "context_lines", defaultContext, 0, maxContext},
		{&a.matches, "max_matches", defaultMatches, 1, maxMatches},
	} {
		if *n.into, err = number(given, n.name, n.otherwise, n.low, n.high); err != nil {
			return err
		}
	}
	switch {
	case a.end >= 0 && a.end <= a.start:
		return fmt.Errorf("end_char (%d) must be greater than start_char (%d)", a.end, a.start)
	case a.endLine > 0 && a.endLine < a.firstLine:
		return fmt.Errorf("end_line (%d) must not be less than start_line (%d)", a.endLine, a.firstLine)
	}
	if value, ok := given["ratio"]; ok {
		if json.Unmarshal(value, &a.ratio) != nil || !(0 <= a.ratio && a.ratio <= 1) {
			return fmt.Errorf("ratio must be a number from 0 to 1, not %s", shortly(string(value)))
		}
	}
	return nil
}

// contradiction returns an error for two arguments that cannot be combined.
func (a *arguments) contradiction() error {
	chars, lines := a.start > 0 || a.end >= 0, a.firstLine > 0 || a.endLine > 0
	for _, pair := range []struct {
		both bool
		a, b string
	}{
		{a.goal != "" && a.query != "", "goal", "query"},
		{a.goal != "" && a.pattern != nil, "goal", "pattern"},
		{a.query != "" && a.pattern != nil, "query", "pattern"},
		{a.query != "" && lines, "query", "start_line or end_line"},
		{a.query != "" && chars, "query", "start_char or end_char"},
		{lines && chars, "start_line or end_line", "start_char or end_char"},
	} {
		if pair.both {
			return fmt.Errorf("%s and %s cannot be combined: leave one of them out", pair.a, pair.b)
		}
	}
	return nil
}

func (a *arguments) compile(pattern string) (err error) {
	if a.pattern, err = regexp.Compile(pattern); err != nil {
		if bad, ok := errors.AsType[*syntax.Error](err); ok {
			return fmt.Errorf("pattern is not a regular expression in RE2 syntax: %s: %s", bad.Code, shortly(bad.Expr))
		}
		return errors.New("pattern is not a regular expression in RE2 syntax")
	}
	a.steps, err = steps(pattern)
	return err
}

// steps returns the number of instructions of a pattern, which bounds the time per byte.
func steps(pattern string) (int, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	return len(program.Inst), nil
}

// text reads a string of at most so many characters.
func text(given map[string]json.RawMessage, name string, most int) (s string, err error) {
	value, ok := given[name]
	if !ok {
		return "", nil
	}
	if json.Unmarshal(value, &s) != nil {
		return "", fmt.Errorf("%s must be a string, not %s", name, shortly(string(value)))
	}
	if n := utf8.RuneCountInString(s); n > most {
		return "", fmt.Errorf("%s has %d characters, more than %d", name, n, most)
	}
	return s, nil
}

// number reads a whole number of at least low. Larger numbers than high count as high.
func number(given map[string]json.RawMessage, name string, otherwise, low, high int) (int, error) {
	value, ok := given[name]
	if !ok {
		return otherwise, nil
	}
	switch literal := string(value); {
	case literal[0] == '"':
		return 0, fmt.Errorf("%s must be a number, not the string %s: leave out the quotes", name, shortly(literal))
	case literal[0] != '-' && (literal[0] < '0' || literal[0] > '9'):
		return 0, fmt.Errorf("%s must be a number, not %s", name, shortly(literal))
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		// 100.0 and 1e2 are whole numbers too.
		f, _ := strconv.ParseFloat(string(value), 64)
		if f != math.Trunc(f) {
			return 0, fmt.Errorf("%s must be a whole number, not %s", name, shortly(string(value)))
		}
		n = int64(max(min(f, 1<<53), -1<<53))
	}
	if n < int64(low) {
		return 0, fmt.Errorf("%s must be at least %d, not %s", name, low, shortly(string(value)))
	}
	return int(min(n, int64(high))), nil
}

// shortly quotes a text, or its beginning.
func shortly(s string) string {
	const enough = 80
	n := 0
	for i := range s {
		if n++; n > enough {
			s = s[:i] + "…"
			break
		}
	}
	if strings.HasPrefix(s, `"`) {
		return s
	}
	return strconv.Quote(s)
}
