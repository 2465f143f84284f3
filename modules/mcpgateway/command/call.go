package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func newCallCommand() *cobra.Command {
	var admin adminClient
	var wanted adminapi.ToolCall
	var object string
	var verbose bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "call <server>::<tool> [<key>=<value>...]",
		Short: "Calls a tool, and prints the result as an agent gets it",
		Long: `
Calls a tool of the running gateway and prints its result: text as text, everything else as JSON.
Masks apply as at mcp_path, so you see what an agent sees. With --raw it prints the result as the
server sent it, as JSON. Without --client no rules apply.

Arguments are converted to the types in the schema of the tool:

  lines=20         a number, a boolean, JSON or text, by the schema
  lines:=20        JSON
  text=@notes.txt  the content of a file, UTF-8 text
  text:='"@home"'  a text that begins with @
  -                a JSON object on standard input
  --json '{...}'   a JSON object

If the result is an error, it is printed on standard error, and the exit status is 1.

If no Caddy is running, the command runs the gateway of the configuration file itself.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted.Tool, wanted.Timeout, wanted.Progress = args[0], timeout.String(), isTerminal(os.Stderr)
			if err := readArguments(&wanted, args[1:], object, os.Stdin); err != nil {
				return err
			}
			return admin.run(cmd, func(ctx context.Context) error {
				if err := admin.ensureRunning(ctx); err != nil {
					return err
				}
				answer, err := admin.call(ctx, &wanted, os.Stderr)
				if err != nil {
					return err
				}
				if verbose {
					printSizes(os.Stderr, answer)
				}
				p := resultPrinter{
					out: os.Stdout, escapeOut: isTerminal(os.Stdout),
					errOut: os.Stderr, escapeErrOut: isTerminal(os.Stderr),
				}
				return p.print(answer.Result, wanted.Raw)
			})
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().Lookup("config").Usage =
		"Configuration file with the admin address; its gateway runs here if no Caddy is running"
	cmd.Flags().StringVar(&object, "json", "", "Arguments as a JSON object")
	cmd.Flags().BoolVar(&wanted.Raw, "raw", false, "Print the result as the server sent it: not masked, not redacted")
	cmd.Flags().StringVar(&wanted.Client, "client", "", "The client whose rules apply. Default: none")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "Print sizes and the duration on standard error")
	cmd.Flags().DurationVar(&timeout, "timeout", adminapi.DefaultTimeout, "How long to wait for the server to connect")
	return cmd
}

// readArguments reads the arguments of a tool from the arguments of the command.
func readArguments(call *adminapi.ToolCall, args []string, object string, stdin io.Reader) error {
	call.Arguments, call.Texts = map[string]json.RawMessage{}, map[string]string{}
	if object != "" {
		if err := readObject(call, []byte(object)); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	for _, arg := range args {
		if arg == "-" {
			text, err := io.ReadAll(io.LimitReader(stdin, adminapi.MaxBody+1))
			if err == nil {
				err = readObject(call, text)
			}
			if err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			continue
		}
		if err := readPair(call, arg); err != nil {
			return err
		}
	}
	return nil
}

// readObject reads arguments from a JSON object.
func readObject(call *adminapi.ToolCall, text []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil || all == nil {
		return errors.New("not a JSON object")
	}
	for name, value := range all {
		if err := checkNew(call, name); err != nil {
			return err
		}
		call.Arguments[name] = value
	}
	return nil
}

// readPair reads an argument from key=value, key:=json or key=@file.
func readPair(call *adminapi.ToolCall, arg string) error {
	key, value, ok := strings.Cut(arg, "=")
	key, isJSON := strings.CutSuffix(key, ":")
	if !ok || key == "" {
		return fmt.Errorf("%q must be key=value, key:=json or key=@file", arg)
	}
	if err := checkNew(call, key); err != nil {
		return err
	}
	if isJSON {
		if !json.Valid([]byte(value)) {
			return fmt.Errorf("%s: %q is not JSON", key, value)
		}
		call.Arguments[key] = json.RawMessage(value)
		return nil
	}
	source := "the value"
	if file, is := strings.CutPrefix(value, "@"); is {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("%s: %w; to pass the text %s, write %s:='%s'", key, err, value, key, jsonrpc.Quote(value))
		}
		value, source = string(text), file
	}
	if !utf8.ValidString(value) { // JSON would replace the other bytes
		return fmt.Errorf("%s: %s is not UTF-8 text", key, source)
	}
	call.Texts[key] = value
	return nil
}

// checkNew refuses a duplicate argument.
func checkNew(call *adminapi.ToolCall, key string) error {
	_, known := call.Arguments[key]
	if _, text := call.Texts[key]; known || text {
		return fmt.Errorf("%s is given twice", key)
	}
	return nil
}

// call calls a tool, and prints progress until the result arrives.
func (c *adminClient) call(ctx context.Context, wanted *adminapi.ToolCall, progress io.Writer) (
	*adminapi.CallReport, error,
) {
	res, err := c.open(ctx, http.MethodPost, "/call", wanted)
	if err != nil {
		return nil, withCode(err)
	}
	defer res.Body.Close()
	for lines := json.NewDecoder(res.Body); ; {
		var line struct {
			adminapi.CallReport
			adminapi.Error
		}
		if err := lines.Decode(&line); err != nil {
			return nil, fmt.Errorf("admin API: %w", err)
		}
		switch {
		case line.Message != "":
			line.Message = printable(line.Message)
			return nil, withCode(&line.Error)
		case line.Progress != nil:
			printProgress(progress, line.Progress)
		default:
			return &line.CallReport, nil
		}
	}
}

// withCode adds the code of an API error to its message.
func withCode(err error) error {
	if failure, ok := errors.AsType[*adminapi.Error](err); ok && failure.Code != "" {
		return fmt.Errorf("%w (%s)", failure, printable(failure.Code))
	}
	return err
}

// printProgress prints a progress notification.
func printProgress(w io.Writer, params json.RawMessage) {
	var p struct {
		Progress, Total json.Number
		Message         string
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	text := p.Progress.String()
	if p.Total != "" {
		text += "/" + p.Total.String()
	}
	fmt.Fprintln(w, strings.TrimSpace("progress "+text+" "+printable(p.Message)))
}

// printSizes prints the size of the result and the duration of the call.
func printSizes(w io.Writer, r *adminapi.CallReport) {
	fmt.Fprintf(w, "%s bytes from the server, %s after masking, %.2f s\n",
		humanize.Comma(r.Received), humanize.Comma(int64(len(r.Result))), r.Seconds)
}

// A resultPrinter prints tool results. On terminals it escapes control characters.
type resultPrinter struct {
	out, errOut             io.Writer
	escapeOut, escapeErrOut bool
}

// print prints a result: text contents as text, others as JSON. If the tool reported an error, it
// prints to errOut and returns errFailed.
func (p resultPrinter) print(raw json.RawMessage, asJSON bool) error {
	var result struct {
		Content    []json.RawMessage `json:"content"`
		Structured json.RawMessage   `json:"structuredContent"`
		IsError    bool              `json:"isError"`
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		asJSON = true
	}
	out, escape := p.out, p.escapeOut
	if result.IsError {
		out, escape = p.errOut, p.escapeErrOut
	}
	line := func(text string) {
		if escape {
			text = printableLines(text)
		}
		fmt.Fprintln(out, strings.TrimSuffix(text, "\n"))
	}
	switch {
	case asJSON:
		line(string(raw))
	default:
		for _, text := range contentTexts(result.Content, result.Structured) {
			line(text)
		}
	}
	if result.IsError {
		return errFailed
	}
	return nil
}

// contentTexts returns the contents of a result as they are printed. It leaves out structured
// content if there is a text, because servers repeat it as text.
func contentTexts(contents []json.RawMessage, structured json.RawMessage) (texts []string) {
	hasText := false
	for _, raw := range contents {
		var content struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(raw, &content) == nil && content.Type == "text" && content.Text != nil {
			texts, hasText = append(texts, *content.Text), true
		} else {
			texts = append(texts, string(raw))
		}
	}
	if structured != nil && !hasText {
		texts = append(texts, string(structured))
	}
	return texts
}
