package heap

import (
	"context"
	"math"

	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// Symmetric is memory that all ranks allocate alike without a message, as in OpenSHMEM: each rank
// runs the same allocator, and all call it in the same order with the same arguments. So a block
// has the same offset at all ranks. That they do is checked with Config.Check, at each call, and by
// [Symmetric.Verify].
type Symmetric struct {
	env  env.Env
	team Team
	cfg  Config

	mu    lockrank.Mutex // HeapLocal[ranks + rank]
	alloc alloc.Allocator
	calls uint64
	hash  uint64 // of all calls
}

// NewSymmetric divides Config.Mem, as much at all ranks.
func NewSymmetric(e env.Env, team Team, cfg Config) (*Symmetric, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Symmetric{env: e, team: team, cfg: cfg, alloc: cfg.New(), hash: 14695981039346656037}
	s.mu.Init(lockrank.HeapLocal, e.Size()+e.Rank())
	s.alloc.Grow(uint64(len(cfg.Mem)))
	return s, nil
}

// NoBlock is the offset of no block of a Symmetric: 0 is its first block's.
const NoBlock = math.MaxUint64

// Alloc takes n bytes at a multiple of align, at the same offset at all ranks. Of 0 bytes it is
// NoBlock, as with an error. It sends nothing and waits for no rank: use the memory of another one
// after a barrier.
// Errors: a *NoMemoryError, a *SizeError, alike at all ranks; with Config.Check a *MismatchError.
func (s *Symmetric) Alloc(ctx context.Context, n, align uint64) (off uint64, err error) {
	const op = "symmetric alloc"
	if err := checkAlign(op, align); err != nil {
		return NoBlock, err
	}
	if err := s.enter(ctx, op, n, align); err != nil {
		return NoBlock, err
	}
	if n == 0 {
		return NoBlock, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	off, ok := s.alloc.Alloc(n, align)
	if !ok {
		st := s.alloc.Stats()
		return NoBlock, &NoMemoryError{Op: op, Rank: s.env.Rank(), Requested: n, Align: align, HeapSize: st.Len,
			LocalInUse: st.InUse, Reserved: st.Len, LargestFree: st.LargestFree}
	}
	return off, nil
}

// Free gives a block back at this rank, as all ranks do. NoBlock is nothing. Errors: a *FreeError,
// with offsets in the memory divided.
func (s *Symmetric) Free(ctx context.Context, off uint64) error {
	if err := s.enter(ctx, "symmetric free", off, 1); err != nil || off == NoBlock {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.alloc.Free(off); err != nil {
		return whyNotFree(At(s.env.Rank(), off), err)
	}
	return nil
}

// enter counts a call; with Config.Check it compares it with the other ranks'.
func (s *Symmetric) enter(ctx context.Context, op string, args ...uint64) error {
	s.mu.Lock()
	s.calls++
	for _, c := range []byte(op) {
		s.hash = (s.hash ^ uint64(c)) * 1099511628211
	}
	for _, a := range args {
		s.hash = (s.hash ^ a) * 1099511628211
	}
	s.mu.Unlock()
	if s.cfg.Check {
		return s.verify(ctx, op)
	}
	return nil
}

// Verify is called by all ranks together and fails at all of them if they have not made the same
// calls so far. One all-gather.
func (s *Symmetric) Verify(ctx context.Context) error { return s.verify(ctx, "symmetric heap") }

func (s *Symmetric) verify(ctx context.Context, op string) error {
	s.mu.Lock()
	calls, hash := s.calls, s.hash
	s.mu.Unlock()
	return compare(ctx, s.team, op, calls, hash)
}

// Stats are the allocator's figures.
func (s *Symmetric) Stats() alloc.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alloc.Stats()
}
