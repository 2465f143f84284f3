package chat

import (
	"bytes"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A word is a string with a meaning in a conversation.
type word uint8

const (
	noWord word = iota // not a string
	otherWord
	assistant
	user
	tool
	model
	function
	plainText
	inputText
	toolUse
	toolResult
	functionCall
	localShellCall
	shellCall
	applyPatchCall
	computerCall
	toolSearchCall
	functionCallOutput
	localShellCallOutput
	shellCallOutput
	otherOutput // of an unsupported kind of call
	failedStatus
	errorStatus
	timeoutOutcome
)

// isOutput reports whether an item is the output of a tool.
func (w word) isOutput() bool {
	return w == functionCallOutput || w == localShellCallOutput || w == shellCallOutput || w == otherOutput
}

// word returns the word of a value.
func (c *Conversation) word(v value) word {
	if v.kind != jsonspan.String {
		return noWord
	}
	body := c.text(v)
	if v.escaped(body) {
		c.scratch = jsonspan.AppendText(c.scratch[:0], body)
		body = c.scratch
	}
	switch string(body) {
	case "assistant":
		return assistant
	case "tool":
		return tool
	case "user":
		return user
	case "model":
		return model
	case "function":
		return function
	case "text":
		return plainText
	case "input_text":
		return inputText
	case "tool_use":
		return toolUse
	case "tool_result":
		return toolResult
	case "function_call", "custom_tool_call": // the latter has free text as input, as from Codex
		return functionCall
	case "local_shell_call":
		return localShellCall
	case "shell_call":
		return shellCall
	case "apply_patch_call":
		return applyPatchCall
	case "computer_call":
		return computerCall
	case "tool_search_call":
		return toolSearchCall
	case "function_call_output", "custom_tool_call_output", "apply_patch_call_output", "computer_call_output",
		"mcp_tool_call_output", "tool_search_output":
		return functionCallOutput
	case "local_shell_call_output":
		return localShellCallOutput
	case "shell_call_output":
		return shellCallOutput
	case "failed":
		return failedStatus
	case "error":
		return errorStatus
	case "timeout":
		return timeoutOutcome
	}
	if bytes.HasSuffix(body, []byte("_output")) {
		return otherOutput
	}
	return otherWord
}
