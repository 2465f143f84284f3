package integration

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// expressServer starts the server of peers/express.mjs. The function returns the tools
// that were called, and the methods, as Express has read them.
func expressServer(t *testing.T) (address string, seen func() (names, methods []string)) {
	t.Helper()
	address = freeAddress(t)
	start(t, peer(t, "express.mjs", address[strings.LastIndexByte(address, ':')+1:]), "listening on port")
	return address, func() (names, methods []string) {
		t.Helper()
		var all []struct{ Method, Name string }
		if err := json.Unmarshal([]byte(send(t, client, "GET", "http://"+address+"/seen", "").body), &all); err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			names, methods = append(names, m.Name), append(methods, m.Method)
		}
		return names, methods
	}
}

// In UTF-7 these are other messages than in UTF-8: the second names another tool, the
// third has another method.
const (
	callsDelete   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file","arguments":{}}}`
	hidesDelete   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"x":"+ACIALAAi-name+ACIAOgAi-delete+AF8-file+ACIALAAi-y+ACIAOgAi-"}}`
	hidesToolList = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"x":"+ACIAfQAsACIAbQBlAHQAaABvAGQAIgA6ACIAdABvAG8AbABzAC8AbABpAHMAdAAiACwAIgBwAGEAcgBhAG0AcwAiADoAewAiAHkAIgA6ACI-"}}`
)

