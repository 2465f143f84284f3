//go:build unix

package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestServerScenarios(t *testing.T) {
	got := serverScenarios(`# a comment
server:
  - ping
  - tools-list

client:
  - initialize

not_scored:
  - scenario: auth/dpop
    leg: client
    reason: extension
  - scenario: http-header-validation
    leg: server
    reason: pending
    note: >-
      SEP-2243: pending
`)
	want := []scenario{{"ping", true}, {"tools-list", true}, {"http-header-validation", false}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReport(t *testing.T) {
	of := func(statuses ...string) checks {
		all := checks{}
		for _, status := range statuses {
			all = append(all, check{ID: "it", Status: status})
		}
		return all
	}
	for _, test := range []struct {
		name            string
		required        bool
		direct, through checks
		err             string // "" if all is well
		says            string
	}{
		{"passes both ways", true, of(success), of(success), "", "1/1"},
		{"a warning is no failure, but told", true, of(success, success), of(success, "WARNING"), "", "less than directly"},
		{"fails through the gateway", true, of(success), of(success, failure), "only through the gateway", "FAIL"},
		{"fails through the gateway, though not required", false, of(success), of(failure), "only through the gateway", "FAIL"},
		{"does not end through the gateway", true, of(success), nil, "only through the gateway", "NO END"},
		{"has nothing to check through the gateway", true, of(success), of("INFO"), "only through the gateway", "skip"},
		{"has nothing to check through the gateway, and need not", false, of(success), of("INFO"), "", "less than directly"},
		{"has nothing to check either way", true, of(), of(), "", "skip"},
		{"fails both ways", true, of(failure), of(failure), "itself", "fails these itself"},
		{"fails both ways, and is not required", false, of(failure), of(failure), "", "fails these itself"},
		{"fails only directly", false, of(failure), of(success), "", "fails these itself"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			err := report(&out, []table{{
				revision:  "2026-07-28",
				scenarios: []scenario{{"one", test.required}},
				targets:   []target{{name: "direct"}, {name: "http"}},
				columns:   []map[string]checks{{"one": test.direct}, {"one": test.through}},
			}})
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got error %v, want %q", err, test.err)
			}
			if !strings.Contains(out.String(), test.says) {
				t.Errorf("does not say %q:\n%s", test.says, &out)
			}
		})
	}
}
