package toolpin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// defined returns a definition with a description.
func defined(description string) []byte { return descriptor(1, description) }

// see observes a definition and checks the result.
func see(t *testing.T, p *Pins, tool, description string, changed, news bool) {
	t.Helper()
	gotChanged, gotNews := p.Observe(tool, defined(description))
	if gotChanged != changed || gotNews != news {
		t.Errorf("%s %q: changed %v, news %v; want %v, %v", tool, description, gotChanged, gotNews, changed, news)
	}
	if got := p.Changed(tool); got != changed {
		t.Errorf("%s %q: Changed returned %v", tool, description, got)
	}
}

func TestFirstDefinitionIsPinned(t *testing.T) {
	p := new(Pins)
	if p.Changed("read") {
		t.Error("an unknown tool has changed")
	}
	see(t, p, "read", "reads", false, false)
	see(t, p, "read", "reads", false, false)
	see(t, p, "write", "writes", false, false)
	see(t, p, "read", "reads and sends", true, true)
	see(t, p, "read", "reads and sends", true, false)
	see(t, p, "write", "writes", false, false)
}

func TestSpellingDoesNotCount(t *testing.T) {
	p := new(Pins)
	for _, descriptor := range []string{`{"name":"a","title":"b"}`, `{ "title":"\u0062", "name":"a" }`,
		`{"name":"a","title":"b"}`} {
		if changed, news := p.Observe("a", []byte(descriptor)); changed || news {
			t.Errorf("%s: changed %v, news %v", descriptor, changed, news)
		}
	}
}

// Pins of the first format, in which _meta did not count, report no change. As soon as their
// definition is seen again, _meta counts.
func TestPinsOfTheFirstFormat(t *testing.T) {
	const atFirst, later, other = `{"name":"a","_meta":{"ui":"a"}}`, `{"name":"a","_meta":{"ui":"b"}}`,
		`{"name":"a","title":"x"}`
	file := func(hash digest) []byte {
		return []byte(
			`{"format":1,"tools":[{"tool":"a","hash":"` + hash.String() +
				`","first_seen":"2000-01-01T00:00:00Z"}]}`,
		)
	}
	seen := func(t *testing.T, p *Pins, descriptor string, want bool) {
		t.Helper()
		if changed, _ := p.Observe("a", []byte(descriptor)); changed != want || p.Changed("a") != want {
			t.Errorf("%s has changed: %t", descriptor, changed)
		}
	}
	for _, again := range []bool{false, true} { // saved and loaded in between
		p := new(Pins)
		if err := p.UnmarshalJSON(file(digestWithoutMeta([]byte(atFirst)))); err != nil {
			t.Fatal(err)
		}
		reload := func() {
			if again {
				text := save(t, p)
				if p = new(Pins); p.UnmarshalJSON([]byte(text)) != nil {
					t.Fatal(text)
				}
			}
		}
		reload()
		seen(t, p, other, true)
		version := p.Version()
		seen(t, p, atFirst, false)
		if p.Version() == version {
			t.Error("the version has not grown")
		}
		reload()
		seen(t, p, later, true)
		seen(t, p, atFirst, false)
		seen(t, p, later, true)
		if n, err := p.Accept("a", ""); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		seen(t, p, later, false)
		seen(t, p, atFirst, true)
	}
	p := new(Pins)
	_ = p.UnmarshalJSON(file(digestWithoutMeta([]byte(atFirst))))
	p.Observe("a", []byte(other))
	if n, _ := p.Accept("a", ""); n != 1 || p.Changed("a") || strings.Contains(save(t, p), "without_meta") {
		t.Errorf("accepted %d, saved %s", n, save(t, p))
	}
}

