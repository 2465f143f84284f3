package mcppruner

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
)

// toolList contains the descriptors of all tools for tools/list, as JSON.
var toolList = []byte(pruneTool + "," + recoverTool + "," + healthTool)

const pruneTool = `{"name":"prune_text",` +
	`"title":"Prune a text for a goal",` +
	`"description":"Shortens a long text (code, logs or docs) to the lines that matter for a goal. It does not ` +
	`summarise or reword: each line is kept to the byte and in order, or left out. ` +
	`Use it on files, logs and tool output of more than some 60 lines, before you read or quote them; short texts ` +
	`gain nothing.\n` +
	`A marker replaces lines that are left out, such as ⟦PRUNÉ: prune_id=prn_4kXbZ0aQe7 lignes 120-154 (35) raison=hors ` +
	`focus⟧: lines 120 to 154 of the original, 35 of them, and why. If you need them after all, call recover_text ` +
	`with that prune_id and those lines.\n` +
	`- goal_hint: what you are looking for, in words that occur in the text if you know them, such as names of ` +
	`functions and errors. Lines that contain them are all kept if they are few, and preferred if they are many.\n` +
	`- source_type: logs keeps errors. As long as they are few, code also keeps imports and definitions, logs the ` +
	`lines around errors, docs headings.\n` +
	`- options.max_prune_ratio: how much may be left out at most, 0.5 to 0.9.\n` +
	`- options.min_keep_lines: how many lines are kept at least, such as 20.\n` +
	`- options.timeout_ms: such as 1500. If pruning takes longer, the text is returned unchanged.\n` +
	`- options.annotate_lines: true puts its number in front of each line, as 12│ …; use it if you need line numbers ` +
	`later.\n` +
	`- options.include_markers: true, unless the text must not contain markers.\n` +
	`Warnings say, for example, why the text is unchanged or was pruned without the backend. A block between ` +
	`lines ⟦NO_PRUNE_BEGIN⟧ and ⟦NO_PRUNE_END⟧ is always kept.",` +
	`"inputSchema":{"type":"object","properties":{` +
	`"text":{"type":"string"},` +
	`"goal_hint":{"type":"string"},` +
	`"source_type":{"type":"string","enum":["code","logs","docs"]},` +
	`"options":{"type":"object","properties":{` +
	`"max_prune_ratio":{"type":"number","minimum":0,"maximum":1},` +
	`"min_keep_lines":{"type":"integer","minimum":0},` +
	`"timeout_ms":{"type":"integer","minimum":1},` +
	`"annotate_lines":{"type":"boolean"},` +
	`"include_markers":{"type":"boolean"}},` +
	`"required":["max_prune_ratio","min_keep_lines","timeout_ms","annotate_lines","include_markers"],` +
	`"additionalProperties":false}},` +
	`"required":["text","goal_hint","source_type","options"],"additionalProperties":false},` +
	`"outputSchema":{"type":"object","properties":{` +
	`"prune_id":{"type":"string","description":"Argument of recover_text."},` +
	`"pruned_text":{"type":"string"},` +
	`"annotations":{"type":"array","description":"The blocks of lines that were left out, in ` +
	`order.","items":{"type":"object","properties":{` +
	`"kind":{"type":"string"},` +
	`"original_start_line":{"type":"integer"},` +
	`"original_end_line":{"type":"integer","description":"Inclusive."},` +
	`"pruned_line_count":{"type":"integer"},` +
	`"reason":{"type":"string"},` +
	`"marker":{"type":"string"}},` +
	`"required":["kind","original_start_line","original_end_line","pruned_line_count","reason","marker"]}},` +
	`"stats":{"type":"object","properties":{` +
	`"original_lines":{"type":"integer"},` +
	`"kept_lines":{"type":"integer"},` +
	`"pruned_lines":{"type":"integer"},` +
	`"pruned_ratio":{"type":"number"},` +
	`"tokens_est_before":{"type":"integer"},` +
	`"tokens_est_after":{"type":"integer"},` +
	`"tokens_saved_est":{"type":"integer"},` +
	`"cost_estimated_usd":{"type":"number"},` +
	`"elapsed_ms":{"type":"integer"},` +
	`"used_fallback":{"type":"boolean"},` +
	`"backend":{"type":"string"}},` +
	`"required":["original_lines","kept_lines","pruned_lines","pruned_ratio","tokens_est_before","tokens_est_after",` +
	`"elapsed_ms","used_fallback","backend"]},` +
	`"warnings":{"type":"array","items":{"type":"string"}}},` +
	`"required":["prune_id","pruned_text","annotations","stats","warnings"]},` +
	`"annotations":{"title":"Prune a text for a goal","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true}}`

