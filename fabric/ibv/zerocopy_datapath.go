//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"unsafe"

	"github.com/ibconduit/conduit/regcache"
)

// hold is a registration that an operation's work requests use. It is given back when the last of them has ended,
// however it ends. Until then the Region keeps memory of the Go heap reachable.
type hold struct {
	region regcache.Region
	parts  int32 // work requests that have not ended
	next   int32 // the next free one
}

// register gets a registration of buf for an operation on it, and returns its hold; none if it cannot be
// registered, or not for longer than the operation where that is not worth it: then the slab serves.
//
// buf never lies on a goroutine's stack: it came through an interface (fabric.Lane), and is kept in a Region, either of
// which makes the compiler allocate it on the heap.
func (e *endpoint) register(buf []byte, what kind) (int32, error) {
	access := regcache.Access(0)
	if what == kindGet {
		access = regcache.LocalWrite
	}
	p, n := unsafe.Pointer(unsafe.SliceData(buf)), uint64(len(buf))
	r, err := e.net.cache.GetKept(p, n, access)
	if err != nil && int64(n) >= e.net.singleMin.Load() && errors.Is(err, regcache.ErrNotKept) {
		r, err = e.net.cache.Get(p, n, access)
	}
	if err != nil {
		if fatal(err) {
			return none, err
		}
		e.counters.Unregistered++
		return none, nil
	}
	parts := int32((len(buf) + e.net.piece - 1) / e.net.piece)
	i := e.freeHold
	if i == none {
		e.holds = append(e.holds, hold{})
		i = int32(len(e.holds) - 1)
	} else {
		e.freeHold = e.holds[i].next
	}
	e.holds[i] = hold{region: r, parts: parts, next: none}
	return i, nil
}

// keep notes that the work request that was collected last uses a hold. Its dst is what retire looks at, so that
// operations without a hold pay nothing.
func (e *endpoint) keep(h int32, part []byte) {
	w := &e.wrs[e.pending[len(e.pending)-1]]
	w.hold, w.dst = h+1, part
}

// letGo ends so many work requests' use of a hold.
func (e *endpoint) letGo(h, parts int32) {
	p := &e.holds[h]
	if p.parts -= parts; p.parts > 0 {
		return
	}
	r := p.region
	p.region = regcache.Region{}
	p.next, e.freeHold = e.freeHold, h
	e.putBack(r)
}

// putBack gives a registration back. When that was for one operation, it is deregistered here.
func (e *endpoint) putBack(r regcache.Region) {
	if err := e.net.cache.Put(r); err != nil {
		e.net.log.Warn("ibv: registration of the program's memory", "err", err)
	}
}

// withdraw is for an operation of which so many last work requests cannot be posted. It waits for those that are
// out, so that the caller who is told of the failure has the buffer back: their queue pair has failed, and ends them at once.
func (e *endpoint) withdraw(k *link, h, missing int32) {
	for p := (pacer{}); e.holds[h].parts > missing; {
		if k.silent > 0 {
			e.owe(k)
		}
		if err := e.turn(context.Background(), &p); err != nil {
			break // polling failed, which ended everything
		}
	}
	e.letGo(h, missing)
}

// putBackAll gives back what the work requests of closed queue pairs used: the device reaches nothing any more.
func (e *endpoint) putBackAll() {
	for i := range e.holds {
		if e.holds[i].parts > 0 {
			e.putBack(e.holds[i].region)
		}
	}
	e.holds, e.freeHold = nil, none
}
