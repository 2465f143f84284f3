package mcptest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// tool is a tool of a server: its description in tools/list, and its function, which returns
// neither a result nor an error if there is no response.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`

	call func(c *call, args arguments) (any, *rpcError)
}

// arguments are those of all tools. Other arguments are ignored, because gateways may add some.
type arguments struct {
	MS, Code, N, Steps, Times, Lines                 int
	C, Text, Name, Description, Message, Method, Ask string
	Methods                                          []string
	Params, Data, URI                                json.RawMessage
	Stubborn, Quiet, Aside                           bool
}

// toolResult is the result of a tools/call.
type toolResult struct {
	Content []textContent `json:"content"`
	IsError bool          `json:"isError,omitempty"`
}

func textResult(text string) (any, *rpcError) {
	return toolResult{Content: []textContent{newText(text)}}, nil
}

// The tools of the two servers, by name.
const (
	childToolNames = "echo slow die hang pid env cwd ask ask-roots emit progress big noise stderr spawn late " +
		"wrong-id half mute touch add-tool"
	remoteToolNames = "echo ask ask-all hang progress fail change touch link"
)

// toolsNamed returns the tools with these names:
//
//	echo                   text = the params, byte for byte; clients must repeat
//	                       the argument region in the header Mcp-Param-Region
//	slow {ms}              "slept" after that time
//	die {code}             exit at once
//	hang {ask}             no answer; first a server request, if ask is its method
//	pid, env, cwd          text = process id, environment (JSON), directory
//	ask {method,params,times,aside}
//	                       send a server request, once or several times in a row;
//	                       text = its result, or the list of its results, or its
//	                       error (isError). With aside, in the legacy era, it goes
//	                       to the streams of the session, not to that of the call
//	ask-all {methods}      send several server requests at the same time
//	ask-roots              ask for roots/list
//	emit {method,params}   a notification, notifications/message by default, then "emitted"
//	progress {steps,ask}   steps notifications/progress, if there is a token; and
//	                       as many after a server request, if ask is its method
//	big {n,c}              text = c (default "x") n times
//	noise {lines,text}     lines on stdout that are not JSON
//	stderr {lines,text}    lines on stderr
//	spawn {stubborn}       text = the id of a process that runs for five minutes and,
//	                       if stubborn, ignores SIGTERM
//	late {ms}              an answer at once and another one after that time
//	wrong-id               a response with an unknown id, then the right one
//	half {text}            the beginning of a line on stdout without its end, so that
//	                       later output is on the same line. No response
//	mute                   close stdout, and keep running. No response
//	touch {uri}            notifications/resources/updated
//	add-tool {name,description,quiet}
//	                       adds or replaces a tool, and sends
//	                       notifications/tools/list_changed unless quiet
//	fail {code,message,data}
//	                       this error
//	change                 notifications/tools/list_changed
//	link                   content that links to and has a resource
//
// In the modern era server requests are in an input_required result, with the keys "0", "1" …, and
// the default of emit sends nothing unless the request has a log level.
func toolsNamed(names string) (named []tool) {
	all := []tool{
		{"echo", "Returns the params it received.", json.RawMessage(`{"type":"object","properties":{` +
			`"text":{"type":"string"},"region":{"type":"string","x-mcp-header":"Region"}}}`), callEcho},
		newTool("slow", "Sleeps.", callSlow, "ms", "integer"),
		newTool("die", "Exits without an answer.", callDie, "code", "integer"),
		newTool("hang", "Never answers.", callHang, "ask", "string"),
		newTool("pid", "Returns the process id.", callPID),
		newTool("env", "Returns the environment.", callEnv),
		newTool("cwd", "Returns the working directory.", callCwd),
		newTool("ask", "Asks the client.", callAsk,
			"method", "string", "params", "object", "times", "integer", "aside", "boolean"),
		newTool("ask-all", "Asks the client several things.", callAskAll, "methods", "array"),
		newTool("ask-roots", "Asks the client for its roots.", callAskRoots),
		newTool("emit", "Sends a notification.", callEmit, "method", "string", "params", "object"),
		newTool("progress", "Reports progress.", callProgress, "steps", "integer", "ask", "string"),
		newTool("big", "Returns a long text.", callBig, "n", "integer", "c", "string"),
		newTool("noise", "Writes text that is not JSON on stdout.", callNoise, "lines", "integer", "text", "string"),
		newTool("stderr", "Writes on stderr.", callStderr, "lines", "integer", "text", "string"),
		newTool("spawn", "Starts a process.", callSpawn, "stubborn", "boolean"),
		newTool("late", "Answers twice.", callLate, "ms", "integer"),
		newTool("wrong-id", "Responds with an unknown id first.", callWrongID),
		newTool("half", "Writes half a line.", callHalf, "text", "string"),
		newTool("mute", "Closes stdout.", callMute),
		newTool("touch", "Says that a resource was updated.", callTouch, "uri", "string"),
		newTool("add-tool", "Adds a tool.", callAddTool, "name", "string", "description", "string", "quiet", "boolean"),
		newTool("fail", "Fails.", callFail, "code", "integer", "message", "string", "data", "object"),
		newTool("change", "Says that the tools have changed.", callChange),
		newTool("link", "Links to a resource.", callLink),
	}
	for name := range strings.FieldsSeq(names) {
		named = append(named, all[slices.IndexFunc(all, func(t tool) bool { return t.Name == name })])
	}
	return named
}

