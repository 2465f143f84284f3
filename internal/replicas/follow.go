package replicas

import (
	"context"
	"strings"
	"sync"
	"time"
)

const (
	// pollTime is how often a replica checks for announcements that it may have missed.
	pollTime = time.Minute
	// maxPendingMessages is how many messages wait for a follower that is busy.
	maxPendingMessages = 64
)

// Announce sends a message to the followers of a topic at all other replicas.
func (s *Space) Announce(ctx context.Context, topic string, message string) error {
	_, err := s.Publish(ctx, topic, []byte(s.Replica+" "+message))
	return err
}

// Follow calls f with each message that other replicas announce, and with "" when messages may have
// been lost: before it returns, once a minute, and instead of messages beyond maxPendingMessages.
// After an error of f, it calls f with "" again, soon. The calls are sequential, until stop is
// called.
func (s *Space) Follow(topic string, f func(ctx context.Context, message string) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &follower{
		space: s, topic: topic, f: f,
		messages: make(chan string, maxPendingMessages), missed: make(chan struct{}, 1),
	}
	failed := w.refresh(ctx)
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
	stop     func() // nil if not subscribed
}

// refresh subscribes, unless it is subscribed, and calls f with "".
func (w *follower) refresh(ctx context.Context) (failed bool) {
	if w.stop == nil {
		var err error
		w.stop, err = w.space.Subscribe(ctx, w.topic, w.receive)
		if err != nil {
			w.stop = nil
			failed = true
		}
	}
	return w.f(ctx, "") != nil || failed
}

// receive queues a message.
func (w *follower) receive(sealed []byte) {
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

// run calls f until the context is done.
func (w *follower) run(ctx context.Context, failed bool) {
	next := time.NewTimer(w.delay(failed))
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
				next.Reset(w.delay(true))
			}
		case <-w.missed:
			next.Reset(w.delay(w.refresh(ctx)))
		case <-next.C:
			next.Reset(w.delay(w.refresh(ctx)))
		}
	}
}

// delay returns how long to wait before the next call of f.
func (w *follower) delay(failed bool) time.Duration {
	if failed {
		return w.space.config.Retry
	}
	return pollTime
}
