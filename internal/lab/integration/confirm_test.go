package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// withConfirmation returns the lines of a gateway where eve must confirm calls of the tool
// "remove".
func withConfirmation(lines ...string) string {
	return gateway(append(rulesForEve("confirm *::remove"), lines...)...)
}

const removeArguments = `{"path":"/tmp/notes","force":true}`

// calls returns how many tool calls a server has received.
func (s *remoteServer) calls() int { return len(s.Received("tools/call")) }

// A confirmResult is the output of a client after a call.
type confirmResult struct {
	Tools       []string
	Elicitation *struct {
		Message         string
		RequestedSchema json.RawMessage
	}
	Result *struct{ Content []struct{ Text string } }
	Error  *struct {
		Code    int
		Message string
		Data    struct{ Code string }
	}
}

// confirmWithSDK makes an official client call the tool and answer the confirmation with an action.
func confirmWithSDK(t *testing.T, endpoint, era, tool, action string) (outcome confirmResult) {
	t.Helper()
	cmd := peer(t, "confirm.mjs", endpoint, era, eveToken, action)
	cmd.Stdin = strings.NewReader(`{"name":` + quote(tool) + `,"arguments":` + removeArguments + `}`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	for line := range bytes.Lines(out) {
		if err := json.Unmarshal(line, &outcome); err != nil {
			t.Fatalf("got output %s: %v", line, err)
		}
	}
	return outcome
}

// Users of the official TypeScript clients confirm a call, or decline it.
func TestConfirmWithOfficialClients(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "remove", "read")
	url := serve(t, withConfirmation(server.line("files")))
	for _, tt := range []struct{ era, endpoint, tool string }{
		{"v1", "/mcp", "files__remove"},
		{"modern", "/mcp", "files__remove"},
		{"modern", "/mcp/files", "remove"},
	} {
		for _, action := range []string{"accept", "decline", "cancel", "leave", "abort"} {
			if action == "abort" && tt.era == "modern" {
				continue // the gateway has already responded
			}
			t.Run(tt.era+" at "+tt.endpoint+", "+action, func(t *testing.T) {
				before, grown := server.calls(), growth(t)
				outcome := confirmWithSDK(t, url+tt.endpoint, tt.era, tt.tool, action)
				if !slices.Contains(outcome.Tools, tt.tool) || outcome.Elicitation == nil {
					t.Fatalf("got %+v", outcome)
				}
				for _, part := range []string{"Server: files\n", "Tool: remove\n", `"path": "/tmp/notes"`, `"force": true`} {
					if !strings.Contains(outcome.Elicitation.Message, part) {
						t.Errorf("the confirmation lacks %q: %s", part, outcome.Elicitation.Message)
					}
				}
				want, denied := 0, 0.0
				switch action {
				case "accept":
					want = 1
					if outcome.Result == nil || outcome.Error != nil {
						t.Errorf("got %+v", outcome.Error)
					}
				case "decline", "cancel":
					denied = 1
					if outcome.Error == nil || outcome.Error.Data.Code != "confirmation_declined" {
						t.Errorf("got %+v", outcome.Error)
					}
				case "abort":
					if outcome.Error == nil {
						t.Errorf("got %+v", outcome.Result)
					}
				}
				if n := server.calls() - before; n != want {
					t.Errorf("the server received %d calls", n)
				}
				if got := grown()[`denied_total{client="eve",reason="confirmation_declined"}`]; got != denied {
					t.Errorf("denied %v, want %v", got, denied)
				}
			})
		}
	}
	for _, params := range server.params("tools/call") {
		if !strings.Contains(params, removeArguments) || strings.Contains(params, "requestState") {
			t.Errorf("the server received %s", params)
		}
	}
}

// Confirmations work with the official Go SDK.
func TestConfirmWithTheGoClient(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "remove", "read")
	url := serve(t, withConfirmation(server.line("files")))
	for _, action := range []string{"accept", "decline", "cancel"} {
		t.Run(action, func(t *testing.T) {
			before, asked := server.calls(), 0
			client := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1"}, &mcp.ClientOptions{
				ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					if asked++; !strings.Contains(r.Params.Message, "Tool: remove\n") {
						t.Errorf("got confirmation %s", r.Params.Message)
					}
					return &mcp.ElicitResult{Action: action}, nil
				},
			})
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: joinedAt(url), HTTPClient: &http.Client{Transport: bearerTransport(eveToken)},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			_, err = session.CallTool(t.Context(), &mcp.CallToolParams{
				Name: "files__remove", Arguments: json.RawMessage(removeArguments),
			})
			want := 0
			if action == "accept" {
				want = 1
			}
			if n := server.calls() - before; n != want || asked != 1 || (err == nil) != (want == 1) {
				t.Errorf("got %d confirmations, the server received %d calls: %v", asked, n, err)
			}
		})
	}
}

// bearerTransport sends a token with each request.
type bearerTransport string

func (token bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(token))
	return http.DefaultTransport.RoundTrip(r)
}

