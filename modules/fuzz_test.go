package modules_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules"
)

// places maps the JSON member that names a module to the namespace of such modules.
var places = map[string]string{
	"handler":  "http.handlers.",
	"protocol": "http.reverse_proxy.transport.",
	"provider": "http.handlers.mcp_gateway.auth.",
	"backend":  "http.handlers.mcp_pruner.backends.",
}

var ours = map[string]bool{
	"mcp_gateway": true, "observation_mask": true, "tool_result_mask": true, "mcp_pruner": true, "mcp_stdio": true,
	"token": true, "hmac": true, "jwt": true, "mtls": true, "heuristic": true, "deepinfra": true, "rerank": true,
}

// isComplete reports whether lines are a complete part of a block: their braces match, and they use
// no imports or variables.
func isComplete(lines string) bool {
	tokens, err := caddyfile.Tokenize([]byte(lines), "Caddyfile")
	depth := 0
	for _, token := range tokens {
		switch {
		case token.Text == "import", strings.Contains(token.Text, "{$"), strings.HasPrefix(token.Text, "{args"),
			strings.HasPrefix(token.Text, "&("), token.Text == "invoke":
			return false
		case token.Text == "{" || strings.HasSuffix(token.Text, "{"):
			depth++
		case token.Text == "}":
			if depth--; depth < 0 {
				return false
			}
		}
	}
	return err == nil && depth == 0 && len(lines) < 4000
}

// located matches the position in errors, including Caddy's own syntax errors.
var located = regexp.MustCompile(`Caddyfile:\d+|line #\d+`)

// adapt adapts a directive with these lines in its block to JSON. Invalid lines must be refused
// with their line number. Valid ones must give the same JSON again after strict decoding. It
// returns all visible text.
func adapt(t *testing.T, directive, lines string) string {
	t.Helper()
	if !isComplete(lines) {
		return ""
	}
	text := ":8080 {\n\troute {\n\t\t" + directive + " {\n" + lines + "\n\t\t}\n\t}\n}\n"
	config, _, err := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}.Adapt([]byte(text), nil)
	if err != nil {
		if !located.MatchString(err.Error()) {
			t.Fatalf("%s\nthe error has no line number: %v", text, err)
		}
		return err.Error()
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		t.Fatal(err)
	}
	if n := checkModules(t, value); n == 0 {
		t.Fatalf("%s\nadapted to %s without a module of this project", text, config)
	}
	return string(config)
}

// checkModules checks all modules of this project in a configuration, and returns their number.
func checkModules(t *testing.T, value any) (found int) {
	t.Helper()
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			found += checkModules(t, element)
		}
	case map[string]any:
		for _, member := range value {
			found += checkModules(t, member)
		}
		for member, namespace := range places {
			name, _ := value[member].(string)
			if !ours[name] {
				continue
			}
			info, err := caddy.GetModule(namespace + name)
			if err != nil {
				continue // an unrelated member with the same name
			}
			found++
			delete(value, member)
			checkModule(t, info, value)
			value[member] = name
		}
	}
	return found
}

func checkModule(t *testing.T, info caddy.ModuleInfo, config map[string]any) {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	module := info.New()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(module); err != nil {
		t.Fatalf("%s cannot decode %s: %v", info.ID, text, err)
	}
	again, err := json.Marshal(module)
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	d = json.NewDecoder(bytes.NewReader(again))
	d.UseNumber()
	if err := d.Decode(&back); err != nil || !reflect.DeepEqual(back, config) {
		t.Fatalf("%s decodes %s to %s", info.ID, text, again)
	}
}

// checkRoundTrip parses lines with a module, and checks that it survives a round trip through JSON.
func checkRoundTrip(t *testing.T, id, first, lines string) {
	t.Helper()
	info, err := caddy.GetModule(id)
	if err != nil {
		t.Fatal(err)
	}
	module, again := info.New(), info.New()
	tokens, err := caddyfile.Tokenize([]byte(first+" {\n"+lines+"\n}"), "Caddyfile")
	if err != nil || !isComplete(lines) ||
		module.(caddyfile.Unmarshaler).UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)) != nil {
		return
	}
	text, err := json.Marshal(module)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, again); err != nil || !reflect.DeepEqual(module, again) {
		t.Fatalf("%s\nencodes to %s, which decodes to %+v, %v", lines, text, again, err)
	}
}

