package quota

// A queue holds entries in the order in which they were put. Each entry is in two queues: that of
// all entries, and that of its owner. The links are in the entry, which needs less memory than
// container/list.
type queue[K comparable, V any] struct {
	which          int // index of the links in an entry
	newest, oldest *entry[K, V]
}

// Queues of an entry.
const (
	ofAll = iota
	ofOwner
)

// links are the neighbors of an entry in a queue.
type links[K comparable, V any] struct{ newer, older *entry[K, V] }

// push adds an entry as the newest one.
func (q *queue[K, V]) push(e *entry[K, V]) {
	e.links[q.which] = links[K, V]{older: q.newest}
	if q.newest != nil {
		q.newest.links[q.which].newer = e
	} else {
		q.oldest = e
	}
	q.newest = e
}

// remove removes an entry.
func (q *queue[K, V]) remove(e *entry[K, V]) {
	at := &e.links[q.which]
	if at.newer != nil {
		at.newer.links[q.which].older = at.older
	} else {
		q.newest = at.older
	}
	if at.older != nil {
		at.older.links[q.which].newer = at.newer
	} else {
		q.oldest = at.newer
	}
	*at = links[K, V]{}
}

// each calls yield for each entry, newest first, until it returns false.
func (q *queue[K, V]) each(yield func(K, V) bool) {
	for e := q.newest; e != nil; e = e.links[q.which].older {
		if !yield(e.key, e.value) {
			return
		}
	}
}
