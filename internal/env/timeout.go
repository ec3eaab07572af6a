package env

import (
	"context"
	"sync"
	"time"
)

// lazyTimeout is a context of context.WithTimeout, but its timer and registration with the parent
// are made when its Done channel is first used. A call that is answered while its caller polls
// never does: the two take 450 ns, half of a round trip over shared memory.
type lazyTimeout struct {
	context.Context               // the parent
	deadline        time.Duration // since origin: time.Now reads two clocks

	mu     sync.Mutex
	made   context.Context // nil before Done
	cancel context.CancelFunc
	over   bool // cancelled before it was made
	asked  int  // calls of Err before it was made
}

// errPerClock is how many calls of Err go by between looks at the clock, which costs 40 ns.
const errPerClock = 16

// withTimeout is context.WithTimeout.
func withTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 { // Err says so at once, and not when it next looks at the clock
		return context.WithTimeout(parent, d)
	}
	l := &lazyTimeout{Context: parent, deadline: time.Since(origin) + min(d, longest)}
	if at, ok := parent.Deadline(); ok {
		l.deadline = min(l.deadline, at.Sub(origin))
	}
	return l, l.end
}

func (l *lazyTimeout) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over = true; l.made != nil {
		l.cancel()
	}
}

func (l *lazyTimeout) Deadline() (time.Time, bool) { return origin.Add(l.deadline), true }

func (l *lazyTimeout) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made == nil {
		l.made, l.cancel = context.WithDeadline(l.Context, origin.Add(l.deadline))
		if l.over {
			l.cancel()
		}
	}
	return l.made.Done()
}

func (l *lazyTimeout) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.made != nil:
		return l.made.Err()
	case l.Context.Err() != nil:
		return l.Context.Err()
	case l.over:
		return context.Canceled
	}
	if l.asked++; l.asked%errPerClock == 0 && time.Since(origin) >= l.deadline {
		l.made, l.cancel = context.WithDeadline(l.Context, origin.Add(l.deadline)) // which has ended
		return l.made.Err()
	}
	return nil
}

// Value finds what package context keeps in its own contexts, the cause of an end for instance.
func (l *lazyTimeout) Value(key any) any {
	l.mu.Lock()
	made := l.made
	l.mu.Unlock()
	if made != nil {
		return made.Value(key)
	}
	return l.Context.Value(key)
}
