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

// say is a definition by its description.
func say(description string) []byte { return descriptor(1, description) }

// see notes a definition and wants to be told this of it.
func see(t *testing.T, p *Pins, server, tool, description string, changed, news bool) {
	t.Helper()
	gotChanged, gotNews := p.See(server, tool, say(description))
	if gotChanged != changed || gotNews != news {
		t.Errorf("%s::%s %q: changed %v, news %v; want %v, %v", server, tool, description, gotChanged, gotNews, changed, news)
	}
	if got := p.Changed(server, tool); got != changed {
		t.Errorf("%s::%s %q: a call says %v", server, tool, description, got)
	}
}

func TestFirstDefinitionIsPinned(t *testing.T) {
	p := New()
	if p.Changed("a", "read") {
		t.Error("a tool that was never seen has changed")
	}
	see(t, p, "a", "read", "reads", false, false)
	see(t, p, "a", "read", "reads", false, false)
	see(t, p, "b", "read", "writes", false, false)
	see(t, p, "a", "write", "writes", false, false)
	see(t, p, "a", "read", "reads and sends", true, true)
	see(t, p, "a", "read", "reads and sends", true, false)
	see(t, p, "b", "read", "writes", false, false)
}

func TestMetadataAndSpellingAreNoChange(t *testing.T) {
	p := New()
	for _, descriptor := range []string{`{"name":"a","title":"b"}`, `{ "title":"\u0062", "name":"a", "_meta":{} }`, `{"name":"a","title":"b"}`} {
		if changed, news := p.See("a", "a", []byte(descriptor)); changed || news {
			t.Errorf("%s: changed %v, news %v", descriptor, changed, news)
		}
	}
}

func TestChangeIsNewsOnce(t *testing.T) {
	p := New()
	see(t, p, "a", "read", "1", false, false)
	for range 3 { // as with two clients that are shown different definitions
		first := p.seenOf("a", "read") == 1
		see(t, p, "a", "read", "2", true, first)
		see(t, p, "a", "read", "1", false, false)
	}
	see(t, p, "a", "read", "3", true, true)
	see(t, p, "a", "read", "2", true, false)
}

func (p *Pins) seenOf(server, tool string) int { return len(p.find(server, tool).seen) }

func TestAccept(t *testing.T) {
	for _, test := range []struct {
		name, server, tool string
		want               int
		left               []string
	}{
		{"one tool", "a", "read", 1, []string{"a::write", "b::read"}},
		{"all tools of a server", "a", "", 2, []string{"b::read"}},
		{"a tool that has not changed", "a", "same", 0, []string{"a::read", "a::write", "b::read"}},
		{"a tool that was never seen", "a", "other", 0, []string{"a::read", "a::write", "b::read"}},
		{"a server that was never seen", "c", "", 0, []string{"a::read", "a::write", "b::read"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := New()
			for _, tool := range []string{"a::write", "a::read", "b::read"} {
				server, name, _ := strings.Cut(tool, "::")
				see(t, p, server, name, "1", false, false)
				see(t, p, server, name, "2", true, true)
			}
			see(t, p, "a", "same", "1", false, false)
			version := p.Version()
			if got, err := p.Accept(test.server, test.tool, ""); got != test.want || err != nil {
				t.Errorf("accepted %d, %v", got, err)
			}
			if got := p.Version() != version; got != (test.want > 0) {
				t.Errorf("something to save: %v", got)
			}
			var left []string
			for _, c := range p.Changes() {
				left = append(left, c.Server+"::"+c.Tool)
			}
			if !slices.Equal(left, test.left) {
				t.Errorf("left are %q", left)
			}
		})
	}
}

