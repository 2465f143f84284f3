package mcppruner_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func TestArgumentsOfPruneText(t *testing.T) { // P13, P14, P15
	h, _ := load(t, `{}`)
	const good = `{"text":"a\nb","goal_hint":"a","source_type":"code","options":{"max_prune_ratio":0.5,` +
		`"min_keep_lines":1,"timeout_ms":1500,"annotate_lines":true,"include_markers":false}}`
	tests := []struct {
		name     string
		old, new string
		want     string // part of the error; empty if the arguments are valid
	}{
		{"valid arguments", ``, ``, ""},
		{"no text", `"text":"a\nb",`, ``, "missing argument: text"},
		{"no goal", `"goal_hint":"a",`, ``, "missing argument: goal_hint"},
		{"no type", `"source_type":"code",`, ``, "missing argument: source_type"},
		{"no options", `,"options":{"max_prune_ratio":0.5,"min_keep_lines":1,"timeout_ms":1500,"annotate_lines":true,` +
			`"include_markers":false}`, ``, "missing argument: options"},
		{"no ratio", `"max_prune_ratio":0.5,`, ``, "missing argument: options.max_prune_ratio"},
		{"no lines to keep", `"min_keep_lines":1,`, ``, "missing argument: options.min_keep_lines"},
		{"no timeout", `"timeout_ms":1500,`, ``, "missing argument: options.timeout_ms"},
		{"no numbers", `"annotate_lines":true,`, ``, "missing argument: options.annotate_lines"},
		{"no markers", `,"include_markers":false`, ``, "missing argument: options.include_markers"},
		{"a text that is a number", `"a\nb"`, `5`, "text: must be a string"},
		{"a text that is null", `"a\nb"`, `null`, "text: must be a string"},
		{"a text that is a list", `"a\nb"`, `["a"]`, "text: must be a string"},
		{"a goal that is null", `"goal_hint":"a"`, `"goal_hint":null`, "goal_hint: must be a string"},
		{"another type", `"code"`, `"yaml"`, "source_type: must be code, logs or docs"},
		{"a type in capitals", `"code"`, `"CODE"`, "source_type"},
		{"an empty type", `"code"`, `""`, "source_type"},
		{"a type that is a number", `"code"`, `1`, "source_type"},
		{"a type that is a list", `"code"`, `["code"]`, "source_type: must be a string"},
		{"options that are a list", `{"max_prune_ratio":0.5,"min_keep_lines":1,"timeout_ms":1500,"annotate_lines":true,` +
			`"include_markers":false}`, `[]`, "options: must be an object"},
		{"options that are null", `"options":{`, `"options":null,"x":{`, "options"},
		{"a ratio that is null", `0.5`, `null`, "options.max_prune_ratio: must be a number"},
		{"a ratio that is a string", `0.5`, `"0.5"`, "options.max_prune_ratio: must be a number"},
		{"a ratio that is true", `0.5`, `true`, "options.max_prune_ratio: must be a number"},
		{"a ratio below 0", `0.5`, `-0.1`, "options.max_prune_ratio: must be from 0 to 1"},
		{"a ratio above 1", `0.5`, `1.0001`, "options.max_prune_ratio: must be from 0 to 1"},
		{"a ratio too large for a float64", `0.5`, `1e999`, "options.max_prune_ratio: must be from 0 to 1"},
		{"a ratio of 0", `0.5`, `0`, ""},
		{"a ratio of 1", `0.5`, `1`, ""},
		{"a ratio close to 0", `0.5`, `1e-999`, ""},
		{"lines that are true", `"min_keep_lines":1`, `"min_keep_lines":true`,
			"options.min_keep_lines: must be a whole number"},
		{"lines that are a string", `"min_keep_lines":1`, `"min_keep_lines":"1"`,
			"options.min_keep_lines: must be a whole number"},
		{"a fraction of a line", `"min_keep_lines":1`, `"min_keep_lines":1.5`,
			"options.min_keep_lines: must be a whole number"},
		{"lines below 0", `"min_keep_lines":1`, `"min_keep_lines":-1`, "options.min_keep_lines: must be at least 0"},
		{"a whole number with a decimal point", `"min_keep_lines":1`, `"min_keep_lines":1.0`, ""},
		{"a whole number with an exponent", `"min_keep_lines":1`, `"min_keep_lines":1e0`, ""},
		{"a number of lines too large for int", `"min_keep_lines":1`, `"min_keep_lines":1e30`, ""},
		{"a number of lines too large for a float64", `"min_keep_lines":1`, `"min_keep_lines":1e999999999999`, ""},
		{"no lines", `"min_keep_lines":1`, `"min_keep_lines":0`, ""},
		{"a timeout below 0", `1500`, `-1`, "options.timeout_ms: must be at least 1"},
		{"a fraction of a millisecond", `1500`, `0.5`, "options.timeout_ms"},
		{"a timeout that is a string", `1500`, `"1500"`, "options.timeout_ms"},
		{"a timeout with an exponent", `1500`, `6e4`, ""},
		{"numbers that are a string", `"annotate_lines":true`, `"annotate_lines":"false"`, "options.annotate_lines"},
		{"markers that are null", `"include_markers":false`, `"include_markers":null`, "options.include_markers"},
		{"markers that are a number", `"include_markers":false`, `"include_markers":1`, "options.include_markers"},
		{"a timeout of 0", `1500`, `0`, "options.timeout_ms: must be at least 1"},
		{"a timeout too large for int", `1500`, `99999999999999999999`, ""},
		{"numbers that are 1", `"annotate_lines":true`, `"annotate_lines":1`,
			"options.annotate_lines: must be true or false"},
		{"markers that are a string", `"include_markers":false`, `"include_markers":"false"`,
			"options.include_markers: must be true or false"},
		{"an unknown argument", `"text"`, `"texts":1,"text"`, "texts: unknown argument"},
		{"an unknown option", `"timeout_ms"`, `"timeout":1,"timeout_ms"`, "options.timeout: unknown argument"},
		{"a duplicate text", `"text"`, `"text":"x","text"`, "text: given twice"},
		{"a duplicate option", `"timeout_ms"`, `"timeout_m\u0073":1,"timeout_ms"`, "options.timeout_ms: given twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(good, tt.old) {
				t.Fatalf("%s is not in the valid arguments", tt.old)
			}
			a := callTool(t, h, "", "prune_text", strings.Replace(good, tt.old, tt.new, 1))
			if tt.want == "" {
				var p pruneResult
				decodeResult(t, a, &p)
				return
			}
			if a.code() != -32602 || a.Status != 200 || string(a.ID) != "1" {
				t.Fatalf("got %d, code %d, id %s", a.Status, a.code(), a.ID)
			}
			if !strings.Contains(a.Error.Message, tt.want) || string(a.Error.Data) != `{"code":"invalid_params"}` {
				t.Errorf("got %q %s", a.Error.Message, a.Error.Data)
			}
		})
	}
}

