package mcpconsole

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

const formSchema = `{"inputSchema":{"required":["text","count"],"properties":{
	"text":{"type":"string"},
	"note":{"type":["string","null"]},
	"count":{"type":"integer","default":3},
	"ratio":{"type":["number","null"]},
	"level":{"enum":["low",2,null]},
	"dry":{"type":"boolean"},
	"list":{"type":"array"},
	"any":{}
}}}`

func TestFormFields(t *testing.T) {
	arguments, open := mcpgateway.ReadToolArguments([]byte(formSchema))
	f := newForm(arguments, open, nil)
	var got []string
	for _, field := range f.Fields {
		got = append(got, field.Name+" "+field.Kind)
	}
	if got, want := strings.Join(got, ", "),
		"text text, note text, count number, ratio number, level enum, dry boolean, list json, any json"; got != want ||
		f.Open {
		t.Errorf("%s, open: %v", got, f.Open)
	}
	if got := f.Fields[2].Step() + " " + f.Fields[3].Step() + " " + f.Fields[2].Example(); got != "1 any 3" {
		t.Error(got)
	}
	if got := fmt.Sprint(f.Fields[4].Options()); got != `[{"low" low false} {2 2 false} {null  false}]` {
		t.Error(got)
	}
}

func TestFormOfManyArguments(t *testing.T) {
	f := newForm(make([]mcpgateway.ToolArgument, maxFields+1), false, nil)
	if len(f.Fields) != 0 || !f.Open {
		t.Errorf("%d fields, open: %v", len(f.Fields), f.Open)
	}
}

func TestFormFill(t *testing.T) {
	arguments, _ := mcpgateway.ReadToolArguments([]byte(formSchema))
	for _, tt := range []struct {
		name    string
		open    bool
		entered url.Values
		want    string // the call, or the error
	}{
		{"no values", false, nil, `{"tool":"","texts":{"text":""}}`},
		{"all values", false, url.Values{
			"argument.text": {"a\r\nb"}, "argument.note": {"n"}, "argument.count": {"7"}, "argument.level": {"2"},
			"argument.dry": {"false"}, "argument.list": {"[1]"}, "argument.any": {`"x"`}, "token": {"no argument"},
		}, `{"tool":"","arguments":{"any":"x","level":2},"texts":{"count":"7","dry":"false","list":"[1]","note":"n",` +
			`"text":"a\nb"}}`},
		{"a word instead of JSON", false, url.Values{"argument.any": {"x"}}, "any: must be JSON; put text in quotes"},
		{"additional arguments", true, url.Values{"arguments": {` {"more":1}`}, "argument.text": {"x"}},
			`{"tool":"","arguments":{"more":1},"texts":{"text":"x"}}`},
		{"a closed schema", false, url.Values{"arguments": {`{"more":1}`}, "argument.text": {"x"}},
			`{"tool":"","texts":{"text":"x"}}`},
		{"additional arguments that are not an object", true, url.Values{"arguments": {`[]`}},
			"arguments: must be a JSON object"},
		{"additional arguments that are null", true, url.Values{"arguments": {`null`}}, "arguments: must be a JSON object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, call := newForm(arguments, tt.open, tt.entered), adminapi.ToolCall{}
			got := ""
			if err := f.fill(&call); err != nil {
				got = err.Error()
			} else if text, err := json.Marshal(call); err != nil {
				t.Fatal(err)
			} else {
				got = string(text)
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// Arguments never have the form name of another part of the form.
func TestFormNames(t *testing.T) {
	f := newForm([]mcpgateway.ToolArgument{{Name: "token"}, {Name: "arguments"}, {Name: "client"}}, true, nil)
	names := map[string]bool{"token": true, givenName: true, "client": true, "sure": true}
	for _, field := range f.Fields {
		names[field.FormName()] = true
	}
	if len(names) != 7 {
		t.Error(slices.Sorted(maps.Keys(names)))
	}
}
