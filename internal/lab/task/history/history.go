// Package history creates tasks from git repositories. In tasks from a history, the goal is the
// subject of a commit, and the text is a file before that commit. Relevant are the lines
// that the commit changed or, if it only inserted lines, those after which it did. For tasks
// from files, see Read.
package history

import (
	_ "embed"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// Limits for commits and files, so that a subject says which lines matter.
const (
	minWords           = 3       // words of a subject
	maxDiff            = 300_000 // bytes
	maxFiles           = 6       // files that a commit modifies
	minLines, maxLines = 60, 3000
	maxText            = 200_000 // bytes
	maxRelevant        = 120     // lines
	maxRelevantShare   = 0.3     // share of a file's lines
	maxTasksPerCommit  = 2       // tasks per commit
)

// sources has the source of a file by its extension.
var sources = func() map[string]prune.Source {
	all := map[string]prune.Source{}
	for _, end := range strings.Fields(".c .cc .cjs .cpp .cs .go .h .hpp .java .js .jsx .kt .mjs .php .py .rb .rs .sh " +
		".swift .ts .tsx .vue") {
		all[end] = prune.Code
	}
	for _, end := range strings.Fields(".adoc .markdown .md .mdx .rst .txt") {
		all[end] = prune.Docs
	}
	return all
}()

var (
	word = regexp.MustCompile(`[A-Za-z]{3,}`)

	// Subjects that say nothing about the lines.
	routineSubject = regexp.MustCompile(`(?i)^(merge|bump|release|version|update ` +
		`(changelog|version|dep)|chore\(deps|revert|v?\d+\.\d+|\[?ci\b|prepare)` +
		`|changelog|copyright|whitespace|prettier|gofmt|typo`)

	// Files that change with every commit, or that are generated.
	skippedFile = regexp.MustCompile(`(?i)change|history|news|vendor/|\.min\.`)
)

// Mine returns tasks from the histories of public repositories up to their commits, at most
// limit of each. Clones is the directory with clones of them as owner/name, bare or not. The
// tasks are the same on every machine.
func Mine(clones string, list []Repository, limit int) ([]task.Task, error) {
	return collectTasks(list, openClone(clones), func(r *repository) ([]task.Task, error) { return r.mine(limit) })
}

// openClone returns a function that opens a repository by its clone in a directory.
func openClone(clones string) func(Repository) (*repository, error) {
	return func(public Repository) (*repository, error) {
		r := newRepository(public.Name, filepath.Join(clones, filepath.FromSlash(public.Name)), public.Commit)
		if _, err := r.git("rev-parse", "--verify", "--quiet", r.commit+"^{commit}"); err != nil {
			return nil, fmt.Errorf("%s does not have commit %s of %s: git clone --bare https://github.com/%[3]s %[1]s", r.path,
				r.commit, r.name)
		}
		return r, nil
	}
}

// MinePaths returns tasks from the histories of the repositories at these paths, at most limit of
// each. It refuses a path that ends with the name of a repository in Learned, because results
// on training data say nothing.
func MinePaths(paths []string, limit int) ([]task.Task, error) {
	return collectTasks(paths, openPath, func(r *repository) ([]task.Task, error) { return r.mine(limit) })
}

func openPath(location string) (*repository, error) {
	absolute, err := filepath.Abs(location)
	if err != nil {
		return nil, err
	}
	name := nameOf(absolute)
	if isLearned(name) {
		return nil, fmt.Errorf("%s: the weights are trained on %s", location, name)
	}
	return newRepository(name, absolute, "HEAD"), nil
}

// collectTasks opens repositories and returns their tasks.
func collectTasks[R any](list []R, open func(R) (*repository, error), tasksOf func(*repository) ([]task.Task,
	error)) ([]task.Task, error) {
	tasks := make([][]task.Task, len(list))
	errs := make([]error, len(list))
	task.Each(len(list), func(i int) {
		r, err := open(list[i])
		if err == nil {
			tasks[i], err = tasksOf(r)
		}
		errs[i] = err
	})
	return slices.Concat(tasks...), errors.Join(errs...)
}

type repository struct {
	name, path string
	commit     string     // last commit of the history
	random     *rand.Rand // seeded with the name
}

func newRepository(name, path, commit string) *repository {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	return &repository{name, path, commit, rand.New(rand.NewPCG(seed, hash.Sum64()))}
}

// nameOf returns the last two elements of a repository's path: owner/name if it was cloned so.
func nameOf(location string) string {
	location = strings.TrimSuffix(strings.TrimSuffix(location, string(filepath.Separator)+".git"), ".git")
	return path.Join(filepath.Base(filepath.Dir(location)), filepath.Base(location))
}

// git returns the output of a git command. It downloads nothing, even in a partial clone.
func (r *repository) git(arguments ...string) (string, error) {
	command := exec.Command("git", append([]string{"-C", r.path, "-c", "core.quotePath=false"}, arguments...)...)
	command.Env = append(os.Environ(), "GIT_NO_LAZY_FETCH=1", "GIT_TERMINAL_PROMPT=0")
	out, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s: git %s: %w: %s", r.path, arguments[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

type commit struct{ hash, subject string }

// commits returns the commits whose subjects are goals, in random order.
func (r *repository) commits() ([]commit, error) {
	log, err := r.git("log", "--no-merges", "--format=%H %s", r.commit, "--")
	if err != nil {
		return nil, err
	}
	var all []commit
	for line := range strings.Lines(log) {
		hash, subject, _ := strings.Cut(strings.TrimSpace(line), " ")
		if isGoal(subject) {
			all = append(all, commit{hash, subject})
		}
	}
	r.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}

func isGoal(subject string) bool {
	return utf8.ValidString(subject) && !routineSubject.MatchString(subject) &&
		len(word.FindAllString(subject, minWords)) == minWords
}

// mine returns at most limit tasks. It skips commits that git cannot read: a snapshot may lack
// some files.
func (r *repository) mine(limit int) ([]task.Task, error) {
	commits, err := r.commits()
	if err != nil {
		return nil, err
	}
	var tasks []task.Task
	for _, c := range commits {
		if len(tasks) >= limit {
			break
		}
		diff, err := r.git("diff-tree", "-r", "-p", "-U0", "-w", "--no-commit-id", "--no-renames", "--diff-filter=M", c.hash)
		if err != nil || len(diff) > maxDiff {
			continue
		}
		tasks = append(tasks, r.tasksOf(c, parseDiff(diff))...)
	}
	return tasks[:min(len(tasks), limit)], nil
}

// tasksOf returns the tasks from a commit.
func (r *repository) tasksOf(c commit, files []modification) []task.Task {
	if len(files) > maxFiles {
		return nil
	}
	r.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	var tasks []task.Task
	for i := range files {
		file := &files[i]
		source, ok := sources[strings.ToLower(path.Ext(file.path))]
		if !ok || skippedFile.MatchString(file.path) || len(file.relevant()) > maxRelevant {
			continue
		}
		text, err := r.git("cat-file", "blob", c.hash+"^:"+file.path)
		if err != nil {
			continue
		}
		t := task.Task{Repository: r.name, Goal: c.subject, Source: source, Text: text, Relevant: file.relevant()}
		if isUseful(&t) {
			tasks = append(tasks, t)
		}
		if len(tasks) == maxTasksPerCommit {
			break
		}
	}
	return tasks
}

// seed is the seed of all random choices, together with the names of repositories.
const seed = 1

// isUseful reports whether a task is useful: enough lines to choose from, few of them relevant.
func isUseful(t *task.Task) bool {
	if len(t.Text) > maxText || !utf8.ValidString(t.Text) || t.Validate() != nil {
		return false
	}
	n := len(prune.Lines(t.Text))
	// Git numbers lines differently if some end with CR alone.
	asGit := strings.Count(strings.TrimSuffix(t.Text, "\n"), "\n") + 1
	return minLines <= n && n <= maxLines && n == asGit && float64(len(t.Relevant)) <= maxRelevantShare*float64(n)
}

// Read returns tasks from the files of public repositories at their commits, as package local
// creates them: from comments of Go functions, and from sentences of documents that refer to
// a section. There are at most limit of each kind and repository. Clones is as in Mine.
func Read(clones string, list []Repository, limit int) ([]task.Task, error) {
	return collectTasks(list, openClone(clones), func(r *repository) ([]task.Task, error) { return r.read(limit) })
}

// maxTasksPerFile is the maximum number of tasks from one file, so that long files do not dominate.
const maxTasksPerFile = 3

func (r *repository) read(limit int) ([]task.Task, error) {
	listed, err := r.git("ls-tree", "-r", "-z", "--name-only", r.commit)
	if err != nil {
		return nil, err
	}
	files := strings.Split(listed, "\x00")
	r.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	var all []task.Task
	for _, sort := range []struct {
		end   string
		tasks func(text string) []task.Task
	}{
		{".go", local.FunctionTasks},
		{".md", local.ReferenceTasks},
	} {
		var tasks []task.Task
		for _, file := range files {
			if len(tasks) >= limit {
				break
			}
			if path.Ext(file) != sort.end || skippedFile.MatchString(file) || strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := r.git("cat-file", "blob", r.commit+":"+file)
			if err != nil || len(text) > maxText {
				continue // a snapshot may lack some files
			}
			found := sort.tasks(text)
			r.random.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
			for _, t := range found[:min(len(found), maxTasksPerFile)] {
				t.Repository = r.name
				tasks = append(tasks, t)
			}
		}
		all = append(all, tasks[:min(len(tasks), limit)]...)
	}
	return all, nil
}

// A modification is the change of a commit to a file that exists before and after it. Line
// numbers start at 1 and refer to the file before.
type modification struct {
	path     string
	changed  []int // changed or removed lines
	inserted []int // lines after which others were inserted
}

// relevant returns the lines that the commit is about: those that it changed, or else those
// after which it inserted others.
func (m *modification) relevant() []int {
	if len(m.changed) > 0 {
		return m.changed
	}
	return m.inserted
}

// hunkHeader matches the position and number of the old lines and the number of the new
// lines. A missing number is 1.
var hunkHeader = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

// parseDiff parses a diff of git without context. It skips files whose names git quotes.
func parseDiff(diff string) []modification {
	var (
		all  []modification
		file *modification
	)
	for rest := diff; rest != ""; {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		if strings.HasPrefix(line, "diff ") {
			file = nil
		}
		if path, ok := strings.CutPrefix(line, "--- a/"); ok {
			// A tab ends a name that has spaces.
			all = append(all, modification{path: strings.TrimSuffix(path, "\t")})
			file = &all[len(all)-1]
		}
		hunk := hunkHeader.FindStringSubmatch(line)
		if hunk == nil {
			continue
		}
		start, before, after := count(hunk[1]), count(hunk[2]), count(hunk[3])
		// Skip the lines, which may look like a header.
		for range before + after {
			_, rest, _ = strings.Cut(rest, "\n")
		}
		if file != nil {
			file.add(start, before)
		}
	}
	return all
}

func (m *modification) add(start, before int) {
	if before == 0 {
		// For an insertion before the first line, git reports line 0.
		m.inserted = append(m.inserted, max(start, 1))
	}
	for i := range before {
		m.changed = append(m.changed, start+i)
	}
}

// count parses a number in a hunk header.
func count(digits string) int {
	if digits == "" {
		return 1
	}
	n, _ := strconv.Atoi(digits)
	return n
}

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
