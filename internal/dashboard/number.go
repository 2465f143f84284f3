package main

import (
	"math"
	"strconv"
	"strings"
)

// Units of Grafana's that the dashboard uses, by what they are called at a number.
var rates = map[string]string{"reqps": " req/s", "cps": "/s", "ops": "/s"}

// format writes a value in its unit, with so many decimals or, if there are fewer than
// none, with those that matter.
func format(v float64, unit string, decimals int) string {
	switch unit {
	case "percentunit":
		return number(v*100, decimals) + " %"
	case "locale":
		return grouped(number(math.Round(v), 0))
	case "s":
		if v == 0 {
			return "0"
		}
		if math.Abs(v) < 1 {
			return number(v*1000, decimals) + " ms"
		}
		return number(v, decimals) + " s"
	}
	for _, prefix := range []struct {
		factor float64
		name   string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if math.Abs(v) >= prefix.factor {
			return number(v/prefix.factor, decimals) + prefix.name + rates[unit]
		}
	}
	if unit == "short" && v == math.Trunc(v) {
		decimals = 0
	}
	return number(v, decimals) + rates[unit]
}

// grouped writes digits in groups of three.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func number(v float64, decimals int) string {
	if decimals >= 0 {
		return strconv.FormatFloat(v, 'f', decimals, 64)
	}
	text := strconv.FormatFloat(v, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// ticks are round values from nought, a few up to the first that is not below top.
func ticks(top float64) []float64 {
	if top <= 0 {
		top = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top/3)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if step*factor*4 >= top {
			step *= factor
			break
		}
	}
	var all []float64
	for i := 0; ; i++ {
		all = append(all, float64(i)*step)
		if all[i] >= top {
			return all
		}
	}
}
