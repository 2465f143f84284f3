package jsonrpc

import (
	"strings"
	"testing"
)

func TestOutline(t *testing.T) {
	long := `"` + strings.Repeat("x", 1000) + `"`
	tests := []struct {
		name, text string
		whole      bool
		answer     bool // response to the request with id 1
		code       int
	}{
		{"a result", `{"jsonrpc":"2.0","id":1,"result":{"error":{"code":5},"method":"x","id":2}}`, true, true, 0},
		{"a result before the id", ` {"result":[[{}],` + long + `],"jsonrpc":"2.0","id":1} `, true, true, 0},
		{"a result that is a number", `{"result":5,"id":1}`, true, true, 0},
		{"an error", `{"id":1,"error":{"data":{"code":7},"code":-32050,"message":` + long + `}}`, true, true, -32050},
		{"a null error and a result", `{"id":1,"error":null,"result":{}}`, true, true, 0},
		{"a code outside of the error", `{"id":1,"error":{"code":-1},"result":{},"code":7}`, true, true, -1},
		{"keys with escapes", `{"\u0069d":1,"err\u006fr":{"c\u006fde":-1}}`, true, true, -1},
		{"an id of another type", `{"id":"1","result":{}}`, true, false, 0},
		{"an id spelled in another way", `{"id":1.0e0,"result":{}}`, true, true, 0},
		{"an id that is too long to compare", `{"id":` + long + `,"result":{}}`, true, true, 0},
		{"no id", `{"result":{}}`, true, true, 0},
		{"a request", `{"id":1,"method":"x","params":{"result":1}}`, true, false, 0},
		{"a request with an error", `{"id":1,"method":"x","error":{"code":5}}`, true, false, 0},
		{"neither result nor error", `{"id":1}`, true, false, 0},
		{"an array", `[{"id":1,"result":1}]`, true, false, 0},
		{"a number", `5`, true, false, 0},
		{"a text", `"result"`, true, false, 0},
		{"an incomplete response", `{"id":1,"result":{"a`, false, true, 0},
		{"invalid JSON", `<p>`, false, false, 0},
		{"text after the JSON", `{"id":1,"result":1}x`, false, true, 0},
		{"an empty text", ``, false, false, 0},
	}
	o := NewOutline()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 7, 1 << 20} {
				o.Reset()
				for rest := tt.text; rest != ""; {
					n := min(size, len(rest))
					_, _ = o.Write([]byte(rest[:n]))
					rest = rest[n:]
				}
				whole := o.End()
				code, failed := o.ErrorCode()
				if !failed {
					code = 0
				}
				if whole != tt.whole || o.IsResponseTo([]byte("1")) != tt.answer || code != tt.code {
					t.Errorf("in pieces of %d: whole %t, answer %t, code %d", size, whole, o.IsResponseTo([]byte("1")), code)
				}
			}
		})
	}
}

func TestSameID(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{`1`, `1`, true}, {`1`, `1.0`, true}, {`100`, `1e2`, true}, {`1`, `2`, false}, {`1`, `"1"`, false}, {`"1"`, `1`,
			false},
		{`"é"`, `"\u00e9"`, true}, {`"\u00e9"`, `"é"`, true}, {`"a"`, `"b"`, false}, {`null`, `null`, true}, {`null`, `0`,
			false}, {`9007199254740993`, `9007199254740992`, false}, {`1`, ``, false},
	} {
		if got := SameID([]byte(tt.a), []byte(tt.b)); got != tt.want {
			t.Errorf("%s and %s: %t", tt.a, tt.b, got)
		}
	}
}
