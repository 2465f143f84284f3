package chat

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Indexes of the paths.
const (
	inMessages = iota
	inMessage
	inRole
	inContent
	inToolCallID
	inToolName
	inMessageName
	inToolCalls
	inToolCall
	inToolCallsID
	inFunctionName
	inCustomName
	inBlock
	inBlockType
	inBlockText
	inBlockID
	inBlockName
	inToolUseID
	inIsError
	inBlockContent
	inBlockPart
	inBlockPartType
	inBlockPartText
	inUse
	inUseID
	inUseName
	inAnswer
	inAnswerID
	inAnswerStatus
	inAnswerContent
	inAnswerPart
	inAnswerPartText
	inAnswerPartJSON
	inAnswerPartJSONMember
	inInput
	inItem
	inItemType
	inItemRole
	inItemCallID
	inItemID
	inItemName
	inItemStatus
	inOutput
	inOutputContent
	inOutputSuccess
	inOutputPart
	inOutputPartType
	inOutputPartText
	inStdout
	inStderr
	inOutcome
	inExitCode
	inCacheControl
	inCacheTTL
	inSystemCacheControl
	inSystemCacheTTL
	inToolsCacheControl
	inToolsCacheTTL
	inBlockCacheControl
	inBlockCacheTTL
	inSystemCachePoint
	inSystemCachePointTTL
	inToolsCachePoint
	inToolsCachePointTTL
	inBlockCachePoint
	inBlockCachePointTTL
	inCacheRetention
	inContents
	inContentsMessage
	inContentsRole
	inParts
	inPart
	inCall
	inCallID
	inCallName
	inResponse
	inResponseID
	inResponseName
	inResponseParts
	inResponseObject
	inResponseError
	inResponseMember
	named // number of paths so far; aliases of Gemini's follow
)

// paths selects the values of all formats. aliases are the indexes of Gemini's paths of which the
// later ones are other spellings.
var paths, aliases = func() (*jsonspan.Paths, []int) {
	paths := []string{
		"messages",
		"messages.*",
		"messages.*.role",
		"messages.*.content",
		"messages.*.tool_call_id",
		"messages.*.tool_name",
		"messages.*.name",
		"messages.*.tool_calls",
		"messages.*.tool_calls.*",
		"messages.*.tool_calls.*.id",
		"messages.*.tool_calls.*.function.name",
		"messages.*.tool_calls.*.custom.name",
		"messages.*.content.*",
		"messages.*.content.*.type",
		"messages.*.content.*.text",
		"messages.*.content.*.id",
		"messages.*.content.*.name",
		"messages.*.content.*.tool_use_id",
		"messages.*.content.*.is_error",
		"messages.*.content.*.content",
		"messages.*.content.*.content.*",
		"messages.*.content.*.content.*.type",
		"messages.*.content.*.content.*.text",
		"messages.*.content.*.toolUse",
		"messages.*.content.*.toolUse.toolUseId",
		"messages.*.content.*.toolUse.name",
		"messages.*.content.*.toolResult",
		"messages.*.content.*.toolResult.toolUseId",
		"messages.*.content.*.toolResult.status",
		"messages.*.content.*.toolResult.content",
		"messages.*.content.*.toolResult.content.*",
		"messages.*.content.*.toolResult.content.*.text",
		"messages.*.content.*.toolResult.content.*.json",
		"messages.*.content.*.toolResult.content.*.json.*",
		"input",
		"input.*",
		"input.*.type",
		"input.*.role",
		"input.*.call_id",
		"input.*.id",
		"input.*.name",
		"input.*.status",
		"input.*.output",
		"input.*.output.content",
		"input.*.output.success",
		"input.*.output.*",
		"input.*.output.*.type",
		"input.*.output.*.text",
		"input.*.output.*.stdout",
		"input.*.output.*.stderr",
		"input.*.output.*.outcome.type",
		"input.*.output.*.outcome.exit_code",
		"cache_control",
		"cache_control.ttl",
		"system.*.cache_control",
		"system.*.cache_control.ttl",
		"tools.*.cache_control",
		"tools.*.cache_control.ttl",
		"messages.*.content.*.cache_control",
		"messages.*.content.*.cache_control.ttl",
		"system.*.cachePoint", // Bedrock's
		"system.*.cachePoint.ttl",
		"toolConfig.tools.*.cachePoint",
		"toolConfig.tools.*.cachePoint.ttl",
		"messages.*.content.*.cachePoint",
		"messages.*.content.*.cachePoint.ttl",
		"prompt_cache_retention", // OpenAI's
		"contents",
		"contents.*",
		"contents.*.role",
		"contents.*.parts",
		"contents.*.parts.*",
		"contents.*.parts.*.functionCall",
		"contents.*.parts.*.functionCall.id",
		"contents.*.parts.*.functionCall.name",
		"contents.*.parts.*.functionResponse",
		"contents.*.parts.*.functionResponse.id",
		"contents.*.parts.*.functionResponse.name",
		"contents.*.parts.*.functionResponse.parts.*",
		"contents.*.parts.*.functionResponse.response",
		"contents.*.parts.*.functionResponse.response.error",
		"contents.*.parts.*.functionResponse.response.*",
	}
	var aliases []int
	snake := strings.NewReplacer("functionCall", "function_call", "functionResponse", "function_response")
	for i, path := range paths[inContents:] {
		spellings := []string{"request." + path} // of Code Assist
		if other := snake.Replace(path); other != path {
			spellings = append(spellings, other, "request."+other)
		}
		for _, spelling := range spellings {
			paths, aliases = append(paths, spelling), append(aliases, inContents+i)
		}
	}
	return jsonspan.CompilePaths(paths...), aliases
}()

