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

// A query comes from a model, which may have been talked into anything, and runs inside
// the gateway. The interpreter stops between two steps when its context ends, but a
// single step may take any memory or time: "a"*1e9, [range(1e9)], or a comparison of two
// values that share their parts 2^60 times, as reduce range(60) as $_ (1; [., .]) makes
// them. So a query is rewritten before it runs, such that
//
//   - it has only functions that are known to be harmless, see jqFunctions, defines none
//     and changes nothing: what is left takes time linear in its values, or almost;
//   - what makes a value, and what collects values, is followed by a function of this package that
//     takes the size of the value from an allowance and ends the query when it is used up.
//     Shared parts count as often as they occur. No step is then given, and no step makes,
//     more than the allowance, but for a small factor;
//   - the few functions that take quadratic time get a small second operand.

// allowance is how many bytes the values that a query makes may take, all in all.
const allowance = 128 << 20

// What values take, about: an interface and what it leads to.
const (
	sizeOfValue  = 16
	sizeOfString = 16
	sizeOfObject = 300 // with a few members
	sizeOfMember = 40
)

// maxOperand is how many characters or items an operand may have, about, where time or
// memory grows with the size of both.
const maxOperand = 64

// maxDigits is how many characters a number may have: calculating with millions of digits
// takes minutes.
const maxDigits = 1000

// How a function of jq is treated.
type jqFunction int

const (
	makes    jqFunction = iota // makes a value, which is counted
	passes                     // passes on parts of its input, and may stand in a path
	collects                   // like makes, and collects what its argument gives
	compares                   // like makes, and looks at all of its argument for each part of its input
	deletes                    // is del
	replaced                   // is a function of this package
)

// jqFunctions are those that a query may use, by name and number of arguments.
var jqFunctions = func() map[string]jqFunction {
	all := make(map[string]jqFunction)
	for kind, names := range map[jqFunction]string{
		makes: `abs/0 add/0 all/0 all/1 all/2 any/0 any/1 any/2 ascii_downcase/0 ascii_upcase/0 ceil/0 endswith/1
			flatten/0 flatten/1 floor/0 from_entries/0 fromdate/0 has/1 in/1 IN/1 IN/2 isempty/1 keys/0
			length/0 ltrimstr/1 max/0 min/0 not/0 path/1 paths/0 paths/1 range/1 range/2 range/3 reverse/0 round/0
			rtrimstr/1 sort/0 split/1 startswith/1 to_entries/0 toboolean/0 todate/0 tojson/0 tostring/0
			trim/0 type/0 unique/0 utf8bytelength/0`,
		passes: `arrays/0 booleans/0 empty/0 error/0 error/1 first/0 first/1 getpath/1 iterables/0 last/0 last/1
			limit/2 nth/1 nth/2 nulls/0 numbers/0 objects/0 recurse/0 scalars/0 select/1 skip/2 strings/0 values/0`,
		collects: `add/1 group_by/1 map/1 map_values/1 max_by/1 min_by/1 sort_by/1 unique_by/1 with_entries/1`,
		compares: `contains/1 join/1`,
		deletes:  `del/1`,
		replaced: `fromjson/0 test/1 test/2 tonumber/0`,
	} {
		for name := range strings.FieldsSeq(names) {
			all[name] = kind
		}
	}
	return all
}()

// Functions of this package. A query cannot call them by these names.
const (
	internalPrefix = "_internal_"
	countAll       = internalPrefix + "count_all"  // takes the whole of a value from the allowance
	countOne       = internalPrefix + "count_one"  // takes a value but for its parts, which are counted elsewhere
	notLarge       = internalPrefix + "not_large"  // refuses an operand of more than maxOperand
	notString      = internalPrefix + "not_string" // refuses a string, which could be repeated
)

// errAllowance is why a query was ended.
var errAllowance = errors.New("the query makes too many or too large values: " +
	"select what you need first, or ask for less")

// A jq is a query that is bounded.
type jq struct {
	end  context.CancelCauseFunc
	left int // of the allowance
	work int // that is left for regular expressions, as maxWork counts it

	unknown []string // functions

	pattern string // the last one
	matcher *regexp.Regexp
	steps   int
}

