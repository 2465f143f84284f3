package prune

import "testing"

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
