//lint:file-ignore SA1019 the suite uses sampling, roots and logging, which are deprecated

package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The suite defines the names, URIs, arguments and schema keywords in this file. Other texts
// of fixtures are arbitrary.

const watched = "test://watched-resource"

// anyObject is the input schema of a tool that ignores its arguments.
const anyObject = `{"type": "object"}`

func newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "conformance-reference", Version: "1.0.0"}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{
			Logging: &mcp.LoggingCapabilities{},
			Extensions: map[string]any{
				tasksExtension:  struct{}{},
				skillsExtension: map[string]any{"directoryRead": true},
			},
		},
		CompletionHandler:  complete,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	addTools(server)
	addInteractive(server)
	addPrompts(server)
	addResources(server)
	addTasks(server)
	addSkills(server)
	return server
}

func complete(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{"one", "two"}, Total: 2}}, nil
}

func addTool(server *mcp.Server, name, schema string, call mcp.ToolHandler) {
	server.AddTool(&mcp.Tool{Name: name, Description: "Fixture " + name, InputSchema: json.RawMessage(schema)}, call)
}

func addTools(server *mcp.Server) {
	picture := &mcp.ImageContent{Data: pixel(), MIMEType: "image/png"}
	note := &mcp.EmbeddedResource{Resource: textOf("test://note", "an embedded note")}
	for name, content := range map[string][]mcp.Content{
		"test_simple_text":            {&mcp.TextContent{Text: "simple text"}},
		"test_image_content":          {picture},
		"test_audio_content":          {&mcp.AudioContent{Data: silence, MIMEType: "audio/wav"}},
		"test_embedded_resource":      {note},
		"test_multiple_content_types": {&mcp.TextContent{Text: "text, picture, note"}, picture, note},
	} {
		addTool(server, name, anyObject, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: content}, nil
		})
	}
	addTool(server, "test_error_handling", anyObject, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult,
		error) {
		result := textResult("this tool always fails")
		result.IsError = true
		return result, nil
	})
	addTool(server, "json_schema_2020_12_tool", schema202012, echo)
	addTool(server, "test_x_mcp_header", `{
		"type": "object",
		"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}
	}`, echo)

	addTool(server, "test_tool_with_logging", anyObject, inSteps(func(ctx context.Context, req *mcp.CallToolRequest,
		step int) error {
		return logInfo(ctx, req, fmt.Sprintf("step %d", step))
	}))
	addTool(server, "test_tool_with_progress", anyObject, inSteps(func(ctx context.Context, req *mcp.CallToolRequest,
		step int) error {
		token := req.Params.GetProgressToken()
		if token == nil {
			return nil
		}
		return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(50 * step), Total: 100,
		})
	}))
	addTool(server, "test_logging_tool", anyObject,
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return textResult("logged, if the client asked for it"), logInfo(ctx, req, "called")
		})
	addTool(server, "test_reconnection", anyObject,
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if req.Extra != nil && req.Extra.CloseSSEStream != nil { // not over stdio
				req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
				time.Sleep(100 * time.Millisecond)
			}
			return textResult("still there"), nil
		})

	addTool(server, "test_trigger_tool_change", anyObject,
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			addTool(server, "transient_tool", anyObject, echo)
			return textResult("the tools have changed"), nil
		})
	addTool(server, "test_trigger_prompt_change", anyObject,
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			addPrompt(server, "transient_prompt", &mcp.TextContent{Text: "transient"})
			return textResult("the prompts have changed"), nil
		})

	addTool(server, "test_sampling", anyObject, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult,
		error) {
		var args struct{ Prompt string }
		if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
			return nil, err
		}
		answer, err := req.Session.CreateMessage(ctx, sample(args.Prompt))
		if err != nil {
			return nil, err
		}
		return textResult("the model says %v", answer.Content), nil
	})
	for name, schema := range map[string]string{
		"test_elicitation":                  elicitName,
		"test_elicitation_sep1034_defaults": elicitDefaults,
		"test_elicitation_sep1330_enums":    elicitEnums,
	} {
		addTool(server, name, anyObject, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			answer, err := req.Session.Elicit(ctx, elicit(schema))
			if err != nil {
				return nil, err
			}
			return textResult("the user says %s %v", answer.Action, answer.Content), nil
		})
	}
}

func textResult(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func echo(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return textResult("called with %s", req.Params.Arguments), nil
}

// inSteps returns a tool that sends a notification per step, with pauses, so that the client can
// see that they are not delayed until the result.
func inSteps(notify func(ctx context.Context, req *mcp.CallToolRequest, step int) error) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for step := range 3 {
			if err := notify(ctx, req, step); err != nil {
				return nil, err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return textResult("three steps done"), nil
	}
}

func logInfo(ctx context.Context, req *mcp.CallToolRequest, message string) error {
	return req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: message})
}

func elicit(schema string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: "Please fill in", RequestedSchema: json.RawMessage(schema)}
}

