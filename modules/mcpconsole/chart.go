package mcpconsole

import (
	"math"
	"strconv"
	"strings"
)

// The measures of charts, in units of their own: they are stretched to the room there is.
const (
	chartWidth  = 600
	chartHeight = 100
)

// steps returns the path of an area with a step for each value: its height is the share that the value has of the top.
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

// coordinate returns a number for a path.
func coordinate(n float64) string {
	return strconv.FormatFloat(math.Round(n*10)/10, 'f', -1, 64)
}

// share returns which part of the whole something is, as the width or height of a rectangle. What is there at all can
// be seen.
func share(part, whole float64) string {
	if part <= 0 || whole <= 0 {
		return "0%"
	}
	return coordinate(min(max(100*part/whole, 0.5), 100)) + "%"
}

// ceiling returns a round number that is not less than a value: 1, 2 or 5 and zeros.
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