// newTool returns a tool with the given arguments: name, type, name, type …
func newTool(name, description string, call func(*call, arguments) (any, *rpcError), arguments ...string) tool {
	properties := map[string]any{}
	for pair := range slices.Chunk(arguments, 2) {
		properties[pair[0]] = map[string]string{"type": pair[1]}
	}
	schema := encode(struct {
		Type       string         `json:"type"`
		Properties map[string]any `json:"properties"`
	}{"object", properties})
	return tool{name, description, schema, call}
}

// extraTool returns a tool that returns its name, for tests of lists.
func extraTool(name, description string) tool {
	returnName := func(*call, arguments) (any, *rpcError) { return textResult(name) }
	return newTool(name, cmp.Or(description, "One more tool."), returnName)
}

func (s *server) listedTools() (listed []json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tools {
		listed = append(listed, encode(t))
	}
	return listed
}

func (c *call) callTool() (any, *rpcError) {
	var p struct {
		Name      string
		Arguments json.RawMessage
	}
	if failure := c.decodeParams(&p); failure != nil {
		return nil, failure
	}
	c.mu.Lock()
	tools := c.tools
	c.mu.Unlock()
	i := slices.IndexFunc(tools, func(t tool) bool { return t.Name == p.Name })
	if i < 0 {
		return nil, invalidParams("Unknown tool: %s", p.Name)
	}
	var args arguments
	if failure := (message{Params: p.Arguments}).decodeParams(&args); failure != nil && p.Name != "echo" {
		return nil, failure
	}
	return tools[i].call(c, args)
}

func callEcho(c *call, _ arguments) (any, *rpcError) { return textResult(string(c.Params)) }

func callSlow(c *call, args arguments) (any, *rpcError) {
	if !c.sleep(milliseconds(args.MS)) {
		return nil, nil
	}
	return textResult("slept")
}

func callDie(_ *call, args arguments) (any, *rpcError) {
	os.Exit(args.Code)
	return nil, nil
}

func callHang(c *call, args arguments) (any, *rpcError) {
	hang := func(string) (any, *rpcError) {
		c.wire.event(c.message, "hanging")
		return c.hang()
	}
	if args.Ask == "" {
		return hang("")
	}
	return c.ask(1, []inputRequest{{Method: args.Ask}}, hang)
}

func callPID(*call, arguments) (any, *rpcError) { return textResult(strconv.Itoa(os.Getpid())) }

func callEnv(*call, arguments) (any, *rpcError) {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return textResult(string(encode(env)))
}

func callCwd(*call, arguments) (any, *rpcError) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, &rpcError{Code: codeInternalError, Message: err.Error()}
	}
	return textResult(dir)
}

func callAsk(c *call, args arguments) (any, *rpcError) {
	if args.Method == "" {
		return nil, invalidParams("method is required")
	}
	rounds, questions := max(args.Times, 1), []inputRequest{{args.Method, args.Params}}
	if args.Aside && !c.modern {
		return c.askInCall(rounds, questions, c.session.sendOnStreams, textResult)
	}
	return c.ask(rounds, questions, textResult)
}

func callAskAll(c *call, args arguments) (any, *rpcError) {
	var questions []inputRequest
	for _, method := range args.Methods {
		questions = append(questions, inputRequest{Method: method})
	}
	return c.ask(1, questions, textResult)
}

func callAskRoots(c *call, _ arguments) (any, *rpcError) {
	return c.ask(1, []inputRequest{{Method: "roots/list"}}, textResult)
}

func callEmit(c *call, args arguments) (any, *rpcError) {
	silent := false
	if args.Method == "" {
		args.Method = "notifications/message"
		silent = c.modern && c.meta[metaLogLevel] == nil
		if args.Params == nil {
			args.Params = json.RawMessage(`{"level":"info","data":"hello"}`)
		}
	}
	if !silent {
		c.wire.send(outgoing("", args.Method, args.Params))
	}
	return textResult("emitted")
}

