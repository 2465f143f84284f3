//go:build linux

package process

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// TestTreeCountsChildren has a shell start a child that works and ends, and one that works
// and stays.
func TestTreeCountsChildren(t *testing.T) {
	const work = `i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done`
	dir := t.TempDir()
	p, err := Start(exec.Command("sh", "-c",
		`sh -c '`+work+`'; touch `+dir+`/ended; sh -c 'echo $$ > `+dir+`/child; `+work+`; touch `+dir+
			`/worked; sleep 600' & wait`))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	await.Until(t, "the first child ends", func() bool { _, err := os.Stat(dir + "/ended"); return err == nil })
	// The shell itself has done nothing: this is the time of a child that has ended.
	ended := p.CPU()
	if ended == 0 {
		t.Errorf("processor time of an ended child is %v", ended)
	}
	await.Until(t, "the second child works", func() bool { _, err := os.Stat(dir + "/worked"); return err == nil })
	if both := p.CPU(); both < ended+ended/4 {
		t.Errorf("a running child is not counted: %v, %v before it", both, ended)
	}
	if own := p.Self().CPU; own >= p.CPU() {
		t.Errorf("the process itself has %v of %v", own, p.CPU())
	}
	if all, own := p.Memory(), p.Self().Memory(); own.Resident == 0 || own.Peak < own.Resident ||
		all.Resident <= own.Resident || all.Peak <= own.Peak {
		t.Errorf("memory of the tree is %+v, of the process itself %+v", all, own)
	}
	text, err := os.ReadFile(dir + "/child")
	if err != nil {
		t.Fatal(err)
	}
	child, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if tree := procfs.Tree(p.PID()); len(tree) < 2 || tree[0].PID != p.PID() || !slices.ContainsFunc(tree,
		func(one procfs.Process) bool { return one.PID == child }) {
		t.Errorf("%d is not in %+v", child, tree)
	}
	p.Stop()
	await.Until(t, "the second child ends", func() bool {
		left, there := procfs.Read(child)
		return !there || left.State == 'Z'
	})
}
