package segment

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"strings"

	"github.com/ibconduit/conduit/internal/remedy"
)

// LimitError is the error of a segment that is larger than a limit allows. Nothing was
// mapped.
type LimitError struct {
	Asked  uint64 // bytes of the whole mapping
	Limit  uint64 // bytes that this limit would have allowed now
	Which  string // the limit: "RLIMIT_MEMLOCK", "cgroup memory limit of /jobs/7", ...
	Remedy string // what to do

	Regions []Region // what asked for how much; the last is the user's
}

func (e *LimitError) Error() string {
	parts := ""
	if len(e.Regions) > 1 { // else the user's is all
		var each []string
		for _, r := range e.Regions {
			each = append(each, fmt.Sprintf("%s %d", r.Name, r.Size))
		}
		parts = " (" + strings.Join(each, ", ") + ")"
	}
	return fmt.Sprintf("segment: %d bytes asked for%s, but %s allows %d: %s", e.Asked, parts, e.Which, e.Limit, e.Remedy)
}

// unlimited stands for a limit that is not set.
const unlimited = math.MaxUint64

// limits are the bounds of the machine and the process, in bytes.
type limits struct {
	memlock, memlockHard uint64 // RLIMIT_MEMLOCK
	pinned               uint64 // counted against it already
	ipcLock              bool   // CAP_IPC_LOCK: RLIMIT_MEMLOCK does not count

	addressSpace, mapped uint64 // RLIMIT_AS and what is used of it
	data, dataUsed       uint64 // RLIMIT_DATA and what is used of it
	fileSize             uint64 // RLIMIT_FSIZE

	machine    string // names it among those of the ranks
	available  uint64 // MemAvailable
	commitLeft uint64 // left under the commit limit, unlimited unless overcommit is off
	cgroups    []cgroupLimit

	hugePage, hugeFree uint64 // size of a huge page; free bytes of the pool
}

// cgroupLimit is the memory limit of one cgroup on the way to the root.
type cgroupLimit struct {
	path        string
	dir         string // names it among those of the machine: device and inode of its directory
	limit, used uint64
	reclaimable uint64 // part of used that is clean page cache
}

// host is where limits come from.
type host interface {
	limits() limits
	raiseMemlock(hard uint64) error // soft limit := hard limit
}

// bound is one limit as seen by a segment: how many bytes it leaves.
type bound struct {
	which  string
	room   uint64
	remedy string
	pool   Pool // that it is the room of; the zero value: no other process takes of it
}

// bound is the pool as the bound of one mapping.
func (p Pool) bound() bound { return bound{p.Which(), p.Room, p.Remedy(), p} }

// pools lists what a mapping on huge or base pages takes of, and other processes of the machine
// too.
func (l *limits) pools(huge bool) []Pool {
	if huge {
		return []Pool{{poolID(l.machine, "huge"), PoolHuge, l.hugeFree, ""}}
	}
	p := []Pool{{poolID(l.machine, "memory"), PoolMachine, l.available, ""}}
	if l.commitLeft != unlimited {
		p = append(p, Pool{poolID(l.machine, "commit"), PoolCommit, l.commitLeft, ""})
	}
	for _, g := range l.cgroups {
		p = append(p, Pool{poolID(l.machine, g.dir), PoolGroup, left(g.limit, left(g.used, g.reclaimable)), g.path})
	}
	return p
}

func poolID(machine, part string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, machine+"\n"+part) // never fails
	return h.Sum64()
}

// bounds lists what limits a mapping of c on huge or base pages.
func (c *Config) bounds(l *limits, huge bool) []bound {
	own := func(which string, room uint64, remedy string) bound { return bound{which, room, remedy, Pool{}} }
	b := []bound{own("RLIMIT_AS", left(l.addressSpace, l.mapped), "raise it (ulimit -v unlimited)")}
	if c.Shared {
		b = append(b, own("RLIMIT_FSIZE", l.fileSize, "raise it (ulimit -f unlimited)"))
	} else {
		b = append(b, own("RLIMIT_DATA", left(l.data, l.dataUsed), "raise it (ulimit -d unlimited)"))
	}
	if c.DeviceMax != 0 {
		b = append(b, own("the device's max_mr_size", c.DeviceMax, "use a smaller segment, or more ranks"))
	}
	if c.Locked && !l.ipcLock {
		which := "RLIMIT_MEMLOCK"
		if l.pinned+c.Buffers > 0 {
			which += fmt.Sprintf(" of %d, less %d that are pinned and %d for buffers,", l.memlock, l.pinned, c.Buffers)
		}
		b = append(b, own(which, left(left(l.memlock, l.pinned), c.Buffers), "raise it: "+remedy.Memlock(remedy.Unknown)))
	}
	for _, p := range l.pools(huge) {
		b = append(b, p.bound())
	}
	return b
}

// left is limit-used, not below 0; an unlimited limit stays so.
func left(limit, used uint64) uint64 {
	switch {
	case limit == unlimited:
		return unlimited
	case used >= limit:
		return 0
	}
	return limit - used
}

// tightest returns the bound that leaves least.
func tightest(b []bound) bound {
	t := b[0]
	for _, x := range b[1:] {
		if x.room < t.room {
			t = x
		}
	}
	return t
}

// admit returns an error unless n bytes, which the parts add up to, fit under every bound.
func admit(n uint64, b []bound, parts []Region) error {
	if t := tightest(b); n > t.room {
		return &LimitError{Asked: n, Limit: t.room, Which: t.which, Remedy: t.remedy, Regions: parts}
	}
	return nil
}
