package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are the pages that name tests as evidence.
var documents = []string{"SECURITY.md", "docs/reliability.md"}

// Every test that a page names exists.
func TestDocumentsNameTests(t *testing.T) {
	isolate(t)
	const root = "../../.."
	declared := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if name := entry.Name(); err == nil && entry.IsDir() && (name == "node_modules" || name == ".git") {
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range function.FindAllSubmatch(source, -1) {
			declared[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	for _, document := range documents {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		all := named.FindAllSubmatch(text, -1)
		if len(all) == 0 {
			t.Errorf("%s names no test", document)
		}
		for _, found := range all {
			if name := string(found[1]); !declared[name] {
				t.Errorf("%s names the unknown test %s", document, name)
			}
		}
	}
}
