package backends

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestRerank(t *testing.T) { // P63, P67
	tests := []struct {
		name, config, body, bearer string
		docs                       int
	}{
		{"only a URL", `{"url":%q}`, `{"query":"<goal>","documents":["a","keep","c"]}`, "", 3},
		{"a model", `{"url":%q,"model":"m"}`, `{"query":"<goal>","documents":["a","keep","c"],"model":"m"}`, "", 3},
		{"a key", `{"url":%q,"key_env":"RERANK_KEY"}`, `{"query":"<goal>","documents":["a","keep","c"]}`, "Bearer " + key, 3},
		{"fewer lines", `{"url":%q,"max_docs":2}`, `{"query":"<goal>","documents":["a","c"]}`, "", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("RERANK_KEY", " "+key+" ")
			// The backend must not use the variables of DeepInfra.
			t.Setenv("DEEPINFRA_API_KEY", "another")
			t.Setenv("DEEPINFRA_MAX_DOCS", "1")
			server, url := serve(t)
			backend, _, err := load[Rerank](t, fmt.Sprintf(tt.config, url+"/cohere"))
			if err != nil {
				t.Fatal(err)
			}
			scored, fault := backend.Score(t.Context(), "<goal>", []string{"a", "keep", "c"})
			if fault != nil {
				t.Fatal(fault.Err)
			}
			if got := server.Last(); got.Body != tt.body || got.Headers.Get("Authorization") != tt.bearer ||
				server.Count() != 1 {
				t.Errorf("sent %s as %q\nwant %s as %q", got.Body, got.Headers.Get("Authorization"), tt.body, tt.bearer)
			}
			if scored.Status != 200 || scored.Docs != tt.docs || len(scored.Scores) != 3 {
				t.Errorf("got %+v", scored)
			}
			if got := backend.Name(); got != "rerank" {
				t.Errorf("name %s, want rerank", got)
			}
		})
	}
}

func TestRerankFaults(t *testing.T) { // P61, P68, P69, P70, P71
	tests := []struct {
		name, path, members string
		kind                string
		status              int
	}{
		{name: "an unset variable", path: "/cohere", members: `,"key_env":"RERANK_NO_KEY"`, kind: "config"},
		{name: "a blank variable", path: "/cohere", members: `,"key_env":"RERANK_BLANK_KEY"`, kind: "config"},
		{name: "status 401", path: "/401", kind: "http", status: 401},
		{name: "status 422", path: "/ok", kind: "http", status: 422}, // /ok expects DeepInfra's form
		{name: "a redirect", path: "/302", kind: "http", status: 302},
		{name: "no scores", path: "/200", kind: "parse"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("RERANK_KEY", key)
			t.Setenv("RERANK_BLANK_KEY", " ")
			server, url := serve(t)
			members := tt.members
			if members == "" {
				members = `,"key_env":"RERANK_KEY"`
			}
			backend, _, err := load[Rerank](t, fmt.Sprintf(`{"url":%q%s}`, url+tt.path+"?v=hunter2", members))
			if err != nil {
				t.Fatalf("the backend does not load: %v", err)
			}
			scored, fault := backend.Score(t.Context(), "goal", []string{"a"})
			if scored != nil || fault == nil || fault.Kind != tt.kind || fault.Status != tt.status {
				t.Fatalf("got %+v, %+v, want %s %d", scored, fault, tt.kind, tt.status)
			}
			if text := fmt.Sprintf("%v %#v", fault.Err, fault.Err); strings.Contains(text, "hunter2") {
				t.Errorf("a secret is in %s", text)
			}
			if n := server.Count(); (n == 0) != (tt.kind == "config") || n > 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestRerankCaddyfile(t *testing.T) {
	tests := []struct {
		name, input string
		want        Rerank
		json        string
	}{
		{"a URL", "rerank {\n url http://127.0.0.1:8080/rerank\n}", Rerank{URL: "http://127.0.0.1:8080/rerank"},
			`{"url":"http://127.0.0.1:8080/rerank"}`},
		{
			"everything", "rerank {\n url https://api.example.com/v2/rerank\n model m\n key_env COHERE_API_KEY\n timeout " +
				"5s\n max_docs 128\n}",
			Rerank{
				URL: "https://api.example.com/v2/rerank", Model: "m", KeyEnv: "COHERE_API_KEY",
				reranker: reranker{Timeout: caddy.Duration(5 * time.Second), MaxDocs: 128},
			},
			`{"url":"https://api.example.com/v2/rerank","model":"m","key_env":"COHERE_API_KEY","timeout":5000000000,` +
				`"max_docs":128}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got Rerank
			if err := got.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if config, err := json.Marshal(got); err != nil || string(config) != tt.json {
				t.Errorf("got %s, %v, want %s", config, err, tt.json)
			}
		})
	}
}

func TestInvalidRerank(t *testing.T) { // P61
	caddyfiles := []struct{ name, input, want string }{
		{"an argument", "rerank hunter2", "no arguments"},
		{"no URL", "rerank {\n model m\n}", "url: missing"},
		{"no block", "rerank", "url: missing"},
		{"an empty URL", "rerank {\n url \"\"\n}", "url: missing"},
		{"a URL with another scheme", "rerank {\n url unix//hunter2\n}", "url: not an http or https URL"},
		{"a URL with a password", "rerank {\n url http://me:hunter2@127.0.0.1/\n}",
			"url: must not contain a user or password"},
		{"a duplicate subdirective", "rerank {\n url http://a\n url http://b\n}", "url is given twice"},
		{"a key instead of its variable", "rerank {\n url http://a\n key_env sk-hunter2\n}", "key_env: not the name"},
		{"a key instead of its variable, beginning with a digit", "rerank {\n url http://a\n key_env 0hunter2\n}",
			"key_env: not the name"},
		{"a key in the query of the url", "rerank {\n url http://a/?api_key=hunter2\n}", "url: api_key: keys do not belong"},
		{"an api_key", "rerank {\n url http://a\n api_key hunter2\n}",
			"api_key: keys do not belong in the configuration: put the key in an environment variable, and its name in key_env"},
		{"an unknown subdirective", "rerank {\n url http://a\n foo\n}", "unknown subdirective foo"},
		{"no lines", "rerank {\n url http://a\n max_docs 0\n}", "max_docs"},
	}
	for _, tt := range caddyfiles {
		t.Run(tt.name, func(t *testing.T) {
			err := new(Rerank).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
	configs := []struct{ name, config, want string }{
		{"no URL in JSON", `{}`, "url: missing"},
		{"a URL with a password in JSON", `{"url":"http://me:hunter2@127.0.0.1/"}`,
			"url: must not contain a user or password"},
		{"a URL without a host in JSON", `{"url":"http:///hunter2"}`, "url: missing host"},
		{"a key instead of its variable in JSON", `{"url":"http://a","key_env":"Bearer hunter2"}`,
			"key_env: not the name"},
		{"an api_key in JSON", `{"url":"http://a","api_key":"hunter2"}`, "name in key_env"},
		{"a key_env that is not a string", `{"url":"http://a","key_env":5}`, "cannot unmarshal number"},
		{"a negative timeout in JSON", `{"url":"http://a","timeout":-1}`, "timeout: -1ns is negative"},
		{"a negative number of lines in JSON", `{"url":"http://a","max_docs":-1}`, "max_docs: -1 is negative"},
	}
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := load[Rerank](t, tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
}

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