// If pins are lost, every tool counts as changed until all are accepted.
func TestLostPins(t *testing.T) {
	p := new(Pins)
	see(t, p, "read", "1", false, false)
	before := p.Version()
	p.MarkLost()
	if !p.Changed("read") || !p.Changed("write") || p.Version() != before {
		t.Error("nothing has changed")
	}
	see(t, p, "read", "1", true, false)
	see(t, p, "write", "1", true, false)
	if n, err := p.Accept("read", ""); n != 0 || err != nil {
		t.Errorf("a single tool is accepted: %d, %v", n, err)
	}
	if got := p.Changes(); len(got) != 1 || !got[0].Lost || got[0].Tool != "" {
		t.Errorf("%+v", got)
	}
	if n, err := p.Accept("", ""); n != 1 || err != nil || p.Version() == before {
		t.Errorf("accepted %d, %v", n, err)
	}
	see(t, p, "read", "2", false, false)
	see(t, p, "read", "1", true, true)
	p.MarkLost()
	if err := p.UnmarshalJSON([]byte(`{"format":2,"tools":[]}`)); err != nil || p.Changed("read") {
		t.Errorf("after the pins were read: %v", err)
	}
}

func TestChangeIsNewsOnce(t *testing.T) {
	p := new(Pins)
	see(t, p, "read", "1", false, false)
	for range 3 { // as with two clients that are shown different definitions
		first := p.seenOf("read") == 1
		see(t, p, "read", "2", true, first)
		see(t, p, "read", "1", false, false)
	}
	see(t, p, "read", "3", true, true)
	see(t, p, "read", "2", true, false)
}

func (p *Pins) seenOf(tool string) int { return len(p.tools[tool].seen) }

func TestAccept(t *testing.T) {
	for _, test := range []struct {
		name, tool string
		want       int
		left       []string
	}{
		{"one tool", "read", 1, []string{"write"}},
		{"all tools", "", 2, nil},
		{"a tool that has not changed", "same", 0, []string{"read", "write"}},
		{"an unknown tool", "other", 0, []string{"read", "write"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := new(Pins)
			for _, tool := range []string{"write", "read"} {
				see(t, p, tool, "1", false, false)
				see(t, p, tool, "2", true, true)
			}
			see(t, p, "same", "1", false, false)
			version := p.Version()
			if got, err := p.Accept(test.tool, ""); got != test.want || err != nil {
				t.Errorf("accepted %d, %v", got, err)
			}
			if got := p.Version() != version; got != (test.want > 0) {
				t.Errorf("the version has grown: %v", got)
			}
			var left []string
			for _, c := range p.Changes() {
				left = append(left, c.Tool)
			}
			if !slices.Equal(left, test.left) {
				t.Errorf("remaining changes %q", left)
			}
		})
	}
	if got, err := new(Pins).Accept("", ""); got != 0 || err != nil {
		t.Errorf("without tools, accepted %d, %v", got, err)
	}
}

func TestAfterAcceptTheOldDefinitionIsTheChange(t *testing.T) {
	p := new(Pins)
	see(t, p, "read", "1", false, false)
	see(t, p, "read", "2", true, true)
	_, _ = p.Accept("read", "")
	see(t, p, "read", "2", false, false)
	see(t, p, "read", "1", true, true)
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pins)
		if got := p.Changes(); len(got) != 0 {
			t.Errorf("without tools, changes %v", got)
		}
		see(t, p, "read", "1", false, false)
		time.Sleep(time.Minute)
		see(t, p, "read", "2", true, true)
		at := time.Now()
		time.Sleep(time.Minute)
		see(t, p, "read", "2", true, false)
		want := []Change{
			{
				Tool:   "read",
				Pinned: digestOf(defined("1")).String()[:32],
				Seen:   digestOf(defined("2")).String()[:32],
				At:     at.UTC(),
				Before: defined("1"),
				After:  defined("2"),
			},
		}
		got := p.Changes()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v", got)
		}
		text, _ := json.Marshal(got[0])
		if want := `{"tool":"read","pinned":"` + want[0].Pinned + `","seen":"` + want[0].Seen +
			`","at":"2000-01-01T00:01:00Z","before":` + string(defined("1")) + `,"after":` + string(defined("2")) +
			`}`; string(text) != want {
			t.Errorf("got %s", text)
		}
	})
}

