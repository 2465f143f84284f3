package mcp

import (
	"encoding/base64"
	"math"
	"testing"
)

func TestCursor(t *testing.T) { // A19
	if got := Cursor(2); got != "eyJvZmZzZXQiOjJ9" {
		t.Errorf("got %s", got)
	}
	for _, offset := range []int{0, 1, 2, 10, 12345, math.MaxInt} {
		if got, err := ParseCursor(Cursor(offset)); got != offset || err != nil {
			t.Errorf("%d became %d, %v", offset, got, err)
		}
	}
}

func TestParseCursor(t *testing.T) { // A19, A20, R20
	encode := base64.RawURLEncoding.EncodeToString
	// The base64 of this text has + or -, / or _, and padding.
	const odd = `{"offset":7,"x":"~~~???>>>"}`
	tests := []struct {
		name   string
		cursor string
		want   int // -1: an error
	}{
		{"the first offset", encode([]byte(`{"offset":0}`)), 0},
		{"white space", encode([]byte(` { "offset" : 3 } `)), 3},
		{"URL-safe", base64.RawURLEncoding.EncodeToString([]byte(odd)), 7},
		{"URL-safe and padded", base64.URLEncoding.EncodeToString([]byte(odd)), 7},
		{"standard", base64.RawStdEncoding.EncodeToString([]byte(odd)), 7},
		{"standard and padded", base64.StdEncoding.EncodeToString([]byte(odd)), 7},

		{"empty", "", -1},
		{"not base64", "!", -1},
		{"a line break", Cursor(2) + "\n", -1},
		{"a number that is not encoded", "12", -1},
		{"not JSON", encode([]byte(`offset`)), -1},
		{"not an object", encode([]byte(`2`)), -1},
		{"an array", encode([]byte(`[2]`)), -1},
		{"null", encode([]byte(`null`)), -1},
		{"no offset", encode([]byte(`{}`)), -1},
		{"a nested offset", encode([]byte(`{"x":{"offset":2}}`)), -1},
		{"a fraction", encode([]byte(`{"offset":1.5}`)), -1},
		{"an exponent", encode([]byte(`{"offset":1e2}`)), -1},
		{"a string", encode([]byte(`{"offset":"2"}`)), -1},
		{"an offset that is null", encode([]byte(`{"offset":null}`)), -1},
		{"an object", encode([]byte(`{"offset":{}}`)), -1},
		{"a negative offset", encode([]byte(`{"offset":-1}`)), -1},
		{"more than the maximum int", encode([]byte(`{"offset":9223372036854775808}`)), -1},
		{"many digits", encode([]byte(`{"offset":100000000000000000000000000}`)), -1},
		{"a leading zero", encode([]byte(`{"offset":02}`)), -1},
		{"two offsets", encode([]byte(`{"offset":1,"offset":2}`)), -1},
		{"text after it", encode([]byte(`{"offset":1}{"offset":1}`)), -1},
		{"truncated", encode([]byte(`{"offset":1`)), -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseCursor(tt.cursor)
			if want := max(tt.want, 0); got != want || (err != nil) != (tt.want < 0) {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}
