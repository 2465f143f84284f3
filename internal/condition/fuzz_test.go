package condition

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Expressions have the same results as in a small interpreter of a part of the language. The
// verdict on a tool never contradicts the results for its calls.
func FuzzCondition(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		choices := make([]byte, 100)
		for i := range choices {
			choices[i] = byte(random.Uint32())
		}
		f.Add(choices)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		checkCondition(t, &generator{choices: choices})
	})
}

func TestGeneratedConditions(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		choices := make([]byte, 20+random.IntN(100))
		for i := range choices {
			choices[i] = byte(random.Uint32())
		}
		checkCondition(t, &generator{choices: choices})
	}
}

func checkCondition(t *testing.T, g *generator) {
	t.Helper()
	arguments := g.object(0)
	e := g.boolean(0)
	facts := &Facts{
		Client: pick(g, texts), Server: pick(g, texts), Tool: pick(g, texts),
		Annotations: mcp.Annotations(g.next(16)), Arguments: []byte(arguments),
	}
	if len(e.source) > MaxExpression {
		return
	}
	c, err := Compile(e.source)
	if err != nil {
		if !strings.Contains(err.Error(), "no matching overload") {
			t.Fatalf("%s: %v", e.source, err)
		}
		return // types that can never fit, such as client < 1
	}
	var decoded map[string]any
	decoder := json.NewDecoder(bytes.NewReader(facts.Arguments))
	decoder.UseNumber()
	if err := decoder.Decode(&decoded); err != nil {
		t.Fatalf("%s: %v", arguments, err)
	}
	o := oracle{facts: facts, arguments: decoded}
	want, wantErr := o.bool(e)
	got, gotErr := c.Holds(facts)
	if got != want || (gotErr == nil) != (wantErr == nil) {
		t.Fatalf("%s of %s: got %v, %v, want %v, %v", e.source, arguments, got, gotErr, want, wantErr)
	}
	facts.Arguments = nil // Possible does not use them
	verdict, err := c.Possible(facts)
	if gotErr == nil && (verdict == Yes && !got || verdict == No && got) {
		t.Fatalf("%s of %s: got %v, but %v of the tool", e.source, arguments, got, verdict)
	}
	if err != nil && gotErr == nil {
		t.Fatalf("%s of %s: got %v, but error %v of the tool", e.source, arguments, got, err)
	}
	if !c.UsesArguments() && err == nil && verdict == Maybe {
		t.Fatalf("%s: got Maybe, without arguments", e.source)
	}
}

// A generator generates arguments and expressions from choices. When they are used up, it takes the
// first possibility, which is the simplest one.
type generator struct{ choices []byte }

func (g *generator) next(n int) int {
	if len(g.choices) == 0 {
		return 0
	}
	c := g.choices[0]
	g.choices = g.choices[1:]
	return int(c) % n
}

func pick[T any](g *generator, list []T) T { return list[g.next(len(list))] }

var (
	texts = []string{"a", "b", "ab", "", "é"}
	keys  = []string{"a", "b", "ab", "c"}
	// Numbers in arguments, and literals in expressions.
	numbers = []string{
		"1", "1.0", "10e-1", "0", "-1", "1.5", "9007199254740993", "9007199254740992", "18446744073709551615", "2",
	}
	literals = []string{"1", "0", "-1", "1.5", "2", "9007199254740993", "18446744073709551615u", "1u", "1.0"}
)

