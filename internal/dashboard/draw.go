package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Sizes in pixels. A picture that is 1200 wide is shown narrower in most places, so
// nothing in it may be small.
const (
	width   = 1200
	margin  = 16
	gap     = 8
	unit    = 29 // of the grid's height
	header  = 64
	footer  = 36
	columns = 24

	lineHeight = 18
	charWidth  = 6.7 // of the small text, in the widest of usual fonts
)

// Colors of thresholds and overrides by name, and those of lines in turn.
var (
	colors  = map[string]string{"green": "#73bf69", "blue": "#6e9fff", "orange": "#ff9830", "red": "#e0556a"}
	palette = []string{"#6e9fff", "#f2cc0c", "#5fc9c4", "#ff9830", "#b877d9", "#e0556a", "#a3cf62", "#f59fc4", "#9fb3c8", "#c69c6d"}
)

const style = `
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:#d5d7de}
.small{font-size:12px;fill:#a9adb8}
.title{font-size:14px;font-weight:500}
.row{font-size:15px;font-weight:600;fill:#eceef3}
.name{font-size:22px;font-weight:600;fill:#f4f5f8}
.stat{font-size:30px;font-weight:600;text-anchor:middle}
.end{text-anchor:end}
.mid{text-anchor:middle}
.on{font-size:12px;fill:#101216}
.panel{fill:#191c22;stroke:#2a2e37}
.grid{stroke:#2c313b;fill:none}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
`

// A canvas collects an SVG.
type canvas struct {
	bytes.Buffer
	window
}

// text writes at a place, and escaped.
func (c *canvas) text(x, y float64, class, text string) {
	fmt.Fprintf(c, `<text x="%.0f" y="%.0f" class="%s">`, x, y, class)
	_ = xml.EscapeText(c, []byte(text))
	c.WriteString("</text>\n")
}

// A box is a part of the picture.
type box struct{ x, y, w, h float64 }

// draw returns the picture of a dashboard whose panels have these series.
func draw(board *dashboard, answers [][]series, w window) []byte {
	rows := 0
	for _, p := range board.Panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	height := header + rows*unit + footer
	c := &canvas{window: w}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="%s">`, width, height, "Dashboard "+escaped(board.Title))
	fmt.Fprintf(c, "\n<style>%s</style>\n", style)
	fmt.Fprintf(c, `<rect width="%d" height="%d" rx="10" fill="#101216"/>`+"\n", width, height)
	c.text(margin+4, 40, "name", board.Title)
	c.text(width-margin-4, 40, "small end", fmt.Sprintf("%s – %s UTC", w.from.UTC().Format("2006-01-02 15:04:05"), w.to.UTC().Format("15:04:05")))
	for i, p := range board.Panels {
		c.panel(p, answers[i])
	}
	c.text(margin+4, float64(height-14), "small", "drawn from the dashboard's queries by internal/dashboard, "+w.to.UTC().Format(time.DateOnly))
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}

func (c *canvas) panel(p panel, all []series) {
	const column = float64(width-2*margin+gap) / columns
	at := box{
		margin + float64(p.GridPos.X)*column, header + float64(p.GridPos.Y)*unit,
		float64(p.GridPos.W)*column - gap, float64(p.GridPos.H)*unit - gap,
	}
	if p.Type == "row" {
		c.text(at.x+4, at.y+16, "row", p.Title)
		return
	}
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="4" class="panel"/>`+"\n", at.x, at.y, at.w, at.h)
	c.text(at.x+12, at.y+22, "title", p.Title)
	inner := box{at.x + 12, at.y + 36, at.w - 24, at.h - 46}
	switch {
	case p.Type == "stat":
		c.stat(p, inner, all)
	case len(all) == 0:
		c.text(inner.x+inner.w/2, inner.y+inner.h/2, "small mid", cmp.Or(p.FieldConfig.Defaults.NoValue, "No data"))
	case p.Type == "state-timeline":
		c.states(p, inner, all)
	default:
		c.lines(p, inner, all)
	}
}

// stat draws the only number of a panel.
func (c *canvas) stat(p panel, at box, all []series) {
	f := p.FieldConfig.Defaults
	text, color := cmp.Or(f.NoValue, "No data"), f.color(0)
	if len(all) > 0 && !math.IsNaN(all[0].values[0]) {
		v := all[0].values[0]
		text, color = f.format(v), f.color(v)
	}
	fmt.Fprintf(c, `<text x="%.0f" y="%.0f" class="stat" style="fill:%s">%s</text>`+"\n", at.x+at.w/2, at.y+at.h/2+12, color, escaped(text))
}