// An error lists all invalid arguments, each of them once.
func TestAllFaultsAreReported(t *testing.T) {
	h, _ := load(t, `{}`)
	var many, names strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, `,"x%02d":1`, i)
		if i < 16 {
			fmt.Fprintf(&names, "x%02d: unknown argument; ", i)
		}
	}
	for _, tt := range []struct{ name, tool, arguments, want string }{
		{"no arguments", "prune_text", `{}`, "missing argument: text; missing argument: goal_hint; missing argument: " +
			"source_type; missing argument: options"},
		{"invalid arguments and options", "prune_text", `{"text":5,"source_type":"yaml","options":{"max_prune_ratio":2,` +
			`"timeout_ms":0,"annotate_lines":1,"include_markers":true,"x":1},"y":1}`,
			"text: must be a string; missing argument: goal_hint; source_type: must be code, logs or docs; " +
				"options.max_prune_ratio: must be from 0 to 1; missing argument: options.min_keep_lines; " +
				"options.timeout_ms: must be at least 1; options.annotate_lines: must be true or false; options.x: unknown " +
				"argument; y: unknown argument"},
		{"one error per argument", "prune_text", `{"text":5,"text":6,"goal_hint":"","source_type":5,"options":[]}`,
			"text: given twice; source_type: must be a string; options: must be an object"},
		{"ranges", "recover_text", `{"ranges":[5,{"start_line":1},{"start_line":1,"end_line":1,"z":1}],"x":1}`,
			"missing argument: prune_id; missing argument: include_line_numbers; ranges[0]: must be an object; missing " +
				"argument: ranges[1].end_line; ranges[2].z: unknown argument; x: unknown argument"},
		{"many invalid arguments", "recover_text", `{"a":1` + many.String() + `}`,
			"missing argument: prune_id; missing argument: ranges; missing argument: include_line_numbers; a: unknown " +
				"argument; " +
				names.String() + "and 14 more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if a := callTool(t, h, "", tt.tool, tt.arguments); a.code() != -32602 || a.Error.Message != tt.want {
				t.Errorf("got %d %q\nwant %q", a.code(), a.Error.Message, tt.want)
			}
		})
	}
}

