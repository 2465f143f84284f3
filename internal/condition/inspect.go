package condition

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// withheld are functions that expressions cannot use. The string functions can take time or return text in proportion
// to
// the product of two lengths. timestamp reads time zone files.
var withheld = []string{"format", "indexOf", "join", "lastIndexOf", "replace", "strings.quote", "timestamp"}

var errNoLiteral = errors.New("the pattern of matches must be a literal")

// inspect records what an expression uses. It refuses expressions that are valid CEL, but always a mistake.
func (c *Condition) inspect(checked *ast.AST) (err error) {
	refuse := func(e ast.Expr, format string, args ...any) {
		if err == nil {
			start := checked.SourceInfo().GetStartLocation(e.ID())
			err = positioned(start.Line(), start.Column(), format, args...)
		}
	}
	hint := func(e, operand ast.Expr, key string) {
		if named(operand, annotationsName) && !slices.Contains(hints, key) {
			refuse(e, "unknown annotation %s; use %s", key, strings.Join(hints, ", "))
		}
	}
	loops := map[string]*place{}  // the elements that loop variables have as values
	ranges := map[string]*place{} // the ranges of loops; over an object, the variables are its keys
	compare := func(e, value ast.Expr) {
		if name, ok := literal(value); ok && e.Kind() == ast.IdentKind {
			ranges[e.AsIdent()].grow(name)
		}
	}
	var at func(ast.Expr) *place
	at = func(e ast.Expr) *place {
		switch e.Kind() {
		case ast.IdentKind:
			if named(e, argumentsName) {
				return &c.named
			}
			return loops[e.AsIdent()]
		case ast.SelectKind:
			return at(e.AsSelect().Operand()).grow(e.AsSelect().FieldName())
		case ast.CallKind:
			switch args := e.AsCall().Args(); e.AsCall().FunctionName() {
			case operators.Index:
				if key, ok := literal(args[1]); ok {
					return at(args[0]).grow(key)
				}
				return at(args[0]).growElement()
			case overloads.TypeConvertDyn:
				return at(args[0])
			}
		}
		return nil
	}
	ast.PreOrderVisit(checked.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			c.usesAnnotations = c.usesAnnotations || named(e, annotationsName)
			c.usesArguments = c.usesArguments || named(e, argumentsName)
		case ast.ComprehensionKind:
			// Partial evaluation in CEL treats a fact as known if a loop variable has the same name.
			if name := e.AsComprehension().IterVar(); slices.Contains(names, name) {
				refuse(e, "the name %s is reserved; rename the loop variable", name)
			}
			ranges[e.AsComprehension().IterVar()] = at(e.AsComprehension().IterRange())
			loops[e.AsComprehension().IterVar()] = at(e.AsComprehension().IterRange()).growElement()
		case ast.StructKind:
			refuse(e, "messages such as %s are not available", e.AsStruct().TypeName())
		case ast.SelectKind:
			hint(e, e.AsSelect().Operand(), e.AsSelect().FieldName())
			at(e)
		case ast.CallKind:
			call := e.AsCall()
			args := call.Args()
			switch name := call.FunctionName(); {
			case slices.Contains(withheld, name):
				refuse(e, "function %s is not available", name)
			case name == overloads.Matches:
				pattern, ok := literal(args[len(args)-1])
				if !ok {
					refuse(e, "%w", errNoLiteral)
				} else if _, err := regexp.Compile(pattern); err != nil {
					refuse(args[len(args)-1], "%w", err)
				}
			case name == operators.Index:
				at(e)
				if key, ok := literal(args[1]); ok {
					hint(e, args[0], key)
				}
			case name == operators.Equals, name == operators.NotEquals:
				compare(args[0], args[1])
				compare(args[1], args[0])
			case name == operators.In:
				if key, ok := literal(args[0]); ok {
					at(args[1]).grow(key)
					hint(e, args[1], key)
				}
				if args[1].Kind() == ast.ListKind {
					for _, element := range args[1].AsList().Elements() {
						compare(args[0], element)
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

// named reports whether an expression is the variable with this name.
func named(e ast.Expr, name string) bool {
	return e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == name
}

// literal returns the value of a string literal.
func literal(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().Value().(string)
	return s, ok
}
