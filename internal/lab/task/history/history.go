// Package history makes tasks of git repositories. Of their histories: a goal is the subject
// of a commit; the text is a file that the commit has modified, as it was before; relevant
// are the lines that the commit has changed or, if it has only inserted some, the lines
// after which. And of their files: see Read.
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

// What commits and files must be like for a subject to tell which lines matter.
const (
	minWords           = 3       // of a subject
	maxDiff            = 300_000 // bytes
	maxFiles           = 6       // that a commit modifies
	minLines, maxLines = 60, 3000
	maxText            = 200_000 // bytes
	maxRelevant        = 120     // lines
	maxRelevantShare   = 0.3     // of a file's lines
	maxOfCommit        = 2       // tasks
)

// sources says what a file is, by how its name ends.
var sources = func() map[string]prune.Source {
	all := map[string]prune.Source{}
	for _, end := range strings.Fields(".c .cc .cjs .cpp .cs .go .h .hpp .java .js .jsx .kt .mjs .php .py .rb .rs .sh .swift .ts .tsx .vue") {
		all[end] = prune.Code
	}
	for _, end := range strings.Fields(".adoc .markdown .md .mdx .rst .txt") {
		all[end] = prune.Docs
	}
	return all
}()

var (
	word = regexp.MustCompile(`[A-Za-z]{3,}`)

	// Subjects that say nothing of the lines.
	routine = regexp.MustCompile(`(?i)^(merge|bump|release|version|update (changelog|version|dep)|chore\(deps|revert|v?\d+\.\d+|\[?ci\b|prepare)` +
		`|changelog|copyright|whitespace|prettier|gofmt|typo`)

	// Files that commits change along with what they are about, or that nobody writes.
	incidental = regexp.MustCompile(`(?i)change|history|news|vendor/|\.min\.`)
)

// Mine returns the tasks that are in the histories of public repositories up to their
// commits, at most limit of each. Clones is the directory that has them as owner/name, bare
// or not. All who have cloned them get the same tasks.
func Mine(clones string, list []Repository, limit int) ([]task.Task, error) {
	return each(list, openClone(clones), func(r *repository) ([]task.Task, error) { return r.mine(limit) })
}

// openClone returns what opens a repository of which a clone is in a directory.
func openClone(clones string) func(Repository) (*repository, error) {
	return func(of Repository) (*repository, error) {
		r := newRepository(of.Name, filepath.Join(clones, filepath.FromSlash(of.Name)), of.Commit)
		if _, err := r.git("rev-parse", "--verify", "--quiet", r.commit+"^{commit}"); err != nil {
			return nil, fmt.Errorf("%s does not have commit %s of %s: git clone --bare https://github.com/%[3]s %[1]s", r.path, r.commit, r.name)
		}
		return r, nil
	}
}

// MineOwn returns the tasks that are in the histories of any repositories at these paths,
// at most limit of each. One whose path ends with the name of one that was learned from is refused: how well
// they do there says nothing.
func MineOwn(paths []string, limit int) ([]task.Task, error) {
	return each(paths, openOwn, func(r *repository) ([]task.Task, error) { return r.mine(limit) })
}

func openOwn(location string) (*repository, error) {
	absolute, err := filepath.Abs(location)
	if err != nil {
		return nil, err
	}
	name := nameOf(absolute)
	if isLearned(name) {
		return nil, fmt.Errorf("%s: the weights were learned from %s", location, name)
	}
	return newRepository(name, absolute, "HEAD"), nil
}

// each returns the tasks of many repositories, which it opens.
func each[R any](of []R, open func(R) (*repository, error), tasksOf func(*repository) ([]task.Task, error)) ([]task.Task, error) {
	tasks := make([][]task.Task, len(of))
	errs := make([]error, len(of))
	task.Each(len(of), func(i int) {
		r, err := open(of[i])
		if err == nil {
			tasks[i], err = tasksOf(r)
		}
		errs[i] = err
	})
	return slices.Concat(tasks...), errors.Join(errs...)
}

type repository struct {
	name, path string
	commit     string     // up to which its history is read
	random     *rand.Rand // the same for all of this name
}

func newRepository(name, path, commit string) *repository {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	return &repository{name, path, commit, rand.New(rand.NewPCG(seed, hash.Sum64()))}
}

// nameOf returns the last two parts of the path of a repository, which are owner/name if
// it was cloned so.
func nameOf(location string) string {
	location = strings.TrimSuffix(strings.TrimSuffix(location, string(filepath.Separator)+".git"), ".git")
	return path.Join(filepath.Base(filepath.Dir(location)), filepath.Base(location))
}

// git returns what a command of git prints. Nothing is downloaded, even if the
// repository is a part of one elsewhere.
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

// commits returns those whose subjects are goals, in random order.
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
	return utf8.ValidString(subject) && !routine.MatchString(subject) && len(word.FindAllString(subject, minWords)) == minWords
}

// mine returns at most limit tasks. Commits that git cannot read are passed over:
// a snapshot need not have all files.
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

// tasksOf returns the tasks that a commit makes.
func (r *repository) tasksOf(c commit, files []modification) []task.Task {
	if len(files) > maxFiles {
		return nil
	}
	r.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	var tasks []task.Task
	for i := range files {
		file := &files[i]
		source, ok := sources[strings.ToLower(path.Ext(file.path))]
		if !ok || incidental.MatchString(file.path) || len(file.relevant()) > maxRelevant {
			continue
		}
		text, err := r.git("cat-file", "blob", c.hash+"^:"+file.path)
		if err != nil {
			continue
		}
		t := task.Task{Repository: r.name, Goal: c.subject, Source: source, Text: text, Relevant: file.relevant()}
		if teaches(&t) {
			tasks = append(tasks, t)
		}
		if len(tasks) == maxOfCommit {
			break
		}
	}
	return tasks
}

// seed is what everything random is drawn from, beside the names of repositories.
const seed = 1

// teaches reports whether a file and the lines that were changed in it say something of
// the goal: enough lines to choose from, and few that were chosen.
func teaches(t *task.Task) bool {
	if len(t.Text) > maxText || !utf8.ValidString(t.Text) || t.Validate() != nil {
		return false
	}
	n := len(prune.Lines(t.Text))
	// Git numbers lines otherwise if some end with CR.
	asGit := strings.Count(strings.TrimSuffix(t.Text, "\n"), "\n") + 1
	return minLines <= n && n <= maxLines && n == asGit && float64(len(t.Relevant)) <= maxRelevantShare*float64(n)
}
