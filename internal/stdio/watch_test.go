package stdio

import (
	"slices"
	"testing"
)

// A Watcher receives the sessions without an open stream for a list change.
func TestWatch(t *testing.T) {
	for name, change := range map[string]func(*Config){"shared child": func(*Config) {},
		"child of a session": perSession} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, "", change)
			var told [][]string
			release := p.Watch("alpha:1", func(notice string, unread []string) {
				equal(t, "notice", notice, "notifications/tools/list_changed")
				p.note(func() { told = append(told, unread) })
			})
			p.Watch("beta:1", func(string, []string) { t.Error("notified of another host") })
			a, b := p.client().initialize("{}"), p.client().initialize("{}")
			tells := func(what string, want ...string) {
				t.Helper()
				before := len(told)
				a.call("add-tool", `{"name":"t"}`)
				p.until("the watcher is notified", func() bool { return len(told) > before })
				slices.Sort(told[before])
				slices.Sort(want)
				if !slices.Equal(told[before], want) {
					t.Errorf("%s: notified with %v, want %v", what, told[before], want)
				}
			}
			shared := name == "shared child"
			if tells("without streams", others(shared, a.session, b.session)...); t.Failed() {
				return
			}
			stream := a.listen()
			defer stream.Body.Close()
			tells("with a stream", others(shared, "", b.session)...)
			release()
			a.call("add-tool", `{"name":"t"}`)
			p.note(func() {
				if len(told) != 2 {
					t.Errorf("notified %d times, want 2", len(told))
				}
			})
		})
	}
}

// others returns session, unless it is empty, and other if they share a child.
func others(shared bool, session, other string) (all []string) {
	if session != "" {
		all = append(all, session)
	}
	if shared {
		all = append(all, other)
	}
	return all
}
