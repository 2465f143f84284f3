package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
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