func TestAcceptSeen(t *testing.T) {
	p := new(Pins)
	see(t, p, "read", "1", false, false)
	see(t, p, "read", "2", true, true)
	reviewed := p.Changes()[0].Seen
	see(t, p, "read", "3", true, true)
	see(t, p, "same", "1", false, false)
	version := p.Version()
	for _, seen := range []string{reviewed, p.Changes()[0].Pinned, reviewed[:12], "x"} {
		if n, err := p.Accept("read", seen); n != 0 || !errors.Is(err, ErrChangedAgain) {
			t.Errorf("%s: accepted %d, %v", seen, n, err)
		}
	}
	for _, tool := range []string{"other", "same"} {
		if n, err := p.Accept(tool, reviewed); n != 0 || err != nil {
			t.Errorf("a tool that has not changed: accepted %d, %v", n, err)
		}
	}
	if !p.Changed("read") || p.Version() != version {
		t.Error("something was accepted")
	}
	latest := p.Changes()[0].Seen
	if n, err := p.Accept("read", latest); n != 1 || err != nil {
		t.Errorf("accepted %d, %v", n, err)
	}
	for _, seen := range []string{latest, reviewed} {
		if n, err := p.Accept("read", seen); n != 0 || err != nil {
			t.Errorf("accepted again: %d, %v", n, err)
		}
	}
	see(t, p, "read", "3", false, false)
	see(t, p, "read", "2", true, true)
}

func TestChangesShowDefinitions(t *testing.T) {
	p, one, two, three := new(Pins), defined("1"), defined("2"), defined("3")
	check := func(step string, before, after []byte) {
		t.Helper()
		changes := p.Changes()
		if len(changes) != 1 || !bytes.Equal(changes[0].Before, before) || !bytes.Equal(changes[0].After, after) {
			t.Errorf("%v: %v", step, changes)
		}
	}
	shown := bytes.Clone(one)
	p.Observe("read", shown)
	clear(shown) // the caller may reuse it
	p.Observe("read", two)
	check("a change", one, two)
	p.Observe("read", three)
	check("another change", one, three)
	p.Observe("read", one)
	p.Observe("read", two)
	check("the first change again", one, two)
	_, _ = p.Accept("read", "")
	p.Observe("read", one)
	check("after acceptance", two, one)

	text := save(t, p)
	if err := p.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	p.Observe("read", one)
	check("after a restart", nil, one)
	p.Observe("read", two)
	p.Observe("read", three)
	check("after a restart, when the pinned definition was seen", two, three)
}