func TestAfterAcceptTheOldDefinitionIsTheChange(t *testing.T) {
	p := New()
	see(t, p, "a", "read", "1", false, false)
	see(t, p, "a", "read", "2", true, true)
	_, _ = p.Accept("a", "read", "")
	see(t, p, "a", "read", "2", false, false)
	see(t, p, "a", "read", "1", true, true)
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New()
		if got := p.Changes(); len(got) != 0 {
			t.Errorf("nothing was seen, but %v changed", got)
		}
		see(t, p, "a", "read", "1", false, false)
		time.Sleep(time.Minute)
		see(t, p, "a", "read", "2", true, true)
		at := time.Now()
		time.Sleep(time.Minute)
		see(t, p, "a", "read", "2", true, false)
		want := []Change{{"a", "read", define(say("1")).String()[:32], define(say("2")).String()[:32], at.UTC(), say("1"), say("2")}}
		got := p.Changes()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v", got)
		}
		text, _ := json.Marshal(got[0])
		if want := `{"server":"a","tool":"read","pinned":"` + want[0].Pinned + `","seen":"` + want[0].Seen +
			`","at":"2000-01-01T00:01:00Z","before":` + string(say("1")) + `,"after":` + string(say("2")) + `}`; string(text) != want {
			t.Errorf("got %s", text)
		}
	})
}

func TestAcceptWhatWasSeen(t *testing.T) {
	p := New()
	see(t, p, "a", "read", "1", false, false)
	see(t, p, "a", "read", "2", true, true)
	reviewed := p.Changes()[0].Seen
	see(t, p, "a", "read", "3", true, true)
	version := p.Version()
	for _, seen := range []string{reviewed, p.Changes()[0].Pinned, reviewed[:12], "x"} {
		if n, err := p.Accept("a", "read", seen); n != 0 || !errors.Is(err, ErrChangedAgain) {
			t.Errorf("%s: accepted %d, %v", seen, n, err)
		}
	}
	if n, err := p.Accept("a", "other", reviewed); n != 0 || err != nil {
		t.Errorf("a tool that was never seen: accepted %d, %v", n, err)
	}
	if !p.Changed("a", "read") || p.Version() != version {
		t.Error("something was accepted")
	}
	latest := p.Changes()[0].Seen
	if n, err := p.Accept("a", "read", latest); n != 1 || err != nil {
		t.Errorf("accepted %d, %v", n, err)
	}
	if n, err := p.Accept("a", "read", latest); n != 0 || err != nil {
		t.Errorf("once more: accepted %d, %v", n, err)
	}
	see(t, p, "a", "read", "3", false, false)
	see(t, p, "a", "read", "2", true, true)
}

func TestDefinitionsCanBeLookedAt(t *testing.T) {
	p, one, two, three := New(), say("1"), say("2"), say("3")
	is := func(what string, before, after []byte) {
		t.Helper()
		changes := p.Changes()
		if len(changes) != 1 || !bytes.Equal(changes[0].Before, before) || !bytes.Equal(changes[0].After, after) {
			t.Errorf("%s: %s", what, changes)
		}
	}
	shown := bytes.Clone(one)
	p.See("a", "read", shown)
	clear(shown) // it is the caller's
	p.See("a", "read", two)
	is("a change", one, two)
	p.See("a", "read", three)
	is("another", one, three)
	p.See("a", "read", one)
	p.See("a", "read", two)
	is("there and back", one, two)
	_, _ = p.Accept("a", "read", "")
	p.See("a", "read", one)
	is("accepted", two, one)

	text := save(t, p)
	if err := p.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	p.See("a", "read", one)
	is("after a restart", nil, one)
	p.See("a", "read", two)
	p.See("a", "read", three)
	is("after a restart, the pinned one has been seen", two, three)
}

