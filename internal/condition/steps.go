package condition

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"

	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// maxSteps ends an evaluation. One step reads a variable or calls a function, and large values take more of them. A
// step takes about 100 ns.
//
// The cost limit of CEL itself is not used. It does not count the size of values whose types are not known before an
// evaluation, as those of arguments are not, and it takes time that grows with the square of the length of a loop.
const maxSteps = 50_000

// ErrSteps is the error of an evaluation that was ended because it takes too long.
var ErrSteps = errors.New("the expression takes too many steps for this call")

// stepsName is the variable by which nodes of a program find the steps that are left. No expression can name it.
const stepsName = "@steps"

// take takes n steps of those that are left.
func take(frame *interpreter.ExecutionFrame, n int) {
	left, ok := frame.ResolveName(stepsName)
	if !ok {
		return // a constant is evaluated as part of the compilation
	}
	steps := left.(*int)
	if *steps -= n; *steps < 0 {
		panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: ErrSteps.Error()})
	}
}

// countSteps makes the nodes of a program count their steps.
func countSteps(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch node := node.(type) {
	case *countedAttribute:
		return node, nil // a member of it was selected
	case interpreter.InterpretableAttribute:
		return &countedAttribute{node}, nil
	case interpreter.InterpretableConstructor:
		if slices.ContainsFunc(node.InitVals(), variable) {
			return &countedConstructor{node}, nil
		}
	case interpreter.InterpretableCall:
		if node.Function() == overloads.Matches {
			return newMatch(node)
		}
		return &countedCall{node}, nil
	}
	return node, nil
}

type countedAttribute struct {
	interpreter.InterpretableAttribute
}

func (c *countedAttribute) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := c.InterpretableAttribute.Exec(frame)
	take(frame, 1+weight(v))
	return v
}

type countedCall struct{ interpreter.InterpretableCall }

func (c *countedCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := c.InterpretableCall.Exec(frame)
	take(frame, 1+8*weight(v)) // which was made, not just read
	return v
}

type countedConstructor struct {
	interpreter.InterpretableConstructor
}

func (c *countedConstructor) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	take(frame, 5+2*len(c.InitVals()))
	return c.InterpretableConstructor.Exec(frame)
}

// variable reports whether a node is not a constant. A list or map of constants is made in the compilation.
func variable(node interpreter.InterpretableV2) bool {
	_, constant := node.(interpreter.InterpretableConst)
	return !constant
}

// weight returns how many steps a value takes beyond the one that returned it: about as many as to read all of it.
func weight(v any) int {
	switch v := v.(type) {
	case string:
		return len(v) / 64
	case types.String:
		return len(v) / 64
	case []any:
		return weightOf(v)
	case []ref.Val:
		return weightOf(v)
	case []string:
		return weightOf(v)
	case map[string]any:
		return weightIn(v)
	case map[ref.Val]ref.Val:
		return weightIn(v)
	case traits.MutableLister:
		return 0 // the result of a loop that goes on, which adds to it in place
	case traits.Lister:
		return weight(v.Value())
	case traits.Mapper:
		return weight(v.Value())
	}
	return 0
}

func weightOf[T any](list []T) int {
	n := len(list)
	for _, v := range list {
		if n += weight(v); n > maxSteps {
			break
		}
	}
	return n
}

func weightIn[K comparable, V any](entries map[K]V) int {
	n := len(entries)
	for key, value := range entries {
		if n += weight(key) + weight(value); n > maxSteps {
			break
		}
	}
	return n
}

// A match is a call of matches. It counts its steps before it takes them, because one text can take too many.
type match struct {
	interpreter.InterpretableV2 // the call as CEL would make it
	text                        interpreter.InterpretableV2
	pattern                     *regexp.Regexp
	size                        int // of the pattern, in instructions
}

func newMatch(call interpreter.InterpretableCall) (*match, error) {
	literal, ok := call.Args()[1].(interpreter.InterpretableConst)
	if !ok {
		return nil, errNoLiteral
	}
	source, _ := literal.Value().(types.String)
	pattern, err := regexp.Compile(string(source))
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(string(source), syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	return &match{InterpretableV2: call, text: call.Args()[0], pattern: pattern, size: len(program.Inst)}, nil
}

func (m *match) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := m.text.Exec(frame)
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v) // or what kept CEL from a value
	}
	take(frame, 1+len(text)*m.size/8)
	return types.Bool(m.pattern.MatchString(string(text)))
}