func TestPruneText(t *testing.T) {
	h, _ := load(t, `{}`)
	text := lines(400)
	p := prune(t, h, "", text, "something else")
	t.Run("P18, P20: statistics", func(t *testing.T) {
		kept, gone := p.Stats["kept_lines"].(float64), p.Stats["pruned_lines"].(float64)
		if p.Stats["original_lines"] != 400.0 || kept+gone != 400 || gone < 100 || gone > 200 || len(p.Annotations) == 0 {
			t.Errorf("stats %v", p.Stats)
		}
		if p.Stats["backend"] != "heuristic" || p.Stats["used_fallback"] != false || len(p.Warnings) != 0 {
			t.Errorf("stats %v, warnings %v", p.Stats, p.Warnings)
		}
		for _, key := range []string{"pruned_ratio", "tokens_est_before", "tokens_est_after", "tokens_saved_est",
			"cost_estimated_usd", "elapsed_ms"} {
			if _, ok := p.Stats[key].(float64); !ok {
				t.Errorf("%s: got %v, want a number", key, p.Stats[key])
			}
		}
	})
	t.Run("P19: the same call has the same id", func(t *testing.T) {
		if !regexp.MustCompile(`^prn_[A-Za-z0-9]{10}$`).MatchString(p.PruneID) {
			t.Error(p.PruneID)
		}
		if again := prune(t, h, "", text, "something else"); again.PruneID != p.PruneID {
			t.Error(again.PruneID, p.PruneID)
		}
		if other := prune(t, h, "", text, "another thing"); other.PruneID == p.PruneID {
			t.Error(other.PruneID)
		}
	})
	t.Run("P40: an empty text", func(t *testing.T) {
		p := prune(t, h, "", "", "goal")
		if p.PrunedText != "" || p.Stats["original_lines"] != 0.0 || p.Stats["used_fallback"] != false {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("HTML is not escaped", func(t *testing.T) {
		a := callTool(t, h, "", "prune_text", arguments("<b> & </b>\n", "goal"))
		if strings.Contains(string(a.Result), `u003c`) {
			t.Errorf("got %s", a.Result)
		}
	})
}

func TestRecoverText(t *testing.T) {
	h, _ := load(t, `{}`)
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "ligne %d\n", i+1)
	}
	text := strings.TrimSuffix(b.String(), "\n")
	id := prune(t, h, "", text, "goal").PruneID
	tests := []struct {
		name     string
		tool     string
		ranges   string
		numbered bool
		want     string
	}{
		{"P41: all kept and removed lines", "recover_text", `[{"start_line":1,"end_line":1000}]`, false, text},
		{"P42: with numbers", "recover_text", `[{"start_line":120,"end_line":121}]`, true, "120│ ligne 120\n121│ ligne 121"},
		{"P42: without numbers", "recover_text", `[{"start_line":120,"end_line":121}]`, false, "ligne 120\nligne 121"},
		{"P43: several ranges with numbers", "recover_text",
			`[{"start_line":1000,"end_line":1000},{"start_line":1,"end_line":1}]`, true, "1000│ ligne 1000\n1│ ligne 1"},
		{"P43: several ranges in the requested order", "recover_text",
			`[{"start_line":5,"end_line":6},{"start_line":1,"end_line":2},{"start_line":5,"end_line":5}]`, false,
			"ligne 5\nligne 6\nligne 1\nligne 2\nligne 5"},
		{"P44: beyond the end", "recover_text", `[{"start_line":999,"end_line":99999}]`, false, "ligne 999\nligne 1000"},
		{"P44: far beyond the end", "recover_text", `[{"start_line":1000,"end_line":1e30}]`, false, "ligne 1000"},
		{"P48: the other name of the tool", "recover_range", `[{"start_line":2,"end_line":2}]`, false, "ligne 2"},
		{"whole numbers with a decimal point or exponent", "recover_text", `[ {"end_line": 2.0, "start_line": 2e0} ]`, false,
			"ligne 2"},
		{"no ranges", "recover_text", `[]`, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got struct {
				RawText  string `json:"raw_text"`
				Metadata struct {
					PruneID   string `json:"prune_id"`
					Ranges    any    `json:"ranges"`
					Numbering string `json:"line_numbering"`
				} `json:"metadata"`
			}
			decodeResult(t, callTool(t, h, "", tt.tool, fmt.Sprintf(`{"prune_id":%q,"ranges":%s,"include_line_numbers":%t}`, id,
				tt.ranges, tt.numbered)), &got)
			if got.RawText != tt.want {
				t.Errorf("got %.200q", got.RawText)
			}
			var ranges any
			_ = json.Unmarshal([]byte(tt.ranges), &ranges)
			if got.Metadata.PruneID != id || fmt.Sprint(got.Metadata.Ranges) != fmt.Sprint(ranges) ||
				got.Metadata.Numbering != "original" {
				t.Errorf("P49: metadata %+v", got.Metadata) // P49
			}
		})
	}
}

