package mcppruner

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
)

// Error codes that only the pruner uses.
const (
	codeUnavailable = -32002
	codeNotFound    = -32004
	codeRange       = -32005
)

// A recovery holds the arguments of recover_text.
type recovery struct {
	id          string
	ranges      []byte // as sent
	parsed      []prune.Range
	literals    [][]byte // JSON of each range
	withNumbers bool
}

// parseRecovery reads the arguments of recover_text. It does not check line numbers against the
// text. A line number that is not a whole number is read as 0, which no text has.
func parseRecovery(arguments *object) (*recovery, error) {
	arguments.read()
	r := &recovery{}
	r.id, _ = arguments.text("prune_id")
	r.ranges = arguments.raw("ranges", "a list", jsonspan.BeginArray)
	r.withNumbers = arguments.boolean("include_line_numbers")
	for v := range jsonspan.Elements(r.ranges) {
		name, literal := fmt.Sprintf("ranges[%d]", len(r.parsed)), r.ranges[v.Start:v.End]
		item := &object{data: literal, path: name + ".", faults: arguments.faults}
		if v.Kind != jsonspan.BeginObject {
			arguments.invalid(name, "must be an object")
			item.data = nil
		}
		item.read()
		lines := prune.Range{Start: item.lineNumber("start_line"), End: item.lineNumber("end_line")}
		_ = item.end() // arguments.end returns its errors too
		r.parsed, r.literals = append(r.parsed, lines), append(r.literals, literal)
	}
	if err := arguments.end(); err != nil {
		return nil, err
	}
	return r, nil
}

// lineNumber returns a line number, or 0 if the member is not a whole number.
func (o *object) lineNumber(name string) int {
	v, ok := o.members[name]
	if !ok {
		o.invalid(name, missing)
		return 0
	}
	delete(o.members, name)
	if v.Kind != jsonspan.Number {
		return 0
	}
	n, _ := parseWhole(string(o.data[v.Start:v.End]))
	return min(n, math.MaxInt32)
}

// recover handles recover_text.
func (x *request) recover(arguments *object) reply {
	r, err := parseRecovery(arguments)
	if err != nil {
		return x.invalidParams(err.Error())
	}
	original, symbol, code := x.original(r.id)
	if symbol != "" {
		return x.failWith(code, symbol, struct {
			Symbol  string `json:"code"`
			PruneID string `json:"prune_id"`
		}{symbol, mcp.Shortened(r.id)})
	}
	text := string(original)
	lines := prune.Lines(text)
	if i := r.firstInvalidRange(len(lines)); i >= 0 {
		return x.failWith(codeRange, "invalid_range", struct {
			Symbol  string          `json:"code"`
			PruneID string          `json:"prune_id"`
			Range   json.RawMessage `json:"range"`
			Index   int             `json:"index"`
			Lines   int             `json:"lines"`
		}{"invalid_range", r.id, r.literals[i], i, len(lines)})
	}
	if r.exceedsLimit(lines) {
		return x.invalidParams("ranges: too much text; ask for fewer lines at a time")
	}
	raw, err := prune.Recover(text, r.parsed, r.withNumbers)
	if err != nil {
		return x.invalidParams("ranges: " + err.Error())
	}
	type metadata struct {
		PruneID   string          `json:"prune_id"`
		Ranges    json.RawMessage `json:"ranges"`
		Numbering string          `json:"line_numbering"`
	}
	return x.toolResult(jsonrpc.Encode(struct {
		RawText  string   `json:"raw_text"`
		Metadata metadata `json:"metadata"`
	}{raw, metadata{r.id, r.ranges, "original"}}))
}

// original returns the client's original with this id, or the symbol and code of an error.
func (x *request) original(id string) (original []byte, symbol string, code int) {
	place := storepool.Place{Store: x.handler.originals, Owner: clientrequest.Identity(x.r)}
	original, ok := place.Store.Get(place.Owner, id)
	if ok {
		return original, "", 0
	}
	if err := storepool.Fetch(x.r.Context(), id, place); err != nil {
		return nil, "store_unavailable", codeUnavailable
	}
	if original, ok = place.Store.Get(place.Owner, id); !ok {
		return nil, "prune_id_not_found", codeNotFound
	}
	return original, "", 0
}

// firstInvalidRange returns the index of the first range that is not in a text with this number of
// lines, or -1.
func (r *recovery) firstInvalidRange(lines int) int {
	for i, lr := range r.parsed {
		if lr.Start < 1 || lr.End < lr.Start || lr.Start > lines {
			return i
		}
	}
	return -1
}

// maxRecovered bounds the bytes of one result, unless the text itself is larger. Ranges may repeat,
// so a short request could otherwise ask for gigabytes.
const maxRecovered = 8 << 20

// exceedsLimit reports whether the result would be too large.
func (r *recovery) exceedsLimit(lines []string) bool {
	perLine := 1 // newline
	if r.withNumbers {
		perLine += len("1234567│ ")
	}
	upTo := make([]int, len(lines)+1) // bytes before each line
	for i, line := range lines {
		upTo[i+1] = upTo[i] + len(line) + perLine
	}
	left := max(maxRecovered, upTo[len(lines)])
	for _, lr := range r.parsed {
		if left -= upTo[min(lr.End, len(lines))] - upTo[lr.Start-1]; left < 0 {
			return true
		}
	}
	return false
}
