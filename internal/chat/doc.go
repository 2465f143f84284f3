// Package chat reads the conversations that agents send to models, and decides which tool results
// in them are old enough to be masked.
//
// It detects and reads these formats:
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
// A [Conversation] is read once, from raw bytes, and stores only positions in them. Masking it
// yields a [Plan]: edits of these bytes that replace old results. All other bytes stay unchanged.
//
// # Turns
//
// A turn is a message of the assistant with at least one call; in the format of responses,
// consecutive calls up to the first item that is not the model's. A turn ends where the next one
// begins. The results of a call are those with its id, anywhere in the conversation; if several
// turns use an id, it belongs to the last of them. Calls without an id are answered in order.
//
// # The boundary
//
// Results of turns before the boundary are masked, those of the last WindowTurns turns never. The
// position of the boundary is decided turn by turn, in order, from nothing but the conversation up
// to the end of that turn. A turn at which it moves is a step. A step decides once which results
// are masked, and nothing before it changes until the next step. So between steps a conversation
// that grows by a turn is sent as the same bytes as before, plus the new ones. A provider that
// caches prompts by their beginning has to process only the new bytes.
//
// With [ClearAuto] a step masks the old results for which masking pays at the provider's prices,
// and all of them if the provider has nothing cached. The latter does not follow from the
// conversation, so a [Progress] records the decisions so far.
//
// # Memory
//
// A [Memory] avoids reading a conversation again: a request that begins like an earlier one is read
// from where they differ. The result is the same without it. It also keeps the [Past] of a
// conversation, with its Progress.
package chat
