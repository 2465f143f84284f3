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

// parseArguments reads the arguments of a call. Its errors tell the model how to correct them. null
// and empty strings count as not given, because models like to fill in everything.
func parseArguments(data []byte) (a arguments, err error) {
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
	if a.id, err = stringArgument(given, "id", math.MaxInt); err != nil {
		return a, err
	}
	a.id = strings.TrimSpace(a.id)
	a.id = strings.TrimPrefix(strings.TrimPrefix(a.id, "proxy://observation/"), "id=")
	if a.id == "" {
		return a, errors.New("id is missing: give the one in the marker, which begins with obs_")
	}
	if err := a.readNumbers(given); err != nil {
		return a, err
	}
	if a.goal, err = stringArgument(given, "goal", maxGoal); err != nil {
		return a, err
	}
	a.goal = strings.TrimSpace(a.goal)
	if a.query, err = stringArgument(given, "query", maxQuery); err != nil {
		return a, err
	}
	a.query = strings.TrimSpace(a.query)
	pattern, err := stringArgument(given, "pattern", maxPattern)
	if err != nil {
		return a, err
	}
	if pattern != "" {
		if err := a.compile(pattern); err != nil {
			return a, err
		}
	}
	if err := a.checkCombinations(); err != nil {
		return a, err
	}
	// Checked last, because the errors above are more helpful.
	for _, name := range names {
		delete(given, name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		return a, fmt.Errorf("unknown argument %s; expected %s", shortQuote(name), strings.Join(names, ", "))
	}
	return a, nil
}

// readNumbers reads the numeric arguments.
func (a *arguments) readNumbers(given map[string]json.RawMessage) (err error) {
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
		if *n.into, err = numberArgument(given, n.name, n.otherwise, n.low, n.high); err != nil {
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
			return fmt.Errorf("ratio must be a number from 0 to 1, not %s", shortQuote(string(value)))
		}
	}
	return nil
}

// checkCombinations returns an error for two arguments that cannot be combined.
func (a *arguments) checkCombinations() error {
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
			return fmt.Errorf("pattern is not a regular expression in RE2 syntax: %s: %s", bad.Code, shortQuote(bad.Expr))
		}
		return errors.New("pattern is not a regular expression in RE2 syntax")
	}
	a.steps, err = countInstructions(pattern)
	return err
}

// countInstructions returns the number of instructions of a pattern, which bounds the time per
// byte.
func countInstructions(pattern string) (int, error) {
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

// stringArgument reads a string of at most limit characters.
func stringArgument(given map[string]json.RawMessage, name string, limit int) (s string, err error) {
	value, ok := given[name]
	if !ok {
		return "", nil
	}
	if json.Unmarshal(value, &s) != nil {
		return "", fmt.Errorf("%s must be a string, not %s", name, shortQuote(string(value)))
	}
	if n := utf8.RuneCountInString(s); n > limit {
		return "", fmt.Errorf("%s has %d characters, more than %d", name, n, limit)
	}
	return s, nil
}

// numberArgument reads a whole number of at least low. Numbers above high count as high.
func numberArgument(given map[string]json.RawMessage, name string, otherwise, low, high int) (int, error) {
	value, ok := given[name]
	if !ok {
		return otherwise, nil
	}
	switch literal := string(value); {
	case literal[0] == '"':
		return 0, fmt.Errorf("%s must be a number, not the string %s: leave out the quotes", name, shortQuote(literal))
	case literal[0] != '-' && (literal[0] < '0' || literal[0] > '9'):
		return 0, fmt.Errorf("%s must be a number, not %s", name, shortQuote(literal))
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		// 100.0 and 1e2 are whole numbers too.
		f, _ := strconv.ParseFloat(string(value), 64)
		if f != math.Trunc(f) {
			return 0, fmt.Errorf("%s must be a whole number, not %s", name, shortQuote(string(value)))
		}
		n = int64(max(min(f, 1<<53), -1<<53))
	}
	if n < int64(low) {
		return 0, fmt.Errorf("%s must be at least %d, not %s", name, low, shortQuote(string(value)))
	}
	return int(min(n, int64(high))), nil
}

// shortQuote quotes a text, or its beginning if it is long.
func shortQuote(s string) string {
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