func TestRecoverTextRefuses(t *testing.T) {
	h, _ := load(t, `{}`)
	id := prune(t, h, "", "a\nb\nc", "goal").PruneID
	tests := []struct {
		name      string
		arguments string // ID is replaced by the id
		code      int
		message   string
		data      string
	}{
		{"P45: an unknown id", `{"prune_id":"prn_nope","ranges":[{"start_line":1,"end_line":1}],` +
			`"include_line_numbers":false}`, -32004, "prune_id_not_found",
			`{"code":"prune_id_not_found","prune_id":"prn_nope"}`},
		{"P46: an unknown id and an invalid range",
			`{"prune_id":"prn_nope","ranges":[{"start_line":2,"end_line":1}],"include_line_numbers":false}`, -32004,
			"prune_id_not_found", `{"code":"prune_id_not_found","prune_id":"prn_nope"}`},
		{"P46: an end before the start",
			`{"prune_id":"ID","ranges":[{"start_line":1,"end_line":1},{"start_line":3,"end_line":2}],` +
				`"include_line_numbers":false}`, -32005, "invalid_range",
			`{"code":"invalid_range","prune_id":"ID","range":{"start_line":3,"end_line":2},"index":1,"lines":3}`},
		{"P46: line 0", `{"prune_id":"ID","ranges":[{"start_line":0,"end_line":1}],"include_line_numbers":false}`, -32005,
			"invalid_range", `{"code":"invalid_range","prune_id":"ID","range":{"start_line":0,"end_line":1},"index":0,` +
				`"lines":3}`},
		{"P46: an end below line 1", `{"prune_id":"ID","ranges":[{"start_line":1,"end_line":0}],` +
			`"include_line_numbers":false}`, -32005, "invalid_range", ""},
		{"P46: a start far after the last line", `{"prune_id":"ID","ranges":[{"start_line":1e30,"end_line":1e30}],` +
			`"include_line_numbers":false}`, -32005, "invalid_range", ""},
		{"P46: a start before line 0", `{"prune_id":"ID","ranges":[{"start_line":-1e30,"end_line":1}],"include_line_numbers":false}`,
			-32005, "invalid_range", ""},
		{"P46: a fraction of a line", `{"prune_id":"ID","ranges":[{"start_line":1.5,"end_line":2}],"include_line_numbers":false}`,
			-32005, "invalid_range", ""},
		{"P46: a line that is a string", `{"prune_id":"ID","ranges":[{"start_line":"1","end_line":2}],` +
			`"include_line_numbers":false}`, -32005, "invalid_range", ""},
		{"P46: a start after the last line", `{"prune_id":"ID","ranges":[{"start_line":4,"end_line":4}],` +
			`"include_line_numbers":false}`, -32005, "invalid_range", ""},
		{"P52: no id", `{"ranges":[],"include_line_numbers":false}`, -32602, "missing argument: prune_id", ""},
		{"P52: no ranges", `{"prune_id":"ID","include_line_numbers":false}`, -32602, "missing argument: ranges", ""},
		{"P52: no numbers", `{"prune_id":"ID","ranges":[]}`, -32602, "missing argument: include_line_numbers", ""},
		{"P52: an id that is a number", `{"prune_id":5,"ranges":[],"include_line_numbers":false}`, -32602,
			"prune_id: must be a string", ""},
		{"P52: ranges that are a string", `{"prune_id":"ID","ranges":"x","include_line_numbers":false}`, -32602,
			"ranges: must be a list", ""},
		{"P52: a range that is a number", `{"prune_id":"ID","ranges":[5],"include_line_numbers":false}`, -32602,
			"ranges[0]: must be an object", ""},
		{"P52: a range that is null", `{"prune_id":"ID","ranges":[null],"include_line_numbers":false}`, -32602,
			"ranges[0]: must be an object", ""},
		{"P52: a range that is a list", `{"prune_id":"ID","ranges":[[1,2]],"include_line_numbers":false}`, -32602,
			"ranges[0]: must be an object", ""},
		{"P52: ranges that are an object", `{"prune_id":"ID","ranges":{"start_line":1,"end_line":2},` +
			`"include_line_numbers":false}`, -32602, "ranges: must be a list", ""},
		{"P52: a range without a start", `{"prune_id":"ID","ranges":[{"end_line":2}],"include_line_numbers":false}`, -32602,
			"missing argument: ranges[0].start_line", ""},
		{"P52: numbers that are null", `{"prune_id":"ID","ranges":[],"include_line_numbers":null}`, -32602,
			"include_line_numbers: must be true or false", ""},
		{"P52: a range without an end", `{"prune_id":"ID","ranges":[{"start_line":1}],"include_line_numbers":false}`, -32602,
			"missing argument: ranges[0].end_line", ""},
		{"P52: a range with an unknown member", `{"prune_id":"ID","ranges":[{"start_line":1,"end_line":1,"step":2}],` +
			`"include_line_numbers":false}`, -32602, "ranges[0].step: unknown argument", ""},
		{"P52: a range with a duplicate member", `{"prune_id":"ID","ranges":[{"start_line":1,"end_line":1,"end_line":2}],` +
			`"include_line_numbers":false}`, -32602, "ranges[0].end_line: given twice", ""},
		{"P52: an unknown argument", `{"prune_id":"ID","ranges":[],"include_line_numbers":false,"x":1}`, -32602,
			"x: unknown argument", ""},
		{"P52: numbers that are a string", `{"prune_id":"ID","ranges":[],"include_line_numbers":"no"}`, -32602,
			"include_line_numbers: must be true or false", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := callTool(t, h, "", "recover_text", strings.ReplaceAll(tt.arguments, "ID", id))
			if a.Status != 200 || a.code() != tt.code || string(a.ID) != "1" || a.Error.Message != tt.message {
				t.Fatalf("got %d, %+v", a.Status, a.Error)
			}
			if tt.data != "" && string(a.Error.Data) != strings.ReplaceAll(tt.data, "ID", id) {
				t.Errorf("data %s", a.Error.Data)
			}
		})
	}
	t.Run("P45: ids similar to a known one", func(t *testing.T) {
		for _, other := range []string{"", id + "x", id[:len(id)-1], strings.ToUpper(id), "prn_" + strings.Repeat("é", 40)} {
			a := callTool(t, h, "", "recover_text", `{"prune_id":"`+other+`","ranges":[],"include_line_numbers":false}`)
			if a.code() != -32004 {
				t.Errorf("%q: got code %d, want -32004", other, a.code())
			}
		}
	})
	t.Run("the error does not repeat a long id", func(t *testing.T) {
		a := callTool(t, h, "", "recover_text", `{"prune_id":"`+strings.Repeat("x", 5000)+
			`","ranges":[],"include_line_numbers":false}`)
		if a.code() != -32004 || len(a.Error.Data) > 500 {
			t.Errorf("got %+v", a.Error)
		}
	})
}

