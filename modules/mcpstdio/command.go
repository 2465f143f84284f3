package mcpstdio

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// alwaysInherited lists the variables of Caddy's environment that every child gets. Without them
// programs do not find other programs, their own files, or on Windows their libraries. None of them
// contains a secret.
var alwaysInherited = func() []string {
	if runtime.GOOS != "windows" {
		return []string{"PATH", "HOME"}
	}
	return []string{
		"PATH", "HOME", "PATHEXT", "COMSPEC", "SystemRoot", "SystemDrive", "TEMP", "TMP",
		"USERPROFILE", "HOMEDRIVE", "HOMEPATH",
		"APPDATA", "LOCALAPPDATA", "ProgramData", "ProgramFiles", "ProgramFiles(x86)", "CommonProgramFiles",
		"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "OS",
	}
}()

// networkVariables lists variables that programs need in networks with their own proxy, registry or
// certificate authority. Children get them only if configured, because they may contain
// credentials.
var networkVariables = []string{
	"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"NPM_CONFIG_REGISTRY", "npm_config_registry", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL",
}

// environment returns the environment of children. withheld has the names of network variables that
// Caddy has and children do not get.
func (t *Transport) environment(repl *caddy.Replacer) (env, withheld []string) {
	for _, variable := range os.Environ() {
		name, _, ok := strings.Cut(variable, "=")
		if _, given := t.Env[name]; !ok || name == "" || given {
			continue
		}
		switch {
		case slices.ContainsFunc(alwaysInherited, func(other string) bool { return sameName(name, other) }), t.inherits(name):
			env = append(env, variable)
		case slices.Contains(networkVariables, name):
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

// inherits reports whether the configuration lets children inherit a variable.
func (t *Transport) inherits(name string) bool {
	return slices.ContainsFunc(t.InheritEnv, func(pattern string) bool { return mcp.MatchName(pattern, name) })
}

// sameName reports whether two names denote the same variable.
func sameName(a, b string) bool {
	if runtime.GOOS == "windows" {
		return strings.EqualFold(a, b)
	}
	return a == b
}

// validateEnv validates the names of variables. A variable cannot be both set and inherited.
func (t *Transport) validateEnv() error {
	for name := range t.Env {
		if err := validateName(name); err != nil {
			return err
		}
		if slices.Contains(t.InheritEnv, name) {
			return fmt.Errorf("env: %s is both set and inherited", name)
		}
	}
	for _, pattern := range t.InheritEnv {
		if err := validateName(pattern); err != nil {
			return err
		}
		if strings.Trim(pattern, "*") == "" {
			return errors.New("env: inherit * would pass on every secret; " +
				"name the variables, or begin with a prefix as in LC_*")
		}
	}
	return nil
}

func validateName(name string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return fmt.Errorf("env: %q is not the name of a variable", name)
	}
	return nil
}

// warnCommand warns of a command that cannot be started on this machine, or that probably does not
// do what was intended. That is not an error, because the command may be installed later.
func (t *Transport) warnCommand(log *zap.Logger, config stdio.Config) {
	if config.Dir != "" {
		if info, err := os.Stat(config.Dir); err != nil || !info.IsDir() {
			log.Warn("dir of a child process is not a directory", zap.String("dir", config.Dir))
		}
	}
	if !canRun(config.Command[0], config.Dir) {
		log.Warn("command of a child process not found; Caddy's PATH is searched",
			zap.String("command", config.Command[0]), zap.String("path", os.Getenv("PATH")))
	}
	for _, text := range slices.Concat(withoutScripts(t.Command), []string{t.Dir}) {
		if written, placeholder := shellText(text); written != "" {
			log.Warn("command of a child process is not run by a shell; use a placeholder",
				zap.String("command", t.Command[0]), zap.String("written", written), zap.String("placeholder", placeholder))
		}
	}
}

// canRun reports whether a command can be found from the child's directory.
func canRun(command, dir string) bool {
	if filepath.Base(command) != command && !filepath.IsAbs(command) {
		command = filepath.Join(dir, command)
		if !filepath.IsAbs(command) {
			command = "." + string(filepath.Separator) + command
		}
	}
	_, err := exec.LookPath(command)
	return err == nil
}

// withoutScripts returns a command without the argument of -c, which a shell reads.
func withoutScripts(command []string) (args []string) {
	for i, arg := range command {
		if i == 0 || command[i-1] != "-c" {
			args = append(args, arg)
		}
	}
	return args
}

var shellVariable = regexp.MustCompile(`\$\{?([A-Z_][A-Z0-9_]*)`)

// shellText returns the first part of a text that only a shell would replace, and the placeholder
// to use instead.
func shellText(text string) (written, placeholder string) {
	if text == "~" || strings.HasPrefix(text, "~/") {
		return "~", "{env.HOME}"
	}
	if found := shellVariable.FindStringSubmatch(text); found != nil {
		return found[0], "{env." + found[1] + "}"
	}
	return "", ""
}
