package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/itchyny/gojq"
)

// Queries come from a model, which may act on a prompt injection, and run inside the gateway.
// The interpreter checks its context between two steps, but a single step can take any
// amount of memory or time: "a"*1e9, [range(1e9)], or a comparison of two values that share
// their parts 2^60 times, such as those of reduce range(60) as $_ (1; [., .]). So each query
// is checked and rewritten before it runs:
//
//   - It can use only the functions of jqFunctions. It cannot define functions or assign.
//     The remaining steps take roughly linear time in the size of their values.
//   - Each expression that makes or collects values is piped to a function of this package.
//     That function subtracts the size of the value from the allowance, and ends the query
//     when the allowance is used up. Shared parts count as often as they occur. Steps whose
//     output can be much larger than their input (split, fromjson) are checked before they
//     run, and text is counted before it is escaped. So the input and output of a step are
//     never larger than a small multiple of the allowance.
//   - The few functions that take quadratic time accept only a small second operand.

// allowance is the total size in bytes of all values that a query may make.
const allowance = 128 << 20

// Approximate sizes in bytes of values in memory.
const (
	sizeOfValue  = 16
	sizeOfString = 16
	sizeOfObject = 300 // with a few members
	sizeOfMember = 40
	sizeOfPiece  = 48 // an item of an array, while split makes it
)

// maxOperand is the approximate limit, in characters or items, of an operand of operations
// whose time or memory grows with the size of both operands.
const maxOperand = 64

// maxDigits is the maximum length of a number in characters. Calculating with millions of
// digits takes minutes.
const maxDigits = 1000

// A jqFunction says how a function of jq is rewritten.
type jqFunction int

const (
	makesValue     jqFunction = iota // makes a value, whose size is counted
	passesParts                      // returns parts of its input, and is allowed in a path
	collectsValues                   // makes a value from all values of its argument
	comparesParts                    // makes a value, and reads its whole argument for each part of its input
	makesText                        // makes a string, in which escapes can be six times as long
	readsPart                        // getpath, nth
	deletesPaths                     // del
	reimplemented                    // replaced by a function of this package
)

// jqFunctions are the functions that a query may use, by name and number of arguments.
var jqFunctions = func() map[string]jqFunction {
	all := make(map[string]jqFunction)
	for kind, names := range map[jqFunction]string{
		makesValue: `abs/0 add/0 all/0 all/1 all/2 any/0 any/1 any/2 ascii_downcase/0 ascii_upcase/0 ceil/0 endswith/1
			flatten/0 flatten/1 floor/0 from_entries/0 fromdate/0 has/1 in/1 IN/1 IN/2 isempty/1 keys/0
			length/0 ltrimstr/1 max/0 min/0 not/0 path/1 paths/0 paths/1 range/1 range/2 range/3 reverse/0 round/0
			rtrimstr/1 sort/0 startswith/1 to_entries/0 toboolean/0 todate/0 trim/0 type/0 unique/0 utf8bytelength/0`,
		passesParts: `arrays/0 booleans/0 empty/0 error/0 error/1 first/0 first/1 iterables/0 last/0 last/1
			limit/2 nth/2 nulls/0 numbers/0 objects/0 recurse/0 scalars/0 select/1 skip/2 strings/0 values/0`,
		collectsValues: `add/1 group_by/1 map/1 map_values/1 max_by/1 min_by/1 sort_by/1 unique_by/1 with_entries/1`,
		comparesParts:  `contains/1 join/1`,
		makesText:      `tojson/0 tostring/0`,
		readsPart:      `getpath/1 nth/1`,
		deletesPaths:   `del/1`,
		reimplemented:  `fromjson/0 split/1 test/1 test/2 tonumber/0`,
	} {
		for name := range strings.FieldsSeq(names) {
			all[name] = kind
		}
	}
	return all
}()

