package local

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// codeTasks draws n files of Go's sources and one function of each.
func codeTasks(seed uint64, n int) ([]task.Task, error) {
	root, err := runGo("env", "GOROOT")
	if err != nil {
		return nil, err
	}
	files, err := goFiles(filepath.Join(root, "src"))
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	var tasks []task.Task
	for _, path := range files {
		if len(tasks) == n {
			break
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if found := FunctionTasks(string(source)); len(found) > 0 {
			tasks = append(tasks, found[random.IntN(len(found))])
		}
	}
	return tasks, nil
}

// goFiles returns the Go files below a directory, without tests and vendored packages.
func goFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := entry.Name(); {
		case entry.IsDir() && (name == "testdata" || name == "vendor"):
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// FunctionTasks returns a task for each function in a file whose comment can serve as a goal.
func FunctionTasks(source string) []task.Task {
	lines := prune.Lines(source)
	if len(lines) < minLines || len(lines) > maxLines {
		return nil
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil
	}
	line := func(p token.Pos) int { return set.PositionFor(p, false).Line }
	var tasks []task.Task
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Doc == nil {
			continue
		}
		goal, ok := goalOf(function.Doc.Text(), function.Name.Name)
		start, end := line(function.Pos()), line(function.End())
		if size := end - start + 1; !ok || size < minRelevant || size > maxFunction {
			continue
		}
		rest, first := cut(lines, line(function.Doc.Pos())-1, line(function.Doc.End()), start-1)
		tasks = append(tasks, task.Task{
			Goal:     goal,
			Source:   prune.Code,
			Text:     joinLines(rest),
			Relevant: numbers(rest, first, first+end-start+1),
		})
	}
	return tasks
}

// goalOf returns the first sentence of a function's comment without the function's name. There
// is no goal if the comment does not start with the name, repeats it, or is too short.
func goalOf(comment, name string) (goal string, ok bool) {
	sentence := new(doc.Package).Synopsis(comment)
	goal, ok = strings.CutPrefix(sentence, name+" ")
	return goal, ok && len(strings.Fields(goal)) >= 4 && !hasWord(goal, name)
}

// hasWord reports whether a text contains a word, ignoring case.
func hasWord(text, word string) bool {
	return regexp.MustCompile(`(?i)(^|\W)` + regexp.QuoteMeta(word) + `(\W|$)`).MatchString(text)
}