// compile returns the program of a query. Its errors are for the model that wrote it.
func (j *jq) compile(text string) (*gojq.Code, error) {
	query, err := gojq.Parse(text)
	if err != nil {
		if bad, ok := errors.AsType[*gojq.ParseError](err); ok {
			return nil, fmt.Errorf("%w after %s", err, shortly(tail(text[:min(bad.Offset, len(text))])))
		}
		return nil, err
	}
	if err := j.query(query); err != nil {
		return nil, err
	}
	if len(j.unknown) > 0 {
		return nil, fmt.Errorf("not available here: %s; there are %s",
			strings.Join(j.unknown, ", "), strings.Join(slices.Sorted(maps.Keys(jqFunctions)), " "))
	}
	return gojq.Compile(then(query, countAll),
		gojq.WithFunction(countAll, 0, 0, j.countAll),
		gojq.WithFunction(countOne, 0, 0, j.countOne),
		gojq.WithFunction(notLarge, 0, 0, func(v any, _ []any) any {
			const most = maxOperand * sizeOfValue
			if text, ok := v.(string); ok && len(text) > maxOperand || sizeOf(v, most) > most {
				return fmt.Errorf("an operand is too large: it may have some %d characters or items", maxOperand)
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
		gojq.WithFunction(internalPrefix+"fromjson", 0, 0, fromJSON),
		gojq.WithFunction(internalPrefix+"tonumber", 0, 0, toNumber),
	)
}

// tail returns the end of a text.
func tail(text string) string {
	const enough = 40
	if chars := []rune(text); len(chars) > enough {
		return "…" + string(chars[len(chars)-enough:])
	}
	return text
}

// funcCall returns a query that calls a function.
func funcCall(name string, args ...*gojq.Query) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: name, Args: args}}}
}

// then returns a query whose values go through a function.
func then(q *gojq.Query, name string) *gojq.Query {
	return &gojq.Query{Left: q, Op: gojq.OpPipe, Right: funcCall(name)}
}

// query rewrites a query, or says what is wrong with it.
func (j *jq) query(q *gojq.Query) error {
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
		return j.term(q.Term)
	}
	if err := errors.Join(j.query(q.Left), j.query(q.Right), j.patterns(q.Patterns)); err != nil {
		return err
	}
	switch q.Op {
	case gojq.OpMul:
		q.Left, q.Right = then(q.Left, notString), then(q.Right, notString)
	case gojq.OpSub:
		q.Right = then(q.Right, notLarge)
	case gojq.OpAdd, gojq.OpDiv:
	default:
		return nil
	}
	operation := *q
	*q = *then(&operation, countAll)
	return nil
}

// term rewrites a term, or says what is wrong with it.
func (j *jq) term(t *gojq.Term) (err error) {
	made := false // it makes a value
	switch t.Type {
	case gojq.TermTypeFunc:
		made, err = j.function(t.Func)
	case gojq.TermTypeIndex:
		err = j.index(t.Index)
	case gojq.TermTypeObject:
		made = true
		for _, member := range t.Object.KeyVals {
			err = errors.Join(err, j.text(member.KeyString), j.query(member.KeyQuery), j.query(member.Val))
		}
	case gojq.TermTypeArray:
		made = true
		if q := t.Array.Query; q != nil {
			err = j.query(q)
			t.Array.Query = then(q, countOne)
		}
	case gojq.TermTypeUnary:
		err = j.term(t.Unary.Term)
	case gojq.TermTypeFormat, gojq.TermTypeString:
		made = t.Type == gojq.TermTypeFormat || len(t.Str.Queries) > 0
		err = j.text(t.Str)
	case gojq.TermTypeIf:
		err = errors.Join(j.query(t.If.Cond), j.query(t.If.Then), j.query(t.If.Else))
		for _, elif := range t.If.Elif {
			err = errors.Join(err, j.query(elif.Cond), j.query(elif.Then))
		}
	case gojq.TermTypeTry:
		err = errors.Join(j.query(t.Try.Body), j.query(t.Try.Catch))
	case gojq.TermTypeReduce:
		r := t.Reduce
		err = errors.Join(j.query(r.Query), j.patterns([]*gojq.Pattern{r.Pattern}),
			j.query(r.Start), j.query(r.Update))
	case gojq.TermTypeForeach:
		f := t.Foreach
		err = errors.Join(j.query(f.Query), j.patterns([]*gojq.Pattern{f.Pattern}),
			j.query(f.Start), j.query(f.Update), j.query(f.Extract))
	case gojq.TermTypeLabel:
		err = j.query(t.Label.Body)
	case gojq.TermTypeQuery:
		err = j.query(t.Query)
	}
	for _, suffix := range t.SuffixList {
		err = errors.Join(err, j.index(suffix.Index))
	}
	if err == nil && made {
		inner := *t
		inner.SuffixList = nil
		*t = gojq.Term{
			Type:       gojq.TermTypeQuery,
			Query:      then(&gojq.Query{Term: &inner}, countAll),
			SuffixList: t.SuffixList,
		}
	}
	return err
}

