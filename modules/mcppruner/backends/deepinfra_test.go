package backends

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func TestDeepInfra(t *testing.T) { // P63
	server, url := serve(t)
	setEnv(t, map[string]string{"DEEPINFRA_API_KEY": " " + key + "\n", "DEEPINFRA_ENDPOINT_URL": " " + url + "/ok "})
	backend, _, err := load[DeepInfra](t, "")
	if err != nil {
		t.Fatal(err)
	}
	scored, fault := backend.Score(t.Context(), "<but>", []string{"a < b", "keep"})
	if fault != nil {
		t.Fatal(fault.Err)
	}
	if !reflect.DeepEqual(scored.Scores, []float64{0.1, 0.9}) || scored.Docs != 2 || scored.Status != 200 {
		t.Errorf("got %+v", scored)
	}
	request := server.Last()
	if want := `{"queries":["<but>"],"documents":["a < b","keep"]}`; server.Count() != 1 || request.Method != "POST" ||
		request.Body != want {
		t.Errorf("%d requests, %s %s\nwant %s", server.Count(), request.Method, request.Body, want)
	}
	if got := request.Headers.Get("Authorization"); got != "Bearer "+key {
		t.Errorf("Authorization: %q", got)
	}
	if got := backend.Name(); got != "deepinfra" {
		t.Errorf("name %s, want deepinfra", got)
	}
}

func TestDeepInfraURL(t *testing.T) { // P63
	if want := "https://api.deepinfra.com/v1/inference/Qwen/Qwen3-Reranker-0.6B"; deepInfraURL != want {
		t.Errorf("got %s, want %s", deepInfraURL, want)
	}
	setEnv(t, map[string]string{"DEEPINFRA_API_KEY": key, "DEEPINFRA_ENDPOINT_URL": " "})
	_, logs, err := load[DeepInfra](t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	// A backend does not dial when it is loaded.
	if logged := contents(t, logs); strings.Contains(logged, "is unusable") {
		t.Error(logged)
	}
}

func TestMaxDocs(t *testing.T) { // P59, P67
	tests := []struct {
		name, config, variable string
		want                   int
	}{
		{"the default", `{}`, "", 64},
		{"a configured number", `{"max_docs":5}`, "", 5},
		{"a number in the environment", `{"max_docs":5}`, "7", 7},
		{"an invalid number in the environment", `{"max_docs":5}`, "many", 5},
		{"the maximum", `{"max_docs":100000}`, "", 512},
		{"the minimum", `{"max_docs":5}`, "-1", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, url := serve(t)
			setEnv(t, map[string]string{"DEEPINFRA_API_KEY": key, "DEEPINFRA_ENDPOINT_URL": url + "/desc",
				"DEEPINFRA_MAX_DOCS": tt.variable})
			backend, _, err := load[DeepInfra](t, tt.config)
			if err != nil {
				t.Fatal(err)
			}
			scored, fault := backend.Score(t.Context(), "zzzz", numbered(1000))
			if fault != nil {
				t.Fatal(fault.Err)
			}
			var sent struct{ Documents []string }
			if err := json.Unmarshal([]byte(server.Last().Body), &sent); err != nil {
				t.Fatal(err)
			}
			if len(sent.Documents) != tt.want || scored.Docs != tt.want || len(scored.Scores) != 1000 {
				t.Errorf("%d lines sent, %d scored of %d, want %d", len(sent.Documents), scored.Docs, len(scored.Scores),
					tt.want)
			}
			if last := sent.Documents[tt.want-1]; tt.want > 1 && (last != "ligne 1000" || math.IsNaN(scored.Scores[999])) {
				t.Errorf("the last line sent is %q", last)
			}
		})
	}
}