// A call that is not confirmed writes one audit log line, without its arguments.
func TestConfirmInTheLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "all.log")
	server, address := newLenientServer(t, "remove"), freeAddress(t)
	load(t, block("", block("log", "output file "+file, "format json"))+"\n"+
		site(address, withConfirmation(server.line("files"))))
	params := callOf("files", "remove", removeArguments)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, bearer(eveToken))
			before := len(denialLines(t, file))
			var got reply
			d := c.begin(t, "tools/call", params)
			if era.modern {
				input := d.finish(t).answer.Input(t)
				got = c.ask(t, "tools/call", retryParams(params, input, func(string) string { return `{"action":"decline"}` }))
			} else {
				c.respond(t, d.awaitMessage(t, "elicitation/create"), `{"action":"decline"}`)
				got = d.finish(t)
			}
			if got.answer.Error == nil || got.answer.Error.Symbol() != "confirmation_declined" || got.status != 200 {
				t.Errorf("got %d %s", got.status, got.answer.Raw)
			}
			lines := denialLines(t, file)[before:]
			if len(lines) != 1 || lines[0].Reason != "confirmation_declined" || lines[0].Client != "eve" ||
				lines[0].Server != "files" {
				t.Errorf("logged %+v", lines)
			}
		})
	}
	if n := server.calls(); n != 0 {
		t.Errorf("the server received %d calls", n)
	}
	if log := strings.Join(linesOf(t, file), "\n"); strings.Contains(log, "/tmp/notes") {
		t.Error("the log contains the arguments")
	}
}

// A client can answer after a reload.
func TestConfirmOverAReload(t *testing.T) {
	isolate(t)
	server, address := newLenientServer(t, "remove"), freeAddress(t)
	config := site(address, withConfirmation(server.line("files")))
	load(t, config)
	params := callOf("files", "remove", removeArguments)
	legacy := newTestClientWith(t, closingClient, joinedAt("http://"+address), false, fullCapabilities, bearer(eveToken))
	modern := newTestClientWith(t, closingClient, joinedAt("http://"+address), true, fullCapabilities, bearer(eveToken))
	d := legacy.begin(t, "tools/call", params)
	serverRequest := d.awaitMessage(t, "elicitation/create")
	input := modern.ask(t, "tools/call", params).answer.Input(t)
	load(t, strings.Replace(config, "separator __", "separator __\nrequest_limit 9MiB", 1))
	if n := server.calls(); n != 0 {
		t.Fatalf("the server received %d calls", n)
	}
	legacy.respond(t, serverRequest, `{"action":"accept"}`)
	expectAllowed(t, "legacy", d.finish(t))
	again := retryParams(params, input, func(string) string { return `{"action":"accept"}` })
	expectAllowed(t, "modern", modern.ask(t, "tools/call", again))
	if n := server.calls(); n != 2 {
		t.Errorf("the server received %d calls", n)
	}
}

// Confirmations work with mcpdo, the interactive command line of the Inspector.
func TestConfirmWithTheInspector(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "remove", "read")
	url := serve(t, withConfirmation(server.line("files")))
	home, err := os.MkdirTemp("", "mcpdo") // short, because it has the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	mcpdo := func(args ...string) *exec.Cmd {
		cmd := peer(t, "node_modules/@modelcontextprotocol/inspector/clients/mcpdo/build/mcp-bin.js",
			append([]string{"--format", "json"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
		return cmd
	}
	defer func() {
		if out, err := mcpdo("daemon", "stop").CombinedOutput(); err != nil { // each command leaves the daemon running
			t.Errorf("%v: %s", err, out)
		}
		_ = os.RemoveAll(home)
	}()
	for _, era := range []string{"legacy", "modern"} {
		connect := mcpdo("--connection", era, "connect", joinedAt(url), "--transport", "http", "--era", era,
			"--header", bearer(eveToken))
		if out, err := connect.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for answer, want := range map[string]int{"{}": 1, "--decline": 0} {
			t.Run(era+", "+answer, func(t *testing.T) {
				before := server.calls()
				asked := runJSON[struct {
					Pending struct {
						ID      string `json:"elicitationId"`
						Message string
					} `json:"elicitationPending"`
				}](t, mcpdo("--connection", era, "tools/call", "files__remove", removeArguments), nil)
				if !strings.Contains(asked.Pending.Message, "Tool: remove\n") {
					t.Fatalf("got confirmation %+v", asked)
				}
				out, err := mcpdo("elicitation/respond", asked.Pending.ID, answer).CombinedOutput()
				if (err == nil) != (want == 1) || server.calls()-before != want {
					t.Errorf("the server received %d calls: %v, %s", server.calls()-before, err, out)
				}
			})
		}
	}
}

// The gateway asks the client that started it on stdio.
func TestConfirmOnStdio(t *testing.T) {
	isolate(t)
	server := newRemoteServer(t, "remove")
	file := writeCaddyfile(t, site(freeAddress(t), withConfirmation(server.line("files"))))
	for answer, want := range map[string]string{"accept": `"result"`, "decline": "confirmation_declined"} {
		t.Run(answer, func(t *testing.T) {
			before := server.calls()
			cmd := caddy(t, "mcp-stdio", "--config", file, "--client", "eve")
			in, lines := startPiped(t, cmd)
			exchange := func(text string) mcpclient.Message {
				_, _ = io.WriteString(in, text+"\n")
				line, err := lines.ReadString('\n')
				if err != nil {
					t.Fatal("the process has exited")
				}
				return mcpclient.Parse(line)
			}
			exchange(strings.TrimSpace(strings.Replace(stdioHandshake, `"capabilities":{}`, `"capabilities":{"elicitation":{}}`,
				1)))
			serverRequest := exchange(rpc("tools/call", callOf("files", "remove", removeArguments)))
			if serverRequest.Method != "elicitation/create" || server.calls() != before {
				t.Errorf("after %d calls: %s", server.calls()-before, serverRequest.Raw)
			}
			end := exchange(`{"jsonrpc":"2.0","id":` + string(serverRequest.ID) + `,"result":{"action":"` + answer + `"}}`)
			if !strings.Contains(end.Raw, want) || (server.calls() > before) != (answer == "accept") {
				t.Errorf("after %d calls: %s", server.calls()-before, end.Raw)
			}
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
