package prune

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var (
	keptLine      = regexp.MustCompile(`(?s)^(\d+)│ (.*)$`)
	leftOutLine   = regexp.MustCompile(`^\[line (\d+) left out\]$`)
	leftOutMarked = regexp.MustCompile(`^\[lines (\d+)-(\d+) left out\]$`)
)

// checkFocused returns an error if a result of Focus breaks a promise.
func checkFocused(text string, f FocusOptions, short string, kept int) error {
	l := split(text)
	n := l.len()
	if minRemoved := f.minRemoved(n); kept > n-minRemoved {
		return fmt.Errorf("%d lines kept of %d, at a ratio of %g", kept, n, f.Ratio)
	}
	if chars := utf8.RuneCountInString(short); chars > f.MaxChars {
		return fmt.Errorf("%d characters", chars)
	}
	if short == text && kept == n {
		return nil
	}
	at, found := 0, 0
	marked := false // the previous line of the result is a marker
	for _, line := range strings.Split(short, "\n") {
		if m := keptLine.FindStringSubmatch(line); m != nil {
			if number, _ := strconv.Atoi(m[1]); number != at+1 || at >= n {
				return fmt.Errorf("line %d after line %d", number, at)
			}
			if !isPart(m[2], l.line(at)) {
				return fmt.Errorf("line %d is %q, want %q", at+1, m[2], l.line(at))
			}
			if m[2] != l.line(at) && utf8.RuneCountInString(l.line(at)) <= f.MaxChars/4 {
				return fmt.Errorf("line %d is shortened", at+1)
			}
			at++
			found++
			marked = false
			continue
		}
		first, last := 0, 0
		if m := leftOutLine.FindStringSubmatch(line); m != nil {
			first, _ = strconv.Atoi(m[1])
			last = first
		} else if m := leftOutMarked.FindStringSubmatch(line); m != nil {
			first, _ = strconv.Atoi(m[1])
			if last, _ = strconv.Atoi(m[2]); last <= first {
				return fmt.Errorf("marker %q", line)
			}
		}
		if first != at+1 || marked {
			return fmt.Errorf("%q after line %d", line, at)
		}
		at = last
		marked = true
	}
	if at != n || found != kept {
		return fmt.Errorf("%d lines of %d, %d of them kept, want %d", at, n, found, kept)
	}
	return nil
}

// isPart reports whether short is a line, or a part of it between ellipses.
func isPart(short, line string) bool {
	if short == line {
		return true
	}
	part, cutBefore := strings.CutPrefix(short, ellipsis)
	part, cutAfter := strings.CutSuffix(part, ellipsis)
	switch {
	case cutBefore && cutAfter:
		return strings.Contains(line, part)
	case cutBefore:
		return strings.HasSuffix(line, part)
	case cutAfter:
		return strings.HasPrefix(line, part)
	}
	return short == ellipsis
}

var focused = flag.Int("focused", 500, "number of random texts to focus")

func TestFocusHoldsItsPromises(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for i := range *focused {
		text := textToFocus(random)
		f := FocusOptions{Goal: goalToFocus(random), MaxChars: random.IntN(1 + random.IntN(4000)), Timeout: time.Minute}
		if random.IntN(3) == 0 {
			f.Ratio = random.Float64()
		}
		short, kept, ok := Focus(context.Background(), text, f)
		again, keptAgain, okAgain := Focus(context.Background(), text, f)
		if again != short || keptAgain != kept || okAgain != ok {
			t.Fatalf("round %d: %+v of %q: a different result the second time", i, f, text)
		}
		if !ok {
			refused++
			if f.Ratio == 0 && utf8.RuneCountInString(text) <= f.MaxChars {
				t.Fatalf("round %d: %+v of %q: refused, but it fits", i, f, text)
			}
			continue
		}
		if f.Ratio == 0 && utf8.RuneCountInString(text) <= f.MaxChars && short != text {
			t.Fatalf("round %d: %+v of %q: cut to %q, but it fits", i, f, text, short)
		}
		if err := checkFocused(text, f, short, kept); err != nil {
			t.Fatalf("round %d: %+v of %q:\n%s\n%v", i, f, text, short, err)
		}
	}
	if refused > *focused/2 {
		t.Errorf("%d of %d are refused", refused, *focused)
	}
}

