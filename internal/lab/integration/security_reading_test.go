package integration

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// expressServer starts the server of peers/express.mjs. The function returns the tool names and
// methods as Express parsed them.
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

// Decoded as UTF-7, these are different messages: the second names another tool, the third has
// another method.
const (
	callsDelete = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file","arguments":{}}}`
	hidesDelete = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},` +
		`"x":"+ACIALAAi-name+ACIAOgAi-delete+AF8-file+ACIALAAi-y+ACIAOgAi-"}}`
	hidesToolList = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},` +
		`"x":"+ACIAfQAsACIAbQBlAHQAaABvAGQAIgA6ACIAdABvAG8AbABzAC8AbABpAHMAdAAiACwAIgBwAGEAcgBhAG0AcwAiADoAewAiAHkAIgA6ACI-"}}`
)

// The gateway checks the same message that the server reads, whatever encoding the client declares.
// Express decodes bodies in the charset of the Content-Type.
func TestSecurityOneReading(t *testing.T) {
	isolate(t)
	address, seen := expressServer(t)
	direct := post(t, "http://"+address+"/mcp", hidesDelete, acceptBoth, "Content-Type: application/json; charset=utf-7")
	if names, _ := seen(); direct.StatusCode != 200 || !slices.Equal(names, []string{"delete_file"}) {
		t.Fatalf("Express does not decode UTF-7, so the test proves nothing: %d %s", direct.StatusCode, direct.body)
	}
	url := serve(t, gateway(append(rulesForEve("deny files::delete_*"), "server files http://"+address+"/mcp")...))
	for _, way := range endpointsOf(url, "files") {
		headers := []string{acceptBoth, bearer(eveToken)}
		before, _ := seen()
		if way.name == "/mcp" {
			headers = append(headers, sessionHeader(t, way.url, bearer(eveToken)))
		}
		for _, body := range []string{hidesDelete, hidesToolList} {
			for _, contentType := range []string{
				"application/json; charset=utf-7", `application/json;CHARSET="Utf-7"`, "application/json; charset=utf-7-imap",
				"application/json; charset=utf-16le",
				"text/plain; charset=utf-7", "application/x-www-form-urlencoded; charset=utf-7",
				"application/json; charset=utf-7; x", "application/json; charset*=utf-8''utf-7",
				"application/json; charset=utf-8; charset=utf-7",
			} {
				got := post(t, way.url, body, append(headers, "Content-Type: "+contentType)...)
				if f := gatewayErrorOf(t, got); f.Status != 415 || f.Symbol != "invalid_request" || !strings.Contains(got.body,
					"charset") {
					t.Errorf("%s %s: %d %s", way.name, contentType, got.StatusCode, got.body)
				}
			}
			for _, contentType := range []string{
				"application/json; charset=utf-8", "application/json;charset=UTF8", "application/json",
				"application/x-www-form-urlencoded", "text/plain", "", "none",
			} {
				req := request(t, t.Context(), "POST", way.url, body, headers...)
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
			req := request(t, t.Context(), "POST", way.url, body, headers...)
			req.Header["Content-Type"] = []string{"application/json", "application/json; charset=utf-7"}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 415 {
				t.Errorf("%s, two Content-Types: got %d, want 415", way.name, res.StatusCode)
			}
		}
		names, methods := seen()
		names, methods = names[len(before):], methods[len(before):]
		// /mcp itself lists tools
		if slices.Contains(names, "delete_file") || slices.Contains(methods, "tools/list") && way.name != "/mcp" ||
			len(names) == 0 {
			t.Errorf("%s: Express read the methods %q and the tools %q", way.name, methods, names)
		}
		if way.name == "/mcp" {
			continue
		}
		if got := gatewayErrorOf(t, post(t, way.url, callsDelete, headers...)); got.Status != 403 {
			t.Errorf("%s: %+v", way.name, got)
		}
	}
}

// Headers that contradict the message could make a server, or a proxy in front of it, do something
// else than the gateway has allowed.
func TestSecurityContradictingHeaders(t *testing.T) {
	isolate(t)
	w := newLenientServer(t, "echo", "delete_file")
	url := serve(t, gateway(append(rulesForEve("deny files::delete_*"), w.line("files"))...))
	call := rpc("tools/call", `{"name":"echo","arguments":{}}`)
	for _, way := range endpointsOf(url, "files")[1:] {
		for _, headers := range [][]string{
			{"Mcp-Name: delete_file"}, {"Mcp-Method: tools/list"}, {"Mcp-Method: tools/call", "Mcp-Name: delete_file"},
			{"Mcp-Method: tools/call", "Mcp-Name: =?base64?ZGVsZXRlX2ZpbGU=?="},
		} {
			before := w.Count()
			got := post(t, way.url, call, append(headers, acceptBoth, bearer(eveToken))...)
			if f := gatewayErrorOf(t, got); f.Status != 400 || f.Symbol != "header_mismatch" || w.Count() != before {
				t.Errorf("%s %q: %d %s", way.name, headers, got.StatusCode, got.body)
			}
		}
		for _, headers := range [][]string{nil, {"Mcp-Method: tools/call", "Mcp-Name: echo"},
			{"Mcp-Name: =?base64?ZWNobw==?="}} {
			if got := post(t, way.url, call, append(headers, acceptBoth, bearer(eveToken))...); got.StatusCode != 200 {
				t.Errorf("%s %q: got %d %s, want 200", way.name, headers, got.StatusCode, got.body)
			}
		}
	}
}

// A client cannot override the path, the method or the charset of a request to a server.
func TestSecurityOverridingHeaders(t *testing.T) {
	isolate(t)
	w := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", block("client eve", "token "+eveToken), w.line("files")))
	overrides := map[string]string{
		"X-Original-Url": "/admin", "X-Rewrite-Url": "/admin", "X-Http-Method-Override": "DELETE", "X-Http-Method": "DELETE",
		"X-Method-Override": "DELETE", "Accept-Charset": "utf-16",
		"X-Original-Uri": "/admin", "X-Original-Method": "DELETE", "X-Forwarded-Uri": "/admin",
		"X-Forwarded-Prefix": "/admin", "X-Forwarded-Path": "/admin", "X-Forwarded-Method": "DELETE",
		"X_original_url": "/admin", "X_http_method_override": "DELETE",
		"X-Api-Key": "of the client", "Api-Key": "of the client", "X-Goog-Api-Key": "of the client",
		"Proxy-Authorization": "Bearer x", "X_api_key": "of the client",
	}
	for _, way := range endpointsOf(url, "files") {
		before := w.Count()
		headers := []string{acceptBoth, bearer(eveToken), "X-Tenant: mine"}
		for name, value := range overrides {
			headers = append(headers, name+": "+value)
		}
		if way.name == "/mcp" {
			post(t, way.url, rpc("initialize", `{`+initParams+`}`), headers...)
		} else {
			post(t, way.url, rpc("tools/call", `{`+echoes+`}`), headers...)
			send(t, &http.Client{Timeout: patience}, "DELETE", mcpAt(url, "files"), "", headers...)
		}
		for _, r := range w.Received()[before:] {
			for name := range r.HTTP.Header {
				if overrides[name] != "" {
					t.Errorf("%s: the server received %s: %s", way.name, name, r.HTTP.Header.Get(name))
				}
			}
			if r.HTTP.Header.Get("X-Tenant") != "mine" {
				t.Errorf("%s: the server received %v", way.name, r.HTTP.Header)
			}
		}
		if w.Count() == before {
			t.Errorf("%s: the server received no request", way.name)
		}
	}
}
