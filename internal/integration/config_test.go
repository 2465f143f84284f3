package integration

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// TestBadConfigurationsAreRefused loads what must not load, as `caddy validate`
// and `caddy reload` would, and wants an error that names the field.
func TestBadConfigurationsAreRefused(t *testing.T) {
	tests := []struct {
		name      string
		directive string
		want      string
	}{
		{"O11 head and tail exceed max", "observation_mask 4000 3000 3000", "head_chars + tail_chars: 3000 + 3000 exceed max_chars 4000"},
		{"O11 head and tail exceed max in a block", mask("max_chars 100", "head_chars 51", "tail_chars 50"), "head_chars + tail_chars: 51 + 50 exceed max_chars 100"},
		{"O11 head exceeds the default max with the default tail", mask("head_chars 2001"), "head_chars + tail_chars: 2001 + 2000 exceed max_chars 4000"},
		{"O11 head and tail so large that their sum wraps around", "observation_mask 4000 4611686018427387904 4611686018427387904", "head_chars + tail_chars"},
		{"negative head_chars", "observation_mask 4000 -1 2000", "head_chars: -1 is negative"},
		{"negative tail_chars", mask("tail_chars -1"), "tail_chars: -1 is negative"},
		{"negative head_chars of a mask that is off", mask("max_chars 0", "head_chars -1"), "head_chars: -1 is negative"},
		{"max_chars that is no number", "observation_mask many 2000 2000", `max_chars: "many" is not a whole number`},
		{"tail_chars that is no number", "observation_mask 4000 2000 2e3", `tail_chars: "2e3" is not a whole number`},
		{"head_chars that is no number", mask("head_chars half"), `head_chars: "half" is not a whole number`},
		{"max_chars beyond any number", mask("max_chars 9223372036854775808"), "max_chars"},
		{"max_chars without a value", mask("max_chars"), "after 'max_chars'"},
		{"max_chars with two values", mask("max_chars 1 2"), "wrong argument count"},
		{"one positional argument", "observation_mask 4000", "wrong argument count"},
		{"one positional argument that is not off", "observation_mask on", "wrong argument count"},
		{"two positional arguments", "observation_mask 4000 2000", "wrong argument count"},
		{"four positional arguments", "observation_mask 4000 2000 2000 1", "wrong argument count"},
		{"an unknown subdirective", mask("max_char 4000"), "unknown subdirective max_char"},
		{"a duplicate subdirective", mask("keep_media", "keep_media"), "keep_media is given twice"},
		{"a duplicate number", mask("max_chars 5000", "max_chars 5000"), "max_chars is given twice"},
		{"a number on the line and in the block", block("observation_mask 4000 2000 2000", "head_chars 1000"), "head_chars is given twice"},
		{"off and a number in the block", block("observation_mask off", "max_chars 4000"), "max_chars is given twice"},
		{"a buffer_limit that is no size", mask("buffer_limit huge"), `buffer_limit: "huge" is not a size`},
		{"a buffer_limit that is negative", mask("buffer_limit -1MiB"), `buffer_limit: "-1MiB" is not a size`},
		{"a buffer_limit beyond any memory", mask("buffer_limit 1EiB"), `buffer_limit: "1EiB" is not a size`},
		{"buffer_limit without a value", mask("buffer_limit"), "after 'buffer_limit'"},
		{"keep_media that is neither on nor off", mask("keep_media maybe"), "keep_media is on or off"},
		{"keep_media with a block", mask(block("keep_media", "image")), "unknown subdirective {"},
		{"exempt without a server", mask("exempt read_file"), `exempt: "read_file" is not of the form server::tool`},
		{"exempt with an empty server", mask("exempt ::read_file"), `exempt: "::read_file" is not of the form server::tool`},
		{"exempt with an empty tool", mask("exempt files::"), `exempt: "files::" is not of the form server::tool`},
		{"exempt of nothing", mask("exempt"), "after 'exempt'"},
		{"server without a name", mask("server"), "after 'server'"},
		{"server with two names", mask("server a b"), "wrong argument count"},
		{"recover that is neither on nor off", mask("recover maybe"), "recover is on or off"},
		{"recover with an unknown subdirective", mask(block("recover", "size 1")), "unknown subdirective of recover: size"},
		{"recover with a ttl that is no duration", mask(block("recover", "ttl soon")), "recover ttl:"},
		{"recover with a negative ttl", mask(block("recover", "ttl -1s")), "recover ttl: -1s is negative"},
		{"recover with max_entries that is no number", mask(block("recover", "max_entries all")), `max_entries: "all" is not a whole number`},
		{"recover with negative max_entries", mask(block("recover", "max_entries -1")), "recover max_entries: -1 is negative"},
		{"recover with max_bytes that is no size", mask(block("recover", "max_bytes lots")), `max_bytes: "lots" is not a size`},
		{"recover with a ttl of nothing", mask(block("recover", "ttl 0s")), "recover ttl: 0 keeps nothing"},
		{"recover with no entries", mask(block("recover", "max_entries 0")), "recover max_entries: 0 keeps nothing"},
		{"recover with no bytes", mask(block("recover", "max_bytes 0")), "recover max_bytes: 0 keeps nothing"},
		{"recover with fewer bytes than a string has", mask(block("recover", "max_bytes 1KiB")), "recover max_bytes: with 1024 nothing is kept"},
		{"recover with a duplicate ttl", mask(block("recover", "ttl 1h", "ttl 2h")), "ttl is given twice"},
		{"recover with duplicate max_entries", mask(block("recover", "max_entries 1", "max_entries 2")), "max_entries is given twice"},
		{"recover with duplicate max_bytes", mask(block("recover", "max_bytes 1MiB", "max_bytes 2MiB")), "max_bytes is given twice"},
		{"T13 a template with an unknown variable", conversationMask("placeholder_template {foo}"), "placeholder_template: unknown variable {foo}"},
		{"T13 a template with a brace that is not closed", conversationMask(`placeholder_template "{tool_call_id"`), "placeholder_template: "},
		{"T13 a template with a brace that was not opened", conversationMask(`placeholder_template "tool_call_id}"`), "placeholder_template: "},
		{"T13 a template with a brace in braces", conversationMask(`placeholder_template "{{tool_call_id}}"`), "placeholder_template: "},
		{"T13 an empty template", conversationMask(`placeholder_template ""`), "placeholder_template is empty"},
		{"T13 no template", conversationMask("placeholder_template"), "after 'placeholder_template'"},
		{"T13 a template without quotes", conversationMask("placeholder_template gone for good"), "wrong argument count"},
		{"T3 window_turns that is no number", conversationMask("window_turns many"), `window_turns: "many" is not a whole number`},
		{"T3 window_turns without a value", conversationMask("window_turns"), "after 'window_turns'"},
		{"T3 window_turns twice", conversationMask("window_turns 1", "window_turns 2"), "window_turns is given twice"},
		{"T2 enabled that is neither on nor off", conversationMask("enabled maybe"), "enabled is on or off"},
		{"T2 enabled twice", conversationMask("enabled", "enabled off"), "enabled is given twice"},
		{"T17 keep_errors that is neither on nor off", conversationMask("keep_errors 1"), "keep_errors is on or off"},
		{"T17 keep_errors twice", conversationMask("keep_errors on", "keep_errors on"), "keep_errors is given twice"},
		{"T20 keep_last_k_per_tool that is no number", conversationMask("keep_last_k_per_tool all"), `keep_last_k_per_tool: "all" is not a whole number`},
		{"T20 keep_last_k_per_tool twice", conversationMask("keep_last_k_per_tool 1", "keep_last_k_per_tool 1"), "keep_last_k_per_tool is given twice"},
		{"T32 negative step_turns", conversationMask("step_turns -1"), "step_turns: -1 is negative"},
		{"T32 step_turns of nothing", conversationMask("step_turns 0"), "step_turns: 0"},
		{"T32 step_turns that is no number", conversationMask("step_turns 1.5"), `step_turns: "1.5" is not a whole number`},
		{"T33 negative clear_at_least", conversationMask("clear_at_least -1"), `clear_at_least: "-1" is neither`},
		{"T33 clear_at_least that is another word", conversationMask("clear_at_least most"), `clear_at_least: "most" is neither`},
		{"T33 clear_at_least without a value", conversationMask("clear_at_least"), "after 'clear_at_least'"},
		{"T33 clear_at_least twice", conversationMask("clear_at_least 1", "clear_at_least auto"), "clear_at_least is given twice"},
		{"T33 one of the cache_prices", conversationMask("cache_prices 0.1"), "wrong argument count"},
		{"T33 three cache_prices", conversationMask("cache_prices 0.1 1.25 2"), "wrong argument count"},
		{"T33 cache_prices that are no numbers", conversationMask("cache_prices 0.1 dear"), `cache_prices: "dear" is not a price`},
		{"T33 cache_prices that are no finite numbers", conversationMask("cache_prices NaN Inf"), `cache_prices: "NaN" is not a price`},
		{"T33 cache_prices of nothing", conversationMask("cache_prices 0 1"), `cache_prices: "0" is not a price`},
		{"T33 negative cache_prices", conversationMask("cache_prices 0.1 -1"), `cache_prices: "-1" is not a price`},
		{"T33 a cache that saves nothing", conversationMask("cache_prices 1 1"), "cache_prices: reading at 1 is no cheaper than writing at 1"},
		{"T33 a cache that costs more", conversationMask("clear_at_least auto", "cache_prices 2 1"), "cache_prices: "},
		{"T35 negative min_mask_chars", conversationMask("min_mask_chars -1"), "min_mask_chars: -1 is negative"},
		{"T35 min_mask_chars that is no number", conversationMask("min_mask_chars few"), `min_mask_chars: "few" is not a whole number`},
		{"T37 exclude_tools of nothing", conversationMask("exclude_tools"), "after 'exclude_tools'"},
		{"T37 exclude_tools of no name", conversationMask(`exclude_tools read ""`), "exclude_tools: a name is empty"},
		{"tool_result_mask with a buffer_limit that is no size", conversationMask("buffer_limit huge"), `buffer_limit: "huge" is not a size`},
		{"tool_result_mask with a buffer_limit that is negative", conversationMask("buffer_limit -1MiB"), `buffer_limit: "-1MiB" is not a size`},
		{"tool_result_mask with a buffer_limit of nothing", conversationMask("buffer_limit 0"), "buffer_limit: 0"},
		{"T38 a route without a name", conversationMask("route"), "after 'route'"},
		{"T38 a route with two names", conversationMask("route a b"), "wrong argument count"},
		{"T38 a route twice", conversationMask("route a", "route a"), "route is given twice"},
		{"tool_result_mask with an argument", "tool_result_mask off", "wrong argument count"},
		{"tool_result_mask with an unknown subdirective", conversationMask("windows_turns 8"), "unknown subdirective windows_turns"},
		{"tool_result_mask with a block in its block", conversationMask(block("exclude_tools read", "grep")), "unknown subdirective"},
		{"G26 a gateway without servers", gateway("name x"), "server: there is none"},
		{"G26 a gateway with nothing", "mcp_gateway", "server: there is none"},
		{"G26 a server whose URL is not of HTTP", gateway("server a ftp://127.0.0.1"), `server a: "ftp://127.0.0.1" is not an http or https URL`},
		{"G26 a server with an address that is no URL", gateway("server a 127.0.0.1:8080"), "server a: "},
		{"G26 a server whose URL has no host", gateway("server a http:///mcp"), `server a: "http:///mcp" has no host`},
		{"G26 a server whose URL has credentials", gateway("server a http://u:geheim@127.0.0.1"), "server a: credentials in a URL are not sent"},
		{"G26 a server whose URL has a placeholder", gateway("server a http://{env.HOST}:80"), "server a: http://{env.HOST}:80 has a placeholder"},
		{"G26 a server whose URL has no valid port", gateway("server a http://127.0.0.1:99999"), `server a: "http://127.0.0.1:99999" has no valid port`},
		{"A2 a server with nothing to answer", gateway("server a"), `server "a": routes: there are none`},
		{"A2 a child without a command", gateway("server a stdio"), "server a: stdio without a command"},
		{"A2 a child with no time to start", gateway(block("server a stdio x", "start_timeout 0s")), "start_timeout: 0s is not positive"},
		{"A2 a child that shares nothing", gateway(block("server a stdio x", "isolation none")), `isolation: "none" is neither shared nor session`},
		{"A2 a child that is told of nothing", gateway(block("server a stdio x", "framing xml")), `framing: "xml" is neither newline nor content-length`},
		{"G26 a server whose URL has a fragment", gateway("server a http://127.0.0.1/#x"), "has a fragment"},
		{"G26 two servers of one name", gateway("server a http://127.0.0.1", "server a http://127.0.0.2"), `server "a": the name or alias "a" is given twice`},
		{"G26 an alias that is a name", gateway("server a http://127.0.0.1", block("server b http://127.0.0.1", "alias a")), `server "b": the name or alias "a" is given twice`},
		{"A2 a name with the separator", gateway("server a::b http://127.0.0.1"), `name: "a::b" has :: in it`},
		{"A2 a name with a slash", gateway("server a/b http://127.0.0.1"), `name: "a/b" has a slash in it`},
		{"A2 a name of dots", gateway("server .. http://127.0.0.1"), `name: ".." has only dots`},
		{"A2 an alias with a slash", gateway(block("server a http://127.0.0.1", "alias b/c")), `name: "b/c" has a slash in it`},
		{"A2 no name", gateway(`server "" http://127.0.0.1`), "name: it is empty"},
		{"A2 no name at all", gateway("server"), "after 'server'"},
		{"A2 a timeout of nothing", gateway(block("server a http://127.0.0.1", "timeout 0s")), "timeout: 0s is not positive"},
		{"A2 a negative timeout", gateway("response_timeout -1s", "server a http://127.0.0.1"), "response_timeout: -1s is not positive"},
		{"A2 a timeout that is no duration", gateway("response_timeout soon", "server a http://127.0.0.1"), "response_timeout: "},
		{"A2 stdio without a command", gateway("server a stdio"), "server a: stdio without a command"},
		{"two URLs", gateway("server a http://127.0.0.1 http://127.0.0.2"), "server a: one URL is expected"},
		{"G26 a negative limit of requests", gateway("request_limit -1", "server a http://127.0.0.1"), `request_limit: "-1" is not a size`},
		{"G26 no limit of requests", gateway("request_limit 0", "server a http://127.0.0.1"), "request_limit: 0 takes nothing"},
		{"G26 a limit of responses that is no size", gateway("response_limit huge", "server a http://127.0.0.1"), `response_limit: "huge" is not a size`},
		{"G26 a mask of the gateway that does not fit", gateway("mask 4000 3000 3000", "server a http://127.0.0.1"), "head_chars + tail_chars: 3000 + 3000 exceed max_chars 4000"},
		{"G26 a mask of a server that does not fit", gateway(block("server a http://127.0.0.1", "mask 100 51 50")), `server "a": mask: `},
		{"G20 a mask with an unknown word", gateway(block("mask", "max_char 1"), "server a http://127.0.0.1"), "unknown subdirective max_char"},
		{"a gateway with an argument", "mcp_gateway local {\nserver a http://127.0.0.1\n}", "wrong argument count"},
		{"a gateway with an unknown word", gateway("servers a"), "unknown subdirective servers"},
		{"a gateway with a name twice", gateway("name a", "name b"), "name is given twice"},
		{"a gateway with two masks", gateway("mask", "mask off"), "mask is given twice"},
		{"a server with an unknown word", gateway(block("server a http://127.0.0.1", "alais b")), "unrecognized directive: alais"},
		{"a server with a timeout twice", gateway(block("server a http://127.0.0.1", "timeout 1s", "timeout 2s")), "timeout is given twice"},
		{"a server with a path twice", gateway(block("server a http://127.0.0.1/x", "path /y")), "path is given twice, in the URL and in the block"},
		{"a server with a path that is none", gateway(block("server a http://127.0.0.1", "path x")), `path: "x" does not begin with a slash`},
		{"a server with a path with a placeholder", gateway(block("server a http://127.0.0.1", "path /{env.X}")), "has a placeholder"},
		{"a server with no alias", gateway(block("server a http://127.0.0.1", "alias")), "after 'alias'"},
		{"an mcp_path that is none", gateway("mcp_path mcp", "server a http://127.0.0.1"), `mcp_path: "mcp" does not begin with a slash`},
		{"an rpc_path that is none", gateway("rpc_path rpc", "server a http://127.0.0.1"), `rpc_path: "rpc" does not begin with a slash`},
		{"an mcp_path of nothing", gateway(`mcp_path ""`, "server a http://127.0.0.1"), "mcp_path is empty"},
		{"paths that are the same", gateway("mcp_path /a", "rpc_path /a/", "server a http://127.0.0.1"), "mcp_path and rpc_path: "},
		{"paths one below the other", gateway("mcp_path /", "server a http://127.0.0.1"), "mcp_path and rpc_path: "},
		{"origins of nothing", gateway("origins", "server a http://127.0.0.1"), "after 'origins'"},
		{"hosts of nothing", gateway("hosts", "server a http://127.0.0.1"), "after 'hosts'"},
		{"R11 a separator of letters", gateway("separator x", "server a http://127.0.0.1"), `separator: "x" has only letters and digits`},
		{"R11 a separator with a space", gateway(`separator "_ "`, "server a http://127.0.0.1"), `separator: "_ " has a ' ' in it`},
		{"R11 a separator with one colon", gateway("separator :", "server a http://127.0.0.1"), `separator: ":" has a colon in it`},
		{"R11 a separator that is too long", gateway("separator _________", "server a http://127.0.0.1"), "is longer than 8 characters"},
		{"R11 no separator between two servers", gateway("separator none", "server a http://127.0.0.1", "server b http://127.0.0.1"), "separator: none is for a single server, and there are 2"},
		{"A2 a name with the separator that is configured", gateway("separator __", "server a__b http://127.0.0.1"), `server "a__b": name: `},
		{"A2 a name that runs into the separator", gateway("separator __", "server a_ http://127.0.0.1"), `server "a_": name: `},
		{"A2 an alias with the separator", gateway("separator __", block("server a http://127.0.0.1", "alias b__c")), `server "a": name: `},
		{"a name that leaves no room for tools", gateway("max_name_length 20", "server a-name-of-some-length http://127.0.0.1"), `server "a-name-of-some-length": name: `},
		{"names of no length", gateway("max_name_length 0", "server a http://127.0.0.1"), "max_name_length: 0 is not positive"},
		{"no sessions", gateway("max_sessions 0", "server a http://127.0.0.1"), "max_sessions: 0 is not positive"},
		{"no time to join", gateway("join_timeout 0s", "server a http://127.0.0.1"), "join_timeout: 0s is not positive"},
		{"a session key that can be guessed", gateway("session_key secret", "server a http://127.0.0.1"), "session_key: it has 6 characters, and needs 32"},
		{"a session key that is not there", gateway("session_key {env.MCP_NO_SUCH_KEY}", "server a http://127.0.0.1"), "session_key: "},
		{"a discovery that is neither on nor off", gateway("discovery maybe", "server a http://127.0.0.1"), "discovery"},
		{"exposing nothing", gateway(block("server a http://127.0.0.1", "expose")), "after 'expose'"},
		{"exposing an empty pattern", gateway(block("server a http://127.0.0.1", `expose ""`)), "expose: "},
		{"mcp_sample with an argument", "mcp_sample read_log", "wrong argument count"},
		{"mcp_sample with a block", block("mcp_sample", "lines 10"), "unrecognized mcp_sample subdirective 'lines'"},
	}
	url := serve(t, "respond running")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			caddyfile := withAdmin(site(freeAddress(t), tt.directive, proxy("127.0.0.1:1")), adminAddress)
			refused(t, "text/caddyfile", caddyfile, tt.want)
		})
	}
	// A61
	if got := send(t, client, "GET", url, ""); got.body != "running" {
		t.Errorf("the configuration before the refused ones answers %d %q", got.StatusCode, got.body)
	}
}

