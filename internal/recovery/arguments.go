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
	maxPattern     = 1000 // characters
	maxContext     = 20
	defaultContext = 2
	maxMatches     = 200
	defaultMatches = 20
)

// arguments are those of a call.
type arguments struct {
	id         string
	start, end int // characters; end is -1 unless given

	pattern *regexp.Regexp // or nil
	steps   int            // of the program that pattern is
	context int
	matches int
}

// names are those of the arguments, in the order in which people are told of them.
var names = []string{"id", "start_char", "end_char", "pattern", "context_lines", "max_matches"}

// parse reads the arguments of a call. Its errors are for the model that made them,
// which does better on the second try if it is told what was wrong with the first.
// What is null was not given, and neither was an empty pattern: models like to fill
// in all there is.
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
	if a.id, err = text(given, "id"); err != nil {
		return a, err
	}
	a.id = strings.TrimSpace(a.id)
	a.id = strings.TrimPrefix(strings.TrimPrefix(a.id, "proxy://observation/"), "id=")
	if a.id == "" {
		return a, errors.New("id is missing: give the one in the marker, which begins with obs_")
	}
	if a.start, err = number(given, "start_char", 0, 0, math.MaxInt); err != nil {
		return a, err
	}
	if a.end, err = number(given, "end_char", -1, 0, math.MaxInt); err != nil {
		return a, err
	}
	if a.end >= 0 && a.end <= a.start {
		return a, fmt.Errorf("end_char (%d) must be greater than start_char (%d)", a.end, a.start)
	}
	if a.context, err = number(given, "context_lines", defaultContext, 0, maxContext); err != nil {
		return a, err
	}
	if a.matches, err = number(given, "max_matches", defaultMatches, 1, maxMatches); err != nil {
		return a, err
	}
	pattern, err := text(given, "pattern")
	if err != nil {
		return a, err
	}
	if pattern != "" {
		if err := a.compile(pattern); err != nil {
			return a, err
		}
	}
	// At last, for the mistakes above tell more.
	for _, name := range names {
		delete(given, name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		return a, fmt.Errorf("there is no argument %s; there are %s", shortly(name), strings.Join(names, ", "))
	}
	return a, nil
}

func (a *arguments) compile(pattern string) (err error) {
	if n := utf8.RuneCountInString(pattern); n > maxPattern {
		return fmt.Errorf("pattern has %d characters, more than %d", n, maxPattern)
	}
	if a.pattern, err = regexp.Compile(pattern); err != nil {
		if bad, ok := errors.AsType[*syntax.Error](err); ok {
			return fmt.Errorf("pattern is not a regular expression in RE2 syntax: %s: %s", bad.Code, shortly(bad.Expr))
		}
		return errors.New("pattern is not a regular expression in RE2 syntax")
	}
	a.steps, err = steps(pattern)
	return err
}

// steps returns how long the program is that a pattern becomes: to match it takes at
// most so much time for each byte.
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

func text(given map[string]json.RawMessage, name string) (s string, err error) {
	value, ok := given[name]
	if !ok {
		return "", nil
	}
	if json.Unmarshal(value, &s) != nil {
		return "", fmt.Errorf("%s must be a string, not %s", name, shortly(string(value)))
	}
	return s, nil
}

// number reads a whole number of at least low. What is above high counts as that.
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
		// 100.0 and 1e2 are whole numbers, too.
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

// shortly quotes what was given, or its beginning.
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
