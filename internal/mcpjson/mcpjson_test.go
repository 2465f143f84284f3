package mcpjson

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parsed reads a file of a project in /project. The home folder of its user is /home/ada.
func parsed(t *testing.T, name, text string) (*File, error) {
	t.Helper()
	path := filepath.Join("/project", name)
	return Parse([]byte(text), path, path, "/home/ada")
}

// described returns servers and notes, one per line.
func described(f *File) string {
	show := func(v Value) string {
		text := ""
		for _, part := range v {
			switch {
			case part.Env != "" && part.Default != nil:
				text += "<" + part.Env + "|" + *part.Default + ">"
			case part.Env != "":
				text += "<" + part.Env + ">"
			default:
				text += part.Text
			}
		}
		return text
	}
	var lines []string
	for _, s := range f.Servers {
		line := []string{s.Name}
		for _, arg := range s.Command {
			line = append(line, "["+show(arg)+"]")
		}
		if s.URL != nil {
			line = append(line, show(s.URL))
		}
		if s.Dir != nil {
			line = append(line, "in "+show(s.Dir))
		}
		for _, setting := range slices.Concat(s.Env, s.Headers) {
			line = append(line, setting.Name+"="+show(setting.Value))
		}
		if s.Timeout > 0 {
			line = append(line, s.Timeout.String())
		}
		if s.Expose != nil {
			line = append(line, fmt.Sprint(s.Expose))
		}
		lines = append(lines, strings.Join(line, " "))
	}
	for _, n := range f.Notes {
		lines = append(lines, fmt.Sprintf("%d: %s", n.Line, n))
	}
	return strings.Join(lines, "\n")
}

