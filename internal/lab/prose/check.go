package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// prepositions are not names of parameters, because they do not say what a value is. The types are
// those for which Go programmers use them.
var prepositions = map[string][]string{
	"of": nil, "or": nil, "by": nil,
	"at": {"time.Time", "int"},
	"in": {"io.Reader"},
}

// checkGo checks the comments, strings and lines of a Go file, the names of parameters,
// and assignments in the headers of if statements.
func checkGo(name string, text []byte, report func(line int, text string)) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	line := func(n ast.Node) int { return files.Position(n.Pos()).Line }
	unbroken := make(map[int]bool) // lines with a long string, or inside one
	for _, group := range file.Comments {
		// Without the slashes, a phrase is found even if it continues on the next line.
		var comment strings.Builder
		for _, c := range group.List {
			comment.WriteString(strings.Replace(c.Text, "//", "  ", 1) + "\n")
		}
		checkWords(comment.String(), line(group), report)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				checkWords(n.Value, line(n), report)
				unbroken[line(n)] = unbroken[line(n)] || len(n.Value) > maxGo*3/4
				for i := range strings.Count(n.Value, "\n") {
					unbroken[line(n)+i+1] = true
				}
			}
		case *ast.FuncType:
			for _, field := range n.Params.List {
				for _, name := range field.Names {
					types, ok := prepositions[name.Name]
					if ok && !slices.Contains(types, typeName(field.Type)) {
						report(line(name), `the parameter "`+name.Name+`" has a preposition for a name`)
					}
				}
			}
		case *ast.IfStmt:
			if names := unrelated(n); names != nil {
				report(line(n), "the if header assigns "+strings.Join(names, ", ")+", which the condition does not use")
			}
		}
		return true
	})
	for i, text := range strings.Split(string(text), "\n") {
		if !unbroken[i+1] {
			checkWidth(i+1, text, maxGo, report)
		}
	}
	return nil
}

// typeName returns the name of a type, with its package. It returns "" for other types.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	}
	return ""
}

// unrelated returns the variables that the header of an if statement assigns, if the condition uses
// none of them.
func unrelated(n *ast.IfStmt) (names []string) {
	assign, ok := n.Init.(*ast.AssignStmt)
	if !ok {
		return nil
	}
	for _, left := range assign.Lhs {
		name := root(left)
		if name == "" || uses(n.Cond, name) {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// root returns the last name of an assigned expression: "b" for a.b and a.b[i].
func root(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return root(e.X)
	case *ast.StarExpr:
		return root(e.X)
	}
	return ""
}

func uses(e ast.Expr, name string) (used bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		used = used || ok && id.Name == name
		return !used
	})
	return used
}

const (
	maxMarkdown = 100
	maxGo       = 120
)

// unwrappable matches text that Markdown, or a program that reads the page, needs on one line: a
// row of a table, an image, a long link, long code.
var unwrappable = regexp.MustCompile("^\\s*\\||^!\\[|\\S{76,}|`[^`]{70,}`")

// checkMarkdown checks the words and lines of a page, except code blocks. Lines between comments that
// say where a generated part begins and ends may have any length.
func checkMarkdown(text string, report func(line int, text string)) {
	prose := withoutCode(text)
	checkWords(prose, 1, report)
	generated := false
	for i, line := range strings.Split(prose, "\n") {
		if strings.HasPrefix(line, "<!--") {
			generated = strings.HasSuffix(line, "begins -->")
		}
		if !generated && !unwrappable.MatchString(line) {
			checkWidth(i+1, line, maxMarkdown, report)
		}
	}
}

// withoutCode returns a page with the lines of code blocks emptied.
func withoutCode(text string) string {
	lines := strings.Split(text, "\n")
	fence := ""
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			lines[i] = ""
		case strings.HasPrefix(line, "\t"):
			lines[i] = ""
		case strings.HasPrefix(trimmed, "```"):
			fence = trimmed[:len(trimmed)-len(strings.TrimLeft(trimmed, "`"))]
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

func isTable(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "|") }

func checkWidth(line int, text string, width int, report func(line int, text string)) {
	if n := utf8.RuneCountInString(text); n > width {
		report(line, "the line has "+strconv.Itoa(n)+" columns, of "+strconv.Itoa(width))
	}
}
