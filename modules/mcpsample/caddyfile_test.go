package mcpsample

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func TestUnmarshalCaddyfile(t *testing.T) {
	tests := []struct {
		name, input string
		wantErr     string
	}{
		{"the directive alone", "mcp_sample", ""},
		{"an argument", "mcp_sample read_log", "takes no arguments"},
		{"a block", "mcp_sample {\n\tlines 10\n}", "mcp_sample takes no block"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := new(Sample).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("unexpected error: %v", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestDirectiveRunsBeforeRespond(t *testing.T) {
	adapter := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}
	config, warnings, err := adapter.Adapt([]byte(":8080 {\n\trespond later\n\tmcp_sample /mcp\n}\n"), nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("adapt: %v %v", err, warnings)
	}
	sample, respond := strings.Index(string(config), `"handler":"mcp_sample"`), strings.Index(string(config),
		`"handler":"static_response"`)
	if sample < 0 || sample > respond {
		t.Errorf("mcp_sample at %d, respond at %d in %s", sample, respond, config)
	}
	if !strings.Contains(string(config), `"path":["/mcp"]`) {
		t.Errorf("no matcher in %s", config)
	}
}

func TestServeHTTPAnswersAsTheSampleServer(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	module, err := ctx.LoadModuleByID("http.handlers.mcp_sample", nil)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err := module.(*Sample).ServeHTTP(w, r, nil); err != nil {
		t.Fatal(err)
	}
	if want := `{"jsonrpc":"2.0","id":1,"result":{}}`; w.Code != 200 || w.Body.String() != want {
		t.Errorf("got %d %s, want %s", w.Code, w.Body, want)
	}
}
