package toolresultmask

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name: "mask-conversation",
		Usage: "[--config <path> [--adapter <name>]] [--route <name>] " +
			"[--bill [--cache-ttl <duration>] [--json] [<file or folder>...]] [<file>]",
		Short: "Shows how tool_result_mask changes a request to a model",
		Long: `
Reads the body of a request to a model from a file or standard input, masks old tool
results as the tool_result_mask of a configuration would, and prints the result. A
summary of the masked results and the savings goes to standard error. A body that is
not JSON is printed unchanged, and the command fails.

The configuration is the Caddyfile in the current directory unless --config names
another file. Without a configuration the command uses the defaults and says so on
standard error. If there are several tool_result_mask, --route selects one.

With --bill it replays transcripts request by request, as the agent sent them, and
prints what a provider with a prompt cache would bill with and without the mask. The
part of a request that equals the beginning of the previous one is read from the
cache, the rest is written to it, at the cache_prices of the configuration and four
bytes per token. It reads the body of the last request of a conversation, JSON Lines
of bodies, Claude Code sessions, Codex rollouts, and trajectories of SWE-agent and
mini-SWE-agent; in folders, all files named .json, .jsonl and .traj. Without a file, or
with -, it reads standard input. For one conversation it prints every request, for
several one line each. "moved" marks requests that mask results which had been sent
before. Unreadable files are named on standard error.

If transcripts have timestamps, prompts unused for longer than --cache-ttl have left
the cache. --json prints the same as JSON.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("mask-conversation", flag.ExitOnError)
			flags.String("config", "", "Configuration file")
			flags.String("adapter", "", "Name of config adapter")
			flags.String("route", "", "Route of the tool_result_mask to use")
			flags.Bool("bill", false, "Replay transcripts and print their cost")
			flags.Duration("cache-ttl", bill.TTL, "With --bill: how long the provider caches a prompt; 0 means forever")
			flags.Bool("json", false, "With --bill: print JSON")
			return flags
		}(),
		Func: func(flags caddycmd.Flags) (int, error) {
			if err := maskConversation(flags); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		},
	})
}

func maskConversation(flags caddycmd.Flags) error {
	handler, err := configured(flags.String("config"), flags.String("adapter"), flags.String("route"), os.Stderr)
	if err != nil {
		return err
	}
	switch {
	case flags.Bool("bill"):
		return handler.replay(flags)
	case flags.Bool("json"):
		return errors.New("--json needs --bill")
	case flags.NArg() > 1:
		return fmt.Errorf("expected one file without --bill, got %d", flags.NArg())
	}
	body, err := readRequest(flags.Arg(0))
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	return handler.show(body, os.Stdout, os.Stderr)
}

// readRequest reads a file, or standard input.
func readRequest(file string) ([]byte, error) {
	if file == "" || file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}

// replay prints the bill of the transcripts that the arguments name.
func (h *Handler) replay(flags caddycmd.Flags) error {
	ttl := flags.Duration("cache-ttl")
	if ttl < 0 {
		return fmt.Errorf("--cache-ttl: %s is negative", ttl)
	}
	var report replayReport = &replayTable{out: os.Stdout, errors: os.Stderr}
	if flags.Bool("json") {
		report = &replayJSON{out: os.Stdout}
	}
	return newReplay(h, ttl).run(flags.Args(), os.Stdin, report)
}

// configured returns the tool_result_mask with the given route in a configuration. Without a
// configuration it returns one with the defaults, and says so on stderr.
func configured(file, adapter, route string, stderr io.Writer) (*Handler, error) {
	found := []json.RawMessage{[]byte(`{}`)}
	config, file, err := configfile.Load(file, adapter)
	switch {
	case err != nil:
		return nil, err
	case config == nil && route != "":
		return nil, fmt.Errorf(
			"no %s in this directory, so no tool_result_mask with the route %q; use --config to name a file",
			file, route)
	case config == nil:
		fmt.Fprintf(stderr,
			"no %s in this directory, using the defaults of tool_result_mask; use --config to name a file\n", file)
	default:
		if found, err = configfile.Handlers(config, "tool_result_mask"); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	var chosen []*Handler
	for _, raw := range found {
		handler := new(Handler)
		if err := caddy.StrictUnmarshalJSON(raw, handler); err != nil {
			return nil, fmt.Errorf("tool_result_mask: %w", err)
		}
		if route == "" || handler.Route == route {
			chosen = append(chosen, handler)
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no tool_result_mask", file)
	case len(chosen) == 0:
		return nil, fmt.Errorf("%s has no tool_result_mask with the route %q", file, route)
	case len(chosen) > 1:
		return nil, fmt.Errorf("%s has %d tool_result_mask; use --route to select one", file, len(chosen))
	}
	if err := chosen[0].compile(); err != nil {
		return nil, err
	}
	return chosen[0], chosen[0].Validate()
}

// show writes the masked request to stdout and a summary to stderr.
func (h *Handler) show(body []byte, stdout, stderr io.Writer) error {
	var c chat.Conversation
	if err := h.parse(&c, body); err != nil {
		if _, err := stdout.Write(body); err != nil {
			return err
		}
		if errors.Is(err, jsonspan.ErrSyntax) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: %w", errNotMasked, err)
		}
		fmt.Fprintf(stderr, "not masked: %s\n", strings.TrimPrefix(err.Error(), errNotMasked.Error()+": "))
		return nil
	}
	plan, _ := c.MaskAfter(&h.policy, &chat.Progress{}, c.Uncached())
	if plan.Grows {
		fmt.Fprintln(stderr, "not masked: the placeholders are longer than the results")
	}
	var out bytes.Buffer
	if err := jsonspan.Splice(&out, body, plan.Edits); err != nil {
		return err
	}
	length := out.Len()
	if _, err := out.WriteTo(stdout); err != nil {
		return err
	}
	return h.table(&c, plan, len(body), length, stderr)
}

// errNotMasked means that a request passes unchanged because of the configuration.
var errNotMasked = errors.New("not masked")

// parse parses a request. It returns errNotMasked if the configuration lets the request pass
// unchanged.
func (h *Handler) parse(c *chat.Conversation, body []byte) error {
	switch {
	case !*h.Enabled:
		return fmt.Errorf("%w: enabled is off", errNotMasked)
	case int64(len(body)) > h.BufferLimit:
		return fmt.Errorf("%w: larger than buffer_limit", errNotMasked)
	}
	return c.Parse(body)
}

// comma formats a number with thousands separators.
func comma(n int) string { return humanize.Comma(int64(n)) }

// printable quotes a name that is unsafe to print on a terminal.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// table writes how many results were masked, by tool.
func (h *Handler) table(c *chat.Conversation, plan chat.Plan, before, after int, w io.Writer) error {
	type row struct {
		tool                           string
		results, masked, chars, hidden int
	}
	rows := map[string]*row{}
	for r := range c.Results(&h.policy) {
		tool := cmp.Or(r.Tool, "(unknown)")
		if rows[tool] == nil {
			rows[tool] = &row{tool: tool}
		}
		rows[tool].results++
		rows[tool].chars += r.Chars
		if r.Masked {
			rows[tool].masked++
			rows[tool].hidden += r.Chars
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "tool\tresults\tmasked\tcharacters\thidden\n")
	for _, r := range slices.SortedFunc(maps.Values(rows), func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.hidden, a.hidden), cmp.Compare(a.tool, b.tool))
	}) {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%s\t%s\n", printable(r.tool), r.results, r.masked, comma(r.chars), comma(r.hidden))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d turns, the first %d of them old: %d results masked, "+
		"%s characters saved (about %s tokens), %s of %s bytes sent\n",
		plan.Turns, plan.Boundary, plan.Results,
		comma(plan.Saved), comma(plan.Saved/chat.CharsPerToken), comma(after), comma(before))
	if err == nil && plan.Boundary == 0 && h.policy.ClearAtLeast == chat.ClearAuto {
		_, err = fmt.Fprintln(w, "clear_at_least auto waits: masking now would cost more than it saves")
	}
	return err
}
