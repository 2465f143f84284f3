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
	tests := []struct {
		name, member, want string
	}{
		{"a negative buffer_limit", `"buffer_limit":-1`, "buffer_limit: -1 is negative"},
		{"recover with negative max_bytes", `"recover":{"max_bytes":-1}`, "recover max_bytes: -1 is negative"},
		{"recover with a negative ttl", `"recover":{"ttl":"-1h"}`, "recover ttl: -1h0m0s is negative"},
		{"an unknown field", `"max_char":4000`, `unknown field "max_char"`},
		{"an unknown field of recover", `"recover":{"size":1}`, `unknown field "size"`},
		{"max_chars that is no number", `"max_chars":"4000"`, "max_chars"},
	}
	load(t, "")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := `{"admin":{"listen":"` + adminAddress + `"},"apps":{"http":{"servers":{"s":{"listen":["` + freeAddress(t) +
				`"],"routes":[{"handle":[{"handler":"observation_mask",` + tt.member + `}]}]}}}}}`
			refused(t, "application/json", config, tt.want)
		})
	}
}

func refused(t *testing.T, contentType, config, want string) {
	t.Helper()
	got := post(t, "http://"+adminAddress+"/load", config, "Content-Type: "+contentType)
	if got.StatusCode != http.StatusBadRequest {
		t.Fatalf("loaded: %d %s", got.StatusCode, got.body)
	}
	var failure struct{ Error string }
	if err := json.Unmarshal([]byte(got.body), &failure); err != nil || !strings.Contains(failure.Error, want) {
		t.Errorf("error %s\nwant %s", got.body, want)
	}
}
