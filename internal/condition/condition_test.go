package condition

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func compile(t testing.TB, expression string) *Condition {
	t.Helper()
	c, err := Compile(expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return c
}

// facts returns the facts of a call with these arguments.
func facts(arguments string) *Facts {
	return &Facts{
		Client: "alice", Server: "files", Tool: "read_file",
		Annotations: mcp.ReadOnly | mcp.OpenWorld, Arguments: []byte(arguments),
	}
}

// keysOf returns n members of an object.
func keysOf(n int) string {
	var members []string
	for i := range n {
		members = append(members, fmt.Sprintf(`"k%d":%d`, i, i))
	}
	return strings.Join(members, ",")
}

func TestHolds(t *testing.T) {
	for _, test := range []struct {
		expression, arguments string
		want                  bool
	}{
		{`true`, ``, true},
		{`client == "alice" && server == "files" && tool == "read_file"`, ``, true},
		{`tool in ["read_file", "list"]`, ``, true},
		{`tool.startsWith("write_")`, ``, false},
		{`annotations.readOnlyHint && annotations.openWorldHint`, ``, true},
		{`annotations.destructiveHint || annotations["idempotentHint"]`, ``, false},
		{`annotations.size() == 4 && annotations.all(hint, hint.endsWith("Hint"))`, ``, true},
		{`arguments == {}`, ``, true},
		{`size(arguments) == 0`, `{}`, true},
		{`has(arguments.path)`, `{}`, false},
		{`has(arguments.a.b)`, `{"a":{"b":null}}`, true},
		{`"path" in arguments`, `{"path":null}`, true},
		{`arguments.path == null`, `{"path":null}`, true},
		{`arguments.path.startsWith("/srv/") && !arguments.path.contains("..")`, `{"path":"/srv/a"}`, true},
		{`arguments.path.startsWith("/srv/") && !arguments.path.contains("..")`, `{"path":"/srv/../etc"}`, false},
		{`arguments.path == "/a\n\u00e9😀"`, `{"path":"\/a\n\u00e9\ud83d\ude00"}`, true},
		{`arguments.path.matches("^/srv/[a-z]+$")`, `{"path":"/srv/data"}`, true},
		{`arguments.path.matches("^(/[a-z]{1,4}){2}$")`, `{"path":"/srv/data"}`, true},
		{`matches(arguments.path, "^/srv/[a-z]+$")`, `{"path":"/srv/Data"}`, false},
		{`arguments.host.lowerAscii().trim() == "example.com"`, `{"host":" Example.COM "}`, true},
		{`arguments.path.split("/")[1] == "srv"`, `{"path":"/srv/data"}`, true},
		{`arguments.items.all(i, i.id < 3)`, `{"items":[{"id":1},{"id":2}]}`, true},
		{`arguments.items.exists(i, i == "b")`, `{"items":["a","b"]}`, true},
		{`arguments.items.map(i, i * 2) == [2, 4]`, `{"items":[1,2]}`, true},
		{`arguments.items.filter(i, i > 1) == [2]`, `{"items":[1,2]}`, true},
		{`arguments.all(key, key in ["a", "b"])`, `{"a":1,"b":2}`, true},
		{`arguments.dry_run`, `{"dry_run":true}`, true},
		{`arguments.o == {"a": [1, {"b": "c"}]}`, `{"o":{"a":[1.0,{"b":"c"}]}}`, true},
		{`arguments["a b"] == 1`, `{"a b":1}`, true},
		{`arguments.path == "x"`, `{"path":"x","env":{"PATH":"y"}}`, true}, // keys in different objects
		{`arguments.k39 == 39 && size(arguments) == 40`, `{` + keysOf(40) + `}`, true},
		{`has(arguments.A) || has(arguments.a)`, `{"a":1}`, true},

		{`arguments.n == 1 && arguments.n in [1, 2] && arguments.n < 1.5`, `{"n":1}`, true},
		{`arguments.n == 1 && arguments.n in [1, 2] && arguments.n < 1.5`, `{"n":1.0}`, true},
		{`arguments.n == 1 && arguments.n in [1, 2] && arguments.n < 1.5`, `{"n":10e-1}`, true},
		{`arguments.n == 1.0 && arguments.n % 2 == 1`, `{"n":1e0}`, true},
		{`arguments.n == -3`, `{"n":-3.0}`, true},
		{`arguments.n > 0.25`, `{"n":0.5}`, true},
		{`arguments.n == 9007199254740993`, `{"n":9007199254740993}`, true},
		{`arguments.n == 9007199254740993`, `{"n":9007199254740992}`, false},
		{`arguments.n == 9007199254740993`, `{"n":9007199254740992.0}`, false},
		{`arguments.a == arguments.b`, `{"a":9007199254740992,"b":9007199254740993}`, false},
		{`arguments.n == -9223372036854775808`, `{"n":-9223372036854775808}`, true},
		{`arguments.n == 18446744073709551615u`, `{"n":18446744073709551615}`, true},
		{`arguments.n > 9223372036854775807`, `{"n":9223372036854775808}`, true},
		{`arguments.n > 1`, `{"n":1e300}`, true},
		{`arguments.n == "1"`, `{"n":1}`, false},

		// An error has no effect if the result does not depend on it.
		{`arguments.missing == 1 || client == "alice"`, `{}`, true},
		{`arguments.missing == 1 && client == "bob"`, `{}`, false},
		{`has(arguments.path) && arguments.path == "x"`, `{}`, false},
		{`client == "bob" ? arguments.missing : true`, `{}`, true},
	} {
		t.Run(test.expression+" "+test.arguments, func(t *testing.T) {
			if got, err := compile(t, test.expression).Holds(facts(test.arguments)); err != nil || got != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// Errors are logged, so they must not contain arguments.
func TestErrorsHaveNoArguments(t *testing.T) {
	for expression, want := range map[string]string{
		`arguments[arguments.key] == 1`:            "no such key",
		`{"a": 1}[arguments.key] == 1`:             "no such key",
		`[1, 2][arguments.n] == 1`:                 "index out of bounds",
		`int(arguments.key) == 1`:                  "type conversion error from 'string' to 'int'",
		`arguments.key.substring(7) == "x"`:        "index out of range",
		`arguments.keys.exists(k, k.x.y == 1)`:     "no such key: x",
		`duration(arguments.key) > duration("1s")`: "type conversion error from 'string' to 'google.protobuf.Duration'",
	} {
		_, err := compile(t, expression).Holds(&Facts{Arguments: []byte(`{"key":"s3cret","n":731,"keys":["s3cret"]}`)})
		if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "731") {
			t.Errorf("%s: %v", expression, err)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", expression, err, want)
		}
	}
}

func TestHoldsFails(t *testing.T) {
	for _, test := range []struct{ name, expression, arguments, want string }{
		{"a missing key", `arguments.path == "x"`, `{}`, "no such key: path"},
		{"a missing key at another level", `has(arguments.a.b)`, `{}`, "no such key: a"},
		{"a missing element", `arguments.a[1] == 1`, `{"a":[1]}`, "index out of bounds: 1"},
		{"another type", `arguments.n.startsWith("x")`, `{"n":1}`, "no such overload"},
		{"a pattern for another type", `arguments.n.matches("1")`, `{"n":1}`, "no such overload"},
		{"a pattern for a missing key", `arguments.n.matches("1")`, `{}`, "no such key: n"},
		{"types that have no order", `arguments.n < "1"`, `{"n":1}`, "no such overload"},
		{"a member of a string", `has(arguments.a.b)`, `{"a":"x"}`, "no such key: b"},
		{"not a bool", `arguments.n`, `{"n":1}`, "the expression is of type int, want bool"},
		{"null", `arguments.n`, `{"n":null}`, "the expression is of type null_type, want bool"},
		{"division", `1 / size(arguments) == 1`, `{}`, "division by zero"},
		{"overflow", `arguments.n + 1 > 0`, `{"n":9223372036854775807}`, "integer overflow"},
		{"an error that matters", `arguments.missing == 1 || client == "bob"`, `{}`, "no such key: missing"},
		{"an error that is negated", `!(arguments.missing == 1)`, `{}`, "no such key: missing"},
		{"an error that is compared", `arguments.missing != 1`, `{}`, "no such key: missing"},

		{"not JSON", `arguments.a == 1`, `{"a":1`, "arguments: unexpected EOF"},
		{"more than one value", `arguments.a == 1`, `{"a":1} {}`, "arguments: invalid JSON"},
		{"not an object", `arguments.a == 1`, `[1]`, "arguments: not an object"},
		{"null instead of an object", `has(arguments.a)`, `null`, "arguments: not an object"},
		{"not UTF-8", `arguments.a == 1`, "{\"a\":1,\"b\":\"\xff\"}", "arguments: not UTF-8"},
		{"a lone surrogate", `arguments.a == 1`, `{"a":1,"b":"\ud83d"}`, "arguments: invalid surrogate pair at byte 11"},
		{"surrogates in the wrong order", `arguments.a == 1`, `{"a":1,"b":"\ude00\ud83d"}`, "invalid surrogate pair"},
		{"a lone surrogate before a character", `arguments.a == 1`, `{"a":1,"b":"\ud83d\u0061"}`, "invalid surrogate pair"},
		{"a lone surrogate after an escape", `arguments.a == 1`, `{"a":1,"b":"\\ud83d\ude00"}`, "invalid surrogate pair"},
		{"a repeated key", `arguments.a == 1`, `{"a":1,"a":1}`, `key "a" is repeated, or differs only in case`},
		{"an escaped key", `arguments.a == 1`, `{"a":1,"\u0061":2}`, `key "a" is repeated`},
		{"a repeated key at another level", `arguments.a == 1`, `{"a":1,"b":[{"c":{"d":1,"d":1}}]}`, `key "d" is repeated`},
		{"a repeated key of many", `arguments.k0 == 1`, `{` + keysOf(40) + `,"K39":1}`, `key "K39" is repeated`},
		{"a repeated key of the first of many", `arguments.k0 == 1`, `{` + keysOf(40) + `,"k3":1}`, `key "k3" is repeated`},
		{"a key in two cases", `arguments.a == 1`, `{"a":1,"A":2}`, `key "A" is repeated`},
		{"the Kelvin sign", `arguments.k == 1`, "{\"k\":1,\"\u212a\":2}", "key \"\u212a\" is repeated"},
		{"the long s", `has(arguments.a)`, "{\"\u017f\":1,\"s\":2}", `key "s" is repeated`},
		{"a null character", `arguments.a == 1`, `{"a":1,"a\u0000":2}`, `key "a\x00" is repeated`},
		{"a key in another case", `has(arguments.force)`, `{"Force":true}`, `key "Force" can be mistaken for "force"`},
		{"an index in another case", `arguments["force"]`, `{"FORCE":true}`, `key "FORCE" can be mistaken for "force"`},
		{"a key of an in expression in another case",
			`"force" in arguments.options`, `{"options":{"Force":1}}`, `key "Force" can be`},
		{"a key of a loop in another case", `arguments.exists(k, k == "force")`, `{"Force":1}`,
			`key "Force" can be mistaken`},
		{"a key of a loop over several names", `arguments.a.exists(k, k in ["x", "force"])`, `{"a":{"Force":1}}`,
			`key "Force"`},
		{"a key of a dynamic value in another case", `has(dyn(arguments).force)`, `{"Force":1}`,
			`key "Force" can be mistaken`},
		{"a member in another case", `has(arguments.a.b.c)`, `{"a":{"b":{"C":true}}}`, `key "C" can be mistaken for "c"`},
		{"a key in a list, another case", `arguments.l.exists(i, has(i.force))`, `{"l":[{"Force":1}]}`, `key "Force" can be`},
		{"a key in an element in another case", `has(arguments.l[0].force)`, `{"l":[{"Force":1}]}`, `key "Force" can be`},
		{"a key in loops", `arguments.l.all(i, i.m.all(j, has(j.x)))`, `{"l":[{"m":[{"X":1}]}]}`, `key "X" can be`},
		{"a large number", `arguments.a == 1`, `{"a":18446744073709551616}`, "the number at byte 5 does not fit in 64 bits"},
		{"a small number", `arguments.a == 1`, `{"a":-9223372036854775809}`, "the number at byte 5 does not fit"},
		{"a large exponent", `arguments.a == 1`, `{"a":1,"b":1e309}`, "the number at byte 11 does not fit"},
		{"a long key", `arguments.a[arguments.k]`, `{"a":{},"k":"` + strings.Repeat("k", 1000) + `"}`, "no such key"},
		{"depth", `arguments.a == 1`, `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, "nested too deeply"},
		{"size", `arguments.a == 1`, `{"a":"` + strings.Repeat("a", 1<<20) + `"}`, "1048584 bytes, the limit is 1048576"},
		{"values", `arguments.a == 1`, `{"a":[` + strings.Repeat("1,", 1<<16) + `1]}`, "arguments: more than 65536 values"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := compile(t, test.expression).Holds(facts(test.arguments))
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 120 || got {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// Invalid arguments have no effect on a condition that does not use them.
func TestArgumentsThatAreNotUsed(t *testing.T) {
	c := compile(t, `client == "alice"`)
	if holds, err := c.Holds(facts(`{"a":1,"a":`)); err != nil || !holds {
		t.Errorf("got %v, %v", holds, err)
	}
}

func TestLargestArguments(t *testing.T) {
	c := compile(t, `arguments.a == 1 && size(arguments.b) > 1000000`)
	arguments := `{"a":1,"c":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `,"b":"`
	arguments += strings.Repeat("b", maxArguments-len(arguments)-2) + `"}`
	if holds, err := c.Holds(facts(arguments)); err != nil || !holds {
		t.Errorf("got %v, %v", holds, err)
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, test := range []struct{ expression, want string }{
		{" ", "the expression is empty"},
		{`client ==`, "line 1, column 10: Syntax error: mismatched input '<EOF>'"},
		{`["x"].exists(arguments, !has(.arguments.x))`, "line 1, column 13: the name arguments is reserved"},
		{`[{"a": 1}].map(client, client.a) == [1]`, "the name client is reserved"},
		{`client = "alice"`, "line 1, column 8: Syntax error: token recognition error at: '= '"},
		{"client ==\n  user", "line 2, column 3: undeclared reference to 'user'; the variables are client, server, tool"},
		{`tool.startswith("x")`, "undeclared reference to 'startswith' (did you mean startsWith?)"},
		{`client == 1`, "line 1, column 8: found no matching overload for '_==_' applied to '(string, int)'"},
		{`"alice"`, "the expression is of type string, want bool"},
		{`size(arguments)`, "the expression is of type int, want bool"},
		{`arguments`, "the expression is of type map(string, dyn), want bool"},
		{`annotations.read_only`, "line 1, column 12: unknown annotation read_only; use readOnlyHint, destructiveHint,"},
		{`annotations["readonlyHint"]`, "unknown annotation readonlyHint"},
		{`has(annotations.title)`, "unknown annotation title"},
		{`"title" in annotations`, "unknown annotation title"},
		{`tool.matches("(")`, "line 1, column 14: error parsing regexp: missing closing ): `(`"},
		{`tool.matches(client)`, "line 1, column 13: the pattern of matches must be a literal"},
		{`tool.matches("a" + client)`, "the pattern of matches must be a literal"},
		{`tool.replace("", tool) == ""`, "line 1, column 13: function replace is not available"},
		{`timestamp(0) == timestamp(0)`, "function timestamp is not available"},
		{`google.protobuf.Timestamp{}.getHours("UTC") == 1`, "messages such as google.protobuf.Timestamp are not"},
		{strings.Repeat("!", 4096) + "true", "the expression has 4100 bytes, the limit is 4096"},
		{strings.Repeat("(", 2000) + "true" + strings.Repeat(")", 2000), "recursion limit exceeded"},
	} {
		t.Run(test.expression[:min(len(test.expression), 60)], func(t *testing.T) {
			_, err := Compile(test.expression)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestPossible(t *testing.T) {
	for _, test := range []struct {
		expression string
		want       Verdict
	}{
		{`true || arguments.x == 1`, Yes},
		{`arguments.x == 1 || true`, Yes},
		{`server == "files" && arguments.x == 1`, Maybe},
		{`server == "mail" && arguments.x == 1`, No},
		{`arguments.x == 1 && server == "mail"`, No},
		{`annotations.readOnlyHint || arguments.x == 1`, Yes},
		{`client == "alice" ? true : arguments.x`, Yes},
		{`client == "alice" ? arguments.x : true`, Maybe},
		{`arguments.x ? true : true`, Maybe},
		{`has(arguments.x)`, Maybe},
		{`!has(arguments.x)`, Maybe},
		{`has(arguments.x.y)`, Maybe},
		{`"x" in arguments`, Maybe},
		{`size(arguments) == 0`, Maybe},
		{`arguments.size() == 0`, Maybe},
		{`arguments == {}`, Maybe},
		{`{} == arguments`, Maybe},
		{`arguments != {}`, Maybe},
		{`arguments.all(k, k == "x")`, Maybe},
		{`arguments.exists(k, k == "x")`, Maybe},
		{`arguments.exists_one(k, k == "x")`, Maybe},
		{`arguments.map(k, k) == []`, Maybe},
		{`arguments.filter(k, false) == []`, Maybe},
		{`["a"].exists(k, k in arguments)`, Maybe},
		{`["a"].all(k, arguments[k] == 1)`, Maybe},
		{`["a"].map(k, arguments[k])[0]`, Maybe},
		{`[1, 2].all(i, i < 3 || arguments.x == i)`, Yes},
		{`[].all(i, arguments.x == i)`, Yes},
		{`[arguments.x] == []`, Maybe},
		{`{"a": arguments.x}.a == 1`, Maybe},
		{`arguments.x in ["a", "b"]`, Maybe},
		{`arguments.x in []`, No},
		{`{"a": true}[arguments.x]`, Maybe},
		{`[true][arguments.i]`, Maybe},
		{`annotations[arguments.x]`, Maybe},
		{`arguments[client]`, Maybe},
		{`arguments[arguments.x]`, Maybe},
		{`(client == "alice" ? arguments : {}).x == 1`, Maybe},
		{`type(arguments.x) == int`, Maybe},
		{`string(arguments.x) == "a"`, Maybe},
		{`arguments.x.matches("a")`, Maybe},
		{`.arguments.x == 1`, Maybe},
	} {
		t.Run(test.expression, func(t *testing.T) {
			f := facts(`{"x":1}`)
			f.Arguments = nil // not known yet
			if got, err := compile(t, test.expression).Possible(f); err != nil || got != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestPossibleFails(t *testing.T) {
	for _, expression := range []string{
		`1 / size([client].filter(c, false)) == 1`, `{"bob": true}[client]`, `{"alice": 1}[client] == 1 && dyn(client)`,
	} {
		if got, err := compile(t, expression).Possible(facts("")); err == nil || got != Maybe {
			t.Errorf("%s: got %v, %v", expression, got, err)
		}
	}
}

func TestUses(t *testing.T) {
	for _, test := range []struct {
		expression             string
		annotations, arguments bool
	}{
		{`client == "arguments" && "annotations" == tool`, false, false},
		{`annotations.readOnlyHint`, true, false},
		{`has(arguments.x)`, false, true},
		{`.arguments == {}`, false, true},
		{`["a"].all(k, annotations[k] || k in arguments)`, true, true},
	} {
		c := compile(t, test.expression)
		if c.UsesAnnotations() != test.annotations || c.UsesArguments() != test.arguments || c.String() != test.expression {
			t.Errorf("%s: got %v, %v", c, c.UsesAnnotations(), c.UsesArguments())
		}
	}
}

// Every expression ends, even with large arguments.
func TestSteps(t *testing.T) {
	list := strings.TrimSuffix(strings.Repeat("1,", 50_000), ",")
	short := strings.TrimSuffix(strings.Repeat("1,", 5_000), ",")
	text := strings.Repeat("a", 100<<10)
	arguments := `{"list":[` + list + `],"short":[` + short + `],"deep":[[[[` + short + `]]]],"text":"` + text + `"}`
	for _, expression := range []string{
		`arguments.list.all(x, true)`,
		`arguments.short.all(x, arguments.short.all(y, x == y))`,
		`[1, 2, 3, 4, 5, 6, 7].all(x, arguments.short.all(y, x < 8))`,
		`[1, 2, 3, 4, 5, 6, 7, 8, 9].map(x, arguments.short.map(y, x)).size() == 9`,
		`arguments.short.map(x, [x]).map(x, x + [1]).size() > 0`,
		`[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].all(x, arguments.deep == arguments.deep)`,
		`[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].all(x, !([2] in arguments.deep))`,
		`arguments.short.all(x, arguments.text.contains("a"))`,
		`arguments.text.matches("(a+a+)+b")`,
		`arguments.text.matches("a{1000}b")`,
		`arguments.text.split("").size() == 3`,
		"size(" + strings.Repeat("arguments.text + ", 100) + "'') > 0",
		`[arguments.text + arguments.text].map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a)[0] == ""`,
	} {
		t.Run(expression[:min(len(expression), 60)], func(t *testing.T) {
			if holds, err := compile(t, expression).Holds(facts(arguments)); !errors.Is(err, ErrSteps) || holds {
				t.Errorf("got %v, %v", holds, err)
			}
		})
	}
	// Cheap expressions do not end early.
	for _, expression := range []string{
		`arguments.list[0] == 1`,
		`arguments.short.all(x, x == 1)`,
		`arguments.text.contains("aa") && arguments.text.startsWith("a") && size(arguments.text) > 1000`,
		`arguments.short == arguments.deep[0][0][0]`,
	} {
		t.Run(expression, func(t *testing.T) {
			if holds, err := compile(t, expression).Holds(facts(arguments)); err != nil || !holds {
				t.Errorf("got %v, %v", holds, err)
			}
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	c := compile(t, `client == "alice" && arguments.items.exists(i, i.matches("^b+$")) && tool in ["a", "read_file"]`)
	var done sync.WaitGroup
	for i := range 8 {
		done.Go(func() {
			f, want := facts(`{"items":["a","bb"]}`), true
			if i%2 == 1 {
				f, want = facts(`{"items":["a","c"]}`), false
			}
			for range 200 {
				if holds, err := c.Holds(f); err != nil || holds != want {
					t.Errorf("got %v, %v", holds, err)
				}
				if verdict, err := c.Possible(f); err != nil || verdict != Maybe {
					t.Errorf("got %v, %v", verdict, err)
				}
			}
		})
	}
	done.Wait()
}

// arguments1K returns typical arguments of about 1 KB.
func arguments1K() []byte {
	var b strings.Builder
	b.WriteString(`{"path":"/srv/data/report.txt","limit":25,"options":{"dryRun":true,"tags":["a","b","c"]}`)
	for i := range 10 {
		fmt.Fprintf(&b, `,"member%d":"%s"`, i, strings.Repeat("x", 10))
	}
	fmt.Fprintf(&b, `,"content":"%s"}`, strings.Repeat(`line of text\n`, 50))
	return []byte(b.String())
}

func BenchmarkHolds(b *testing.B) {
	items := `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"id":7,"name":"item"},`, 50), ",") + `]}`
	var members []string
	for i := range 10 {
		members = append(members, fmt.Sprintf(`arguments.member%d.startsWith("xx")`, i))
	}
	for _, test := range []struct {
		name, expression string
		arguments        []byte
	}{
		{"no arguments", `client == "alice" && server in ["files", "mail"] && !annotations.destructiveHint`, arguments1K()},
		{"one member", `arguments.path.startsWith("/srv/")`, arguments1K()},
		{"ten members", strings.Join(members, " && "), arguments1K()},
		{"loop over 50 items", `arguments.items.all(i, i.id < 10)`, []byte(items)},
	} {
		b.Run(test.name, func(b *testing.B) {
			c, err := Compile(test.expression)
			if err != nil {
				b.Fatal(err)
			}
			f := &Facts{Client: "alice", Server: "files", Tool: "read", Annotations: mcp.ReadOnly, Arguments: test.arguments}
			b.ReportAllocs()
			b.SetBytes(int64(len(test.arguments)))
			for b.Loop() {
				if holds, err := c.Holds(f); err != nil || !holds {
					b.Fatal(holds, err)
				}
			}
		})
	}
}

// BenchmarkLargest decodes arguments at the limits.
func BenchmarkLargest(b *testing.B) {
	for _, test := range []struct{ name, arguments string }{
		{"one text", `{"a":"` + strings.Repeat("a", maxArguments-8) + `"}`},
		{"many numbers", `{"a":[` + strings.TrimSuffix(strings.Repeat("1,", maxValues-1), ",") + `]}`},
		{"many objects", `{"a":[` + strings.TrimSuffix(strings.Repeat(`{"a":1},`, maxValues/2-2), ",") + `]}`},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(test.arguments)))
			for b.Loop() {
				if _, err := decode([]byte(test.arguments), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
