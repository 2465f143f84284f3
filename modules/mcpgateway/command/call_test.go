package command

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func TestReadArguments(t *testing.T) {
	file, latin := filepath.Join(t.TempDir(), "f"), filepath.Join(t.TempDir(), "latin")
	for path, text := range map[string]string{file: "a file\n", latin: "caf\xe9\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name          string
		args          []string
		object, stdin string
		values        string // as JSON
		texts         map[string]string
		err           string
	}{
		{"texts", []string{"a=1", "b=x=y", "c="}, "", "", `{}`, map[string]string{"a": "1", "b": "x=y", "c": ""}, ""},
		{"JSON", []string{`a:={"x":[1]}`, `b:="t"`}, "", "", `{"a":{"x":[1]},"b":"t"}`, nil, ""},
		{"a file", []string{"a=@" + file}, "", "", `{}`, map[string]string{"a": "a file\n"}, ""},
		{"standard input", []string{"-", "b=2"}, "", `{"a":1}`, `{"a":1}`, map[string]string{"b": "2"}, ""},
		{"an object", nil, `{"a":1}`, "", `{"a":1}`, nil, ""},
		{"not a pair", []string{"abc"}, "", "", "", nil, `"abc"`},
		{"no key", []string{"=1"}, "", "", "", nil, `"=1"`},
		{"invalid JSON", []string{"a:=x"}, "", "", "", nil, `a: "x" is not JSON`},
		{"a missing file", []string{"a=@/no/such"}, "", "", "", nil, "a: open /no/such"},
		{"a text that begins with @", []string{"a=@no/such"}, "", "", "", nil,
			`no such file or directory; to pass the text @no/such, write a:='"@no/such"'`},
		{"a file that is not UTF-8", []string{"a=@" + latin}, "", "", "", nil, "a: " + latin + " is not UTF-8 text"},
		{"a text that is not UTF-8", []string{"a=caf\xe9"}, "", "", "", nil, "a: the value is not UTF-8 text"},
		{"a duplicate argument", []string{"a=1", "a:=2"}, "", "", "", nil, "a is given twice"},
		{"JSON that is not an object", nil, "[1]", "", "", nil, "--json: not a JSON object"},
		{"null", nil, "null", "", "", nil, "--json: not a JSON object"},
		{"standard input that is not an object", []string{"-"}, "", "x", "", nil, "standard input: not a JSON object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var call adminapi.ToolCall
			err := readArguments(&call, tt.args, tt.object, strings.NewReader(tt.stdin))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			values, _ := json.Marshal(call.Arguments)
			if err != nil || string(values) != tt.values || !maps.Equal(call.Texts, tt.texts) {
				t.Errorf("got %s %v: %v", values, call.Texts, err)
			}
		})
	}
}

func TestPrintResult(t *testing.T) {
	const control = `{"content":[{"type":"text","text":"a\tb\n\u001b[2Jc\u009b\u202e"}]}`
	for _, tt := range []struct {
		name, result    string
		terminal, raw   bool
		out, complaints string
	}{
		{"text", `{"content":[{"type":"text","text":"a\n"},{"type":"text","text":"b"}]}`, false, false, "a\nb\n", ""},
		{"a terminal", control, true, false, "a\tb\n" + `\x1b[2Jc\u009b\u202e` + "\n", ""},
		{"a pipe", control, false, false, "a\tb\n\x1b[2Jc\u009b\u202e\n", ""},
		{"an image", `{"content":[{"type":"image","data":"aaaa"}]}`, true, false, `{"type":"image","data":"aaaa"}` + "\n",
			""},
		{"structured content with its text", `{"content":[{"type":"text","text":"{}"}],"structuredContent":{}}`, false, false,
			"{}\n", ""},
		{"only structured content", `{"content":[],"structuredContent":{"a":1}}`, false, false, `{"a":1}` + "\n", ""},
		{"raw", `{"content":[{"type":"text","text":"a"}]}`, false, true, `{"content":[{"type":"text","text":"a"}]}` + "\n",
			""},
		{"raw on a terminal", `{"content":"` + "\u009b" + `"}`, true, true, `{"content":"\u009b"}` + "\n", ""},
		{"an error", `{"isError":true,"content":[{"type":"text","text":"no \u001bkey"}]}`, true, false, "",
			`no \x1bkey` + "\n"},
		{"an empty result", `{"content":[]}`, false, false, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, complaints bytes.Buffer
			p := resultPrinter{out: &out, errOut: &complaints, escapeOut: tt.terminal, escapeErrOut: tt.terminal}
			err := p.print(json.RawMessage(tt.result), tt.raw)
			if out.String() != tt.out || complaints.String() != tt.complaints ||
				(err != nil) != strings.Contains(tt.result, "isError") {
				t.Errorf("got %q, %q, %v", &out, &complaints, err)
			}
		})
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"größe 日本 🙂": "größe 日本 🙂", "a\nb": `a\nb`, "\x1b]0;x\x07": `\x1b]0;x\a`, "\xff": `\xff`, "it's": "it's",
		"\u200bx\u2028": `\u200bx\u2028`, "\r": `\r`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: got %s", text, got)
		}
	}
}

