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
	of := checksOf
	required, optional, extension := scenario{"one", true, false}, scenario{"one", false, false}, scenario{"one", false, true}
	for _, test := range []struct {
		name            string
		kind            scenario
		direct, through checks
		err             string // "" if all is well
		says            string
	}{
		{"passes both ways", required, of(success), of(success), "", "1/1"},
		{"a warning is no failure, but told", required, of(success, success), of(success, "WARNING"), "", "less than directly"},
		{"fails through the gateway", required, of(success), of(success, failure), "only through the gateway", "FAIL"},
		{"fails through the gateway, though not required", optional, of(success), of(failure), "only through the gateway", "FAIL"},
		{"does not end through the gateway", required, of(success), nil, "only through the gateway", "NO END"},
		{"has nothing to check through the gateway", required, of(success), of("INFO"), "only through the gateway", "skip"},
		{"has nothing to check through the gateway, and need not", optional, of(success), of("INFO"), "", "less than directly"},
		{"has nothing to check either way", required, of(), of(), "", "skip"},
		{"fails both ways", required, of(failure), of(failure), "itself", "fails these itself"},
		{"fails both ways, and is not required", optional, of(failure), of(failure), "", "fails these itself"},
		{"passes both ways, as an extension", extension, of(success), of(success), "", "1/1"},
		{"has less through the gateway, as an extension", extension, of(success, success), of(success, "WARNING"), "only through the gateway", "it"},
		{"has nothing to check through the gateway, as an extension", extension, of(success), of("INFO"), "only through the gateway", "skip"},
		{"fails both ways, as an extension", extension, of(failure), of(failure), "itself", "fails these itself"},
		{"fails only directly", optional, of(failure), of(success), "", "fails these itself"},
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
			if !strings.Contains(out.String(), test.says) {
				t.Errorf("does not say %q:\n%s", test.says, &out)
			}
		})
	}
}

func TestReportClients(t *testing.T) {
	of := checksOf
	for _, test := range []struct {
		name     string
		scenario scenario
		got      checks
		err      string // "" if all is well
		says     string
	}{
		{"passes", scenario{"auth/one", true, false}, of(success), "", "1/1"},
		{"fails", scenario{"auth/one", true, false}, of(success, failure), "fails 1 client", "These fail:"},
		{"does not end", scenario{"auth/one", true, false}, nil, "fails 1 client", "NO END"},
		{"has nothing to check", scenario{"auth/one", true, false}, of("INFO"), "fails 1 client", "found nothing to check"},
		{"fails, and was added later", scenario{"json-schema", false, false}, of(failure), "fails 1 client", "These fail:"},
		{"fails, as an extension", scenario{"auth/dpop", false, true}, of(failure), "", "not required"},
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
			if !strings.Contains(out.String(), test.says) {
				t.Errorf("does not say %q:\n%s", test.says, &out)
			}
		})
	}
}