func TestDefinitionsThatCannotBeShown(t *testing.T) {
	long := strings.Repeat("x", maxText)
	for _, test := range []struct{ name, text, want string }{
		{"too long", `{"description":"` + long + `"}`, ""},
		{"invalid JSON", `{"description":`, ""},
		{"invalid UTF-8", "{\"description\":\"\xff\"}", "{\"description\":\"\ufffd\"}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := new(Pins)
			p.Observe("read", defined("1"))
			p.Observe("read", []byte(test.text))
			if got := p.Changes(); len(got) != 1 || string(got[0].After) != test.want || got[0].Seen == "" {
				t.Errorf("got %.200v", got)
			}
			if _, err := json.Marshal(p.Changes()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTextsAreBounded(t *testing.T) {
	p, text := new(Pins), strings.Repeat("x", maxText/2)
	kept := func() (n int) {
		for _, pin := range p.tools {
			n += len(pin.before) + len(pin.after)
		}
		if n != p.textBytes || n > maxTexts {
			t.Errorf("%d bytes are kept, and %d are counted", n, p.textBytes)
		}
		return n
	}
	for round := range 3 {
		for i := range 2 * maxTexts / maxText {
			p.Observe(fmt.Sprint(i), defined(fmt.Sprint(round, text)))
		}
		if kept() < maxTexts/2 {
			t.Error("texts were dropped although there was room")
		}
	}
	_, _ = p.Accept("", "")
	kept()
}

func TestEndlessDefinitionsAreBounded(t *testing.T) {
	p := new(Pins)
	see(t, p, "read", "pinned", false, false)
	for i := range 3 * maxChanges {
		see(t, p, "read", fmt.Sprint(i), true, i < maxChanges)
	}
	if got := p.seenOf("read"); got != 1+maxChanges {
		t.Errorf("%d definitions are remembered", got)
	}
	last := fmt.Sprint(3*maxChanges - 1)
	if got := p.Changes()[0].Seen; got != digestOf(defined(last)).short() {
		t.Errorf("%s was seen last", got)
	}
	see(t, p, "read", "pinned", false, false)
	see(t, p, "read", last, true, false)
	_, _ = p.Accept("", "")
	see(t, p, "read", last, false, false)
	see(t, p, "read", "pinned", true, true)
}

func TestToolsBeyondTheBoundCountAsChanged(t *testing.T) {
	for _, test := range []struct {
		name string
		fill func(p *Pins) (pinned string)
	}{
		{"too many tools", func(p *Pins) string {
			for i := range maxTools {
				p.Observe(fmt.Sprint(i), defined("1"))
			}
			return "0"
		}},
		{"too many bytes of names", func(p *Pins) string {
			long := strings.Repeat("x", maxNames-3)
			p.Observe(long, defined("1"))
			return long
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := new(Pins)
			pinned := test.fill(p)
			if got := p.Changes(); len(got) != 0 {
				t.Errorf("%v changed", got)
			}
			see(t, p, "more", "1", true, true)
			see(t, p, "more", "1", true, false)
			see(t, p, "even more", "1", true, false)
			see(t, p, pinned, "1", false, false)
			see(t, p, pinned, "2", true, true)
			if got := p.Changes(); len(got) != 2 || got[0].Tool != "" || got[0].At.IsZero() || got[1].Tool != pinned {
				t.Errorf("%.100v changed", got)
			}
			if got, _ := p.Accept("more", ""); got != 0 {
				t.Errorf("%d were accepted by the name of a tool that is not pinned", got)
			}
			if got, _ := p.Accept("", ""); got != 2 {
				t.Errorf("%d were accepted", got)
			}
			see(t, p, "more", "1", false, false)
			see(t, p, "more", "2", true, true)
		})
	}
}

func TestPinsOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pins)
		see(t, p, "list", "1", false, false)
		time.Sleep(time.Hour)
		see(t, p, "write", "1", false, false)
		see(t, p, "read", "1", false, false)
		see(t, p, "read", "2", true, true)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		hash := digestOf(defined("1")).String()
		want := `{"format":2,"tools":[` +
			`{"tool":"list","hash":"` + hash + `","first_seen":"2000-01-01T00:00:00Z"},` +
			`{"tool":"read","hash":"` + hash + `","first_seen":"2000-01-01T01:00:00Z"},` +
			`{"tool":"write","hash":"` + hash + `","first_seen":"2000-01-01T01:00:00Z"}]}`
		if string(text) != want {
			t.Errorf("saved %s", text)
		}
		var loaded Pins
		if err := json.Unmarshal(text, &loaded); err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(&loaded); string(again) != want {
			t.Errorf("saved again: %s", again)
		}
		version := loaded.Version()
		see(t, &loaded, "write", "1", false, false)
		see(t, &loaded, "read", "2", true, true)
		see(t, &loaded, "list", "1", false, false)
		if loaded.Version() != version {
			t.Error("nothing new is pinned, but the version has grown")
		}
	})
}

func TestVersionGrowsWithSavedText(t *testing.T) {
	p := new(Pins)
	version, text := p.Version(), save(t, p)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"a tool is pinned", func() { p.Observe("read", defined("1")) }},
		{"the tool is seen again", func() { p.Observe("read", defined("1")) }},
		{"the tool changes", func() { p.Observe("read", defined("2")) }},
		{"the change is accepted", func() { _, _ = p.Accept("read", "") }},
		{"the change is accepted again", func() { _, _ = p.Accept("", "") }},
	} {
		step.do()
		nowVersion, nowText := p.Version(), save(t, p)
		if grown := nowVersion > version; grown != (nowText != text) || nowVersion < version {
			t.Errorf("%s: version %d after %d, %s after %s", step.name, nowVersion, version, nowText, text)
		}
		version, text = nowVersion, nowText
	}
}

