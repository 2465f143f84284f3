package mcpstdio

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

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
