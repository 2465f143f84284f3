package history

import (
	"path"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
)

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