func save(t *testing.T, p *Pins) string {
	t.Helper()
	text, err := p.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestUnmarshalRefuses(t *testing.T) {
	tool := func(hash string) string {
		return `{"format":1,"tools":[{"tool":"write","hash":"` + hash + `","first_seen":"2000-01-01T00:00:00Z"}]}`
	}
	for _, test := range []struct{ name, text, want string }{
		{"invalid JSON", `{`, "unexpected end"},
		{"null", `null`, "format is 0"},
		{"another format", `{"format":3,"tools":[]}`, "format is 3"},
		{"a hash too short", tool("00"), `hash of "write"`},
		{"a hash too long", tool(strings.Repeat("0", 66)), `hash of "write"`},
		{"an invalid hash", tool(strings.Repeat("x", 64)), `hash of "write"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := new(Pins)
			see(t, p, "read", "1", false, false)
			before := save(t, p)
			if err := p.UnmarshalJSON([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
			if got := save(t, p); got != before {
				t.Errorf("pins are now %s", got)
			}
		})
	}
}

func TestLoadedPinsAreBounded(t *testing.T) {
	file := saved{Format: format}
	for i := range maxTools + 1 {
		file.Tools = append(file.Tools, savedTool{Tool: fmt.Sprint(i), Hash: digestOf(defined("1")).String()})
	}
	text, _ := json.Marshal(file)
	var p Pins
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	if got := len(p.tools); got != maxTools {
		t.Errorf("%d are pinned", got)
	}
	see(t, &p, fmt.Sprint(maxTools), "1", true, true)
}

func TestPinsAreSafeForConcurrentUse(t *testing.T) {
	p := new(Pins)
	for i := range 10 {
		p.Observe(fmt.Sprint(i), defined("0"))
	}
	var news [8]int
	var clients sync.WaitGroup
	for client := range news {
		clients.Go(func() {
			for round := range 50 {
				for i := range 10 {
					if _, isNews := p.Observe(fmt.Sprint(i), defined(fmt.Sprint((round+client)%5))); isNews {
						news[client]++
					}
					p.Changed(fmt.Sprint(i))
				}
				p.Changes()
				p.Version()
				if _, err := p.MarshalJSON(); err != nil {
					t.Error(err)
				}
				_, _ = p.Accept("other", "")
				p.Observe("other", defined(fmt.Sprint(client)))
			}
		})
	}
	clients.Wait()
	total := 0
	for _, n := range news {
		total += n
	}
	if total != 10*4 {
		t.Errorf("%d changes were news, want 4 of each tool", total)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	p, raw := new(Pins), defined("1")
	p.Observe("read", raw)
	if got := testing.AllocsPerRun(100, func() { p.Observe("read", raw); p.Changed("read") }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkObserve(b *testing.B) {
	p := new(Pins)
	names, size := make([]string, 1000), 0
	raws := make([][]byte, 1000)
	for i := range raws {
		names[i], raws[i] = fmt.Sprintf(
			"tool_%d",
			i,
		),
			descriptor(
				i,
				"Reads a file of the project and returns its lines, each with its number.",
			)
		size += len(raws[i])
		p.Observe(names[i], raws[i])
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for i := range raws {
			p.Observe(names[i], raws[i])
		}
	}
}

// A shared holds the pins in the shared store.
type shared struct {
	t    *testing.T
	text string
}

// sync merges the shared pins into those of a replica and stores the result. It reports whether
// lists have changed.
func (s *shared) sync(p *Pins) (news bool) {
	s.t.Helper()
	if s.text != "" {
		var err error
		if news, err = p.Merge([]byte(s.text)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.text = save(s.t, p)
	return news
}

// settled syncs all replicas and checks that syncing again changes nothing.
func (s *shared) settled(all ...*Pins) {
	s.t.Helper()
	for _, p := range slices.Concat(all, all) {
		s.sync(p)
	}
	for i, p := range all {
		before, version := s.text, p.Version()
		if s.sync(p) || s.text != before || p.Version() != version {
			s.t.Errorf("replica %d does not settle: %s after %s", i, s.text, before)
		}
	}
}

// accepts accepts a change.
func accepts(t *testing.T, p *Pins, tool string) {
	t.Helper()
	if n, err := p.Accept(tool, ""); n == 0 || err != nil {
		t.Errorf("accepted %d, %v", n, err)
	}
}

func TestMerge(t *testing.T) {
	see := func(p *Pins, tool string, definitions ...string) {
		for _, d := range definitions {
			p.Observe(tool, defined(d))
		}
	}
	for _, test := range []struct {
		name string
		do   func(t *testing.T, s *shared, a, b *Pins) (news bool) // of the last sync

		changed [2]bool // whether definitions 1 and 2 of the tool "x" are changes afterwards
		news    bool
	}{
		{"seen at one replica", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, false},
		{"seen at both replicas, the same definition", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			time.Sleep(time.Minute)
			see(b, "x", "1")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, false},
		{"the first definition in the store counts", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(b, "x", "2")
			time.Sleep(time.Minute)
			see(a, "x", "1")
			s.sync(a)
			news := s.sync(b)
			if !b.Changed("x") || a.Changed("x") {
				t.Error("the other definition is not withheld at once")
			}
			if c := b.Changes(); len(c) != 1 || string(c[0].After) != string(defined("2")) || c[0].Before != nil {
				t.Errorf("changes for operators: %v", c)
			}
			return news
		}, [2]bool{false, true}, true},
		{"accepted at one replica", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			see(b, "x", "1", "2")
			s.sync(a)
			s.sync(b)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, true},
		{"accepted at one replica that has not written its pins yet", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			see(b, "x", "1")
			s.sync(b)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, true},
		{"an accepted definition survives an old state of the store", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			s.sync(a)
			old := s.text
			accepts(t, a, "x")
			s.sync(a)
			s.text = old
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, false},
		{"accepted at both replicas, the later one counts", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "0", "1")
			s.sync(a)
			s.sync(b)
			see(b, "x", "2")
			accepts(t, b, "x")
			time.Sleep(time.Minute)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, true},
		{"accepted again in the same second", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "0", "2")
			accepts(t, a, "x")
			s.sync(a)
			s.sync(b)
			see(b, "x", "1")
			accepts(t, b, "x")
			s.sync(b)
			return s.sync(a)
		}, [2]bool{false, true}, true},
		{"lost pins that are still in the store", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			b.MarkLost()
			see(b, "x", "2")
			return s.sync(b)
		}, [2]bool{false, true}, true},
		{"lost pins, and the whole server accepted", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			time.Sleep(time.Minute)
			b.MarkLost()
			see(b, "x", "2")
			accepts(t, b, "")
			see(b, "x", "2")
			s.sync(b)
			return s.sync(a)
		}, [2]bool{true, false}, true},
		{"pins of the first format", func(_ *testing.T, s *shared, a, b *Pins) bool {
			s.text = `{"format":1,"tools":[{"tool":"x","hash":"` + digestWithoutMeta(defined("1")).String() +
				`","first_seen":"2000-01-01T00:00:00Z"}]}`
			s.sync(a)
			see(b, "x", "1")
			news := s.sync(b)
			see(a, "x", "1")
			see(b, "x", "1")
			s.sync(a)
			return news
		}, [2]bool{false, true}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, s := new(Pins), new(Pins), &shared{t: t}
				news := test.do(t, s, a, b)
				s.settled(a, b)
				if news != test.news {
					t.Errorf("lists have changed: %t", news)
				}
				var later Pins // a replica that starts later
				if _, err := later.Merge([]byte(s.text)); err != nil {
					t.Fatal(err)
				}
				for name, p := range map[string]*Pins{"a": a, "b": b, "a third": &later} {
					for i, want := range test.changed {
						if changed, _ := p.Observe("x", defined(fmt.Sprint(i+1))); changed != want {
							t.Errorf("definition %d at %s has changed: %t", i+1, name, changed)
						}
					}
				}
			})
		})
	}
}

