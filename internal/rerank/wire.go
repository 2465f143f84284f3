package rerank

import (
	"bytes"
	"encoding/json"
)

// A Wire is a format of requests.
type Wire int

const (
	// Queries is {"queries":["<goal>"],"documents":[…]}, DeepInfra's format.
	Queries Wire = iota

	// Query is {"query":"<goal>","documents":[…],"model":"<model>"}, the format of Cohere, Jina and
	// compatible servers.
	Query
)

// request returns the body of a request, without HTML escapes.
func (w Wire) request(model, goal string, documents []string) ([]byte, error) {
	var body any = struct {
		Queries   []string `json:"queries"`
		Documents []string `json:"documents"`
	}{[]string{goal}, documents}
	if w == Query {
		body = struct {
			Query     string   `json:"query"`
			Documents []string `json:"documents"`
			Model     string   `json:"model,omitempty"`
		}{goal, documents, model}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(body)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
