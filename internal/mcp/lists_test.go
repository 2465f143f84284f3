package mcp

import (
	"testing"
)

func TestFilterLists(t *testing.T) {
	hidden := map[string]bool{"secret": true, "file:///secret": true, "file:///secret/{x}": true}
	keep := func(item ListItem) bool { return !hidden[item.Name] }
	for _, test := range []struct{ name, message, want string }{
		{"a list without hidden items stays as it is", `{"result": {"tools" : [ {"name":"a"} , {"name":"b"} ]}}`, ""},
		{"a hidden tool is taken out", `{"result":{"tools":[{"name":"a"}, {"x":1,"name":"secret"},{"name":"b"}],"nextCursor":"1"}}`, `{"result":{"tools":[{"name":"a"},{"name":"b"}],"nextCursor":"1"}}`},
		{"a name with escapes is the name", `{"result":{"tools":[{"name":"secre\u0074"}]}}`, `{"result":{"tools":[]}}`},
		{"prompts are filtered", `{"result":{"prompts":[{"name":"secret"},{"name":"p"}]}}`, `{"result":{"prompts":[{"name":"p"}]}}`},
		{"resources go by their URI", `{"result":{"resources":[{"name":"secret","uri":"file:///a"},{"name":"a","uri":"file:///secret"}]}}`, `{"result":{"resources":[{"name":"secret","uri":"file:///a"}]}}`},
		{"templates go by their URI template", `{"result":{"resourceTemplates":[{"uriTemplate":"file:///secret/{x}","name":"t"}]}}`, `{"result":{"resourceTemplates":[]}}`},
		{"a later list is not taken for an earlier one", `{"result":{"tools":[{"name":"secret"}],"prompts":[{"name":"p"}]}}`, `{"result":{"tools":[],"prompts":[{"name":"p"}]}}`},
		{"an item without a name keeps none of the item before it", `{"result":{"tools":[{"name":"secret"},{}]}}`, `{"result":{"tools":[{}]}}`},
		{"what is no list stays", `{"result":{"tools":{"name":"secret"}}}`, ""},
		{"results that have such members deeper down stay", `{"result":{"structuredContent":{"tools":[{"name":"secret"}]}}}`, ""},
		{"errors stay", `{"error":{"code":1}}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.want == "" {
				test.want = test.message
			}
			got, err := FilterLists([]byte(test.message), keep)
			if err != nil || string(got) != test.want {
				t.Errorf("got %s, %v\nwant %s", got, err, test.want)
			}
		})
	}
	t.Run("a list that is there twice is an error", func(t *testing.T) {
		if _, err := FilterLists([]byte(`{"result":{"tools":[],"tools":[{"name":"secret"}]}}`), keep); err == nil {
			t.Error("no error")
		}
	})
}