// Accepting a whole server drops its pins at all replicas.
func TestMergeOfAnAcceptedServer(t *testing.T) {
	a, b, s := new(Pins), new(Pins), &shared{t: t}
	for i := range maxTools {
		a.Observe(fmt.Sprint(i), defined("1"))
	}
	s.settled(a, b)
	for _, p := range []*Pins{a, b} {
		p.Observe("more", defined("1"))
		if !p.Changed("more") {
			t.Fatal("a tool above the limit was pinned")
		}
	}
	accepts(t, a, "")
	a.Observe("more", defined("1"))
	s.sync(a)
	if news := s.sync(b); !news || b.Changed("more") || len(b.Changes()) != 0 {
		t.Errorf("at the other replica: %t, %v", news, b.Changes())
	}
	s.settled(a, b)
	if len(a.tools) != 1 || len(b.tools) != 1 {
		t.Errorf("%d and %d tools are pinned", len(a.tools), len(b.tools))
	}
}

func TestMergeThatFails(t *testing.T) {
	p := new(Pins)
	p.Observe("x", defined("1"))
	before := save(t, p)
	if _, err := p.Merge([]byte(`{"format":9}`)); err == nil || save(t, p) != before {
		t.Errorf("%v, then %s", err, save(t, p))
	}
}

