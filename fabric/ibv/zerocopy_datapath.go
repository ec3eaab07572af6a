//go:build linux && cgo

package ibv

import (
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

// holds are the registrations in use by a lane.
type holds struct {
	all  []hold
	free int32 // list through next
}

func (t *holds) add(r regcache.Region, parts int32) int32 {
	i := t.free
	if i == none {
		t.all = append(t.all, hold{})
		i = int32(len(t.all) - 1)
	} else {
		t.free = t.all[i].next
	}
	t.all[i] = hold{region: r, parts: parts, next: none}
	return i
}

// release ends so many work requests' use of a hold.
func (t *holds) release(n *Network, i, parts int32) {
	p := &t.all[i]
	if p.parts -= parts; p.parts > 0 {
		return
	}
	r := p.region
	p.region = regcache.Region{}
	p.next, t.free = t.free, i
	n.unregister(r)
}

// releaseAll gives back what the work requests of closed queue pairs used: the device reaches nothing any more.
func (t *holds) releaseAll(n *Network) {
	for i := range t.all {
		if t.all[i].parts > 0 {
			n.unregister(t.all[i].region)
		}
	}
	t.all, t.free = nil, none
}

// unregister gives a registration back. One for a single operation is deregistered here.
func (n *Network) unregister(r regcache.Region) {
	if err := n.cache.Put(r); err != nil {
		n.log.Warn("ibv: registration of the program's memory", "err", err)
	}
}

// register gets a registration of buf for an operation on it, and returns its hold; none if it cannot be
// registered, or not for longer than the operation where that is not worth it: then the slab serves.
//
// buf never lies on a goroutine's stack: it came through an interface (fabric.Lane), and is kept in a Region, either of
// which makes the compiler allocate it on the heap.
func (e *queueSet) register(buf []byte, what kind) (int32, error) {
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
	return e.holds.add(r, int32((len(buf)+e.net.piece-1)/e.net.piece)), nil
}