// canonicalPath maps the index of an alias to that of the path it stands for. It returns other
// indexes unchanged.
func canonicalPath(path int) int {
	if path >= named {
		path = aliases[path-named]
	}
	return path
}

// isList reports whether a path is a list of messages. The next path is that of its elements.
func isList(path int) bool { return path == inMessages || path == inInput || path == inContents }

// read handles a value that was found. Values within another one come before it.
func (p *parser) read(path int, found jsonspan.Value) {
	if len(p.ids.texts)+len(p.results)+len(p.message.results) > firstItems+len(p.body)/itemSize {
		p.list.invalid = true
	}
	if p.list.invalid {
		return
	}
	v := value{int32(found.Start), int32(found.End), int32(found.Chars), found.Kind, found.HasUnicodeEscapes}
	m, b := &p.message, &p.block
	path = canonicalPath(path)
	switch path {
	case inMessages, inInput, inContents:
		switch v.kind {
		case jsonspan.BeginArray:
			p.list.lists++
			p.list.span = v
		case jsonspan.BeginObject:
			p.list.objects++
		}
	case inMessage:
		p.endMessage(v)
	case inRole, inItemRole:
		m.role = p.word(v)
	case inContent:
		m.content = v
	case inToolCallID, inItemCallID:
		m.id = v
	case inToolName:
		m.tool = v
	case inMessageName, inItemName:
		m.name = v
	case inToolCalls:
		m.toolCalls = v.kind

	case inToolCall:
		if !b.name.isText() {
			b.name = b.custom
		}
		p.addCall(b.id, b.name)
		p.nextBlock()
	case inBlock:
		p.endBlock()
	case inBlockType:
		b.kind = p.word(v)
	case inBlockText:
		b.text = v
	case inToolCallsID, inBlockID:
		b.id = v
	case inFunctionName, inBlockName:
		b.name = v
	case inCustomName:
		b.custom = v
	case inToolUseID:
		b.useID = v
	case inIsError:
		b.failed = v.kind == jsonspan.True
	case inBlockContent, inOutput:
		b.content = v

	case inBlockPart:
		p.endPart(plainText)
	case inOutputPart:
		p.endPart(inputText)
	case inBlockPartType, inOutputPartType:
		b.part.kind = p.word(v)
	case inBlockPartText, inOutputPartText, inAnswerPartText:
		b.part.text = v
	case inStdout:
		b.part.stdout = v
	case inStderr:
		b.part.stderr = v

	case inUse, inCall:
		b.call.kind = v.kind
	case inUseID, inCallID:
		b.call.id = v
	case inUseName, inCallName:
		b.call.name = v
	case inAnswer, inResponse:
		b.answer.kind = v.kind
	case inAnswerID, inResponseID:
		b.answer.id = v
	case inResponseName:
		b.answer.name = v
	case inAnswerStatus:
		b.answer.failed = p.word(v) == errorStatus
	case inAnswerContent:
		b.answer.content = v
	case inAnswerPart:
		p.endAnswerPart()
	case inAnswerPartJSON:
		b.part.object = v
	case inAnswerPartJSONMember, inResponseMember:
		b.part.members++
		b.part.last = v

	case inItem:
		p.endItem(v)
	case inItemType:
		m.kind = p.word(v)
	case inItemID:
		m.itemID = v
	case inItemStatus:
		m.failed = p.word(v) == failedStatus
	case inOutputContent:
		b.text = v
	case inOutputSuccess:
		b.failed = v.kind == jsonspan.False
	case inOutcome:
		b.shellFailed = b.shellFailed || p.word(v) == timeoutOutcome
	case inExitCode:
		b.shellFailed = b.shellFailed || v.kind == jsonspan.Number && string(p.body[v.start:v.end]) != "0"

	case inCacheControl, inBlockCacheControl, inBlockCachePoint:
		p.cache.messages = p.cache.messages || v.kind == jsonspan.BeginObject
	case inSystemCacheControl, inToolsCacheControl, inSystemCachePoint, inToolsCachePoint:
		p.cache.opening = p.cache.opening || v.kind == jsonspan.BeginObject
	case inCacheTTL, inSystemCacheTTL, inToolsCacheTTL, inBlockCacheTTL,
		inSystemCachePointTTL, inToolsCachePointTTL, inBlockCachePointTTL:
		p.cache.hour = p.cache.hour || v.kind == jsonspan.String && jsonspan.TextIs(p.text(v), "1h")
	case inCacheRetention:
		p.cache.day = v.kind == jsonspan.String && jsonspan.TextIs(p.text(v), "24h")

	case inContentsMessage:
		p.list.format = model
		p.endMessage(v)
	case inContentsRole:
		switch p.word(v) {
		case model:
			m.role = assistant
		case user, function:
			m.role = user
		}
	case inParts:
		m.content, m.toolCalls = v, v.kind
	case inPart:
		p.endContentsPart()
	case inResponseParts:
		b.notText = true
	case inResponseObject:
		b.answer.content = v
		p.addObject(v)
	case inResponseError:
		b.part.members++
		b.part.last = v
		b.answer.failed = v.kind != jsonspan.Null
	}
	if isList(path - 1) {
		p.mark(v.end)
	}
}
