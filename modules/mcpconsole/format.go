package mcpconsole

import (
	"html/template"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

var templateFuncs = template.FuncMap{
	"count":    func(n any) string { return humanize.Comma(int64(number(n))) },
	"short":    func(n any) string { return short(number(n)) },
	"size":     func(n any) string { return size(number(n)) },
	"percent":  func(part, whole any) string { return percent(number(part), number(whole)) },
	"duration": func(seconds any) string { return duration(number(seconds)) },
	"rate":     func(n any) string { return rate(number(n)) },
	"clock":    clock,
	"stamp":    stamp,
	"cut":      cut,

	"pathescape": url.PathEscape,
}

// number returns the number that a value is or points to, 0 for nil.
func number(value any) float64 {
	v := reflect.Indirect(reflect.ValueOf(value))
	switch {
	case !v.IsValid():
		return 0
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// scaled formats a number with a unit; each unit is a thousand of the previous one: 950, 1.2 k, 12
// k.
func scaled(n float64, units ...string) string {
	i := 0
	for ; math.Abs(n) >= 999.5 && i < len(units)-1; i++ {
		n /= 1000
	}
	digits := 0
	if i > 0 && math.Abs(n) < 9.95 {
		digits = 1
	}
	return strings.TrimSpace(strconv.FormatFloat(n, 'f', digits, 64) + " " + units[i])
}

// short formats a number with few digits: 950, 1.2 k, 34 M.
func short(n float64) string { return scaled(n, "", "k", "M", "G", "T") }

// size formats a number of bytes with few digits: 950 B, 1.2 kB, 34 MB.
func size(n float64) string { return scaled(n, "B", "kB", "MB", "GB", "TB") }

// percent formats a share. It rounds neither to 0 % nor to 100 %.
func percent(part, whole float64) string {
	share := 100 * part / whole
	switch {
	case part <= 0 || whole <= 0:
		return "0 %"
	case share < 1:
		return "< 1 %"
	case share > 99 && share < 100:
		return "> 99 %"
	}
	return strconv.FormatFloat(share, 'f', 0, 64) + " %"
}

// duration formats a duration with few digits: 850 µs, 12 ms, 1.2 s, 2 min 5 s, 3 h 4 min, 2 d 5 h.
func duration(seconds float64) string {
	if seconds < 59.95 {
		switch {
		case seconds <= 0:
			return "0 s"
		case seconds < 0.9995:
			return scaled(math.Max(1, seconds*1e6), "µs", "ms")
		case seconds < 9.95:
			return strconv.FormatFloat(seconds, 'f', 1, 64) + " s"
		}
		return strconv.FormatFloat(seconds, 'f', 0, 64) + " s"
	}
	pair := func(n int64, large string, size int64, small string) string {
		text := strconv.FormatInt(n/size, 10) + " " + large
		if n%size > 0 {
			text += " " + strconv.FormatInt(n%size, 10) + " " + small
		}
		return text
	}
	whole := int64(math.Round(seconds))
	switch {
	case whole < 3600:
		return pair(whole, "min", 60, "s")
	case whole < 86400:
		return pair(whole/60, "h", 60, "min")
	}
	return pair(whole/3600, "d", 24, "h")
}

// rate formats a number per second: 0, 0.1, 12, 3.4 k.
func rate(n float64) string {
	if n > 0 && n < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(math.Max(n, 0.1), 'f', 1, 64), ".0")
	}
	return short(n)
}

// money formats an amount: $3.60, less than $0.01, 3.60 EUR.
func money(currency string, amount float64) string {
	less := ""
	if amount > 0 && amount < 0.01 {
		less, amount = "less than ", 0.01
	}
	text := humanize.FormatFloat("#,###.##", amount)
	if first, _ := utf8.DecodeRuneInString(currency); unicode.IsLetter(first) {
		return less + text + " " + currency
	}
	return less + currency + text
}

// clock formats a time of day in UTC, shown until JavaScript replaces it.
func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

// stamp formats a time for the attribute datetime.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// cut shortens a text to a number of characters.
func cut(text string, chars int) string {
	for i := range text {
		if chars == 0 {
			return text[:i] + "…"
		}
		chars--
	}
	return text
}

// Dimensions of charts, in SVG units. Charts are stretched to the available width.
const (
	chartWidth  = 600
	chartHeight = 100
)

// steps returns the SVG path of an area with one step per value, scaled so that top is the full
// height.
func steps(values []float64, top float64) string {
	var path strings.Builder
	path.WriteString("M0 " + coordinate(chartHeight))
	for i, value := range values {
		share := 0.0
		if top > 0 {
			share = min(value/top, 1)
		}
		path.WriteString("V" + coordinate(chartHeight*(1-share)))
		path.WriteString("H" + coordinate(chartWidth*float64(i+1)/float64(len(values))))
	}
	path.WriteString("V" + coordinate(chartHeight) + "Z")
	return path.String()
}

// coordinate formats a number for a path.
func coordinate(n float64) string {
	return strconv.FormatFloat(math.Round(n*10)/10, 'f', -1, 64)
}

// share returns a part of a whole as the width or height of a rectangle. A positive part is at
// least visible.
func share(part, whole float64) string {
	if part <= 0 || whole <= 0 {
		return "0%"
	}
	return coordinate(min(max(100*part/whole, 0.5), 100)) + "%"
}

// ceiling returns the smallest 1, 2 or 5 times a power of ten that is not less than the value.
func ceiling(value float64) float64 {
	if !(value > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(value)))
	for _, digit := range [...]float64{1, 2, 5, 10} {
		if digit*power >= value*(1-1e-9) {
			return digit * power
		}
	}
	return 10 * power
}
