package prune

import (
	"strings"
	"testing"
)

// readSnippet returns the text of a snippet and the kinds of its lines. In a snippet, each line
// begins with the letters of its kinds and a bar: i for an import, d for a definition, c for a
// comment, h for a part of the header, @ for a decorator, and . for anything else.
func readSnippet(snippet string) (text string, want []string) {
	var b strings.Builder
	for line := range strings.Lines(strings.Trim(snippet, "\n")) {
		is, rest, _ := strings.Cut(line, "|")
		want = append(want, strings.TrimSpace(is))
		b.WriteString(rest)
	}
	return b.String(), want
}

var letters = []struct {
	kind
	letter string
}{{header, "h"}, {imported, "i"}, {definition, "d"}, {comment, "c"}, {decorator, "@"}}

// lettersOf returns the letters of the kinds of line i.
func lettersOf(o *outline, i int) (is string) {
	for _, l := range letters {
		if o.is(i, l.kind) {
			is += l.letter
		}
	}
	if is == "" && !o.is(i, blank) {
		return "."
	}
	return is
}

// checkOutline checks the kinds of the lines of a snippet of code.
func checkOutline(t *testing.T, snippet string) {
	t.Helper()
	text, want := readSnippet(snippet)
	l := split(text)
	o := outlineOf(l, Code, never)
	for i := range want {
		if got := lettersOf(o, i); got != want[i] {
			t.Errorf("line %d, %q: got %q, want %q", i+1, l.line(i), got, want[i])
		}
	}
}

