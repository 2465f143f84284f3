package mcpgateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func TestFocusCaddyfile(t *testing.T) {
	tests := []struct {
		name, input string
		want        Focus
		wantErr     string
	}{
		{"no argument", "focus", Focus{}, ""},
		{"on", "focus on", Focus{}, ""},
		{"off", "focus off", Focus{Off: true}, ""},
		{"a block", "focus {\n\targument looking_for\n}", Focus{Argument: "looking_for"}, ""},
		{"on with a block", "focus on {\n\targument goal\n}", Focus{Argument: "goal"}, ""},
		{"neither on nor off", "focus maybe", Focus{}, "focus must be on or off"},
		{"no name", "focus {\n\targument\n}", Focus{}, `expected "argument <text>"`},
		{"an empty name", "focus {\n\targument \"\"\n}", Focus{}, "argument"},
		{"two names", "focus {\n\targument a b\n}", Focus{}, `expected "argument <text>"`},
		{"an unknown line", "focus {\n\tname a\n}", Focus{}, "name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got Focus
			err := got.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			switch {
			case tt.wantErr == "" && (err != nil || got != tt.want):
				t.Errorf("got %+v, error %v, want %+v", got, err, tt.want)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("got %+v, error %v, want %s", got, err, tt.wantErr)
			}
		})
	}
}

// Errors begin with the name of the setting.
func TestFocusSettings(t *testing.T) {
	const noMask = "focus: requires mask"
	long := strings.Repeat("a", 65)
	server := func(settings string) string {
		return `{"name":"a",` + settings + `"routes":[{"handle":[` + staticHandler + `]}]}`
	}
	tests := []struct{ name, gateway, server, wantErr string }{
		{"a mask", `"mask":{},"focus":{},`, ``, ""},
		{"the mask of the server", `"focus":{},`, `"mask":{},`, ""},
		{"mask and focus of the server", ``, `"mask":{},"focus":{},`, ""},
		{"off", `"focus":{"off":true},`, ``, ""},
		{"off for the server", `"mask":{},`, `"focus":{"off":true},`, ""},
		{"another name", `"mask":{},"focus":{"argument":"_Looking-4"},`, ``, ""},
		{"the longest name", `"mask":{},"focus":{"argument":"` + long[1:] + `"},`, ``, ""},
		{"no mask", `"focus":{},`, ``, noMask},
		{"no mask of the server", ``, `"focus":{},`, noMask},
		{"a mask that is off", `"mask":{"max_chars":0},"focus":{},`, ``, noMask},
		{"a mask that the server turns off", `"mask":{},`, `"mask":{"max_chars":0},"focus":{},`, noMask},
		{"a name with a space", `"mask":{},"focus":{"argument":"looking for"},`, ``, "focus: argument: "},
		{"a name that is not ASCII", `"mask":{},`, `"focus":{"argument":"é"},`, "focus: argument: "},
		{"a name that begins with a digit", `"mask":{},"focus":{"argument":"1st"},`, ``, "focus: argument: "},
		{"a long name", `"mask":{},"focus":{"argument":"` + long + `"},`, ``, "focus: argument: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, err := caddy.ProvisionContext(new(caddy.Config))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := caddy.NewContext(ctx)
			defer cancel()
			config := `{` + tt.gateway + `"servers":[` + server(tt.server) + `]}`
			_, err = ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(config))
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("got error %v", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("got error %v, want %s", err, tt.wantErr)
			}
		})
	}
}
