package integration

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dashboard has the parts of caddyfile_examples/grafana.json that the tests check.
type dashboard struct {
	ID            *int   `json:"id"`
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Panels []dashboardPanel
}

type dashboardPanel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int } `json:"gridPos"`
	Datasource struct{ Type, UID string }
	Targets    []struct {
		Expr       string
		Legend     string `json:"legendFormat"`
		Datasource struct{ Type, UID string }
	}
	FieldConfig struct {
		Defaults struct{ Unit string }
	} `json:"fieldConfig"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../../../caddyfile_examples/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboardFitsAnyGrafana(t *testing.T) { // A51, A52
	isolate(t)
	d := readDashboard(t)
	if d.Title != "MCP gateway" || d.SchemaVersion < 39 {
		t.Errorf("got title %q, schema version %d", d.Title, d.SchemaVersion)
	}
	if d.ID != nil || d.UID != "" {
		t.Error("the dashboard is bound to one Grafana instance")
	}
	if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
		t.Errorf("got variables %v", v)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s: lacks its data source, unit or queries", p.Title)
		}
		for _, target := range p.Targets {
			if target.Datasource != p.Datasource {
				t.Errorf("%s: got data source %v of a query", p.Title, target.Datasource)
			}
		}
	}
}

func TestDashboardPanelsDoNotOverlap(t *testing.T) {
	isolate(t)
	panels := readDashboard(t).Panels
	for i, a := range panels {
		position := a.GridPos
		if position.X < 0 || position.Y < 0 || position.W <= 0 || position.H <= 0 || position.X+position.W > 24 {
			t.Errorf("%s is outside of the grid: %v", a.Title, position)
		}
		for _, b := range panels[:i] {
			before := b.GridPos
			if position.X < before.X+before.W && before.X < position.X+position.W && position.Y < before.Y+before.H &&
				before.Y < position.Y+position.H {
				t.Errorf("%s and %s overlap", a.Title, b.Title)
			}
		}
	}
}

var (
	metricName   = regexp.MustCompile(`caddy_mcp_[a-z_]+`)
	matcherLabel = regexp.MustCompile(`[{,]([a-z_]+)(?:=~|!~|!=|=)"`)
	groupLabels  = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
	legendLabel  = regexp.MustCompile(`{{([a-z_]+)}}`)
)

func TestDashboardQueriesExistingMetrics(t *testing.T) { // A51, A52
	isolate(t)
	metrics := registeredMetrics(t)
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			names := metricName.FindAllString(target.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s: no metric of the plugin in %s", p.Title, target.Expr)
			}
			var labels []string
			for _, match := range matcherLabel.FindAllStringSubmatch(target.Expr, -1) {
				labels = append(labels, match[1])
			}
			var groups []string
			for _, match := range groupLabels.FindAllStringSubmatch(target.Expr, -1) {
				groups = append(groups, strings.Split(match[1], ", ")...)
			}
			for _, name := range names {
				known, ok := metrics[name]
				if !ok {
					t.Errorf("%s: unknown metric %s", p.Title, name)
				}
				for _, label := range slices.Concat(labels, groups) {
					if ok && !slices.Contains(known, label) {
						t.Errorf("%s: %s has no label %s", p.Title, name, label)
					}
				}
			}
			for _, match := range legendLabel.FindAllStringSubmatch(target.Legend, -1) {
				if !slices.Contains(groups, match[1]) {
					t.Errorf("%s: the legend %q has a label that is not in the result of %s", p.Title, target.Legend, target.Expr)
				}
			}
		}
	}
}

// registeredMetrics returns the metrics of the modules and their labels, from the source: a
// registry does not list a metric that has not counted yet.
func registeredMetrics(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("../../../modules/*/metrics.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no metrics: %v", err)
	}
	files = append(files, "../../../modules/internal/toolresults/metrics.go")
	metrics := map[string][]string{}
	for _, file := range files {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(source, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				addMetric(metrics, call)
			}
			return true
		})
	}
	return metrics
}

// addMetric adds the metric of a call such as telemetry.NewCounter(name, help, labels...).
func addMetric(metrics map[string][]string, call *ast.CallExpr) {
	made, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	var arguments []string
	for _, argument := range call.Args {
		literal, ok := argument.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return
		}
		text, _ := strconv.Unquote(literal.Value)
		arguments = append(arguments, text)
	}
	if len(arguments) < 2 {
		return
	}
	name, labels := "caddy_mcp_"+arguments[0], arguments[2:]
	switch made.Sel.Name {
	case "NewCounter", "NewGauge":
		metrics[name] = labels
	case "NewHistogram":
		metrics[name+"_bucket"] = append([]string{"le"}, labels...)
		metrics[name+"_sum"], metrics[name+"_count"] = labels, labels
	}
}
