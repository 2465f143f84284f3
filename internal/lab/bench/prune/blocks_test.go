package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestBlocks(t *testing.T) {
	for _, test := range []struct {
		name   string
		source prune.Source
		text   string // lines, each after a letter for its block and * if it names the block
	}{
		{"functions with their comments, and lines outside of functions", prune.Code, `
a  import "os"
b  
c  // Open opens.
c* func Open() {
c  	x()
c  
c  	y()
c  }
c  
d* func Close() {
d  	z()
d  }`},
		{"methods in a class", prune.Code, `
a* class Shop:
a      open = True
b      @cached
b*     def sell(self):
b          pass
b  
c*     def buy(self):
c          pass`},
		{"functions with heads of several lines", prune.Code, `
a  int
b* sum(int a,
b      int b)
b  {
b  #ifdef X
b  	if (a) {
b  		call(a);
b  	}
b  #endif
b  }
c  int x = call(1);`},
		{"sections, but not comments in fences", prune.Docs, `
a  An introduction
b* # First
b  
b  ` + "```" + `sh
b  # not a heading
b  ` + "```" + `
c* Second
c  ------
c  words`},
		{"records of logs", prune.Logs, `
a  INFO start
b  ERROR panic
b    at main.go:1
c  INFO end`},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines := strings.Split(strings.TrimPrefix(test.text, "\n"), "\n")
			var content []string
			for _, line := range lines {
				content = append(content, line[min(3, len(line)):])
			}
			blocks, heads := newText(strings.Join(content, "\n"), "", test.source).blocks()
			letters := map[int]rune{}
			for i, line := range lines {
				letter, ok := letters[blocks[i]]
				if !ok {
					letter = 'a' + rune(len(letters))
					letters[blocks[i]] = letter
				}
				name := " "
				if heads[i] == i {
					name = "*"
				}
				if got := fmt.Sprintf("%c%s", letter, name); got != line[:2] {
					t.Errorf("line %d, %q: got %s", i+1, line, got)
				}
			}
		})
	}
}
