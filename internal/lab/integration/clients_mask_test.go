package integration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Clients read files with their own tools. Each request of a client is compared with what reached
// the model: old results are placeholders, a provider would accept the conversation, and every
// other byte is unchanged.
func TestClientsMasked(t *testing.T) {
	isolate(t)
	if os.Getenv("CLIENTS") == "" {
		t.Skip("run make -f xcaddy.mk clients")
	}
	programs, err := filepath.Abs("clients/node_modules/.bin")
	if err != nil {
		t.Fatal(err)
	}
	const files, lines, window = 14, 250, 4
	for _, tt := range []struct {
		client, example, upstream string
		tool, arguments           string // format strings with the path of a file
	}{
		{"Claude Code", "claude_code", "ANTHROPIC_UPSTREAM", "Read", `{"file_path":%q}`},
		{"Codex", "codex", "LLM_UPSTREAM", "exec_command", `{"cmd":"cat %s"}`},
		{"Qwen Code", "qwen_code", "LLM_UPSTREAM", "read_file", `{"file_path":%q}`},
		{"Gemini CLI", "gemini_cli", "GEMINI_UPSTREAM", "read_file", `{"file_path":%q}`},
		{"opencode", "opencode", "LLM_UPSTREAM", "read", `{"filePath":%q}`},
	} {
		for _, policy := range []struct {
			name   string
			lines  []string
			slides bool // each result that leaves the window is masked at once
		}{
			{"sliding", []string{"window_turns 4"}, true},
			// With these prices masking pays off within few turns.
			{"auto", []string{"window_turns 4", "clear_at_least auto", "cache_prices 0.5 1", "max_loss 20%",
				"min_mask_chars 800"}, false},
		} {
			t.Run(tt.client+", "+policy.name, func(t *testing.T) {
				home := clientHome(t)
				chat := new(mcptest.Chat)
				for i := range files {
					path := filepath.Join(home, fmt.Sprintf("chapter%02d.txt", i+1))
					line := fmt.Sprintf("chapter %d, line %%d: the quick brown fox jumps over the lazy dog", i+1)
					if err := os.WriteFile(path, []byte(withLines(lines, line, nil)), 0o600); err != nil {
						t.Fatal(err)
					}
					chat.Calls = append(chat.Calls, mcptest.ToolCall{Name: tt.tool, Arguments: fmt.Sprintf(tt.arguments, path)})
				}
				served := run(t, withMask(t, tt.example, policy.lines...), tt.upstream+"="+upstream(t, chat))
				tap := newTap(served.address)
				served.addresses[":8080"] = upstream(t, tap)

				plain, _ := section(t, tt.client)
				instructions := recipeIn(plain)
				instructions.write(t, home, served)
				shell, cancel := clientShell(t, home, programs)
				defer cancel()
				// Block updates and telemetry.
				shell.Env = append(shell.Env, "HTTPS_PROXY=http://"+freeAddress(t), "NO_PROXY=127.0.0.1")
				out := runCommandsIn(t, shell, served, instructions.commands)
				if last := out[len(instructions.commands)-1]; !slices.Contains(strings.Fields(last), "ok") {
					t.Errorf("the client does not show the last message of the model: %s", last)
				}

				var uses []toolUse // of the longest request; others are for a title, for example
				total := 0
				for _, request := range chat.Requests() {
					sent := tap.sent(t, request)
					found, masked := maskedUses(t, sent, request.Body)
					if old := max(0, len(found)-window); masked > old || masked < old && policy.slides {
						t.Errorf("%d of %d results are masked", masked, len(found))
					}
					total += masked
					if len(found) > len(uses) {
						uses = found
						t.Logf("%d calls, %d results masked: %d of %d bytes", len(found), masked, len(request.Body), len(sent))
					}
				}
				if len(uses) != files {
					t.Fatalf("got %d results in the longest request", len(uses))
				}
				for i, use := range uses {
					if use.tool != tt.tool || !strings.Contains(use.text, fmt.Sprintf("chapter %d, line %d:", i+1, lines)) {
						t.Errorf("call %d of %s: got result %q", i+1, use.tool, use.text)
					}
				}
				if count := metricOf(t, served, "tool_results_masked_total"); count != total || total == 0 {
					t.Errorf("%d results are masked, but %d counted", total, count)
				}
			})
		}
	}
}

// withMask returns an example with other lines for its tool_result_mask.
func withMask(t *testing.T, example string, lines ...string) string {
	t.Helper()
	caddyfile, err := os.ReadFile("../../../caddyfile_examples/" + example + ".Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	mask := regexp.MustCompile(`(?s)(\ttool_result_mask [^{]*\{\n).*?(\n\t+\})`)
	if !mask.Match(caddyfile) {
		t.Fatalf("%s has no tool_result_mask", example)
	}
	return writeCaddyfile(t, mask.ReplaceAllString(string(caddyfile), "${1}"+strings.Join(lines, "\n")+"${2}"))
}

// A tap is a proxy between a client and Caddy. It numbers requests and keeps their bodies.
type tap struct {
	*httputil.ReverseProxy
	mu     sync.Mutex
	bodies []string
}

const tapHeader = "Tap-Number"

func newTap(address string) *tap {
	return &tap{ReverseProxy: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: address})
	}}}
}

func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	r.Header.Set(tapHeader, strconv.Itoa(len(p.bodies)))
	p.bodies = append(p.bodies, string(body))
	p.mu.Unlock()
	p.ReverseProxy.ServeHTTP(w, r)
}

// sent returns the body that the client sent, for a request that arrived at the model.
func (p *tap) sent(t *testing.T, arrived mcptest.Request) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := strconv.Atoi(arrived.Headers.Get(tapHeader))
	if err != nil || n >= len(p.bodies) {
		t.Fatalf("%s %s did not pass the tap: %v", arrived.Method, arrived.Path, err)
	}
	return p.bodies[n]
}