// textToFocus returns a text of random lines.
func textToFocus(random *rand.Rand) string {
	pieces := [...]string{"func ", "read", "Config", " ", " ", "(", ")", " {", "}", "\t", "error",
		"2024-05-01 10:00:00 INFO ", "# ", "é", "│", "…", "\xff", "\xe2\x82", "日本", "x := 1",
		"the ", "a file", "[line 3 left out]", "```", "import x", "⟦NO_PRUNE_BEGIN⟧"}
	ends := [...]string{"\n", "\n", "\n", "\r\n", "\r", "\n\n"}
	var b strings.Builder
	for range random.IntN(1 + random.IntN(200)) {
		width := random.IntN(12)
		if random.IntN(50) == 0 {
			width *= 100
		}
		for range width {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		b.WriteString(ends[random.IntN(len(ends))])
	}
	text := b.String()
	if random.IntN(2) == 0 {
		text = strings.TrimRight(text, "\r\n")
	}
	return text
}

func goalToFocus(random *rand.Rand) string {
	goals := [...]string{"", "read the config file", "error", "日本", "\xff", "…", "x", strings.Repeat("func ", 100)}
	return goals[random.IntN(len(goals))]
}

func TestFocus(t *testing.T) {
	numbered := func(n int) string {
		var b strings.Builder
		for i := 1; i <= n; i++ {
			fmt.Fprintf(&b, "some words of line %d\n", i)
		}
		return b.String()
	}
	with := func(n, at int, line string) string {
		return strings.Replace(numbered(n), fmt.Sprintf("some words of line %d\n", at), line+"\n", 1)
	}
	for _, test := range []struct {
		name, text string
		f          FocusOptions
		want       string
		kept       int
		ok         bool
	}{
		{"a text that fits", "a\r\nb\r\n", FocusOptions{MaxChars: 6}, "a\r\nb\r\n", 2, true},
		{"characters, not bytes", "äö\n", FocusOptions{MaxChars: 3}, "äö\n", 1, true},
		{"an empty text", "", FocusOptions{}, "", 0, true},
		{"the line that matches the goal", with(99, 50, "the upload timed out"), FocusOptions{Goal: "upload", MaxChars: 80},
			"[lines 1-49 left out]\n50│ the upload timed out\n[lines 51-99 left out]", 1, true},
		{"the first line matches",
			with(99, 1, "the upload timed out"), FocusOptions{Goal: "upload", MaxChars: 80, Ratio: 0.985},
			"1│ the upload timed out\n[lines 2-99 left out]", 1, true},
		{"a ratio, although the text fits", with(9, 5, "the upload timed out"),
			FocusOptions{Goal: "upload", MaxChars: 1000, Ratio: 0.85},
			"[lines 1-4 left out]\n5│ the upload timed out\n[lines 6-9 left out]", 1, true},
		{"a ratio of 1", numbered(9), FocusOptions{MaxChars: 1000, Ratio: 1}, "", 0, false},
		{"too few characters", numbered(99), FocusOptions{MaxChars: 30}, "", 0, false},
		{"no characters", "a\n", FocusOptions{}, "", 0, false},
		{"a single line", strings.Repeat("minified;", 1000), FocusOptions{Goal: "minified", MaxChars: 1000}, "", 0, false},
		{"too many lines", strings.Repeat("\n", MaxLines+1), FocusOptions{MaxChars: 1000}, "", 0, false},
		{"not enough time", numbered(99), FocusOptions{MaxChars: 1000, Timeout: 1}, "", 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			short, kept, ok := Focus(context.Background(), test.text, test.f)
			if short != test.want || kept != test.kept || ok != test.ok {
				t.Errorf("got %q, %d, %t", short, kept, ok)
			}
		})
	}
}

func TestLeftOutMarker(t *testing.T) {
	if got, want := leftOutMarker(13, 118), "[lines 13-118 left out]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := leftOutMarker(13, 13), "[line 13 left out]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFocusEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if short, _, ok := Focus(ctx, strings.Repeat("a line\n", 1000), FocusOptions{MaxChars: 100}); ok {
		t.Errorf("got %q", short)
	}
}

func TestFocusShortensLongLines(t *testing.T) {
	long := strings.Repeat("some words and ", 200)
	text := "first\n" + long + "the needle " + long + "\n" + strings.Repeat("another line\n", 50)
	short, kept, ok := Focus(context.Background(), text, FocusOptions{Goal: "where is the needle?", MaxChars: 400})
	if !ok || kept == 0 || !strings.Contains(short, "2│ …") || !strings.Contains(short, "the needle") {
		t.Errorf("got %q, %d, %t", short, kept, ok)
	}
}

func TestFocusKeepsHeadsOfKeptLines(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "func number%d() {\n", i)
		for j := range 30 {
			if i == 20 && j == 25 {
				b.WriteString("\tretry(upload)\n")
			}
			fmt.Fprintf(&b, "\tx%d += y%d\n", j, i)
		}
		b.WriteString("}\n\n")
	}
	short, _, ok := Focus(context.Background(), b.String(), FocusOptions{Goal: "retry the upload", MaxChars: 1500})
	if !ok || !strings.Contains(short, "retry(upload)") || !strings.Contains(short, "func number20()") {
		t.Errorf("got %s", short)
	}
}

