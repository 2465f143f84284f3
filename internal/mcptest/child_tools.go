package mcptest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// childTool is a tool of a child: as tools/list shows it, and what it does. It
// returns neither a result nor an error if there shall be no answer.
type childTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`

	call func(c *toolCall) (any, *rpcError)
}

// toolCall is a tools/call that is being served.
type toolCall struct {
	*request
	arguments      json.RawMessage
	inputResponses map[string]json.RawMessage // what a modern client adds when it tries again
}

// decode fills args, which holds the defaults, from the arguments. It takes those
// it knows: gateways may add some.
func (c *toolCall) decode(args any) *rpcError {
	return message{Params: c.arguments}.decodeParams(args)
}

// childResult is the result of a tools/call of a child.
type childResult struct {
	Content []textContent `json:"content"`
	IsError bool          `json:"isError,omitempty"`
}

func says(text string) (any, *rpcError) {
	return childResult{Content: []textContent{newText(text)}}, nil
}

// inputRequired is the result of a call in the stateless era that needs answers
// of the client before it can go on.
type inputRequired struct {
	InputRequests map[string]inputRequest `json:"inputRequests"`
	RequestState  string                  `json:"requestState"`
}

type inputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// childTools are the tools that every child has:
//
//	echo                   text = the params, byte for byte; its argument region
//	                       is one that goes into the header Mcp-Param-Region
//	slow {ms}              "slept" after that time
//	die {code}             exit at once
//	hang                   no answer
//	pid, env, cwd          text = process id, environment (JSON), directory
//	ask {method,params}    ask the client; text = its result, or its error (isError)
//	ask-roots              ask for roots/list
//	emit {method,params}   a notification, notifications/message by default, then "emitted"
//	progress {steps}       as many notifications/progress, if there is a token
//	big {n,c}              text = c (default "x") n times
//	noise {lines,text}     lines on stdout that are no JSON
//	stderr {lines,text}    lines on stderr
//	spawn {stubborn}       text = the id of a process that lasts five minutes and
//	                       does not (or does, if stubborn) ignore SIGTERM
//	late {ms}              an answer at once and another one after that time
//	wrong-id               an answer to nobody's request, then the right one
//	half {text}            the beginning of a line on stdout, and never its end: what is
//	                       written next is on the same line. No answer
//	mute                   stdout is closed, and the process lives on. No answer
//	touch {uri}            notifications/resources/updated
//	add-tool {name,description,quiet}
//	                       one more tool, or another description for the one of that
//	                       name, and notifications/tools/list_changed unless quiet
//
// In the stateless era ask returns an input_required with the one input request
// "0", and emit's default is silent unless the request has a log level.
func childTools() []childTool {
	return []childTool{
		{"echo", "Returns the params it received.", json.RawMessage(`{"type":"object","properties":{` +
			`"text":{"type":"string"},"region":{"type":"string","x-mcp-header":"Region"}}}`), callEcho},
		newChildTool("slow", "Sleeps.", callSlow, "ms", "integer"),
		newChildTool("die", "Exits without an answer.", callDie, "code", "integer"),
		newChildTool("hang", "Never answers.", func(c *toolCall) (any, *rpcError) { return c.hang() }),
		newChildTool("pid", "Returns the process id.", func(*toolCall) (any, *rpcError) { return says(strconv.Itoa(os.Getpid())) }),
		newChildTool("env", "Returns the environment.", callEnv),
		newChildTool("cwd", "Returns the working directory.", callCwd),
		newChildTool("ask", "Asks the client.", callAsk, "method", "string", "params", "object"),
		newChildTool("ask-roots", "Asks the client for its roots.", func(c *toolCall) (any, *rpcError) { return c.askClient("roots/list", nil) }),
		newChildTool("emit", "Sends a notification.", callEmit, "method", "string", "params", "object"),
		newChildTool("progress", "Reports progress.", callProgress, "steps", "integer"),
		newChildTool("big", "Returns a long text.", callBig, "n", "integer", "c", "string"),
		newChildTool("noise", "Writes on stdout what is no JSON.", callNoise, "lines", "integer", "text", "string"),
		newChildTool("stderr", "Writes on stderr.", callStderr, "lines", "integer", "text", "string"),
		newChildTool("spawn", "Starts a process.", callSpawn, "stubborn", "boolean"),
		newChildTool("late", "Answers twice.", callLate, "ms", "integer"),
		newChildTool("wrong-id", "Answers nobody first.", callWrongID),
		newChildTool("half", "Writes half a line.", callHalf, "text", "string"),
		newChildTool("mute", "Closes stdout.", callMute),
		newChildTool("touch", "Says that a resource was updated.", callTouch, "uri", "string"),
		newChildTool("add-tool", "Adds a tool.", callAddTool, "name", "string", "description", "string", "quiet", "boolean"),
	}
}

// newChildTool returns a tool with the given arguments: name, type, name, type …
func newChildTool(name, description string, call func(*toolCall) (any, *rpcError), arguments ...string) childTool {
	properties := map[string]any{}
	for pair := range slices.Chunk(arguments, 2) {
		properties[pair[0]] = map[string]string{"type": pair[1]}
	}
	schema := encode(struct {
		Type       string         `json:"type"`
		Properties map[string]any `json:"properties"`
	}{"object", properties})
	return childTool{name, description, schema, call}
}

// extraTool is a tool that is there to be listed.
func extraTool(name string) childTool {
	return newChildTool(name, "One more tool.", func(*toolCall) (any, *rpcError) { return says(name) })
}

func (c *child) listedTools() []json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	var listed []json.RawMessage
	for _, t := range c.tools {
		listed = append(listed, encode(t))
	}
	return listed
}

func (r *request) callTool() (any, *rpcError) {
	var p struct {
		Name           string                     `json:"name"`
		Arguments      json.RawMessage            `json:"arguments"`
		InputResponses map[string]json.RawMessage `json:"inputResponses"`
	}
	if failure := r.decodeParams(&p); failure != nil {
		return nil, failure
	}
	r.mu.Lock()
	tools := r.tools // which is replaced when it changes
	r.mu.Unlock()
	i := slices.IndexFunc(tools, func(t childTool) bool { return t.Name == p.Name })
	if i < 0 {
		return nil, invalidParams("Unknown tool: %s", p.Name)
	}
	return tools[i].call(&toolCall{r, p.Arguments, p.InputResponses})
}

func callEcho(c *toolCall) (any, *rpcError) { return says(string(c.Params)) }

func callSlow(c *toolCall) (any, *rpcError) {
	var args struct {
		MS int `json:"ms"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	if !c.sleep(time.Duration(args.MS) * time.Millisecond) {
		return nil, nil
	}
	return says("slept")
}

