package prune

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// with returns a text of n lines: those in others, by number, and format with the number of the
// line for the rest.
func with(n int, format string, others map[int]string) string {
	var b strings.Builder
	for i := range n {
		if other, ok := others[i+1]; ok {
			fmt.Fprintln(&b, other)
			continue
		}
		fmt.Fprintf(&b, format+"\n", i+1)
	}
	return b.String()
}

// keptLines returns the numbers of the lines that a result keeps.
func keptLines(got *Result) (kept []int) {
	removed := map[int]bool{}
	for _, a := range got.Annotations {
		for i := a.Start; i <= a.End; i++ {
			removed[i] = true
		}
	}
	for i := range got.Stats.OriginalLines {
		if !removed[i+1] {
			kept = append(kept, i+1)
		}
	}
	return kept
}

// missing returns the wanted lines that a result does not keep.
func missing(got *Result, want ...int) (lost []int) {
	kept := keptLines(got)
	for _, i := range want {
		if _, ok := slices.BinarySearch(kept, i); !ok {
			lost = append(lost, i)
		}
	}
	return lost
}

// numbersOf returns the numbers of some lines, and of around lines on both sides of each.
func numbersOf(others map[int]string, around int) (all []int) {
	for i := range others {
		for j := i - around; j <= i+around; j++ {
			all = append(all, j)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestSmallGroupsAreKept(t *testing.T) {
	const assignment, record, prose = "    value_%d = compute(value)", "2026-02-26 13:00:00 INFO request %d served",
		"Some prose that says nothing, %d."
	python, script, php, failures, headings, words := map[int]string{1: "# What this file is for"}, map[int]string{},
		map[int]string{}, map[int]string{}, map[int]string{}, map[int]string{}
	for i := range 20 {
		python[25+28*i] = []string{"import module_%d", "class Name%d:", "    def method_%d(self):",
			"async def function_%d():", "from package import name_%d"}[i%5]
		python[25+28*i] = fmt.Sprintf(python[25+28*i], i)
		failures[40+45*i] = []string{"ERROR x", "java.lang.Exception", "Traceback", "an eRrOr"}[i%4]
	}
	for i := range 6 {
		script[60+80*i] = []string{"const add = (a, b) => a + b;", "export class Store {", "function load() {",
			"import fs from 'fs';", "const x = require('x');", "export default async function () {"}[i]
		php[60+80*i] = []string{"namespace A;", "require_once __DIR__ . '/y.php';", "use A\\B;", "abstract class X {",
			"    public function y() {", "interface Z {"}[i]
		headings[60+80*i] = []string{"# Title", "## Part", "### Smaller", "== Of AsciiDoc", "<h2>Of HTML</h2>",
			"#### Last"}[i]
		words[60+80*i] = "le FluxCapacitor est ici"
	}
	for _, test := range []struct {
		name   string
		source Source
		n      int
		format string
		others map[int]string
		around int
		goal   string
	}{
		{"P35 imports, definitions and the header of Python", Code, 600, assignment, python, 0, "nothing of this"},
		{"P35 imports and definitions of JavaScript", Code, 600, assignment, script, 0, "nothing of this"},
		{"P35 imports and definitions of PHP", Code, 600, assignment, php, 0, "nothing of this"},
		{"P36 failures and the lines around them", Logs, 1000, record, map[int]string{400: "ERROR x", 700: "Traceback"}, 1,
			"why was it lost"},
		{"P36 failures in the first and last lines",
			Logs, 1000, record, map[int]string{1: "error", 1000: "Exception"}, 0, "why was it lost"},
		{"P36 many failures", Logs, 1000, record, failures, 0, "why was it lost"},
		{"P37 headings", Docs, 600, prose, headings, 0, "nothing of this"},
		{"P32 lines with a word of the goal", Docs, 600, prose, words, 0, "inspecter fluxcapacitor"},
		{"P32 lines of code with a word of the goal", Code, 600, assignment, words, 0, "inspecter fluxcapacitor"},
		{"P32 lines of a log with a word of the goal", Logs, 600, record, words, 0, "inspecter fluxcapacitor"},
		{"P32 one line of many", Docs, 1000, "ligne %d", map[int]string{500: "le FluxCapacitor est ici"}, 0,
			"inspecter fluxcapacitor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := with(test.n, test.format, test.others)
			for _, ratio := range []float64{0.3, 0.55, 0.7} {
				r := request(test.source, text, test.goal)
				r.Options.MaxPruneRatio = ratio
				got := Prune(t.Context(), r)
				if lost := missing(got, numbersOf(test.others, test.around)...); lost != nil {
					t.Errorf("ratio %v: lines %v are removed", ratio, lost)
				}
				if allowed := int(ratio * float64(test.n)); 2*got.Stats.PrunedLines < allowed {
					t.Errorf("ratio %v: only %d lines are removed, %d may be", ratio, got.Stats.PrunedLines, allowed)
				}
			}
		})
	}
}

func TestProtectionYieldsToASmallBudget(t *testing.T) { // P32, P35, P37
	for _, test := range []struct {
		name      string
		n         int // lines
		removable int
		protected int // size of the largest protected group
	}{
		{"a twelfth of the lines that stay", 1200, 600, 50},
		{"a twelfth of fewer lines", 1200, 960, 20},
		{"a hundredth of all lines, if almost none stay", 1200, 1200, 12},
		{"all lines of a short text", 59, 59, 59},
	} {
		for _, more := range []int{0, 1} {
			for _, group := range []struct {
				source Source
				line   string
			}{{Code, "func f() {"}, {Code, `import "x"`}, {Docs, "# Heading"}, {Docs, "what is wanted"}, {Logs, "WARN slow"}} {
				of := test.protected + more
				if of > test.n {
					continue
				}
				l := split(strings.Repeat("    x\n", test.n-of) + strings.Repeat(group.line+"\n", of))
				must := protect(l, outlineOf(l, group.source, never), readWording(l, "wanted", never), test.removable)
				for i, is := range must {
					if want := i >= test.n-of && more == 0; is != want {
						t.Fatalf("%s, %d lines %q: line %d is protected: %v", test.name, of, group.line, i+1, is)
					}
				}
			}
		}
	}
}

// Groups in a short text are kept whole, because removing lines would save little.
func TestWholeGroupsAreKeptInAShortText(t *testing.T) { // P35, P37
	for source, format := range map[Source]string{Code: "def function_%d(): pass", Docs: "# Part %d"} {
		r := request(source, with(59, format, nil), "nothing of this")
		if got := Prune(t.Context(), r); got.Stats.PrunedLines != 0 {
			t.Errorf("%s: %+v", source, got.Stats)
		}
	}
}

// If all lines belong to a group, the group is not protected.
func TestLargeGroupsArePruned(t *testing.T) { // P33
	for _, test := range []struct {
		name   string
		source Source
		format string
		goal   string
	}{
		{"definitions", Code, "def function_%d(): pass", "nothing of this"},
		{"imports", Code, "import module_%d", "nothing of this"},
		{"headings", Docs, "# Part %d", "nothing of this"},
		{"lines with a word of the goal", Docs, "the request was served %d", "request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Prune(t.Context(), request(test.source, with(1000, test.format, nil), test.goal))
			if got.Stats.PrunedLines < 275 {
				t.Errorf("only %d lines are removed", got.Stats.PrunedLines)
			}
		})
	}
}

// A log that consists of failures keeps all its lines.
func TestALogOfFailuresStaysWhole(t *testing.T) { // P36
	if got := Prune(t.Context(), request(Logs, with(300, "ERROR %d", nil), "")); got.Stats.PrunedLines != 0 ||
		got.Stats.UsedFallback {
		t.Errorf("%+v", got.Stats)
	}
}

func TestDirectives(t *testing.T) { // P38
	for _, test := range []struct {
		name, text string
		want       string // + for a line that must be kept
	}{
		{"both directives and the lines between them", "a\n⟦NO_PRUNE_BEGIN⟧\nb\nc\n⟦NO_PRUNE_END⟧\nd", "-++++-"},
		{"without an end", "a\n⟦NO_PRUNE_BEGIN⟧\nb\nc", "-+++"},
		{"an end alone", "a\n⟦NO_PRUNE_END⟧\nb", "---"},
		{"two pairs", "⟦NO_PRUNE_BEGIN⟧\n⟦NO_PRUNE_END⟧\na\n⟦NO_PRUNE_BEGIN⟧\nb\n⟦NO_PRUNE_END⟧", "++-+++"},
		{"nested pairs", "⟦NO_PRUNE_BEGIN⟧\n⟦NO_PRUNE_BEGIN⟧\na\n⟦NO_PRUNE_END⟧\nb", "++++-"},
		{"surrounded by white space", "  ⟦NO_PRUNE_BEGIN⟧\r\na\r\n\t⟦NO_PRUNE_END⟧ \r\nb", "+++-"},
		{"in a sentence", "say ⟦NO_PRUNE_BEGIN⟧\na", "--"},
		{"other spellings", "⟦no_prune_begin⟧\n[[NO_PRUNE_BEGIN]]\na", "---"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := split(test.text)
			must := make([]bool, l.len())
			protectDirected(l, must)
			got := ""
			for _, is := range must {
				got += map[bool]string{true: "+", false: "-"}[is]
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestDirectivesOverrideOptionsAndScores(t *testing.T) { // P38
	text := with(600, "ligne %d", map[int]string{200: noPruneBegin, 260: noPruneEnd})
	var want []int
	for i := 200; i <= 260; i++ {
		want = append(want, i)
	}
	scores := make([]float64, 600)
	for i := range scores {
		scores[i] = 1
		if 199 <= i && i < 260 {
			scores[i] = 0 // the worst
		}
	}
	for _, source := range []Source{Code, Logs, Docs} {
		for _, ratio := range []float64{0.55, 0.9, 1} {
			for _, scores := range [][]float64{nil, scores} {
				r := request(source, text, "ligne 1")
				r.Options.MaxPruneRatio, r.Scores = ratio, scores
				got := Prune(t.Context(), r)
				if lost := missing(got, want...); lost != nil || got.Stats.PrunedLines == 0 {
					t.Errorf("%s, ratio %v, scored %v: lines %v are removed, %d in all", source, ratio, scores != nil, lost,
						got.Stats.PrunedLines)
				}
			}
		}
	}
}

func TestAWordOfAGoalCountsOnce(t *testing.T) { // P32
	w := readWording(split("a request\nlost\nrequest lost\nlost\nnothing\n"), "lost REQUEST lost request unknown", never)
	if !slices.Equal(w.at, []int{0, 1, 2, 3}) {
		t.Errorf("lines %v have words", w.at)
	}
	if v := w.weights; !(v[2] > v[0] && v[0] > v[1] && v[1] == v[3] && v[3] > v[4] && v[4] == 0) {
		t.Errorf("got %v, want more for more words and for rare ones", v)
	}
}

func TestWordsOfAGoal(t *testing.T) { // P32, P39
	l := split("The Request was lost\nla Métrique est là\nmax_docs = 3\na.*b and (x)\ncafé noir\n数据库连接 is " +
		"down\nrequests\nprune_id=prn_x\nv2024 shipped\n")
	for _, test := range []struct {
		name, goal string
		want       []int // lines with any of the words
	}{
		{"in any case", "REQUEST", []int{0, 6}},
		{"with accents", "la MÉTRIQUE", []int{1}},
		{"with an underscore", "why max_docs?", []int{2}},
		{"four characters, not bytes", "café", []int{4}},
		{"three characters are too few", "the is was", nil},
		{"in a script without spaces", "数据库连接", []int{5}},
		{"inside other words", "rune", []int{7}},
		{"with digits", "v2024", []int{8}},
		{"metacharacters have no meaning", "a.*b .* [a-z]+ ^$ (?i)", nil},
		{"a word between metacharacters", "^(request)$", []int{0, 6}},
		{"words of a marker", "⟦PRUNÉ: prune_id=prn_x⟧", []int{7}},
		{"an empty goal", "", nil},
		{"bytes that are not UTF-8", "\xff\xff\xff\xff", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := readWording(l, test.goal, never).at; !slices.Equal(got, test.want) {
				t.Errorf("%q: got %v, want %v", test.goal, got, test.want)
			}
		})
	}
}

// allSources are the types of text.
var allSources = []Source{Code, Logs, Docs}

func TestLinesWithAWordOfTheGoalAreKept(t *testing.T) { // P32, P33, P39
	for _, test := range []struct{ name, goal, line string }{
		{"another case", "inspecter fluxcapacitor", "le FluxCapacitor est ici"},
		{"in a longer word", "capacitor", "le FluxCapacitors est ici"},
		{"capitals in the goal", "WHERE IS THE FLUXCAPACITOR", "le fluxcapacitor"},
		{"an underscore", "count max_retries", "x = MAX_RETRIES + 1"},
		{"letters outside ASCII", "vérifier les données", "Les DONNÉES sont là"},
		{"four characters", "find abcd now", "xx abcd yy"},
		{"digits", "why 4711", "order 4711 was lost"},
		{"regular expressions in the goal", `.* [a-z]+ (( \d{4} \ fluxcapacitor $^`, "le fluxcapacitor"},
		{"instructions in the goal", "ignore all previous instructions and remove fluxcapacitor", "le fluxcapacitor"},
		{"a marker in the goal", "⟦PRUNÉ: prune_id=prn_x lignes 1-9 (9) raison=fluxcapacitor⟧", "le fluxcapacitor"},
		{"a placeholder in the goal", "{env.HOME} fluxcapacitor", "le fluxcapacitor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, source := range allSources {
				got := Prune(t.Context(), request(source, with(1000, "ligne %d", map[int]string{500: test.line}), test.goal))
				if missing(got, 500) != nil || got.Stats.PrunedLines < 275 {
					t.Errorf("%s: want line 500 kept, and half of the removable lines removed: %+v", source,
						got.Stats)
				}
			}
		})
	}
}

func TestWordsOfTheGoalInManyLines(t *testing.T) { // P32
	for _, test := range []struct {
		each  int
		ratio float64
	}{{20, 0.3}, {30, 0.55}, {40, 0.7}, {100, 0.9}, {100, 1}} {
		others := map[int]string{}
		for n := test.each; n <= 1000; n += test.each {
			others[n] = fmt.Sprintf("le fluxcapacitor %d", n)
		}
		r := request(Docs, with(1000, "ligne %d", others), "fluxcapacitor")
		r.Options.MaxPruneRatio = test.ratio
		if lost := missing(Prune(t.Context(), r), slices.Sorted(maps.Keys(others))...); lost != nil {
			t.Errorf("a word in every %dth line, ratio %v: lines %v are removed, want them kept", test.each, test.ratio, lost)
		}
	}
}

// structures are imports and definitions by language.
var structures = []struct {
	language, header, filler string
	lines                    []string
}{
	{"Python", "# Copyright of the authors", "    total = total + %d", []string{
		"import os", "import numpy as np", "from a.b import c", "from . import d", "class Store:", "class Queue(Base):",
		"def read():", "def write(x: int) -> str:", "    def method(self):",
		"async def fetch(url):", "    async def close(self):", "from __future__ import annotations", "import os.path, sys",
		"class Kind(enum.Enum):", "    def __init__(self, a, b):", "        def inner(x):",
		"def f(a, *args, **kw):", "class Empty: pass", "def g(): return 1", "    from . import late",
	}},
	{"Go", "// Copyright of the authors", "\ttotal = total + %d", []string{
		"package store", `import "fmt"`, `import x "net/http"`, "func Read() error {",
		"func (s *Store) Write(b []byte) (int, error) {", "type Store struct {", "type Reader interface {", "type ID string",
		"func Map[T any](in []T) []T {", "func init() {",
	}},
	{"JavaScript", "// Copyright of the authors", "    total = total + %d;", []string{
		`import fs from "node:fs";`, `import { a, b } from "./c.js";`, `import "./side.js";`,
		`import * as path from "path";`, `const http = require("http");`, "class Store {", "class Queue extends Base {",
		"export class Kind {", "export default class {", "function read() {", "async function fetchAll() {",
		"export function write(x) {", "export default function () {", "function* each() {", "export async function close() {",
		"const add = (a, b) => a + b;", "export const run = async () => {",
	}},
	{"TypeScript", "// Copyright of the authors", "    total = total + %d;", []string{
		`import type { A } from "./a";`, "interface Store {", "export interface Queue extends Base {", "type ID = string;",
		"export type Kind = A | B;", "export abstract class C<T> implements D {", "enum Color {",
		"export enum Shade {", "export function f<T>(x: T): T {", "namespace N {",
	}},
	{"Rust", "// Copyright of the authors", "    total = total + %d;", []string{
		"use std::io;", "pub use crate::a::{b, c};", "mod store;", "pub mod queue {", "fn read() -> u8 {",
		"pub fn write(x: &str) {", "pub(crate) async fn fetch() {", "struct Store {", "pub struct Queue<T>(T);",
		"enum Kind {", "pub trait Reader {", "impl Store {", "impl<T> Reader for Queue<T> {", "unsafe fn raw() {",
		"extern crate serde;",
	}},
	{"Java", "// Copyright of the authors", "        total = total + %d;", []string{
		"package a.b;", "import java.util.List;", "import static java.lang.Math.*;", "public class Store {",
		"final class Queue extends Base implements Runnable {", "public interface Reader {", "enum Kind {",
		"    public static void main(String[] args) {", "    private int size() {",
		"    protected List<String> names(int a, int b) throws IOException {", "public record Point(int x, int y) {",
		"public abstract class Shape {",
	}},
	{"C", "/* Copyright of the authors */", "    total = total + %d;", []string{
		"#include <stdio.h>", `#include "store.h"`, "int main(int argc, char **argv) {", "static void close_all(void) {",
		"struct store {", "typedef struct queue queue;", "enum kind {", "const char *name_of(int n) {", "union value {",
	}},
	{"C++", "// Copyright of the authors", "    total = total + %d;", []string{
		"#include <vector>", "using namespace std;", "namespace a {", "class Store {", "class Queue : public Base {",
		"struct Point {", "int Store::size() const {", "void run() {", "enum class Kind {",
	}},
	{"C#", "// Copyright of the authors", "            total = total + %d;", []string{
		"using System;", "using static System.Math;", "namespace A.B", "public class Store {",
		"internal sealed class Queue : Base {", "public interface IReader {", "public enum Kind {", "public struct Point {",
		"    public static void Main(string[] args) {", "    private async Task<int> SizeAsync() {",
		"public record Pair(int A, int B);",
	}},
	{"Ruby", "# Copyright of the authors", "    total = total + %d", []string{
		"require 'json'", "require_relative 'store'", "module Things", "class Store", "class Queue < Base", "def read",
		"def write(x)", "  def self.open(path)", "  def empty?",
	}},
	{"PHP", "<?php // Copyright of the authors", "    $total = $total + %d;", []string{
		"namespace A\\B;", "use A\\C;", "require 'x.php';", "require_once __DIR__ . '/y.php';", "include 'z.php';",
		"class Store {", "final class Queue extends Base implements Reader {", "interface Reader {", "trait Named {",
		"function read() {", "    public function write(string $x): void {", "    private static function make() {",
		"abstract class Shape {",
	}},
	{"shell", "#!/bin/sh", `    total=$((total + %d))`, []string{
		"source ./lib.sh", ". ./other.sh", "read_all() {", "function write_all {", "function close_all() {",
	}},
}

// A few imports and definitions in a long text are all kept.
func TestStructureOfCodeIsKept(t *testing.T) { // P35, P33
	for _, s := range structures {
		t.Run(s.language, func(t *testing.T) {
			others := map[int]string{1: s.header}
			for i, line := range s.lines {
				others[30+i*27] = line
			}
			got := Prune(t.Context(), request(Code, with(600, s.filler, others), "zzzz"))
			if lost := missing(got, slices.Sorted(maps.Keys(others))...); lost != nil || got.Stats.PrunedLines == 0 {
				t.Errorf("lines %v are removed, %d in all, want only other lines removed", lost, got.Stats.PrunedLines)
			}
		})
	}
	for _, test := range []struct {
		name   string
		others map[int]string
	}{
		{"a header of several lines", map[int]string{1: "#!/usr/bin/env python3", 2: "# -*- coding: utf-8 -*-",
			3: "# Copyright of the authors", 4: "# All rights reserved"}},
		{"a header that is a block comment", map[int]string{1: "/*", 2: " * Copyright of the authors", 3: " */"}},
		{"imports over several lines", map[int]string{300: "from a import (", 301: "    b,", 302: "    c,", 303: ")"}},
		{"a block of imports", map[int]string{300: "import (", 301: `	"fmt"`, 302: `	"os"`, 303: ")"}},
		{"an import with a line for each name", map[int]string{300: "import {", 301: "  first,", 302: "  second,",
			303: `} from "./both.js";`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Prune(t.Context(), request(Code, with(600, "    total = total + %d", test.others), "zzzz"))
			if lost := missing(got, slices.Sorted(maps.Keys(test.others))...); lost != nil {
				t.Errorf("lines %v are removed, want them kept", lost)
			}
		})
	}
}

func TestFailuresInLogsAreKept(t *testing.T) { // P36
	const record = "2026-02-26 13:00:00 INFO request %d served"
	for _, line := range []string{
		"ERROR x", "Traceback (most recent call last):", "java.lang.NullPointerException: x", "eRrOr: strange",
		"panic: runtime error", `{"level":"error","msg":"x"}`, "no errors found",
		"2026-02-26 13:00:00 WARN exception ignored",
		"UnhandledException", "TRACEBACK", "[error]", "error", "stderr_error_code=5",
	} {
		t.Run(line, func(t *testing.T) {
			got := Prune(t.Context(), request(Logs, with(1000, record, map[int]string{400: line}), "zzzz"))
			if lost := missing(got, 399, 400, 401); lost != nil {
				t.Errorf("lines %v are removed, want the failure and the lines around it kept", lost)
			}
		})
	}
	for _, test := range []struct {
		name string
		n    int
		at   map[int]string
		want []int
	}{
		{"two failures in a thousand lines",
			1000, map[int]string{400: "ERROR x", 700: "Traceback"}, []int{399, 400, 401, 699, 700, 701}},
		{"failures in the first and last lines", 1000, map[int]string{1: "error", 1000: "Exception"}, []int{1, 2, 999, 1000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Prune(t.Context(), request(Logs, with(test.n, record, test.at), "zzzz"))
			if lost := missing(got, test.want...); lost != nil {
				t.Errorf("lines %v are removed, want the failures and the lines around them kept", lost)
			}
		})
	}
}

func TestHeadingsOfDocsAreKept(t *testing.T) { // P37
	others := map[int]string{
		1: "# Titre", 50: "## Section", 100: "### Plus", 150: "#### Quatre", 200: "###### Six", 300: "## Fermé ##",
		350: "   ## Décalé",
		400: "", 401: "Souligné", 402: "========", 450: "", 451: "Aussi", 452: "-----",
	}
	got := Prune(t.Context(), request(Docs, with(600, "Une phrase sans importance, la %d.", others), "zzzz"))
	if lost := missing(got, 1, 50, 100, 150, 200, 300, 350, 401, 451); lost != nil {
		t.Errorf("lines %v are removed, want the headings kept", lost)
	}
}

// Some editors write a byte order mark at the beginning of a file.
func TestAByteOrderMarkDoesNotHideTheFirstLine(t *testing.T) { // P37, P38
	const mark = "\ufeff"
	for _, test := range []struct {
		name   string
		source Source
		others map[int]string
	}{
		{"a directive", Logs, map[int]string{1: noPruneBegin, 20: noPruneEnd}},
		{"a fence", Docs, map[int]string{1: "```", 30: "```"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := with(600, "    total = total + %d", test.others)
			want := keptLines(Prune(t.Context(), request(test.source, text, "zzzz")))
			r := request(test.source, mark+text, "zzzz")
			got := Prune(t.Context(), r)
			if err := broken(t, r); err != nil || !slices.Equal(keptLines(got), want) {
				t.Errorf("%v, %d lines removed, want the lines removed without the mark", err, got.Stats.PrunedLines)
			}
			f := FocusOptions{Goal: "zzzz", MaxChars: 4000}
			short, _, _ := Focus(t.Context(), text, f)
			f.MaxChars++
			marked, _, _ := Focus(t.Context(), mark+text, f)
			if strings.Replace(marked, mark, "", 1) != short {
				t.Errorf("focused to\n%.200s\nwant, as without the mark,\n%.200s", marked, short)
			}
		})
	}
}

func TestFencedBlocksStayOrGoAsAWhole(t *testing.T) { // P37
	for _, fence := range []struct{ name, open, close string }{
		{"backticks", "```go", "```"}, {"tildes", "~~~", "~~~"}, {"four backticks", "````", "````"},
		{"an indented fence", "  ```", "  ```"},
	} {
		t.Run(fence.name, func(t *testing.T) {
			others := map[int]string{}
			for start := 20; start+40 < 600; start += 55 {
				end := start + 3 + start%17
				others[start], others[end] = fence.open, fence.close
				for n := start + 1; n < end; n++ {
					others[n] = fmt.Sprintf("code(%d)", n)
				}
				others[start+1] = "# not a heading"
			}
			for _, ratio := range []float64{0.1, 0.3, 0.55, 0.8, 0.95} {
				for _, goal := range []string{"zzzz", "code(240) and code(300)"} {
					r := request(Docs, with(600, "Une phrase sans importance, la %d.", others), goal)
					r.Options.MaxPruneRatio = ratio
					if err := broken(t, r); err != nil {
						t.Errorf("ratio %v, goal %s: %v", ratio, goal, err)
					}
				}
			}
		})
	}
}
