package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The SDK does not know the tasks extension (SEP-2663), so its methods are custom ones here,
// and a middleware answers a call with a task.

const tasksExtension = "io.modelcontextprotocol/tasks"

// second is how long what the suite calls a second lasts here: it only waits for the end.
const second = 100 * time.Millisecond

// A job is a tool whose call becomes a task.
type job struct {
	required bool                                  // it does not run without a task
	first    mcp.InputRequestMap                   // is asked before there is a task
	asks     mcp.InputRequestMap                   // is asked by the task before it goes on
	seconds  func(*mcp.CallToolParamsRaw) float64  // that it takes then
	result   func(*mcp.CallToolParamsRaw) *outcome // that it has in the end
}

// An outcome is how a task ends.
type outcome struct {
	result *mcp.CallToolResult
	err    *jsonrpc.Error
}

// taskFields are what every message about a task says.
type taskFields struct {
	TaskID        string    `json:"taskId"`
	Status        string    `json:"status"`
	CreatedAt     time.Time `json:"createdAt"`
	LastUpdatedAt time.Time `json:"lastUpdatedAt"`
	TTL           int       `json:"ttlMs"`
	PollInterval  int       `json:"pollIntervalMs"`
}

// taskBegun answers the call that begins a task.
type taskBegun struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
	taskFields
}

// taskState answers tasks/get.
type taskState struct {
	taskBegun
	Result        *mcp.CallToolResult `json:"result,omitempty"`
	Error         *jsonrpc.Error      `json:"error,omitempty"`
	InputRequests mcp.InputRequestMap `json:"inputRequests,omitempty"`
}

// completed answers all else.
type completed struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

type taskParams struct {
	mcp.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// A task is a running job.
type task struct {
	taskFields
	pending mcp.InputRequestMap
	end     *outcome // when it has ended
	run     func()   // goes on when nothing is pending
}

// jobs are the tools that become tasks, and those that do.
type jobs struct {
	tools map[string]job

	mu    sync.Mutex
	tasks map[string]*task
}

func addTasks(server *mcp.Server) {
	at := func(seconds float64) func(*mcp.CallToolParamsRaw) float64 {
		return func(*mcp.CallToolParamsRaw) float64 { return seconds }
	}
	says := func(format string, args ...any) func(*mcp.CallToolParamsRaw) *outcome {
		return func(*mcp.CallToolParamsRaw) *outcome { return &outcome{result: say(format, args...)} }
	}
	all := &jobs{tasks: map[string]*task{}, tools: map[string]job{
		"slow_compute": {
			seconds: func(params *mcp.CallToolParamsRaw) float64 {
				var args struct{ Seconds float64 }
				_ = json.Unmarshal(params.Arguments, &args)
				return args.Seconds
			},
			result: func(*mcp.CallToolParamsRaw) *outcome {
				// What it links to has another URI behind an aggregate.
				result := say("computed")
				result.Content = append(result.Content, &mcp.ResourceLink{URI: "test://static-text", Name: "static-text"})
				return &outcome{result: result}
			},
		},
		"failing_job": {required: true, seconds: at(1), result: func(*mcp.CallToolParamsRaw) *outcome {
			result := say("this job always fails")
			result.IsError = true
			return &outcome{result: result}
		}},
		"protocol_error_job": {required: true, seconds: at(1), result: func(*mcp.CallToolParamsRaw) *outcome {
			return &outcome{err: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the job has crashed"}}
		}},
		"confirm_delete": {asks: mcp.InputRequestMap{"confirm": elicit(elicitConfirm)}, seconds: at(0), result: says("deleted")},
		"multi_input": {
			asks:    mcp.InputRequestMap{"first": elicit(elicitConfirm), "second": elicit(elicitConfirm)},
			seconds: at(0), result: says("both are answered"),
		},
		"test_tool_with_task": {
			required: true, first: mcp.InputRequestMap{"user_name": elicit(elicitName)}, seconds: at(1),
			result: func(params *mcp.CallToolParamsRaw) *outcome {
				return &outcome{result: say("hello %v", params.InputResponses["user_name"].(*mcp.ElicitResult).Content["name"])}
			},
		},
	}}
	addTool(server, "greet", anyObject, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args struct{ Name string }
		if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
			return nil, err
		}
		return say("Hello, %s!", args.Name), nil
	})
	for name, job := range all.tools {
		// Without a task: the middleware takes the call otherwise.
		addTool(server, name, anyObject, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			switch {
			case job.first != nil && knowsTasks(req):
				return &mcp.CallToolResult{InputRequests: job.first}, nil
			case job.required:
				return nil, missingExtension()
			case job.asks != nil:
				return say("not done, because that has to be confirmed"), nil
			}
			select {
			case <-time.After(time.Duration(job.seconds(req.Params) * float64(second))):
				return job.result(req.Params).result, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	}
	custom(server, "tasks/get", all.get)
	custom(server, "tasks/update", all.update)
	custom(server, "tasks/cancel", all.cancel)
	server.AddReceivingMiddleware(all.middleware)
}

// custom adds a method that the SDK does not know.
func custom[P any, R mcp.Result, T interface {
	*P
	mcp.Params
}](server *mcp.Server, method string, answer func(T) (R, error)) {
	handle := func(_ context.Context, _ *mcp.ServerSession, params T) (R, error) { return answer(params) }
	if err := mcp.AddReceivingCustomMethod(server, method, handle); err != nil {
		panic(err)
	}
}

func missingExtension() error {
	return missingCapabilities(map[string]any{"extensions": map[string]any{tasksExtension: struct{}{}}}, tasksExtension)
}

// middleware refuses clients that have not declared the extension, and has calls of others
// become tasks.
func (j *jobs) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		params, about := req.GetParams().(*taskParams)
		if about {
			if extra := req.GetExtra(); extra != nil && extra.Header != nil && extra.Header.Get("Mcp-Name") != params.TaskID {
				return nil, &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Mcp-Name and the taskId differ"}
			}
			if !knowsTasks(req) {
				return nil, missingExtension()
			}
		}
		if call, ok := req.(*mcp.CallToolRequest); ok && knowsTasks(req) {
			job, ok := j.tools[call.Params.Name]
			if ok && answered(job.first, call.Params.InputResponses) {
				return j.begin(job, call.Params), nil
			}
		}
		return next(ctx, method, req)
	}
}