func TestTimeout(t *testing.T) { // P59, P70
	tests := []struct{ name, config, variable, want string }{
		{"a configured timeout", `{"timeout":"20ms"}`, "", "after 20ms"},
		{"a timeout in the environment", `{"timeout":"1m"}`, "15", "after 15ms"},
		{"an invalid timeout in the environment", `{"timeout":"20ms"}`, "1m", "after 20ms"},
		{"the minimum", `{"timeout":"1m"}`, "0", "after 1ms"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, url := serve(t)
			setEnv(t, map[string]string{"DEEPINFRA_API_KEY": key, "DEEPINFRA_ENDPOINT_URL": url + "/hang",
				"DEEPINFRA_TIMEOUT_MS": tt.variable})
			backend, _, err := load[DeepInfra](t, tt.config)
			if err != nil {
				t.Fatal(err)
			}
			_, fault := backend.Score(t.Context(), "goal", []string{"a"})
			if fault == nil || fault.Kind != "http" || fault.Status != 0 || !strings.Contains(fault.Err.Error(), tt.want) {
				t.Errorf("got %+v, want … %s", fault, tt.want)
			}
		})
	}
}

func TestDeepInfraFaults(t *testing.T) { // P61, P68, P69, P70, P71
	_, url := serve(t)
	tests := []struct {
		name, key, endpoint string
		kind                string
		status              int
		warns               bool // loading logs a warning
	}{
		{name: "no key", endpoint: url + "/ok", kind: "config", warns: true},
		{name: "a blank key", key: " \t", endpoint: url + "/ok", kind: "config", warns: true},
		{name: "a key of two lines", key: key + "\n" + key, endpoint: url + "/ok", kind: "config", warns: true},
		{name: "an endpoint that is not a URL", key: key, endpoint: "%" + key, kind: "config", warns: true},
		{name: "an endpoint with a password", key: key, endpoint: "https://u:" + key + "@127.0.0.1/", kind: "config",
			warns: true},
		{name: "an endpoint with another scheme", key: key, endpoint: "ftp://127.0.0.1/" + key, kind: "config", warns: true},
		{name: "status 401", key: key, endpoint: url + "/401?" + key, kind: "http", status: 401},
		{name: "status 429", key: key, endpoint: url + "/429?" + key, kind: "http", status: 429},
		{name: "status 500", key: key, endpoint: url + "/500?" + key, kind: "http", status: 500},
		{name: "a redirect", key: key, endpoint: url + "/redirect?" + key, kind: "http", status: 307},
		{name: "a reset", key: key, endpoint: url + "/reset?" + key, kind: "http"},
		{name: "text", key: key, endpoint: url + "/text?" + key, kind: "parse"},
		{name: "no scores", key: key, endpoint: url + "/empty?" + key, kind: "parse"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			setEnv(t, map[string]string{"DEEPINFRA_API_KEY": tt.key, "DEEPINFRA_ENDPOINT_URL": tt.endpoint})
			backend, logs, err := load[DeepInfra](t, `{}`)
			if err != nil {
				t.Fatalf("the backend does not load: %v", err)
			}
			scored, fault := backend.Score(t.Context(), "goal", []string{"a", "b"})
			if scored != nil || fault == nil || fault.Kind != tt.kind || fault.Status != tt.status {
				t.Fatalf("got %+v, %+v, want %s %d", scored, fault, tt.kind, tt.status)
			}
			logged := contents(t, logs)
			if warns := strings.Contains(logged, "pruning without the backend"); warns != tt.warns {
				t.Errorf("logged %s", logged)
			}
			config, err := json.Marshal(backend)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{fault.Err.Error(), fmt.Sprintf("%#v", fault.Err), logged, string(config)} {
				if strings.Contains(text, "hunter2") {
					t.Errorf("the key is in %s", text)
				}
			}
		})
	}
}

