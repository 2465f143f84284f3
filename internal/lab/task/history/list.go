package history

import (
	_ "embed"
	"slices"
	"strings"
)

// A Repository is a public repository and a commit up to which its history is used.
type Repository struct {
	Name   string // owner/name on github.com
	Commit string
}

var (
	//go:embed learned.txt
	learned string
	//go:embed measured.txt
	measured string
)

// Learned returns the repositories that the weights of package prune are trained on.
func Learned() []Repository { return list(learned) }

// Measured returns repositories for measuring the weights, which are not trained on them.
func Measured() []Repository { return list(measured) }

// list parses lines with a name and a commit.
func list(text string) (all []Repository) {
	for line := range strings.Lines(text) {
		name, commit, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		all = append(all, Repository{name, commit})
	}
	return all
}

// LearnedModules returns the Go module paths of the repositories in Learned.
func LearnedModules() (modules []string) {
	for _, r := range Learned() {
		modules = append(modules, "github.com/"+r.Name)
	}
	return modules
}

// isLearned reports whether the weights are trained on a repository with this name. Case does
// not matter, as on GitHub.
func isLearned(name string) bool {
	return slices.ContainsFunc(Learned(), func(r Repository) bool { return strings.EqualFold(r.Name, name) })
}
