// Package task has tasks for the commands that measure and train package prune: texts with
// goals and known relevant lines. The packages below it create tasks.
package task

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A Task is a text, a goal, and the lines that are relevant to the goal.
type Task struct {
	Repository string       `json:"repo,omitempty"` // owner/name, or empty
	Goal       string       `json:"goal"`
	Source     prune.Source `json:"source"`
	Text       string       `json:"text"`
	Relevant   []int        `json:"relevant"` // line numbers from 1, sorted
}

// ByRepository compares tasks by repository.
func ByRepository(a, b Task) int { return cmp.Compare(a.Repository, b.Repository) }

// Read reads a file of tasks, one JSON object per line.
func Read(path string) ([]Task, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var tasks []Task
	decoder := json.NewDecoder(file)
	for {
		var t Task
		err := decoder.Decode(&t)
		if err == io.EOF {
			return tasks, nil
		}
		if err == nil {
			err = t.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: task %d: %w", path, len(tasks)+1, err)
		}
		tasks = append(tasks, t)
	}
}

// Write writes tasks to a file in the format of Read.
func Write(path string, tasks []Task) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(file)
	encoder.SetEscapeHTML(false)
	for i := range tasks {
		if err := encoder.Encode(&tasks[i]); err != nil {
			file.Close()
			return err
		}
	}
	return file.Close()
}

// Validate checks a task and sorts its relevant lines.
func (t *Task) Validate() error {
	if _, ok := prune.ParseSource(string(t.Source)); !ok {
		return fmt.Errorf("source: unknown %q", t.Source)
	}
	if len(t.Relevant) == 0 {
		return errors.New("relevant: no lines")
	}
	slices.Sort(t.Relevant)
	t.Relevant = slices.Compact(t.Relevant)
	n := len(prune.Lines(t.Text))
	if first, last := t.Relevant[0], t.Relevant[len(t.Relevant)-1]; first < 1 || last > n {
		return fmt.Errorf("relevant: lines %d to %d, but the text has %d", first, last, n)
	}
	return nil
}

// Each calls do for 0 to n-1, with as many goroutines as there are processors.
func Each(n int, do func(i int)) {
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
}