// The only line that matches the goal is found among many lines of any kind.
func TestFocusFindsOneLineOfMany(t *testing.T) {
	for name, line := range map[string]func(i int) string{
		"a log of requests": func(i int) string {
			return fmt.Sprintf("2024-05-01T10:00:%02dZ INFO worker-%d handled request %d of /items/%d", i%60, i%16, i, i%977)
		},
		"a log of failures": func(i int) string {
			return fmt.Sprintf("2024-05-01T10:00:%02dZ ERROR request %d of user %d failed after %d ms", i%60, i, i%50, i%977)
		},
		"a list":    func(i int) string { return fmt.Sprintf("- Item %d of the catalogue costs %d euros.", i, i%100) },
		"a program": func(i int) string { return fmt.Sprintf("\tx%d := compute(%d)", i, i*i) },
	} {
		for goal, fact := range map[string]string{
			"why was payment 4711 declined?":             "payment 4711 declined: card expired",
			"which port does the metrics exporter have?": "metrics exporter listens on :9464",
			"who removed the bucket of backups?":         "bucket backups-eu removed by jdoe",
		} {
			for _, n := range []int{500, 20_000} {
				all := make([]string, n)
				for i := range all {
					all[i] = line(i)
				}
				all[n*2/3] = fact
				f := FocusOptions{Goal: goal, MaxChars: 2000, Timeout: time.Minute}
				short, _, ok := Focus(context.Background(), strings.Join(all, "\n"), f)
				if !ok || !strings.Contains(short, fmt.Sprintf("\n%d│ %s\n", n*2/3+1, fact)) {
					t.Errorf("%s of %d lines, %q: got\n%s", name, n, goal, short)
				}
			}
		}
	}
}

// A run that does not fit as a whole is kept in part, even if all its lines are equal.
func TestFocusKeepsPartOfALongRun(t *testing.T) {
	const fact = "the upload of the picture was refused"
	for _, n := range []int{1, 30, 60, 200} {
		for _, budget := range []int{300, 1000, 2000} {
			all := make([]string, 3000)
			for i := range all {
				all[i] = fmt.Sprintf("- Item %d of the catalogue costs %d euros.", i, i%100)
			}
			for i := range n {
				all[1500+i] = fact
			}
			f := FocusOptions{Goal: "why are uploads refused?", MaxChars: budget, Timeout: time.Minute}
			short, kept, ok := Focus(context.Background(), strings.Join(all, "\n"), f)
			if !ok || strings.Count(short, fact) < min(n, kept/2) {
				t.Errorf("%d lines in %d characters: got\n%s", n, budget, short)
			}
		}
	}
}

func BenchmarkFocus(b *testing.B) {
	var log strings.Builder
	for i := 0; log.Len() < 10<<20; i++ {
		fmt.Fprintf(&log, "2024-05-01T10:00:%02dZ INFO worker-%d handled request %x of /items/%d, status 200\n",
			i%60, i%16, i*7919, i%977)
	}
	b.SetBytes(int64(log.Len()))
	f := FocusOptions{Goal: "why do uploads fail?", MaxChars: 4000, Timeout: time.Minute}
	for b.Loop() {
		if _, _, ok := Focus(context.Background(), log.String(), f); !ok {
			b.Fatal("refused")
		}
	}
}

func TestShortened(t *testing.T) {
	filler := strings.Repeat("lorem ipsum ", 50)
	for _, test := range []struct {
		name, line, goal string
		most             int
		want             string
	}{
		{"a term of the goal in the middle", filler + "the needle" + filler, "find the needle", 20,
			"…um the needlelorem…"},
		{"at the beginning", "Needle " + filler, "needle", 20, "Needle lorem ipsum…"},
		{"at the end", filler + "needle", "needle", 20, "…lorem ipsum needle"},
		{"no term of the goal", filler, "needle", 10, "lorem ip…"},
		{"the rarer term", "a cat " + filler + "a cat " + filler + "a dog " + filler, "cat and dog", 12, "…m a dog lo…"},
		{"two terms close together", "dog " + filler + "a cat and a dog " + filler, "cat and dog", 20,
			"… a cat and a dog l…"},
		{"characters, not bytes", strings.Repeat("日本", 50), "needle", 6, "日本日本…"},
		{"no room", filler, "needle", 1, "…"},
		{"a plural", filler + "the queries" + filler, "queries", 20, "…m the querieslorem…"},
		{"letters other than ASCII", strings.Repeat("вода ", 50) + "ОШИБКА" + strings.Repeat(" вода", 50), "Ошибка", 16,
			"…ода ОШИБКА вод…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := bestExcerpt(test.line, parseGoal(test.goal), test.most)
			if utf8.RuneCountInString(got) > max(1, test.most) {
				t.Errorf("%q has more than %d characters", got, test.most)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
