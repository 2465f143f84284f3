package rerank

import (
	"bytes"
	"encoding/json"
)

// A Wire is a form of requests.
type Wire int

const (
	// Queries is {"queries":["<goal>"],"documents":[…]}, as DeepInfra has it.
	Queries Wire = iota

	// Query is {"query":"<goal>","documents":[…],"model":"<model>"}, as Cohere, Jina
	// and the servers that speak like them have it.
	Query
)

// request returns the body of a request. Nothing in it is escaped that JSON does not
// want escaped.
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
