package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// reportConversation compares masking old tool results with package chat and decoding
// the request, applying the same rules and encoding it again.
func reportConversation(ctx context.Context, chosen *regexp.Regexp, budget time.Duration) error {
	// This file mentions neither exceptions nor timeouts, so it is masked.
	source, err := goSource("encoding/json/scanner.go")
	if err != nil {
		return err
	}
	fast, sonicName := sonicJSON()
	type size struct {
		name  string
		bytes int
	}
	large := []size{{"2MB", 2_000_000}, {"20MB", 20_000_000}}
	titled := false
	for _, c := range []struct {
		name  string
		text  []string
		sizes []size
	}{
		{"log", logLines(), append([]size{{"200KB", 200_000}}, large...)},
		// A line of code is shorter than a placeholder, so a request of 200 KB is not masked.
		{"source", source, large},
	} {
		for _, size := range c.sizes {
			name := fmt.Sprintf("conversation/%s/%s", c.name, size.name)
			if !chosen.MatchString(name) {
				continue
			}
			if !titled {
				printTitle("chat", sonicName)
				titled = true
			}
			contestants := []contestant{conversationMasker(), reedit(decode, json.Marshal), reedit(fast.Unmarshal, fast.Marshal)}
			if err := reportCase(ctx, name, contestants, conversation(1000, size.bytes, c.text), budget); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// conversation returns a request with this number of turns and about size bytes, as an agent
// would send it. Each turn calls a tool and receives some lines.
func conversation(turns, size int, lines []string) []byte {
	body := []byte(`{"model":"sample","stream":true,"messages":[{"role":"system","content":"You are a careful ` +
		`engineer."},{"role":"user","content":"Find out why the build fails."}`)
	next := 0
	for turn := range turns {
		body = fmt.Appendf(body, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function",`+
			`"function":{"name":"read_file","arguments":"{\"path\":\"%d.go\"}"}}]}`, turn, turn)
		body = fmt.Appendf(body, `,{"role":"tool","tool_call_id":"call_%d","content":"`, turn)
		for first := true; first || len(body) < size/turns*(turn+1); first = false {
			body = append(body, jsonString(lines[next%len(lines)])...)
			next++
		}
		body = append(body, `"}`...)
	}
	return append(body, `]}`...)
}

// jsonString returns the JSON string literal of a text, without quotes, as most agents
// write it. Unlike encoding/json, they do not escape < and >.
func jsonString(text string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // strings do not fail
	return out.Bytes()[1 : out.Len()-2]
}

func logLines() []string {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("2026-11-15T08:%02d:%02d.%03dZ INFO  http request method=GET path=/users/%d "+
			"status=200 duration_ms=%d\n", i/60%60, i%60, i*7%1000, i*31%5000, i%90))
	}
	return lines
}

func conversationMasker() contestant {
	var (
		c   chat.Conversation
		out bytes.Buffer
	)
	policy := chat.Policy{WindowTurns: chat.DefaultWindowTurns, KeepErrors: chat.ErrorsOn}
	return func(body []byte) ([]byte, error) {
		if err := c.Parse(body); err != nil {
			return nil, err
		}
		out.Reset()
		err := jsonspan.Splice(&out, body, c.Mask(&policy).Edits)
		return out.Bytes(), err
	}
}

// reedit decodes, edits and encodes a request: the alternative to package chat.
func reedit(unmarshal func([]byte, any) error, marshal func(any) ([]byte, error)) contestant {
	return func(body []byte) ([]byte, error) {
		var request map[string]any
		if err := unmarshal(body, &request); err != nil {
			return nil, err
		}
		editConversation(request["messages"].([]any))
		return marshal(request)
	}
}

// editConversation masks the results of all but the last turns.
func editConversation(messages []any) {
	turns := 0
	turnOf, nameOf := map[string]int{}, map[string]string{}
	for _, m := range messages {
		calls, _ := m.(map[string]any)["tool_calls"].([]any)
		for _, c := range calls {
			call := c.(map[string]any)
			turnOf[call["id"].(string)] = turns
			nameOf[call["id"].(string)] = call["function"].(map[string]any)["name"].(string)
		}
		if len(calls) > 0 {
			turns++
		}
	}
	for _, m := range messages {
		message := m.(map[string]any)
		if message["role"] != "tool" {
			continue
		}
		id, content := message["tool_call_id"].(string), message["content"].(string)
		if turn, known := turnOf[id]; !known || turn >= turns-chat.DefaultWindowTurns || mentionsError(content) {
			continue
		}
		message["content"] = fmt.Sprintf("[Observation masquée: résultat d’outil ancien (tool_call_id=%s, outil=%s, "+
			"chars=%d)]",
			id, nameOf[id], utf8.RuneCountInString(content))
	}
}

func mentionsError(content string) bool {
	lower := strings.ToLower(content)
	for _, word := range []string{"traceback", "exception", "timeout", "connect_error", "connection refused"} {
		if strings.Contains(lower, word) {
			return true
		}
	}
	for line := range strings.Lines(lower) {
		if strings.HasPrefix(strings.TrimLeft(line, " \t"), "error") {
			return true
		}
	}
	return false
}
