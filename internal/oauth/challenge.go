package oauth

import (
	"regexp"
	"strings"
)

// A challenge is the content of the Bearer challenges in WWW-Authenticate.
type challenge struct {
	metadata string // resource_metadata
	scopes   []string
	err      string // error
}

// insufficientScope is the error of a challenge if the token lacks scopes.
const insufficientScope = "insufficient_scope"

// maxParam bounds the parameters of a challenge. Longer ones are ignored.
const maxParam = 2048

// challengePart matches a parameter of a challenge (RFC 9110, 11.6.1), or else a token, or else a
// quoted string. The groups are: name, quoted value, value; a token has only a name. The parts of
// a token68 are tokens.
var challengePart = regexp.MustCompile("(?s)" +
	"([!#$%&'*+.^_`|~0-9A-Za-z-]+)" +
	`(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|` + "([!#$%&'*+.^_`|~0-9A-Za-z-]+)" + `))?` +
	`|"(?:[^"\\]|\\.)*"?`)

var quotedPair = regexp.MustCompile(`(?s)\\(.)`)

// parseChallenges parses the values of WWW-Authenticate. Each parameter comes from the first Bearer
// challenge that has it. A token that is not the name of a parameter is the scheme of a challenge.
func parseChallenges(values []string) challenge {
	bearer := map[string]string{"resource_metadata": "", "scope": "", "error": ""}
	for _, value := range values {
		scheme := ""
		for _, part := range challengePart.FindAllStringSubmatch(value, -1) {
			name, text := strings.ToLower(part[1]), quotedPair.ReplaceAllString(part[2], "$1")+part[3]
			if len(part[0]) == len(part[1]) {
				scheme = name
			} else if old, wanted := bearer[name]; wanted && old == "" && scheme == "bearer" && len(text) <= maxParam {
				bearer[name] = text
			}
		}
	}
	return challenge{bearer["resource_metadata"], strings.Fields(bearer["scope"]), bearer["error"]}
}