// object returns a JSON object.
func (g *generator) object(depth int) string {
	var members []string
	for i, n := 0, g.next(len(keys)+1); i < n; i++ {
		members = append(members, fmt.Sprintf("%q:%s", keys[i], g.json(depth+1)))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g *generator) json(depth int) string {
	kind := g.next(7)
	if depth > 2 {
		kind %= 5
	}
	switch kind {
	case 0, 1:
		return strconv.Quote(pick(g, texts))
	case 2:
		return pick(g, numbers)
	case 3:
		return pick(g, []string{"true", "false"})
	case 4:
		return "null"
	case 5:
		return g.object(depth)
	}
	var elements []string
	for range g.next(3) {
		elements = append(elements, g.json(depth+1))
	}
	return "[" + strings.Join(elements, ",") + "]"
}

// An expression is an operation with operands, and its source.
type expression struct {
	source string
	op     string
	args   []expression
	value  any // of a literal
	name   string
}

// boolean returns an expression of type bool or dyn.
func (g *generator) boolean(depth int) expression {
	kind := g.next(15)
	if depth > 4 {
		kind %= 9
	}
	switch kind {
	case 0, 1:
		op := pick(g, []string{"==", "!=", "<", "<=", ">", ">="})
		return infix(op, g.value(depth), g.untyped(depth))
	case 2:
		return untyped(g.value(depth)) // perhaps not a bool
	case 3:
		operand := g.member(depth)
		if operand.op != "select" {
			return untyped(operand)
		}
		return expression{source: "has(" + operand.source + ")", op: "has", args: operand.args, name: operand.name}
	case 4:
		return infix("in", g.untyped(depth), g.container(depth))
	case 5:
		op := pick(g, []string{"startsWith", "endsWith", "contains"})
		target, arg := g.untyped(depth), g.untyped(depth)
		source := fmt.Sprintf("%s.%s(%s)", target.source, op, arg.source)
		return expression{source: source, op: op, args: []expression{target, arg}}
	case 6:
		name := pick(g, hints)
		return expression{source: "annotations." + name, op: "annotation", name: name}
	case 7:
		b := g.next(2) == 1
		return expression{source: strconv.FormatBool(b), op: "literal", value: b}
	case 8:
		op, over := pick(g, []string{"all", "exists"}), g.container(depth)
		each := infix(pick(g, []string{"==", "!=", "<", "in"}), expression{source: "each", op: "each"}, g.untyped(depth))
		source := fmt.Sprintf("%s.%s(each, %s)", over.source, op, each.source)
		return expression{source: source, op: op, args: []expression{over, each}}
	case 9, 10:
		return infix("&&", g.boolean(depth+1), g.boolean(depth+1))
	case 11, 12:
		return infix("||", g.boolean(depth+1), g.boolean(depth+1))
	case 13:
		arg := g.boolean(depth + 1)
		return expression{source: "!(" + arg.source + ")", op: "!", args: []expression{arg}}
	}
	condition, yes, no := g.boolean(depth+1), g.boolean(depth+1), g.boolean(depth+1)
	source := fmt.Sprintf("((%s) ? (%s) : (%s))", condition.source, yes.source, no.source)
	return expression{source: source, op: "?", args: []expression{condition, yes, no}}
}

func infix(op string, left, right expression) expression {
	source := fmt.Sprintf("(%s %s %s)", left.source, op, right.source)
	return expression{source: source, op: op, args: []expression{left, right}}
}

// untyped returns an expression of any type. In most cases, CEL knows the type only when it is
// evaluated.
func (g *generator) untyped(depth int) expression {
	e := g.value(depth)
	if g.next(8) == 7 && e.op != "arguments" && e.op != "literal" {
		return e
	}
	return untyped(e)
}

func untyped(e expression) expression {
	e.source = "dyn(" + e.source + ")"
	return e
}

// value returns an expression of any type.
func (g *generator) value(depth int) expression {
	switch g.next(8) {
	case 0, 1, 2:
		return g.member(depth)
	case 3:
		name := pick(g, []string{"client", "server", "tool"})
		return expression{source: name, op: name}
	case 4:
		text := pick(g, texts)
		return expression{source: strconv.Quote(text), op: "literal", value: text}
	case 5:
		number := pick(g, literals)
		return expression{source: number, op: "literal", value: json.Number(strings.TrimSuffix(number, "u"))}
	case 6:
		operand := g.container(depth)
		return expression{source: "size(" + operand.source + ")", op: "size", args: []expression{operand}}
	}
	return expression{source: "null", op: "literal"}
}

// container returns an expression that may be a list or map.
func (g *generator) container(depth int) expression {
	if depth > 4 || g.next(3) > 0 {
		return g.member(depth)
	}
	list := expression{op: "list"}
	var sources []string
	for range 1 + g.next(3) { // CEL does not evaluate the operand of in for an empty list
		element := g.value(depth + 1)
		list.args, sources = append(list.args, element), append(sources, element.source)
	}
	list.source = "[" + strings.Join(sources, ", ") + "]"
	return list
}

// member returns the arguments, or a member of them.
func (g *generator) member(depth int) expression {
	e := expression{source: "arguments", op: "arguments"}
	for range 1 + g.next(3) {
		switch g.next(6) {
		case 0:
			return e
		case 1:
			key := expression{source: pick(g, []string{"client", "tool"})}
			key.op = key.source
			e = expression{source: fmt.Sprintf("%s[%s]", e.source, key.source), op: "index", args: []expression{e, key}}
		default:
			key := pick(g, keys)
			e = expression{source: e.source + "." + key, op: "select", args: []expression{e}, name: key}
		}
	}
	return e
}

// An oracle evaluates expressions.
type oracle struct {
	facts     *Facts
	arguments map[string]any
	each      any // the element of the loop
}

var errOracle = errors.New("no such key, element or operation")

func (o *oracle) bool(e expression) (bool, error) {
	v, err := o.eval(e)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, errOracle
	}
	return b, nil
}

