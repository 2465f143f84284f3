package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestParamHeaders(t *testing.T) {
	headers := ParamHeaders{}
	cursor, err := headers.Add([]byte(`{"nextCursor":"more","tools":[
		{"name":"plain","inputSchema":{"type":"object","properties":{"x":{"type":"string"}}}},
		{"name":"broken","inputSchema":{"properties":["x-mcp-header"]}},
		{"name":"query","inputSchema":{"type":"object","properties":{
			"region":{"type":"string","x-mcp-header":"Region"},
			"n":{"type":"integer","x-mcp-header":"N"},
			"on":{"type":"boolean","x-mcp-header":"On"},
			"at":{"type":"object","properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}}}}]}`))
	if err != nil || cursor != "more" || len(headers) != 1 {
		t.Fatalf("got %v, %q, %v", headers, cursor, err)
	}
	for _, bad := range []string{``, `[]`, `{"tools":1}`} {
		if _, err := headers.Add([]byte(bad)); err == nil {
			t.Errorf("%q was read as a list", bad)
		}
	}
	tests := []struct {
		name      string
		tool      string
		arguments string
		headers   []string
		ok        bool
	}{
		{"a tool without headers", "plain", `{"x":"y"}`, nil, true},
		{"an unknown tool", "zz", `{"region":"eu"}`, nil, true},
		{"neither argument nor header", "query", `{}`, nil, true},
		{"no arguments", "query", `null`, nil, true},
		{"a string", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu"}, true},
		{"a string with an escape", "query", `{"r\u0065gion":"\u0065u"}`, []string{"Mcp-Param-Region", "eu"}, true},
		{"a string in base64", "query", `{"region":"é"}`, []string{"Mcp-Param-Region", "=?base64?w6k=?="}, true},
		{"a number", "query", `{"n":12345678901234567890}`, []string{"Mcp-Param-N", "12345678901234567890"}, true},
		{"a boolean", "query", `{"on":true}`, []string{"Mcp-Param-On", "true"}, true},
		{"a nested argument", "query", `{"at":{"zone":"a"}}`, []string{"Mcp-Param-Zone", "a"}, true},
		{"null counts as absent", "query", `{"region":null}`, nil, true},
		{"a number in another form", "query", `{"n":42}`, []string{"Mcp-Param-N", "42.0"}, true},
		{"a string that looks like a number", "query", `{"region":"42"}`, []string{"Mcp-Param-Region", "42.0"}, false},
		{"no header", "query", `{"region":"eu"}`, nil, false},
		{"no argument", "query", `{}`, []string{"Mcp-Param-Region", "eu"}, false},
		{"another value", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "us"}, false},
		{"two values", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu", "Mcp-Param-Region", "us"}, false},
		{"invalid base64", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "=?base64?*?="}, false},
		{"an object as argument", "query", `{"region":{}}`, []string{"Mcp-Param-Region", "{}"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := message(t, fmt.Sprintf(`{"id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tt.tool,
				tt.arguments))
			failure := headers.Check(header(tt.headers...), m)
			if (failure == nil) != tt.ok {
				t.Errorf("got %v", failure)
			}
			if failure != nil && (failure.Code != -32020 || !strings.Contains(failure.Message, "Mcp-Param-")) {
				t.Errorf("got %d %s", failure.Code, failure.Message)
			}
		})
	}
}

func TestSetParamHeaders(t *testing.T) {
	headers := ParamHeaders{}
	if _, err := headers.Add([]byte(`{"tools":[
		{"name":"bad","inputSchema":{"properties":{"x":{"type":"string","x-mcp-header":"a b"},"z":{"type":"string","x-mcp-header":"Z"}}}},
		{"name":"query","inputSchema":{"properties":{
			"region":{"type":"string","x-mcp-header":"Region"},
			"n":{"type":"integer","x-mcp-header":"x-N"},
			"on":{"type":"boolean","x-mcp-header":"On"},
			"at":{"properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}}}}]}`)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name      string
		method    string
		tool      string
		arguments string
		want      map[string]string
	}{
		{"all kinds", "tools/call", "query", `{"region":"eu","n":4.2e1,"on":false,"at":{"zone":"a"}}`,
			map[string]string{"Mcp-Param-Region": "eu", "Mcp-Param-X-N": "42", "Mcp-Param-On": "false", "Mcp-Param-Zone": "a"}},
		{"beyond ASCII", "tools/call", "query", `{"region":"é"}`, map[string]string{"Mcp-Param-Region": "=?base64?w6k=?="}},
		{"an injected header", "tools/call", "query", `{"region":"a\r\nX-Evil: 1"}`,
			map[string]string{"Mcp-Param-Region": "=?base64?YQ0KWC1FdmlsOiAx?="}},
		{"quotes", "tools/call", "query", `{"region":"\"eu\""}`, map[string]string{"Mcp-Param-Region": `"eu"`}},
		{"an empty string", "tools/call", "query", `{"region":""}`, map[string]string{"Mcp-Param-Region": ""}},
		{"null and an object", "tools/call", "query", `{"region":null,"n":{},"on":[]}`, nil},
		{"no arguments", "tools/call", "query", `null`, nil},
		{"an unknown tool", "tools/call", "zz", `{"region":"eu"}`, nil},
		{"a tool whose annotations are invalid", "tools/call", "bad", `{"x":"1","z":"2"}`, nil},
		{"a prompt of the same name", "prompts/get", "query", `{"region":"eu"}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := message(t, fmt.Sprintf(`{"id":1,"method":%q,"params":{"name":%q,"arguments":%s}}`, tt.method, tt.tool,
				tt.arguments))
			h := header("Mcp-Param-Region", "old", "Mcp-Param-Region", "older", "Mcp-Param-Other", "x", "Mcp-Params", "stays",
				"Accept", "*/*")
			h["mcp-param-raw"] = []string{"x"}
			headers.Set(h, m)
			if h.Get("Accept") != "*/*" || h.Get("Mcp-Params") != "stays" || len(h) != 2+len(tt.want) {
				t.Errorf("got %v", h)
			}
			for name, value := range tt.want {
				if got := h.Values(name); len(got) != 1 || got[0] != value {
					t.Errorf("%s: got %q, want %q", name, got, value)
				}
			}
			if failure := headers.Check(h, m); tt.method == "tools/call" && failure != nil {
				t.Errorf("got %v", failure)
			}
		})
	}
}

// A server may require many headers of a large call. The cost to set them does not grow with the
// product of both.
func TestSetManyParamHeaders(t *testing.T) {
	const n = 500
	var properties, values []string
	for i := range n {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"integer","x-mcp-header":"H%d"}`, i, i))
		values = append(values, fmt.Sprintf(`"p%d":%d`, i, i))
	}
	headers := ParamHeaders{}
	object := `{"type":"object","properties":{"at":{"properties":{` + strings.Join(properties, ",") + `}}}}`
	if err := headers.AddTool("many", []byte(`{"name":"many","inputSchema":`+object+`}`)); err != nil {
		t.Fatal(err)
	}
	m := message(t, `{"id":1,"method":"tools/call","params":{"name":"many","arguments":{"at":{`+strings.Join(values,
		",")+`}}}}`)
	var h http.Header
	allocations := testing.AllocsPerRun(1, func() {
		h = http.Header{}
		headers.Set(h, m)
	})
	if len(h) != n || h.Get("Mcp-Param-H7") != "7" || allocations > 100*n {
		t.Errorf("%d headers by %v allocations", len(h), allocations)
	}
}

// Clients must leave out tools with invalid annotations.
func TestInvalidParamHeaders(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 70) + `{"type":"string","x-mcp-header":"A"}` + strings.Repeat(`}}`, 70)
	tests := []struct {
		name, schema string
		want         string // part of the error, "" if valid
	}{
		{"valid", `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"integer",` +
			`"x-mcp-header":"B-c"}}}}}`, ""},
		{"a property with that name", `{"properties":{"x-mcp-header":{"type":"object"}}}`, ""},
		{"a default with that name", `{"properties":{"a":{"type":"object","default":{"x-mcp-header":""}}}}`, ""},
		{"empty", `{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "x-mcp-header of a: not a valid header name"},
		{"not a string", `{"properties":{"a":{"type":"string","x-mcp-header":true}}}`, "not a valid header name"},
		{"a space", `{"properties":{"a":{"type":"string","x-mcp-header":"My Region"}}}`, "not a valid header name"},
		{"a colon", `{"properties":{"a":{"type":"string","x-mcp-header":"A:B"}}}`, "not a valid header name"},
		{"beyond ASCII", `{"properties":{"a":{"type":"string","x-mcp-header":"Région"}}}`, "not a valid header name"},
		{"a control character", `{"properties":{"a":{"type":"string","x-mcp-header":"A\t1"}}}`, "not a valid header name"},
		{"an object", `{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}`, "the type of the property"},
		{"a number", `{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, "the type of the property"},
		{"no type", `{"properties":{"a":{"x-mcp-header":"A"}}}`, "the type of the property"},
		{"several types", `{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`, "the type of the property"},
		{"twice", `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
			"is on two properties"},
		{"on the schema itself", `{"type":"string","x-mcp-header":"A"}`, "of the schema itself: only properties below"},
		{"in a list", `{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`,
			"of a.items: only properties below"},
		{"in an alternative", `{"anyOf":[true,{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`,
			"only properties below"},
		{"in a definition", `{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}`, "only properties below"},
		{"too deep", deep, "more than 64 levels"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := ParamHeaders{}.AddTool("t", []byte(`{"name":"t","inputSchema":`+tt.schema+`}`))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
