package history

import (
	_ "embed"
	"slices"
	"strings"
)

// A Repository is a public one, up to a commit of its history.
type Repository struct {
	Name   string // owner/name at github.com
	Commit string
}

var (
	//go:embed learned.txt
	learned string
	//go:embed measured.txt
	measured string
)

// Learned returns the repositories that the weights of package prune were learned from.
func Learned() []Repository { return list(learned) }

// Measured returns repositories that no weights were learned from, to measure them by.
func Measured() []Repository { return list(measured) }

// list reads lines of a name and a commit.
func list(text string) (all []Repository) {
	for line := range strings.Lines(text) {
		name, commit, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		all = append(all, Repository{name, commit})
	}
	return all
}

// LearnedModules returns the modules of Go that the repositories learned from are.
func LearnedModules() (modules []string) {
	for _, r := range Learned() {
		modules = append(modules, "github.com/"+r.Name)
	}
	return modules
}

// isLearned reports whether the weights were learned from a repository of this name, in
// any case, as GitHub has it.
func isLearned(name string) bool {
	return slices.ContainsFunc(Learned(), func(r Repository) bool { return strings.EqualFold(r.Name, name) })
}
