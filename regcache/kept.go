package regcache

import (
	"fmt"
	"unsafe"
)

// GetKept is Get for the buffer of an operation that can do without a registration: where that
// would be for one operation only, as for memory that is not watched or that is being changed, it
// registers nothing and fails with ErrNotKept.
//
// The range must be in use until GetKept returns: of each page a byte belongs to a live object, an
// allocated block or a mapping that no other goroutine or thread discards meanwhile. It is not
// refused then because of discards nearby without a reported end (see
// memevents.Watcher.ClaimLive).
func (c *Cache) GetKept(p unsafe.Pointer, n uint64, access Access) (Region, error) {
	e := c.hints.find(uintptr(p), n, asked(c.origin, access))
	if e == nil || e.frames != nil || mustAsk(e.need) && !c.w.Reported() || !e.ref.Acquire() {
		return c.miss(request{o: c.origin, p: p, lo: uintptr(p), n: n, access: access, kept: true})
	}
	c.hit(e)
	return e.region(p), nil
}

func notKept(q *request, why error) error {
	e := &Error{Op: "get", Err: ErrNotKept, Detail: fmt.Sprintf("memory of origin %v; see Status", q.o)}
	if why != nil {
		e.Detail = why.Error()
	}
	return e
}
