package quota

// A queue has entries in the order in which they were put. Each entry is in two of them: in that of all, and in that of
// its owner. It has the links itself, which takes less than container/list: entries are put with every call.
type queue[K comparable, V any] struct {
	which          int // of the links of an entry
	newest, oldest *entry[K, V]
}

// The queues that an entry is in.
const (
	ofAll = iota
	ofOwner
)

// links are the neighbours of an entry in a queue.
type links[K comparable, V any] struct{ newer, older *entry[K, V] }

// push adds an entry as the newest one.
func (q *queue[K, V]) push(e *entry[K, V]) {
	e.in[q.which] = links[K, V]{older: q.newest}
	if q.newest != nil {
		q.newest.in[q.which].newer = e
	} else {
		q.oldest = e
	}
	q.newest = e
}

// remove takes an entry out.
func (q *queue[K, V]) remove(e *entry[K, V]) {
	at := &e.in[q.which]
	if at.newer != nil {
		at.newer.in[q.which].older = at.older
	} else {
		q.newest = at.older
	}
	if at.older != nil {
		at.older.in[q.which].newer = at.newer
	} else {
		q.oldest = at.newer
	}
	*at = links[K, V]{}
}

// each calls yield for each entry, the newest first, until it returns false.
func (q *queue[K, V]) each(yield func(K, V) bool) {
	for e := q.newest; e != nil; e = e.in[q.which].older {
		if !yield(e.key, e.value) {
			return
		}
	}
}
