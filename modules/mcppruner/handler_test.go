package mcppruner

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestIntSettings(t *testing.T) { // P58, P59
	tests := []struct {
		name        string
		first, then string // values of the variables
		configured  int
		want        int
		warns       string // the setting that is warned about
	}{
		{"the default", "", "", 0, 256, ""},
		{"a configured number", "", "", 7, 7, ""},
		{"a variable", "9", "", 7, 9, ""},
		{"a variable with spaces around it", " 9\n", "", 7, 9, ""},
		{"the other name", "", "8", 7, 8, ""},
		{"both names", "9", "8", 7, 9, ""},
		{"a word", "many", "", 7, 7, ""},
		{"a word, and the other name", "many", "8", 7, 8, ""},
		{"a fraction", "1.5", "", 0, 256, ""},
		{"too small", "0", "", 7, 1, "FIRST"},
		{"negative", "-5", "", 7, 1, "FIRST"},
		{"too large", "100001", "", 7, 100_000, "FIRST"},
		{"far too large", "99999999999999999999", "", 7, 100_000, "FIRST"},
		{"too large, with the other name", "", "100001", 7, 100_000, "THEN"},
		{"too large in the configuration", "", "", 100_001, 100_000, "cache_max_entries"},
		{"too large in the configuration, but overridden", "9", "", 100_001, 9, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("FIRST", tt.first)
			t.Setenv("THEN", tt.then)
			core, logs := observer.New(zapcore.WarnLevel)
			h := &Handler{logger: zap.New(core)}
			if got := h.intSetting("cache_max_entries", tt.configured, 256, 100_000, "FIRST", "THEN"); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got := warned(logs); got != tt.warns {
				t.Errorf("warned about %q, want %q", got, tt.warns)
			}
		})
	}
}

// warned returns the settings that were warned about.
func warned(logs *observer.ObservedLogs) string {
	var settings []string
	for _, entry := range logs.All() {
		settings = append(settings, fmt.Sprint(entry.ContextMap()["setting"]))
	}
	return strings.Join(settings, " ")
}

func TestSecondsSettings(t *testing.T) { // P58, P59
	tests := []struct {
		name       string
		said       string
		configured time.Duration
		want       time.Duration
		warns      string
	}{
		{"the default", "", 0, 30 * time.Second, ""},
		{"a configured duration", "", 1500 * time.Millisecond, 1500 * time.Millisecond, ""},
		{"a variable", "5", time.Minute, 5 * time.Second, ""},
		{"a duration with a unit", "5s", time.Minute, time.Minute, ""},
		{"a duration with a unit, and no configured one", "5s", 0, 30 * time.Second, ""},
		{"too short", "0", time.Minute, time.Second, "VARIABLE"},
		{"too long", "3601", time.Minute, time.Hour, "VARIABLE"},
		{"far too long", "99999999999999999999", time.Minute, time.Hour, "VARIABLE"},
		{"too short in the configuration", "", time.Millisecond, time.Second, "cache_ttl"},
		{"too long in the configuration", "", 2 * time.Hour, time.Hour, "cache_ttl"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("VARIABLE", tt.said)
			core, logs := observer.New(zapcore.WarnLevel)
			h := &Handler{logger: zap.New(core)}
			if got := time.Duration(h.secondsSetting("cache_ttl", caddy.Duration(tt.configured), 30, 3600,
				"VARIABLE")); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got := warned(logs); got != tt.warns {
				t.Errorf("warned about %q, want %q", got, tt.warns)
			}
		})
	}
}

func TestParseWhole(t *testing.T) { // P15
	tests := []struct {
		literal string
		want    int
		ok      bool
	}{
		{"0", 0, true}, {"-0", 0, true}, {"0.0e5", 0, true}, {"0e-999999999999999999999", 0, true},
		{"12", 12, true}, {"-12", -12, true}, {"12.0", 12, true}, {"1.2e1", 12, true}, {"1.2E+1", 12, true},
		{"120e-1", 12, true}, {"1200.00e-2", 12, true},
		{"9007199254740993", 9007199254740993, true}, {"9223372036854775807", math.MaxInt, true},
		{"1e30", math.MaxInt, true}, {"-1e30", math.MinInt, true}, {"1e999999999999999999999", math.MaxInt, true},
		{"99999999999999999999", math.MaxInt, true},
		{"1.5", 0, false}, {"12e-1", 0, false}, {"1.25e1", 0, false}, {"1e-400", 0, false}, {"9007199254740992.5", 0, false},
		{"1e-999999999999999999999", 0, false},
	}
	for _, tt := range tests {
		if n, ok := parseWhole(tt.literal); n != tt.want || ok != tt.ok {
			t.Errorf("%s: got %d, %t", tt.literal, n, ok)
		}
	}
}

