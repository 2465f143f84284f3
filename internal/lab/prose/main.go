// Command prose checks the language of Go files and Markdown pages: words that slow readers down,
// long lines, prepositions as parameter names, and unrelated assignments in if headers.
//
//	go -C internal/lab run ./prose [-figures] [folder]
//
// It prints each finding on a line, and exits with status 1 if there are any. With -figures it
// prints counts instead.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	figures := flag.Bool("figures", false, "print counts instead of findings")
	flag.Parse()
	root := "../.."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	found, err := run(root, *figures)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
	if found {
		os.Exit(1)
	}
}

// run checks all files below a folder, and reports whether there are findings.
func run(root string, figures bool) (found bool, err error) {
	files, err := sources(root)
	if err != nil {
		return false, err
	}
	var total counts
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return false, err
		}
		if figures {
			if err := total.add(name, string(text)); err != nil {
				return false, err
			}
			continue
		}
		findings, err := check(name, text)
		if err != nil {
			return false, err
		}
		for _, f := range findings {
			fmt.Println(f)
			found = true
		}
	}
	if figures {
		total.print(os.Stdout)
	}
	return found, nil
}

// A finding is a fault in a line of a file.
type finding struct {
	file string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text) }

func check(name string, text []byte) ([]finding, error) {
	var findings []finding
	report := func(line int, text string) { findings = append(findings, finding{name, line, text}) }
	if strings.HasSuffix(name, ".md") {
		checkMarkdown(string(text), report)
	} else if err := checkGo(name, text, report); err != nil {
		return nil, err
	}
	slices.SortStableFunc(findings, func(a, b finding) int { return a.line - b.line })
	return findings, nil
}

// sources returns the Go and Markdown files below a folder, except installed and built ones.
func sources(root string) (names []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{"node_modules", "testdata", ".git", "bin", "dist"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext == ".go" || ext == ".md" {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	return names, err
}
