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

// The SDK does not support the tasks extension (SEP-2663), so its methods are custom methods here,
// and a middleware turns a call into a task.

const tasksExtension = "io.modelcontextprotocol/tasks"

// second is the length of the suite's seconds here, shortened because the suite only waits for the
// end.
const second = 100 * time.Millisecond

// A job is a tool whose call becomes a task.
type job struct {
	required           bool                                  // cannot run without a task
	firstInputRequests mcp.InputRequestMap                   // input requests before the task starts
	inputRequests      mcp.InputRequestMap                   // input requests of the task
	seconds            func(*mcp.CallToolParamsRaw) float64  // duration after that
	result             func(*mcp.CallToolParamsRaw) *outcome // final outcome
}

// An outcome is how a task ends.
type outcome struct {
	result *mcp.CallToolResult
	err    *jsonrpc.Error
}

// taskFields are the members of every message about a task.
type taskFields struct {
	TaskID        string    `json:"taskId"`
	Status        string    `json:"status"`
	CreatedAt     time.Time `json:"createdAt"`
	LastUpdatedAt time.Time `json:"lastUpdatedAt"`
	TTL           int       `json:"ttlMs"`
	PollInterval  int       `json:"pollIntervalMs"`
}

// taskStarted is the result of a call that starts a task.
type taskStarted struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
	taskFields
}

// taskState is the result of tasks/get.
type taskState struct {
	taskStarted
	Result        *mcp.CallToolResult `json:"result,omitempty"`
	Error         *jsonrpc.Error      `json:"error,omitempty"`
	InputRequests mcp.InputRequestMap `json:"inputRequests,omitempty"`
}

// completed is the result of all other methods.
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
	end     *outcome // set when the task has ended
	run     func()   // continues the task when nothing is pending
}

// jobs are the tools that become tasks, and their tasks.
type jobs struct {
	tools map[string]job

	mu    sync.Mutex
	tasks map[string]*task
}

func addTasks(server *mcp.Server) {
	takes := func(seconds float64) func(*mcp.CallToolParamsRaw) float64 {
		return func(*mcp.CallToolParamsRaw) float64 { return seconds }
	}
	returns := func(format string, args ...any) func(*mcp.CallToolParamsRaw) *outcome {
		return func(*mcp.CallToolParamsRaw) *outcome { return &outcome{result: textResult(format, args...)} }
	}
	all := &jobs{tasks: map[string]*task{}, tools: map[string]job{
		"slow_compute": {
			seconds: func(params *mcp.CallToolParamsRaw) float64 {
				var args struct{ Seconds float64 }
				_ = json.Unmarshal(params.Arguments, &args)
				return args.Seconds
			},
			result: func(*mcp.CallToolParamsRaw) *outcome {
				// The link has another URI behind an endpoint of several servers.
				result := textResult("computed")
				result.Content = append(result.Content, &mcp.ResourceLink{URI: "test://static-text", Name: "static-text"})
				return &outcome{result: result}
			},
		},
		"failing_job": {required: true, seconds: takes(1), result: func(*mcp.CallToolParamsRaw) *outcome {
			result := textResult("this job always fails")
			result.IsError = true
			return &outcome{result: result}
		}},
		"protocol_error_job": {required: true, seconds: takes(1), result: func(*mcp.CallToolParamsRaw) *outcome {
			return &outcome{err: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the job crashed"}}
		}},
		"confirm_delete": {inputRequests: mcp.InputRequestMap{"confirm": elicit(elicitConfirm)}, seconds: takes(0),
			result: returns("deleted")},
		"multi_input": {
			inputRequests: mcp.InputRequestMap{"first": elicit(elicitConfirm), "second": elicit(elicitConfirm)},
			seconds:       takes(0), result: returns("got both inputs"),
		},
		"test_tool_with_task": {
			required: true, firstInputRequests: mcp.InputRequestMap{"user_name": elicit(elicitName)}, seconds: takes(1),
			result: func(params *mcp.CallToolParamsRaw) *outcome {
				return &outcome{result: textResult("hello %v",
					params.InputResponses["user_name"].(*mcp.ElicitResult).Content["name"])}
			},
		},
	}}
	addTool(server, "greet", anyObject, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args struct{ Name string }
		if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
			return nil, err
		}
		return textResult("Hello, %s!", args.Name), nil
	})
	for name, job := range all.tools {
		// Called without a task. Otherwise the middleware handles the call.
		addTool(server, name, anyObject, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			switch {
			case job.firstInputRequests != nil && supportsTasks(req):
				return &mcp.CallToolResult{InputRequests: job.firstInputRequests}, nil
			case job.required:
				return nil, missingExtension()
			case job.inputRequests != nil:
				return textResult("not done: needs confirmation"), nil
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

// custom adds a method that the SDK does not support.
func custom[P any, R mcp.Result, T interface {
	*P
	mcp.Params
}](server *mcp.Server, method string, handler func(T) (R, error)) {
	handle := func(_ context.Context, _ *mcp.ServerSession, params T) (R, error) { return handler(params) }
	if err := mcp.AddReceivingCustomMethod(server, method, handle); err != nil {
		panic(err)
	}
}

func missingExtension() error {
	return missingCapabilities(map[string]any{"extensions": map[string]any{tasksExtension: struct{}{}}}, tasksExtension)
}

// middleware rejects task methods of clients that have not declared the extension, and turns calls
// of other clients into tasks.
func (j *jobs) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		params, isTask := req.GetParams().(*taskParams)
		if isTask {
			if extra := req.GetExtra(); extra != nil && extra.Header != nil && extra.Header.Get("Mcp-Name") != params.TaskID {
				return nil, &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Mcp-Name and taskId differ"}
			}
			if !supportsTasks(req) {
				return nil, missingExtension()
			}
		}
		if call, ok := req.(*mcp.CallToolRequest); ok && supportsTasks(req) {
			job, ok := j.tools[call.Params.Name]
			if ok && allAnswered(job.firstInputRequests, call.Params.InputResponses) {
				return j.start(job, call.Params), nil
			}
		}
		return next(ctx, method, req)
	}
}

// supportsTasks reports whether the client has declared the extension.
func supportsTasks(req mcp.Request) (declared bool) {
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

// start starts a task.
func (j *jobs) start(job job, params *mcp.CallToolParamsRaw) *taskStarted {
	now := time.Now().UTC()
	t := &task{
		taskFields: taskFields{TaskID: rand.Text(), Status: "working", CreatedAt: now, LastUpdatedAt: now, TTL: 60_000,
			PollInterval: 100},
		pending: maps.Clone(job.inputRequests),
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
			t.set("completed")
			if t.end.err != nil {
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
	return &taskStarted{ResultType: "task", taskFields: t.taskFields}
}

func (t *task) set(status string) { t.Status, t.LastUpdatedAt = status, time.Now().UTC() }

// find returns a task. The caller holds the lock.
func (j *jobs) find(params *taskParams) (*task, error) {
	if t := j.tasks[params.TaskID]; t != nil {
		return t, nil
	}
	return nil, invalidParams("unknown taskId")
}

func (j *jobs) get(params *taskParams) (*taskState, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, err := j.find(params)
	if err != nil {
		return nil, err
	}
	state := &taskState{taskStarted: taskStarted{ResultType: "complete", taskFields: t.taskFields},
		InputRequests: maps.Clone(t.pending)}
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
	for key := range params.InputResponses { // ignore others
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
