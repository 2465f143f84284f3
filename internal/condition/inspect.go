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
