//go:build unix

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// throughShim sends a request through a shim to a gateway.
func throughShim(t *testing.T, method, body string, header http.Header, gateway http.HandlerFunc) (*http.Response,
	string) {
	t.Helper()
	backend := httptest.NewServer(gateway)
	defer backend.Close()
	front := httptest.NewServer(&shim{endpoint: backend.URL + "/joined", server: "reference", other: "sample",
		separator: "__"})
	defer front.Close()
	r, err := http.NewRequestWithContext(t.Context(), method, front.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header, r.Host = header, "evil.example"
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(got)
}

func TestShimAddsPrefixesToRequests(t *testing.T) {
	text := mcp.ResourceURI("reference", "test://static-text")
	for _, test := range []struct {
		name             string
		body, header     string
		want, wantHeader string
	}{
		{
			"a tool", `{"id":0,"method":"tools/call","params":{"name":"one","n":9007199254740993}}`, "one",
			`{"id":0,"method":"tools/call","params":{"n":9007199254740993,"name":"reference__one"}}`, "reference__one",
		},
		{
			"a tool with a wrong header", `{"method":"tools/call","params":{"name":"one"}}`, "two",
			`{"method":"tools/call","params":{"name":"reference__one"}}`, "reference__two",
		},
		{
			"a tool with its name in base64", `{"method":"tools/call","params":{"name":"one"}}`, "=?base64?b25l?=",
			`{"method":"tools/call","params":{"name":"reference__one"}}`, "=?base64?cmVmZXJlbmNlX19vbmU=?=",
		},
		{
			"a tool of the other server, from a list", `{"method":"tools/call","params":{"name":"sample__one"}}`, "sample__one",
			`{"method":"tools/call","params":{"name":"sample__one"}}`, "sample__one",
		},
		{
			"a prompt to complete", `{"method":"completion/complete","params":{"ref":{"name":"one"}}}`, "",
			`{"method":"completion/complete","params":{"ref":{"name":"reference__one"}}}`, "",
		},
		{
			"a resource", `{"method":"resources/read","params":{"uri":"test://static-text"}}`, "test://static-text",
			`{"method":"resources/read","params":{"uri":"` + text + `"}}`, text,
		},
		{
			"a resource of a template", `{"method":"resources/read","params":{"uri":"test://template/1/data"}}`, "",
			`{"method":"resources/read","params":{"uri":"proxy://template/reference/test://template/1/data"}}`, "",
		},
		{
			"a task", `{"method":"tasks/get","params":{"taskId":"1"}}`, "1",
			`{"method":"tasks/get","params":{"taskId":"reference::1"}}`, "reference::1",
		},
		{"a request without names", `{ "method": "tools/list" }`, "", `{ "method": "tools/list" }`, ""},
		{"a response", `{ "id": "proxy:1", "result": {"name": "one"} }`, "",
			`{ "id": "proxy:1", "result": {"name": "one"} }`, ""},
		{"not JSON", `{"method":"tools/call"`, "one", `{"method":"tools/call"`, "one"},
	} {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{"Mcp-Session-Id": {"session"}}
			if test.header != "" {
				header.Set("Mcp-Name", test.header)
			}
			response, _ := throughShim(t, http.MethodPost, test.body, header, func(w http.ResponseWriter, r *http.Request) {
				if body, _ := io.ReadAll(r.Body); string(body) != test.want {
					t.Errorf("got\n%s, want\n%s", body, test.want)
				}
				if got := r.Header.Get("Mcp-Name"); got != test.wantHeader {
					t.Errorf("got Mcp-Name %s, want %s", got, test.wantHeader)
				}
				if r.Host != "evil.example" || r.Header.Get("Mcp-Session-Id") != "session" || r.URL.Path != "/joined" {
					t.Errorf("got host %s, headers %v, path %s", r.Host, r.Header, r.URL.Path)
				}
				w.Header().Set("Mcp-Session-Id", "other")
				w.WriteHeader(http.StatusAccepted)
			})
			if response.StatusCode != http.StatusAccepted || response.Header.Get("Mcp-Session-Id") != "other" {
				t.Errorf("got %s %v", response.Status, response.Header)
			}
		})
	}
}