func TestOutlineOfCode(t *testing.T) { // P35, P77
	for _, test := range []struct{ name, snippet string }{
		{"Python", `
hc|#!/usr/bin/env python3
hc|# Copyright 2026
  |
 c|"""What this
 c|module does."""
 i|import os
 i|import os.path as p, sys
 i|from typing import Any
 i|from . import (
 i|    one,
 i|    two,
 i|)
  |
 @|@dataclass(frozen=True)
 d|class Store(Base):
 c|    """Holds things."""
 .|    limit: int = 3
  |
 d|    def get(self, key: str) -> str:
 .|        if key in self.items:
 .|            return self.items[key]
 .|        for item in self:
 .|            print(item)
 .|        raise KeyError(key)
  |
 d|    async def fetch(self):
 .|        with open(path) as f:
 .|            pass
  |
 d|def function(
 .|    a, b
 .|):
 .|    important = definition(a)
 .|    classes = [x for x in b]
 .|    import_it(a)
 .|    from_here = 1
 .|    type = 3
 .|    module.load(object, type)
 .|if __name__ == "__main__":
 .|    main()
`},
		{"signatures over several lines", `
 d|static bool url_match(struct conn *a,
 .|                      struct conn *b)
 .|{
 .|  return same(a,
 .|              b);
 .|}
 d|public Foo bar(String a,
 .|    String b) throws IOException {
 .|  call(a,
 .|      b);
 .|  foo.each(function (x) {
 .|  });
 .|}
 d|  constructor(
 .|    private a: A,
 .|  ) {
 .|    if (a &&
 .|        b) {
 d|def merge(
 .|    a: int,
 .|) -> int:
`},
		{"rare forms", `
 i|from x import (a, b,
 i|    c)
 .|include('x'),
 i|. ./other.sh
 d|type (
 d|remove_file() { # <file>
 d|public Class<?> getUpToClass() {
 d|Map.Entry<K,V> first() {
 d|void IBindingList.AddIndex(int a) {
 d|void f(int a, int b) {}
 d|public int Run(int a) => a + 1;
 d|public enum E : int
 d|struct Error<F: Formatter = Default> {
 d|public Foo(string m)
 .|    : base(m)
 .|{
 .|type "$1" > /dev/null
 .|local fn
 .|x = function_exists(a)
 .|TAILQ_FOREACH(a, b, c) {
 .|struct frame fp;
 .|object x;
 .|foo.bar(x) {
`},
		{"configurations and databases", `
 d|resource "aws_instance" "web" {
 .|  ami = "x"
 .|  tags = {
 .|}
 d|server {
 .|  location / {
 d|CREATE TABLE "orders" (
 d|create or replace function f()
 .|create :user
 .|else {
`},
		{"methods without a body", `
 d|type Store interface {
 .|	io.Reader
 d|	Get(key string) (string, error)
 d|	Put(
 .|		key string,
 .|	) error
 .|	~int | ~string
 .|}
 d|type Hooks struct {
 .|	Done func(error) error
 .|}
 d|export interface Client extends Base {
 .|  readonly size: number;
 .|  onDone: (error: Error) => void;
 .|  pick: Map<string, (key: string) => void>;
 .|  (key: string): void;
 d|  get<T>(key: string): Promise<T>
 d|  put(
 .|    key: string,
 .|  ): void
 .|}
 d|export interface Page<
 .|  T,
 .|> {
 d|  next?(size: number): Page<T>;
 .|}
 d|abstract class Reader {
 .|  limit = compute(3);
 d|  abstract read(size: number): string;
 d|  read(size: string): string
 .|}
 d|public interface IStore
 .|{
 .|    int Limit { get; }
 @|    [Obsolete("x")]
 d|    Task<T> Get<T>(string key, int limit);
 .|}
 d|abstract class Base extends Other {
 .|    private final List<A> items = new ArrayList<>();
 d|    protected abstract List<A> all(int limit) throws IOException;
 d|    void run() {
 .|        run(items);
 .|        List<A> none = all(3);
 .|        return all(3);
 .|    }
 .|}
 d|enum Level {
 .|    LOW(1),
 .|    HIGH(2);
 .|}
 d|class Model < Base
 .|  validates(:name)
 d|class Form(Base):
 .|    register(name); other(name)
`},
		{"prototypes in a class of C++", `
 d|class Store : public Base,
 .|              public Other {
 .| public:
 .|  DISALLOW_COPY(Store);
 .|  static_assert(sizeof(int) == 4, "x");
 d|  Store(int limit);
 d|  ~Store() override;
 d|  Store& operator=(const Store&) = delete;
 d|  std::string get(const std::string& key) const;
 d|  virtual void put(const std::string& key,
 .|                   int value) = 0;
 .|  int size GUARDED_BY(lock_);
 .|  void (*done)(int);
 .|  mutable std::function<void(int)> call_;
 .|  char buffer[SIZE(3)];
 .|};
 .|int prototype(int limit);
`},
		{"templates and operators of C++", `
 @|template <typename T,
 @|          typename U = decltype(a() < b())>
 d|class Pair : Base<T> {
 .|};
 @|template<>
 d|struct hash<Key> {
 .|};
 @|template <typename T>
 @|template <typename U>
 d|Store<T>& Store<T>::operator=(const Store<U>& other) {
 .|}
 @|template <typename T, typename = std::enable_if_t<(sizeof(T) > 4)>>
 d|T Store<T>::operator[](int i) const {
 d|bool operator<(const Key& a, const Key& b) {
 d|Key* Store::operator->() const {
 d|Store::Store(int limit, int size)
 .|    : limit_(limit),
 .|      size_(size) {
 d|auto Store::begin() const
 .|    -> Iterator {
 .|  auto x = y
 .|      ? first(x)
 .|      : second{};
 d|inline internal::Matcher<T> Not(T x) {  // of matchers
 d|void Store::ForEach(Callback call) {
 .|    noexcept(noexcept(f(x)))
 .|{
 .|template <never closed
 d|void f() {
`},
		{"macros", `
 .|#define LIMIT 3
 .|#define EMPTY
 d|#define MAX(a, b) ((a) > (b) ? (a) : (b))
 d|#  define FIELDS \
 .|struct name { \
 .|  int a;
 d|TEST(Store, Get) {
 d|BENCHMARK_F(Store, Put)(State& state) {
 d|PYBIND11_MODULE(store, m) {
 d|TEST_CASE("gets", "[store]")
 .|{
`},
		{"names in backticks", `
 d|    fun ` + "`" + `keeps what was asked for` + "`" + `() {
`},
		{"Scala, Swift and Lua", `
 d|case class User(name: String)
 .|  case User(n) =>
 d|actor Store {
 .|  guard check(id) else {
 i|local json = require("json")
`},
		{"comments over several lines", `
hc|/* What this is for,
hc|def not_one():
hc|and no more */
 d|def one():
 .|    x = "/*"
 c|/* never ended
 d|def two():
`},
		{"quotes in texts", `
 .|x = "'''"
 d|def one():
 .|y = @"{""a"": """
 d|def two():
`},
		{"texts in triple quotes", `
 .|query = """
 c|def not_one():
 c|import nothing
 c|"""
 d|def one():
 .|    x = """a""" + '''b'''
 c|    f"""a text alone"""
 d|def two():
 c|    # no ''' in comments
 d|def three():
 c|    r'''
 c|    def not_one():
 c|    '''
 d|def four():
`},
		{"Go", `
hc|// Copyright
hi|package prune
  |
 i|import (
 i|	"fmt"
  |
 i|	. "os"
 i|)
  |
 i|import "strings"
  |
 c|// A Store holds things.
 d|type Store struct {
 .|	items map[string]func() error
 .|}
  |
 d|type Handler interface {
 d|	Serve(w io.Writer, r *Request) error
 .|}
  |
 d|func (s *Store) Get(key string) (string, error) {
 .|	if item, ok := s.items[key]; ok {
 .|		return item, nil
 .|	}
 .|	for i := range s.items {
 .|	switch x := y.(type) {
 .|	defer func() {
 .|	go func() {
 .|	t.Run(name, func(t *testing.T) {
 .|	s.do(key, Options{
 .|	})
 .|}
  |
 d|func main() { run() }
 d|func generic[T any](x T) T {
`},
		{"JavaScript", `
 i|import fs from "fs";
 i|import {
 i|  one,
 i|} from './one.js';
 i|import './side.css';
 i|const path = require('path');
 i|export { a, b } from './c';
 i|export * from './d';
  |
 c|/**
 c| * Loads it.
 c| */
 d|export default async function load(url) {
 .|  const response = await fetch(url);
 .|  if (!response.ok) {
 .|    throw new Error("no");
 .|  } else if (x) {
 .|  for (const a of b) {
 .|  while (true) {
 .|  switch (x) {
 .|  try {
 .|  } catch (e) {
 .|  items.forEach((item) => {
 .|  setTimeout(() => {
 .|}
 d|const add = (a, b) => a + b;
 d|const load2 = async (url) => {
 d|module.exports.run = function () {
 d|class Store extends Map {
 d|export default class {
 d|  constructor(limit) {
 d|  get(key) {
 d|  static async of(items) {
 d|function* each() {
 .|describe("a store", () => {
 .|it('works', async function () {
 .|app.get("/", (req, res) => {
 .|foo(bar);
 .|return function () {
`},
		{"TypeScript", `
 i|import type { A } from "./a";
 d|export interface Options {
 .|  limit?: number;
 d|  load(key: string): Promise<void>;
 .|}
 d|export type Key = string | number;
 d|export enum Kind {
 d|declare module "x" {
 d|namespace N {
 @|@Injectable()
 d|export abstract class Store<T> implements Base {
 d|  private async get(key: Key): Promise<T> {
 d|  public constructor(private readonly a: A) {
 .|    this.type = "x";
 .|    const type = x;
`},
		{"Rust", `
hc|//! A crate.
  |
 i|use std::io;
 i|use std::{
 i|    fmt,
 i|};
 i|pub use self::x::Y;
 i|extern crate serde;
 d|mod inner;
 @|#[derive(Debug)]
 d|pub struct Store<T> {
 .|    items: Vec<T>,
 .|}
 d|pub(crate) enum Kind {
 d|impl<T> Store<T> {
 d|    pub fn get(&self, key: &str) -> Option<&T> {
 .|        match self.items.get(key) {
 .|            Some(x) => {
 .|        if let Some(x) = y {
 .|        let x = match y {
 .|        loop {
 .|        println!("{}", x);
 d|pub trait Load {
 d|    fn load(&self);
 d|unsafe fn raw() {}
 d|macro_rules! m {
 d|pub async fn run() -> Result<()> {
 d|type Alias = u32;
`},
		{"Java", `
hc|/*
hc| * Copyright
hc| */
hi|package org.example;
  |
 i|import java.util.List;
 i|import static java.lang.Math.max;
  |
 @|@Service
 d|public final class Store<T> extends Base implements Load {
 .|    private final List<T> items = new ArrayList<>();
  |
 @|    @Override
 d|    public synchronized T get(String key) throws IOException {
 .|        if (items.isEmpty()) {
 .|        } else if (x) {
 .|        for (T item : items) {
 .|        while (true) {
 .|        try (Reader r = open()) {
 .|        } catch (IOException e) {
 .|        synchronized (this) {
 .|        return items.stream().map(x -> {
 .|        new Thread(() -> {
 .|        log.info("x");
 d|    Store(int limit) {
 d|    protected <K> Map<K, T> by(Function<T, K> f) {
 d|interface Load {
 d|enum Kind { A, B }
 d|record Point(int x, int y) {}
`},
		{"Kotlin", `
hi|package org.example
 i|import kotlin.math.max
 d|data class Point(val x: Int, val y: Int)
 d|sealed interface Kind
 d|object Store {
 d|    fun get(key: String): String? {
 d|    suspend fun load() = 1
 d|    private inline fun <T> with(f: () -> T): T {
 .|        when (x) {
 .|        if (x) {
 .|        items.forEach {
 .|        val y = x
 d|fun String.shout() = uppercase()
`},
		{"C", `
hc|/* A store. */
  |
 i|#include <stdio.h>
 i|#include "store.h"
 .|#define LIMIT 3
 .|#ifdef X
 .|#endif
  |
 d|struct store {
 .|	int limit;
 .|};
 d|typedef struct {
 d|static int get(struct store *s, const char *key)
 .|{
 .|	if (!s) {
 .|	for (i = 0; i < n; i++) {
 .|	while (x) {
 .|	switch (x) {
 .|	do {
 .|	printf("x");
 .|	return get(s, key);
 .|	list->each(x) {
 .|	run a, b(x) {
 .|	table[3](x) {
 .|	run(x, (y) {
 .|}
 d|int main(int argc, char **argv) {
 .|static int prototype(int);
 .|void other(void);
 d|enum kind { A, B };
`},
		{"C++", `
 i|#include <vector>
 i|using namespace std;
 d|namespace store {
 @|template <typename T>
 d|class Store : public Base {
 .|public:
 d|  explicit Store(int limit) : limit_(limit) {
 d|  ~Store() {
 d|  virtual int get(const std::string& key) const override {
 .|    auto f = [&](int x) {
 .|    std::sort(a, b);
 d|int Store::get(const std::string& key) const {
 d|bool operator==(const A& a, const B& b) {
 d|enum class Kind {
 d|union U {
`},
		{"C#", `
 i|using System;
 i|using System.Linq;
 d|namespace Example {
 @|[Serializable]
 d|public sealed partial class Store<T> : IStore where T : class {
 d|    public async Task<T> Get(string key) {
 .|        using (var r = Open()) {
 .|        using var s = Open(r);
 .|        foreach (var x in y) {
 .|        lock (this) {
 .|        if (x) {
 .|        var z = y.Select(a => {
 d|public interface IStore {
 d|public record Point(int X, int Y);
 d|public struct S {
`},
		{"Ruby", `
hc|# frozen_string_literal: true
  |
 i|require "json"
 i|require_relative 'store'
 d|module Example
 d|class Store < Base
 .|  include Enumerable
 .|  attr_reader :limit
 d|  def get(key)
 d|  def self.load!
 .|    items.each do |item|
 .|    if x
 .|    unless y
 .|    return z
 .|    raise ArgumentError
 .|  end
`},
		{"PHP", `
 h|<?php
 d|namespace Example;
 i|use Example\Base;
 i|require_once __DIR__ . '/y.php';
 i|require 'x.php';
 d|abstract class Store extends Base {
 d|    public static function get(string $key): ?string {
 .|        foreach ($this->items as $item) {
 .|        if ($x) {
 .|        echo $x;
 d|function load($x)
 d|trait T {
 d|$f = function ($x) {
`},
		{"shell", `
hc|#!/bin/sh
hc|# What it does.
 .|set -eu
 i|source lib.sh
 d|load() {
 d|function store {
 .|  if [ -z "$1" ]; then
 .|  for x in a b; do
 .|  while read -r line; do
 .|  echo "$x"
 .|  fi
`},
	} {
		t.Run(test.name, func(t *testing.T) { checkOutline(t, test.snippet) })
	}
}

