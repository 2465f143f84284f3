package mcpjson

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Secret is a text of a file that a variable of the environment has taken the place of.
type Secret struct {
	Variable string
	Server   string
	Member   string // where in the server it stands
}

// HideSecrets replaces texts that look like secrets, by their names, with variables of the environment.
func (f *File) HideSecrets() []Secret {
	h := &hider{values: map[string]string{}}
	for _, name := range f.Variables() {
		h.values[name] = "" // another value
	}
	for _, s := range f.Servers {
		h.server = s
		for i := range s.Env {
			h.hideSetting("env", &s.Env[i], s.Env[i].Name)
		}
		for i := range s.Headers {
			h.hideSetting("headers", &s.Headers[i], s.Name+"_"+s.Headers[i].Name)
		}
		h.hideInArgs(s.Command)
		h.hideInURL(&s.URL)
	}
	return h.secrets
}

// Variables returns the names of the variables that the servers take from the environment.
func (f *File) Variables() (names []string) {
	for _, s := range f.Servers {
		for v := range s.Values() {
			for _, part := range v {
				if part.Env != "" {
					names = append(names, part.Env)
				}
			}
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

// hide returns the value in the place of a secret, and of the text before it that is none.
func (h *hider) hide(member, wanted, before, secret string) Value {
	base := strings.Trim(notInVariables.ReplaceAllString(strings.ToUpper(wanted), "_"), "_")
	if base == "" || '0' <= base[0] && base[0] <= '9' {
		base = "MCP_" + base
	}
	name := base
	for i := 2; ; i++ {
		value, taken := h.values[name]
		if !taken || value == secret {
			break
		}
		name = base + "_" + strconv.Itoa(i)
	}
	h.values[name] = secret
	h.secrets = append(h.secrets, Secret{name, h.server.Name, member})
	return literal(before).add(Part{Env: name}).trimmed()
}

// trimmed returns a value without an empty text at its beginning.
func (v Value) trimmed() Value {
	if len(v) > 1 && v[0] == (Part{}) {
		return v[1:]
	}
	return v
}

var scheme = regexp.MustCompile(`^(?i:bearer|basic|token) +`)

func (h *hider) hideSetting(member string, s *Setting, variable string) {
	if value, ok := s.Value.Literal(); ok && isSecret(s.Name, value) {
		before := scheme.FindString(value)
		s.Value = h.hide(member+" "+s.Name, variable, before, value[len(before):])
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
			args[i] = h.hide(member, h.server.Name+"_"+m[1], m[1]+m[2]+before, m[3][len(before):])
			continue
		}
		flag, isText := args[i-1].Literal()
		if isText && strings.HasPrefix(flag, "-") && !strings.HasPrefix(arg, "-") && isSecret(flag, arg) {
			args[i] = h.hide(member, h.server.Name+"_"+flag, "", arg)
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
		for _, part := range h.hide("url", h.server.Name+"_"+name, name+"=", secret) {
			value = value.add(part)
		}
	}
	*address = value
}

var (
	secretName  = regexp.MustCompile(`(?i)KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE|_PAT$`)
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
