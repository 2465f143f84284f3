package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// noFigure replaces a figure that is missing. Notes say why.
const noFigure = "–"

// A table is printed as Markdown, with notes below it.
type table struct {
	title string // head of the first column
	heads []string
	rows  []row
	notes []string
}

type row struct {
	name  string
	cells []string
}

func (t *table) add(name string, cells ...string) { t.rows = append(t.rows, row{name, cells}) }

// addNone adds a row without figures.
func (t *table) addNone(name string) { t.add(name, slices.Repeat([]string{noFigure}, len(t.heads))...) }

// note adds a note, unless the table already has it.
func (t *table) note(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(t.notes, note) {
		t.notes = append(t.notes, note)
	}
}

func (t *table) print(w io.Writer) {
	fmt.Fprintf(w, "| %s | %s |\n|---|%s\n", t.title, strings.Join(t.heads, " | "), strings.Repeat("--:|", len(t.heads)))
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s | %s |\n", r.name, strings.Join(r.cells, " | "))
	}
	fmt.Fprintln(w)
	for _, note := range t.notes {
		fmt.Fprintf(w, "- %s\n", note)
	}
	if len(t.notes) > 0 {
		fmt.Fprintln(w)
	}
}

// printCalls prints the tables for the cases of one kind.
func printCalls(w io.Writer, contestants []contestant, cases []callCase, results []map[string]*measure) {
	k := cases[0].kind
	fmt.Fprintf(w, "### %s\n\n", k.heading)
	if k.intro != "" {
		fmt.Fprintf(w, "%s\n\n", k.intro)
	}
	var heads []string
	for _, c := range cases {
		heads = append(heads, c.head())
	}
	for i, figure := range k.figures {
		fmt.Fprintf(w, "**%s**\n\n", figure.heading)
		t := table{title: "size of results × clients", heads: heads}
		for _, c := range contestants {
			var cells []string
			for j, measures := range results {
				m := measures[c.id()]
				cells = append(cells, cellOf(m, figure.cell))
				if i == 0 {
					t.noteFailures(c.id(), cases[j], m)
				}
			}
			t.add(c.id(), cells...)
		}
		if figure.heading == relative.heading {
			for _, name := range []string{direct, baseline} {
				if results[0][name] != nil {
					addRates(&t, name, results)
				}
			}
		}
		t.print(w)
	}
}

// cellOf returns the figure of a measure, or noFigure.
func cellOf(m *measure, figure func(*measure) string) string {
	if m == nil || len(m.latencies) == 0 || len(m.ratios) == 0 {
		return noFigure
	}
	cell := figure(m)
	if m.failed > 0 {
		cell += fmt.Sprintf(" (%d failed)", m.failed)
	}
	return cell
}

// addRates adds a row with the calls per second of a contestant.
func addRates(t *table, name string, results []map[string]*measure) {
	var cells []string
	for _, measures := range results {
		cells = append(cells, cellOf(measures[name],
			func(m *measure) string { return thousands(load.Quantile(m.rates, .5)) }))
	}
	t.add(name+", calls/s", cells...)
}

// noteFailures adds a note if a figure is missing or some calls failed.
func (t *table) noteFailures(id string, c callCase, m *measure) {
	switch {
	case m == nil || m.err == nil:
	case errors.As(m.err, new(tooSlow)):
		t.note("%s, %s: %s", id, c.size.name, m.err)
	case len(m.latencies) == 0 && m.failed == 0:
		t.note("%s: %s", id, firstLine(m.err))
	default:
		t.note("%s, %s: %d of %d calls failed: %s", id, c.head(), m.failed, m.failed+len(m.latencies), firstLine(m.err))
	}
}

// firstLine returns the first line of an error, shortened for a note.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	const enough = 160
	if len(line) > enough {
		line = strings.ToValidUTF8(line[:enough], "") + "…"
	}
	return line
}