// Names of functions of this package in rewritten queries. Clients cannot call them.
const (
	internalPrefix = "_internal_"
	countAll       = internalPrefix + "count_all"   // subtracts a whole value from the allowance
	countOne       = internalPrefix + "count_one"   // subtracts a value without its parts, which count elsewhere
	notLarge       = internalPrefix + "not_large"   // rejects an operand larger than maxOperand
	notString      = internalPrefix + "not_string"  // rejects a string, which "*" would repeat
	smallIndex     = internalPrefix + "small_index" // rejects a large array, for which an index would search
	smallPath      = internalPrefix + "small_path"  // does so for each index of a path
	dividend       = internalPrefix + "dividend"    // rejects a string that "/" would split into too many pieces
)

// errAllowance ends a query that has used up its allowance.
var errAllowance = errors.New("the query makes too many or too large values: " +
	"select what you need first, or ask for less")

// A jq compiles a query and holds its limits while it runs.
type jq struct {
	cancel    context.CancelCauseFunc
	bytesLeft int // bytes left of the allowance
	stepsLeft int // steps left for regular expressions, see maxWork

	unknown []string // functions that are not in jqFunctions

	pattern string // last pattern of test, compiled as matcher
	matcher *regexp.Regexp
	steps   int
}

// compile checks, rewrites and compiles a query. The model that wrote it sees the errors.
func (j *jq) compile(text string) (*gojq.Code, error) {
	query, err := gojq.Parse(text)
	if err != nil {
		if bad, ok := errors.AsType[*gojq.ParseError](err); ok {
			return nil, fmt.Errorf("%w after %s", err, shortQuote(lastChars(text[:min(bad.Offset, len(text))])))
		}
		return nil, err
	}
	if err := j.rewriteQuery(query); err != nil {
		return nil, err
	}
	if len(j.unknown) > 0 {
		return nil, fmt.Errorf("functions not available here: %s; available: %s",
			strings.Join(j.unknown, ", "), strings.Join(slices.Sorted(maps.Keys(jqFunctions)), " "))
	}
	return gojq.Compile(pipeTo(query, countAll),
		gojq.WithFunction(countAll, 0, 0, j.countAll),
		gojq.WithFunction(countOne, 0, 0, j.countOne),
		gojq.WithFunction(notLarge, 0, 0, checkOperand),
		gojq.WithFunction(smallIndex, 0, 0, checkIndex),
		gojq.WithFunction(smallPath, 0, 0, func(v any, _ []any) any {
			path, _ := v.([]any)
			for _, index := range path {
				if err, failed := checkIndex(index, nil).(error); failed {
					return err
				}
			}
			return v
		}),
		gojq.WithFunction(notString, 0, 0, func(v any, _ []any) any {
			if _, ok := v.(string); ok {
				return errors.New("strings cannot be multiplied here")
			}
			return v
		}),
		gojq.WithFunction(internalPrefix+"test", 1, 2, j.test),
		gojq.WithFunction(dividend, 1, 1, func(v any, args []any) any {
			text, isText := v.(string)
			if separator, ok := args[0].(string); ok && isText && !j.canSplit(text, separator) {
				return j.stop()
			}
			return v
		}),
		gojq.WithFunction(internalPrefix+"split", 1, 1, j.split),
		gojq.WithFunction(internalPrefix+"fromjson", 0, 0, j.fromJSON),
		gojq.WithFunction(internalPrefix+"tonumber", 0, 0, toNumber),
	)
}

// lastChars returns the last 40 characters of a text.
func lastChars(text string) string {
	const limit = 40
	if chars := []rune(text); len(chars) > limit {
		return "…" + string(chars[len(chars)-limit:])
	}
	return text
}

// funcCall returns a query that calls a function.
func funcCall(name string, args ...*gojq.Query) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: name, Args: args}}}
}

// pipe returns the query "left | right".
func pipe(left, right *gojq.Query) *gojq.Query {
	return &gojq.Query{Left: left, Op: gojq.OpPipe, Right: right}
}