const recoverTool = `{"name":"recover_text",` +
	`"title":"Recover pruned lines",` +
	`"description":"Returns lines of the original of a text that prune_text has shortened, whether they were kept or ` +
	`left out. ` +
	`The markers contain prune_id and the line numbers, such as ⟦PRUNÉ: prune_id=prn_4kXbZ0aQe7 lignes 120-154 (35) ` +
	`raison=…⟧. Ask for the lines you need, not for all of them; several ranges are returned in the order in which ` +
	`you list them. ` +
	`Lines count from 1, and end_line is included; beyond the last line, it means the last line. ` +
	`Originals are kept for a limited time: on prune_id_not_found, get the text again.",` +
	`"inputSchema":{"type":"object","properties":{` +
	`"prune_id":{"type":"string"},` +
	`"ranges":{"type":"array","items":{"type":"object","properties":{` +
	`"start_line":{"type":"integer","minimum":1},` +
	`"end_line":{"type":"integer","minimum":1}},` +
	`"required":["start_line","end_line"],"additionalProperties":false}},` +
	`"include_line_numbers":{"type":"boolean"}},` +
	`"required":["prune_id","ranges","include_line_numbers"],"additionalProperties":false},` +
	`"outputSchema":{"type":"object","properties":{` +
	`"raw_text":{"type":"string"},` +
	`"metadata":{"type":"object","properties":{` +
	`"prune_id":{"type":"string"},` +
	`"ranges":{"type":"array","items":{"type":"object"}},` +
	`"line_numbering":{"type":"string"}},` +
	`"required":["prune_id","ranges","line_numbering"]}},` +
	`"required":["raw_text","metadata"]},` +
	`"annotations":{"title":"Recover pruned ` +
	`lines","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`

const healthTool = `{"name":"health",` +
	`"title":"Health of the pruner",` +
	`"description":"Returns the state of the pruner, its version and its capabilities. You need not call it before ` +
	`the other tools.",` +
	`"inputSchema":{"type":"object","properties":{},"additionalProperties":false},` +
	`"outputSchema":{"type":"object","properties":{` +
	`"status":{"type":"string"},` +
	`"server":{"type":"string"},` +
	`"version":{"type":"string"},` +
	`"capabilities":{"type":"array","items":{"type":"string"}},` +
	`"timestamp":{"type":"string"},` +
	`"backend":{"type":"string"}},` +
	`"required":["status","server","version","capabilities","timestamp"]},` +
	`"annotations":{"title":"Health of the ` +
	`pruner","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`

// call handles tools/call.
func (x *request) call() reply {
	if x.message.Kind(jsonrpc.Name) != jsonspan.String {
		return x.invalidParams("name: must be a string")
	}
	name := mcp.Shortened(x.message.Text(jsonrpc.Name))
	x.tool.Store(&name)
	arguments := object{data: []byte("{}")}
	switch x.message.Kind(jsonrpc.Arguments) {
	case jsonrpc.Absent, jsonspan.Null:
	case jsonspan.BeginObject:
		arguments.data = x.message.Literal(jsonrpc.Arguments)
	default:
		return x.invalidParams("arguments: must be an object")
	}
	switch name {
	case "prune_text":
		return x.prune(&arguments)
	case "recover_text", "recover_range":
		return x.recover(&arguments)
	case "health":
		arguments.read()
		if err := arguments.end(); err != nil {
			return x.invalidParams(err.Error())
		}
		return x.toolResult(jsonrpc.Encode(x.handler.health()))
	default:
		return x.invalidParams("name: unknown tool " + name)
	}
}

// invalidParams responds with an invalid_params error.
func (x *request) invalidParams(message string) reply {
	return x.fail(jsonrpc.InvalidParams(message).WithStatusOK())
}

// toolResult responds with the result of a tool: a JSON object, as structured content and, for
// older clients, as text.
func (x *request) toolResult(object []byte) reply {
	return x.respond(slices.Concat([]byte(`{"content":[{"type":"text","text":`), jsonrpc.Encode(string(object)),
		[]byte(`}],"structuredContent":`), object, []byte("}")))
}

// An object reads the members of a JSON object strictly: it must have the schema's members, with
// the schema's types, and no others. It collects all faults, so that a model can fix them at once.
//
// Call read first, then one method for each member, then end.
type object struct {
	data    []byte // a JSON object, or nil if the member that should hold it is missing or invalid
	path    string // path to the object, with a trailing dot
	members map[string]jsonspan.Value
	faults  *faults // shared with the enclosing object; read creates it if nil
}

// faults collects the errors of a call's arguments.
type faults struct {
	list    []fault
	omitted int // number of faults not listed
}

// missing is the fault of an argument that was not given.
const missing = "missing argument"

// A fault is the error of one argument.
type fault struct{ path, problem string }

// maxFaults bounds the list of faults.
const maxFaults = 20

// add adds a fault. Only the first fault of an argument is kept.
func (f *faults) add(path, what string) {
	if slices.ContainsFunc(f.list, func(other fault) bool { return other.path == path }) {
		return
	}
	if len(f.list) == maxFaults {
		f.omitted++
		return
	}
	f.list = append(f.list, fault{path, what})
}

