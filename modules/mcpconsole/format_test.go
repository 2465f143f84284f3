package mcpconsole

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	three := 3
	for _, test := range []struct{ name, got, want string }{
		{"zero", short(0), "0"},
		{"a short number", short(950), "950"},
		{"thousands", short(1234), "1.2 k"},
		{"a number rounded up to thousands", short(999.6), "1.0 k"},
		{"tens of thousands", short(12345), "12 k"},
		{"millions", short(1_249_999), "1.2 M"},
		{"the largest unit", short(5e16), "50000 T"},
		{"a negative number", short(-1234), "-1.2 k"},
		{"bytes", size(999), "999 B"},
		{"kilobytes", size(1000), "1.0 kB"},
		{"megabytes", size(34e6), "34 MB"},

		{"zero of zero", percent(0, 0), "0 %"},
		{"three of zero", percent(3, 0), "0 %"},
		{"a small part", percent(1, 1000), "< 1 %"},
		{"a part", percent(23, 100), "23 %"},
		{"almost all", percent(999, 1000), "> 99 %"},
		{"all", percent(7, 7), "100 %"},
		{"more than all", percent(3, 2), "150 %"},

		{"no time", duration(0), "0 s"},
		{"less than can be measured", duration(1e-9), "1 µs"},
		{"microseconds", duration(850e-6), "850 µs"},
		{"milliseconds", duration(0.0123), "12 ms"},
		{"almost a second", duration(0.9996), "1.0 s"},
		{"seconds", duration(1.23), "1.2 s"},
		{"tens of seconds", duration(42.4), "42 s"},
		{"almost a minute", duration(59.96), "1 min"},
		{"minutes", duration(125), "2 min 5 s"},
		{"hours", duration(3*3600 + 4*60 + 5), "3 h 4 min"},
		{"days", duration(2*86400 + 5*3600), "2 d 5 h"},

		{"no calls", rate(0), "0"},
		{"hardly any calls", rate(0.01), "0.1"},
		{"some calls", rate(2.34), "2.3"},
		{"many calls", rate(3400), "3.4 k"},

		{"money", money("$", 3.6), "$3.60"},
		{"much money", money("€", 12345.678), "€12,345.68"},
		{"hardly any money", money("$", 0.001), "less than $0.01"},
		{"no money", money("$", 0), "$0.00"},
		{"a currency with letters", money("EUR", 3.6), "3.60 EUR"},

		{"a short text", cut("häuser", 6), "häuser"},
		{"a long text", cut("häuser", 2), "hä…"},
		{"text that is not UTF-8", cut("\xff\xfe\xfd", 2), "\xff\xfe…"},

		{"an integer", rate(number(int64(7))), "7"},
		{"a pointer", rate(number(&three)), "3"},
		{"a nil pointer", rate(number((*int)(nil))), "0"},
		{"an unsigned integer", rate(number(uint8(7))), "7"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, test.got, test.want)
		}
	}
}

// TestContrast checks the contrast of all text colors and graphics with their backgrounds by
// WCAG 2.2, in light and dark mode.
func TestContrast(t *testing.T) {
	style, err := assetFiles.ReadFile("assets/console.css")
	if err != nil {
		t.Fatal(err)
	}
	roots := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllSubmatch(style, -1)
	if len(roots) != 2 {
		t.Fatalf("found %d sets of colors, want one for light and one for dark", len(roots))
	}
	for i, mode := range []string{"light", "dark"} {
		colors := map[string]float64{}
		for _, found := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllSubmatch(roots[i][1], -1) {
			colors[string(found[1])] = luminance(t, string(found[2]))
		}
		check := func(color, ground string, want float64) {
			a, known := colors[color]
			b, groundKnown := colors[ground]
			if !known || !groundKnown {
				t.Errorf("%s: no color %s or %s", mode, color, ground)
				return
			}
			if got := (max(a, b) + 0.05) / (min(a, b) + 0.05); got < want {
				t.Errorf("%s: %s on %s has a contrast of %.2f, want %.1f", mode, color, ground, got, want)
			}
		}
		for _, ground := range []string{"ground", "surface", "sunken"} {
			for _, color := range []string{"text", "muted", "accent", "ok", "warn", "bad"} {
				check(color, ground, 4.5)
			}
			check("border", ground, 3)
		}
		for _, kind := range []string{"ok", "warn", "bad", "idle"} {
			check(kind, kind+"-ground", 4.5)
		}
		check("text", "ok-ground", 4.5) // new rows
		check("muted", "ok-ground", 4.5)
		check("accent", "ok-ground", 4.5)
		check("on-accent", "accent", 4.5)
		check("part", "surface", 3)
		check("part", "whole", 3)
	}
}

// luminance returns the relative luminance of a color as defined by WCAG.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	channel := func(from int) float64 {
		n, err := strconv.ParseUint(hex[from:from+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*channel(0) + 0.7152*channel(2) + 0.0722*channel(4)
}

// TestScript checks that the script uses nothing that the security policy makes browsers refuse.
func TestScript(t *testing.T) {
	script, err := assetFiles.ReadFile("assets/console.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "DOMParser", "document.write",
		"eval(", "Function(", "createPolicy", ".style"} {
		if strings.Contains(string(script), forbidden) {
			t.Errorf("the script uses %s", forbidden)
		}
	}
	settable := regexp.MustCompile(`settable = new Set\(\[(.*?)\]\)`).FindSubmatch(script)
	if settable == nil {
		t.Fatal("the script has no list of attributes")
	}
	if want := `"` + strings.Join(patchable, `", "`) + `"`; string(settable[1]) != want {
		t.Errorf("the script sets %s, want %s", settable[1], want)
	}
}

func TestSteps(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		top    float64
		want   string
	}{
		{"no values", nil, 1, "M0 100V100Z"},
		{"values", []float64{0, 5, 10}, 10, "M0 100V100H200V50H400V0H600V100Z"},
		{"a value above the top", []float64{20}, 10, "M0 100V0H600V100Z"},
		{"no top", []float64{1}, 0, "M0 100V100H600V100Z"},
	} {
		if got := steps(test.values, test.top); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

func TestShare(t *testing.T) {
	for _, test := range []struct {
		part, whole float64
		want        string
	}{
		{0, 0, "0%"}, {1, 0, "0%"}, {0, 5, "0%"}, {1, 1e9, "0.5%"}, {1, 3, "33.3%"}, {5, 5, "100%"}, {9, 5, "100%"},
	} {
		if got := share(test.part, test.whole); got != test.want {
			t.Errorf("share(%v, %v) = %s, want %s", test.part, test.whole, got, test.want)
		}
	}
}

func TestCeiling(t *testing.T) {
	for value, want := range map[float64]float64{
		0: 1, math.NaN(): 1, 0.1: 0.1, 0.3: 0.5, 1: 1, 1.1: 2, 3: 5, 7: 10, 10: 10, 34: 50, 999: 1000, 1000: 1000,
	} {
		if got := ceiling(value); math.Abs(got-want) > 1e-9*want {
			t.Errorf("ceiling(%v) = %v, want %v", value, got, want)
		}
	}
}