const gatewayLines = `name local
response_timeout 10s
mask 8000 6000 2000 {
	keep_media
}
separator __
max_name_length 60
session_key {env.MCP_SESSION_KEY}
max_sessions 1000
discovery on
request_limit 1MiB
mcp_path /servers
origins https://app.example.com
hosts mcp.example.com`

const accessLines = `auth token {env.GATEWAY_TOKEN}
auth token s3 scripts
auth token {
	ci {file./run/secrets/ci}
}
auth hmac {
	client nightly {env.NIGHTLY_SECRET}
	window 1m
	max_nonces 1000
}
auth jwt {
	issuer https://login.example.com
	audience https://mcp.example.com/mcp
	jwks https://login.example.com/keys
	algorithms RS256 ES256
	leeway 10s
}
auth mtls dns
rate 600/1m burst 60
rate files::write_* 10/1m
client cline {
	match alice bob
	token {env.CLINE_TOKEN}
	default deny
	deny files::delete_* resource:file:///secret/
	allow files::*
	redact "sk-[a-z0-9]+"
	redact_fields password
	rate 60/1m
}
health_interval 30s
pin_tools on
route_notifications vendor/* files
answer files roots/list {
	roots file:///workspace
}
answer files * deliver`

// A token in the first line appears neither in the JSON nor in an error, whatever the other lines
// contain.
func FuzzCaddyfileGateway(f *testing.F) {
	const secret = "c4n4ry-0123456789abcdef"
	first := []string{
		"auth token " + secret,
		"auth token " + secret + " scripts",
		"auth token {\n\tci " + secret + "\n}",
		"client ci {\n\ttoken " + secret + "\n}",
		"client ci {\n\ttoken " + secret + " " + secret + "\n}",
		"auth hmac {\n\tclient nightly " + secret + "\n}",
		"auth hmac {\n\tclient " + secret + " " + secret + " x\n}",
	}
	server := "\nserver files http://127.0.0.1:8004/x?y {\n\talias fs disk\n\ttimeout 1m\n\tmask off\n\texpose read_* " +
		"stat\n\ttool stat {\n\t\trename s\n\t\tannotate read_only\n\t\targuments fixed n {}\n\t}\n\tforward_auth_header " +
		"off\n}"
	for i, lines := range []string{
		gatewayLines, accessLines + server, server, "server a http://b\nserver c https://d:1\nserver e stdio f g",
		"server one stdio npx -y x {\n\tenv A {env.B}\n\tframing content-length\n\tisolation session\n\troots " +
			"file:///srv\n\tmax_line 1MiB\n\trequest_header X-Called yes\n}",
		"server long {\n\treverse_proxy tools:1-2 {\n\t\ttransport mcp_stdio node server.js {\n\t\t\tdir /srv\n\t\t}\n\t}\n}",
		"server a {\n\trespond hi\n}\nanswer b * drop", "answer", "rate 0/1s", "client", "server x ftp://y",
		"server x http://a b", "auth nothing", "request_limit 0", "mask {\n\trecover {\n\t\tttl 1h\n\t}\n}",
	} {
		f.Add(lines, uint8(i))
	}
	for _, lines := range []string{
		"server one stdio npx -y x {\n\tenv A {env.B}\n\tframing content-length\n\tisolation session\n\troots " +
			"file:///srv\n\tmax_line 1MiB\n\trequest_header X-Called yes\n}", "server a {\n\trespond hi\n}\nanswer b * drop",
		"server a {\n\tunknown\n}", "auth token a&b c", "auth token {\n\ta b&c\n}", "unknown",
	} {
		f.Add(lines, uint8(0))
	}
	f.Fuzz(func(t *testing.T, lines string, which uint8) {
		if strings.Contains(lines, secret[:8]) {
			return
		}
		visible := adapt(t, "mcp_gateway", first[int(which)%len(first)]+"\n"+lines)
		if strings.Contains(visible, secret) {
			t.Fatalf("with %q: the token is in %s", first[int(which)%len(first)], visible)
		}
	})
}

