package mcpconsole

import (
	"math"
	"strconv"
	"strings"
)

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
