// Package history creates tasks from git repositories. In tasks from a history, the goal is the
// subject of a commit, and the text is a file before that commit. Relevant are the lines
// that the commit changed or, if it only inserted lines, those after which it did. For tasks
// from files, see Read.
package history

import (
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
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
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
