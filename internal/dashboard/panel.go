package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A dashboard is what is drawn of Grafana's.
type dashboard struct {
	Title, Description string
	Templating         struct {
		List []struct{ Name, AllValue string }
	}
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct {
		Expr, LegendFormat string
		Instant            bool
	}
	FieldConfig struct {
		Defaults  field
		Overrides []struct {
			Matcher    struct{ Options string } // by the name of a series
			Properties []struct {
				ID    string
				Value struct{ FixedColor string }
			}
		}
	}
}

type field struct {
	Unit, NoValue string
	Decimals      *int
	Thresholds    struct {
		Steps []struct {
			Color string
			Value *float64 // none: from the beginning
		}
	}
	Mappings []struct {
		Options map[string]struct{ Text string }
	}
	Custom struct {
		FillOpacity       float64
		LineInterpolation string
		Stacking          struct{ Mode string }
	}
}

// A series is a line of a panel. Values has one for each step of the window, NaN where
// there is none, or the only one if the query was for an instant.
type series struct {
	name   string
	values []float64
}

func readDashboard(file string) (*dashboard, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	board := new(dashboard)
	if err := json.Unmarshal(text, board); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return board, nil
}

// A window is the time shown. Its step is one of whole seconds, and such that lines
// have about as many points as can be told apart.
type window struct {
	from, to     time.Time
	step, scrape time.Duration
}

func newWindow(from, to time.Time, scrape time.Duration) (window, error) {
	const points = 80
	from, to = from.Truncate(time.Second), to.Truncate(time.Second)
	if !from.Before(to) {
		return window{}, errors.New("-from must be before -to")
	}
	step := to.Sub(from) / points
	return window{from, to, max(step.Round(time.Second), time.Second), scrape}, nil
}

// steps is how many values a series has.
func (w window) steps() int { return int(w.to.Sub(w.from)/w.step) + 1 }

var variable = regexp.MustCompile(`\$\{?(\w+)\}?`)

// fill puts values in the place of the variables of a query: what Grafana computes, and
// everything where there is a choice.
func (board *dashboard) fill(expr string, w window) (string, error) {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%ds", int(d.Seconds())) }
	values := map[string]string{
		"__interval":      seconds(w.step),
		"__rate_interval": seconds(max(w.step+w.scrape, 4*w.scrape)),
		"__range":         seconds(w.to.Sub(w.from)),
	}
	for _, v := range board.Templating.List {
		values[v.Name] = cmp.Or(v.AllValue, ".*")
	}
	var unknown error
	filled := variable.ReplaceAllStringFunc(expr, func(found string) string {
		value, ok := values[strings.Trim(found, "${}")]
		if !ok {
			unknown = fmt.Errorf("no value for %s in %s", found, expr)
		}
		return value
	})
	return filled, unknown
}

// ask returns the series of each panel, those of a panel in the order of its queries.
func (board *dashboard) ask(ctx context.Context, prometheus string, w window) ([][]series, error) {
	answers := make([][]series, len(board.Panels))
	for i, p := range board.Panels {
		for _, target := range p.Targets {
			expr, err := board.fill(target.Expr, w)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Title, err)
			}
			found, err := query(ctx, prometheus, expr, target.LegendFormat, target.Instant, w)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", p.Title, expr, err)
			}
			answers[i] = append(answers[i], found...)
		}
	}
	return answers, nil
}

// A sample is a time and a value as Prometheus writes them: [1.5,"2"].
type sample struct {
	at    float64
	value float64
}

func (s *sample) UnmarshalJSON(text []byte) error {
	var value string
	pair := []any{&s.at, &value}
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	var err error
	s.value, err = strconv.ParseFloat(value, 64)
	return err
}

func query(ctx context.Context, prometheus, expr, legend string, instant bool, w window) ([]series, error) {
	path, form := "/api/v1/query_range", url.Values{
		"query": {expr}, "start": {w.from.Format(time.RFC3339)}, "end": {w.to.Format(time.RFC3339)},
		"step": {strconv.Itoa(int(w.step.Seconds()))},
	}
	if instant {
		path, form = "/api/v1/query", url.Values{"query": {expr}, "time": {w.to.Format(time.RFC3339)}}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, prometheus+path+"?"+form.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  *sample
				Values []sample
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	var all []series
	for _, result := range answer.Data.Result {
		s := series{name: named(legend, result.Metric)}
		if result.Value != nil {
			s.values = []float64{result.Value.value}
		} else {
			s.values = w.place(result.Values)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b series) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// place puts samples where they are in the window.
func (w window) place(samples []sample) []float64 {
	values := slices.Repeat([]float64{math.NaN()}, w.steps())
	for _, s := range samples {
		i := int(math.Round((s.at - float64(w.from.Unix())) / w.step.Seconds()))
		if i >= 0 && i < len(values) {
			values[i] = s.value
		}
	}
	return values
}

var legendLabel = regexp.MustCompile(`{{(\w+)}}`)

// named is the legend of a series: {{server}} is its label server.
func named(legend string, labels map[string]string) string {
	return legendLabel.ReplaceAllStringFunc(legend, func(found string) string {
		return labels[strings.Trim(found, "{}")]
	})
}