// For each line, want has the number of the line that it is under, or 0.
func TestScopesOfCode(t *testing.T) { // P77
	for _, test := range []struct {
		name, text string
		want       []int
	}{
		{"by indentation", "class A:\n    x = 1\n    def f(self):\n        return 1\n\n    def g(self):\n        def " +
			"h():\n            pass\n        return h\ny = 2\ndef k():\n    pass\n",
			[]int{0, 1, 1, 3, 3, 1, 6, 7, 6, 0, 0, 11}},
		{"a brace belongs to the definition that it closes",
			"func f() {\n\tx()\n}\n\nfunc g() {\n\tif x {\n\t\ty()\n\t}\n}\nvar z int\n",
			[]int{0, 1, 1, 1, 0, 5, 5, 5, 5, 0}},
		{"a brace on the next line", "int f(int x)\n{\n\treturn x;\n}\nint y;\n", []int{0, 1, 1, 1, 0}},
		{"after the closing brace", "void f() {\n}\n#ifdef A\nint x;\n#endif\n", []int{0, 1, 0, 0, 0}},
		{"a macro ends with its last line", "void f() {\n#define A(x) \\\n  x\n\n  int b;\n}\n", []int{0, 1, 2, 2, 1, 1}},
		{"a definition without a body", "interface A {\n    void f();\n    class B {\n        int x;\n    }\n}\n",
			[]int{0, 1, 1, 3, 3, 1}},
		{"no definitions", "x = 1\n    y = 2\n", []int{0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := split(test.text)
			o := outlineOf(l, Code, never)
			for i, want := range test.want {
				if got := o.parent[i] + 1; got != want {
					t.Errorf("line %d, %q, is under line %d, want %d", i+1, l.line(i), got, want)
				}
			}
		})
	}
}

