package prune

import (
	"strings"
	"testing"
)

func TestDetect(t *testing.T) {
	for _, test := range []struct {
		name string
		text string
		want Source
	}{
		{"Go",
			"package main\n\nimport \"fmt\"\n\n// Greet says hello.\nfunc Greet(name string) {\n" +
				"\tfmt.Println(name)\n}\n", Code},
		{"Python without a brace or a semicolon",
			"import os\n\nclass Reader:\n    \"\"\"Reads.\"\"\"\n\n    def read(self):\n" +
				"        data = self.open()\n        return data\n", Code},
		{"C with a long comment",
			"/* Copyright of the authors,\n * who has a lot to say\n * about it. */\n#include <stdio.h>\n" +
				"int main(void)\n{\n\tint a = 1;\n\treturn a;\n}\n", Code},
		{"a shell script",
			"#!/bin/sh\nset -e\nfor f in *; do\n  name=$(basename \"$f\")\n  echo \"$name\" > /tmp/x\n" +
				"done\n", Code},
		{"YAML", "services:\n  web:\n    image: nginx\n    ports:\n      - 80:80\n", Code},
		{"Markdown",
			"# A title\n\nSome words that explain what this is about.\n\n## Usage\n\n- one item of a list\n" +
				"- another item\n\n```sh\nx = 1;\n```\n", Docs},
		{"prose without headings",
			"It was a dark and stormy night; the rain fell in torrents\n" +
				"except at occasional intervals, when it was checked\n" +
				"by a violent gust of wind which swept up the streets\n", Docs},
		{"reStructuredText",
			"Title of it\n===========\n\nThis module has two functions that are of use.\n\n" +
				"* the first of them\n* the second of them\n", Docs},
		{"times with a date", "2024-05-01 10:00:00,123 INFO started\n2024-05-01 10:00:01,456 INFO done\n", Logs},
		{"syslog", "May  1 10:00:00 host sshd[12]: Accepted key\nMay  1 10:00:01 host sshd[12]: Closed\n", Logs},
		{"an access log", `127.0.0.1 - - [01/May/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 12` + "\n", Logs},
		{"JSON records",
			`{"level":"info","ts":1714557600.1,"msg":"started"}` + "\n" +
				`{"level":"warn","ts":1714557601.1,"msg":"slow"}` + "\n", Logs},
		{"key and value", "time=now level=info msg=started\ntime=now level=info msg=done\n", Logs},
		{"levels without times", "INFO: started\nWARNING: slow\n[ERROR] gone\n", Logs},
		{"a stack trace",
			"Exception in thread \"main\" java.lang.Error\n\tat a.b.C.d(C.java:12)\n" +
				"\tat a.b.C.e(C.java:34)\n", Logs},
		{"tests that ran",
			"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n    b_test.go:12: got 1\n" +
				"--- FAIL: TestB (0.00s)\n", Logs},
		{"Ruby with comments like headings",
			"# A client of it.\n# It has a pool\nmodule Client\n  # Opens the thing that was asked for\n" +
				"  def open\n    @pool.open\n  end\nend\n", Code},
		{"a document that is mostly fenced code",
			"# How to use it\n\n" + strings.Repeat("Then write this in it:\n\n```go\nx := 1\ny := f(x)\n"+
				"z = x + y\n```\n\n", 5), Docs},
		{"a program that is mostly comments",
			strings.Repeat("/*\n * Some words that say what it is for\n"+
				" * and what else can be done with it.\n */\nint f(void);\n\n", 5), Code},
		{"a comment that does not end", "/* what\nx = 1;\ny = 2;\nz = 3;\n", Code},
		{"an underline that is not a fence",
			"# -*- coding: utf-8 -*-\n\"\"\"\n    The title\n    ~~~~~~~~~\n\"\"\"\nimport re\n\n" +
				"def f(x):\n    return x\n", Code},
		{"an empty text", "", Code},
		{"blank lines", "\n\n\n", Code},
		{"a log with a little code at its end",
			strings.Repeat("2024-05-01 10:00:00 INFO started\n", 5000) + strings.Repeat("func f() {\n", 100), Logs},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := detect(split(test.text)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
