package oauth

import (
	"slices"
	"strings"
	"testing"
)

func TestChallenges(t *testing.T) {
	const metadata = "https://mcp.example/.well-known/oauth-protected-resource"
	for name, row := range map[string]struct {
		values []string
		want   challenge
	}{
		"no header":     {nil, challenge{}},
		"no parameters": {[]string{"Bearer"}, challenge{}},
		"all parameters": {[]string{`Bearer error="insufficient_scope", scope="a b", ` +
			`resource_metadata="` + metadata + `"`}, challenge{metadata, []string{"a", "b"}, "insufficient_scope"}},
		"without quotes": {[]string{`bearer error=invalid_token,scope=a`},
			challenge{"", []string{"a"}, "invalid_token"}},
		"names in any case":             {[]string{`BEARER Scope="a"`}, challenge{"", []string{"a"}, ""}},
		"spaces around the equals sign": {[]string{`Bearer scope = "a"`}, challenge{"", []string{"a"}, ""}},
		"after another scheme in one header": {[]string{`Basic realm="x", Bearer scope="a"`},
			challenge{"", []string{"a"}, ""}},
		"before another scheme in one header": {[]string{`Bearer scope="a", DPoP scope="b"`}, challenge{"", []string{"a"},
			""}},
		"not of another scheme": {[]string{`DPoP scope="b", Bearer error="e", Basic scope="c"`},
			challenge{"", nil, "e"}},
		"after a scheme with a token68": {[]string{`Negotiate YWJj/+==, Bearer scope="a"`},
			challenge{"", []string{"a"}, ""}},
		"after a scheme with a plain token68": {[]string{`Negotiate YWJj, Bearer scope="a"`}, challenge{"", []string{"a"},
			""}},
		"in another header": {[]string{`Basic realm="x"`, `Bearer scope="a"`},
			challenge{"", []string{"a"}, ""}},
		"spread over two challenges": {[]string{`Bearer scope="a"`, `Bearer scope="b", error="e"`},
			challenge{"", []string{"a"}, "e"}},
		"inside of a quoted string": {[]string{`Basic realm="x, Bearer scope=a"`}, challenge{}},
		"an escaped quote in a string": {[]string{`Bearer realm="a\", scope=\"b", scope="c\d"`},
			challenge{"", []string{"cd"}, ""}},
		"a repeated parameter":                  {[]string{`Bearer scope="a", scope="b"`}, challenge{"", []string{"a"}, ""}},
		"empty elements of the list":            {[]string{`, ,Bearer ,, scope="a",`}, challenge{"", []string{"a"}, ""}},
		"a string that is not closed":           {[]string{`Bearer error="e", scope="a`}, challenge{"", nil, "e"}},
		"garbage before":                        {[]string{`"x" = (), Bearer scope="a"`}, challenge{"", []string{"a"}, ""}},
		"a parameter without value is a scheme": {[]string{`Bearer error="e", scope, error="x"`}, challenge{"", nil, "e"}},
		"a scope that is too long is not stored": {[]string{`Bearer scope="` + strings.Repeat("a", maxParam+1) + `"`},
			challenge{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := parseChallenges(row.values)
			if got.metadata != row.want.metadata || !slices.Equal(got.scopes, row.want.scopes) || got.err != row.want.err {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// FuzzChallenges checks that parameters written as RFC 9110 says are read back, whatever precedes
// them.
func FuzzChallenges(f *testing.F) {
	f.Add("", "a b", "https://mcp.example/")
	f.Add(`Basic realm="x", `, `"\`, "")
	f.Add("Negotiate YWJj==, ", "é", "\x00")
	f.Add("Bearer scope", "", ",")
	f.Fuzz(func(t *testing.T, before, scope, metadata string) {
		quote := func(text string) string {
			return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
		}
		value := `Bearer scope=` + quote(scope) + `,resource_metadata=` + quote(metadata)
		_ = parseChallenges([]string{before + value}) // must return
		if len(scope) > maxParam || len(metadata) > maxParam {
			return
		}
		got := parseChallenges([]string{value, before})
		if got.metadata != metadata && metadata != "" ||
			!slices.Equal(got.scopes, strings.Fields(scope)) &&
				len(strings.Fields(scope)) > 0 {
			t.Errorf("%q: got %+v", value, got)
		}
	})
}