func TestShimRemovesPrefixesFromResponses(t *testing.T) {
	text, other := mcp.ResourceURI("reference", "test://text"), mcp.ResourceURI("sample", "test://text")
	const bare = "names without prefix"
	for _, test := range []struct {
		name, answer, want string
	}{
		{
			"a list of tools", `{"result":{"tools":[{"name":"reference__one"},{"name":"sample__one"}]}}`,
			`{"result":{"tools":[{"name":"one"},{"name":"sample__one"}]}}`,
		},
		{"a list with a bare name", `{"result":{"tools":[{"name":"reference__one"},{"name":"two"}]}}`, bare},
		{
			"a list of templates", `{"result":{"resourceTemplates":[{"uriTemplate":"proxy://template/reference/test://{id}"}]}}`,
			`{"result":{"resourceTemplates":[{"uriTemplate":"test://{id}"}]}}`,
		},
		{
			"resources of both servers", `{"result":{"contents":[{"uri":"` + text + `"},{"uri":"` + other + `"}]}}`,
			`{"result":{"contents":[{"uri":"test://text"},{"uri":"` + other + `"}]}}`,
		},
		{
			"a resource in a prompt", `{"result":{"messages":[{"content":{"text":"","type":"text"}},` +
				`{"content":{"resource":{"uri":"` + text + `"}}}]}}`,
			`{"result":{"messages":[{"content":{"text":"","type":"text"}},{"content":{"resource":{"uri":"test://text"}}}]}}`,
		},
		{"a task", `{"result":{"resultType":"task","taskId":"reference::1"}}`,
			`{"result":{"resultType":"task","taskId":"1"}}`},
		{"a task under its own id", `{"result":{"resultType":"task","taskId":"1"}}`, bare},
		{
			"a skill", `{"result":{"skills":[{"resources":[{"uri":"proxy://template/reference/skill://a/SKILL.md"}]}]}}`,
			`{"result":{"skills":[{"resources":[{"uri":"skill://a/SKILL.md"}]}]}}`,
		},
		{"a resource under its own URI", `{"result":{"content":[{"resource":{"uri":"test://text"}}]}}`, bare},
		{
			"a notification", `{"method":"notifications/resources/updated","params":{"uri":"` + text + `"}}`,
			`{"method":"notifications/resources/updated","params":{"uri":"test://text"}}`,
		},
		{"an error", `{"error":{"code":-32602,"data":{"uri":"` + text + `"}}}`,
			`{"error":{"code":-32602,"data":{"uri":"test://text"}}}`},
		{"something else", `{ "result": {} }`, `{ "result": {} }`},
		{"not JSON", `not found`, `not found`},
	} {
		t.Run(test.name, func(t *testing.T) {
			for media, wrap := range map[string]string{
				"application/json":                 "MESSAGE",
				"text/event-stream; charset=utf-8": ": wait\n\nid: 1\ndata: MESSAGE\n\n",
			} {
				response, got := throughShim(t, http.MethodGet, "", http.Header{}, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", media)
					w.WriteHeader(http.StatusTeapot)
					_, _ = io.WriteString(w, strings.Replace(wrap, "MESSAGE", test.answer, 1))
				})
				want := strings.Replace(wrap, "MESSAGE", test.want, 1)
				if got != want && (test.want != bare || !strings.Contains(got, bare) || strings.Contains(got, "result")) {
					t.Errorf("got\n%s, want\n%s", got, want)
				}
				if response.StatusCode != http.StatusTeapot || response.Header.Get("Content-Type") != media {
					t.Errorf("got %s %v", response.Status, response.Header)
				}
			}
		})
	}
}

func TestShimStreams(t *testing.T) {
	first := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-first:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}))
	defer backend.Close()
	front := httptest.NewServer(&shim{endpoint: backend.URL})
	defer front.Close()
	response, err := http.Get(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	event := make([]byte, len("data: {}\n\n"))
	if _, err := io.ReadFull(response.Body, event); err != nil || string(event) != "data: {}\n\n" {
		t.Errorf("got %q, %v", event, err)
	}
	close(first)
	if rest, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("got %q and no error, although the gateway broke off", rest)
	}
}
