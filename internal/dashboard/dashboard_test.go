package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	boardFile   = "../../caddyfile_examples/grafana.json"
	pictureFile = "../../docs/dashboard.svg"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// aWindow is of four minutes, in steps of three seconds.
func aWindow(t *testing.T) window {
	t.Helper()
	w, err := newWindow(noon, noon.Add(4*time.Minute), 2*time.Second)
	if err != nil || w.step != 3*time.Second || w.steps() != 81 {
		t.Fatalf("%+v %v", w, err)
	}
	return w
}

// newPrometheus answers each query with two series, and tells what it was asked.
func newPrometheus(t *testing.T, answer string) (url string, asked func() []string) {
	t.Helper()
	var queries []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.FormValue("query"))
		if answer != "" {
			_, _ = io.WriteString(w, answer)
			return
		}
		value := fmt.Sprintf(`"values":[[%d,"1"],[%d,"3"],[%d,"NaN"]]`, noon.Unix(), noon.Unix()+3, noon.Unix()+9)
		if r.URL.Path == "/api/v1/query" {
			value = fmt.Sprintf(`"value":[%d,"1500"]`, noon.Unix())
		}
		fmt.Fprintf(w, `{"status":"success","data":{"result":[{"metric":{"server":"<b>&\"","client":"cline"},%s},{"metric":{"server":"alpha"},%[1]s}]}}`, value)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string { return queries }
}

// pictureOf draws the dashboard from what a Prometheus answers.
func pictureOf(t *testing.T, board *dashboard, url string) []byte {
	t.Helper()
	w := aWindow(t)
	answers, err := board.ask(t.Context(), url, w)
	if err != nil {
		t.Fatal(err)
	}
	return draw(board, answers, w)
}

func theBoard(t *testing.T) *dashboard {
	t.Helper()
	board, err := readDashboard(boardFile)
	if err != nil {
		t.Fatal(err)
	}
	return board
}

// checkPicture checks what holds for every picture, and returns its texts.
func checkPicture(t *testing.T, picture []byte, board *dashboard) (texts []string) {
	t.Helper()
	if len(picture) > 200_000 {
		t.Errorf("it has %d bytes", len(picture))
	}
	for _, foreign := range []string{"<script", "href", "url(", "@import", "<image", "<foreignObject"} {
		if bytes.Contains(picture, []byte(foreign)) {
			t.Errorf("it has %s", foreign)
		}
	}
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, string(text))
		}
	}
	for _, p := range board.Panels {
		if !slices.Contains(texts, p.Title) {
			t.Errorf("%s is not drawn", p.Title)
		}
	}
	return texts
}

func TestDrawsEveryPanelFromItsQueries(t *testing.T) {
	url, asked := newPrometheus(t, "")
	board := theBoard(t)
	picture := pictureOf(t, board, url)
	texts := checkPicture(t, picture, board)
	for _, want := range []string{`<b>&"`, "alpha", "1,500", "drawn from the dashboard's queries by internal/dashboard, 2026-01-02"} {
		if !slices.Contains(texts, want) {
			t.Errorf("%q is not in it", want)
		}
	}
	if n := bytes.Count(picture, []byte("NaN")); n > 0 {
		t.Errorf("%d places are nowhere", n)
	}
	queries := strings.Join(asked(), "\n")
	if strings.Contains(queries, "$") || !strings.Contains(queries, "[8s]") || !strings.Contains(queries, "[240s]") || !strings.Contains(queries, `gateway=~".*"`) {
		t.Errorf("variables are not filled in: %s", queries)
	}
}

func TestPanelWithoutDataSaysSo(t *testing.T) {
	url, _ := newPrometheus(t, `{"status":"success","data":{"result":[]}}`)
	board := theBoard(t)
	if texts := checkPicture(t, pictureOf(t, board, url), board); !slices.Contains(texts, "No data") {
		t.Error("it does not")
	}
}

func TestErrorsNameThePanel(t *testing.T) {
	url, _ := newPrometheus(t, `{"status":"error","error":"parse error"}`)
	if _, err := theBoard(t).ask(t.Context(), url, aWindow(t)); err == nil || !strings.HasPrefix(err.Error(), "Tool calls: ") || !strings.HasSuffix(err.Error(), "parse error") {
		t.Errorf("got %v", err)
	}
	if _, err := theBoard(t).fill("rate(x[$__unheard_of])", aWindow(t)); err == nil || !strings.Contains(err.Error(), "$__unheard_of") {
		t.Errorf("got %v", err)
	}
	if _, err := newWindow(noon, noon, time.Second); err == nil {
		t.Error("a window of no time is one")
	}
}

func TestPictureInTheReadmeIsOfTheDashboard(t *testing.T) {
	picture, err := os.ReadFile(pictureFile)
	if err != nil {
		t.Fatal(err)
	}
	if texts := checkPicture(t, picture, theBoard(t)); slices.Contains(texts, "No data") {
		t.Error("a panel is empty")
	}
}

func TestLinesHaveGapsWhereThereIsNoValue(t *testing.T) {
	x, y := func(i int) float64 { return float64(i) }, func(v float64) float64 { return v }
	values := []float64{1, 2, math.NaN(), 4, 5}
	if got, want := line(values, x, y, false), "M0.0 1.0L1.0 2.0M3.0 4.0L4.0 5.0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := line(values[:2], x, y, true), "M0.0 1.0H1.0V2.0"; got != want {
		t.Errorf("in steps: got %s, want %s", got, want)
	}
}

func TestStackPutsSeriesOnEachOther(t *testing.T) {
	all := []series{{"a", []float64{1, math.NaN()}}, {"b", []float64{2, 3}}}
	tops, bottoms := stack(all, true)
	if !slices.Equal(tops[1], []float64{3, 3}) || !slices.Equal(bottoms[1], []float64{1, 0}) {
		t.Errorf("got %v on %v", tops[1], bottoms[1])
	}
}

func TestFormat(t *testing.T) {
	for _, tt := range []struct {
		value    float64
		unit     string
		decimals int
		want     string
	}{
		{0.12345, "percentunit", 2, "12.35 %"},
		{0.0009, "s", 1, "0.9 ms"},
		{1.25, "s", 1, "1.2 s"},
		{0, "s", -1, "0"},
		{12.5, "reqps", -1, "12.5 req/s"},
		{20_000, "cps", -1, "20 k/s"},
		{13_700_000, "short", 1, "13.7 M"},
		{3, "short", 1, "3"},
		{21380.7, "locale", 0, "21,381"},
		{1234567, "locale", 0, "1,234,567"},
	} {
		if got := format(tt.value, tt.unit, tt.decimals); got != tt.want {
			t.Errorf("%v %s: got %q, want %q", tt.value, tt.unit, got, tt.want)
		}
	}
}

func TestTicksAreRoundAndReachTheTop(t *testing.T) {
	for top, want := range map[float64][]float64{
		0:   {0, 0.5, 1},
		4:   {0, 1, 2, 3, 4},
		45:  {0, 20, 40, 60},
		230: {0, 100, 200, 300},
	} {
		if got := ticks(top); !slices.Equal(got, want) {
			t.Errorf("%v: got %v, want %v", top, got, want)
		}
	}
}
