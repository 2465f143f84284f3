package mcp

import (
	"reflect"
	"strings"
	"testing"
)

// A69: a template is expanded with a value and the other arguments that are known.
func TestCompletionExpand(t *testing.T) {
	for _, tt := range []struct {
		template, argument, known, value string
		want                             []string // unescaped and escaped
		reached                          bool
	}{
		{"file:///{path}", "path", "", "secret/key", []string{"file:///secret/key", "file:///secret%2Fkey"}, true},
		{"file:///{+path}", "path", "", "a b", []string{"file:///a b", "file:///a%20b"}, true},
		{"file://{/path*}", "path", "", "a", []string{"file:///a", "file:///a"}, true},
		{"file:///{dir}/{name}", "dir", "", "secret", []string{"file:///secret/{x}", "file:///secret/{x}"}, true},
		{"file:///{dir}/{name}", "name", "", "key", []string{"file:///{x}", "file:///{x}"}, false},
		{"file:///{dir}/{name}", "name", `"dir":"se/cret"`, "key", []string{"file:///se/cret/key", "file:///se%2Fcret/key"},
			true},
		{"file:///{dir}/{name}", "name", `"dir":"a","name":"b"`, "key", []string{"file:///a/key", "file:///a/key"}, true},
		{"file:///{dir,name}", "name", `"dir":"a"`, "key", []string{"file:///a,key", "file:///a,key"}, true},
		{"file:///{dir,name}", "name", "", "key", []string{"file:///{x}", "file:///{x}"}, false},
		{"file:///{name:3}", "name", "", "key", []string{"file:///{x}", "file:///{x}"}, false},
		{"file:///a{.name}{;v}{?q}{&r}{#f}", "name", `"v":"1","q":"2","r":"3","f":"4"`, "b",
			[]string{"file:///a.b;v=1?q=2&r=3#4", "file:///a.b;v=1?q=2&r=3#4"}, true},
		{"file:///{name}", "other", "", "b", []string{"file:///{x}", "file:///{x}"}, false},
		{"file:///a", "other", "", "b", []string{"file:///a", "file:///a"}, false},
		{"file:///{name", "name", "", "b", []string{"file:///b", "file:///b"}, true},
		{"file:///{name}", "name", "", "{x}%", []string{"file:///%257Bx%257D%25", "file:///%7Bx%7D%25"}, true},
		{"file:///{name}", "name", "", "%73", []string{"file:///%73", "file:///%2573"}, true},
	} {
		c, err := CompletionOf([]byte(`{"params":{"ref":{"uri":"` + tt.template + `"},"argument":{"name":"` + tt.argument +
			`","value":""},"context":{"arguments":{` + tt.known + `}}}}`))
		if err != nil {
			t.Errorf("%s: %v", tt.template, err)
		}
		if got, reached := c.Expand(tt.value); !reflect.DeepEqual(got, tt.want) || reached != tt.reached {
			t.Errorf("%s with %s: %q, reached %t", tt.template, tt.value, got, reached)
		}
	}
	for _, request := range []string{
		``, `{}`, `{"params":{"ref":{"uri":1}}}`, `{"params":{"ref":{"uri":"a:{b}","uri":"c"}}}`,
		`{"params":{"ref":{"uri":"a:{b}","URI":"c"}}}`,
		`{"params":{"ref":{"uri":"a:{b}"},"argument":{"name":1}}}`,
		`{"params":{"ref":{"uri":"a:{b}"},"context":{"arguments":{"x":1}}}}`,
		`{"params":{"ref":{"uri":"a:` + strings.Repeat("{b}", 8<<10) + `"}}}`,
	} {
		if c, err := CompletionOf([]byte(request)); err == nil {
			t.Errorf("%.100s: got %+v", request, c)
		}
	}
}

// Some values are removed, and everything else stays unchanged.
func TestFilterCompletion(t *testing.T) {
	keep := func(value string) bool { return !strings.HasPrefix(value, "secret") }
	for _, tt := range []struct{ name, message, want string }{
		{"some", `{"id":1,"result":{"completion":{"values":["a", "secret\/b" ,"c"], "total":10,"hasMore":true},"x":1.0}}`,
			`{"id":1,"result":{"completion":{"values":["a","c"], "total":9,"hasMore":true},"x":1.0}}`},
		{"escaped", `{"result":{"completion":{"total":1,"values":["\u0073ecret"]}}}`,
			`{"result":{"completion":{"total":0,"values":[]}}}`},
		{"a total that is too small", `{"result":{"completion":{"values":["a","secret","c"],"total":1}}}`,
			`{"result":{"completion":{"values":["a","c"],"total":2}}}`},
		{"a total that is not a number", `{"result":{"completion":{"values":["secret"],"total":null}}}`,
			`{"result":{"completion":{"values":[],"total":null}}}`},
		{"no total", `{"result":{"completion":{"values":["secret"]}}}`, `{"result":{"completion":{"values":[]}}}`},
		{"nothing to remove", `{"result":{"completion":{"values":[ "a" ],"total":1}}}`,
			`{"result":{"completion":{"values":[ "a" ],"total":1}}}`},
		{"values that are not strings", `{"result":{"completion":{"values":[{"a":"secret"},"a"]}}}`,
			`{"result":{"completion":{"values":["a"]}}}`},
		{"an error", `{"error":{"code":1,"message":"secret"}}`, `{"error":{"code":1,"message":"secret"}}`},
		{"no list", `{"result":{"completion":{"values":{"a":"a"}}}}`, ""},
		{"two lists", `{"result":{"completion":{"values":[],"values":["secret"]}}}`, ""},
		{"a list in another case", `{"result":{"completion":{"Values":["secret"]}}}`, ""},
		{"not JSON", `{"result":`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := FilterCompletion([]byte(tt.message), keep)
			if (err != nil) != (tt.want == "") || err == nil && string(got) != tt.want {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}
