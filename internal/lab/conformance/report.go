//go:build unix

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A table has the outcome of one revision: a row per scenario, a column per target or era.
type table struct {
	revision  string
	scenarios []scenario
	names     []string // names of the columns
	columns   []map[string]checks
}

// reportServers prints the tables, whose first column is the reference server itself, and
// lists failures and differences. It returns an error if the gateway or the reference server
// failed where it should not.
func reportServers(w io.Writer, tables []table) error {
	var unfit, lost int
	var own, regressions, weaker strings.Builder
	for _, t := range tables {
		t.print(w)
		for _, scenario := range t.scenarios {
			direct := t.columns[0][scenario.name]
			required := scenario.scored || scenario.extension
			if !direct.passed() {
				if required {
					unfit++
				}
				fmt.Fprintf(&own, "  %s %s\n%s", t.revision, label(scenario), failures(direct, required))
				continue
			}
			for i, target := range t.names[1:] {
				through := t.columns[i+1][scenario.name]
				// A skipped scenario does not count as passed if it is not skipped directly.
				skipped := required && through.skipped() && !direct.skipped()
				gone := missing(direct, through)
				switch {
				case !through.passed() || skipped:
					lost++
					fmt.Fprintf(&regressions, "  %s %s %s\n%s", t.revision, target, label(scenario), failures(through, true))
				case gone != "" && scenario.extension: // the gateway must support all that the server does
					lost++
					fmt.Fprintf(&regressions, "  %s %s %s: %s\n", t.revision, target, label(scenario), gone)
				case gone != "":
					fmt.Fprintf(&weaker, "  %s %s %s: %s\n", t.revision, target, label(scenario), gone)
				}
			}
		}
	}
	section(w, "The reference server fails these itself", own.String())
	section(w, "These pass through the gateway, but with less than directly", weaker.String())
	section(w, "These fail only through the gateway", regressions.String())

	var errs []error
	if unfit > 0 {
		errs = append(errs, fmt.Errorf("the reference server fails %d scenarios itself that it should pass", unfit))
	}
	if lost > 0 {
		errs = append(errs, fmt.Errorf("%d scenarios fail only through the gateway", lost))
	}
	return errors.Join(errs...)
}

func section(w io.Writer, title, content string) {
	if content != "" {
		fmt.Fprintf(w, "%s:\n%s\n", title, content)
	}
}

func (t table) print(w io.Writer) {
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(name string, cell func(column int) string) {
		fmt.Fprint(out, name)
		for i := range t.names {
			fmt.Fprint(out, "\t", cell(i))
		}
		fmt.Fprintln(out)
	}
	row(t.revision, func(i int) string { return t.names[i] })
	for _, scenario := range t.scenarios {
		row(label(scenario), func(i int) string { return verdict(t.columns[i][scenario.name]) })
	}
	row("required", func(i int) string { return t.total(i, true) })
	row("(not required)", func(i int) string { return t.total(i, false) })
	_ = out.Flush()
	fmt.Fprintln(w)
}

func (t table) total(column int, scored bool) string {
	var passed, all int
	for _, scenario := range t.scenarios {
		if scenario.scored == scored {
			all++
			if verdict(t.columns[column][scenario.name]) == "pass" {
				passed++
			}
		}
	}
	return fmt.Sprintf("%d/%d", passed, all)
}

// label puts scenarios that the revision does not require in parentheses.
func label(s scenario) string {
	if s.scored {
		return s.name
	}
	return "(" + s.name + ")"
}

func verdict(c checks) string {
	switch {
	case c == nil:
		return "NO END"
	case !c.passed():
		return "FAIL"
	case c.skipped():
		return "skip"
	}
	return "pass"
}

// failures lists failed checks, one per line, or nothing unless verbose.
func failures(c checks, verbose bool) string {
	if !verbose {
		return ""
	}
	if c == nil {
		return "    did not finish\n"
	}
	if c.skipped() {
		return "    found nothing to check\n"
	}
	var out strings.Builder
	for _, check := range c {
		if check.Status == failure {
			message, _, _ := strings.Cut(cmp.Or(check.ErrorMessage, check.Description), "\n")
			if len(message) > 300 {
				message = message[:300] + "…"
			}
			fmt.Fprintf(&out, "    %s: %s\n", check.ID, message)
		}
	}
	return out.String()
}

// missing returns the names of checks that succeeded only directly.
func missing(direct, through checks) string {
	succeeded := make(map[string]int)
	for _, check := range through {
		if check.Status == success {
			succeeded[check.ID]++
		}
	}
	var gone []string
	for _, check := range direct {
		if check.Status != success {
			continue
		}
		succeeded[check.ID]--
		if succeeded[check.ID] < 0 {
			gone = append(gone, check.ID)
		}
	}
	return strings.Join(gone, ", ")
}
