package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// T18, T19: a text is an error if and only if the reference says so, at every position of the
// error word, in every case and with every kind of escape.
func TestErrorsAtEveryPlace(t *testing.T) {
	texts := append(append([]string{}, generatedErrors...), generatedNearErrors...)
	found := 0
	for _, text := range texts {
		for before := range 24 {
			for _, filler := range []string{"x", " ", "\n", "\t", "\\", "é"} {
				for _, after := range []int{0, 1, 9} {
					whole := strings.Repeat(filler, before) + text + strings.Repeat(".", after)
					want := referenceError(whole)
					if want {
						found++
					}
					for _, variant := range []string{whole, strings.ToUpper(whole)} {
						want := referenceError(variant)
						for _, spelled := range []string{plainly(variant), byNumber(variant), blanksByNumber(variant)} {
							if got := judgedError(t, spelled); got != want {
								t.Fatalf("%q, spelled %s: error %t, want %t", variant, spelled, got, want)
							}
						}
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no errors among the texts")
	}
}

func TestErrorsWithUnusualEscapes(t *testing.T) {
	for spelled, want := range map[string]bool{
		`"\u00e9 \\u00"`:                        false,
		`"\u00e9 \\u002"`:                       false,
		`"\u00e9 \\u0065rror"`:                  false,
		`"\u00e9 \\\u0065rror"`:                 false,
		`"\u00e9 \n\u0065rror"`:                 true,
		`"\\\u0074imeout"`:                      true,
		`"\ud83d\u0065xception"`:                true,
		`"{\"status\":1,\"status\":\"ERROR\"}"`: true, // ambiguous
		`"{\"error\":1,\"error\":2}"`:           true,
		`"\u007b\"error\":1}"`:                  true,
	} {
		if got := judgedError(t, spelled); got != want {
			t.Errorf("%s: error %t, want %t", spelled, got, want)
		}
	}
}

// judgedError reports whether a JSON string is kept as an error by [ErrorsOn].
func judgedError(t *testing.T, spelled string) bool {
	t.Helper()
	return judged(t, ErrorsOn, spelled)
}

// judged reports whether a JSON string is kept as an error by a rule.
func judged(t *testing.T, rule Errors, spelled string) bool {
	t.Helper()
	var c Conversation
	body := `{"messages":[{"role":"tool","tool_call_id":"a","content":` + spelled + `}]}`
	if err := c.Parse([]byte(body)); err != nil || len(c.results) != 1 {
		t.Fatalf("%s: %v", body, err)
	}
	return c.keepsError(&c.results[0], rule)
}

func plainly(text string) string {
	spelled, _ := json.Marshal(text)
	return string(spelled)
}

func byNumber(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r > 0xFFFF {
			return plainly(text)
		}
		fmt.Fprintf(&b, `\u%04X`, r)
	}
	return `"` + b.String() + `"`
}

// blanksByNumber escapes only quotes, white space and control characters.
func blanksByNumber(text string) string {
	blanks := strings.NewReplacer("\n", `\u000a`, "\r", `\u000D`, "\t", `\u0009`, " ", `\u0020`, `"`, `\u0022`, `\`, `\\`,
		"\x00", `\u0000`, "\v", `\u000b`, "\f", `\f`, "\b", `\b`, "\x1b", `\u001b`)
	return `"` + blanks.Replace(text) + `"`
}

func preciseText(count int, format string) string {
	var b strings.Builder
	for i := range count {
		fmt.Fprintf(&b, format, i+1)
	}
	return b.String()
}

// T17: results of failed calls, as many tools and agents report them.
var failures = map[string]string{
	"bash, unknown command":  "bash: line 3: gradle: command not found\n",
	"sh, unknown command":    "/bin/sh: 1: jq: not found",
	"bash, syntax":           "bash: -c: line 2: syntax error: unexpected end of file",
	"ls, missing file":       "ls: cannot access 'build': No such file or directory",
	"cat, permission denied": "cat: /etc/shadow: Permission denied\n",
	"core dump": "loading model\nterminate called after throwing an instance of " +
		"'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)\n",
	"exec format error": "/bin/sh: 1: ./tool: Exec format error",
	"python traceback": "Traceback (most recent call last):\n  File \"/app/run.py\", line 12, in " +
		"<module>\n    main()\n  File \"/app/run.py\", line 8, in main\n    return 1 / 0\nZeroDivisionError: division by " +
		"zero\n",
	"python traceback after output": preciseText(400, "step %d done\n") +
		"Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    import nope\nModuleNotFoundError: " +
		"No module named 'nope'\n",
	"python message of three lines": preciseText(300, "row %d\n") +
		"  File \"a.py\", line 9, in load\n    raise SchemaError(lines)\nSchemaError: 2 problems\n  name: missing\n  " +
		"size: negative\n",
	"traceback before the output": "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nOSError: " +
		"disk full\n" + preciseText(60, "cleaned up %d files\n") + "bye\n",
	"pytest": preciseText(200, "tests/test_%d.py .\n") +
		"FAILED tests/test_a.py::test_b - assert 1 == 2\n=================== 1 failed, 199 passed in 3.21s " +
		"===================\n",
	"pytest, errors": preciseText(20, "tests/test_%d.py .\n") +
		"ERROR tests/test_a.py\n=========== 2 errors in 0.31s ===========\n",
	"unittest": "E.\n----------\nRan 2 tests in 0.004s\n\nFAILED (errors=1)\n",
	"go test": "--- FAIL: TestSum (0.00s)\n    sum_test.go:9: got 4, want " +
		"5\nFAIL\nFAIL\texample.com/sum\t0.004s\nFAIL\n",
	"go test of many packages": preciseText(80, "ok  \texample.com/p%d\t0.01s\n") +
		"FAIL\texample.com/q\t0.03s\nok  \texample.com/r\t0.01s\nFAIL\n",
	"go build": "# example.com/app\n./main.go:7:2: undefined: foo\nexit status 1\n",
	"go panic": "panic: runtime error: index out of range [3] with length 3\n\ngoroutine 1 " +
		"[running]:\nmain.main()\n\t/tmp/a.go:8 +0x1d\nexit status 2\n",
	"cargo test": preciseText(50, "test case_%d ... ok\n") +
		"failures:\n    case_51\n\ntest result: FAILED. 50 passed; 1 failed; 0 ignored; 0 measured\n",
	"cargo build": "error[E0425]: cannot find value `x` in this scope\n --> src/main.rs:2:5\n  |\n2 " +
		"|     x\n  |     ^ not found in this scope\n\nerror: could not compile `app` (bin \"app\") due to 1 previous " +
		"error\n",
	"rust panic": "running\nthread 'main' panicked at src/main.rs:4:10:\ncalled `Option::unwrap()` " +
		"on a `None` value\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
	"jest": "FAIL src/sum.test.js\n  ● adds\n\nTests:       1 failed, 4 passed, 5 " +
		"total\nSnapshots:   0 total\nTime:        0.9 s\n",
	"jest in color": "\x1b[1mTests:       \x1b[22m\x1b[1m\x1b[31m2 failed\x1b[39m\x1b[22m, 5 total\n",
	"mocha": "  12 passing (1s)\n  1 failing\n\n  1) parser\n       takes nothing:\n     " +
		"AssertionError: expected null to equal {}\n      at Context.<anonymous> (test/parser.js:9:14)\n",
	"vitest": " Test Files  1 failed | 3 passed (4)\n      Tests  2 failed | 9 passed (11)\n   " +
		"Duration  1.20s\n",
	"maven": preciseText(90, "[INFO] Building module %d\n") +
		"[INFO] BUILD FAILURE\n[INFO] ------\n[INFO] Total time:  3.2 s\n[ERROR] Failed to execute goal compile -> [Help " +
		"1]\n",
	"surefire": "Tests run: 12, Failures: 1, Errors: 0, Skipped: 0\n",
	"gradle":   "> Task :test FAILED\n\nBUILD FAILED in 4s\n3 actionable tasks: 3 executed\n",
	"javac": "App.java:3: error: cannot find symbol\n    Foo f;\n    ^\n  symbol:   class " +
		"Foo\n1 error\n",
	"java exception": "starting\nException in thread \"main\" java.lang.IllegalStateException: " +
		"closed\n\tat com.example.App.run(App.java:21)\n\tat com.example.App.main(App.java:9)\nCaused by: " +
		"java.io.IOException: reset\n\t... 2 more\n",
	"gcc": "a.c: In function 'main':\na.c:3:5: error: 'x' undeclared (first use in this " +
		"function)\n    3 |     x = 1;\n      |     ^\n",
	"ld":   "/usr/bin/ld: cannot find -lfoo\ncollect2: error: ld returned 1 exit status\n",
	"make": "cc -c a.c\nmake: *** [Makefile:4: a.o] Error 1\n",
	"tsc":  "src/a.ts(3,5): error TS2322: Type 'string' is not assignable to type 'number'.\n",
	"tsc, pretty": preciseText(120, "src/a%d.ts - checked\n") +
		"\nFound 2 errors in the same file, starting at: src/a.ts:3\n",
	"mypy": "app.py:3: error: Name \"x\" is not defined  [name-defined]\nFound 1 error in 1 " +
		"file (checked 4 source files)\n",
	"eslint": "/app/a.js\n  3:5  error  'x' is not defined  no-undef\n\n✖ 1 problem (1 error, " +
		"0 warnings)\n",
	"npm": "npm ERR! code ERESOLVE\nnpm ERR! ERESOLVE unable to resolve dependency tree\n",
	"yarn": "$ tsc\nerror Command failed with exit code 2.\ninfo Visit " +
		"https://yarnpkg.com/en/docs/cli/run for documentation.\n",
	"node": "node:internal/modules/cjs/loader:1143\n  throw err;\n\nError: Cannot find " +
		"module './x'\n    at Module._load (node:internal/modules/cjs/loader:1143:15)\n    at " +
		"node:internal/main/run_main_module:23:47\n\nNode.js v20.1.0\n",
	"pip": "Looking in indexes: https://example.com/simple\nERROR: Could not find a version " +
		"that satisfies the requirement nope\nERROR: No matching distribution found for nope\n\n[notice] A new release " +
		"of pip is available: 24.0 -> 25.1\n",
	"apt": "Reading package lists...\nBuilding dependency tree...\nE: Unable to locate " +
		"package nope\n",
	"git": "fatal: not a git repository (or any of the parent directories): .git\n",
	"git push": "To example.com:a/b.git\n ! [rejected]        main -> main (fetch first)\nerror: " +
		"failed to push some refs to 'example.com:a/b.git'\nhint: Updates were rejected because the remote contains " +
		"work\nhint: that you do not have locally.\n",
	"git merge": "Auto-merging a.go\nCONFLICT (content): Merge conflict in a.go\nAutomatic merge " +
		"failed; fix conflicts and then commit the result.\n",
	"docker": "Error response from daemon: No such container: web\n",
	"docker build": preciseText(40, "#%d DONE 0.1s\n") +
		"ERROR: failed to solve: process \"/bin/sh -c make\" did not complete successfully: exit code: 2\n",
	"curl": "curl: (7) Failed to connect to localhost port 8080 after 0 ms: Connection refused\n",
	"ssh":  "git@example.com: Permission denied (publickey).\n",
	"ruby": "a.rb:3:in `run': undefined method `x' for nil (NoMethodError)\n\tfrom a.rb:7:in " +
		"`<main>'\n",
	"a script's own message":    preciseText(20, "fetching part %d\n") + "❌ Failed to fetch the index.\n",
	"Claude Code, Bash":         "Exit code 1\nsrc/a.ts(1,1): something\n" + preciseText(300, "line %d\n"),
	"Claude Code, refused edit": "<tool_use_error>String to replace not found in file.\nString: foo</tool_use_error>",
	"Codex": "Exit code: 101\nWall time: 1.4 seconds\nOutput:\n" + preciseText(400,
		"compiling %d\n"),
	"Codex, unified exec": "Chunk ID: 1f2e\nWall time: 0.1 seconds\nProcess exited with code 1\nOriginal " +
		"token count: 3\nOutput:\nno tests ran\n",
	"Codex, JSON": `{"output":"` + strings.Repeat("x", 9000) +
		`","metadata":{"exit_code":2,"duration_seconds":0.4}}`,
	"Codex, patch": "apply_patch verification failed: Failed to find expected lines in a.go",
	"mini-swe-agent": "<returncode>2</returncode>\n<output>\n" + preciseText(500, "word %d\n") +
		"</output>",
	"SWE-agent": "Traceback (most recent call last):\n  File \"/repo/a.py\", line 2, in " +
		"<module>\nValueError: no\n(Open file: /repo/a.py)\n(Current directory: /repo)\nbash-$",
	"SWE-agent, refused edit": "Your proposed edit has introduced new syntax error(s).\n\nERRORS:\n- E999 " +
		"SyntaxError: invalid syntax\n" + preciseText(90, "%d:code\n"),
	"OpenHands": "make: nothing to be done\n[The command completed with exit code 2.]\n[Current " +
		"working directory: /workspace]\n[Python interpreter: /usr/bin/python]",
	"OpenHands, tool": "ERROR:\nInvalid `path` parameter: /x. The path does not exist.",
	"Gemini CLI": "Command: make\nDirectory: (root)\nOutput: cc a.c\nError: (none)\nExit Code: " +
		"2\nSignal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 71",
	"MCP server":                   "Error executing tool read_file: ENOENT: no such file or directory, open '/srv/x'",
	"MCP protocol":                 "MCP error -32602: Invalid arguments for tool search",
	"MCP validation":               "Input validation error: 'path' is a required property",
	"an opencode shell":            preciseText(3, "line %d\n") + "[exit: 1]",
	"JSON, error":                  `{"error":{"code":404,"message":"Not Found"}}`,
	"JSON, error message":          "  {\n  \"error\": \"quota exceeded\"\n}",
	"JSON, status":                 `{"status":"FAILED","items":[]}`,
	"JSON, HTTP status":            `{"message":"Not Found","documentation_url":"https://example.com","status":"404"}`,
	"JSON, success":                `{"data":null,"success":false}`,
	"JSON, isError":                `{"content":[{"type":"text","text":"gone"}],"isError":true}`,
	"JSON, exit code":              `{"stdout":"","stderr":"","exitCode":127}`,
	"JSON, GraphQL":                `{"errors":[{"message":"no such field"}],"data":null}`,
	"JSON, long":                   `{"ok":false,"items":[` + strings.Repeat(`"item",`, 3000) + `0]}`,
	"failed tests and exit code 0": "<returncode>0</returncode>\n<output>\n1 failed, 2 passed in 0.10s\n</output>",
	"blanks around an error":       "\n\n   \n\tfatal: bad object HEAD\n\n  \n",
}

// T17: results that mention errors but are not errors.
var successes = map[string]string{
	"empty":  "",
	"blanks": " \n\t\n ",
	"source": "import sys\n\ndef main():\n    try:\n        run()\n    except TimeoutError as " +
		"error:\n        raise RuntimeError(\"connection refused\") from error\n" + preciseText(100,
		"    # exception %d\n") + "\n\nif __name__ == \"__main__\":\n    main()\n",
	"source, numbered":             preciseText(30, "%6d\traise ValueError(\"Traceback\")\n"),
	"source, numbered with colons": "[File: /repo/a.py (40 lines total)]\n" + preciseText(40, "%d:error: x\n"),
	"source, numbered with arrows": preciseText(40, "%5d→  return errors.New(\"timeout\")\n"),
	"source, with a reminder": preciseText(40, "%5d→  panic(err)\n") +
		"\n<system-reminder>\nConsider whether this is malware. error: none\n</system-reminder>\n",
	"source that ends in a raise": "class E(Exception):\n    pass\n\ndef f():\n    raise E(\"error: bad\")\n",
	"source in Go": "package a\n\nimport \"errors\"\n\nvar ErrTimeout = errors.New(\"timeout: " +
		"connection refused\")\n",
	"grep": "src/a.go:12:\treturn errors.New(\"x\")\nsrc/b.go:9:// Error: a " +
		"failure\nsrc/c.go:3:func exception() error {\n",
	"grep -n in one file": "12:error: the first\n40:Traceback (most recent call last):\n",
	"a listing of files": "total 8\n-rw-r--r-- 1 root root 0 Aug 16 01:19 access.log\n-rw-r----- 1 root " +
		"root 0 Aug 16 01:19 error.log\n",
	"names of files":       "src/error.go\nsrc/exception_test.go\nsrc/timeout.go\n",
	"a log that ends well": preciseText(400, "error: attempt %d: timeout\n") + "connected\nall 3 shards healthy\n",
	"a build that ends well": "warning: unused variable\n" + preciseText(300, "compiling %d\n") +
		"0 errors, 3 warnings\nbuild finished\n",
	"pytest": preciseText(30, "tests/test_error_%d.py .\n") +
		"=========== 30 passed, 2 warnings in 1.02s ===========\n",
	"unittest":   "...\n----------\nRan 3 tests in 0.001s\n\nOK\n",
	"go test":    "ok  \texample.com/errors\t0.004s\n?   \texample.com/fail\t[no test files]\n",
	"cargo test": "test timeouts ... ok\n\ntest result: ok. 12 passed; 0 failed; 0 ignored\n",
	"jest":       "PASS src/error.test.js\nTests:       0 failed, 5 passed, 5 total\n",
	"maven": "[INFO] Tests run: 12, Failures: 0, Errors: 0, Skipped: 0\n[INFO] BUILD " +
		"SUCCESS\n[INFO] Total time:  3.2 s\n",
	"eslint":  "✖ 3 problems (0 errors, 3 warnings)\n",
	"git log": "a1b2c3 fix: error on timeout\nd4e5f6 handle exception in parser\n",
	"git diff": "diff --git a/a.py b/a.py\n@@ -1,2 +1,2 @@\n-    raise ValueError(\"x\")\n+    " +
		"raise TypeError(\"error: x\")\n",
	"docs": "# Errors\n\nThe client raises an exception on a timeout.\n" +
		preciseText(90, "Paragraph %d about errors: what they mean.\n") + "See also the guide on exceptions.\n",
	"a report":    "SSH: 6 failed password attempts\nHTTP 4xx errors: 6\nThreat level: high\n",
	"Claude Code": "Exit code 0\nerror: shown on purpose\n",
	"Codex":       "Exit code: 0\nWall time: 0.2 seconds\nOutput:\nsrc/error.rs: error: expected\n",
	"Codex, JSON": `{"output":"error: ` + strings.Repeat("x", 9000) +
		`","metadata":{"exit_code":0,"duration_seconds":0.4}}`,
	"mini-swe-agent": "<returncode>0</returncode>\n<output>\nsh: 1: ps: not found\n</output>",
	"SWE-agent, edit": "[File: /repo/a.py (2 lines total)]\n1:import errors\n2:raise errors.Error\nFile " +
		"updated. Please review the changes.\n(Open file: /repo/a.py)\n(Current directory: /repo)\nbash-$",
	"SWE-agent, search": "No matches found for \"TimeoutException\" in /repo\n(Open file: n/a)\n(Current " +
		"directory: /repo)\nbash-$",
	"OpenHands": "a.py\n[The command completed with exit code 0.]\n[Current working directory: " +
		"/workspace]",
	"Gemini CLI": "Command: ls\nDirectory: (root)\nOutput: error.go\nError: (none)\nExit Code: " +
		"0\nSignal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 71",
	"JSON, no error": `{"error":null,"errors":[],"status":"ok","success":true,"exit_code":0,` +
		`"text":"Traceback: error: x"}`,
	"JSON, empty error":         `{"error":"","isError":false,"errors":{ }}`,
	"JSON, error further down":  `{"items":[{"error":"x"}],"note":"error: 1 failed"}`,
	"JSON, a list":              `[{"name":"error"},{"name":"timeout"}]`,
	"JSON, long":                `{"ok":true,"items":[` + strings.Repeat(`"error: 1 failed",`, 3000) + `0]}`,
	"a number":                  "42\n",
	"a sentence about an error": "The exception is raised in parse() when the timeout is 0.",
}

func TestPreciseErrors(t *testing.T) {
	for want, texts := range map[bool]map[string]string{true: failures, false: successes} {
		for name, text := range texts {
			for _, spelled := range []string{plainly(text), byNumber(text), blanksByNumber(text)} {
				if got := judged(t, ErrorsPrecise, spelled); got != want {
					t.Errorf("%s: failure %t, want %t, spelled %.80s", name, got, want, spelled)
				}
			}
		}
	}
}

// T17: of several texts, only the beginning of the first and the end of the last count.
func TestPreciseErrorsInSeveralTexts(t *testing.T) {
	long := preciseText(500, "line %d\n")
	for _, tt := range []struct {
		name  string
		texts []string
		want  bool
	}{
		{"an error at the end", []string{long, "fatal: gone"}, true},
		{"an exit code at the beginning", []string{"Exit code 1", long}, true},
		{"blanks after the error", []string{long, "fatal: gone", " \n", ""}, true},
		{"blanks before the exit code", []string{"", "\n", "Exit code 1", long}, true},
		{"an error in the middle", []string{"begun", "fatal: gone", "done"}, false},
		{"an object that reports an error", []string{`{"isError":true}`, long}, true},
		{"empty texts", []string{"", ""}, false},
	} {
		var parts []string
		for _, text := range tt.texts {
			parts = append(parts, `{"type":"text","text":`+plainly(text)+`}`)
		}
		body := `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[` +
			strings.Join(parts, ",") + `]}]}]}`
		var c Conversation
		if err := c.Parse([]byte(body)); err != nil || len(c.results) != 1 {
			t.Fatalf("%s: %v", body, err)
		}
		if got := c.keepsError(&c.results[0], ErrorsPrecise); got != tt.want {
			t.Errorf("%s: failure %t, want %t", tt.name, got, tt.want)
		}
	}
}

// The verdict of one rule does not count for another.
func TestErrorsUnderSeveralRules(t *testing.T) {
	body := `{"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a",` +
		`"content":"a timeout, long ago"},` +
		`{"role":"assistant","tool_calls":[{"id":"b"}]}]}`
	var c Conversation
	if err := c.Parse([]byte(body)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		kept    Errors
		results int
	}{{ErrorsOn, 0}, {ErrorsPrecise, 1}, {ErrorsOn, 0}, {ErrorsOff, 1}} {
		if got := c.Mask(&Policy{WindowTurns: 1, KeepErrors: want.kept}).Results; got != want.results {
			t.Errorf("rule %d masks %d results, want %d", want.kept, got, want.results)
		}
	}
}

// FuzzPreciseErrors judges arbitrary results. The verdict depends neither on the JSON escapes
// nor on the text between beginning and end.
func FuzzPreciseErrors(f *testing.F) {
	for _, text := range failures {
		f.Add(text, 0)
	}
	for _, text := range successes {
		f.Add(text, 1)
	}
	f.Add(strings.Repeat(`\`, 3*reach), 2)
	f.Add(strings.Repeat("é\x00", reach)+"\nfatal: x", 3)
	f.Fuzz(func(t *testing.T, text string, more int) {
		if !utf8.ValidString(text) {
			return
		}
		want := judged(t, ErrorsPrecise, plainly(text))
		if again := judged(t, ErrorsPrecise, plainly(text)); again != want {
			t.Fatalf("%q: failure %t, then %t", text, want, again)
		}
		for _, spelled := range []string{byNumber(text), blanksByNumber(text)} {
			if json.Valid([]byte(spelled)) && judged(t, ErrorsPrecise, spelled) != want {
				t.Errorf("%q: failure %t, and the opposite with other escapes", text, want)
			}
		}
		// The middle of a long text does not count.
		if n := len(text); n > 10*reach {
			changed := text[:5*reach] + strings.Repeat("\nfatal: x\n", max(more%100, 0)) + text[5*reach:]
			if utf8.ValidString(changed) && judged(t, ErrorsPrecise, plainly(changed)) != want {
				t.Errorf("%q: its middle changes the verdict", text)
			}
		}
	})
}

// BenchmarkPreciseErrors shows that the time does not depend on the size of a result.
func BenchmarkPreciseErrors(b *testing.B) {
	for _, lines := range []int{10, 1_000, 100_000} {
		b.Run(fmt.Sprint(lines, " lines"), func(b *testing.B) {
			body := `{"messages":[{"role":"tool","tool_call_id":"a","content":` +
				plainly(preciseText(lines, "line %d is fine\n")) + `}]}`
			var c Conversation
			if err := c.Parse([]byte(body)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if c.reportsFailure(&c.results[0]) {
					b.Fatal("a failure")
				}
			}
		})
	}
}
