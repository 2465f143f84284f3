package mcpjson

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Secret is a text of a file that HideSecrets has replaced with a variable of the environment.
type Secret struct {
	Variable string
	Server   string
	Member   string // where in the server it stands
}

// HideSecrets replaces texts that look like secrets, by their names, with variables of the environment.
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

// Variables returns the names of the variables that the environment must have.
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
	values  map[string]string // of variables that are taken
}

// hide returns the value that replaces a secret of this name. The text before the secret stays.
func (h *hider) hide(member, secretName, before, secret string) Value {
	name := h.variable(secretName, secret, strings.HasPrefix(member, "env "))
	h.values[name] = secret
	h.secrets = append(h.secrets, Secret{name, h.server.Name, member})
	return literal(before).add(Part{Env: name}).trimmed()
}

// variable returns the name of the variable for a secret. A secret in env keeps its name, unless another value has it.
// Others have the name of the server in front, unless it is part of the name, as in GITHUB_TOKEN.
func (h *hider) variable(name, secret string, ofCommand bool) string {
	if value, taken := h.values[name]; ofCommand && variableName.MatchString(name) && (!taken || value == secret) {
		return name
	}
	server, base := inCapitals(h.server.Name), strings.TrimPrefix(inCapitals(name), "X_")
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

// inCapitals returns a name as those of variables are written: apiKey as API_KEY.
func inCapitals(name string) string {
	name = strings.ToUpper(wordStart.ReplaceAllString(name, "${1}_$2"))
	return strings.Trim(notInVariables.ReplaceAllString(name, "_"), "_")
}

// trimmed returns a value without an empty text at its beginning.
func (v Value) trimmed() Value {
	if len(v) > 1 && v[0] == (Part{}) {
		return v[1:]
	}
	return v
}

var scheme = regexp.MustCompile(`^(?i:bearer|basic|token) +`)

// hideDefaults takes away the defaults of variables that are secrets, by the name of the variable or of the setting.
func (h *hider) hideDefaults(setting string, v Value) {
	for i, part := range v {
		if part.Default != nil && (isSecret(part.Env, *part.Default) || isSecret(setting, *part.Default)) {
			v[i].Default = nil
			h.secrets = append(h.secrets, Secret{part.Env, h.server.Name, "its default"})
		}
	}
}

func (h *hider) hideSetting(member string, s *Setting) {
	h.hideDefaults(s.Name, s.Value)
	if value, ok := s.Value.Literal(); ok && isSecret(s.Name, value) {
		before := scheme.FindString(value)
		s.Value = h.hide(member+" "+s.Name, s.Name, before, value[len(before):])
	}
}

var assignment = regexp.MustCompile(`^(-*[A-Za-z][A-Za-z0-9_-]*)(=|: *)(.+)$`)

// hideInArgs finds --api-key SECRET, --api-key=SECRET, API_KEY=SECRET and Authorization: Bearer SECRET.
func (h *hider) hideInArgs(args []Value) {
	for i := range args {
		arg, ok := args[i].Literal()
		if !ok || i == 0 {
			continue
		}
		member := fmt.Sprintf("args, number %d", i)
		if m := assignment.FindStringSubmatch(arg); m != nil && isSecret(m[1], m[3]) {
			before := scheme.FindString(m[3])
			args[i] = h.hide(member, m[1], m[1]+m[2]+before, m[3][len(before):])
			continue
		}
		flag, _ := args[i-1].Literal()
		if !strings.HasPrefix(flag, "-") {
			flag = "url" // with a password
		}
		if !strings.HasPrefix(arg, "-") && isSecret(flag, arg) {
			args[i] = h.hide(member, flag, "", arg)
		}
	}
}

// hideInURL finds ?apiKey=SECRET.
func (h *hider) hideInURL(address *Value) {
	text, ok := address.Literal()
	path, query, hasQuery := strings.Cut(text, "?")
	if !ok || !hasQuery {
		return
	}
	value := literal(path + "?")
	for i, pair := range strings.Split(query, "&") {
		if i > 0 {
			value = value.add(Part{Text: "&"})
		}
		name, secret, _ := strings.Cut(pair, "=")
		if !isSecret(name, secret) {
			value = value.add(Part{Text: pair})
			continue
		}
		for _, part := range h.hide("url", name, name+"=", secret) {
			value = value.add(part)
		}
	}
	*address = value
}

var (
	secretName  = regexp.MustCompile(`(?i)KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE|_PAT$`)
	pathName    = regexp.MustCompile(`(?i)(PATH|FILE|DIR)$`)
	notSecret   = regexp.MustCompile(`^([0-9]{0,9}|true|false)$`)
	credentials = regexp.MustCompile(`://[^/@\s]*:[^/@\s]+@`)
)

// isSecret reports whether a text looks like a secret, by its name or because it is a URL with a password.
func isSecret(name, value string) bool {
	if credentials.MatchString(value) {
		return true
	}
	return secretName.MatchString(name) && !pathName.MatchString(name) && !notSecret.MatchString(value)
}
