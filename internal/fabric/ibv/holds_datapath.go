//go:build linux && cgo

package ibv

import "github.com/ibconduit/conduit/regcache"

// hold is a registration that an operation's work requests use. It is given back when the last of
// them has ended, however it ends. Until then the Region keeps memory of the Go heap reachable.
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
func (t *holds) release(m *localMemory, i, parts int32) {
	p := &t.all[i]
	if p.parts -= parts; p.parts > 0 {
		return
	}
	m.unregister(p.region)
	*p = hold{next: t.free}
	t.free = i
}

// releaseAll gives back the memory of work requests of closed queue pairs: the device reaches
// nothing any more.
func (t *holds) releaseAll(m *localMemory) {
	for i := range t.all {
		if t.all[i].parts > 0 {
			m.unregister(t.all[i].region)
		}
	}
	t.all, t.free = nil, none
}