func TestEncodeScored(t *testing.T) { // P73
	want := &Scored{Scores: []float64{1.5, math.Inf(-1), 0, -3}, Docs: 3, Status: 200}
	if got := decodeScored(encodeScored(want)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := decodeScored(encodeScored(&Scored{Scores: []float64{math.NaN()}})); !math.IsNaN(got.Scores[0]) {
		t.Errorf("got %v", got.Scores)
	}
}

func TestAccessLogHasNoText(t *testing.T) {
	r := &prune.Request{Text: "secret", Goal: "secret", Source: prune.Docs}
	result := prune.Raw(r, prune.InputTooLarge)
	x := new(request)
	tool := "prune_text"
	x.tool.Store(&tool)
	x.pruned.Store(&pruning{request: r, result: result, scoring: scoring{backend: "heuristic"}})
	want := map[string]any{
		"mcp_tool": "prune_text", "mcp_prune_backend": "heuristic", "mcp_pruned_lines": 0,
		"mcp_prune_tokens_saved": 0, "mcp_prune_fallback": "input_too_large",
	}
	for range 2 {
		enc := zapcore.NewMapObjectEncoder()
		if err := x.MarshalLogObject(enc); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(enc.Fields, want) {
			t.Errorf("got %v", enc.Fields)
		}
		x.logged = true // another handler logs the tool
		delete(want, "mcp_tool")
	}
}

// Large texts wait for a free slot. Small texts do not.
func TestLargeTextsTakeTurns(t *testing.T) {
	for range cap(slots) {
		slots <- struct{}{}
	}
	defer func() {
		for range cap(slots) {
			<-slots
		}
	}()
	of := func(lines int, timeout time.Duration) *pruning {
		return &pruning{request: &prune.Request{
			Text: strings.Repeat("a line that says nothing\n", lines), Goal: "goal", Source: prune.Docs,
			Options: prune.Options{MaxPruneRatio: 0.5, Timeout: timeout, IncludeMarkers: true},
		}}
	}
	if got := of(maxUnqueuedLines, time.Minute).pruneQueued(t.Context()); got.Stats.PrunedLines == 0 ||
		len(got.Warnings) > 0 {
		t.Errorf("a small text: %+v, %v", got.Stats, got.Warnings)
	}
	if got := of(maxUnqueuedLines+1, time.Millisecond).pruneQueued(t.Context()); !slices.Equal(got.Warnings,
		[]string{prune.Timeout}) {
		t.Errorf("a large text after its timeout: %+v, %v", got.Stats, got.Warnings)
	}
	carriageReturns := of(maxUnqueuedLines+1, 200*time.Millisecond)
	carriageReturns.request.Text = strings.ReplaceAll(carriageReturns.request.Text, "\n", "\r")
	if got := carriageReturns.pruneQueued(t.Context()); !slices.Equal(got.Warnings, []string{prune.Timeout}) ||
		got.Stats.PrunedLines != 0 {
		t.Errorf("a large text with carriage returns: %+v, %v", got.Stats, got.Warnings)
	}
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	if got := of(maxUnqueuedLines+1, time.Minute).pruneQueued(gone); got.Stats.PrunedLines != 0 {
		t.Errorf("a large text of a canceled request: %+v", got.Stats)
	}
	<-slots
	if got := of(maxUnqueuedLines+1, time.Minute).pruneQueued(t.Context()); got.Stats.PrunedLines == 0 {
		t.Errorf("a large text with a free slot: %+v, %v", got.Stats, got.Warnings)
	}
	slots <- struct{}{}
}

// FuzzWhole compares parseWhole with math/big.
func FuzzWhole(f *testing.F) {
	for _, literal := range []string{"0", "-0", "-0.0e5", "1", "-1", "100.0", "1e2", "1.5", "15e-1", "150e-1", "1.50e1",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e400", "-1e400", "1e-400", "0.1e1",
		"123456789012345678901234567890e-20", "1e99999999999999999999", "0e-99999999999999999999"} {
		f.Add(literal)
	}
	f.Fuzz(func(t *testing.T, literal string) {
		var number json.Number
		if json.Unmarshal([]byte(literal), &number) != nil || literal != number.String() || len(literal) > 40 {
			return
		}
		n, ok := parseWhole(literal)
		if _, err := number.Float64(); err != nil {
			return // too large for a float64, and slow for math/big
		}
		want, isRat := new(big.Rat).SetString(literal)
		if !isRat {
			return // the exponent is too large for math/big
		}
		if ok != want.IsInt() {
			t.Fatalf("%s: whole %t, want %t", literal, ok, want.IsInt())
		}
		if !ok {
			return
		}
		exact := want.Num()
		switch {
		case exact.Cmp(big.NewInt(math.MaxInt64)) >= 0:
			if n != math.MaxInt64 {
				t.Fatalf("%s: got %d", literal, n)
			}
		case exact.Cmp(big.NewInt(math.MinInt64)) <= 0:
			if n != math.MinInt64 {
				t.Fatalf("%s: got %d", literal, n)
			}
		case exact.IsInt64() && exact.Int64() != int64(n):
			// Numbers with a fraction or exponent have the precision of a float64.
			if off := exact.Int64() - int64(n); -1<<53 < exact.Int64() && exact.Int64() < 1<<53 || off > 1024 || off < -1024 {
				t.Fatalf("%s: got %d", literal, n)
			}
		}
	})
}
