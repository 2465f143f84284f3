package mcpjson

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Secret is a text of a file that HideSecrets has replaced with an environment variable.
type Secret struct {
	Variable string
	Server   string
	Member   string // position in the server
}

// HideSecrets replaces texts that are probably secrets, by their name or form, with environment
// variables.
func (f *File) HideSecrets() []Secret {
	h := &hider{values: map[string]string{}}
	for _, s := range f.Servers {
		for v := range s.Values() {
			for _, part := range v {
				h.values[part.Env] = "" // another value
			}
		}
	}
	for _, s := range f.Servers {
		h.server = s
		for v := range s.Values() {
			h.hideDefaults("", v)
		}
		for i := range s.Env {
			h.hideSetting("env", &s.Env[i])
		}
		for i := range s.Headers {
			h.hideSetting("headers", &s.Headers[i])
		}
		h.hideInArgs(s.Command)
		h.hideInURL(&s.URL)
	}
	return h.secrets
}

// Variables returns the names of the environment variables that the file needs.
func (f *File) Variables() (names []string) {
	nothing := func(string) (string, bool) { return "", false }
	for _, s := range f.Servers {
		for v := range s.Values() {
			_, unset := v.Resolve(nothing)
			names = append(names, unset...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// A hider replaces secrets of servers.
type hider struct {
	server  *Server
	secrets []Secret
	values  map[string]string // values of variables in use
}

// hide returns a value that replaces a secret with a variable. The text before the secret stays.
func (h *hider) hide(member, secretName, before, secret string) Value {
	name := h.variable(secretName, secret, strings.HasPrefix(member, "env "))
	h.values[name] = secret
	h.secrets = append(h.secrets, Secret{name, h.server.Name, member})
	return literal(before).add(Part{Env: name})
}

// variable returns the name of the variable for a secret. A secret in env keeps its name, unless
// another value has it. Other names get the name of the server as a prefix, unless they contain it,
// as in GITHUB_TOKEN.
func (h *hider) variable(name, secret string, ofCommand bool) string {
	if value, taken := h.values[name]; ofCommand && variableName.MatchString(name) && (!taken || value == secret) {
		return name
	}
	server, base := toVariableName(h.server.Name), strings.TrimPrefix(toVariableName(name), "X_")
	if !strings.Contains("_"+base+"_", "_"+server+"_") {
		base = server + "_" + base
	}
	if '0' <= base[0] && base[0] <= '9' {
		base = "MCP_" + base
	}
	variable := base
	for i := 2; ; i++ {
		if value, taken := h.values[variable]; !taken || value == secret {
			return variable
		}
		variable = base + "_" + strconv.Itoa(i)
	}
}

var wordStart = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// toVariableName converts a name to the form of a variable: apiKey to API_KEY.
func toVariableName(name string) string {
	name = strings.ToUpper(wordStart.ReplaceAllString(name, "${1}_$2"))
	return strings.Trim(notInVariables.ReplaceAllString(name, "_"), "_")
}

var scheme = regexp.MustCompile(`^(?i:bearer|basic|token) +`)

// hideDefaults removes defaults of variables that are secrets, by the name of the variable or of
// the setting.
func (h *hider) hideDefaults(setting string, v Value) {
	for i, part := range v {
		if part.Default != nil && (isSecret(part.Env, *part.Default) || isSecret(setting, *part.Default)) {
			v[i].Default = nil
			h.secrets = append(h.secrets, Secret{part.Env, h.server.Name, "its default"})
		}
	}
}

func (h *hider) hideSetting(member string, s *Setting) {
	member += " " + s.Name
	h.hideDefaults(s.Name, s.Value)
	value, ok := s.Value.Literal()
	switch {
	case !ok:
		h.hideParts(member, s.Name, s.Value)
	case isSecret(s.Name, value):
		before := scheme.FindString(value)
		s.Value = h.hide(member, s.Name, before, value[len(before):])
	}
}

// hideParts replaces texts between the variables of a value that look like secrets.
func (h *hider) hideParts(member, name string, v Value) {
	for i, part := range v {
		if part.Env == "" && looksSecret(part.Text) {
			v[i] = h.hide("the text next to the variables in "+member, name, "", part.Text)[0]
		}
	}
}

var assignment = regexp.MustCompile(`^(-*[A-Za-z][A-Za-z0-9_-]*)(=|: *)(.+)$`)

// hideInArgs finds --api-key SECRET, --api-key=SECRET, API_KEY=SECRET, Authorization: Bearer
// SECRET, and arguments that look like secrets. The first argument is the program.
func (h *hider) hideInArgs(args []Value) {
	flag := ""
	for i := range args {
		member := fmt.Sprintf("args, number %d", i)
		if i == 0 {
			member = "command"
		}
		flag = h.hideArg(member, flag, &args[i])
	}
}

// hideArg hides the secret in an argument. before is the preceding argument, if that is a flag. It
// returns the argument if it is a flag.
func (h *hider) hideArg(member, before string, v *Value) (flag string) {
	arg, ok := v.Literal()
	isFlag := strings.HasPrefix(arg, "-")
	name := cmp.Or(before, "secret")
	if before == "" && strings.Contains(arg, "://") {
		name = "url"
	}
	m := assignment.FindStringSubmatch(arg)
	switch {
	case !ok:
		h.hideParts(member, name, *v)
	case before != "" && !isFlag && hasSecretName(before, arg):
		*v = h.hide(member, before, "", arg)
	case m != nil && !looksSecret(m[1]) && !strings.HasPrefix(m[3], "//") && isSecret(m[1], m[3]):
		prefix := scheme.FindString(m[3])
		*v = h.hide(member, m[1], m[1]+m[2]+prefix, m[3][len(prefix):])
	case looksSecret(arg):
		*v = h.hide(member, name, "", arg)
	case isFlag:
		return arg
	}
	return ""
}

var urlPiece = regexp.MustCompile(`[/?&#]+|[^/?&#]+`)

// hideInURL finds ?apiKey=SECRET, and parts of the path that look like secrets.
func (h *hider) hideInURL(address *Value) {
	if *address == nil {
		return
	}
	hidden := literal("")
	for _, part := range *address {
		if part.Env != "" {
			hidden = hidden.add(part)
			continue
		}
		for _, piece := range urlPiece.FindAllString(part.Text, -1) {
			for _, p := range h.hideInPiece(piece) {
				hidden = hidden.add(p)
			}
		}
	}
	*address = hidden
}

// hideInPiece hides the secret in a host, a path segment or a parameter of a URL.
func (h *hider) hideInPiece(piece string) Value {
	name, value, isParameter := strings.Cut(piece, "=")
	at := strings.LastIndex(piece, "@")
	switch {
	case isParameter && !looksSecret(name) && isSecret(name, value):
		return h.hide("url", name, name+"=", value)
	case at > 0 && strings.Contains(piece[:at], ":"):
		return h.hide("url", "password", "", piece[:at]).add(Part{Text: piece[at:]})
	case looksSecret(piece):
		return h.hide("url", "secret", "", piece)
	}
	return literal(piece)
}

// secretWords are words in the names of secrets.
const secretWords = `KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE`

var (
	secretName = regexp.MustCompile(`(?i)` + secretWords + `|_PAT$`)
	pathName   = regexp.MustCompile(`(?i)(PATH|FILE|DIR)$`)
	notSecret  = regexp.MustCompile(`^([0-9]{0,9}|true|false)$`)
)

// secretLooks matches texts that contain a secret.
var secretLooks = regexp.MustCompile(strings.Join([]string{
	`(?:\b|%[0-9A-Fa-f]{2})(?:sk|rk)[-_][A-Za-z0-9_-]{10}`,              // OpenAI, Anthropic, OpenRouter, Stripe
	`gh[a-z]_[A-Za-z0-9]{10}|github_pat_|glpat-`,                        // GitHub, GitLab
	`xox[a-z]-|xapp-[0-9]`,                                              // Slack
	`(?:AKIA|ASIA)[A-Z0-9]{12}|AIza[A-Za-z0-9_-]{20}`,                   // AWS, Google
	`(?:\b|%[0-9A-Fa-f]{2})(?:hf|gsk|ntn|figd|lin_api)_[A-Za-z0-9]{10}`, // Hugging Face, Groq, Notion, Figma, Linear
	`eyJ[A-Za-z0-9_-]{10}`,                                              // JWT, and other JSON in base64
	`-----BEGIN [A-Z ]*PRIVATE KEY`,                                     // PEM
	`(?i:\bbearer(?: |\+|%20)+[^\s"'])`,                                 // Authorization
	`(?i:\bbasic(?: |\+|%20)+[A-Za-z0-9+/]{8})`,                         // Authorization
	`://[^/@\s]*:[^/@\s]+@`,                                             // URL with a password
	`(?i:[?&][^=&\s]*(?:` + secretWords + `)[^=&\s]*=[^&\s])`,           // parameter of a URL
	`(?i:"[^"]*(?:` + secretWords + `)[^"]*"\s*:\s*"[^"])`,              // member of JSON
}, "|"))

// looksSecret reports whether a text looks as if it contains a secret.
func looksSecret(text string) bool { return secretLooks.MatchString(text) }

// hasSecretName reports whether a value is a secret because of its name.
func hasSecretName(name, value string) bool {
	return secretName.MatchString(name) && !pathName.MatchString(name) && !notSecret.MatchString(value)
}

// isSecret reports whether a value is probably a secret, by its name or form.
func isSecret(name, value string) bool { return hasSecretName(name, value) || looksSecret(value) }