func (f field) format(v float64) string {
	decimals := -1
	if f.Decimals != nil {
		decimals = *f.Decimals
	}
	return format(v, f.Unit, decimals)
}

// color is that of the last threshold that a value has reached.
func (f field) color(v float64) (name string) {
	for _, step := range f.Thresholds.Steps {
		if step.Value == nil || v >= *step.Value {
			name = step.Color
		}
	}
	return cmp.Or(colors[name], palette[0])
}

// colors returns those of the series of a panel.
func (p panel) colors(all []series) []string {
	fixed := map[string]string{}
	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			if property.ID == "color" {
				fixed[o.Matcher.Options] = colors[property.Value.FixedColor]
			}
		}
	}
	chosen, next := make([]string, len(all)), 0
	for i, s := range all {
		if chosen[i] = fixed[s.name]; chosen[i] == "" {
			chosen[i] = palette[next%len(palette)]
			next++
		}
	}
	return chosen
}

// states draws a bar for each series, in the colors of its values.
func (c *canvas) states(p panel, at box, all []series) {
	f := p.FieldConfig.Defaults
	names := 0
	for _, s := range all {
		names = max(names, len(s.name))
	}
	left := float64(names)*charWidth + 10
	plot := box{at.x + left, at.y, at.w - left, at.h - lineHeight}
	c.times(plot)
	each := min(plot.h/float64(len(all)), 34)
	step := plot.w / float64(len(all[0].values))
	for i, s := range all {
		y := plot.y + float64(i)*each
		c.text(plot.x-8, y+each/2+4, "small end", s.name)
		for from := 0; from < len(s.values); {
			v, to := s.values[from], from+1
			for to < len(s.values) && (s.values[to] == v || math.IsNaN(v) && math.IsNaN(s.values[to])) {
				to++
			}
			if !math.IsNaN(v) {
				c.state(f, v, box{plot.x + float64(from)*step, y + each*.15, float64(to-from) * step, each * .7})
			}
			from = to
		}
	}
}

// state draws a part of a bar, and what it stands for if there is room.
func (c *canvas) state(f field, v float64, at box) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" fill="%s" fill-opacity=".85"/>`+"\n", at.x, at.y, at.w, at.h, f.color(v))
	text := f.format(v)
	for _, m := range f.Mappings {
		text = cmp.Or(m.Options[text].Text, text)
	}
	if float64(len(text))*charWidth+14 < at.w {
		c.text(at.x+6, at.y+at.h/2+4, "on", text)
	}
}

