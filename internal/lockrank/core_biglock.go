//go:build biglock

package lockrank

import (
	"sync"
	"sync/atomic"
)

// OneLock reports whether all Mutexes share one lock.
const OneLock = true

// big is the one lock. The owner is a g's address, which the runtime does not give
// to another goroutine while its own lives: only the owner itself can find its own
// address there, so the comparison needs no lock. depth belongs to the owner.
var big struct {
	mu    sync.Mutex
	owner atomic.Uintptr
	depth int
}

// core is a lock's share of the big one. locked belongs to the big lock's owner.
type core struct {
	_      noCopy
	locked bool
}

func (c *core) Lock() {
	g := getg()
	if big.owner.Load() != g {
		big.mu.Lock()
		big.owner.Store(g)
	} else if c.locked {
		panic("lockrank: a goroutine locks what it has locked already")
	}
	big.depth++
	c.locked = true
}

func (c *core) TryLock() bool {
	g := getg()
	if big.owner.Load() != g {
		if !big.mu.TryLock() {
			return false
		}
		big.owner.Store(g)
	} else if c.locked {
		return false
	}
	big.depth++
	c.locked = true
	return true
}

func (c *core) Unlock() {
	if big.owner.Load() != getg() || !c.locked {
		panic("lockrank: a goroutine unlocks what it has not locked")
	}
	c.locked = false
	if big.depth--; big.depth == 0 {
		big.owner.Store(0)
		big.mu.Unlock()
	}
}

// noCopy has vet find copies, as sync.Mutex does.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