// function rewrites a call of a function, and reports whether that makes a value.
func (j *jq) function(f *gojq.Func) (made bool, err error) {
	if strings.HasPrefix(f.Name, "$") {
		if f.Name == "$ENV" {
			return false, errors.New("$ENV is not available here")
		}
		return false, nil // it is a variable
	}
	name := fmt.Sprintf("%s/%d", f.Name, len(f.Args))
	kind, known := jqFunctions[name]
	if !known {
		j.unknown = append(j.unknown, shortly(name))
	}
	for _, arg := range f.Args {
		err = errors.Join(err, j.query(arg))
	}
	if err != nil {
		return false, err
	}
	switch kind {
	case passes:
		return false, nil
	case collects:
		f.Args[0] = then(f.Args[0], countOne)
	case compares:
		f.Args[0] = then(f.Args[0], notLarge)
	case deletes: // as jq has it, but for the size of the list
		paths := &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeArray, Array: &gojq.Array{
			Query: then(funcCall("path", f.Args[0]), countAll),
		}}}
		*f = gojq.Func{Name: "delpaths", Args: []*gojq.Query{then(paths, notLarge)}}
	case replaced:
		f.Name = internalPrefix + f.Name
	}
	return true, nil
}

// index rewrites what stands between [ and ], which may give many values: those of a path
// are collected.
func (j *jq) index(x *gojq.Index) error {
	if x == nil {
		return nil
	}
	for _, q := range []**gojq.Query{&x.Start, &x.End} {
		if *q == nil {
			continue
		}
		if err := j.query(*q); err != nil {
			return err
		}
		*q = then(*q, countOne)
	}
	return j.text(x.Str)
}

// text rewrites what is inserted into a string.
func (j *jq) text(s *gojq.String) (err error) {
	if s == nil {
		return nil
	}
	for _, part := range s.Queries {
		if part.Term.Type == gojq.TermTypeQuery { // else it is a string between two of them
			err = errors.Join(err, j.query(part.Term.Query))
			part.Term.Query = then(part.Term.Query, countAll)
		}
	}
	return err
}

// patterns rewrites the expressions in patterns of variables.
func (j *jq) patterns(patterns []*gojq.Pattern) (err error) {
	for _, p := range patterns {
		err = errors.Join(err, j.patterns(p.Array))
		for _, member := range p.Object {
			err = errors.Join(err, j.text(member.KeyString), j.query(member.KeyQuery))
			if member.Val != nil {
				err = errors.Join(err, j.patterns([]*gojq.Pattern{member.Val}))
			}
		}
	}
	return err
}

// countAll takes a value from the allowance.
func (j *jq) countAll(v any, _ []any) any { return j.count(v, sizeOf(v, j.left)) }

// countOne takes a value from the allowance, but for the parts of its parts.
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
	if j.left -= size; j.left < 0 {
		j.end(errAllowance) // which no try can catch
		return errAllowance
	}
	return v
}

// sizeOf returns what a value takes, or more than limit if that is more.
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

// checkNumbers returns an error if a value has a number that is too long.
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

// fromJSON is fromjson, but for numbers that are too long.
func fromJSON(v any, _ []any) any {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("fromjson needs a string, not %s", gojq.Preview(v))
	}
	value, values, err := decode(text)
	if err != nil || values != 1 {
		return fmt.Errorf("fromjson needs JSON, not %s", gojq.Preview(v))
	}
	return value
}

// toNumber is tonumber, but for numbers that are too long.
func toNumber(v any, _ []any) any {
	switch v := v.(type) {
	case int, float64, *big.Int, json.Number:
		return v
	case string:
		if value, values, err := decode(v); err == nil && values == 1 && v == strings.TrimSpace(v) {
			if n, ok := value.(json.Number); ok {
				return n
			}
		}
	}
	return fmt.Errorf("tonumber cannot read %s", gojq.Preview(v))
}

// test reports whether a string matches a regular expression, with or without flags.
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
			return fmt.Errorf("the flags of test are g, i and s, not %s", gojq.Preview(args[1]))
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
		j.work -= a.steps * compileWork
	}
	if j.work -= j.steps * (1 + len(text)); j.work < 0 {
		err := errors.New("the regular expressions take too long: use simpler ones, or select what you need first")
		j.end(err)
		return err
	}
	return j.matcher.MatchString(text)
}

// compileWork is what it takes to compile a step of a regular expression, in steps on bytes.
const compileWork = 100
