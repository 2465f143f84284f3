package history

import (
	"path"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
)

// Read returns tasks of the files that public repositories have at their commits, of the
// sorts that package local makes: what the comments of functions in Go say, and what
// sentences of documents refer to. There are at most limit of each sort and repository.
// Clones is as for Mine.
func Read(clones string, list []Repository, limit int) ([]task.Task, error) {
	return each(list, openClone(clones), func(r *repository) ([]task.Task, error) { return r.read(limit) })
}

// maxOfFile is how many tasks are made of one file, lest a long one decide.
const maxOfFile = 3

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
			if path.Ext(file) != sort.end || incidental.MatchString(file) || strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := r.git("cat-file", "blob", r.commit+":"+file)
			if err != nil || len(text) > maxText {
				continue // a snapshot need not have all files
			}
			of := sort.tasks(text)
			r.random.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
			for _, t := range of[:min(len(of), maxOfFile)] {
				t.Repository = r.name
				tasks = append(tasks, t)
			}
		}
		all = append(all, tasks[:min(len(tasks), limit)]...)
	}
	return all, nil
}