// pipeTo returns the query "q | name".
func pipeTo(q *gojq.Query, name string) *gojq.Query { return pipe(q, funcCall(name)) }

// rewriteQuery rewrites a query in place. It returns an error if the query is not allowed.
func (j *jq) rewriteQuery(q *gojq.Query) error {
	switch {
	case q == nil:
		return nil
	case q.Meta != nil || len(q.Imports) > 0:
		return errors.New("modules are not available here")
	case len(q.FuncDefs) > 0:
		return errors.New("def is not available here: write the expression out")
	case q.Op >= gojq.OpAssign:
		return fmt.Errorf("%s is not available here: a query only reads; build a new value with { } or map", q.Op)
	case q.Term != nil:
		return j.rewriteTerm(q.Term)
	}
	if err := errors.Join(j.rewriteQuery(q.Left), j.rewriteQuery(q.Right), j.rewritePatterns(q.Patterns)); err != nil {
		return err
	}
	switch q.Op {
	case gojq.OpMul:
		q.Left, q.Right = pipeTo(q.Left, notString), pipeTo(q.Right, notString)
	case gojq.OpSub:
		q.Right = pipeTo(q.Right, notLarge)
	case gojq.OpDiv: // $right as $separator | $left / $separator, in the order of jq
		const separator = "$" + internalPrefix + "separator"
		left := pipe(q.Left, funcCall(dividend, funcCall(separator)))
		division := &gojq.Query{Left: left, Op: gojq.OpDiv, Right: funcCall(separator)}
		*q = gojq.Query{
			Left: q.Right, Op: gojq.OpPipe, Right: division,
			Patterns: []*gojq.Pattern{{Name: separator}},
		}
	case gojq.OpAdd:
	default:
		return nil
	}
	operation := *q
	*q = *pipeTo(&operation, countAll)
	return nil
}

// rewriteTerm rewrites a term in place. It returns an error if the term is not allowed.
func (j *jq) rewriteTerm(t *gojq.Term) (err error) {
	makesNew := false // whether the term makes a value
	escapes := false  // whether the term makes text of its whole input
	switch t.Type {
	case gojq.TermTypeFunc:
		escapes = jqFunctions[nameOf(t.Func)] == makesText
		makesNew, err = j.rewriteCall(t.Func)
	case gojq.TermTypeIndex:
		err = j.rewriteIndex(t.Index)
	case gojq.TermTypeObject:
		makesNew = true
		for _, member := range t.Object.KeyVals {
			err = errors.Join(err, j.rewriteString(member.KeyString, asText),
				j.rewriteQuery(member.KeyQuery), j.rewriteQuery(member.Val))
		}
	case gojq.TermTypeArray:
		makesNew = true
		if q := t.Array.Query; q != nil {
			err = j.rewriteQuery(q)
			t.Array.Query = pipeTo(q, countOne)
		}
	case gojq.TermTypeUnary:
		err = j.rewriteTerm(t.Unary.Term)
	case gojq.TermTypeFormat, gojq.TermTypeString:
		escapes = t.Str == nil
		makesNew = escapes || len(t.Str.Queries) > 0
		format := asText
		if t.Type == gojq.TermTypeFormat {
			format = t.Format
		}
		if t.Str != nil {
			t.Type = gojq.TermTypeString // its parts are formatted
		}
		err = j.rewriteString(t.Str, format)
	case gojq.TermTypeIf:
		err = errors.Join(j.rewriteQuery(t.If.Cond), j.rewriteQuery(t.If.Then), j.rewriteQuery(t.If.Else))
		for _, elif := range t.If.Elif {
			err = errors.Join(err, j.rewriteQuery(elif.Cond), j.rewriteQuery(elif.Then))
		}
	case gojq.TermTypeTry:
		err = errors.Join(j.rewriteQuery(t.Try.Body), j.rewriteQuery(t.Try.Catch))
	case gojq.TermTypeReduce:
		r := t.Reduce
		err = errors.Join(j.rewriteQuery(r.Query), j.rewritePatterns([]*gojq.Pattern{r.Pattern}),
			j.rewriteQuery(r.Start), j.rewriteQuery(r.Update))
	case gojq.TermTypeForeach:
		f := t.Foreach
		err = errors.Join(j.rewriteQuery(f.Query), j.rewritePatterns([]*gojq.Pattern{f.Pattern}),
			j.rewriteQuery(f.Start), j.rewriteQuery(f.Update), j.rewriteQuery(f.Extract))
	case gojq.TermTypeLabel:
		err = j.rewriteQuery(t.Label.Body)
	case gojq.TermTypeQuery:
		err = j.rewriteQuery(t.Query)
	}
	for _, suffix := range t.SuffixList {
		err = errors.Join(err, j.rewriteIndex(suffix.Index))
	}
	if err == nil && makesNew {
		inner := *t
		inner.SuffixList = nil
		made := &gojq.Query{Term: &inner}
		if escapes {
			made = pipe(funcCall(countAll), made)
		}
		*t = gojq.Term{
			Type:       gojq.TermTypeQuery,
			Query:      pipeTo(made, countAll),
			SuffixList: t.SuffixList,
		}
	}
	return err
}

