package upstream

import (
	"strconv"
	"testing"
)

// The cache is limited. Each server has its own share.
func TestToolCache(t *testing.T) {
	cache := newToolCache[int](focusQuota, focusLimits, focusTime)
	defer cache.close()
	has := func(tool toolKey) bool {
		_, ok := cache.get(tool)
		return ok
	}
	x, ofAnother, toAnother := toolKey{"a", "s", "x"}, toolKey{"b", "s", "x"}, toolKey{"a", "t", "x"}
	if !cache.store("a", x, 1) || !has(x) || has(ofAnother) || has(toAnother) {
		t.Error("wrong tool")
	}
	cache.remove(ofAnother)
	if cache.remove(toAnother); !has(x) {
		t.Error("removing another tool removed this one")
	}
	if cache.remove(x); has(x) {
		t.Error("the removed tool is still cached")
	}
	for i := range focusLimits.OwnerEntries + 10 {
		cache.store("a", toolKey{"a", "s", strconv.Itoa(i)}, i)
	}
	cache.store("b", ofAnother, 1)
	if n := cache.tools.Len(); n > focusLimits.OwnerEntries+1 || !has(ofAnother) {
		t.Errorf("%d tools are cached", n)
	}
}
