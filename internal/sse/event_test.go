package sse

import "testing"

func TestAppendEvent(t *testing.T) {
	for message, want := range map[string]string{
		`{"id":1}`:                    "event: message\ndata: {\"id\":1}\n\n",
		"{\r\n\t\"id\": \"a\\nb\"\n}": "event: message\ndata: {  \t\"id\": \"a\\nb\" }\n\n",
		"\n[1,\r2]\r\n":               "event: message\ndata:  [1, 2]  \n\n",
	} {
		if got := string(AppendEvent([]byte{}, []byte(message))); got != want {
			t.Errorf("%q is %q, want %q", message, got, want)
		}
	}
}
