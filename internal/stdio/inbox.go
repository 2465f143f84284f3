package stdio

import "sync"

// A letter is a message on its way to a client.
type letter struct {
	message  frame
	code     int       // of the error that the message is; 0 for none
	question *question // that the message asks; nil for none
}

// An inbox holds what a child has sent for a client until the client's response
// takes it.
type inbox struct {
	// more has a value whenever there is something to take, or nothing any more.
	more chan struct{}

	mu      sync.Mutex
	letters []letter
	size    int  // bytes in letters
	limit   int  // bytes that wait for a client that does not read, answers aside
	closed  bool // nothing more will come
}

func newInbox(limit int) *inbox { return &inbox{more: make(chan struct{}, 1), limit: limit} }

// put adds a message and reports whether there was room for it. For one there always
// is, of whatever size.
func (b *inbox) put(l letter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.size > 0 && b.size+l.message.len() > b.limit {
		return false
	}
	b.add(l)
	return true
}

// end adds the last message.
func (b *inbox) end(last letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	b.add(last)
}

func (b *inbox) add(l letter) {
	b.letters = append(b.letters, l)
	b.size += l.message.len()
	b.wake()
}

func (b *inbox) wake() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// take returns the next message, if there is one, and whether it or nothing was
// the last.
func (b *inbox) take() (l letter, ok, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) > 0 {
		l, ok = b.letters[0], true
		b.letters[0] = letter{}
		b.letters = b.letters[1:]
		b.size -= l.message.len()
	}
	if len(b.letters) > 0 {
		b.wake()
	}
	return l, ok, b.closed && len(b.letters) == 0
}

// discard ends the inbox without a last message. It returns the questions that
// nobody has taken.
func (b *inbox) discard() (questions []*question) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.letters {
		if l.question != nil {
			questions = append(questions, l.question)
		}
	}
	b.letters, b.size, b.closed = nil, 0, true
	b.wake()
	return questions
}

// withdraw takes a question back that nobody has taken.
func (b *inbox) withdraw(q *question) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.letters {
		if b.letters[i].question == q {
			b.size -= b.letters[i].message.len()
			b.letters = append(b.letters[:i:i], b.letters[i+1:]...)
			return true
		}
	}
	return false
}