// The gateway decides on the message that the server reads, whatever the client says of
// its encoding. Express reads bodies in the charset of the Content-Type.
func TestSecurityOneReading(t *testing.T) {
	isolate(t)
	address, seen := expressServer(t)
	direct := post(t, "http://"+address+"/mcp", hidesDelete, acceptBoth, "Content-Type: application/json; charset=utf-7")
	if names, _ := seen(); direct.StatusCode != 200 || !slices.Equal(names, []string{"delete_file"}) {
		t.Fatalf("Express does not read UTF-7, so this test shows nothing: %d %s", direct.StatusCode, direct.body)
	}
	url := serve(t, gateway(append(restricted("deny files::delete_*"), "server files http://"+address+"/mcp")...))
	for _, way := range waysIn(url, "files") {
		headers := []string{acceptBoth, bearer(eveToken)}
		before, _ := seen()
		if way.name == "/mcp" {
			headers = append(headers, sessionAt(t, way.at, bearer(eveToken)))
		}
		for _, body := range []string{hidesDelete, hidesToolList} {
			for _, contentType := range []string{
				"application/json; charset=utf-7", `application/json;CHARSET="Utf-7"`, "application/json; charset=utf-7-imap", "application/json; charset=utf-16le",
				"text/plain; charset=utf-7", "application/x-www-form-urlencoded; charset=utf-7",
				"application/json; charset=utf-7; x", "application/json; charset*=utf-8''utf-7", "application/json; charset=utf-8; charset=utf-7",
			} {
				got := post(t, way.at, body, append(headers, "Content-Type: "+contentType)...)
				if f := failureOf(t, got); f.Status != 415 || f.Symbol != "invalid_request" || !strings.Contains(got.body, "charset") {
					t.Errorf("%s %s: %d %s", way.name, contentType, got.StatusCode, got.body)
				}
			}
			for _, contentType := range []string{
				"application/json; charset=utf-8", "application/json;charset=UTF8", "application/json", "application/x-www-form-urlencoded", "text/plain", "", "none",
			} {
				req := request(t, t.Context(), "POST", way.at, body, headers...)
				req.Header["Content-Type"] = []string{contentType}
				if contentType == "none" {
					req.Header.Del("Content-Type")
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode >= 500 {
					t.Errorf("%s %q: %d", way.name, contentType, res.StatusCode)
				}
			}
			req := request(t, t.Context(), "POST", way.at, body, headers...)
			req.Header["Content-Type"] = []string{"application/json", "application/json; charset=utf-7"}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 415 {
				t.Errorf("%s, two types: %d", way.name, res.StatusCode)
			}
		}
		names, methods := seen()
		names, methods = names[len(before):], methods[len(before):]
		if slices.Contains(names, "delete_file") || slices.Contains(methods, "tools/list") && way.name != "/mcp" || len(names) == 0 { // which lists tools itself
			t.Errorf("%s: Express has read the methods %q of the tools %q", way.name, methods, names)
		}
		if way.name == "/mcp" {
			continue
		}
		if got := failureOf(t, post(t, way.at, callsDelete, headers...)); got.Status != 403 {
			t.Errorf("%s: %+v", way.name, got)
		}
	}
}

// A header that says something else than the message could have a server, or a proxy in
// front of it, do something else than what was decided on.
func TestSecurityContradictingHeaders(t *testing.T) {
	isolate(t)
	w := newLenientServer(t, "echo", "delete_file")
	url := serve(t, gateway(append(restricted("deny files::delete_*"), w.line("files"))...))
	call := rpc("tools/call", `{"name":"echo","arguments":{}}`)
	for _, way := range waysIn(url, "files")[1:] {
		for _, headers := range [][]string{
			{"Mcp-Name: delete_file"}, {"Mcp-Method: tools/list"}, {"Mcp-Method: tools/call", "Mcp-Name: delete_file"}, {"Mcp-Method: tools/call", "Mcp-Name: =?base64?ZGVsZXRlX2ZpbGU=?="},
		} {
			before := w.Count()
			got := post(t, way.at, call, append(headers, acceptBoth, bearer(eveToken))...)
			if f := failureOf(t, got); f.Status != 400 || f.Symbol != "header_mismatch" || w.Count() != before {
				t.Errorf("%s %q: %d %s", way.name, headers, got.StatusCode, got.body)
			}
		}
		for _, headers := range [][]string{nil, {"Mcp-Method: tools/call", "Mcp-Name: echo"}, {"Mcp-Name: =?base64?ZWNobw==?="}} {
			if got := post(t, way.at, call, append(headers, acceptBoth, bearer(eveToken))...); got.StatusCode != 200 {
				t.Errorf("%s %q: got %d %s, want 200", way.name, headers, got.StatusCode, got.body)
			}
		}
	}
}

// A client has no say in the path, the method or the charset of what a server is asked.
func TestSecurityOverridingHeaders(t *testing.T) {
	isolate(t)
	w := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", block("client eve", "token "+eveToken), w.line("files")))
	overrides := map[string]string{
		"X-Original-Url": "/admin", "X-Rewrite-Url": "/admin", "X-Http-Method-Override": "DELETE", "X-Http-Method": "DELETE", "X-Method-Override": "DELETE", "Accept-Charset": "utf-16",
		"X-Original-Uri": "/admin", "X-Original-Method": "DELETE", "X-Forwarded-Uri": "/admin", "X-Forwarded-Prefix": "/admin", "X-Forwarded-Path": "/admin", "X-Forwarded-Method": "DELETE",
		"X_original_url": "/admin", "X_http_method_override": "DELETE",
		"X-Api-Key": "of the client", "Api-Key": "of the client", "X-Goog-Api-Key": "of the client", "Proxy-Authorization": "Bearer x", "X_api_key": "of the client",
	}
	for _, way := range waysIn(url, "files") {
		before := w.Count()
		headers := []string{acceptBoth, bearer(eveToken), "X-Tenant: mine"}
		for name, value := range overrides {
			headers = append(headers, name+": "+value)
		}
		if way.name == "/mcp" {
			post(t, way.at, rpc("initialize", `{`+initParams+`}`), headers...)
		} else {
			post(t, way.at, rpc("tools/call", `{`+echoes+`}`), headers...)
			send(t, &http.Client{Timeout: patience}, "DELETE", mcpAt(url, "files"), "", headers...)
		}
		for _, r := range w.Received()[before:] {
			for name := range r.HTTP.Header {
				if overrides[name] != "" {
					t.Errorf("%s: the server got %s: %s", way.name, name, r.HTTP.Header.Get(name))
				}
			}
			if r.HTTP.Header.Get("X-Tenant") != "mine" {
				t.Errorf("%s: the server got %v", way.name, r.HTTP.Header)
			}
		}
		if w.Count() == before {
			t.Errorf("%s: the server was not asked", way.name)
		}
	}
}
