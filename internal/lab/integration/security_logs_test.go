package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// shippedCaddyfiles returns the paths of the Caddyfiles in the project.
func shippedCaddyfiles(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"Caddyfile", "packaging/*/Caddyfile", "caddyfile_examples/*.Caddyfile"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// logFields matches the lines of a Caddyfile that hide credentials in all logs.
var logFields = regexp.MustCompile(`\n\t\t\trequest>headers delete\n\t\t\tresp_headers delete\n\t\t\theaders ` +
	`delete\n\t\t\trequest>uri regexp \[\?\]\.\* \?REDACTED\n\t\t\turi regexp \[\?\]\.\* \?REDACTED\n`)

// sendAndClose sends a request and disconnects after the first byte of the response.
func sendAndClose(t *testing.T, method, endpoint, body string, headers ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request(t, ctx, method, endpoint,
		body, headers...))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// endless sends the start of a stream that does not end.
func endless(headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.Contains(r.URL.Path, "breaks") {
			panic(http.ErrAbortHandler)
		}
		for _, header := range headers {
			name, value, _ := strings.Cut(header, ": ")
			w.Header().Set(name, value)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// searchLog checks that a log has no secrets. Lines that quote the configuration, which contains
// the secret in a server's URL, do not count.
func searchLog(t *testing.T, file string) {
	t.Helper()
	for _, line := range linesOf(t, file) {
		if strings.Contains(line, "SECRET") && !strings.Contains(line, "adjusted config") && !strings.Contains(line,
			"invoking subscribed handler") {
			t.Errorf("logged: %.1500s", line)
		}
	}
}

// With the log settings of the shipped Caddyfiles, keys and session IDs are in no log at any level,
// even when clients disconnect and upstreams fail.
func TestSecurityLogsOfShippedFiles(t *testing.T) {
	isolate(t)
	setenv(t, "LOGGED_KEY", "SECRET-of-gateway")
	for _, file := range shippedCaddyfiles(t) {
		text, err := os.ReadFile(file)
		if err != nil || !logFields.Match(text) {
			t.Errorf("%s does not hide credentials in logs: %v", file, err)
		}
	}
	text, err := os.ReadFile("../../../Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	filter := string(logFields.Find(text))
	for _, format := range []string{"json", "console"} {
		t.Run(format, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			model, server := upstream(t, endless("Mcp-Session-Id: SECRET-of-model")),
				upstream(t, endless("Mcp-Session-Id: SECRET-of-server"))
			address := freeAddress(t)
			load(t, block("", "debug", block("log", "output file "+log, block("format filter", "wrap "+format, filter)))+"\n"+
				site(address, "log", gateway(block("server s http://"+server+"/mcp?key=SECRET-in-url",
					"request_header X-Key {env.LOGGED_KEY}")),
					block("handle /v1/*", "uri replace /x /y", "tool_result_mask", proxy(model)),
					block("handle /breaks/*", "tool_result_mask", proxy(model))))
			base := "http://" + address
			keys := []string{acceptBoth, "X-Api-Key: SECRET-1", "Api-Key: SECRET-2", "X-Goog-Api-Key: SECRET-3",
				"Authorization: Bearer SECRET-4", "Mcp-Session-Id: SECRET-5", "Last-Event-Id: SECRET-6", "X-Some-Key: SECRET-7"}
			sendAndClose(t, "POST", base+"/v1/x?key=SECRET-8&access_token=SECRET-10", `{"messages":[]}`, keys...)
			sendAndClose(t, "POST", mcpAt(base, "s"), rpc("tools/call", `{`+echoes+`}`), keys...)
			sendAndClose(t, "GET", mcpAt(base, "s"), "", keys...)
			post(t, base+"/breaks/x", `{"messages":[]}`, keys...)
			post(t, mcpAt(base, "s")+"?endpoint=SECRET-9&token=SECRET-11", rpc("x", `{}`), keys...)
			await.Until(t, "all requests are logged", func() bool {
				all, _ := os.ReadFile(log)
				return strings.Count(string(all), "handled request") >= 5 && strings.Contains(string(all),
					"aborting with incomplete response") &&
					strings.Contains(string(all), "http.log.error") && strings.Contains(string(all), "upstream roundtrip") &&
					strings.Contains(string(all), "rewrote request")
			})
			searchLog(t, log)
		})
	}
}

// reverse_proxy does not log the credentials that a gateway adds for servers, or their session IDs,
// whatever the log settings are.
func TestSecurityLogsOfServers(t *testing.T) {
	isolate(t)
	setenv(t, "LOGGED_KEY", "SECRET-of-gateway")
	log := filepath.Join(t.TempDir(), "log")
	server := upstream(t, endless("Mcp-Session-Id: SECRET-session"))
	address := freeAddress(t)
	lines := []string{
		"separator __",
		block("server plain http://"+server+"/mcp?key=SECRET-in-url", "request_header X-Key {env.LOGGED_KEY}",
			`request_header X-Api-Key "{env.LOGGED_KEY}"`),
		block("server breaks http://"+server+"/breaks", "request_header X-Key {env.LOGGED_KEY}"),
		block("server nested", block("route", "request_header X-Key {env.LOGGED_KEY}", block("reverse_proxy "+server,
			"header_up X-Other {env.LOGGED_KEY}"))),
		block("server handles", block("handle", "request_header X-Key {env.LOGGED_KEY}", block("reverse_proxy "+server,
			block("transport http", "dial_timeout 1s")))),
		block("server checked", block("reverse_proxy "+server, "header_up X-Key {env.LOGGED_KEY}", "health_uri /breaks",
			"health_interval 10ms", "health_passes 1", "lb_try_duration 1s")),
	}
	load(t, block("", "debug", block("log", "output file "+log, "format json"))+"\n"+site(address, gateway(lines...)))
	base := "http://" + address
	names := []string{"plain", "nested", "handles"}
	for _, name := range names {
		sendAndClose(t, "POST", mcpAt(base, name), rpc("tools/call", `{`+echoes+`}`), acceptBoth,
			"Mcp-Session-Id: SECRET-of-client")
		sendAndClose(t, "GET", mcpAt(base, name), "", "Accept: text/event-stream", "Last-Event-Id: SECRET-of-client")
	}
	for _, way := range endpointsOf(base, "breaks")[1:] {
		post(t, way.url, rpc("x", `{}`), "Mcp-Session-Id: SECRET-of-client")
	}
	await.Until(t, "all requests are logged", func() bool {
		all, _ := os.ReadFile(log)
		return strings.Count(string(all), "upstream roundtrip") >= 2*len(names)+2
	})
	searchLog(t, log)
	if all := fmt.Sprint(linesOf(t, log)); !strings.Contains(all, `"X-Key":["REDACTED"]`) || !strings.Contains(all,
		`"Accept":["`) {
		t.Error("the log has no request headers")
	}
}
