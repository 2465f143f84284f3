package main

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// collections summarizes the garbage collections of a process, from GODEBUG=gctrace=1.
type collections struct {
	n       int
	pause   time.Duration // longest pause
	largest int           // largest heap, in MiB
}

// gcTraceLine matches a line such as
//
//	gc 7 @1.2s 0%: 0.03+1.5+0.02 ms clock, 0.06+0.2/1.4/0+0.04 ms cpu, 7->8->4 MB, 8 MB goal, …
//
// The first and the last time of the clock are pauses of the program.
var gcTraceLine = regexp.MustCompile(`(?m)^gc \d+ @\S+ \S+ ([\d.]+)\+[\d.]+\+([\d.]+) ms clock, ` +
	`.* ms cpu, \d+->(\d+)->\d+ MB`)

// readCollections reads the trace in the output of a process.
func readCollections(output string) (c collections) {
	for _, line := range gcTraceLine.FindAllStringSubmatch(output, -1) {
		for _, text := range line[1:3] {
			ms, _ := strconv.ParseFloat(text, 64) // a number, as it matches
			c.pause = max(c.pause, time.Duration(ms*float64(time.Millisecond)))
		}
		heap, _ := strconv.Atoi(line[3])
		c.n, c.largest = c.n+1, max(c.largest, heap)
	}
	return c
}

func (c collections) String(spent time.Duration) string {
	if c.n == 0 {
		return noFigure
	}
	return fmt.Sprintf("%.1f, %s, %d", float64(c.n)/spent.Seconds(), milliseconds(c.pause), c.largest)
}