// TestBadJSONIsRefused has what a Caddyfile cannot say.
func TestBadJSONIsRefused(t *testing.T) {
	const observations, conversations, gateways = "observation_mask", "tool_result_mask", "mcp_gateway"
	tests := []struct {
		name, handler, member, want string
	}{
		{"a negative buffer_limit", observations, `"buffer_limit":-1`, "buffer_limit: -1 is negative"},
		{"recover with negative max_bytes", observations, `"recover":{"max_bytes":-1}`, "recover max_bytes: -1 is negative"},
		{"recover with a negative ttl", observations, `"recover":{"ttl":"-1h"}`, "recover ttl: -1h0m0s is negative"},
		{"an unknown field", observations, `"max_char":4000`, `unknown field "max_char"`},
		{"an unknown field of recover", observations, `"recover":{"size":1}`, `unknown field "size"`},
		{"max_chars that is no number", observations, `"max_chars":"4000"`, "max_chars"},
		{"a negative buffer_limit of conversations", conversations, `"buffer_limit":-1`, "buffer_limit: -1 is negative"},
		{"T13 an unknown variable", conversations, `"placeholder_template":"{foo}"`, "placeholder_template: unknown variable {foo}"},
		{"T2 enabled that is a word", conversations, `"enabled":"on"`, "enabled"},
		{"T3 window_turns that is no whole number", conversations, `"window_turns":1.5`, "window_turns"},
		{"T32 negative step_turns", conversations, `"step_turns":-1`, "step_turns: -1 is negative"},
		{"T33 negative clear_at_least", conversations, `"clear_at_least":-1`, "clear_at_least: -1 is neither"},
		{"T33 clear_at_least that is another word", conversations, `"clear_at_least":"Auto"`, `clear_at_least: "Auto" is neither`},
		{"T33 clear_at_least that is no whole number", conversations, `"clear_at_least":1e99`, "clear_at_least: "},
		{"T33 negative prices", conversations, `"cache_prices":{"read":-1,"write":-0.5}`, "cache_prices: "},
		{"T33 reading at more than the default of writing", conversations, `"cache_prices":{"read":1.5}`, "cache_prices: reading at 1.5 is no cheaper than writing at 1.25"},
		{"T33 writing at less than the default of reading", conversations, `"cache_prices":{"write":0.1}`, "cache_prices: reading at 0.1 is no cheaper than writing at 0.1"},
		{"T33 an unknown price", conversations, `"cache_prices":{"hit":0.1}`, `unknown field "hit"`},
		{"T35 negative min_mask_chars", conversations, `"min_mask_chars":-1`, "min_mask_chars: -1 is negative"},
		{"T37 a tool without a name", conversations, `"exclude_tools":["read",""]`, "exclude_tools: a name is empty"},
		{"G26 no servers", gateways, `"servers":[]`, "server: there is none"},
		{"G26 a server that is null", gateways, `"servers":[null]`, "servers: number 0 is null"},
		{"A2 a server without a name", gateways, `"servers":[{"path":"/"}]`, `server "": name: it is empty`},
		{"A2 a negative timeout", gateways, `"servers":[{"name":"a","timeout":"-1s"}]`, `server "a": timeout: -1s is negative`},
		{"A2 a negative timeout of the gateway", gateways, `"response_timeout":"-1s","servers":[{"name":"a"}]`, "response_timeout: -1s is negative"},
		{"G26 a negative limit of requests", gateways, `"request_limit":-1,"servers":[{"name":"a"}]`, "request_limit: -1 is negative"},
		{"a negative number of sessions", gateways, `"max_sessions":-1,"servers":[{"name":"a","routes":[{}]}]`, "max_sessions: -1 is negative"},
		{"a negative length of names", gateways, `"max_name_length":-1,"servers":[{"name":"a","routes":[{}]}]`, "max_name_length: -1 is negative"},
		{"a negative time to join", gateways, `"join_timeout":"-1s","servers":[{"name":"a","routes":[{}]}]`, "join_timeout: -1s is negative"},
		{"G26 a negative limit of responses", gateways, `"response_limit":-1,"servers":[{"name":"a"}]`, "response_limit: -1 is negative"},
		{"G26 a mask that does not fit", gateways, `"servers":[{"name":"a","mask":{"max_chars":100,"head_chars":51,"tail_chars":50}}]`, "head_chars + tail_chars"},
		{"a path that is a URL", gateways, `"servers":[{"name":"a","path":"http://127.0.0.1/"}]`, "path: "},
		{"an unknown handler of a server", gateways, `"servers":[{"name":"a","routes":[{"handle":[{"handler":"nope"}]}]}]`, `server "a": `},
		{"an unknown field of a server", gateways, `"servers":[{"name":"a","url":"http://127.0.0.1"}]`, `unknown field "url"`},
		{"an unknown field of conversations", conversations, `"window":8`, `unknown field "window"`},
	}
	load(t, "")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := `{"admin":{"listen":"` + adminAddress + `"},"apps":{"http":{"servers":{"s":{"listen":["` + freeAddress(t) +
				`"],"routes":[{"handle":[{"handler":"` + tt.handler + `",` + tt.member + `}]}]}}}}}`
			refused(t, "application/json", config, tt.want)
		})
	}
}

func refused(t *testing.T, contentType, config, want string) {
	t.Helper()
	got := admin(t, "POST", "/load", config, "Content-Type: "+contentType)
	if got.StatusCode != http.StatusBadRequest {
		t.Fatalf("loaded: %d %s", got.StatusCode, got.body)
	}
	var failure struct{ Error string }
	if err := json.Unmarshal([]byte(got.body), &failure); err != nil || !strings.Contains(failure.Error, want) {
		t.Errorf("error %s\nwant %s", got.body, want)
	}
}
