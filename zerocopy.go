package conduit

import (
	"math"

	"github.com/ibconduit/conduit/regcache"
)

// Registrations says how a job moves the program's own memory over verbs.
type Registrations struct {
	// Min is from how many bytes on a put or get registers memory outside the segment instead of
	// copying it.
	Min int64
	// Stats counts registrations, hits and misses.
	Stats regcache.Stats
	// Status says whether registrations are kept, by where memory comes from, and why not.
	Status regcache.Status
}

// registering is a network that registers the program's own memory.
type registering interface {
	Registrations() *regcache.Cache
	ZeroCopyMin() int64
	Retest() (regcache.Status, bool)
}

// Registrations reports on the registrations of the program's own memory; false when the job makes
// none: it does not use verbs, or Config.ZeroCopyMin forbids them. It may be called at any time,
// also after Close.
func (j *Job) Registrations() (Registrations, bool) {
	n, ok := j.networks.registering()
	if !ok {
		return Registrations{}, false
	}
	c := n.Registrations()
	return Registrations{Min: n.ZeroCopyMin(), Stats: c.Stats(), Status: c.Status()}, true
}

// RetestRegistrations tests again whether all changes of the program's memory are noticed, as they
// are when the job starts: a library loaded since may have replaced the hooks. Memory that is no
// longer watched is registered for each operation from then on. It takes some milliseconds, and is
// right at any time before Close.
func (j *Job) RetestRegistrations() (Registrations, bool) {
	n, ok := j.networks.registering()
	if !ok {
		return Registrations{}, false
	}
	n.Retest()
	return j.Registrations()
}

// registering is the network that registers, unless the configuration forbids it.
func (n *networks) registering() (registering, bool) {
	for _, net := range n.all {
		if r, ok := net.(registering); ok && r.ZeroCopyMin() < math.MaxInt64 {
			return r, true
		}
	}
	return nil, false
}