// The admin API sends progress before a result or an error.
func TestCallProgress(t *testing.T) {
	answer := ""
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var call adminapi.ToolCall
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil || call.Tool != "a::b" || !call.Progress {
			t.Errorf("got request %+v: %v", call, err)
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer admin.Close()
	client := adminClient{address: admin.Listener.Addr().String()}
	const progress = `{"progress":{"progress":3,"total":10,"message":"half\u001b"}}` + "\n" +
		`{"progress":{"progress":0.5}}` + "\n"
	for _, tt := range []struct{ name, answer, result, err string }{
		{"a result", progress + `{"result":{"content":[]},"seconds":1}`, `{"content":[]}`, ""},
		{"an error", progress + `{"error":"no \u001banswer","code":"timeout"}`, "", `no \x1banswer (timeout)`},
		{"no result", progress, "", "admin API: EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer = tt.answer
			var said bytes.Buffer
			got, err := client.call(t.Context(), &adminapi.ToolCall{Tool: "a::b", Progress: true}, &said)
			if tt.err == "" && (err != nil || string(got.Result) != tt.result) ||
				tt.err != "" && (err == nil || err.Error() != tt.err) {
				t.Errorf("got %+v, %v", got, err)
			}
			if said.String() != `progress 3/10 half\x1b`+"\nprogress 0.5\n" {
				t.Errorf("printed %q", &said)
			}
		})
	}
}

func TestGroupCommand(t *testing.T) {
	for _, tt := range []struct {
		name     string
		args     []string
		out, err string
	}{
		{"no subcommand", nil, "Usage:\n  caddy mcp [flags]\n  caddy mcp [command]\n", ""},
		{"a misspelled subcommand", []string{"chek"}, "", `unknown command "chek" for "caddy mcp"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := &cobra.Command{Use: "caddy", SilenceUsage: true, SilenceErrors: true}
			cmd := &cobra.Command{Use: "mcp "} // as Caddy makes it
			root.AddCommand(cmd)
			caddycmd.Commands()["mcp"].CobraFunc(cmd)
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetArgs(append([]string{"mcp"}, tt.args...))
			err := root.Execute()
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err) {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(out.String(), tt.out) || (out.Len() > 0) != (tt.out != "") {
				t.Errorf("printed %s", &out)
			}
		})
	}
}

func TestAdminAddressIsInvalid(t *testing.T) {
	for address, want := range map[string]string{
		"localhost:1-5":         "must be <host>:<port> or unix/<path>",
		"http://localhost:2019": "must be <host>:<port> or unix/<path>",
		"localhost:99999":       "value out of range",
	} {
		client := adminClient{address: address}
		err := client.get(t.Context(), "/servers", nil)
		if err == nil || !strings.HasPrefix(err.Error(), "invalid admin address "+address+": ") ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestAdminAPIIsOff(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte("{\nadmin off\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := adminClient{config: file}
	err := client.get(t.Context(), "/servers", nil)
	if err == nil || err.Error() != file+" disables the admin API, which this command needs" {
		t.Errorf("got %v", err)
	}
}

func TestReadAdminError(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"an error", `{"error":"unknown server \"a\"","code":"not_found"}`, `unknown server "a"`},
		{"an error that names the parameter", `{"error":"several gateways match; select one with ?gateway=: \"a\" at /a",` +
			`"code":"ambiguous"}`, `several gateways match; select one with --gateway: "a" at /a`},
		{"an error that quotes the parameter", `{"error":"unknown server \"?gateway=\"","code":"not_found"}`,
			`unknown server "?gateway="`},
		{"not JSON", "no\x1b[2J", `status 409: no\x1b[2J`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := &http.Response{StatusCode: http.StatusConflict, Body: io.NopCloser(strings.NewReader(tt.body))}
			if err := readAdminError(res); err.Error() != tt.want {
				t.Errorf("got %v", err)
			}
		})
	}
}
