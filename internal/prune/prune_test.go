package prune

import (
	"fmt"
	"strings"
	"time"
)

// numbered is a text of n lines that have nothing to them.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "ligne %d\n", i+1)
	}
	return b.String()
}

// request is one with the options that most have.
func request(source Source, text, goal string) *Request {
	return &Request{Text: text, Goal: goal, Source: source, Options: Options{MaxPruneRatio: 0.55, MinKeepLines: 1, Timeout: time.Minute, IncludeMarkers: true}}
}
