package regcache

import (
	"fmt"

	"github.com/ibconduit/conduit/memevents"
)

// Origin says where memory comes from, which decides what can take it away. A wrong answer makes
// stale hits possible; Any is never wrong.
type Origin uint8

const (
	// Any is memory of unknown origin. It is cached only if all kinds of changes are watched, which
	// takes userfaultfd.
	Any Origin = iota
	// GoHeap is memory that Go allocated: by new, make, append, or a global variable.
	GoHeap
	// GoMapped is memory mapped by package syscall, x/sys/unix or the like.
	GoMapped
	// Malloc is memory of the C heap.
	Malloc
	// Mapped is memory that C code mapped and that only calls through the libc will unmap or
	// discard; also memory that is not taken away while the cache is open.
	Mapped

	numOrigins
)

var origins = [numOrigins]struct {
	name string
	need memevents.Classes
}{
	Any:      {"any", memevents.ForAny},
	GoHeap:   {"go-heap", memevents.ForGoHeap},
	GoMapped: {"go-mapped", memevents.ForGoMap},
	Malloc:   {"malloc", memevents.ForMalloc},
	Mapped:   {"mapped", memevents.CalledFromC},
}

func (o Origin) String() string {
	if o < numOrigins {
		return origins[o].name
	}
	return fmt.Sprintf("Origin(%d)", uint8(o))
}

// ability is what an entry can serve: access in the low half, a bit for each origin in the high
// half.
type ability uint64

// asked has for an origin that is none the last bit, which no entry has.
func asked(o Origin, access Access) ability { return ability(access) | 1<<(32+min(o, 31)) }

func (a ability) access() Access { return Access(uint32(a)) }

// watchedFor are the origins that an entry serves if its range is watched for the classes.
func watchedFor(need memevents.Classes) (a ability) {
	for o := range numOrigins {
		if need.Has(origins[o].need) {
			a |= asked(o, 0)
		}
	}
	return a
}
