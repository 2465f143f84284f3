package prune

import "testing"

func TestOutlineOfLogs(t *testing.T) { // P36
	for _, test := range []struct{ name, snippet string }{
		{"words for failures, in any case", `
x|2026-02-26 ERROR lost
x|error: x
x|0 errors
x|java.io.IOException
x|an Exception
x|TraceBack
x|NoSuchElementexception
 |WARN slow
x|the word in others: terror, unexceptional
 |INFO served
`},
		{"Python", `
 |INFO request 1
xt|Traceback (most recent call last):
t|  File "/app/x.py", line 3, in f
t|    g()
t|    ^^^
t|  File "/app/x.py", line 9, in g
xt|    raise ValueError("bad")
xt|ValueError: bad
 |INFO request 2
`},
		{"Java", `
 |INFO request 1
xt|Exception in thread "main" java.lang.IllegalStateException: no
t|	at org.example.Store.get(Store.java:12)
t|	at org.example.Main.main(Main.java:3)
xt|Caused by: java.lang.NullPointerException
t|	at org.example.X.y(X.java:1)
t|	... 2 more
 |INFO request 2
`},
		{"an exception without a word for a failure", `
 |INFO request 1
t|org.example.Lost: gone
t|	at org.example.Store.get(Store.java:12)
t|	at org.example.Main.main(Main.java:3)
 |INFO request 2
`},
		{"Go", `
 |served
t|panic: boom
t|
t|goroutine 1 [running]:
t|main.run(0x1, 0x2)
t|	/src/main.go:12 +0x1d
t|created by main.main
t|	/src/main.go:3 +0x2
 |served
`},
		{"Node", `
 |served
xt|TypeError: x is not a function
t|    at f (/app/x.js:3:5)
t|    at async /app/y.js:9:1
 |served
`},
		{"Rust", `
 |served
t|thread 'main' panicked at src/main.rs:2:5:
 |served
`},
		{"lines that are not traces", `
 |at noon all was well
 |	indented
 |File "x" was saved
 |... and so on
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, want := readSnippet(test.snippet)
			l := split(text)
			o := outlineOf(l, Logs, never)
			for i := range want {
				got := ""
				if o.is(i, failure) {
					got += "x"
				}
				if o.is(i, trace) {
					got += "t"
				}
				if got != want[i] {
					t.Errorf("line %d, %q: got %q, want %q", i+1, l.line(i), got, want[i])
				}
			}
		})
	}
}

func TestRecordsOfLogs(t *testing.T) { // P77
	l := split("a\n  of a\n\tof a\n\nb\nc\n  of c\n")
	o := outlineOf(l, Logs, never)
	for i, same := range []bool{false, true, true, true, false, false, true} {
		if i > 0 && (o.block[i] == o.block[i-1]) != same {
			t.Errorf("line %d, %q: belongs to the previous record: %v, want %v", i+1, l.line(i), !same, same)
		}
	}
}

func TestHasFailureWord(t *testing.T) { // P36
	for line, want := range map[string]bool{
		"ERROR x":                               true,
		"an eRrOr":                              true,
		`{"level":"info","error":null}`:         false,
		`{"errors":0,"msg":"served"}`:           false,
		`{"errors":0,"error":"lost"}`:           true,
		"served errors=0 in 3 ms":               false,
		"served errors=05":                      true,
		`level=info error="" exception=nil`:     false,
		"java.lang.NullPointerException: null":  true,
		"TypeError: null":                       true,
		"error: 0.5 of the requests were lost":  true,
		"0 errors":                              true,
		"Traceback (most recent call last):":    true,
		"error:":                                true,
		"error = nothing at all could be found": true,
	} {
		if got := hasFailureWord(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
