package mcptest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Reranker is a fake reranker: a model that scores the relevance of documents to a query. The path
// selects its behavior:
//
//	/ok                   {"scores":[…]}, 0.9 for documents with "keep" in them and
//	                      0.1 for others, as everywhere below
//	/desc                 the same with scores that fall from document to document
//	/list                 the bare list
//	/deep                 {"data":{"scores":[…]}}
//	/short                scores for the first half of the documents only
//	/idx                  {"results":[{"index":…,"score":…},…]}, the best first
//	/cohere               the same with relevance_score, for a request with query
//	                      in place of queries
//	/401, /429, /500 …    that status; those of redirection point to /ok
//	/redirect             a redirection to /ok that asks to repeat the request
//	/text                 text that is not JSON
//	/empty                {"scores":[]}
//	/nan                  {"scores":[NaN,…]}, as Python would write it
//	/huge                 scores, and 16 MiB of something else
//	/reset                the first half of the scores, then a TCP reset
//	/slowbody             the first half of the scores, then nothing
//	/hang                 nothing
//
// A request that is not a valid reranker request gets status 422, another path 404. The last two
// wait until the client disconnects or the server is closed.
//
// Last, Count and Requests return the received requests; so do /__last and /__count for other
// processes, as with [Stub].
//
// The zero value is ready for use. Like Stub it reads bodies of any size, so it must not be
// reachable from other machines.
type Reranker struct{ recorder }

// ServeHTTP responds as the path selects.
func (rr *Reranker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rr.serveRecorded(w, r) {
		return
	}
	body := rr.record(r, maxRecorded)
	name := strings.TrimPrefix(r.URL.Path, "/")
	if status, err := strconv.Atoi(name); err == nil && status >= 200 && status <= 599 {
		sendStatus(w, status)
		return
	}
	documents, ok := readDocuments(body, name == "cohere")
	if !ok {
		sendStatus(w, http.StatusUnprocessableEntity)
		return
	}
	rr.respond(w, r, name, documents)
}

// sendStatus responds with a status.
func sendStatus(w http.ResponseWriter, status int) {
	if status/100 == 3 {
		w.Header().Set("Location", "/ok")
	}
	if status == http.StatusNoContent || status == http.StatusNotModified {
		w.WriteHeader(status)
		return
	}
	writeJSON(w, status, encode(map[string]string{"detail": http.StatusText(status)}))
}

// readDocuments returns the documents of a request with one query: in query if single, else in
// queries.
func readDocuments(body []byte, single bool) (documents []string, ok bool) {
	var request struct {
		Query     *string  `json:"query"`
		Queries   []string `json:"queries"`
		Documents []string `json:"documents"`
	}
	if json.Unmarshal(body, &request) != nil || len(request.Documents) == 0 {
		return nil, false
	}
	if single {
		return request.Documents, request.Query != nil
	}
	return request.Documents, len(request.Queries) == 1
}

// respond responds to a request for scores.
func (rr *Reranker) respond(w http.ResponseWriter, r *http.Request, name string, documents []string) {
	list := encode(keepScores(documents))
	scores := fmt.Appendf(nil, `{"scores":%s}`, list)
	switch name {
	case "ok":
		writeJSON(w, http.StatusOK, scores)
	case "desc":
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"scores":%s}`, encode(descendingScores(len(documents)))))
	case "list":
		writeJSON(w, http.StatusOK, list)
	case "deep":
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"data":%s}`, scores))
	case "short":
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"scores":%s}`, encode(keepScores(documents[:(len(documents)+1)/2]))))
	case "idx":
		writeJSON(w, http.StatusOK, ranked(documents, "score"))
	case "cohere":
		writeJSON(w, http.StatusOK, ranked(documents, "relevance_score"))
	case "redirect":
		sendStatus(w, http.StatusTemporaryRedirect)
	case "text":
		w.Header().Set("Content-Type", "text/plain")
		_, _ = fmt.Fprint(w, "the model is loading")
	case "empty":
		writeJSON(w, http.StatusOK, []byte(`{"scores":[]}`))
	case "nan":
		writeJSON(w, http.StatusOK, []byte(`{"scores":[NaN`+strings.Repeat(",NaN", len(documents)-1)+`]}`))
	case "huge":
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"scores":%s,"more":"%s"}`, list, strings.Repeat("A", 16<<20)))
	case "reset":
		breakOff(w, scores)
	case "slowbody":
		w.Header().Set("Content-Length", strconv.Itoa(len(scores)))
		_, _ = w.Write(scores[:len(scores)/2])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // the body is shorter than its length
	case "hang":
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // returning would send a response
	default:
		sendStatus(w, http.StatusNotFound)
	}
}

// keepScores scores documents by whether they contain "keep".
func keepScores(documents []string) []float64 {
	scores := make([]float64, len(documents))
	for i, document := range documents {
		scores[i] = 0.1
		if strings.Contains(document, "keep") {
			scores[i] = 0.9
		}
	}
	return scores
}

// descendingScores returns n scores between 1 and 0, each less than the one before.
func descendingScores(n int) []float64 {
	scores := make([]float64, n)
	for i := range scores {
		scores[i] = 1 - float64(i)/float64(n)
	}
	return scores
}

// ranked returns a response with the documents sorted by score.
func ranked(documents []string, member string) []byte {
	scores := keepScores(documents)
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	items := make([]string, len(order))
	for i, at := range order {
		items[i] = fmt.Sprintf(`{"index":%d,%q:%g}`, at, member, scores[at])
	}
	return []byte(`{"results":[` + strings.Join(items, ",") + `]}`)
}

// breakOff sends half of a body and resets the connection.
func breakOff(w http.ResponseWriter, body []byte) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2 has no connection to reset
	}
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body[:len(body)/2])
	abort(conn)
}

// Interface guard
var _ http.Handler = (*Reranker)(nil)
