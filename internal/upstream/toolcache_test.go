package upstream

import (
	"strconv"
	"testing"
)

// The cache is limited, and each server has its own share.
func TestToolCache(t *testing.T) {
	cache := newToolCache[int](focusQuota, focusLimits, focusTime)
	defer cache.close()
	has := func(tool toolKey) bool {
		_, ok := cache.get(tool)
		return ok
	}
	x, ofAnother, toAnother := toolKey{"a", "s", "x"}, toolKey{"b", "s", "x"}, toolKey{"a", "t", "x"}
	if !cache.store("a", x, 1) || !has(x) || has(ofAnother) || has(toAnother) {
		t.Error("tools are mixed up")
	}
	cache.remove(ofAnother)
	if cache.remove(toAnother); !has(x) {
		t.Error("too much is forgotten")
	}
	if cache.remove(x); has(x) {
		t.Error("a tool is not forgotten")
	}
	for i := range focusLimits.OwnerEntries + 10 {
		cache.store("a", toolKey{"a", "s", strconv.Itoa(i)}, i)
	}
	cache.store("b", ofAnother, 1)
	if n := cache.tools.Len(); n > focusLimits.OwnerEntries+1 || !has(ofAnother) {
		t.Errorf("%d are kept", n)
	}
}
