package mask

import (
	"strings"
	"testing"
)

// If the method is unknown, results are recognized by their members. O25
func TestResultsAreRecognizedByTheirMembers(t *testing.T) {
	long := `"` + repeat("x", 30) + `"`
	cut := `"xxx\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=30 head=3 tail=2] ...\nxx"`
	for _, test := range []struct{ name, result, known, unknown string }{ // known is "" if it equals unknown
		{"a tool's result", `{"content":[{"type":"text","text":LONG}],"structuredContent":{"tools":[LONG],` +
			`"instructions":LONG}}`, "",
			`{"content":[{"type":"text","text":CUT}],"structuredContent":{"tools":[CUT],"instructions":CUT}}`},
		{"tools", `{"tools":[{"name":"a","description":LONG,"inputSchema":{"description":LONG}}]}`,
			`{"tools":[{"name":"a","description":CUT,"inputSchema":{"description":CUT}}]}`,
			`{"tools":[{"name":"a","description":LONG,"inputSchema":{"description":LONG}}]}`},
		{"prompts", `{"prompts":[LONG]}`, `{"prompts":[CUT]}`, `{"prompts":[LONG]}`},
		{"resources", `{"resources":[LONG]}`, `{"resources":[CUT]}`, `{"resources":[LONG]}`},
		{"templates", `{"resourceTemplates":[LONG]}`, `{"resourceTemplates":[CUT]}`, `{"resourceTemplates":[LONG]}`},
		{"tasks", `{"tasks":[LONG]}`, `{"tasks":[CUT]}`, `{"tasks":[LONG]}`},
		{"skills", `{"skills":[LONG]}`, `{"skills":[CUT]}`, `{"skills":[LONG]}`},
		{"metadata and a cursor before a list", `{"_meta":{"a":LONG},"nextCursor":LONG,"tools":[LONG],"x":LONG}`,
			`{"_meta":{"a":CUT},"nextCursor":CUT,"tools":[CUT],"x":CUT}`,
			`{"_meta":{"a":LONG},"nextCursor":LONG,"tools":[LONG],"x":LONG}`},
		{"initialize", `{"protocolVersion":"2025-06-18","instructions":LONG,"x":LONG}`,
			`{"protocolVersion":"2025-06-18","instructions":CUT,"x":CUT}`,
			`{"protocolVersion":"2025-06-18","instructions":LONG,"x":LONG}`},
		{"server/discover", `{"supportedVersions":[],"capabilities":{"a":LONG},"serverInfo":{"title":LONG}}`,
			`{"supportedVersions":[],"capabilities":{"a":CUT},"serverInfo":{"title":CUT}}`,
			`{"supportedVersions":[],"capabilities":{"a":LONG},"serverInfo":{"title":LONG}}`},
		{"names with escapes", `{"\u0074ools":[LONG],"x":LONG}`, `{"\u0074ools":[CUT],"x":CUT}`,
			`{"\u0074ools":[LONG],"x":LONG}`},
		{"a name of escapes only", `{` + escapeAll("resourceTemplates") + `:[LONG]}`, `{` + escapeAll("resourceTemplates") +
			`:[CUT]}`, `{` + escapeAll("resourceTemplates") + `:[LONG]}`},
		{"a name in another case", `{"Tools":[LONG]}`, "", `{"Tools":[CUT]}`},
		{"an array of lists", `[{"tools":[LONG]}]`, "", `[{"tools":[CUT]}]`},
		{"a request for input from the client",
			`{"resultType":"input_required","inputRequests":{"a":{"params":{"message":LONG}}},` +
				`"requestState":LONG,"x":LONG}`, "",
			`{"resultType":"input_required","inputRequests":{"a":{"params":{"message":LONG}}},"requestState":LONG,"x":CUT}`},
		{"a nested state", `{"content":[{"requestState":LONG}]}`, "", `{"content":[{"requestState":CUT}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.known == "" {
				test.known = test.unknown
			}
			for _, media := range []bool{false, true} {
				for _, unknown := range []bool{false, true} {
					p := Policy{MaxChars: 20, HeadChars: 3, TailChars: 2, KeepMedia: media, AnyMethod: unknown}
					want := test.known
					if unknown {
						want = test.unknown
					}
					// The messages after a result do not depend on it.
					batch := func(result string) string {
						text := "[" + response(result) + `,{"result":{"y":CUT},"jsonrpc":"2.0"},{"jsonrpc":"2.0","error":{"data":CUT}}]`
						return strings.NewReplacer("LONG", long, "CUT", cut).Replace(text)
					}
					text := strings.ReplaceAll(batch(test.result), cut, long)
					for _, piece := range []int{1, 5, 1 << 20} {
						if got, _ := apply(t, p, text, piece); got != batch(want) {
							t.Errorf("%+v, in pieces of %d\ngot  %s\nwant %s", p, piece, got, batch(want))
						}
					}
				}
			}
		})
	}
}
