//go:build unix

package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestReadScenarios(t *testing.T) {
	const requirements = `# a comment
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
`
	for leg, want := range map[leg][]scenario{
		serverLeg: {{"ping", true, false}, {"tools-list", true, false}, {"http-header-validation", false, false}},
		clientLeg: {{"initialize", true, false}, {"auth/dpop", false, true}},
	} {
		if got := readScenarios(requirements, leg); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", leg, got, want)
		}
	}
}

// checksOf returns checks with these statuses.
func checksOf(statuses ...string) checks {
	all := checks{}
	for _, status := range statuses {
		all = append(all, check{ID: "it", Status: status})
	}
	return all
}

func TestReportServers(t *testing.T) {
	with := checksOf
	required, optional, extension := scenario{"one", true, false}, scenario{"one", false, false},
		scenario{"one", false, true}
	for _, test := range []struct {
		name            string
		kind            scenario
		direct, through checks
		err             string // or ""
		output          string // part of the report
	}{
		{"passes both ways", required, with(success), with(success), "", "1/1"},
		{"a warning is reported, but is not a failure", required, with(success, success), with(success, "WARNING"), "",
			"less than directly"},
		{"fails through the gateway", required, with(success), with(success, failure), "only through the gateway", "FAIL"},
		{"fails through the gateway, not required", optional, with(success), with(failure), "only through the gateway",
			"FAIL"},
		{"does not end through the gateway", required, with(success), nil, "only through the gateway", "NO END"},
		{"has nothing to check through the gateway", required, with(success), with("INFO"), "only through the gateway",
			"skip"},
		{"has nothing to check through the gateway, not required", optional, with(success), with("INFO"), "",
			"less than directly"},
		{"has nothing to check either way", required, with(), with(), "", "skip"},
		{"fails both ways", required, with(failure), with(failure), "itself", "fails these itself"},
		{"fails both ways, not required", optional, with(failure), with(failure), "", "fails these itself"},
		{"passes both ways, as an extension", extension, with(success), with(success), "", "1/1"},
		{"has less through the gateway, as an extension", extension, with(success, success), with(success, "WARNING"),
			"only through the gateway", "it"},
		{"has nothing to check through the gateway, as an extension", extension, with(success), with("INFO"),
			"only through the gateway", "skip"},
		{"fails both ways, as an extension", extension, with(failure), with(failure), "itself", "fails these itself"},
		{"fails only directly", optional, with(failure), with(success), "", "fails these itself"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			err := reportServers(&out, []table{{
				revision:  "2026-07-28",
				scenarios: []scenario{test.kind},
				names:     []string{"direct", "http"},
				columns:   []map[string]checks{{"one": test.direct}, {"one": test.through}},
			}})
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got error %v, want %q", err, test.err)
			}
			if !strings.Contains(out.String(), test.output) {
				t.Errorf("the report does not contain %q:\n%s", test.output, &out)
			}
		})
	}
}

func TestReportClients(t *testing.T) {
	with := checksOf
	for _, test := range []struct {
		name     string
		scenario scenario
		got      checks
		err      string // or ""
		output   string // part of the report
	}{
		{"passes", scenario{"auth/one", true, false}, with(success), "", "1/1"},
		{"fails", scenario{"auth/one", true, false}, with(success, failure), "fails 1 client", "These fail:"},
		{"does not end", scenario{"auth/one", true, false}, nil, "fails 1 client", "NO END"},
		{"has nothing to check", scenario{"auth/one", true, false}, with("INFO"), "fails 1 client", "found nothing to check"},
		{"fails, not required", scenario{"json-schema", false, false}, with(failure), "fails 1 client", "These fail:"},
		{"fails, as an extension", scenario{"auth/dpop", false, true}, with(failure), "", "not required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			err := reportClients(&out, []table{{
				revision:  "2025-11-25",
				scenarios: []scenario{test.scenario},
				names:     []string{legacy},
				columns:   []map[string]checks{{test.scenario.name: test.got}},
			}})
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got error %v, want %q", err, test.err)
			}
			if !strings.Contains(out.String(), test.output) {
				t.Errorf("the report does not contain %q:\n%s", test.output, &out)
			}
		})
	}
}