func TestParse(t *testing.T) {
	tests := []struct{ name, file, text, want string }{
		{"a command", "mcp.json", `{"mcpServers":{"a":{"command":"x","args":["1",2,true]}}}`, "a [x] [1] [2] [true]"},
		{"a URL", "mcp.json", `{"mcpServers":{"a":{"url":"http://x/mcp"}}}`, "a http://x/mcp"},
		{
			"null members",
			"mcp.json",
			`{"mcpServers":{"a":{"command":null,"args":null,"url":"http://x","headers":null,` +
				`"type":null,"disabled":null}}}`,
			"a http://x",
		},
		{
			"a timeout that is an object",
			".gemini/settings.json",
			`{"mcpServers":{"a":{"url":"http://x","timeout":{}}}}`,
			"a http://x\n1: a: timeout: not imported, because some clients count seconds and some milliseconds; see " +
				"response_timeout",
		},
		{
			"a variable named like a folder",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","args":["${env:cwd}"]}}}`,
			"a [x] [<cwd>]",
		},
		{
			"control characters in the default of an input",
			"mcp.json",
			`{"inputs":[{"id":"a","default":"\u001b"}],"servers":{"a":{"command":"${input:a}"}}}`,
			"a [<INPUT_A>]",
		},
		{
			"variables of mcp-hub",
			"mcphub/servers.json",
			`{"mcpServers":{"a":{"command":"x","env":{"A(B)":"","C":""}}}}`,
			"a [x] A(B)= C=<C>",
		},
		{"no servers", "mcp.json", `{"mcpServers":{}}`, ""},
		{"a byte order mark", "mcp.json", "\ufeff" + `{"mcpServers":{"a":{"command":"x"}}}`, "a [x]"},
		{
			"VS Code settings",
			"settings.json",
			`{"mcp":{"servers":{"a":{"command":"x","env":{"K":"${env:K}"}}}}}`,
			"a [x] K=<K>",
		},
		{
			"opencode 2",
			"opencode.jsonc",
			`{"mcp":{"servers":{"a":{"type":"local","command":["x","{env:K}"]}}}}`,
			"a [x] [<K>] in /project",
		},
		{
			"variables",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","args":["${A}-${env:B}","${C:-d e}","${D:-}","$E",` +
				`"${1x}","${}"]}}}`,
			"a [x] [<A>-<B>] [<C|d e>] [<D|>] [$E] [${1x}] [${}]",
		},
		{
			"editor variables",
			".vscode/mcp.json",
			`{"servers":{"a":{"command":"x","args":["${userHome}","${workspaceFolder}","${workspaceFolderBasename}","${/}"]}}}`,
			"a [x] [/home/ada] [/project] [project] [/] in /project",
		},
		{
			"a variable in a default",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","args":["${A:-${B}}"]}}}`,
			"1: a: left out: args: ${A:-…} has a variable in its default, which is not supported",
		},
		{
			"commands in variables",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","env":{"K":"${cmd: rm -rf /}"}}}}`,
			"1: a: left out: env: ${cmd: …} is not supported: the gateway runs no commands for variables",
		},
		{
			"an input named PATH",
			"mcp.json",
			`{"inputs":[{"id":"path"}],"servers":{"a":{"command":"x","args":["${input:path}"]}}}`,
			"a [x] [<INPUT_PATH>]",
		},
		{
			"Gemini variables without braces",
			".gemini/settings.json",
			`{"mcpServers":{"a":{"url":"http://x/$A"}}}`,
			"a http://x/<A>",
		},
		{
			"null stands for the environment variable",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","env":{"A":null,"B":""}}}}`,
			"a [x] A=<A> B=<B>",
		},
		{
			"an empty variable of other clients",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","env":{"B":""}}}}`,
			"a [x] B=",
		},
		{
			"paths that begin with a variable",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"${A}/x","cwd":"${B}/y"},"b":{"command":"x","cwd":"${B}"}}}`,
			"a [<A>/x] in <B>/y\nb [x] in <B>",
		},
		{
			"relative paths",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"./x"},"b":{"command":"bin/x","cwd":"sub"},` +
				`"c":{"command":"~/x"},"d":{"command":"/x","cwd":"~"}}}`,
			"a [/project/x] in /project\nb [/project/bin/x] in /project/sub\nc [/home/ada/x]\nd [/x] in /home/ada",
		},
		{"a project", ".mcp.json", `{"mcpServers":{"a":{"command":"x"}}}`, "a [x] in /project"},
		{
			"type selects command or URL",
			"mcp.json",
			`{"mcpServers":{"a":{"type":"stdio","command":"x","url":"http://x"},` +
				`"b":{"transport":"sse","command":"x","url":"http://x"}}}`,
			"a [x]\nb http://x",
		},
		{
			"disabled servers may be invalid",
			"mcp.json",
			`{"mcpServers":{"a":{"disabled":true},"b":{"enabled":false,"args":7}}}`,
			"1: a, b: left out, because the file disables it",
		},
		{
			"protocol headers",
			"mcp.json",
			`{"mcpServers":{"a":{"url":"http://x","headers":{"content-type":"x","Accept":"y","X-A":"z"}}}}`,
			"a http://x X-A=z",
		},
		{
			"client members",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","alwaysAllow":["t"],"autoApprove":[],` +
				`"trust":true}}}`,
			"a [x]",
		},
		{
			"unknown members",
			"mcp.json",
			"{\"mcpServers\":{\"a\":{\"command\":\"x\",\n\"foo\":1},\"b\":{\"command\":\"x\"," +
				"\"foo\":2}}}",
			"a [x]\nb [x]\n2: a, b: foo: unknown, ignored",
		},
		{
			"tools",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","tools":["*"]},"b":{"command":"x","tools":["t","u"]},` +
				`"c":{"command":"x","tools":null}}}`,
			"a [x]\nb [x] [t u]\nc [x]",
		},
		{
			"tools of two lists",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","tools":["t","u"],"includeTools":["u",` +
				`"v"]},"b":{"command":"x","includeTools":["*"],"allowedTools":["t"],"tools":["*"]}}}`,
			"a [x] [u]\nb [x] [t]",
		},
		{
			"no tools allowed",
			"mcp.json",
			"{\"mcpServers\":{\"a\":{\"command\":\"x\",\n\"tools\":[]}," +
				"\"b\":{\"command\":\"x\",\"tools\":[\"t\"],\n\"includeTools\":[\"u\"]}}}",
			"2: a: left out: tools allows no tools\n3: b: left out: includeTools allows no tools",
		},
		{
			"members that exclude",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x","excludeTools":["t"],` +
				`"disabled_resources":["file:///x"],"disabledTools":[],"disabled_prompts":null}}}`,
			"a [x]\n1: a: excludeTools: not imported, these stay visible; deny them to clients\n1: a: disabled_resources: " +
				"not imported, these stay visible; deny them to clients",
		},
		{
			"opencode rules",
			"opencode.json",
			"{\"mcp\":{\"a\":{\"type\":\"local\",\"command\":[\"x\"]}}," +
				"\n\"tools\":{\"a_*\":false},\"permission\":null}",
			"a [x] in /project\n2: tools: ignored; if it excludes servers or tools, remove or deny them",
		},
		{
			"Gemini rules",
			".gemini/settings.json",
			"{\"mcpServers\":{\"a\":{\"url\":\"http://x\"}},\n\"excludeMCPServers\":[\"a\"]}",
			"a http://x\n2: excludeMCPServers: ignored; if it excludes servers or tools, remove or deny them",
		},
		{
			"the line of the reason",
			"mcp.json",
			"{\"mcpServers\":{\"a\":{\"command\":\"x\",\n\"env\":{\n\"K\":\"${cmd: " +
				"x}\"}}}}",
			"3: a: left out: env: ${cmd: …} is not supported: the gateway runs no commands for variables",
		},
		{
			"names",
			"mcp.json",
			`{"mcpServers":{"My Server":{"command":"x"},"a__b":{"command":"x"},` +
				`"@org/pkg":{"command":"x"},"x_":{"command":"x"}}}`,
			"My-Server [x]\na_b [x]\npkg [x]\nx [x]\n1: My Server: is called My-Server in the gateway\n1: a__b: is called " +
				"a_b in the gateway\n1: @org/pkg: is called pkg in the gateway\n1: x_: is called x in the gateway",
		},
		{
			"a comment in a last line without a line break",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"x"}}} // of Ada`,
			"a [x]",
		},
		{
			"names that a gateway needs itself",
			"mcp.json",
			`{"mcpServers":{"health":{"command":"x"},"@org/oauth":{"command":"x"},"Health":{"command":"x"}}}`,
			"health-server [x]\noauth-server [x]\nHealth [x]\n1: health: is called health-server in the gateway\n" +
				"1: @org/oauth: is called oauth-server in the gateway",
		},
		{
			"a name that is too long",
			"mcp.json",
			`{"mcpServers":{"` + strings.Repeat("n", 50) + `":{"command":"x"}}}`,
			strings.Repeat(
				"n",
				46,
			) + " [x]\n1: " + strings.Repeat(
				"n",
				50,
			) + ": is called " + strings.Repeat(
				"n",
				46,
			) +
				" in the gateway",
		},
		{
			"a command line in command",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"npx -y x"},"b":{"command":"npx\t-y","args":["x"]},` +
				`"c":{"command":"${C:-npx -y x}"},"d":{"command":"x","args":["y z"]}}}`,
			"d [x] [y z]\n1: a, b, c: left out: command: contains a space; arguments belong in args",
		},
		{
			"a path with a space",
			"mcp.json",
			`{"mcpServers":{"a":{"command":"/opt/my app/x"},"b":{"command":"/opt/my app/x","args":["y"]}}}`,
			"a [/opt/my app/x]\nb [/opt/my app/x] [y]\n1: a: command: contains a space; arguments belong in args",
		},
		{
			"control characters in a name",
			"mcp.json",
			`{"mcpServers":{"a\u001b[2J":{"command":"x"}}}`,
			"a-2J [x]\n1: a\ufffd[2J: is called a-2J in the gateway",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file, err := parsed(t, tt.file, tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := described(file); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// A server with a malformed list of tools is left out: it must not show all tools.
func TestParseLeavesOutMalformedLists(t *testing.T) {
	for _, name := range slices.Concat(allowLists, denyLists) {
		for _, value := range []string{`"t"`, `7`, `true`, `false`, `{}`, `{"t":false}`, `[7]`, `[null]`, `["t",7]`,
			`["*",7]`, `["t",["u"]]`, `[{"name":"t"}]`} {
			file, err := parsed(
				t,
				"mcp.json",
				"{\"mcpServers\":{\"a\":{\"command\":\"x\",\n\""+name+"\":"+value+
					"},\"b\":{\"command\":\"y\"}}}",
			)
			if err != nil {
				t.Fatal(err)
			}
			want := "b [y]\n2: a: left out: " + name + ": must be a list of "
			if got := described(file); !strings.HasPrefix(got, want) {
				t.Errorf("%s %s: got\n%s", name, value, got)
			}
		}
	}
	for _, tools := range []string{`["t*"]`, `["tool(arg)"]`, `["a::t"]`, `[""]`, `["*","t u"]`} {
		file, err := parsed(t, "mcp.json", `{"mcpServers":{"a":{"command":"x","tools":`+tools+`}}}`)
		if err != nil || described(file) != "1: a: left out: tools: must be a list of tool names" {
			t.Errorf("%s: %v, got\n%s", tools, err, described(file))
		}
	}
	for name, meant := range map[string]string{"include_tools": "includeTools", "tool": "tools",
		"exludeTools": "excludeTools"} {
		file, err := parsed(t, "mcp.json", `{"mcpServers":{"a":{"command":"x","`+name+`":[]}}}`)
		if err != nil || described(file) != "1: a: left out: "+name+": unknown, probably "+meant {
			t.Errorf("%s: %v, got\n%s", name, err, described(file))
		}
	}
}

func TestParseRefuses(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat(`"%":{"command":"x"},`, maxServers+1), ",")
	for i := range maxServers + 1 {
		many = strings.Replace(many, "%", fmt.Sprint("s", i), 1)
	}
	tests := []struct{ name, text, err string }{
		{
			"not JSON",
			"{\n\"mcpServers\": {\n\"a\" 1",
			"/project/mcp.json:3: not JSON, at column 5: invalid character '1' after object name",
		},
		{"an array", "[]", "/project/mcp.json:1: the file is not a JSON object"},
		{"no list", "{}", "no list of servers"},
		{"a list that is an array", `{"mcpServers":[]}`, "the list of servers is not a JSON object"},
		{
			"a server that is a string",
			"{\"mcpServers\":{\n\"a\":\"x\"}}",
			`/project/mcp.json:2: server "a" is not a JSON object`,
		},
		{"neither command nor URL", `{"mcpServers":{"a":{}}}`, `server "a" has neither command nor url`},
		{"a misspelled command", `{"mcpServers":{"a":{"comand":"x"}}}`, `server "a" has neither command nor url, but comand`},
		{"command and URL", `{"mcpServers":{"a":{"command":"x","url":"http://x"}}}`, `server "a" has a command and a url`},
		{"type http without a URL", `{"mcpServers":{"a":{"type":"http","command":"x"}}}`, `server "a" has no url`},
		{
			"type stdio without a command",
			`{"mcpServers":{"a":{"type":"stdio","url":"http://x"}}}`,
			`server "a" has no command`,
		},
		{"an empty command", `{"mcpServers":{"a":{"command":""}}}`, "command is empty"},
		{"an empty list as command", `{"mcpServers":{"a":{"command":[]}}}`, "has neither command nor url"},
		{
			"args that are a string",
			`{"mcpServers":{"a":{"command":"x","args":"-y"}}}`,
			`server "a": args: must be a list of strings`,
		},
		{
			"env that is a list",
			`{"mcpServers":{"a":{"command":"x","env":["A=b"]}}}`,
			`server "a": env: must be an object of strings`,
		},
		{
			"a variable without a name",
			`{"mcpServers":{"a":{"command":"x","env":{"A=":"b"}}}}`,
			"is not the name of a variable",
		},
		{
			"a variable like a placeholder",
			`{"mcpServers":{"a":{"command":"x","env":{"A}{env.HOME":null}}}}`,
			"is not the name of a variable",
		},
		{
			"a header without a name",
			`{"mcpServers":{"a":{"url":"http://x","headers":{"@a":"b"}}}}`,
			"is not the name of a header",
		},
		{"a header with a line break", `{"mcpServers":{"a":{"url":"http://x","headers":{"X":"a\nb"}}}}`, "has a line break"},
		{"disabled that is a string", `{"mcpServers":{"a":{"disabled":"yes"}}}`, "must be true or false"},
		{"a control character", `{"mcpServers":{"a":{"command":"x\u001b[2J"}}}`, "control character"},
		{
			"a repeated name",
			"{\"mcpServers\":{\"a\":{\"command\":\"x\"},\n\"a\":{\"command\":\"y\"}}}",
			`/project/mcp.json:2: server "a" is already defined at line 1`,
		},
		{
			"names that become equal",
			`{"mcpServers":{"a b":{"command":"x"},"a-b":{"command":"y"}}}`,
			`servers "a b" and "a-b" both become a-b`,
		},
		{"a name without letters", `{"mcpServers":{"…":{"command":"x"}}}`, "the name needs ASCII letters or digits"},
		{"a file that is too large", `{"mcpServers":{}}` + strings.Repeat(" ", MaxSize), "more than 1048576 bytes"},
		{"too many servers", `{"mcpServers":{` + many + `}}`, "more than 1000 servers"},
		{"deep JSON", strings.Repeat("[", maxBrackets+1), "brackets"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parsed(t, "mcp.json", tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestHideSecrets(t *testing.T) {
	file, err := parsed(t, "mcp.json", `{"mcpServers":{
		"a":{"command":"x","args":["--key","s1","--token=s2","--verbose","API_KEY=s3","-p","postgres://u:s4@h/d"],"env":{"API_KEY":"s5","MAX_TOKENS":"10","KEY_FILE":"/k","T":"${T_TOKEN}"}},
		"b":{"url":"http://x/?key=s6&n=1&token=s7","headers":{"Authorization":"Bearer s8","X-B":"plain"}},
		"c":{"command":"y","env":{"A_API_KEY":"s9","C_TOKEN":"${A_KEY:-s10}","LEVEL":"${L:-info}","M":"${M:-ghp_0123456789}"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	secrets := file.HideSecrets()
	want := `a [x] [--key] [<A_KEY_2>] [--token=<A_TOKEN>] [--verbose] [API_KEY=<A_API_KEY>] [-p] [<A_P>] API_KEY=<API_KEY> MAX_TOKENS=10 KEY_FILE=/k T=<T_TOKEN>
b http://x/?key=<B_KEY>&n=1&token=<B_TOKEN> Authorization=Bearer <B_AUTHORIZATION> X-B=plain
c [y] A_API_KEY=<C_A_API_KEY> C_TOKEN=<A_KEY> LEVEL=<L|info> M=<M>`
	if got := described(file); got != want {
		t.Errorf("got\n%s", got)
	}
	if len(secrets) != 11 || secrets[0] != (Secret{"API_KEY", "a", "env API_KEY"}) {
		t.Errorf("got %v", secrets)
	}
}

func TestHideSecretsByFormat(t *testing.T) {
	const (
		command = `{"mcpServers":{"a":{"command":"x","args":["run",%q,"last"]}}}`
		flag    = `{"mcpServers":{"a":{"command":"x","args":["--value",%q]}}}`
		env     = `{"mcpServers":{"a":{"command":"x","env":{"VALUE":%q}}}}`
		header  = `{"mcpServers":{"a":{"url":"http://x","headers":{"X-Value":%q}}}}`
		url     = `{"mcpServers":{"a":{"url":%q}}}`
	)
	// The text between < and > is the secret.
	tests := []struct{ name, text, want string }{
		{"OpenAI", command, "<sk-proj-0123456789abcdef>"},
		{"Anthropic, of a flag", flag, "<sk-ant-api03-0123456789>"},
		{"Stripe", env, "<sk_live_0123456789abcd>"},
		{"GitHub", command, "<ghp_0123456789abcdefghij>"},
		{"GitHub, fine-grained", env, "<github_pat_0123456789_abc>"},
		{"GitLab", header, "<glpat-0123456789abcdefghij>"},
		{"Slack", env, "<xoxb-0123456789-abc>"},
		{"AWS", env, "<AKIA0123456789ABCDEF>"},
		{"Google", command, "<AIza0123456789abcdefghijklmnop>"},
		{"Hugging Face", command, "<hf_0123456789abcdefghij>"},
		{"a JWT", header, "<eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig>"},
		{"a private key", env, "<-----BEGIN RSA PRIVATE KEY-----\nMII0123456789>"},
		{"a bearer", header, "Bearer <0123456789>"},
		{"a bearer in an argument", command, "X-Value: Bearer <0123456789>"},
		{"a bearer in JSON", env, `<{"X-Value":"Bearer 0123456789"}>`},
		{"a key in JSON", command, `<{"apiKey": "0123456789"}>`},
		{"a password in a URL", env, "<postgres://ada:0123456789@db/app>"},
		{"a password in a URL with a variable", command, "<postgres://ada:0123456789@>${DB}/app"},
		{"a parameter in an argument", command, "<https://x.example.com/mcp?n=1&api_key=0123456789>"},
		{"a parameter in an assignment", command, "--url=<https://x.example.com/mcp?token=0123456789>"},
		{"a token with an equals sign", command, "<sk-0123456789KEY=>"},
		{"a token between variables", env, "${A}<-ghp_0123456789abcdefghij->${B}"},
		{"a parameter of the URL", url, "https://x.example.com/mcp?n=1&secret=<0123456789>"},
		{"a parameter of a URL with a variable", url, "https://${DB}/mcp?key=<0123456789>&n=1"},
		{"a token as a parameter", url, "https://x.example.com/mcp?config=<eyJhIjoiMDEyMzQ1Njc4OSJ9>"},
		{"a token in the path", url, "https://x.example.com/s/<sk-0123456789abcdef>/mcp"},
		{"a password in the URL", url, "https://<ada:0123456789>@${DB}/mcp"},
		{"a command line", `{"mcpServers":{"a":{"command":%q}}}`, "</bin/npx -y x --token sk-0123456789abcdef>"},
		{
			"a secret of a flag that has an equals sign",
			`{"mcpServers":{"a":{"command":"x","args":["--api-key",%q]}}}`,
			"<0123456789KEY=abc>",
		},

		{"a package", command, "@modelcontextprotocol/server-filesystem@1.2.3"},
		{"a package with a task", command, "task-manager-server"},
		{"a URL", command, "https://mcp.example.com:8080/sse?days=3"},
		{"a path", env, "/Users/ada/desk-drawer/monkeys"},
		{"words", env, "bearer"},
		{"a URL with a scope", url, "https://x.example.com:8080/@ada/server/mcp?days=3"},
	}
	marked := regexp.MustCompile(`<[^>]*>`)
	variables := strings.NewReplacer("${", "<", "}", ">")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file, err := parsed(t, "mcp.json", fmt.Sprintf(tt.text, strings.NewReplacer("<", "", ">", "").Replace(tt.want)))
			if err != nil {
				t.Fatal(err)
			}
			want, secrets := tt.want, file.HideSecrets()
			if hidden := marked.FindString(want); hidden != "" && len(secrets) == 1 {
				before, after, _ := strings.Cut(want, hidden)
				want = variables.Replace(before) + "<" + secrets[0].Variable + ">" + variables.Replace(after)
			}
			if got := described(file); !strings.Contains(got, want) {
				t.Errorf("got\n%s\nwant %s", got, want)
			}
		})
	}
}