func callProgress(c *call, args arguments) (any, *rpcError) {
	total := args.Steps
	if args.Ask != "" {
		total *= 2
	}
	report := func(from int) {
		token := c.meta["progressToken"]
		for i := range args.Steps {
			if token != nil {
				c.wire.send(outgoing("", "notifications/progress",
					fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"total":%d}`, token, from+i+1, total)))
			}
		}
	}
	if !bytes.Contains(c.Params, []byte(`"requestState"`)) {
		report(0)
	}
	if args.Ask == "" {
		return textResult("done")
	}
	return c.ask(1, []inputRequest{{Method: args.Ask}}, func(string) (any, *rpcError) {
		report(args.Steps)
		return textResult("done")
	})
}

func callBig(_ *call, args arguments) (any, *rpcError) {
	if args.N < 0 {
		return nil, invalidParams("n must not be negative")
	}
	return textResult(strings.Repeat(cmp.Or(args.C, "x"), args.N))
}

func callNoise(c *call, args arguments) (any, *rpcError) {
	c.child.writeLines(c.child.stdout, cmp.Or(args.Lines, 1), cmp.Or(args.Text, "this is no JSON"))
	return textResult("written")
}

func callStderr(c *call, args arguments) (any, *rpcError) {
	c.child.writeLines(c.child.stderr, cmp.Or(args.Lines, 1), cmp.Or(args.Text, c.name+" has something to say"))
	return textResult("written")
}

func callSpawn(_ *call, args arguments) (any, *rpcError) {
	cmd, err := spawn(args.Stubborn)
	if err != nil {
		return nil, &rpcError{Code: codeInternalError, Message: err.Error()}
	}
	go func() { _ = cmd.Wait() }()
	return textResult(strconv.Itoa(cmd.Process.Pid))
}

// spawn starts a process that runs for five minutes. A stubborn process inherits from its shell
// that it ignores SIGTERM. spawn returns once the shell has set that, and has therefore closed the
// pipe.
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

func callLate(c *call, args arguments) (any, *rpcError) {
	c.answer(textResult("in time"))
	if !c.sleep(milliseconds(args.MS)) {
		return nil, nil
	}
	return textResult("late")
}

func callWrongID(c *call, _ arguments) (any, *rpcError) {
	stray := *c
	stray.ID = json.RawMessage(`"unknown"`)
	stray.answer(textResult("for an unknown id"))
	return textResult("for you")
}

func callHalf(c *call, args arguments) (any, *rpcError) {
	c.child.writing.Lock()
	defer c.child.writing.Unlock()
	_, _ = io.WriteString(c.child.stdout, cmp.Or(args.Text, `{"jsonrpc":"2.0","id":`))
	return nil, nil
}

func callMute(c *call, _ arguments) (any, *rpcError) {
	c.child.writing.Lock()
	defer c.child.writing.Unlock()
	if stdout, ok := c.child.stdout.(io.Closer); ok {
		_ = stdout.Close()
	}
	return nil, nil
}

func callTouch(c *call, args arguments) (any, *rpcError) {
	var uri string
	if json.Unmarshal(args.URI, &uri) != nil {
		return nil, invalidParams("uri is required")
	}
	c.announce("notifications/resources/updated", `"uri":`+string(args.URI),
		func(f listenFilter) bool { return slices.Contains(f.ResourceSubscriptions, uri) },
		func(s *session) bool { return s.subscribed[uri] })
	return textResult("touched")
}

func callAddTool(c *call, args arguments) (any, *rpcError) {
	if args.Name == "" {
		return nil, invalidParams("name is required")
	}
	added := extraTool(args.Name, args.Description)
	c.mu.Lock()
	c.tools = append(slices.DeleteFunc(slices.Clone(c.tools), func(t tool) bool { return t.Name == args.Name }), added)
	c.mu.Unlock()
	if !args.Quiet {
		c.toolsChanged()
	}
	return textResult("added")
}

func callFail(_ *call, args arguments) (any, *rpcError) {
	failure := &rpcError{Code: args.Code, Message: args.Message}
	if args.Data != nil {
		failure.Data = args.Data
	}
	return nil, failure
}

func callChange(c *call, _ arguments) (any, *rpcError) {
	c.toolsChanged()
	return textResult("changed")
}

func callLink(c *call, _ arguments) (any, *rpcError) {
	return json.RawMessage(fmt.Sprintf(`{"content":[{"type":"resource_link","uri":%[1]q,"name":"data"},`+
		`{"type":"resource","resource":{"uri":%[1]q,"text":"embedded"}}]}`, c.resource("data"))), nil
}
