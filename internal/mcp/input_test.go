package mcp

import (
	"encoding/json"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestReadInput(t *testing.T) { // A59
	const sampling = `{"method":"sampling/createMessage","params":{"n":12345678901234567890}}`
	for _, tt := range []struct {
		name, result string
		is, good     bool
		methods      map[string]string // by key
	}{
		{"another result", `{"resultType":"complete","inputRequests":{"k":` + sampling + `}}`, false, true, nil},
		{"a legacy result", `{"inputRequests":{"k":` + sampling + `}}`, false, true, nil},
		{"not an object", `[]`, false, true, nil},
		{"a request", `{"resultType":"input_required","inputRequests":{"k":` + sampling + `},"requestState":"s"}`, true,
			true, map[string]string{"k": "sampling/createMessage"}},
		{"two requests", `{"resultType":"input_required","inputRequests":{"k":` + sampling +
			`,"K":{"method":"roots/list"}}}`, true, true, map[string]string{"k": "sampling/createMessage", "K": "roots/list"}},
		{"a request with escapes",
			`{"resultTyp\u0065":"input\u005frequired","inputR\u0065quests":{"k":{"m\u0065thod":"roots\/list"}}}`, true, true,
			map[string]string{"k": "roots/list"}},
		{"no request", `{"resultType":"input_required"}`, true, true, map[string]string{}},
		{"unrelated members",
			`{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list","x":1,"X":2}},"Y":1,"y":2}`, true, true,
			map[string]string{"k": "roots/list"}},
		{"a key twice", `{"resultType":"input_required","inputRequests":{"k":` + sampling + `,"k":{"method":"roots/list"}}}`,
			true, false, nil},
		{"a key twice, with escapes", `{"resultType":"input_required","inputRequests":{"k":` + sampling +
			`,"\u006b":{"method":"roots/list"}}}`, true, false, nil},
		{"a method twice", `{"resultType":"input_required","inputRequests":{"k":{"method":"sampling/createMessage",` +
			`"method":"roots/list"}}}`, true, false, nil},
		{"a method twice, in another case",
			`{"resultType":"input_required","inputRequests":{"k":{"method":"sampling/createMessage","Method":"roots/list"}}}`,
			true, false, nil},
		{"a method in another case",
			`{"resultType":"input_required","inputRequests":{"k":{"METHOD":"sampling/createMessage"}}}`, true, false, nil},
		{"params with a letter that folds to ASCII",
			`{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list","param\u017f":{}}}}`, true, false, nil},
		{"requests twice, in another case", `{"resultType":"input_required","inputRequests":{"k":` + sampling +
			`},"InputRequests":{}}`, true, false, nil},
		{"a state in another case", `{"resultType":"input_required","inputRequests":{"k":` + sampling +
			`},"RequestState":"s"}`, true, false, nil},
		{"an invalid request", `{"resultType":"input_required","inputRequests":{"k":7}}`, true, false, nil},
		{"a request without a method", `{"resultType":"input_required","inputRequests":{"k":{}}}`, true, false, nil},
		{"a request whose method is not a string",
			`{"resultType":"input_required","inputRequests":{"k":{"method":["roots/list"]}}}`, true, false, nil},
		{"requests in a list", `{"resultType":"input_required","inputRequests":[` + sampling + `]}`, true, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m jsonrpc.Message
			if failure := m.Read([]byte(`{"jsonrpc":"2.0","id":1,"result":` + tt.result + `}`)); failure != nil {
				t.Fatal(failure)
			}
			asks, is, err := ReadInput(&m)
			if is != tt.is || (err == nil) != tt.good || len(asks.Requests) != len(tt.methods) {
				t.Fatalf("got %+v, %t, %v", asks, is, err)
			}
			for key, method := range tt.methods {
				if asks.Requests[key].Method != method {
					t.Errorf("%s: got %+v", key, asks.Requests[key])
				}
			}
		})
	}
}

func TestWithInput(t *testing.T) { // A59
	responses := map[string]json.RawMessage{"k": json.RawMessage(`{"roots":[]}`)}
	const answers = `"inputResponses":{"k":{"roots":[]}}`
	const before = `{"jsonrpc":"2.0","id":1,"method":"tools/call"`
	for _, tt := range []struct{ name, message, state, want string }{
		{"no params", before + `}`, `"s"`, `{"params":{` + answers +
			`,"requestState":"s"},"jsonrpc":"2.0","id":1,"method":"tools/call"}`},
		{"no state", before + `,"params":{"name":"x"}}`, ``, before + `,"params":{` + answers + `,"name":"x"}}`},
		{"params that are null", before + `,"params":null}`, ``, before + `,"params":{` + answers + `}}`},
		{"a repeated call", before + `,"params":{"inputResponses":{"l":1},"requestState":"r"}}`, `"s"`,
			before + `,"params":{` + answers + `,"requestState":"s"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m jsonrpc.Message
			if failure := m.Read([]byte(tt.message)); failure != nil {
				t.Fatal(failure)
			}
			var state json.RawMessage
			if tt.state != "" {
				state = json.RawMessage(tt.state)
			}
			if got := string(WithInput(&m, responses, state)); got != tt.want {
				t.Errorf("got %s", got)
			}
		})
	}
}