func sample(prompt string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{
		MaxTokens: 100,
		Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: prompt}}},
	}
}

// addPrompt adds a prompt with fixed content, after a message with the arguments.
func addPrompt(server *mcp.Server, name string, content mcp.Content, arguments ...string) {
	prompt := &mcp.Prompt{Name: name, Description: "Fixture " + name}
	for _, argument := range arguments {
		prompt.Arguments = append(prompt.Arguments, &mcp.PromptArgument{Name: argument, Required: true})
	}
	server.AddPrompt(prompt, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		text := "fixture"
		for _, argument := range arguments {
			text += fmt.Sprintf(" %s=%s", argument, req.Params.Arguments[argument])
		}
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
			{Role: "user", Content: &mcp.TextContent{Text: text}},
			{Role: "user", Content: content},
		}}, nil
	})
}

func addPrompts(server *mcp.Server) {
	addPrompt(server, "test_simple_prompt", &mcp.TextContent{Text: "be simple"})
	addPrompt(server, "test_prompt_with_arguments", &mcp.TextContent{Text: "mind the arguments"}, "arg1", "arg2")
	addPrompt(server, "test_prompt_with_image", &mcp.ImageContent{Data: pixel(), MIMEType: "image/png"})
	addPrompt(server, "test_prompt_with_embedded_resource",
		&mcp.EmbeddedResource{Resource: textOf("test://note", "an embedded note")}, "resourceUri")
}

func addResources(server *mcp.Server) {
	for _, contents := range []*mcp.ResourceContents{
		textOf("test://static-text", "static text"),
		{URI: "test://static-binary", MIMEType: "image/png", Blob: pixel()},
		textOf(watched, "watched"),
	} {
		resource := &mcp.Resource{Name: strings.TrimPrefix(contents.URI, "test://"), URI: contents.URI,
			MIMEType: contents.MIMEType}
		server.AddResource(resource, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
		})
	}
	template := &mcp.ResourceTemplate{Name: "template", URITemplate: "test://template/{id}/data", MIMEType: "text/plain"}
	server.AddResourceTemplate(template, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult,
		error) {
		id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{textOf(req.Params.URI, "data of "+id)}}, nil
	})
}

func textOf(uri, text string) *mcp.ResourceContents {
	return &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: text}
}

// pixel returns a PNG of one pixel.
func pixel() []byte {
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// silence is a WAV file of one sample: 8000 Hz, mono, 16 bits.
var silence = []byte("RIFF\x26\x00\x00\x00WAVE" +
	"fmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00" +
	"data\x02\x00\x00\x00\x00\x00")

const (
	schema202012 = `{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"type": "object",
		"$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"city": {"type": "string"}}}},
		"properties": {
			"address": {"$ref": "#/$defs/address"},
			"contactMethod": {"enum": ["phone", "email"]},
			"phone": {"type": "string"},
			"email": {"type": "string"}
		},
		"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
		"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
		"then": {"required": ["phone"]},
		"else": {"required": ["email"]},
		"additionalProperties": false
	}`

	elicitName = `{"type": "object", "properties": {"name": {"type": "string"}}}`

	elicitDefaults = `{"type": "object", "properties": {
		"name": {"type": "string", "default": "John Doe"},
		"age": {"type": "integer", "default": 30},
		"score": {"type": "number", "default": 95.5},
		"status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
		"verified": {"type": "boolean", "default": true}
	}}`

	elicitEnums = `{"type": "object", "properties": {
		"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
		"titledSingle": {"type": "string", "oneOf": [{"const": "value1", "title": "One"}, {"const": "value2", "title": "Two"}]},
		"legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]},
		"untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
		"titledMulti": {"type": "array", "items": {"anyOf": [{"const": "value1", "title": "One"}, {"const": "value2", "title": "Two"}]}}
	}}`
)

func missingCapability(name string) error {
	return missingCapabilities(map[string]any{name: struct{}{}}, name)
}

func missingCapabilities(capabilities map[string]any, name string) error {
	data, err := json.Marshal(map[string]any{"requiredCapabilities": capabilities})
	if err != nil {
		return err
	}
	return &jsonrpc.Error{
		Code:    mcp.CodeMissingRequiredClientCapabilities,
		Message: "the client has not declared " + name,
		Data:    data,
	}
}

// addInteractive adds tools and a prompt that return input_required in the stateless era.
func addInteractive(server *mcp.Server) {
	name := mcp.InputRequestMap{"user_name": elicit(elicitName)}
	confirm := mcp.InputRequestMap{"confirm": elicit(`{"type": "object", "properties": {"ok": {"type": "boolean"}}}`)}
	everything := mcp.InputRequestMap{
		"user_name":    elicit(elicitName),
		"greeting":     sample("Write a greeting"),
		"client_roots": &mcp.ListRootsParams{},
	}
	for tool, rounds := range map[string]dialog{
		"test_input_required_result_elicitation":     {name},
		"test_input_required_result_sampling":        {{"capital": sample("What is the capital of France?")}},
		"test_input_required_result_list_roots":      {{"client_roots": &mcp.ListRootsParams{}}},
		"test_input_required_result_request_state":   {confirm},
		"test_input_required_result_tampered_state":  {confirm},
		"test_input_required_result_multiple_inputs": {everything},
		"test_input_required_result_capabilities":    {everything},
		"test_input_required_result_multi_round": {
			{"step1": elicit(elicitName)},
			{"step2": elicit(`{"type": "object", "properties": {"color": {"type": "string"}}}`)},
		},
		"test_streaming_elicitation": {name},
	} {
		addTool(server, tool, anyObject, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ask, state, err := rounds.next(req.Params.RequestState, req.Params.InputResponses, req.ClientCapabilities())
			if err != nil {
				return nil, err
			}
			if ask != nil {
				return &mcp.CallToolResult{InputRequests: ask, RequestState: state}, nil
			}
			return textResult("thank you for %v", slices.Sorted(maps.Keys(req.Params.InputResponses))), nil
		})
	}
	server.AddPrompt(&mcp.Prompt{
		Name: "test_input_required_result_prompt", Description: "Fixture test_input_required_result_prompt",
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		rounds := dialog{{"user_context": elicit(`{"type": "object", "properties": {"context": {"type": "string"}}}`)}}
		ask, state, err := rounds.next(req.Params.RequestState, req.Params.InputResponses, req.ClientCapabilities())
		if err != nil {
			return nil, err
		}
		if ask != nil {
			return &mcp.GetPromptResult{InputRequests: ask, RequestState: state}, nil
		}
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "in context"}},
		}}, nil
	})
	addTool(server, "test_missing_capability", anyObject,
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if caps := req.ClientCapabilities(); caps == nil || caps.Sampling == nil {
				return nil, missingCapability("sampling")
			}
			return textResult("the client has declared sampling"), nil
		})
}

