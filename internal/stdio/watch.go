package stdio

import "slices"

// A Watcher is called when a child has sent a notification that a list has changed, with the
// sessions that have no open stream to receive it. It must not block.
type Watcher func(method string, sessions []string)

// Watch registers a Watcher for the children at a host, until release is called.
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
