package lan

import (
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// link is one direction between two ports. The reader of the source offers frames; one goroutine
// delivers them, in order, so that a slow receiver holds up only itself.
type link struct {
	to    *net.UnixConn
	queue chan frame

	mu     sync.Mutex
	faults Faults
	stats  Stats
	draw   *rand.Rand
}

type frame struct {
	data []byte
	due  time.Time
}

func (l *link) set(change func(*Faults)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.faults)
}

// offer never blocks.
func (l *link) offer(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.faults.Cut:
		l.stats.Cut++
		return
	case l.faults.Loss > 0 && l.draw.Float64() < l.faults.Loss:
		l.stats.Dropped++
		return
	}
	f := frame{data: data}
	if l.faults.Delay > 0 {
		f.due = time.Now().Add(l.faults.Delay)
	}
	select {
	case l.queue <- f:
	default:
		l.stats.Overflow++
	}
}

func (l *link) deliver(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case f := <-l.queue:
			if wait := time.Until(f.due); wait > 0 && !sleep(wait, stop) {
				return
			}
			// A cut holds for what is under way too; a write fails when the guest has gone.
			cut := l.isCut()
			var err error
			if !cut {
				_, err = l.to.Write(f.data)
			}
			l.count(cut, err)
		}
	}
}

func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faults.Cut
}

func (l *link) count(cut bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case cut:
		l.stats.Cut++
	case err != nil:
		l.stats.Overflow++
	default:
		l.stats.Sent++
	}
}

// sleep returns false when stop came first.
func sleep(d time.Duration, stop <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}
