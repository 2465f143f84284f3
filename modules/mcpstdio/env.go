package mcpstdio

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// inherited are the variables of Caddy's environment that every child has: without them programs do not find others,
// their own files, or on Windows their libraries. None has a secret.
var inherited = func() []string {
	if runtime.GOOS != "windows" {
		return []string{"PATH", "HOME"}
	}
	return []string{
		"PATH", "HOME", "PATHEXT", "COMSPEC", "SystemRoot", "SystemDrive", "TEMP", "TMP", "USERPROFILE", "HOMEDRIVE", "HOMEPATH",
		"APPDATA", "LOCALAPPDATA", "ProgramData", "ProgramFiles", "ProgramFiles(x86)", "CommonProgramFiles",
		"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "OS",
	}
}()

// forNetwork are the variables by which programs reach a network that has a proxy, a registry or a certificate
// authority of its own. A child does not have them unless it inherits them: they may have credentials.
var forNetwork = []string{
	"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"NPM_CONFIG_REGISTRY", "npm_config_registry", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL",
}

// environment returns the environment of children, and the names of variables for the network that Caddy has and
// they do not.
func (t *Transport) environment(repl *caddy.Replacer) (env, withheld []string) {
	for _, variable := range os.Environ() {
		name, _, ok := strings.Cut(variable, "=")
		if _, given := t.Env[name]; !ok || name == "" || given {
			continue
		}
		switch {
		case slices.ContainsFunc(inherited, func(other string) bool { return sameName(name, other) }), t.inherits(name):
			env = append(env, variable)
		case slices.Contains(forNetwork, name):
			withheld = append(withheld, name)
		}
	}
	for name, value := range t.Env {
		env = append(env, name+"="+repl.ReplaceKnown(value, ""))
	}
	slices.Sort(env)
	slices.Sort(withheld)
	return env, withheld
}

// inherits reports whether the configuration has children inherit a variable.
func (t *Transport) inherits(name string) bool {
	return slices.ContainsFunc(t.InheritEnv, func(pattern string) bool { return mcp.MatchName(pattern, name) })
}

// sameName reports whether two names are of the same variable.
func sameName(a, b string) bool {
	if runtime.GOOS == "windows" {
		return strings.EqualFold(a, b)
	}
	return a == b
}

// validateEnv ensures that each variable has one value.
func (t *Transport) validateEnv() error {
	for name := range t.Env {
		if err := validName(name); err != nil {
			return err
		}
		if slices.Contains(t.InheritEnv, name) {
			return fmt.Errorf("env: %s is set, and inherited", name)
		}
	}
	for _, pattern := range t.InheritEnv {
		if err := validName(pattern); err != nil {
			return err
		}
		if strings.Trim(pattern, "*") == "" {
			return errors.New("env: inherit * would pass on every secret; name the variables, or begin with a prefix as in LC_*")
		}
	}
	return nil
}

func validName(name string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return fmt.Errorf("env: %q is not the name of a variable", name)
	}
	return nil
}