// ratio formats a ratio, with more digits below 0.1.
func ratio(f float64) string {
	if f < .1 {
		return fmt.Sprintf("%.3f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

func milliseconds(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	default:
		return thousands(ms)
	}
}

func microseconds(d time.Duration) string {
	if d == 0 {
		return noFigure // no process
	}
	return thousands(float64(d) / float64(time.Microsecond))
}

func mebibytes(n int) string {
	if n == 0 {
		return noFigure
	}
	return thousands(float64(n) / (1 << 20))
}

// thousands formats a whole number with commas.
func thousands(f float64) string {
	digits := fmt.Sprintf("%.0f", f)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// compact returns a size as in the names of cases, without spaces.
func compact(size string) string { return strings.ReplaceAll(size, " ", "") }

// printHeader prints when, where and what was measured.
func printHeader(w io.Writer, contestants []contestant, command string) {
	m := procfs.ThisMachine()
	fmt.Fprintf(w, "Measured on %s by `%s`: %s, %d cores, %s MiB of memory, Linux %s, %s.\n\n",
		time.Now().Format("2 January 2006, 15:04 MST"),
		command, m.CPU, runtime.NumCPU(), mebibytes(m.Memory), m.Kernel, runtime.Version())
	var versions []string
	for _, c := range contestants {
		if c.version == nil {
			continue
		}
		name, _, _ := strings.Cut(c.name, " /")
		name, _, _ = strings.Cut(name, " …")
		version, err := c.version()
		if err != nil {
			version = "missing (" + firstLine(err) + ")"
		}
		if entry := name + " " + version; !slices.Contains(versions, entry) {
			versions = append(versions, entry)
		}
	}
	fmt.Fprintf(w, "%s.\n\n", strings.Join(versions, ", "))
}

// Comments in a document between which the report is written.
const (
	reportBegins = "<!-- bench-gateway begins -->"
	reportEnds   = "<!-- bench-gateway ends -->"
)

// withReport returns the text of a document with its report replaced.
func withReport(file string, report []byte) ([]byte, error) {
	document, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text, err := replaceReport(document, report)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return text, nil
}

func replaceReport(document, report []byte) ([]byte, error) {
	before, rest, begins := bytes.Cut(document, []byte(reportBegins))
	_, after, ends := bytes.Cut(rest, []byte(reportEnds))
	if !begins || !ends {
		return nil, errors.New("missing " + reportBegins + " and " + reportEnds)
	}
	return slices.Concat(before, []byte(reportBegins+"\n\n"), bytes.TrimSpace(report), []byte("\n\n"+reportEnds), after),
		nil
}

// A readingKey identifies the figures of a contestant in a case.
type readingKey struct{ name, contestant string }

// record records the figures of a contestant in a case, one per round if there are several.
func (b *bench) record(name, contestant string, values ...float64) {
	if b.readings == nil {
		b.readings = map[readingKey][]float64{}
	}
	b.readings[readingKey{name, contestant}] = values
}

const (
	perServer   = "mcp_gateway /mcp/{server}, mask off"
	joined      = "mcp_gateway /mcp"
	joinedStdio = joined + ", stdio"
	tbxarkStdio = "TBXark mcp-proxy, stdio"
)

// watchedCells are the cells that say most about mcp_gateway, and the contestants to show there.
var watchedCells = []struct {
	label, name string
	contestants []string
}{
	{"1 KB ×16", "calls/stateful/1KB/16", []string{perServer, joined}},
	{"100 KB ×16", "calls/stateful/100KB/16", []string{perServer, joined}},
	{"5 MB ×1", "calls/stateful/5MB/1", []string{perServer, joined}},
	{"1 KB ×16, stdio server", "calls/stateful/1KB/16", []string{joinedStdio, tbxarkStdio}},
	{"100 KB ×16, stdio server", "calls/stateful/100KB/16", []string{joinedStdio, tbxarkStdio}},
	{"5 MB ×1, stdio server", "calls/stateful/5MB/1", []string{joinedStdio, tbxarkStdio}},
	{"1 KB ×16, 2026-07-28", "calls/stateless/1KB/16", []string{perServer, joined}},
	{"1 KB ×16, HTTP/2 with TLS", "calls/h2/1KB/16", []string{perServer, joined}},
	{"1 KB ×16, responses as event streams", "calls/events/1KB/16", []string{perServer, joined}},
	{"5 MB ×1, responses as event streams", "calls/events/5MB/1", []string{perServer, joined}},
	{"1 KB ×16, guarded", "calls/guarded/1KB/16", []string{perServer, joined}},
	{"100 KB ×16, guarded", "calls/guarded/100KB/16", []string{perServer, joined}},
	{"5 MB ×1, guarded", "calls/guarded/5MB/1", []string{perServer, joined}},
	{"idle session with its stream, one server, KB", "idle/1/1000", []string{joined}},
	{"… for each further server, KB", furtherServer, []string{joined}},
	{"new session with 100 servers, ms", newSession(100), []string{joined}},
}

// printWatched prints the cells to watch that were measured.
func (b *bench) printWatched(w io.Writer) {
	t := table{title: "cell", heads: []string{"contestant", "median", "range"}}
	for _, cell := range watchedCells {
		for _, contestant := range cell.contestants {
			values := b.readings[readingKey{cell.name, contestant}]
			if len(values) == 0 {
				continue
			}
			spread := noFigure
			if len(values) > 1 {
				spread = ratio(slices.Min(values)) + " to " + ratio(slices.Max(values))
			}
			t.add(cell.label, contestant, ratio(load.Quantile(values, .5)), spread)
		}
	}
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "### Cells to watch\n\nCalls per second relative to %s, unless a row says otherwise: "+
		"the median of the rounds, the lowest and the highest.\n\n", baseline)
	t.print(w)
}

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