// A dialog has the input requests for the client, by round.
type dialog []mcp.InputRequestMap

// next returns the input requests of the current round and its requestState, or nil after the
// last round. It omits requests that the client does not support.
func (d dialog) next(state string, responses mcp.InputResponseMap, caps *mcp.ClientCapabilities) (mcp.InputRequestMap,
	string, error) {
	round, ok := verify(state)
	if !ok || round >= len(d) {
		return nil, "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "invalid requestState"}
	}
	ask, err := supportedRequests(d[round], caps)
	if err != nil {
		return nil, "", err
	}
	if allAnswered(ask, responses) {
		round++
		if round == len(d) {
			return nil, "", nil
		}
		if ask, err = supportedRequests(d[round], caps); err != nil {
			return nil, "", err
		}
	}
	return ask, sign(round), nil
}

func supportedRequests(ask mcp.InputRequestMap, caps *mcp.ClientCapabilities) (mcp.InputRequestMap, error) {
	if caps == nil {
		caps = &mcp.ClientCapabilities{}
	}
	var missing string
	ask = maps.Clone(ask)
	for key, request := range ask {
		declared, name := false, ""
		switch request.(type) {
		case *mcp.ElicitParams:
			declared, name = caps.Elicitation != nil, "elicitation"
		case *mcp.CreateMessageParams:
			declared, name = caps.Sampling != nil, "sampling"
		case *mcp.ListRootsParams:
			declared, name = caps.RootsV2 != nil, "roots"
		}
		if !declared {
			missing = name
			delete(ask, key)
		}
	}
	if len(ask) == 0 {
		return nil, missingCapability(missing)
	}
	return ask, nil
}

// allAnswered reports whether every request has a response of its type. It ignores other responses.
func allAnswered(ask mcp.InputRequestMap, responses mcp.InputResponseMap) bool {
	for key, request := range ask {
		ok := false
		switch request.(type) {
		case *mcp.ElicitParams:
			answer, is := responses[key].(*mcp.ElicitResult)
			ok = is && answer.Action == "accept"
		case *mcp.CreateMessageParams:
			_, ok = responses[key].(*mcp.CreateMessageWithToolsResult)
		case *mcp.ListRootsParams:
			_, ok = responses[key].(*mcp.ListRootsResult)
		}
		if !ok {
			return false
		}
	}
	return true
}

// sign returns the requestState of a round. The key is public, so that every process of this
// server accepts the states of the others.
func sign(round int) string {
	mac := hmac.New(sha256.New, []byte("conformance"))
	mac.Write([]byte(strconv.Itoa(round)))
	return strconv.Itoa(round) + "." + hex.EncodeToString(mac.Sum(nil))
}

// verify returns the round of a requestState, which is 0 for an empty one.
func verify(state string) (round int, ok bool) {
	if state == "" {
		return 0, true
	}
	number, _, _ := strings.Cut(state, ".")
	round, err := strconv.Atoi(number)
	return round, err == nil && state == sign(round)
}
