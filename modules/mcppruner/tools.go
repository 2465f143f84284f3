package mcppruner

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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
	`functions and errors. Lines that contain them are kept.\n` +
	`- source_type: code keeps imports and definitions, logs keeps errors and what is around them, docs keeps ` +
	`headings.\n` +
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
