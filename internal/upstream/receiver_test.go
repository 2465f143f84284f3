package upstream

import "testing"

// Comments and events without data only keep a stream alive.
func TestIsKeepAlive(t *testing.T) {
	for piece, empty := range map[string]bool{
		"":                               false,
		"\n\n":                           false,
		":\n\n":                          true,
		": ping\r\n\r\n":                 true,
		": ping - 2026-11-16 10:00:00":   true,
		"id: 1\nretry: 500\ndata:\n\n":   true,
		"id: 1\r\ndata: \t \r\n\r\n":     true,
		"event: message\nid: 7\n":        true,
		"data: {}\n\n":                   false,
		"\n\nid: 1\ndata: {\"a\":1}\n\n": false,
		": ping\n\ndata: 1\n\n":          false,
		"data:\rdata: 1\r\r":             false,
		"data":                           false,
		"id":                             false,
		"events: 1\n":                    false,
		`{"jsonrpc":"2.0","result":{}}`:  false,
		`id","result":{"a":":`:           false,
	} {
		if isKeepAlive([]byte(piece)) != empty {
			t.Errorf("%q: empty %v", piece, !empty)
		}
	}
}