// Overlapping ranges cannot make a small request return gigabytes, but a whole text can always be
// recovered.
func TestRecoveredTextIsBounded(t *testing.T) {
	h, _ := load(t, `{}`)
	text := strings.Repeat(strings.Repeat("x", 99)+"\n", 10_000) // 1 MB
	id := prune(t, h, "", text, "goal").PruneID
	whole := `{"start_line":1,"end_line":10000}`
	ask := func(times int) answer {
		return callTool(t, h, "", "recover_text", fmt.Sprintf(`{"prune_id":%q,"ranges":[%s],"include_line_numbers":true}`, id,
			strings.TrimSuffix(strings.Repeat(whole+",", times), ",")))
	}
	if a := ask(2); a.code() != 0 {
		t.Errorf("twice: %+v", a.Error)
	}
	if a := ask(100); a.code() != -32602 || !strings.Contains(a.Error.Message, "ranges: ") {
		t.Errorf("100 times: %+v", a.Error)
	}
	large := strings.Repeat("\n", 900_000)
	var p pruneResult // it may be pruned or not: the timeout is 1 ms
	decodeResult(t, callTool(t, h, "", "prune_text", strings.Replace(arguments(large, "goal"), "60000", "1", 1)), &p)
	var got struct {
		RawText string `json:"raw_text"`
	}
	decodeResult(t, callTool(t, h, "", "recover_text",
		fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":1,"end_line":900000}],"include_line_numbers":true}`, p.PruneID)),
		&got)
	if n := strings.Count(got.RawText, "│ "); n != 900_000 {
		t.Errorf("recovered %d lines of 900000", n)
	}
}

func TestOriginalsAreBoundToClients(t *testing.T) {
	h, _ := load(t, `{}`)
	id := prune(t, h, "alice", "a\nb", "goal").PruneID
	recovery := fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":1,"end_line":2}],"include_line_numbers":false}`, id)
	if a := callTool(t, h, "alice", "recover_text", recovery); a.code() != 0 {
		t.Errorf("alice: %+v", a.Error)
	}
	for _, client := range []string{"bob", ""} {
		if a := callTool(t, h, client, "recover_text", recovery); a.code() != -32004 {
			t.Errorf("%q: code %d", client, a.code())
		}
	}
}

func TestOriginalsOutliveReloads(t *testing.T) {
	const config = `{"prune_id_ttl":"61s"}`
	before, unload := load(t, config)
	id := prune(t, before, "", "a\nb", "goal").PruneID
	after, _ := load(t, config)
	unload()
	recovery := fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":1,"end_line":2}],"include_line_numbers":false}`, id)
	if a := callTool(t, after, "", "recover_text", recovery); a.code() != 0 {
		t.Errorf("got %+v", a.Error)
	}
}

func TestOldestOriginalsAreEvicted(t *testing.T) { // P51
	h, _ := load(t, `{"store_limit":{"entries":2}}`)
	var ids []string
	for _, text := range []string{"one", "two", "one", "three"} { // the second call renews "one", P19
		ids = append(ids, prune(t, h, "", text, "goal").PruneID)
	}
	for i, want := range []int{0, -32004, 0, 0} {
		a := callTool(t, h, "", "recover_text", fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":1,"end_line":1}],`+
			`"include_line_numbers":false}`, ids[i]))
		if a.code() != want {
			t.Errorf("text %d: code %d, want %d", i, a.code(), want)
		}
	}
}

