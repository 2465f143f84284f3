package stdio

import "slices"

// A Watcher is told that a child has said that a list has changed, by which notification, and in which
// sessions no stream is open to hear it. It must not block.
type Watcher func(notice string, unread []string)

// Watch has a Watcher told what the children at a host say, until it is released.
func (p *Pool) Watch(host string, watcher Watcher) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers[host] = append(p.watchers[host], &watcher)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watchers[host] = slices.DeleteFunc(p.watchers[host], func(other *Watcher) bool { return other == &watcher })
	}
}

func (p *Pool) watchersOf(host string) []*Watcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.watchers[host])
}
