// Package rerank asks a reranker, a model behind HTTP, how much each line of a text
// bears on a goal.
//
// [Sample] says which lines are sent (sample.go), [Wire] in what form (wire.go),
// [Client] sends them once (client.go). Answers come in many shapes (answer.go).
//
// A key goes to the endpoint and nowhere else: redirects are not followed, and no
// error quotes an answer, or of the endpoint's URL more than its host.
package rerank