func (o *oracle) eval(e expression) (any, error) {
	switch e.op {
	case "literal":
		return e.value, nil
	case "client":
		return o.facts.Client, nil
	case "server":
		return o.facts.Server, nil
	case "tool":
		return o.facts.Tool, nil
	case "arguments":
		return o.arguments, nil
	case "annotation":
		for bit, hint := range hints {
			if hint == e.name {
				return o.facts.Annotations&(1<<bit) != 0, nil
			}
		}
	case "&&", "||":
		// An operand that decides alone does so even if the other fails.
		decides := e.op == "||"
		left, leftErr := o.bool(e.args[0])
		if leftErr == nil && left == decides {
			return decides, nil
		}
		right, rightErr := o.bool(e.args[1])
		if rightErr == nil && right == decides {
			return decides, nil
		}
		return !decides, errors.Join(leftErr, rightErr)
	case "each":
		return o.each, nil
	case "all", "exists":
		over, err := o.eval(e.args[0])
		if err != nil {
			return nil, err
		}
		elements, ok := over.([]any)
		if object, isObject := over.(map[string]any); isObject {
			for key := range object {
				elements = append(elements, key)
			}
			ok = true
		}
		err = check(ok)
		for _, o.each = range elements {
			if holds, failed := o.bool(e.args[1]); failed != nil {
				err = failed
			} else if holds == (e.op == "exists") {
				return holds, nil // even if it fails for others
			}
		}
		return e.op == "all", err
	case "?":
		condition, err := o.bool(e.args[0])
		if err != nil {
			return nil, err
		}
		if condition {
			return o.eval(e.args[1])
		}
		return o.eval(e.args[2])
	}
	var args []any
	for _, arg := range e.args {
		v, err := o.eval(arg)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	return apply(e, args)
}

// apply returns the result of an operation on the values of its operands.
func apply(e expression, args []any) (any, error) {
	switch e.op {
	case "list":
		return args, nil
	case "!":
		b, ok := args[0].(bool)
		return !b, check(ok)
	case "==":
		return equal(args[0], args[1]), nil
	case "!=":
		return !equal(args[0], args[1]), nil
	case "<", "<=", ">", ">=":
		order, ok := compare(args[0], args[1])
		return e.op[0] == '<' && order < 0 || e.op[0] == '>' && order > 0 || len(e.op) == 2 && order == 0, check(ok)
	case "select", "has":
		object, ok := args[0].(map[string]any)
		v, found := object[e.name]
		if e.op == "has" {
			return found, check(ok)
		}
		return v, check(found)
	case "index":
		key, _ := args[1].(string)
		object, _ := args[0].(map[string]any)
		v, found := object[key]
		return v, check(found)
	case "in":
		switch container := args[1].(type) {
		case map[string]any:
			key, ok := args[0].(string)
			_, found := container[key]
			return ok && found, nil
		case []any:
			for _, v := range container {
				if equal(args[0], v) {
					return true, nil
				}
			}
			return false, nil
		}
		return nil, errOracle
	case "size":
		switch v := args[0].(type) {
		case string:
			return json.Number(strconv.Itoa(len([]rune(v)))), nil
		case []any:
			return json.Number(strconv.Itoa(len(v))), nil
		case map[string]any:
			return json.Number(strconv.Itoa(len(v))), nil
		}
		return nil, errOracle
	case "startsWith", "endsWith", "contains":
		s, ok := args[0].(string)
		part, isText := args[1].(string)
		is := map[string]func(string, string) bool{
			"startsWith": strings.HasPrefix, "endsWith": strings.HasSuffix, "contains": strings.Contains,
		}
		return is[e.op](s, part), check(ok && isText)
	}
	panic(e.op)
}

func check(ok bool) error {
	if !ok {
		return errOracle
	}
	return nil
}

func equal(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		return ok && rational(a).Cmp(rational(b)) == 0
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for key := range a {
			if v, found := b[key]; !found || !equal(a[key], v) {
				return false
			}
		}
		return true
	}
	switch b.(type) {
	case []any, map[string]any:
		return false
	}
	return a == b
}

// compare returns the order of two values, if they have one.
func compare(a, b any) (order int, ok bool) {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return 0, false
		}
		return rational(a).Cmp(rational(b)), true
	case string:
		b, ok := b.(string)
		return strings.Compare(a, b), ok
	case bool:
		b, ok := b.(bool)
		switch {
		case a == b:
			return 0, ok
		case a:
			return 1, ok
		}
		return -1, ok
	}
	return 0, false
}

func rational(n json.Number) *big.Rat {
	r, _ := new(big.Rat).SetString(string(n))
	return r
}
