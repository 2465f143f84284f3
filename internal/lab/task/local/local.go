// Package local creates tasks from files that every machine has that builds this project. It
// downloads nothing.
//
//   - code: a file of Go's sources without the comment of one of its functions. The goal is
//     the first sentence of that comment without the function's name. The lines of the
//     function are relevant.
//   - docs: a Markdown file of a module in go.mod, or a part of Go's specification, without
//     the lines of a sentence that refers to another section. The goal is that sentence. The
//     lines of the section are relevant. There may be fewer tasks than requested.
//   - logs: the output of go test -v for a module with one failing test, which fails in one of
//     many ways, among many that pass. The goal is what a person who has seen the symptom
//     might say. The lines about the failure are relevant: its messages, the stack that
//     leads to it, its FAIL line. Durations, addresses, paths and numbers of goroutines, which
//     differ between runs, are normalized.
//
// Blank lines are never relevant.
package local

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A Sample is the number of tasks of each source.
type Sample struct {
	Seed             uint64
	Code, Docs, Logs int

	// Without are modules whose documents are excluded.
	Without []string
}

// Flags defines flags of the command for a sample.
func (s *Sample) Flags() {
	flag.IntVar(&s.Code, "code", 300, "`number` of tasks from Go's sources")
	flag.IntVar(&s.Docs, "docs", 100, "`number` of tasks from documents of modules")
	flag.IntVar(&s.Logs, "logs", 60, "`number` of tasks from failing tests")
	flag.Uint64Var(&s.Seed, "seed", 1, "`seed` of the random tasks")
}

// Tasks creates the tasks. There may be fewer from documents. The same numbers, Go and go.mod
// give the same tasks.
func (s *Sample) Tasks() ([]task.Task, error) {
	switch {
	case s.Code < 0 || s.Docs < 0 || s.Logs < 0:
		return nil, errors.New("-code, -docs and -logs: must not be negative")
	case s.Code+s.Docs+s.Logs == 0:
		return nil, errors.New("-code, -docs and -logs: no tasks")
	}
	var all []task.Task
	for _, kind := range []struct {
		source prune.Source
		n      int
		tasks  func(seed uint64, n int) ([]task.Task, error)
	}{
		{prune.Code, s.Code, codeTasks},
		{prune.Docs, s.Docs, s.docsTasks},
		{prune.Logs, s.Logs, logTasks},
	} {
		if kind.n == 0 {
			continue
		}
		tasks, err := kind.tasks(s.Seed, kind.n)
		if err != nil {
			return nil, fmt.Errorf("tasks of %s: %w", kind.source, err)
		}
		all = append(all, tasks...)
	}
	return all, nil
}

// Limits for texts and their relevant parts, in lines.
const (
	minLines, maxLines       = 60, 2000
	minRelevant, maxFunction = 3, 80
	maxSection               = 60
)

// cut returns lines without [start, end), and the new index of line.
func cut(lines []string, start, end, line int) (rest []string, moved int) {
	rest = append(append(make([]string, 0, len(lines)), lines[:start]...), lines[end:]...)
	if line >= end {
		line -= end - start
	}
	return rest, line
}

// numbers returns the numbers of the non-blank lines in [start, end).
func numbers(lines []string, start, end int) []int {
	var all []int
	for i := start; i < end; i++ {
		if strings.TrimSpace(lines[i]) != "" {
			all = append(all, i+1)
		}
	}
	return all
}

func joinLines(lines []string) string { return strings.Join(lines, "\n") + "\n" }

// runGo returns the output of a go command, which must not use the network.
func runGo(arguments ...string) (string, error) {
	command := exec.Command("go", arguments...)
	command.Env = append(os.Environ(), "GOPROXY=off")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

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
