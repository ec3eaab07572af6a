package mr

import (
	"unsafe"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/regcache"
)

func now() int64 { return measure.Now() }

// access of a registration.
const access = regcache.LocalWrite

// registration registers and deregisters a range, and says how long each took.
func registration(r regcache.Registrar, lo uintptr, n uint64) (register, deregister int64, err error) {
	begin := now()
	mr, err := r.Register(lo, n, access)
	if err != nil {
		return 0, 0, err
	}
	made := now()
	err = mr.Close()
	return made - begin, now() - made, err
}

// hits are Gets and Puts of ranges in turn.
type hits struct {
	cache *regcache.Cache
	at    []unsafe.Pointer
	size  uint64
	next  int
}

func (h *hits) run(k int) error {
	for range k {
		r, err := h.cache.Get(h.at[h.next], h.size, access)
		if err != nil {
			return err
		}
		if err := h.cache.Put(r); err != nil {
			return err
		}
		if h.next++; h.next == len(h.at) {
			h.next = 0
		}
	}
	return nil
}

// slab is what copies go into: pieces of memory that is registered for good, as a network has for
// what is not.
type slab struct {
	mem []byte
	at  int
}

// Of package internal/fabric/ibv: bigBlock and bigBlocks in tuning.go.
const (
	slabPiece = 8 << 10
	slabBytes = 32 * slabPiece
)

func (s *slab) copy(src []byte) {
	for len(src) > 0 {
		n := copy(s.mem[s.at:s.at+slabPiece], src)
		src = src[n:]
		if s.at += slabPiece; s.at == len(s.mem) {
			s.at = 0
		}
	}
}
