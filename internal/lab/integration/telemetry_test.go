package integration

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// metrics returns the samples of this project at Caddy's metrics endpoint, by name without the
// common prefix: masked_chars_total{server="sample"}.
func metrics(t *testing.T) map[string]float64 {
	t.Helper()
	samples := map[string]float64{}
	for line := range strings.Lines(admin(t, "GET", "/metrics", "").body) {
		sample, ok := strings.CutPrefix(line, "caddy_mcp_")
		if !ok {
			continue
		}
		space := strings.LastIndexByte(sample, ' ')
		n, err := strconv.ParseFloat(strings.TrimSpace(sample[space+1:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		samples[sample[:space]] = n
	}
	return samples
}

// growth returns a function that returns the samples that have changed since, with the difference.
func growth(t *testing.T) func() map[string]float64 {
	t.Helper()
	before := metrics(t)
	return func() map[string]float64 {
		t.Helper()
		grown := metrics(t)
		for sample := range grown {
			grown[sample] -= before[sample]
			if grown[sample] == 0 {
				delete(grown, sample)
			}
		}
		return grown
	}
}

func TestMetrics(t *testing.T) {
	isolate(t)
	stub := upstream(t, new(mcptest.Stub))
	for server, options := range map[string]string{"metered": block("", "metrics") + "\n", "": ""} {
		t.Run("server "+strconv.Quote(server), func(t *testing.T) {
			address := freeAddress(t)
			config := options + site(address, mask("server "+strconv.Quote(server)), proxy(stub))
			load(t, config)
			grown := growth(t)
			count := func(strings, chars float64) {
				t.Helper()
				label := "{server=" + strconv.Quote(server) + "}"
				if got := grown()["masked_strings_total"+label]; got != strings {
					t.Errorf("%v strings masked, want %v", got, strings)
				}
				if got := grown()["masked_chars_total"+label]; got != chars {
					t.Errorf("%v characters masked, want %v", got, chars)
				}
			}

			long := `"` + strings.Repeat("A", 5000) + `"`
			post(t, "http://"+address, raw(result("["+long+","+long+"]")))
			count(2, 2000)
			post(t, "http://"+address, raw(result(`"short"`)))
			count(2, 2000)
			post(t, "http://"+address, rpc("sse", `{"n":1,"size":4001}`))
			count(3, 2001)

			load(t, config+site(freeAddress(t), "respond x")) // counters survive a reload
			count(3, 2001)
			post(t, "http://"+address, raw(result(long)))
			count(4, 3001)
		})
	}
}

func TestAccessLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		mask("server sample"), proxy(upstream(t, mcpsample.NewServer())))

	const secret = "geheim"
	type fields struct {
		Server  *string `json:"mcp_server"`
		Method  *string `json:"mcp_method"`
		Tool    *string `json:"mcp_tool"`
		Strings *int    `json:"mcp_masked_strings"`
		Chars   *int    `json:"mcp_masked_chars"`
	}
	tests := []struct {
		name    string
		request string
		accept  string
		want    fields
	}{
		{"a masked call", rpc("tools/call", `{"name":"echo","arguments":{"text":`+quote(strings.Repeat(secret, 1000))+`}}`),
			"",
			fields{new("sample"), new("tools/call"), new("echo"), new(1), new(2000)}},
		{"a masked call with an event as response", rpc("tools/call", `{"name":"echo","arguments":{"text":`+
			quote(strings.Repeat(secret, 1000))+`}}`), "text/event-stream",
			fields{new("sample"), new("tools/call"), new("echo"), new(1), new(2000)}},
		{"an unmasked call", rpc("tools/call", `{"arguments":{"text":`+quote(secret)+`},"name":"echo"}`), "",
			fields{new("sample"), new("tools/call"), new("echo"), nil, nil}},
		{"a request without a name", rpc("tools/list", `{}`), "", fields{Server: new("sample"), Method: new("tools/list")}},
		{"not JSON-RPC", "x", "", fields{Server: new("sample")}},
	}
	client := sequentialClient(t)
	for _, tt := range tests {
		send(t, client, "POST", url, tt.request, "Accept: "+tt.accept)
	}
	send(t, client, "GET", url, "")

	lines := linesOf(t, file)
	if strings.Contains(strings.Join(lines, "\n"), secret) {
		t.Error("the log contains arguments or results")
	}
	if len(lines) < len(tests) {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { logged(t, lines[i], tt.want) })
	}
}

// sequentialClient returns a client with one connection: a request is served only after the request
// before it was counted and logged.
func sequentialClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func linesOf(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// logged checks the fields of a line of the access log. A nil field must be absent.
func logged[T any](t *testing.T, line string, want T) {
	t.Helper()
	var got T
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	wanted, _ := json.Marshal(want)
	if has, _ := json.Marshal(got); string(has) != string(wanted) {
		t.Errorf("logged %s\nwant %s", has, wanted)
	}
}

// Two masks in one request's chain write one line, with each field once.
func TestAccessLogOfChainedMasks(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		block("route", mask("server outer"), mask("server inner"), proxy(upstream(t, mcpsample.NewServer()))))
	client := sequentialClient(t)
	for range 2 { // the second starts after the line of the first is written
		send(t, client, "POST", url, rpc("tools/call", `{"name":"read_log"}`))
	}
	line := linesOf(t, file)[0]
	for _, field := range []string{`"mcp_server":"outer"`, `"mcp_method":`, `"mcp_tool":`, `"mcp_masked_strings":1`,
		`"mcp_masked_chars":`} {
		if strings.Count(line, field) != 1 || strings.Contains(line, "inner") {
			t.Errorf("%s in %s", field, line)
		}
	}
}
