package task

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestReadTasks(t *testing.T) {
	const good = `{"repo":"r","goal":"find it","source":"docs","text":"a\nb\nc\n","relevant":[3,1],"file":"x"}` + "\n"
	for _, test := range []struct {
		name, text, err string
		want            []Task
	}{
		{name: "a task per line", text: good + good, want: []Task{
			{"r", "find it", prune.Docs, "a\nb\nc\n", []int{1, 3}},
			{"r", "find it", prune.Docs, "a\nb\nc\n", []int{1, 3}},
		}},
		{name: "an empty file", text: ""},
		{name: "a line that is not JSON", text: good + "{", err: "task 2: "},
		{name: "an unknown source", text: strings.Replace(good, "docs", "poem", 1), err: `task 1: source: unknown "poem"`},
		{name: "no relevant lines", text: strings.Replace(good, "3,1", "", 1), err: "task 1: relevant: no lines"},
		{name: "a line before the first", text: strings.Replace(good, "3,1", "0,2", 1),
			err: "relevant: lines 0 to 2, but the text has 3"},
		{name: "a line after the last", text: strings.Replace(good, "3,1", "1,4", 1),
			err: "relevant: lines 1 to 4, but the text has 3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tasks.jsonl")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := Read(path)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestDumpOfTasks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.jsonl")
	want := Task{Goal: "why <so>?", Source: prune.Logs, Text: "a\nb\n", Relevant: []int{2}}
	if err := Write(path, []Task{want, want}); err != nil {
		t.Fatal(err)
	}
	dumped, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(dumped), "\n")
	if first+"\n" != second || first != `{"goal":"why <so>?","source":"logs","text":"a\nb\n","relevant":[2]}` {
		t.Errorf("got %s", dumped)
	}
	var got Task
	if err := json.Unmarshal([]byte(first), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
