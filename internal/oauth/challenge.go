package oauth

import "strings"

// A challenge is what the Bearer challenges of WWW-Authenticate say.
type challenge struct {
	metadata string // resource_metadata
	scopes   []string
	err      string // error
}

// insufficientScope is the error of a challenge to a token that lacks scopes.
const insufficientScope = "insufficient_scope"

// maxParam bounds the parameters of a challenge. Longer ones are ignored.
const maxParam = 2048

// parseChallenges reads the values of WWW-Authenticate. Of several Bearer challenges the
// first that has a parameter counts for it.
func parseChallenges(values []string) challenge {
	bearer := map[string]string{"resource_metadata": "", "scope": "", "error": ""}
	for _, value := range values {
		p := challengeParser{rest: value}
		for p.next(bearer) {
		}
	}
	return challenge{bearer["resource_metadata"], strings.Fields(bearer["scope"]), bearer["error"]}
}

// A challengeParser reads challenges of RFC 9110, 11.6.1, and skips what is malformed.
type challengeParser struct{ rest string }

// next reads a challenge, and sets those parameters of a Bearer challenge that bearer has
// with an empty value.
func (p *challengeParser) next(bearer map[string]string) bool {
	scheme := ""
	for scheme == "" {
		p.rest = strings.TrimLeft(p.rest, " \t,")
		if p.rest == "" {
			return false
		}
		if scheme = p.token(); scheme == "" {
			p.skip()
		}
	}
	for {
		p.rest = strings.TrimLeft(p.rest, " \t,")
		name, value, ok := p.param()
		if !ok {
			return true
		}
		if old, wanted := bearer[name]; wanted && old == "" && len(value) <= maxParam && strings.EqualFold(scheme, "Bearer") {
			bearer[name] = value
		}
	}
}

// param reads a parameter. It reads nothing if the next word is the scheme of another
// challenge. The name of a token68 is empty.
func (p *challengeParser) param() (name, value string, ok bool) {
	before := p.rest
	if p.rest == "" {
		return "", "", false
	}
	name = strings.ToLower(p.token())
	afterName := p.rest
	p.rest = strings.TrimLeft(p.rest, " \t")
	switch {
	case strings.HasPrefix(p.rest, "="):
		p.rest = strings.TrimLeft(p.rest[1:], " \t")
		if strings.HasPrefix(p.rest, `"`) {
			return name, p.quoted(), true
		}
		value = p.token()
		if afterValue := strings.TrimLeft(p.rest, " \t"); name != "" && value != "" && (afterValue == "" || afterValue[0] == ',') {
			return name, value, true
		}
		p.skip()
		return "", "", true
	case name == "" || afterName != "" && strings.IndexByte(" \t,", afterName[0]) < 0:
		p.skip() // token68, or malformed
		return "", "", true
	}
	p.rest = before
	return "", "", false
}

// quoted reads a quoted string. One that is not closed is empty.
func (p *challengeParser) quoted() string {
	var text strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return text.String()
		case c == '\\' && i+1 < len(p.rest):
			i++
			text.WriteByte(p.rest[i])
		default:
			text.WriteByte(c)
		}
	}
	p.rest = ""
	return ""
}

// token reads a token of RFC 9110, which may be empty.
func (p *challengeParser) token() string {
	end := strings.IndexFunc(p.rest, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
	if end < 0 {
		end = len(p.rest)
	}
	token := p.rest[:end]
	p.rest = p.rest[end:]
	return token
}

// skip goes on after the next comma.
func (p *challengeParser) skip() {
	_, p.rest, _ = strings.Cut(p.rest, ",")
}