func TestFailsOpen(t *testing.T) {
	tests := []struct {
		name        string
		config      string
		text        string
		warnings    string
		recoverable bool
	}{
		{"P54: as long as allowed", `{"max_input_chars":100}`, strings.Repeat("é", 100), "[]", true},
		{"P54: one character too long", `{"max_input_chars":100}`, strings.Repeat("é", 101), "[input_too_large]", true},
		{"P54: much too long", `{"max_input_chars":100}`, lines(2000), "[input_too_large]", true},
		{"P54: too long, and too large to keep", `{"max_input_chars":100,"store_limit":{"bytes":1000}}`, lines(400),
			"[input_too_large recovery_unavailable]", false},
		{"P57: too large to keep, so nothing is removed", `{"store_limit":{"bytes":1000}}`, lines(400),
			"[recovery_unavailable]", false},
		{"P57: a backend that panics", `{"backend":{"backend":"test_panic"}}`, lines(400), "[internal_error]", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := load(t, tt.config)
			p := prune(t, h, "", tt.text, "goal")
			if got := fmt.Sprint(p.Warnings); got != tt.warnings {
				t.Errorf("warnings %s", got)
			}
			if p.PrunedText != tt.text || len(p.Annotations) != 0 || p.Stats["pruned_lines"] != 0.0 {
				t.Errorf("something was removed: %v", p.Stats)
			}
			if p.Stats["used_fallback"] != (tt.warnings != "[]") {
				t.Errorf("P75: stats %v", p.Stats)
			}
			a := callTool(t, h, "", "recover_text", fmt.Sprintf(`{"prune_id":%q,"ranges":[{"start_line":1,"end_line":1}],`+
				`"include_line_numbers":false}`, p.PruneID))
			if recoverable := a.code() == 0; recoverable != tt.recoverable { // P50
				t.Errorf("P50: recovery: %+v", a.Error)
			}
		})
	}
}

