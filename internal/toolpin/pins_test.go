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
