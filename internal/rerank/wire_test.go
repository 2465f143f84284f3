package rerank

import "testing"

func TestRequests(t *testing.T) { // W1
	tests := []struct {
		name        string
		wire        Wire
		model, goal string
		documents   []string
		want        string
	}{
		{"queries", Queries, "", "find x", []string{"a", "b"}, `{"queries":["find x"],"documents":["a","b"]}`},
		{"queries have no model", Queries, "m", "", []string{"a"}, `{"queries":[""],"documents":["a"]}`},
		{"markup is not escaped", Queries, "", "<a> & b", []string{"if a < b && c > d {"},
			`{"queries":["<a> & b"],"documents":["if a < b && c > d {"]}`},
		{"quotes, tabs and characters beyond ASCII", Queries, "", "\"é\"", []string{"\tx\\", "", "😀"},
			`{"queries":["\"é\""],"documents":["\tx\\","","😀"]}`},
		{"a query", Query, "", "q", []string{"a"}, `{"query":"q","documents":["a"]}`},
		{"a query with a model", Query, "BAAI/bge-reranker-v2-m3", "<q>", []string{"a", "b"},
			`{"query":"<q>","documents":["a","b"],"model":"BAAI/bge-reranker-v2-m3"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.wire.request(tt.model, tt.goal, tt.documents)
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v\nwant %s", got, err, tt.want)
			}
		})
	}
}
