package backends

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestLimits(t *testing.T) { // P59
	const timeoutMS, maxDocs = "RERANKER_TIMEOUT_MS", "RERANKER_MAX_DOCS"
	tests := []struct {
		name      string
		reranker  reranker
		timeoutMS string
		maxDocs   string
		timeout   time.Duration
		docs      int
		warnings  string // the settings out of bounds
	}{
		{name: "defaults", timeout: 20 * time.Second, docs: 64},
		{name: "configured", reranker: reranker{Timeout: caddy.Duration(time.Minute), MaxDocs: 100}, timeout: time.Minute,
			docs: 100},
		{name: "set in the environment", reranker: reranker{Timeout: caddy.Duration(time.Minute), MaxDocs: 100},
			timeoutMS: "500", maxDocs: " 3 ", timeout: 500 * time.Millisecond, docs: 3},
		{name: "invalid in the environment", reranker: reranker{Timeout: caddy.Duration(time.Minute), MaxDocs: 100},
			timeoutMS: "1s", maxDocs: "1.5", timeout: time.Minute, docs: 100},
		{name: "invalid in the environment and not configured", timeoutMS: "x", maxDocs: "x",
			timeout: 20 * time.Second, docs: 64},
		{name: "the minimum", reranker: reranker{Timeout: caddy.Duration(time.Millisecond), MaxDocs: 1},
			timeout: time.Millisecond, docs: 1},
		{name: "the maximum", reranker: reranker{Timeout: caddy.Duration(2 * time.Minute), MaxDocs: 512},
			timeout: 2 * time.Minute, docs: 512},
		{name: "below the minimum", reranker: reranker{Timeout: 1}, timeout: time.Millisecond, docs: 64, warnings: "timeout"},
		{name: "above the maximum", reranker: reranker{Timeout: caddy.Duration(time.Hour), MaxDocs: 513},
			timeout: 2 * time.Minute, docs: 512, warnings: "timeout max_docs"},
		{name: "zero in the environment", timeoutMS: "0", maxDocs: "0", timeout: time.Millisecond, docs: 1,
			warnings: timeoutMS + " " + maxDocs},
		{name: "negative in the environment", timeoutMS: "-5", maxDocs: "-5", timeout: time.Millisecond, docs: 1,
			warnings: timeoutMS + " " + maxDocs},
		{name: "above the maximum in the environment", timeoutMS: "120001", maxDocs: "513",
			timeout: 2 * time.Minute, docs: 512, warnings: timeoutMS + " " + maxDocs},
		{name: "too large for int in the environment", timeoutMS: "99999999999999999999", maxDocs: "99999999999999999999",
			timeout: 2 * time.Minute, docs: 512, warnings: timeoutMS + " " + maxDocs},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(timeoutMS, tt.timeoutMS)
			t.Setenv(maxDocs, tt.maxDocs)
			core, logs := observer.New(zap.DebugLevel)
			timeout, docs := tt.reranker.limits(zap.New(core), timeoutMS, maxDocs)
			if timeout != tt.timeout || docs != tt.docs {
				t.Errorf("got %s and %d, want %s and %d", timeout, docs, tt.timeout, tt.docs)
			}
			var warnings []string
			for _, entry := range logs.All() {
				warnings = append(warnings, fmt.Sprint(entry.ContextMap()["setting"]))
			}
			if got := strings.Join(warnings, " "); got != tt.warnings {
				t.Errorf("warnings of %q, want %q", got, tt.warnings)
			}
		})
	}
}

func TestKeysAreRefused(t *testing.T) { // P61
	tests := []struct{ config, want string }{
		{`{"max_docs":3}`, ""},
		{`{"api_key":"hunter2"}`, "api_key: keys do not belong in the configuration: there"},
		{`{"max_docs":3,"Token":"hunter2"}`, "Token: keys do not belong"},
		{`{"authorization":"Bearer hunter2"}`, "authorization: keys do not belong"},
		{`{"deepinfra_api_key":{"x":"hunter2"}}`, "deepinfra_api_key: keys do not belong"},
		{`{"foo":"hunter2"}`, `unknown field "foo"`},
		{`{"max_docs":"hunter2"}`, "max_docs"},
		{`[]`, "array"},
	}
	for _, tt := range tests {
		t.Run(tt.config, func(t *testing.T) {
			err := unmarshalJSON([]byte(tt.config), new(reranker), "there")
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("got %v, want … %s …", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the key is in %v", err)
			}
		})
	}
}
