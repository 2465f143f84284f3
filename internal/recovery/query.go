package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/itchyny/gojq"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

const (
	maxQuery   = 1000    // characters
	maxQueried = 4 << 20 // bytes of an original; decoded, it takes up to 50 times as much
	maxResults = 10_000  // results that are counted
)

// queryTime is the timeout of a query. It is a variable for tests.
var queryTime = 2 * time.Second

// A queryRun collects the results of a query.
type queryRun struct {
	limit int // limit of the result in characters

	out   strings.Builder
	chars int // in out
	shown int // results in out
	total int // number of results
	cut   int // length of the first result, if it does not fit
}

// query returns the results of a jq expression.
func (r Reader) query(ctx context.Context, a arguments, body []byte, total int) []byte {
	done := queries.wait(ctx, r.Client)
	if done == nil {
		return failure("Too many queries at once: try again, or use goal, pattern or a range.")
	}
	defer done()
	text := jsonspan.AppendText(nil, body)
	if len(text) > maxQueried {
		return failure(fmt.Sprintf("The original is too large for query: it has %d bytes, more than %d. "+
			"Use goal, pattern or a range.", len(text), maxQueried))
	}
	value, values, err := decodeJSON(string(text))
	if err != nil {
		return failure(fmt.Sprintf("The original cannot be queried, as it is not JSON (%v): "+
			"use goal, pattern or a range.", err))
	}
	q := &queryRun{limit: r.MaxChars}
	if err := q.run(ctx, a.query, value); err != nil {
		return failure(r.clip(fmt.Sprintf("query: %s. The original is %s", err, shape(value, values))))
	}
	m := meta{Total: total, Results: &q.total, Shown: &q.shown}
	if q.total == 0 {
		return success(m, r.clip(fmt.Sprintf("[no results; the original is %s]", shape(value, values))))
	}
	return success(m, q.out.String(), q.note())
}

// clip shortens a message to the limit.
func (r Reader) clip(text string) string {
	const enough = 2000
	if r.MaxChars <= 0 || r.MaxChars > enough {
		return text[:advance(text, enough)]
	}
	return text[:advance(text, r.MaxChars)]
}

// decodeJSON returns the value of a text, or the list of values if there are several. The text may
// begin with a byte order mark.
func decodeJSON(text string) (value any, values int, err error) {
	decoder := json.NewDecoder(strings.NewReader(strings.TrimPrefix(text, "\ufeff")))
	decoder.UseNumber()
	var all []any
	for {
		var v any
		if err := decoder.Decode(&v); err == io.EOF && len(all) > 0 {
			break
		} else if err != nil {
			return nil, 0, err
		}
		all = append(all, v)
	}
	if err := checkNumbers(all); err != nil {
		return nil, 0, err
	}
	if len(all) == 1 {
		return all[0], 1, nil
	}
	return all, len(all), nil
}

// run runs a query on a value.
func (q *queryRun) run(ctx context.Context, text string, value any) error {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	j := &jq{cancel: end, bytesLeft: allowance, stepsLeft: maxWork}
	code, err := j.compile(text)
	if err != nil {
		return err
	}
	results := code.RunWithContext(ctx, value)
	for q.total < maxResults {
		v, ok := results.Next()
		if !ok {
			return nil
		}
		err, failed := v.(error)
		switch {
		case !failed:
			err = q.add(v)
		case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
			err = fmt.Errorf("it takes more than %v: make it simpler, or select what you need first", queryTime)
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds a result, if it and all before it fit.
func (q *queryRun) add(v any) error {
	q.total++
	if q.shown < q.total-1 || q.cut > 0 {
		return nil
	}
	result, err := gojq.Marshal(v)
	if err != nil {
		return err
	}
	chars := utf8.RuneCount(result)
	room := chars
	if q.limit > 0 {
		room = q.limit - q.chars
	}
	switch between := min(q.shown, 1); { // a line break
	case chars+between <= room || q.limit <= 0:
		if between > 0 {
			q.out.WriteByte('\n')
		}
		q.out.Write(result)
		q.chars += chars + between
		q.shown++
	case q.shown == 0:
		q.cut = chars
		text := string(result)
		q.out.WriteString(text[:advance(text, q.limit)])
		q.shown++
	}
	return nil
}

// note says which results are shown, and how to see others.
func (q *queryRun) note() string {
	all := fmt.Sprint(q.total)
	if q.total == maxResults {
		all += " or more"
	}
	switch {
	case q.cut > 0:
		return fmt.Sprintf("[the beginning of result 1 of %s, which has %d characters; "+
			"ask for less, such as its keys, its length or a part]", all, q.cut)
	case q.shown < q.total:
		return fmt.Sprintf("[results: the first %d of %s; for those that follow, "+
			"ask for [...][%d:][] with this query in place of ...]", q.shown, all, q.shown)
	}
	return fmt.Sprintf("[results: %s]", all)
}

// shape describes a value, to help with the next query.
func shape(value any, values int) string {
	const most = 20
	switch v := value.(type) {
	case []any:
		what := fmt.Sprintf("an array of %d items", len(v))
		if values > 1 {
			what = fmt.Sprintf("%d JSON values, read as an array", values)
		}
		if len(v) > 0 {
			if first, ok := v[0].(map[string]any); ok {
				what += ", the first " + shape(first, 1)
			}
		}
		return what
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		listed := make([]string, 0, most)
		for _, key := range keys[:min(len(keys), most)] {
			listed = append(listed, shortQuote(key))
		}
		if len(keys) > most {
			listed = append(listed, "…")
		}
		return "an object with the keys " + strings.Join(listed, ", ")
	}
	return gojq.TypeOf(value)
}

var (
	// queries runs queries one at a time, because each may take up to some 400 MB for the largest
	// originals. Most take a few MB.
	queries = newFairQueue(1)

	// searches runs other expensive calls, one of each client at a time. A search may take some seconds,
	// even if its client disconnects.
	searches = newFairQueue(runtime.GOMAXPROCS(0))
)

// A fairQueue runs a few calls at a time. Only the first call of each client runs, or waits for those
// of other clients, so a client with many calls delays others by one call only.
type fairQueue struct {
	running chan struct{} // holds a value for each call that runs

	mu      sync.Mutex
	clients map[string]*clientQueue
}

type clientQueue struct {
	first chan struct{} // holds a value while a call of the client is the first one
	calls int           // waiting or running
}

// newFairQueue returns a queue that runs n calls at a time.
func newFairQueue(n int) *fairQueue {
	return &fairQueue{running: make(chan struct{}, n), clients: map[string]*clientQueue{}}
}

// wait waits for the turn of a call, and returns a function that ends it. It returns nil on
// timeout.
func (q *fairQueue) wait(ctx context.Context, client string) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, 3*queryTime)
	defer cancel()
	first := q.enter(client)
	select {
	case first <- struct{}{}:
	case <-ctx.Done():
		q.leave(client)
		return nil
	}
	select {
	case q.running <- struct{}{}:
	case <-ctx.Done():
		<-first
		q.leave(client)
		return nil
	}
	return func() {
		<-q.running
		<-first
		q.leave(client)
	}
}

// enter adds a call of a client. It returns the channel that its first call holds.
func (q *fairQueue) enter(client string) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.clients[client]
	if c == nil {
		c = &clientQueue{first: make(chan struct{}, 1)}
		q.clients[client] = c
	}
	c.calls++
	return c.first
}

// leave removes a call of a client.
func (q *fairQueue) leave(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.clients[client]
	if c.calls--; c.calls == 0 {
		delete(q.clients, client)
	}
}