func callDie(c *toolCall) (any, *rpcError) {
	var args struct {
		Code int `json:"code"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	os.Exit(args.Code)
	return nil, nil
}

func callEnv(*toolCall) (any, *rpcError) {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return says(string(encode(env)))
}

func callCwd(*toolCall) (any, *rpcError) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, &rpcError{Code: codeInternalError, Message: err.Error()}
	}
	return says(dir)
}

func callAsk(c *toolCall) (any, *rpcError) {
	var args inputRequest
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	if args.Method == "" {
		return nil, invalidParams("method is required")
	}
	return c.askClient(args.Method, args.Params)
}

// askClient is the call of a tool that needs an answer of the client.
func (c *toolCall) askClient(method string, params json.RawMessage) (any, *rpcError) {
	if c.modern {
		if answer, ok := c.inputResponses["0"]; ok {
			return says(string(answer))
		}
		if params == nil {
			params = json.RawMessage(`{}`) // without which the Go SDK does not read it
		}
		return inputRequired{
			InputRequests: map[string]inputRequest{"0": {method, params}},
			RequestState:  c.id + " asked " + method,
		}, nil
	}
	answer, err := c.ask(c.ctx, method, params)
	switch {
	case err != nil:
		return nil, nil // nobody wants to know any more
	case answer.Error != nil:
		return childResult{Content: []textContent{newText(string(answer.Error))}, IsError: true}, nil
	}
	return says(string(answer.Result))
}

func callEmit(c *toolCall) (any, *rpcError) {
	var args inputRequest
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	silent := false
	if args.Method == "" {
		args.Method = "notifications/message"
		silent = c.modern && c.meta[metaLogLevel] == nil
		if args.Params == nil {
			args.Params = json.RawMessage(`{"level":"info","data":"hello"}`)
		}
	}
	if !silent {
		c.notify(args.Method, args.Params)
	}
	return says("emitted")
}

func callProgress(c *toolCall) (any, *rpcError) {
	var args struct {
		Steps int `json:"steps"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	if token := c.meta["progressToken"]; token != nil {
		for i := range args.Steps {
			c.notify("notifications/progress", encode(struct {
				ProgressToken json.RawMessage `json:"progressToken"`
				Progress      int             `json:"progress"`
				Total         int             `json:"total"`
			}{token, i + 1, args.Steps}))
		}
	}
	return says("done")
}

func callBig(c *toolCall) (any, *rpcError) {
	args := struct {
		N int    `json:"n"`
		C string `json:"c"`
	}{C: "x"}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	if args.N < 0 {
		return nil, invalidParams("n must not be negative")
	}
	return says(strings.Repeat(args.C, args.N))
}

// noiseArguments are the arguments of the tools that write lines.
type noiseArguments struct {
	Lines int    `json:"lines"`
	Text  string `json:"text"`
}

func callNoise(c *toolCall) (any, *rpcError) {
	args := noiseArguments{Lines: 1, Text: "this is no JSON"}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	c.writeLines(c.stdout, args.Lines, args.Text)
	return says("written")
}

func callStderr(c *toolCall) (any, *rpcError) {
	args := noiseArguments{Lines: 1, Text: c.id + " has something to say"}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	c.writeLines(c.stderr, args.Lines, args.Text)
	return says("written")
}

func callSpawn(c *toolCall) (any, *rpcError) {
	var args struct {
		Stubborn bool `json:"stubborn"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	cmd, err := spawn(args.Stubborn)
	if err != nil {
		return nil, &rpcError{Code: codeInternalError, Message: err.Error()}
	}
	go func() { _ = cmd.Wait() }()
	return says(strconv.Itoa(cmd.Process.Pid))
}

// spawn starts a process that lasts five minutes. The stubborn one is a sleep
// that has inherited from its shell that SIGTERM is ignored; it is returned when
// that is so, which shows in the end of the pipe.
func spawn(stubborn bool) (*exec.Cmd, error) {
	if !stubborn {
		cmd := exec.Command("sleep", "300")
		return cmd, cmd.Start()
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", `trap "" TERM; exec 3>&-; exec sleep 300`)
	cmd.ExtraFiles = []*os.File{w}
	err = cmd.Start()
	w.Close()
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	return cmd, err
}

func callLate(c *toolCall) (any, *rpcError) {
	var args struct {
		MS int `json:"ms"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	c.answer(says("in time"))
	if !c.sleep(time.Duration(args.MS) * time.Millisecond) {
		return nil, nil
	}
	return says("late")
}

func callWrongID(c *toolCall) (any, *rpcError) {
	stray := *c.request
	stray.ID = json.RawMessage(`"nobody"`)
	stray.answer(says("for nobody"))
	return says("for you")
}

func callHalf(c *toolCall) (any, *rpcError) {
	args := struct {
		Text string `json:"text"`
	}{Text: `{"jsonrpc":"2.0","id":`}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = io.WriteString(c.stdout, args.Text)
	return nil, nil
}

func callMute(c *toolCall) (any, *rpcError) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if stdout, ok := c.stdout.(io.Closer); ok {
		_ = stdout.Close()
	}
	return nil, nil
}

func callTouch(c *toolCall) (any, *rpcError) {
	var args struct {
		URI json.RawMessage `json:"uri"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	var uri string
	if json.Unmarshal(args.URI, &uri) != nil {
		return nil, invalidParams("uri is required")
	}
	c.announce("notifications/resources/updated", `"uri":`+string(args.URI), func(f listenFilter) bool {
		return slices.Contains(f.ResourceSubscriptions, uri)
	})
	return says("touched")
}

func callAddTool(c *toolCall) (any, *rpcError) {
	var args struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Quiet       bool   `json:"quiet"`
	}
	if failure := c.decode(&args); failure != nil {
		return nil, failure
	}
	if args.Name == "" {
		return nil, invalidParams("name is required")
	}
	tool := extraTool(args.Name)
	if args.Description != "" {
		tool.Description = args.Description
	}
	c.mu.Lock()
	c.tools = append(slices.DeleteFunc(slices.Clone(c.tools), func(t childTool) bool { return t.Name == args.Name }), tool)
	c.mu.Unlock()
	if !args.Quiet {
		c.announce("notifications/tools/list_changed", "", func(f listenFilter) bool { return f.ToolsListChanged })
	}
	return says("added")
}
