//lint:file-ignore SA1019 the suite uses sampling, roots and logging, which are deprecated

package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

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