// Error returns all faults in one line.
func (f *faults) Error() string {
	var b strings.Builder
	for i, fault := range f.list {
		if i > 0 {
			b.WriteString("; ")
		}
		if fault.problem == missing {
			b.WriteString(missing + ": " + fault.path)
			continue
		}
		b.WriteString(fault.path + ": " + fault.problem)
	}
	if f.omitted > 0 {
		fmt.Fprintf(&b, "; and %d more", f.omitted)
	}
	return b.String()
}

// read finds the members of the object.
func (o *object) read() {
	if o.faults == nil {
		o.faults = new(faults)
	}
	o.members = make(map[string]jsonspan.Value)
	for m := range jsonspan.Members(o.data) {
		if _, twice := o.members[m.Key]; twice {
			o.invalid(mcp.Shortened(m.Key), "given twice")
		}
		o.members[m.Key] = m.Value
	}
}

// invalid adds a fault of a member.
func (o *object) invalid(name, what string) {
	if o.data != nil {
		o.faults.add(o.path+name, what)
	}
}

// take removes and returns a member, and reports whether it is of one of these kinds. what
// describes the kinds in the fault.
func (o *object) take(name, what string, kinds ...jsonspan.Kind) (jsonspan.Value, bool) {
	v, ok := o.members[name]
	if !ok {
		o.invalid(name, missing)
		return v, false
	}
	delete(o.members, name)
	if !slices.Contains(kinds, v.Kind) {
		o.invalid(name, "must be "+what)
		return v, false
	}
	return v, true
}

// text returns a string and its length in characters.
func (o *object) text(name string) (text string, chars int) {
	v, ok := o.take(name, "a string", jsonspan.String)
	if !ok {
		return "", 0
	}
	return string(jsonspan.AppendText(nil, v.Body(o.data))), v.Chars
}

func (o *object) boolean(name string) bool {
	v, _ := o.take(name, "true or false", jsonspan.True, jsonspan.False)
	return v.Kind == jsonspan.True
}

// fraction returns a number from 0 to 1.
func (o *object) fraction(name string) float64 {
	v, ok := o.take(name, "a number", jsonspan.Number)
	if !ok {
		return 0
	}
	f, _ := strconv.ParseFloat(string(o.data[v.Start:v.End]), 64) // valid syntax, but may be infinite
	if !(0 <= f && f <= 1) {
		o.invalid(name, "must be from 0 to 1")
	}
	return f
}

// integer returns a whole number of at least low. Numbers above high count as high.
func (o *object) integer(name string, low, high int) int {
	v, ok := o.take(name, "a whole number", jsonspan.Number)
	if !ok {
		return 0
	}
	n, ok := parseWhole(string(o.data[v.Start:v.End]))
	switch {
	case !ok:
		o.invalid(name, "must be a whole number")
	case n < low:
		o.invalid(name, "must be at least "+strconv.Itoa(low))
	}
	return min(n, high)
}

// raw returns the JSON of a member that is an array or object.
func (o *object) raw(name, what string, kind jsonspan.Kind) []byte {
	v, ok := o.take(name, what, kind)
	if !ok {
		return nil
	}
	return o.data[v.Start:v.End]
}

// object returns a member that is an object, ready to be read.
func (o *object) object(name string) *object {
	inner := &object{
		data: o.raw(name, "an object", jsonspan.BeginObject), path: o.path + name + ".", faults: o.faults,
	}
	inner.read()
	return inner
}

// end returns the faults of the object and of the objects in it. Unknown members come last, because
// the other faults are more helpful.
func (o *object) end() error {
	for _, name := range slices.Sorted(maps.Keys(o.members)) {
		o.invalid(mcp.Shortened(name), "unknown argument")
	}
	if len(o.faults.list) == 0 {
		return nil
	}
	return o.faults
}

// parseWhole parses a whole number in any JSON notation, such as 100.0 and 1e2. Numbers that do not
// fit into an int become the largest or smallest int.
func parseWhole(literal string) (n int, ok bool) {
	mantissa, power, _ := strings.Cut(strings.ToLower(literal), "e")
	integer, fraction, _ := strings.Cut(mantissa, ".")
	fraction = strings.TrimRight(fraction, "0")
	digits := strings.TrimLeft(strings.TrimPrefix(integer, "-")+fraction, "0")
	if digits == "" {
		return 0, true
	}
	exponent := 0
	if power != "" {
		exponent, _ = strconv.Atoi(power) // out of range: the largest or smallest int
		exponent = min(max(exponent, -1<<40), 1<<40)
	}
	zeros := len(digits) - len(strings.TrimRight(digits, "0"))
	if exponent+zeros < len(fraction) {
		return 0, false
	}
	f, _ := strconv.ParseFloat(literal, 64) // may be infinite
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64, true
	case f <= math.MinInt64:
		return math.MinInt64, true
	}
	if n, err := strconv.Atoi(literal); err == nil {
		return n, true // exact
	}
	return int(f), true
}

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
	return slices.IndexFunc(r.parsed, func(lr prune.Range) bool {
		return lr.Start < 1 || lr.End < lr.Start || lr.Start > lines
	})
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
