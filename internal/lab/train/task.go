package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A task is a text, a goal, and which of the lines the goal is about.
type task struct {
	Repository string       `json:"repo"` // or nothing
	Goal       string       `json:"goal"`
	Source     prune.Source `json:"source"`
	Text       string       `json:"text"`
	Relevant   []int        `json:"relevant"` // lines, counted from 1, in order
}

func byRepository(a, b task) int { return cmp.Compare(a.Repository, b.Repository) }

// readTasks reads a file of tasks.
func readTasks(path string) ([]task, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var tasks []task
	decoder := json.NewDecoder(file)
	for {
		var t task
		err := decoder.Decode(&t)
		if err == io.EOF {
			return tasks, nil
		}
		if err == nil {
			err = t.validate()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: task %d: %w", path, len(tasks)+1, err)
		}
		tasks = append(tasks, t)
	}
}

func (t *task) validate() error {
	if _, ok := prune.ParseSource(string(t.Source)); !ok {
		return fmt.Errorf("source: there is no %q", t.Source)
	}
	if len(t.Relevant) == 0 {
		return errors.New("relevant: there is no line")
	}
	slices.Sort(t.Relevant)
	t.Relevant = slices.Compact(t.Relevant)
	n := len(prune.Lines(t.Text))
	if first, last := t.Relevant[0], t.Relevant[len(t.Relevant)-1]; first < 1 || last > n {
		return fmt.Errorf("relevant: lines %d to %d of a text that has %d", first, last, n)
	}
	return nil
}
