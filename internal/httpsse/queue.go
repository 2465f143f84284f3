package httpsse

import (
	"bytes"
	"sync"
)

// A letter is a message of a server on its way to the client.
type letter struct {
	message  []byte
	question []byte // the id of the question that it is; nil if it is none
	answer   bool   // it is the answer, and the last
}

// A queue holds what a server has sent until the response to a request of the client takes it.
type queue struct {
	more chan struct{} // has a value whenever there is something to take

	mu      sync.Mutex
	letters []letter
	size    int // bytes of messages
	limit   int
	closed  bool
}

func newQueue(limit int) *queue { return &queue{more: make(chan struct{}, 1), limit: limit} }

// put adds a message and reports whether there was room for it. For an answer, and for a
// single message, there always is.
func (q *queue) put(l letter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !l.answer && len(q.letters) > 0 && q.size+len(l.message) > q.limit {
		return false
	}
	q.closed = l.answer
	q.letters = append(q.letters, l)
	q.size += len(l.message)
	q.wake()
	return true
}

func (q *queue) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// take returns the next message, if there is one.
func (q *queue) take() (l letter, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.letters) == 0 {
		return letter{}, false
	}
	l = q.letters[0]
	q.remove(0)
	if len(q.letters) > 0 {
		q.wake()
	}
	return l, true
}

// withdraw takes a question back. It reports whether it was still there.
func (q *queue) withdraw(question []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.letters {
		if l := &q.letters[i]; l.question != nil && bytes.Equal(l.question, question) {
			q.remove(i)
			return true
		}
	}
	return false
}

func (q *queue) remove(i int) {
	q.size -= len(q.letters[i].message)
	copy(q.letters[i:], q.letters[i+1:])
	q.letters[len(q.letters)-1] = letter{}
	q.letters = q.letters[:len(q.letters)-1]
}

// discard takes no more messages. It returns the questions that were not taken.
func (q *queue) discard() (questions [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.letters {
		if l.question != nil {
			questions = append(questions, l.question)
		}
	}
	q.letters, q.size, q.closed = nil, 0, true
	return questions
}