// maskedUses returns the calls of a request with their unmasked results, and how many of these
// became placeholders. Only the first ones may be masked, and nothing else may differ.
func maskedUses(t *testing.T, sent, got string) (uses []toolUse, masked int) {
	t.Helper()
	uses, err := toolUses(sent)
	if err != nil {
		t.Fatalf("sent: %v", err)
	}
	arrived, err := toolUses(got)
	if err != nil {
		t.Fatalf("arrived: %v", err)
	}
	if len(arrived) != len(uses) {
		t.Fatalf("%d of %d results arrived", len(arrived), len(uses))
	}
	want := sent
	for i, use := range uses {
		if arrived[i].text == use.text {
			continue
		}
		if i != masked {
			t.Errorf("result %d is masked, but not %d", i+1, masked+1)
		}
		masked++
		if strings.Count(want, use.quoted) != 1 {
			t.Fatalf("%q is sent more than once", use.text)
		}
		want = strings.Replace(want, use.quoted, quote(placeholder(use.id, use.tool, utf8.RuneCountInString(use.text))), 1)
	}
	same(t, got, want)
	return uses, masked
}

// A toolUse is a tool call with its result.
type toolUse struct {
	id, tool string
	text     string // of the result
	quoted   string // text as JSON in the request, with quotes
}

// A wirePart is a message, a part of one or an item, in any format.
type wirePart struct {
	Type, Role string
	ID, Name   string
	CallID     string `json:"call_id"`
	ToolCallID string `json:"tool_call_id"`
	ToolUseID  string `json:"tool_use_id"`
	ToolCalls  []struct {
		ID       string
		Function struct{ Name string }
	} `json:"tool_calls"`
	Content, Output  json.RawMessage
	Parts            []wirePart
	FunctionCall     *struct{ ID, Name string }
	FunctionResponse *struct {
		ID, Name string
		Response json.RawMessage
	}
}

// toolUses parses the calls and results of a request. It is as strict as providers for a model that
// makes one call at a time: the next message or item must be the result, with the same id and some
// text.
func toolUses(body string) (uses []toolUse, err error) {
	var request struct{ Messages, Input, Contents []wirePart }
	if err := json.Unmarshal([]byte(body), &request); err != nil {
		return nil, err
	}
	open := false
	call := func(id, tool string) error {
		if open || id == "" || tool == "" {
			return fmt.Errorf("call %q of %q", id, tool)
		}
		open = true
		uses = append(uses, toolUse{id: id, tool: tool})
		return nil
	}
	result := func(id, tool string, content json.RawMessage) error {
		last := len(uses) - 1
		if !open || uses[last].id != id || tool != "" && uses[last].tool != tool {
			return fmt.Errorf("result of %q, which is not an open call", id)
		}
		open = false
		return uses[last].setText(content)
	}
	var read func(p wirePart) error
	read = func(p wirePart) error {
		switch {
		case p.Type == "tool_use":
			return call(p.ID, p.Name)
		case p.Type == "function_call":
			return call(p.CallID, p.Name)
		case p.FunctionCall != nil:
			return call(p.FunctionCall.ID, p.FunctionCall.Name)
		case p.Role == "tool", p.Type == "tool_result", p.Type == "function_call_output":
			return result(cmp.Or(p.ToolCallID, p.ToolUseID, p.CallID), "", slices.Concat(p.Content, p.Output))
		case p.FunctionResponse != nil:
			return result(p.FunctionResponse.ID, p.FunctionResponse.Name, p.FunctionResponse.Response)
		}
		parts := p.Parts
		if bytes.HasPrefix(p.Content, []byte("[")) {
			if err := json.Unmarshal(p.Content, &parts); err != nil {
				return err
			}
		}
		for _, part := range parts {
			if err := read(part); err != nil {
				return err
			}
		}
		for _, c := range p.ToolCalls {
			if err := call(c.ID, c.Function.Name); err != nil {
				return err
			}
		}
		return nil
	}
	for i, message := range slices.Concat(request.Messages, request.Input, request.Contents) {
		before := open
		if err := read(message); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		if before && open {
			return nil, fmt.Errorf("message %d comes before the result of %q", i, uses[len(uses)-1].id)
		}
	}
	if open {
		return nil, fmt.Errorf("%q has no result", uses[len(uses)-1].id)
	}
	return uses, nil
}

// setText sets the only text of a result: a string, a part in a list, or a member of an object as
// in Gemini's format.
func (u *toolUse) setText(content json.RawMessage) error {
	var parts []struct {
		Type string
		Text json.RawMessage
	}
	var response map[string]json.RawMessage
	spelled := content
	switch {
	case json.Unmarshal(content, &parts) == nil && len(parts) == 1 && parts[0].Type == "text":
		spelled = parts[0].Text
	case json.Unmarshal(content, &response) == nil && len(response) == 1:
		spelled = response["output"]
	}
	u.quoted = string(spelled)
	if err := json.Unmarshal(spelled, &u.text); err != nil {
		return fmt.Errorf("result of %q: %w", u.id, err)
	}
	if u.text == "" {
		return errors.New("empty result of " + u.id)
	}
	return nil
}

// metricOf returns a counter of a process, 0 if it has not counted yet.
func metricOf(t *testing.T, served *caddyProcess, name string) int {
	t.Helper()
	metrics := askAdmin(t, served.addresses[":2019"], "GET", "/metrics", "").body
	found := regexp.MustCompile(`(?m)^caddy_mcp_` + name + ` (\d+)$`).FindStringSubmatch(metrics)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