// nameOf returns the name of a function in jqFunctions.
func nameOf(f *gojq.Func) string { return fmt.Sprintf("%s/%d", f.Name, len(f.Args)) }

// rewriteCall rewrites a function call in place. It reports whether the call makes a value.
func (j *jq) rewriteCall(f *gojq.Func) (makesNew bool, err error) {
	if strings.HasPrefix(f.Name, "$") {
		if f.Name == "$ENV" {
			return false, errors.New("$ENV is not available here")
		}
		return false, nil // variable
	}
	name := nameOf(f)
	kind, known := jqFunctions[name]
	if !known {
		j.unknown = append(j.unknown, shortQuote(name))
	}
	for _, arg := range f.Args {
		err = errors.Join(err, j.rewriteQuery(arg))
	}
	if err != nil {
		return false, err
	}
	switch kind {
	case passesParts:
		return false, nil
	case collectsValues:
		f.Args[0] = pipeTo(f.Args[0], countOne)
	case comparesParts:
		f.Args[0] = pipeTo(f.Args[0], notLarge)
	case readsPart:
		check := smallIndex
		if f.Name == "getpath" {
			check = smallPath
		}
		f.Args[0] = pipeTo(f.Args[0], check)
		return false, nil
	case deletesPaths: // as jq defines del, with a limit on the number of paths
		paths := &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeArray, Array: &gojq.Array{
			Query: pipeTo(funcCall("path", f.Args[0]), countAll),
		}}}
		*f = gojq.Func{Name: "delpaths", Args: []*gojq.Query{pipeTo(paths, notLarge)}}
	case reimplemented:
		f.Name = internalPrefix + f.Name
	}
	return true, nil
}

// rewriteIndex rewrites the expressions between [ and ] in place. They are counted, because
// they can yield many values, which a path collects.
func (j *jq) rewriteIndex(x *gojq.Index) error {
	if x == nil {
		return nil
	}
	for _, q := range []**gojq.Query{&x.Start, &x.End} {
		if *q == nil {
			continue
		}
		if err := j.rewriteQuery(*q); err != nil {
			return err
		}
		*q = pipeTo(pipeTo(*q, countOne), smallIndex)
	}
	return j.rewriteString(x.Str, asText)
}

// asText is the format of expressions in strings without a format.
const asText = "@text"