// Lines with the same letter belong to the same block.
func TestBlocksOfCode(t *testing.T) { // P77
	for _, test := range []struct{ name, text, want string }{
		{"a definition and its body", "def f():\n    a\n\n    b\ndef g():\n    c\n", "aaaabb"},
		{"comments and decorators above", "def f():\n    a\n# of g\n@x\ndef g():\n    c\n", "aabbbb"},
		{"the head of a template", "int x;\n// of A\ntemplate <class T,\n          class U>\nclass A {\n};\n", "abbbbb"},
		{"methods without a body", "interface A {\n    // of f\n    void f();\n    void g(int a,\n        int b);\n}\n",
			"abbcca"},
		{"a nested definition", "class A:\n    a\n    def f():\n        b\n    c\n", "aabba"},
		{"lines outside definitions, up to a blank line", "import a\nimport b\n\nx = 1\ny = 2\n", "aaabb"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := lettered(outlineOf(split(test.text), Code, never).block); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// lettered returns a letter for each group, in the order of their first occurrence.
func lettered(groups []int) string {
	var b strings.Builder
	letters := map[int]byte{}
	for _, g := range groups {
		if _, known := letters[g]; !known {
			letters[g] = 'a' + byte(len(letters))
		}
		b.WriteByte(letters[g])
	}
	return b.String()
}

func TestOutlineOfConfigurations(t *testing.T) { // P77
	for _, test := range []struct{ name, snippet string }{
		{"a workflow", `
hc|# Builds it.
 .|name: Build
 d|on:
 d|  push:
 .|    branches: [main]
 .|  pull_request:
 d|jobs:
 d|  build:
 .|    runs-on: linux
 d|    env: # of all steps
 .|      LIMIT: 3
 d|    steps:
 .|      - uses: checkout
 d|      - name: Test
 .|        run: |
 .|          class Not:
 .|          not_one:
 .|            x
 d|      - run: >
 .|          make
`},
		{"lists at the column of their key", `
 .|---
 d|"quoted key":
 d|- name: one
 d|  ports:
 d|    - from: 1
 .|      to: 2
 .|- plain
 d|/pets/{id}: &anchor
 d|  get:
 d|    parameters:
 d|    - name: id
 .|      schema:
 .|        type: string
 .|text: goes on
 .|  in the next line
 .|list: [
 .|  "a",
 .|  b,
 .|  ]
`},
		{"a makefile", `
hc|# Builds it.
 i|-include local.mk
 .|FLAGS ?= -g \
 .|  -O2
 .|ifeq ($(V),1)
 .|	Q :=
 .|else
 .|	Q := @
 .|endif
 .|.PHONY: all clean
 .|all: store
 .|debug: FLAGS += -DDEBUG
 c|# Links it.
 d|$(BIN)/store: $(OBJECTS:.c=.o) \
 .|  lib.a
 .|	$(Q)$(CC) -o $@ ${FLAGS}
 d|%.o: %.c
 .|	$(CC) -c $<
 d|print: ; @true
 .|	echo $(X)
 d|define RULE
 .|$(1): $(2)
 .|	touch $$@
 .|endef
 .|$(eval $(call RULE,a,b))
 d|include/version.h:
 .|	touch $@
`},
		{"Python with colons", `
 .|try:
 .|	x: int = 3
 .|finally:
 .|	done()
`},
		{"labels of C", `
 .|retry:
 .|	if (x) {
 .|		goto retry;
 .|	}
`},
		{"members of an object", `
 .|	limit: 3,
 .|	size: 4,
 .|names:
 .|	f(x),
`},
	} {
		t.Run(test.name, func(t *testing.T) { checkOutline(t, test.snippet) })
	}
}

// For each line, want has the number of the line that it is under, or 0.
func TestScopesOfConfigurations(t *testing.T) { // P77
	for _, test := range []struct {
		name, text string
		want       []int
	}{
		{"keys", "on:\n  push:\n    tags: [a]\n  call:\njobs:\n  a:\n    b: 1\nname: x\n", []int{0, 1, 2, 1, 0, 5, 6, 0}},
		{"items at the column of their key", "a:\n- b: 1\n  c: 2\n- d: 3\n  e: 4\nf: 5\n", []int{0, 1, 2, 1, 4, 0}},
		{"recipes", "a: b\n\tx\nifdef C\n\ty\nendif\nD = 1\nb:\n\tz\n", []int{0, 1, 1, 1, 1, 0, 0, 7}},
		{"define up to its end", "define A\nb:\n\tc\nendef\nd:\n\te\n", []int{0, 1, 1, 1, 0, 5}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := split(test.text)
			o := outlineOf(l, Code, never)
			for i, want := range test.want {
				if got := o.parent[i] + 1; got != want {
					t.Errorf("line %d, %q, is under line %d, want %d", i+1, l.line(i), got, want)
				}
			}
		})
	}
}
