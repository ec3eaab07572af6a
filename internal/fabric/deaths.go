package fabric

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Deaths are for networks: the ranks that one takes for down. The zero value has none. They may be
// used by any goroutine.
type Deaths struct {
	N       atomic.Uint32 // of ranks that are down; networks only load it, inline
	causes  sync.Map      // of error, by rank
	reports sync.Mutex    // one after the other
}

// Add notes a death. It reports whether it is the first to do so.
func (d *Deaths) Add(rank int, cause error) bool {
	if cause == nil {
		cause = errors.New("no cause was given")
	}
	if _, known := d.causes.LoadOrStore(rank, cause); known {
		return false
	}
	d.N.Add(1)
	return true
}

// Report is PeerDown of a network that found the death itself. It calls onDown before any operation
// fails, so that the rest of the program knows of the death first; nil: it calls nothing.
func (d *Deaths) Report(n Network, rank int, cause error, onDown func(rank int, cause error)) {
	d.reports.Lock()
	defer d.reports.Unlock()
	if onDown != nil && d.Cause(rank) == nil {
		onDown(rank, cause)
	}
	n.PeerDown(rank, cause)
}

// Cause is how a rank was found down; nil: it is not.
func (d *Deaths) Cause(rank int) error {
	if d.N.Load() == 0 {
		return nil
	}
	cause, _ := d.causes.Load(rank)
	err, _ := cause.(error)
	return err
}

// Err is the *PeerDownError of an operation on a rank; nil: it is not down.
func (d *Deaths) Err(op string, rank int) error {
	if cause := d.Cause(rank); cause != nil {
		return &PeerDownError{Rank: rank, Op: op, Cause: cause}
	}
	return nil
}

// Each calls f for every rank that is down.
func (d *Deaths) Each(f func(rank int, cause error)) {
	d.causes.Range(func(rank, cause any) bool {
		f(rank.(int), cause.(error))
		return true
	})
}