// rewriteString rewrites the expressions inserted into a string. It formats each, to count its text
// before the parts are joined.
func (j *jq) rewriteString(s *gojq.String, format string) (err error) {
	if s == nil {
		return nil
	}
	for _, part := range s.Queries {
		if part.Term.Type == gojq.TermTypeQuery { // otherwise literal text
			err = errors.Join(err, j.rewriteQuery(part.Term.Query))
			formatted := &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFormat, Format: format}}
			part.Term.Query = pipeTo(pipe(pipeTo(part.Term.Query, countAll), formatted), countAll)
		}
	}
	return err
}

// rewritePatterns rewrites the expressions in destructuring patterns.
func (j *jq) rewritePatterns(patterns []*gojq.Pattern) (err error) {
	for _, p := range patterns {
		err = errors.Join(err, j.rewritePatterns(p.Array))
		for _, member := range p.Object {
			err = errors.Join(err, j.rewriteString(member.KeyString, asText), j.rewriteQuery(member.KeyQuery))
			if member.KeyQuery != nil {
				member.KeyQuery = pipeTo(member.KeyQuery, smallIndex)
			}
			if member.Val != nil {
				err = errors.Join(err, j.rewritePatterns([]*gojq.Pattern{member.Val}))
			}
		}
	}
	return err
}

// countAll subtracts the size of a value from the allowance.
func (j *jq) countAll(v any, _ []any) any { return j.count(v, sizeOf(v, j.bytesLeft)) }

// countOne subtracts the size of a value from the allowance. It does not descend into parts.
func (j *jq) countOne(v any, _ []any) any {
	switch v := v.(type) {
	case []any:
		return j.count(v, sizeOfValue*(1+len(v)))
	case map[string]any:
		return j.count(v, sizeOfObject+sizeOfMember*len(v))
	}
	return j.countAll(v, nil)
}

func (j *jq) count(v any, size int) any {
	if n, ok := v.(*big.Int); ok && n.BitLen() > 3*maxDigits {
		return errDigits
	}
	j.bytesLeft -= size
	if j.bytesLeft < 0 {
		return j.stop()
	}
	return v
}

// stop ends the query, because it has used up its allowance.
func (j *jq) stop() error {
	j.cancel(errAllowance) // try cannot catch this
	return errAllowance
}

// checkOperand rejects an operand larger than maxOperand.
func checkOperand(v any, _ []any) any {
	const most = maxOperand * sizeOfValue
	if text, ok := v.(string); ok && len(text) > maxOperand || sizeOf(v, most) > most {
		return fmt.Errorf("an operand is too large: the limit is about %d characters or items", maxOperand)
	}
	return v
}

// checkIndex rejects an index that is a large array. The step that finds an array in another takes
// quadratic time.
func checkIndex(v any, _ []any) any {
	if _, ok := v.([]any); ok {
		return checkOperand(v, nil)
	}
	return v
}

// sizeOf returns the size of a value in bytes. It stops counting above limit.
func sizeOf(v any, limit int) int {
	size := sizeOfValue
	switch v := v.(type) {
	case string:
		size += sizeOfString + len(v)
	case json.Number:
		size += sizeOfString + len(v)
	case *big.Int:
		size += v.BitLen() / 8
	case []any:
		for _, item := range v {
			if size > limit {
				break
			}
			size += sizeOf(item, limit-size)
		}
	case map[string]any:
		size += sizeOfObject
		for key, member := range v {
			if size > limit {
				break
			}
			size += sizeOfMember + len(key) + sizeOf(member, limit-size)
		}
	}
	return size
}

var errDigits = fmt.Errorf("a number has more than %d digits", maxDigits)