func TestDefinitionsThatCannotBeLookedAt(t *testing.T) {
	long := strings.Repeat("x", MaxText)
	for _, test := range []struct{ name, text, want string }{
		{"too long", `{"description":"` + long + `"}`, ""},
		{"no JSON", `{"description":`, ""},
		{"no UTF-8", "{\"description\":\"\xff\"}", "{\"description\":\"\ufffd\"}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := New()
			p.See("a", "read", say("1"))
			p.See("a", "read", []byte(test.text))
			if got := p.Changes(); len(got) != 1 || string(got[0].After) != test.want || got[0].Seen == "" {
				t.Errorf("got %.200s", got)
			}
			if _, err := json.Marshal(p.Changes()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTextsAreBounded(t *testing.T) {
	p, text := New(), strings.Repeat("x", MaxText/2)
	kept := func() (n int) {
		for _, pin := range p.servers["a"].tools {
			n += len(pin.before) + len(pin.after)
		}
		if n != p.servers["a"].texts || n > MaxTexts {
			t.Errorf("%d bytes are kept, and %d are counted", n, p.servers["a"].texts)
		}
		return n
	}
	for round := range 3 {
		for i := range 2 * MaxTexts / MaxText {
			p.See("a", fmt.Sprint(i), say(fmt.Sprint(round, text)))
		}
		if kept() < MaxTexts/2 {
			t.Error("there was room")
		}
	}
	_, _ = p.Accept("a", "", "")
	kept()
	p.See("b", "0", say(text))
	if p.servers["b"].texts == 0 {
		t.Error("one server takes the room of another")
	}
}

func TestEndlessDefinitionsAreBounded(t *testing.T) {
	p := New()
	see(t, p, "a", "read", "pinned", false, false)
	for i := range 3 * MaxChanges {
		see(t, p, "a", "read", fmt.Sprint(i), true, i < MaxChanges)
	}
	if got := p.seenOf("a", "read"); got != 1+MaxChanges {
		t.Errorf("%d definitions are remembered", got)
	}
	last := fmt.Sprint(3*MaxChanges - 1)
	if got := p.Changes()[0].Seen; got != define(say(last)).short() {
		t.Errorf("%s was seen last", got)
	}
	see(t, p, "a", "read", "pinned", false, false)
	see(t, p, "a", "read", last, true, false)
	_, _ = p.Accept("a", "", "")
	see(t, p, "a", "read", last, false, false)
	see(t, p, "a", "read", "pinned", true, true)
}

func TestToolsBeyondTheBoundCountAsChanged(t *testing.T) {
	for _, test := range []struct {
		name string
		fill func(p *Pins) (pinned string)
	}{
		{"too many tools", func(p *Pins) string {
			for i := range MaxTools {
				p.See("a", fmt.Sprint(i), say("1"))
			}
			return "0"
		}},
		{"names too long", func(p *Pins) string {
			long := strings.Repeat("x", MaxNames-3)
			p.See("a", long, say("1"))
			return long
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := New()
			pinned := test.fill(p)
			if got := p.Changes(); len(got) != 0 {
				t.Errorf("%v changed", got)
			}
			see(t, p, "a", "more", "1", true, true)
			see(t, p, "a", "more", "1", true, false)
			see(t, p, "a", "even more", "1", true, false)
			see(t, p, "a", pinned, "1", false, false)
			see(t, p, "a", pinned, "2", true, true)
			see(t, p, "b", "more", "1", false, false)
			if got := p.Changes(); len(got) != 2 || got[0].Tool != "" || got[0].At.IsZero() || got[1].Tool != pinned {
				t.Errorf("%.100v changed", got)
			}
			if got, _ := p.Accept("a", "more", ""); got != 0 {
				t.Errorf("%d were accepted by a name that is not pinned", got)
			}
			if got, _ := p.Accept("a", "", ""); got != 2 {
				t.Errorf("%d were accepted", got)
			}
			see(t, p, "a", "more", "1", false, false)
			see(t, p, "a", "more", "2", true, true)
		})
	}
}

func TestPinsOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New()
		see(t, p, "b", "read", "1", false, false)
		time.Sleep(time.Hour)
		see(t, p, "a", "write", "1", false, false)
		see(t, p, "a", "read", "1", false, false)
		see(t, p, "a", "read", "2", true, true)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		hash := define(say("1")).String()
		want := `{"format":1,"tools":[` +
			`{"server":"a","tool":"read","hash":"` + hash + `","first_seen":"2000-01-01T01:00:00Z"},` +
			`{"server":"a","tool":"write","hash":"` + hash + `","first_seen":"2000-01-01T01:00:00Z"},` +
			`{"server":"b","tool":"read","hash":"` + hash + `","first_seen":"2000-01-01T00:00:00Z"}]}`
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
		see(t, &loaded, "a", "write", "1", false, false)
		see(t, &loaded, "a", "read", "2", true, true)
		see(t, &loaded, "b", "read", "1", false, false)
		if loaded.Version() != version {
			t.Error("nothing is pinned anew, but there is something to save")
		}
	})
}

func TestVersionGrowsWithWhatIsSaved(t *testing.T) {
	p := New()
	version, text := p.Version(), save(t, p)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"a tool is pinned", func() { p.See("a", "read", say("1")) }},
		{"it is seen again", func() { p.See("a", "read", say("1")) }},
		{"it changes", func() { p.See("a", "read", say("2")) }},
		{"the change is accepted", func() { _, _ = p.Accept("a", "read", "") }},
		{"it is accepted again", func() { _, _ = p.Accept("a", "", "") }},
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

func TestWhatCannotBeLoaded(t *testing.T) {
	tool := func(hash string) string {
		return `{"format":1,"tools":[{"server":"a","tool":"write","hash":"` + hash + `","first_seen":"2000-01-01T00:00:00Z"}]}`
	}
	for _, test := range []struct{ name, text, want string }{
		{"no JSON", `{`, "unexpected end"},
		{"nothing", `null`, "format is 0"},
		{"another format", `{"format":2,"tools":[]}`, "format is 2"},
		{"a hash too short", tool("00"), `hash of "write" of "a"`},
		{"a hash too long", tool(strings.Repeat("0", 66)), `hash of "write" of "a"`},
		{"no hash", tool(strings.Repeat("x", 64)), `hash of "write" of "a"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := New()
			see(t, p, "a", "read", "1", false, false)
			before := save(t, p)
			if err := p.UnmarshalJSON([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
			if got := save(t, p); got != before {
				t.Errorf("left is %s", got)
			}
		})
	}
}

func TestLoadedPinsAreBounded(t *testing.T) {
	file := saved{Format: format}
	for i := range MaxTools + 1 {
		file.Tools = append(file.Tools, savedTool{Server: "a", Tool: fmt.Sprint(i), Hash: define(say("1")).String()})
	}
	text, _ := json.Marshal(file)
	var p Pins
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	if got := len(p.servers["a"].tools); got != MaxTools {
		t.Errorf("%d are pinned", got)
	}
	see(t, &p, "a", fmt.Sprint(MaxTools), "1", true, true)
}

func TestPinsAreSafeForConcurrentUse(t *testing.T) {
	p := New()
	for i := range 10 {
		p.See("a", fmt.Sprint(i), say("0"))
	}
	var news [8]int
	var clients sync.WaitGroup
	for client := range news {
		clients.Go(func() {
			for round := range 50 {
				for i := range 10 {
					if _, isNews := p.See("a", fmt.Sprint(i), say(fmt.Sprint((round+client)%5))); isNews {
						news[client]++
					}
					p.Changed("a", fmt.Sprint(i))
				}
				p.Changes()
				p.Version()
				if _, err := p.MarshalJSON(); err != nil {
					t.Error(err)
				}
				_, _ = p.Accept("b", "", "")
				p.See("b", fmt.Sprint(round), say(fmt.Sprint(client)))
			}
		})
	}
	clients.Wait()
	total := 0
	for _, n := range news {
		total += n
	}
	if total != 10*4 {
		t.Errorf("%d changes were news, not the 4 of each tool", total)
	}
}

func TestSeeAllocatesNothingForWhatIsKnown(t *testing.T) {
	p, raw := New(), say("1")
	p.See("a", "read", raw)
	if got := testing.AllocsPerRun(100, func() { p.See("a", "read", raw); p.Changed("a", "read") }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkSee(b *testing.B) {
	p := New()
	names, size := make([]string, 1000), 0
	raws := make([][]byte, 1000)
	for i := range raws {
		names[i], raws[i] = fmt.Sprintf("tool_%d", i), descriptor(i, "Reads a file of the project and returns its lines, each with its number.")
		size += len(raws[i])
		p.See("a", names[i], raws[i])
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for i := range raws {
			p.See("a", names[i], raws[i])
		}
	}
}
