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
	"regexp"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
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

// environment returns the variables and functions of expressions.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable(clientName, cel.StringType),
		cel.Variable(serverName, cel.StringType),
		cel.Variable(toolName, cel.StringType),
		cel.Variable(annotationsName, cel.MapType(cel.StringType, cel.BoolType)),
		cel.Variable(argumentsName, cel.MapType(cel.StringType, cel.DynType)),
		cel.CrossTypeNumericComparisons(true),
		cel.EnableErrorOnBadPresenceTest(true),
		ext.Strings(ext.StringsVersion(5)),
	)
})

// unavailable are functions that expressions cannot use. The string functions can take time, or
// return text, in proportion to the product of two lengths. timestamp reads time zone files.
var unavailable = []string{"format", "indexOf", "join", "lastIndexOf", "replace", "strings.quote", "timestamp"}

var errNoLiteral = errors.New("the pattern of matches must be a literal")

// inspect records what an expression uses. It refuses expressions that are valid CEL, but always a
// mistake.
func (c *Condition) inspect(checked *ast.AST) (err error) {
	refuse := func(e ast.Expr, format string, args ...any) {
		if err == nil {
			start := checked.SourceInfo().GetStartLocation(e.ID())
			err = errorAt(start.Line(), start.Column(), format, args...)
		}
	}
	checkAnnotation := func(e, operand ast.Expr, key string) {
		if isVariable(operand, annotationsName) && !slices.Contains(hints, key) {
			refuse(e, "unknown annotation %s; use %s", key, strings.Join(hints, ", "))
		}
	}
	loops := map[string]*memberTree{}  // the elements that loop variables have as values
	ranges := map[string]*memberTree{} // the ranges of loops; over an object, the variables are its keys
	noteComparison := func(e, value ast.Expr) {
		if name, ok := stringLiteral(value); ok && e.Kind() == ast.IdentKind {
			ranges[e.AsIdent()].add(name)
		}
	}
	var treeOf func(ast.Expr) *memberTree
	treeOf = func(e ast.Expr) *memberTree {
		switch e.Kind() {
		case ast.IdentKind:
			if isVariable(e, argumentsName) {
				return &c.namedMembers
			}
			return loops[e.AsIdent()]
		case ast.SelectKind:
			return treeOf(e.AsSelect().Operand()).add(e.AsSelect().FieldName())
		case ast.CallKind:
			switch args := e.AsCall().Args(); e.AsCall().FunctionName() {
			case operators.Index:
				if key, ok := stringLiteral(args[1]); ok {
					return treeOf(args[0]).add(key)
				}
				return treeOf(args[0]).addElement()
			case overloads.TypeConvertDyn:
				return treeOf(args[0])
			}
		}
		return nil
	}
	ast.PreOrderVisit(checked.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			c.usesAnnotations = c.usesAnnotations || isVariable(e, annotationsName)
			c.usesArguments = c.usesArguments || isVariable(e, argumentsName)
		case ast.ComprehensionKind:
			// Partial evaluation in CEL treats a fact as known if a loop variable has the same
			// name.
			if name := e.AsComprehension().IterVar(); slices.Contains(names, name) {
				refuse(e, "the name %s is reserved; rename the loop variable", name)
			}
			ranges[e.AsComprehension().IterVar()] = treeOf(e.AsComprehension().IterRange())
			loops[e.AsComprehension().IterVar()] = treeOf(e.AsComprehension().IterRange()).addElement()
		case ast.StructKind:
			refuse(e, "messages such as %s are not available", e.AsStruct().TypeName())
		case ast.SelectKind:
			checkAnnotation(e, e.AsSelect().Operand(), e.AsSelect().FieldName())
			treeOf(e)
		case ast.CallKind:
			call := e.AsCall()
			args := call.Args()
			switch name := call.FunctionName(); {
			case slices.Contains(unavailable, name):
				refuse(e, "function %s is not available", name)
			case name == overloads.Matches:
				pattern, ok := stringLiteral(args[len(args)-1])
				if !ok {
					refuse(e, "%w", errNoLiteral)
				} else if _, err := regexp.Compile(pattern); err != nil {
					refuse(args[len(args)-1], "%w", err)
				}
			case name == operators.Index:
				treeOf(e)
				if key, ok := stringLiteral(args[1]); ok {
					checkAnnotation(e, args[0], key)
				}
			case name == operators.Equals, name == operators.NotEquals:
				noteComparison(args[0], args[1])
				noteComparison(args[1], args[0])
			case name == operators.In:
				if key, ok := stringLiteral(args[0]); ok {
					treeOf(args[1]).add(key)
					checkAnnotation(e, args[1], key)
				}
				if args[1].Kind() == ast.ListKind {
					for _, element := range args[1].AsList().Elements() {
						noteComparison(args[0], element)
					}
				}
			}
		}
	}))
	return err
}

// hints are the keys of the annotations.
var hints = func() (keys []string) {
	mcp.Annotations(0).Hints(func(hint string, _ bool) { keys = append(keys, hint) })
	return keys
}()

// isVariable reports whether an expression is the variable with this name.
func isVariable(e ast.Expr, name string) bool {
	return e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == name
}

// stringLiteral returns the value of a string literal.
func stringLiteral(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().Value().(string)
	return s, ok
}