func TestDeepInfraCaddyfile(t *testing.T) { // P59
	tests := []struct {
		name, input string
		want        DeepInfra
		json        string
	}{
		{"a name", `deepinfra`, DeepInfra{}, `{}`},
		{"an empty block", "deepinfra {\n}", DeepInfra{}, `{}`},
		{"everything", "deepinfra {\n timeout 5s\n max_docs 128\n}",
			DeepInfra{reranker: reranker{Timeout: caddy.Duration(5 * time.Second), MaxDocs: 128}},
			`{"timeout":5000000000,"max_docs":128}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got DeepInfra
			if err := got.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if config, err := json.Marshal(got); err != nil || string(config) != tt.json {
				t.Errorf("got %s, %v, want %s", config, err, tt.json)
			}
			var again DeepInfra
			if err := json.Unmarshal([]byte(tt.json), &again); err != nil || !reflect.DeepEqual(again, tt.want) {
				t.Errorf("from JSON: got %+v, %v", again, err)
			}
		})
	}
}

func TestInvalidDeepInfra(t *testing.T) { // P59, P61
	caddyfiles := []struct{ name, input, want string }{
		{"an argument", "deepinfra hunter2", "no arguments"},
		{"an unknown subdirective", "deepinfra {\n foo 1\n}", "unknown subdirective foo"},
		{"a duplicate subdirective", "deepinfra {\n max_docs 1\n max_docs 2\n}", "max_docs is given twice"},
		{"a timeout of zero", "deepinfra {\n timeout 0\n}", "timeout"},
		{"a negative timeout", "deepinfra {\n timeout -1s\n}", "timeout"},
		{"no lines", "deepinfra {\n max_docs 0\n}", "max_docs"},
		{"a negative number of lines", "deepinfra {\n max_docs -3\n}", "max_docs"},
		{"a number of lines in words", "deepinfra {\n max_docs many\n}", "max_docs"},
		{"an api_key", "deepinfra {\n api_key hunter2\n}",
			"api_key: keys do not belong in the configuration: put the key in the environment variable DEEPINFRA_API_KEY"},
		{"a key", "deepinfra {\n key hunter2\n}", "DEEPINFRA_API_KEY"},
		{"a token", "deepinfra {\n token hunter2\n}", "DEEPINFRA_API_KEY"},
		{"the name of the variable", "deepinfra {\n DEEPINFRA_API_KEY hunter2\n}", "keys do not belong"},
	}
	for _, tt := range caddyfiles {
		t.Run(tt.name, func(t *testing.T) {
			err := new(DeepInfra).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
	configs := []struct{ name, config, want string }{
		{"an api_key in JSON", `{"api_key":"hunter2"}`, "put the key in the environment variable DEEPINFRA_API_KEY"},
		{"a key in JSON", `{"key":"hunter2"}`, "DEEPINFRA_API_KEY"},
		{"a token in JSON", `{"token":"hunter2","max_docs":3}`, "DEEPINFRA_API_KEY"},
		{"an unknown member", `{"url":"http://hunter2"}`, `unknown field "url"`},
		{"a negative timeout in JSON", `{"timeout":-1}`, "timeout: -1ns is negative"},
		{"a negative number of lines in JSON", `{"max_docs":-1}`, "max_docs: -1 is negative"},
	}
	setEnv(t, map[string]string{"DEEPINFRA_API_KEY": key})
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			_, logs, err := load[DeepInfra](t, tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
			if logged := contents(t, logs); strings.Contains(logged, "hunter2") {
				t.Errorf("the key is in %s", logged)
			}
		})
	}
}

func TestDeepInfraLogsSettingsOutOfBounds(t *testing.T) { // P59
	setEnv(t, map[string]string{"DEEPINFRA_API_KEY": key, "DEEPINFRA_TIMEOUT_MS": "500000"})
	_, logs, err := load[DeepInfra](t, `{"max_docs":1000}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"setting":"DEEPINFRA_TIMEOUT_MS"`, `"setting":"max_docs","value":1000,"used":512`} {
		if logged := contents(t, logs); !strings.Contains(logged, want) {
			t.Errorf("%s is not in %s", want, logged)
		}
	}
}
