package mcpgateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// The admin API accepts a body if and only if encoding/json decodes it to an object with these
// members, all of them strings. Errors do not mention Go types.
func FuzzAdminBody(f *testing.F) { // A70, A72
	for _, body := range []string{
		`{"name":"a","uriTemplate":"a:{b}","text":"x"}`, `{"gateway":"one","server":"s","uri":"c:d"}`, `{"name":7}`,
		`{"nam":"a"}`, `{"name":"a"}{}`, `{"name":"a"`, `[]`, `null`, ``, ` {} `, `{"name":null}`, `{"NAME":"a"}`,
		`{"name":{"a":1}}`, "{\"name\":\"\xff\"}", `{"name":"a","name":"b"}`, `{"name":"a"} x`, `{name}`,
		`[f`, // the oracle looped forever on an array that is not JSON
	} {
		f.Add(body, true)
		f.Add(body, false)
	}
	names := []string{"gateway", "name", "uriTemplate", "title", "description", "mimeType", "text", "server", "uri"}
	f.Fuzz(func(t *testing.T, body string, optional bool) {
		c := &adminCall{r: httptest.NewRequest(http.MethodPost, "/mcp_gateway/templates", strings.NewReader(body))}
		var template gatewayTemplate
		err := c.decode(&template, optional)
		var object map[string]any
		isObject := json.Unmarshal([]byte(body), &object) == nil && object != nil
		want := isObject || optional && strings.TrimSpace(body) == ""
		exact := !jsontest.Repeats([]byte(body))
		for name, value := range object {
			_, isText := value.(string)
			want = want && (isText || value == nil) &&
				slices.ContainsFunc(names, func(one string) bool { return strings.EqualFold(one, name) })
			exact = exact && slices.Contains(names, name)
		}
		if (err == nil) != want {
			t.Fatalf("%q: %v, want it accepted: %t", body, err, want)
		}
		if err == nil {
			got := []string{template.Gateway, template.Name, template.URITemplate, template.Title, template.Description,
				template.MIMEType, template.Text, template.Server, template.URI}
			for i, name := range names {
				if said, _ := object[name].(string); exact && got[i] != said {
					t.Fatalf("%q: %s %q, want %q", body, name, got[i], said)
				}
			}
			return
		}
		var failure *adminapi.Error
		if !errors.As(err, &failure) || failure.Status != http.StatusBadRequest || failure.Message == "" ||
			failure.Code != "invalid_request" {
			t.Fatalf("%q: %#v", body, err)
		}
		for _, word := range []string{"json:", "Go ", "struct", "unmarshal"} {
			if strings.Contains(failure.Message, word) && !strings.Contains(body, word) {
				t.Fatalf("%q: %s", body, failure.Message)
			}
		}
	})
}
