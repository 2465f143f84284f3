package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A task is a text, a goal, and which of the lines the goal is about.
type task struct {
	Goal     string       `json:"goal"`
	Source   prune.Source `json:"source"`
	Text     string       `json:"text"`
	Relevant []int        `json:"relevant"` // lines, counted from 1
}

// How long texts are that a task is made of, and the part of them that is relevant.
const (
	minLines, maxLines       = 60, 2000
	minRelevant, maxFunction = 3, 80
	maxSection               = 60
)

// cut returns lines without those of [start, end), and where line at is then.
func cut(lines []string, start, end, at int) (rest []string, moved int) {
	rest = append(append(make([]string, 0, len(lines)), lines[:start]...), lines[end:]...)
	if at >= end {
		at -= end - start
	}
	return rest, at
}

// numbers returns the numbers of the lines of [start, end) that are not blank.
func numbers(lines []string, start, end int) []int {
	var all []int
	for i := start; i < end; i++ {
		if strings.TrimSpace(lines[i]) != "" {
			all = append(all, i+1)
		}
	}
	return all
}

func joinLines(lines []string) string { return strings.Join(lines, "\n") + "\n" }

func dumpTasks(path string, tasks []task) error {
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

// askGo returns what the go command prints, without the network.
func askGo(arguments ...string) (string, error) {
	command := exec.Command("go", arguments...)
	command.Env = append(os.Environ(), "GOPROXY=off")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
