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

// Codes of errors that only the pruner has.
const (
	codeUnavailable = -32002
	codeNotFound    = -32004
	codeRange       = -32005
)

// recovery is the arguments of recover_text.
type recovery struct {
	id       string
	ranges   []byte // as they were given
	parsed   []prune.Range
	literals [][]byte // of each range
	numbered bool
}

// parseRecovery reads the arguments of recover_text. Line numbers are judged later,
// when there is a text that they can be those of: one that is no whole number is none
// of any.
func parseRecovery(arguments *object) (*recovery, error) {
	arguments.read()
	r := &recovery{}
	r.id, _ = arguments.text("prune_id")
	r.ranges = arguments.raw("ranges", "a list", jsonspan.BeginArray)
	r.numbered = arguments.boolean("include_line_numbers")
	for v := range jsonspan.Elements(r.ranges) {
		name, literal := fmt.Sprintf("ranges[%d]", len(r.parsed)), r.ranges[v.Start:v.End]
		item := &object{data: literal, path: name + ".", faults: arguments.faults}
		if v.Kind != jsonspan.BeginObject {
			arguments.wrong(name, "it is not an object")
			item.data = nil
		}
		item.read()
		lines := prune.Range{Start: item.line("start_line"), End: item.line("end_line")}
		_ = item.end() // which arguments returns, too
		r.parsed, r.literals = append(r.parsed, lines), append(r.literals, literal)
	}
	if err := arguments.end(); err != nil {
		return nil, err
	}
	return r, nil
}

// line returns a line number, 0 for what is none.
func (o *object) line(name string) int {
	v, ok := o.members[name]
	if !ok {
		o.wrong(name, missing)
		return 0
	}
	delete(o.members, name)
	if v.Kind != jsonspan.Number {
		return 0
	}
	n, _ := whole(string(o.data[v.Start:v.End]))
	return min(n, math.MaxInt32)
}

// recover returns lines of an original.
func (x *request) recover(arguments *object) reply {
	r, err := parseRecovery(arguments)
	if err != nil {
		return x.wrong(err.Error())
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
	if i := r.outside(len(lines)); i >= 0 {
		return x.failWith(codeRange, "invalid_range", struct {
			Symbol  string          `json:"code"`
			PruneID string          `json:"prune_id"`
			Range   json.RawMessage `json:"range"`
			Index   int             `json:"index"`
			Lines   int             `json:"lines"`
		}{"invalid_range", r.id, r.literals[i], i, len(lines)})
	}
	if r.tooMuch(lines) {
		return x.wrong("ranges: they are too much together; ask for fewer lines at a time")
	}
	raw, err := prune.Recover(text, r.parsed, r.numbered)
	if err != nil {
		return x.wrong("ranges: " + err.Error())
	}
	type metadata struct {
		PruneID   string          `json:"prune_id"`
		Ranges    json.RawMessage `json:"ranges"`
		Numbering string          `json:"line_numbering"`
	}
	return x.tell(jsonrpc.Encode(struct {
		RawText  string   `json:"raw_text"`
		Metadata metadata `json:"metadata"`
	}{raw, metadata{r.id, r.ranges, "original"}}))
}

// original returns what is kept for the client under an id or, if it is not to be had, the error that says so.
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

// outside returns which range is none of a text of so many lines, or -1.
func (r *recovery) outside(lines int) int {
	for i, lr := range r.parsed {
		if lr.Start < 1 || lr.End < lr.Start || lr.Start > lines {
			return i
		}
	}
	return -1
}

// maxRecovered is how many bytes may be recovered at once, unless the text itself has
// more: ranges may repeat, and a short request could ask for gigabytes.
const maxRecovered = 8 << 20

func (r *recovery) tooMuch(lines []string) bool {
	perLine := 1 // its end
	if r.numbered {
		perLine += len("1234567│ ")
	}
	upTo := make([]int, len(lines)+1) // how much the lines before each take
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
