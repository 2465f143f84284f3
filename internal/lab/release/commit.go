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
	"golang.org/x/mod/semver"
)

// unknown is the version of a folder that is no repository, such as an unpacked
// archive of the sources.
const unknown = "v0.0.0-unknown"

// A commit is what is released.
type commit struct {
	hash    string
	time    time.Time
	version string
}

// findCommit returns a revision of the repository at root. Without one it is HEAD,
// which must be all there is: who releases would believe the rest to be in it.
func findCommit(ctx context.Context, root, revision string) (commit, error) {
	if revision == "" {
		changed, err := changes(ctx, root)
		if err != nil {
			return commit{}, err
		}
		if changed != "" {
			return commit{}, fmt.Errorf("these files are not committed:\n%s\ncommit them, or say which commit to release, without them: COMMIT=HEAD", changed)
		}
		revision = "HEAD"
	}
	return readCommit(ctx, root, revision)
}

// describe returns the version of the folder as it is.
func describe(ctx context.Context, root string) string {
	changed, err := changes(ctx, root)
	if err != nil {
		return unknown
	}
	c, err := readCommit(ctx, root, "HEAD")
	if err != nil {
		return unknown
	}
	if changed != "" {
		return c.version + "-dirty" // not +dirty, as Go has it: no module can be required at that
	}
	return c.version
}

// changes lists what is not committed. It fails if root is not the top of a repository.
func changes(ctx context.Context, root string) (string, error) {
	up, err := git(ctx, root, "rev-parse", "--show-cdup")
	if err != nil {
		return "", err
	}
	if up != "" {
		return "", errors.New("this folder is a part of another repository")
	}
	return git(ctx, root, "status", "--porcelain")
}

// readCommit finds the version of a commit as Go does: its highest tag that is a
// version, or one that comes after the highest of those before it.
func readCommit(ctx context.Context, root, revision string) (commit, error) {
	line, err := git(ctx, root, "log", "-1", "--no-show-signature", "--format=%H %ct", "--end-of-options", revision)
	if err != nil {
		return commit{}, err
	}
	hash, seconds, _ := strings.Cut(line, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return commit{}, fmt.Errorf("the time of commit %s: %w", revision, err)
	}
	c := commit{hash: hash, time: time.Unix(unix, 0).UTC()}
	if c.version, err = highestTag(ctx, root, "--points-at", hash); err != nil || c.version != "" {
		return c, err
	}
	before, err := highestTag(ctx, root, "--merged", hash)
	if err != nil {
		return commit{}, err
	}
	c.version = module.PseudoVersion("v0", before, c.time, hash[:12])
	return c, nil
}

// highestTag returns the highest version among some tags, "" if there is none.
func highestTag(ctx context.Context, root string, which ...string) (string, error) {
	list, err := git(ctx, root, append([]string{"tag", "--list", "v*"}, which...)...)
	if err != nil {
		return "", err
	}
	highest := ""
	for _, tag := range strings.Fields(list) {
		if checkVersion(tag) == nil && !module.IsPseudoVersion(tag) && semver.Compare(tag, highest) > 0 {
			highest = tag
		}
	}
	return highest, nil
}

// checkVersion reports whether this module can have a version.
func checkVersion(version string) error {
	if module.CanonicalVersion(version) != version {
		return fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-rc.1", version)
	}
	return module.Check(modulePath, version)
}

// git returns what a git command prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // a hook of git says which repository it is about
		return strings.HasPrefix(v, "GIT_DIR=") || strings.HasPrefix(v, "GIT_WORK_TREE=") || strings.HasPrefix(v, "GIT_INDEX_FILE=")
	})
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}
