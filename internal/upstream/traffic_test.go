package upstream

import "testing"

func TestResultIn(t *testing.T) {
	for _, test := range []struct {
		answer, want string
		whole        bool
	}{
		{`{"jsonrpc":"2.0","id":1,"result":{"a":[1]}}`, `{"a":[1]}`, true},
		{` { "result" : 1 , "id" : 1 } `, `1`, true},
		{`{"error":null,"result":{}}`, `{}`, true},
		{`{"id":1,"error":{"code":1}}`, `{"code":1}`, true},
		{`{"id":1,"result":{"a":`, `{"a":`, false},
		{`{"id":1, "error" : {"code"`, `{"code"`, false},
		{`{"id":1,"res`, ``, false},
		{`{"id":1}`, ``, false},
		{`[{"result":1}]`, ``, false},
		{`<html>`, ``, false},
		{``, ``, false},
	} {
		if got, whole := resultIn([]byte(test.answer)); string(got) != test.want || whole != test.whole {
			t.Errorf("%s: got %s, %t", test.answer, got, whole)
		}
	}
}
