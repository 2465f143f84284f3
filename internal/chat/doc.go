// Package chat knows the conversations that agents send to models, and which tool
// results in them are old enough to be left out.
//
// It reads the formats that are in use, and tells them by what they hold:
//
//   - OpenAI chat completions: messages, where an assistant's tool_calls are
//     answered by messages of the role tool; Ollama has the same without ids;
//   - Anthropic messages: messages, where tool_use blocks are answered by
//     tool_result blocks; Bedrock's Converse has toolUse and toolResult;
//   - OpenAI responses: input, where items such as function_call are answered by
//     items such as function_call_output;
//   - Gemini: contents, where functionCall parts are answered by functionResponse
//     parts; Code Assist has them in a request.
//
// A [Conversation] is read once, from raw bytes, and keeps only where things
// stand in them. Masking it is a [Plan]: the texts to put in the place of old
// results, as edits of these bytes. Everything else therefore stays as it was.
//
// # Turns
//
// A turn is a message of the assistant that makes at least one call; in the format
// of responses, the calls that follow one another until something that is not the
// model's comes. A turn reaches up to the next one. The results of a call are those
// that name its id, wherever they stand, and if an id is used again, the last turn
// that uses it is its own. Calls without an id are answered in their order.
//
// # The boundary
//
// Results of turns before the boundary are masked, those of the last WindowTurns
// turns never. Where the boundary lies is decided turn by turn, in the order of
// the turns, by nothing but what has been said up to the end of that turn. A turn
// at which it moves is a step. What a step masks, it decides once: what comes
// after it changes nothing before it until the next step. So between steps a
// conversation that grows by a turn is sent as what was sent before, to the byte,
// and what has been added; and the model's provider, who remembers prompts by
// their beginning, has to read only that.
//
// With [ClearAuto] a step masks those of the old results that pay at the prices of
// the provider, and all of them at no cost while its cache has nothing. The latter
// does not follow from the conversation, so a [Progress] says how it has gone so far.
//
// # Memory
//
// A [Memory] spares this package what the cache spares the provider: a request that
// begins as another one did is read from where they differ. What is read is the same
// without it. It also keeps the [Past] of a conversation, with its Progress.
package chat