// lines draws the series of a panel over time, one on top of the other if they are to
// be stacked, with what they are called below.
func (c *canvas) lines(p panel, at box, all []series) {
	f := p.FieldConfig.Defaults
	shades := p.colors(all)
	legend := c.legend(at, all, shades)
	stacked := f.Custom.Stacking.Mode == "normal"
	tops, bottoms := stack(all, stacked)
	top := 0.0
	for _, values := range tops {
		for _, v := range values {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	if f.Decimals != nil && *f.Decimals == 0 {
		top = max(top, 4) // whole numbers have no ticks between them
	}
	marks := ticks(top)
	labels, widest := make([]string, len(marks)), 0
	for i, v := range marks {
		labels[i] = format(v, f.Unit, -1)
		widest = max(widest, len(labels[i]))
	}
	left := float64(widest)*charWidth + 8
	plot := box{at.x + left, at.y, at.w - left, at.h - legend - lineHeight}
	last := marks[len(marks)-1]
	y := func(v float64) float64 { return plot.y + plot.h*(1-v/last) }
	for i, v := range marks {
		fmt.Fprintf(c, `<path d="M%.0f %.1fh%.0f" class="grid"/>`+"\n", plot.x, y(v), plot.w)
		c.text(plot.x-6, y(v)+4, "small end", labels[i])
	}
	c.times(plot)
	x := func(i int) float64 { return plot.x + plot.w*float64(i)/float64(max(len(tops[0])-1, 1)) }
	steps := f.Custom.LineInterpolation == "stepAfter"
	for i := range slices.Backward(all) { // the lowest of a stack is drawn last
		if f.Custom.FillOpacity > 0 {
			fmt.Fprintf(c, `<path d="%s" fill="%s" fill-opacity="%.2f"/>`+"\n", area(tops[i], bottoms[i], x, y), shades[i], f.Custom.FillOpacity/100)
		}
		fmt.Fprintf(c, `<path d="%s" class="line" stroke="%s"/>`+"\n", line(tops[i], x, y, steps), shades[i])
	}
}

// stack returns where series end and begin. What is missing in a stack is as nothing.
func stack(all []series, stacked bool) (tops, bottoms [][]float64) {
	ground := make([]float64, len(all[0].values))
	for _, s := range all {
		values := slices.Clone(s.values)
		if stacked {
			for i := range values {
				if math.IsNaN(values[i]) {
					values[i] = 0
				}
				values[i] += ground[i]
			}
		}
		tops, bottoms = append(tops, values), append(bottoms, ground)
		if stacked {
			ground = values
		}
	}
	return tops, bottoms
}

// line is the path along values, with gaps where there are none.
func line(values []float64, x func(int) float64, y func(float64) float64, steps bool) string {
	var path strings.Builder
	drawn := false
	for i, v := range values {
		switch {
		case math.IsNaN(v):
			drawn = false
			continue
		case !drawn:
			fmt.Fprintf(&path, "M%.1f %.1f", x(i), y(v))
		case steps:
			fmt.Fprintf(&path, "H%.1fV%.1f", x(i), y(v))
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", x(i), y(v))
		}
		drawn = true
	}
	return path.String()
}

// area is the path around what is between values and those below them.
func area(tops, bottoms []float64, x func(int) float64, y func(float64) float64) string {
	var path strings.Builder
	command := "M"
	for i, v := range tops {
		if !math.IsNaN(v) {
			fmt.Fprintf(&path, "%s%.1f %.1f", command, x(i), y(v))
			command = "L"
		}
	}
	for i, v := range slices.Backward(bottoms) {
		if !math.IsNaN(tops[i]) {
			fmt.Fprintf(&path, "L%.1f %.1f", x(i), y(v))
		}
	}
	return path.String() + "Z"
}

// timeSteps are what there may be between times on an axis.
var timeSteps = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 12 * time.Hour}

// times writes round ones below a plot, as many as have room.
func (c *canvas) times(plot box) {
	length := c.to.Sub(c.from)
	fits := func(step time.Duration) bool {
		room := 46.0
		if step < time.Minute { // and has seconds
			room = 70
		}
		return plot.w*float64(step)/float64(length) >= room
	}
	step := 24 * time.Hour
	if i := slices.IndexFunc(timeSteps, fits); i >= 0 {
		step = timeSteps[i]
	}
	layout := "15:04"
	switch {
	case step < time.Minute:
		layout = "15:04:05"
	case step >= 24*time.Hour:
		layout = time.DateOnly
	}
	for at := c.from.Truncate(step).Add(step); !at.After(c.to); at = at.Add(step) {
		x := plot.x + plot.w*float64(at.Sub(c.from))/float64(length)
		fmt.Fprintf(c, `<path d="M%.1f %.0fv%.0f" class="grid"/>`+"\n", x, plot.y, plot.h)
		if x > plot.x+10 && x < plot.x+plot.w-10 {
			c.text(x, plot.y+plot.h+15, "small mid", at.UTC().Format(layout))
		}
	}
}

// legend writes the names of series in rows at the bottom, and returns their height.
func (c *canvas) legend(at box, all []series, shades []string) float64 {
	const mark = 18 // the dash before a name, with its space
	var rows [][]int
	room := 0.0
	for i, s := range all {
		w := mark + float64(len([]rune(s.name)))*charWidth + 8
		if len(rows) == 0 || w > room {
			rows, room = append(rows, nil), at.w
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], i)
		room -= w
	}
	height := float64(len(rows)*lineHeight + 4)
	for r, row := range rows {
		x, y := at.x, at.y+at.h-float64((len(rows)-1-r)*lineHeight)
		for _, i := range row {
			fmt.Fprintf(c, `<rect x="%.0f" y="%.0f" width="12" height="4" rx="2" fill="%s"/>`+"\n", x, y-6, shades[i])
			c.text(x+mark-2, y, "small", all[i].name)
			x += mark + float64(len([]rune(all[i].name)))*charWidth + 8
		}
	}
	return height
}