func TestRequestsAreBounded(t *testing.T) { // P54
	h, _ := load(t, `{"max_input_chars":10}`)
	large := strings.Repeat("x", 12*10+8<<20)
	for _, message := range []string{large + "x", `{"jsonrpc":"2.0","id":1,"method":"` + large + `"}`} {
		a := post(t, h, "/rpc", message)
		if a.Status != 413 || a.code() != -32600 || string(a.Error.Data) != `{"code":"payload_too_large"}` {
			t.Errorf("got %d %+v", a.Status, a.Error)
		}
	}
	escaped := strings.Repeat(`\ud83d\ude00`, 10)
	a := callTool(t, h, "", "prune_text", strings.Replace(arguments("TEXT", "goal"), "TEXT", escaped, 1))
	var p pruneResult
	if decodeResult(t, a, &p); p.PrunedText != strings.Repeat("😀", 10) || len(p.Warnings) != 0 {
		t.Errorf("got %+v", p)
	}
}

// Replicas give the same text the same id, and recover texts that another replica pruned.
func TestReplicas(t *testing.T) {
	engine := replicastest.New()
	replica := func() *mcppruner.Handler {
		module, err := storetest.Replica(t, engine, mcpstore.App{}).LoadModuleByID("http.handlers.mcp_pruner", []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		return module.(*mcppruner.Handler)
	}
	recovered := func(h *mcppruner.Handler, client, id string) string {
		a := callTool(t, h, client, "recover_text", `{"prune_id":"`+id+
			`","ranges":[{"start_line":2,"end_line":3}],"include_line_numbers":false}`)
		if a.Error != nil {
			return fmt.Sprint(a.Error.Code, " ", a.Error.Message, " ", string(a.Error.Data))
		}
		var got struct {
			RawText string `json:"raw_text"`
		}
		decodeResult(t, a, &got)
		return got.RawText
	}
	a, b, c := replica(), replica(), replica()
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "line %d\n", i+1)
	}
	id := prune(t, a, "ann", text.String(), "goal").PruneID
	if got := recovered(b, "ann", id); got != "line 2\nline 3" {
		t.Errorf("recovered %s", got)
	}
	if got, want := recovered(b, "bob", id), `-32004 prune_id_not_found {"code":"prune_id_not_found","prune_id":"`+id+
		`"}`; got != want {
		t.Errorf("another client got %s", got)
	}
	if again := prune(t, b, "ann", text.String(), "goal").PruneID; again != id {
		t.Errorf("id %s, then %s", id, again)
	}

	engine.Down.Store(true)
	pruned := prune(t, a, "ann", text.String(), "another goal")
	if pruned.Stats["used_fallback"] == true || len(pruned.PrunedText) == text.Len() {
		t.Error("nothing is pruned while the store is unavailable")
	}
	if got := recovered(a, "ann", pruned.PruneID); got != "line 2\nline 3" {
		t.Errorf("recovered %s", got)
	}
	if got, want := recovered(c, "ann", pruned.PruneID),
		`-32002 store_unavailable {"code":"store_unavailable","prune_id":"`+pruned.PruneID+`"}`; got != want {
		t.Errorf("another replica, while the store is unavailable: %s", got)
	}
	engine.Down.Store(false)
}