func TestMergeKeepsTextsBounded(t *testing.T) {
	a, b, s := new(Pins), new(Pins), &shared{t: t}
	for i := range 100 {
		a.Observe(fmt.Sprint(i), defined("1"))
		b.Observe(fmt.Sprint(i), defined("2"))
		b.Observe(fmt.Sprint(i), defined("3"))
	}
	s.settled(a, b)
	n := 0
	for _, t := range b.tools {
		n += len(t.before) + len(t.after)
	}
	if n != b.textBytes || n == 0 {
		t.Errorf("%d bytes are kept, and %d are counted", n, b.textBytes)
	}
}

// Pins that are read from arbitrary text, written and read again are the same. A definition that
// differs from the first one is a change.
func FuzzPins(f *testing.F) {
	var pins Pins
	pins.Observe("a", []byte(`{"name":"a"}`))
	pins.Observe("b", []byte(`{"name":"b"}`))
	saved, err := json.Marshal(&pins)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved, "a", []byte(`{"name":"a"}`), []byte(`{"name":"a","x":1}`))
	f.Add([]byte(`{}`), "", []byte(`{}`), []byte(` {} `))
	f.Add([]byte(`null`), "x", []byte(`{"a":1,"b":2}`), []byte(`{"b":2,"a":1.0}`))
	f.Add([]byte(`{"a":"00"}`), "a", []byte(`x`), []byte(`y`))
	f.Add([]byte(`[]`), "a", []byte(`{"_meta":1}`), []byte(`{"_meta":2}`))
	f.Add([]byte(`{"format":1,"tools":[{"tool":"a","hash":"00"}]}`), "a", []byte(`{"a":1,"a":2}`), []byte(`{"a":1,"a":2}`))
	f.Add(saved, "a", []byte("\"\xff\""), []byte(`null`))
	f.Fuzz(func(t *testing.T, saved []byte, tool string, first, second []byte) {
		var p, again Pins
		if json.Unmarshal(saved, &p) == nil {
			written, err := json.Marshal(&p)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(written, &again); err != nil {
				t.Fatalf("%q was written as %q: %v", saved, written, err)
			}
			if rewritten, err := json.Marshal(&again); err != nil || !bytes.Equal(rewritten, written) {
				t.Fatalf("%q was written as %q, then as %q, %v", saved, written, rewritten, err)
			}
			for _, changed := range p.Changes() {
				t.Fatalf("%q has changes: %+v", saved, changed)
			}
			// Pins that were written and read again give the same result.
			a, newsA := p.Observe(tool, first)
			if b, newsB := again.Observe(tool, first); a != b || newsA != newsB || p.Changed(tool) != a {
				t.Fatalf("%q: %q changed %t, read again %t", saved, first, a, b)
			}
		}
		var fresh Pins
		if changed, _ := fresh.Observe(tool, first); changed || fresh.Changed(tool) {
			t.Fatalf("%q of %q is a change, but the first definition", first, tool)
		}
		differs := digestOf(first) != digestOf(second)
		if changed, _ := fresh.Observe(tool, second); changed != differs || fresh.Changed(tool) != differs ||
			(len(fresh.Changes()) == 1) != differs {
			t.Fatalf("%q after %q is a change: %t, want %t", second, first, changed, differs)
		}
		if accepted, err := fresh.Accept(tool, ""); err != nil || (accepted == 1) != differs || fresh.Changed(tool) {
			t.Fatalf("accepted %d, %v", accepted, err)
		}
		if changed, _ := fresh.Observe(tool, first); changed != differs {
			t.Fatalf("%q after %q was accepted is a change: %t", first, second, changed)
		}
	})
}
