// Package rerank asks a reranker, a model behind HTTP, how relevant each line of a text is to a
// goal.
//
// [Sample] selects the lines to send (sample.go), [Wire] is the format of requests (wire.go), and
// [Client] sends them once (client.go). Responses come in many shapes (answer.go).
//
// The key goes only to the endpoint: redirects are not followed, and errors quote neither a
// response nor more of the endpoint's URL than its host.
package rerank
