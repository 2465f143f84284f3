// Package condition decides on calls of tools by expressions in CEL, the Common Expression
// Language.
//
// An expression can read only the client, server, tool, annotations and arguments of a call. It
// cannot read the clock or files, or keep state. Its length, its running time and the size of the
// arguments are limited. If an expression has no result, that is an error, and callers deny the
// call.
package condition

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// MaxExpression is the maximum length of an expression, in bytes.
const MaxExpression = 4 << 10

// The variables of expressions.
const (
	clientName      = "client"
	serverName      = "server"
	toolName        = "tool"
	annotationsName = "annotations"
	argumentsName   = "arguments"
)

var names = []string{clientName, serverName, toolName, annotationsName, argumentsName}

// A Condition is a compiled expression. It is safe for concurrent use.
type Condition struct {
	expression                     string
	whole, partial                 cel.Program
	usesAnnotations, usesArguments bool
	namedMembers                   memberTree // members of arguments that the expression names
}

// Facts are the inputs of a condition.
type Facts struct {
	Client, Server, Tool string
	Annotations          mcp.Annotations
	Arguments            []byte // a JSON object as the client sent it, empty if the call has no arguments
}

// A Verdict is the result of a condition before the arguments of a call are known.
type Verdict uint8

const (
	// Maybe means that the result depends on the arguments.
	Maybe Verdict = iota
	// Yes means that the condition holds for all arguments.
	Yes
	// No means that it holds for no arguments.
	No
)

// Compile parses and checks an expression.
func Compile(expression string) (*Condition, error) {
	switch {
	case strings.TrimSpace(expression) == "":
		return nil, errors.New("the expression is empty")
	case len(expression) > MaxExpression:
		return nil, fmt.Errorf("the expression has %d bytes, the limit is %d", len(expression), MaxExpression)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	checked, issues := env.Compile(expression)
	if errs := issues.Errors(); len(errs) > 0 {
		// The first error often causes the others.
		location := errs[0].Location
		cause, _, _ := strings.Cut(strings.TrimSuffix(errs[0].Message, " (in container '')"), " expecting {")
		if name, ok := strings.CutPrefix(cause, "undeclared reference to '"); ok {
			cause += suggestion(expression, strings.TrimSuffix(name, "'"))
		}
		return nil, errorAt(location.Line(), location.Column(), "%s", strings.ReplaceAll(cause, "\n", " "))
	}
	if out := checked.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, notBool(out.String())
	}
	c := &Condition{expression: expression}
	if err := c.inspect(checked.NativeRep()); err != nil {
		return nil, err
	}
	options := []cel.ProgramOption{
		cel.EvalOptions(cel.OptOptimize),
		cel.CustomDecoratorV2(countSteps),
	}
	if c.whole, err = env.Program(checked, options...); err != nil {
		return nil, err
	}
	if c.partial, err = env.Program(checked, append(options, cel.EvalOptions(cel.OptPartialEval))...); err != nil {
		return nil, err
	}
	return c, nil
}

// suggestion returns the end of an error about an unknown name in an expression.
func suggestion(expression, name string) string {
	if strings.Contains(expression, name+"(") {
		return words.DidYouMean(name, []string{
			"all", "contains", "endsWith", "exists", "filter", "has", "lowerAscii", "map", "matches", "size", "split",
			"startsWith", "substring", "trim", "upperAscii",
		})
	}
	return "; the variables are client, server, tool, annotations and arguments"
}

// String returns the expression as written.
func (c *Condition) String() string { return c.expression }

// UsesAnnotations reports whether the expression mentions the annotations of the tool.
func (c *Condition) UsesAnnotations() bool { return c.usesAnnotations }

// UsesArguments reports whether the expression mentions the arguments of the call.
func (c *Condition) UsesArguments() bool { return c.usesArguments }

// Holds reports whether the condition holds for a call. On an error, the caller must deny the call.
func (c *Condition) Holds(f *Facts) (bool, error) {
	vars := variables{Facts: f, steps: maxSteps}
	if c.usesArguments {
		var err error
		if vars.arguments, err = decode(f.Arguments, &c.namedMembers); err != nil {
			return false, fmt.Errorf("arguments: %w", err)
		}
	}
	out, _, err := c.whole.Eval(&vars)
	if err != nil {
		return false, c.withoutArguments(err)
	}
	holds, ok := out.(types.Bool)
	if !ok {
		return false, notBool(out.Type().TypeName())
	}
	return bool(holds), nil
}

// Possible evaluates the condition without the arguments. Yes and No are the result of Holds for
// all arguments for which Holds does not fail.
func (c *Condition) Possible(f *Facts) (Verdict, error) {
	vars, err := cel.PartialVars(&variables{Facts: f, steps: maxSteps}, cel.AttributePattern(argumentsName))
	if err != nil {
		return Maybe, err
	}
	out, _, err := c.partial.Eval(vars)
	switch {
	case err != nil:
		return Maybe, c.withoutArguments(err)
	case types.IsUnknown(out):
		return Maybe, nil
	case out == types.True:
		return Yes, nil
	case out == types.False:
		return No, nil
	}
	return Maybe, notBool(out.Type().TypeName())
}

func notBool(name string) error {
	return fmt.Errorf("the expression is of type %s, want bool", name)
}

// withoutArguments removes values of arguments from an error of an evaluation, because the error is
// logged.
func (c *Condition) withoutArguments(err error) error {
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded {
		return ErrSteps
	}
	cause, value, ok := strings.Cut(err.Error(), ": ")
	if ok && strings.Contains(c.expression, value) {
		cause += ": " + value
	}
	return fmt.Errorf("%.100s", cause)
}

// errorAt returns an error with its position in the expression. Columns are counted from 0.
func errorAt(line, column int, format string, args ...any) error {
	return fmt.Errorf("line %d, column %d: "+format, append([]any{line, column + 1}, args...)...)
}

// variables are the facts as an expression sees them.
type variables struct {
	*Facts
	arguments map[string]any
	steps     int // remaining
}

// ResolveName returns the variable with that name.
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case clientName:
		return v.Client, true
	case serverName:
		return v.Server, true
	case toolName:
		return v.Tool, true
	case argumentsName:
		return v.arguments, true
	case stepsName:
		return &v.steps, true
	case annotationsName:
		hints := make(map[string]bool, 4)
		v.Annotations.Hints(func(hint string, on bool) { hints[hint] = on })
		return hints, true
	}
	return nil, false
}

// Parent implements cel.Activation. There are no other variables.
func (v *variables) Parent() cel.Activation { return nil }
