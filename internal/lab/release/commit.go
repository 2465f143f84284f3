package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"
)

// A commit is a revision to release with its version.
type commit struct {
	hash    string
	time    time.Time
	version string
}

// findCommit returns a revision of the repository at root. By default it is HEAD, and the
// directory must have no changes, which would be missing from the release.
func findCommit(ctx context.Context, root, revision, version string) (commit, error) {
	if err := checkVersion(version); err != nil {
		return commit{}, err
	}
	if revision == "" {
		changed, err := git(ctx, root, "status", "--porcelain")
		if err != nil {
			return commit{}, err
		}
		if changed != "" {
			return commit{}, fmt.Errorf("these files are not committed:\n%s\ncommit them, or release HEAD without them: "+
				"COMMIT=HEAD", changed)
		}
		revision = "HEAD"
	}
	line, err := git(ctx, root, "log", "-1", "--no-show-signature", "--format=%H %ct", "--end-of-options", revision)
	if err != nil {
		return commit{}, err
	}
	hash, seconds, _ := strings.Cut(line, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return commit{}, fmt.Errorf("time of commit %s: %w", revision, err)
	}
	return commit{hash, time.Unix(unix, 0).UTC(), version}, nil
}

// checkVersion returns an error unless this module can have the version.
func checkVersion(version string) error {
	if module.CanonicalVersion(version) != version {
		return fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-rc.1", version)
	}
	return module.Check(modulePath, version)
}

// git returns the output of a git command.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // set in git hooks
		return strings.HasPrefix(v, "GIT_DIR=") || strings.HasPrefix(v, "GIT_WORK_TREE=") || strings.HasPrefix(v,
			"GIT_INDEX_FILE=")
	})
	out, err := output(cmd)
	return strings.TrimRight(string(out), "\n"), err
}

// output runs a command. Its error includes the command's standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args[:min(2, len(cmd.Args))], " "), err)
	}
	return out, nil
}
