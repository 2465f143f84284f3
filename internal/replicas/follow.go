package replicas

import (
	"context"
	"strings"
	"sync"
	"time"
)

const (
	// lookTime is how often a replica looks for what it may not have been told.
	lookTime = time.Minute
	// maxUntold is how many messages wait for a follower that is busy.
	maxUntold = 64
)

// Announce tells the followers of a topic at all other replicas something.
func (s *Space) Announce(ctx context.Context, topic string, message string) error {
	_, err := s.Publish(ctx, topic, []byte(s.Replica+" "+message))
	return err
}

// Follow calls f with each message that other replicas announce, and with "" when messages may have been
// lost: before it returns, once a minute, and in the place of more messages than can wait. After an error
// of f, it is called with "" again, soon. Its calls come one after the other, until stop is called.
func (s *Space) Follow(topic string, f func(ctx context.Context, message string) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &follower{space: s, topic: topic, f: f, messages: make(chan string, maxUntold), missed: make(chan struct{}, 1)}
	failed := w.begin(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx, failed) })
	return func() {
		cancel()
		running.Wait()
	}
}

type follower struct {
	space    *Space
	topic    string
	f        func(context.Context, string) error
	messages chan string
	missed   chan struct{}
	stop     func() // nil if it is not subscribed
}

// begin subscribes, if that has not been done, and calls f.
func (w *follower) begin(ctx context.Context) (failed bool) {
	if w.stop == nil {
		var err error
		if w.stop, err = w.space.Subscribe(ctx, w.topic, w.take); err != nil {
			w.stop = nil
			failed = true
		}
	}
	return w.f(ctx, "") != nil || failed
}

// take takes a message.
func (w *follower) take(sealed []byte) {
	from, message, _ := strings.Cut(string(sealed), " ")
	if from == w.space.Replica {
		return
	}
	select {
	case w.messages <- message:
	default:
		select {
		case w.missed <- struct{}{}:
		default:
		}
	}
}

// run calls f until the context ends.
func (w *follower) run(ctx context.Context, failed bool) {
	next := time.NewTimer(w.until(failed))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			if w.stop != nil {
				w.stop()
			}
			return
		case message := <-w.messages:
			if w.f(ctx, message) != nil {
				next.Reset(w.until(true))
			}
		case <-w.missed:
			next.Reset(w.until(w.begin(ctx)))
		case <-next.C:
			next.Reset(w.until(w.begin(ctx)))
		}
	}
}

// until returns how long to wait until f is called next.
func (w *follower) until(failed bool) time.Duration {
	if failed {
		return w.space.config.Retry
	}
	return lookTime
}