// knowsTasks reports whether the client has declared the extension.
func knowsTasks(req mcp.Request) (declared bool) {
	client, ok := req.(interface {
		ClientCapabilities() *mcp.ClientCapabilities
	})
	if !ok {
		return false
	}
	if caps := client.ClientCapabilities(); caps != nil {
		_, declared = caps.Extensions[tasksExtension]
	}
	return declared
}

// begin begins a task.
func (j *jobs) begin(job job, params *mcp.CallToolParamsRaw) *taskBegun {
	now := time.Now().UTC()
	t := &task{
		taskFields: taskFields{TaskID: rand.Text(), Status: "working", CreatedAt: now, LastUpdatedAt: now, TTL: 60_000, PollInterval: 100},
		pending:    maps.Clone(job.asks),
	}
	t.run = func() {
		t.set("working")
		time.AfterFunc(time.Duration(job.seconds(params)*float64(second)), func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			if t.Status != "working" {
				return
			}
			t.end = job.result(params)
			if t.set("completed"); t.end.err != nil {
				t.set("failed")
			}
		})
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tasks[t.TaskID] = t
	if len(t.pending) > 0 {
		t.set("input_required")
	} else {
		t.run()
	}
	return &taskBegun{ResultType: "task", taskFields: t.taskFields}
}

func (t *task) set(status string) { t.Status, t.LastUpdatedAt = status, time.Now().UTC() }

// find returns a task. The caller holds the lock.
func (j *jobs) find(params *taskParams) (*task, error) {
	if t := j.tasks[params.TaskID]; t != nil {
		return t, nil
	}
	return nil, invalidParams("taskId: there is no such task")
}

func (j *jobs) get(params *taskParams) (*taskState, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, err := j.find(params)
	if err != nil {
		return nil, err
	}
	state := &taskState{taskBegun: taskBegun{ResultType: "complete", taskFields: t.taskFields}, InputRequests: maps.Clone(t.pending)}
	if t.end != nil {
		state.Result, state.Error = t.end.result, t.end.err
	}
	return state, nil
}

func (j *jobs) update(params *taskParams) (*completed, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, err := j.find(params)
	if err != nil {
		return nil, err
	}
	for key := range params.InputResponses { // others do not matter
		delete(t.pending, key)
	}
	if t.Status == "input_required" && len(t.pending) == 0 {
		t.run()
	}
	return &completed{ResultType: "complete"}, nil
}

func (j *jobs) cancel(params *taskParams) (*completed, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, err := j.find(params)
	if err != nil {
		return nil, err
	}
	if t.end == nil {
		t.set("cancelled")
		t.pending = nil
	}
	return &completed{ResultType: "complete"}, nil
}

const elicitConfirm = `{"type": "object", "properties": {"confirm": {"type": "boolean"}}}`
