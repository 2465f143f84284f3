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

// maxSteps limits an evaluation. A step reads a variable or calls a function; large values take
// more steps. A step takes about 100 ns.
//
// CEL has its own cost limit, but it ignores the size of values with a dynamic type, as arguments
// have, and its time grows with the square of the length of a loop.
const maxSteps = 50_000

// ErrSteps is the error of an evaluation that exceeds maxSteps.
var ErrSteps = errors.New("the expression takes too many steps for this call")

// stepsName is the variable that holds the remaining steps. No expression can name it.
const stepsName = "@steps"

// spend uses n of the remaining steps, and ends the evaluation if they are exceeded.
func spend(frame *interpreter.ExecutionFrame, n int) {
	left, ok := frame.ResolveName(stepsName)
	if !ok {
		return // the compiler evaluates a constant
	}
	steps := left.(*int)
	*steps -= n
	if *steps < 0 {
		panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: ErrSteps.Error()})
	}
}

// countSteps makes the nodes of a program count their steps.
func countSteps(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch node := node.(type) {
	case *countedAttribute:
		return node, nil // already counted; a member of it was selected
	case interpreter.InterpretableAttribute:
		return &countedAttribute{node}, nil
	case interpreter.InterpretableConstructor:
		if slices.ContainsFunc(node.InitVals(), isDynamic) {
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
	spend(frame, 1+weight(v))
	return v
}

type countedCall struct{ interpreter.InterpretableCall }

func (c *countedCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := c.InterpretableCall.Exec(frame)
	spend(frame, 1+8*weight(v)) // making a value costs more than reading it
	return v
}

type countedConstructor struct {
	interpreter.InterpretableConstructor
}

func (c *countedConstructor) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	spend(frame, 5+2*len(c.InitVals()))
	return c.InterpretableConstructor.Exec(frame)
}

// isDynamic reports whether a node is not a constant. The compiler makes lists and maps of
// constants.
func isDynamic(node interpreter.InterpretableV2) bool {
	_, constant := node.(interpreter.InterpretableConst)
	return !constant
}

// weight returns the additional steps for a value, in proportion to its size.
func weight(v any) int {
	switch v := v.(type) {
	case string:
		return len(v) / 64
	case types.String:
		return len(v) / 64
	case []any:
		return weightOfList(v)
	case []ref.Val:
		return weightOfList(v)
	case []string:
		return weightOfList(v)
	case map[string]any:
		return weightOfMap(v)
	case map[ref.Val]ref.Val:
		return weightOfMap(v)
	case traits.MutableLister:
		return 0 // the result of an unfinished loop, which appends to it in place
	case traits.Lister:
		return weight(v.Value())
	case traits.Mapper:
		return weight(v.Value())
	}
	return 0
}

func weightOfList[T any](list []T) int {
	n := len(list)
	for _, v := range list {
		if n += weight(v); n > maxSteps {
			break
		}
	}
	return n
}

func weightOfMap[K comparable, V any](entries map[K]V) int {
	n := len(entries)
	for key, value := range entries {
		if n += weight(key) + weight(value); n > maxSteps {
			break
		}
	}
	return n
}

// A match is a call of matches. It counts its steps before it runs, because a single text can take
// too many.
type match struct {
	interpreter.InterpretableV2 // the original call
	text                        interpreter.InterpretableV2
	pattern                     *regexp.Regexp
	size                        int // instructions of the pattern
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
		return types.MaybeNoSuchOverloadErr(v) // v itself if it is an error or unknown
	}
	spend(frame, 1+len(text)*m.size/8)
	return types.Bool(m.pattern.MatchString(string(text)))
}