// fuzzHandler fuzzes the block of a handler directive.
func fuzzHandler(f *testing.F, directive string, blocks ...string) {
	for _, lines := range blocks {
		f.Add(lines)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		adapt(t, directive, lines)
		checkRoundTrip(t, "http.handlers."+directive, directive, lines)
	})
}

func FuzzCaddyfileObservationMask(f *testing.F) {
	fuzzHandler(f, "observation_mask",
		"max_chars 8000\nhead_chars 6000\ntail_chars 2000\nbuffer_limit 10MB\nkeep_media\nrecover on {\n\tttl "+
			"30s\n\tmax_entries 5\n\tmax_bytes 1MiB\n}\nexempt pruner::* a::b\nexempt c::d\nserver files",
		"max_chars -1", "recover off {\n\tttl 1d\n}", "keep_media off", "buffer_limit 0", "exempt", "max_chars 1 2",
		"recover {\n\tttl -1s\n}", "max_chars 99999999999999999999", "buffer_limit 1PB", "recover {\n\tttl x\n}",
		"recover {\n\tunknown\n}", "unknown",
	)
}

func FuzzCaddyfileToolResultMask(f *testing.F) {
	fuzzHandler(f, "tool_result_mask",
		"enabled on\nwindow_turns 8\nkeep_errors precise\nkeep_last_k_per_tool 2\nplaceholder_template \"[gone: "+
			"{tool_call_id}]\"\nstep_turns 16\nclear_at_least auto\ncache_prices 0.1 1.25\nmin_mask_chars 800\nexclude_tools "+
			"todo memory_*\nbuffer_limit 32MiB\nmax_buffered 512MiB\nbody_timeout 30s\nroute kimi",
		"clear_at_least 20000", "cache_prices NaN Inf", "cache_prices 1e-300 0x1p-2", "step_turns 0",
		"placeholder_template <<END\n\tx\n\tEND", "window_turns -1", "enabled maybe", "cache_prices",
		"placeholder_template a b", "unknown",
	)
}

func FuzzCaddyfilePruner(f *testing.F) {
	fuzzHandler(f, "mcp_pruner",
		"max_input_chars 1000000\nprune_id_ttl 20m\nstore_limit 500 32MiB\nbackend deepinfra {\n\ttimeout 10s\n\tmax_docs "+
			"128\n}\ncache_ttl 1m\ncache_max_entries 100\norigins https://app.example.com\nhosts pruner.example.com",
		"backend rerank {\n\turl https://rerank.example.com/v1/rerank\n\tmodel some/model\n\tkey_env "+
			"RERANK_KEY\n\ttimeout 5s\n\tmax_docs 100\n}", "backend heuristic", "backend heuristic {\n}", "backend none",
		"backend", "store_limit 0 1", "backend rerank {\n\turl\n}", "backend rerank {\n\tapi_key x\n}",
		"backend rerank {\n\tunknown\n}", "unknown",
	)
}

func FuzzCaddyfileStdio(f *testing.F) {
	for _, lines := range []string{
		"env API_KEY {env.TOOLS_API_KEY}\nenv MODE \"a b\"\ndir /srv/tools\nframing content-length\nisolation " +
			"session\nroots file:///srv file:///home\nstart_timeout 20s\nstop_grace 3s\nmax_line 1MiB\nmax_sessions " +
			"10\nsession_ttl 10m",
		"env A=B c", "env A b c", "env A b\nenv A c", "framing", "max_line -1", "max_sessions x", "roots", "unknown",
	} {
		f.Add(lines)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		adapt(t, "reverse_proxy tools:1", "transport mcp_stdio node server.js {\n"+lines+"\n}")
		checkRoundTrip(t, "http.reverse_proxy.transport.mcp_stdio", "mcp_stdio node server.js", lines)
	})
}