// FuzzParse checks that no file crashes Parse. Names are valid in a gateway, texts are printable,
// and texts without variables reach the servers unchanged.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		`{"mcpServers":{"a":{"command":"x","args":["1","${A:-b}"],"env":{"K":"v","N":null}}}}`,
		`{"servers":{"a b":{"type":"http","url":"http://x/?key=1","headers":{"A":"b"}}},"inputs":[{"id":"a"},1]}`,
		`{"mcp":{"a":{"type":"local","command":["x","{env:A}"],"enabled":true}}}`,
		"// c\n{\"mcpServers\":{/**/\"a\":{\"command\":\"~/x\",\"cwd\":\"\"},},}",
		`{"mcpServers":{"a":{"command":["",null]}}}`,
		`{"mcpServers":null}`, `{`, ``, `{"mcpServers":{"":{"url":""}}}`,
		`{"mcpServers":{"a":{"httpUrl":"$A","timeout":1e9,"tools":[1]}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data, "mcp.json", "/project/mcp.json", "/home/ada")
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x1b\x00\n") {
				t.Errorf("the error cannot be printed: %q", err)
			}
			return
		}
		for _, note := range file.Notes {
			if strings.ContainsAny(note.String(), "\x1b\x00\n") {
				t.Errorf("the note cannot be printed: %q", note)
			}
		}
		for _, s := range file.Servers {
			if !plainName.MatchString(s.Name) || len(s.Name) > maxName || strings.Contains(s.Name+"__", "___") {
				t.Errorf("invalid name %q", s.Name)
			}
			if (s.URL == nil) == (len(s.Command) == 0) {
				t.Errorf("%s has no command or URL, or both", s.Name)
			}
		}
		var plain struct {
			Servers map[string]struct {
				Args []string
			} `json:"mcpServers"`
		}
		isPlain := json.Unmarshal(data, &plain) == nil
		file.HideSecrets()
		for _, s := range file.Servers {
			args, ok := plain.Servers[s.Name]
			if !isPlain || !ok || len(s.Command) != 1+len(args.Args) {
				continue
			}
			for i, arg := range args.Args {
				if got, literal := s.Command[1+i].Literal(); literal && got != arg && !strings.Contains(arg, "$") {
					t.Errorf("argument %q became %q", arg, got)
				}
			}
		}
	})
}
