package upstream

import (
	"strconv"
	"testing"
)

// What clients were told is bounded, and each server has its own.
func TestToldTools(t *testing.T) {
	told := newToldTools[int](keptFocus, focusLimits, focusTime)
	defer told.close()
	has := func(tool toldTool) bool {
		_, ok := told.get(tool)
		return ok
	}
	x, ofAnother, toAnother := toldTool{"a", "s", "x"}, toldTool{"b", "s", "x"}, toldTool{"a", "t", "x"}
	if !told.note("a", x, 1) || !has(x) || has(ofAnother) || has(toAnother) {
		t.Error("tools are mixed up")
	}
	told.forget(ofAnother)
	if told.forget(toAnother); !has(x) {
		t.Error("too much is forgotten")
	}
	if told.forget(x); has(x) {
		t.Error("a tool is not forgotten")
	}
	for i := range focusLimits.OwnerEntries + 10 {
		told.note("a", toldTool{"a", "s", strconv.Itoa(i)}, i)
	}
	told.note("b", ofAnother, 1)
	if n := told.tools.Len(); n > focusLimits.OwnerEntries+1 || !has(ofAnother) {
		t.Errorf("%d are kept", n)
	}
}