// checkNumbers returns an error if a value contains a number longer than maxDigits.
func checkNumbers(v any) error {
	switch v := v.(type) {
	case json.Number:
		if len(v) > maxDigits {
			return errDigits
		}
	case []any:
		for _, item := range v {
			if err := checkNumbers(item); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, member := range v {
			if err := checkNumbers(member); err != nil {
				return err
			}
		}
	}
	return nil
}

// canSplit reports whether the pieces of a text fit into the allowance.
func (j *jq) canSplit(text, separator string) bool {
	return sizeOfPiece*(strings.Count(text, separator)+1) <= j.bytesLeft
}

// split implements split with one argument.
func (j *jq) split(v any, args []any) any {
	text, ok := v.(string)
	separator, isText := args[0].(string)
	if !ok || !isText {
		return fmt.Errorf("split needs two strings, not %s and %s", gojq.Preview(v), gojq.Preview(args[0]))
	}
	if !j.canSplit(text, separator) {
		return j.stop()
	}
	pieces := strings.Split(text, separator)
	items := make([]any, len(pieces))
	for i, piece := range pieces {
		items[i] = piece
	}
	return items
}

// sizeOfJSON returns the approximate size of the value of a JSON text in bytes. It may be much too
// large for text with strings of punctuation, but not too small.
func sizeOfJSON(text string) int {
	size := len(text)
	for _, c := range []byte(text) {
		switch c {
		case '{':
			size += sizeOfObject
		case '[', ',', ':':
			size += sizeOfMember
		}
	}
	return size
}

// fromJSON implements fromjson. It rejects numbers that are too long.
func (j *jq) fromJSON(v any, _ []any) any {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("fromjson needs a string, not %s", gojq.Preview(v))
	}
	if sizeOfJSON(text) > j.bytesLeft {
		return j.stop()
	}
	if !json.Valid([]byte(text)) { // such as several values, which sizeOfJSON does not count
		return fmt.Errorf("fromjson needs JSON, not %s", gojq.Preview(v))
	}
	value, _, err := decodeJSON(text)
	if err != nil {
		return fmt.Errorf("fromjson needs JSON, not %s", gojq.Preview(v))
	}
	return value
}

// toNumber implements tonumber. It rejects numbers that are too long.
func toNumber(v any, _ []any) any {
	switch v := v.(type) {
	case int, float64, *big.Int, json.Number:
		return v
	case string:
		if len(v) > maxDigits || v != strings.TrimSpace(v) {
			break
		}
		if value, values, err := decodeJSON(v); err == nil && values == 1 {
			if n, ok := value.(json.Number); ok {
				return n
			}
		}
	}
	return fmt.Errorf("tonumber cannot read %s", gojq.Preview(v))
}

// test implements test, with the flags g, i and s.
func (j *jq) test(v any, args []any) any {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("test needs a string, not %s", gojq.Preview(v))
	}
	pattern, ok := args[0].(string)
	if !ok {
		return fmt.Errorf("test needs a regular expression, not %s", gojq.Preview(args[0]))
	}
	if len(args) > 1 && args[1] != nil {
		flags, ok := args[1].(string)
		if !ok || strings.Trim(flags, "gis") != "" {
			return fmt.Errorf("test accepts the flags g, i and s, not %s", gojq.Preview(args[1]))
		}
		if flags = strings.ReplaceAll(flags, "g", ""); flags != "" {
			pattern = "(?" + flags + ")" + pattern
		}
	}
	if j.matcher == nil || pattern != j.pattern {
		if len(pattern) > maxPattern {
			return fmt.Errorf("the regular expression of test has more than %d bytes", maxPattern)
		}
		a := new(arguments)
		if err := a.compile(pattern); err != nil {
			return err
		}
		j.pattern, j.matcher, j.steps = pattern, a.pattern, a.steps
		j.stepsLeft -= a.steps * compileWork
	}
	j.stepsLeft -= j.steps * (1 + len(text))
	if j.stepsLeft < 0 {
		err := errors.New("the regular expressions take too long: use simpler ones, or select what you need first")
		j.cancel(err)
		return err
	}
	return j.matcher.MatchString(text)
}

// compileWork is the cost of compiling one regexp program step, in the units of maxWork.
const compileWork = 100
