package measure

import (
	"context"

	"github.com/ibconduit/conduit"
)

// stream is one lane that keeps operations in flight.
type stream struct {
	ctx    context.Context
	w      *conduit.Worker
	op     op
	slots  int // places that operations cycle through
	size   int // bytes of an operation
	stride int

	dst   conduit.Ptr[byte]
	word  conduit.Ptr[uint64]
	local []byte

	// pending holds the operations in flight where they are counted here; nil
	// where the lane's own depth is the limit.
	pending []conduit.Pending
	place   int // the next operation's in pending

	slot  int     // the next operation's place
	posts *poster // of active messages, which nothing of the above is for

	stamps []int64 // readings of the clock at the ends of the parts
	counts []int   // operations of each part
}

// run does n operations and returns when all are complete. Operations in flight at
// the end of a part counts for it; only the last part waits.
func (s *stream) run(n int) error {
	parts := len(s.counts)
	s.stamps[0] = now()
	for i := range s.counts {
		s.counts[i] = n*(i+1)/parts - n*i/parts
		if err := s.post(s.counts[i]); err != nil {
			return err
		}
		if i == parts-1 {
			if err := s.drain(); err != nil {
				return err
			}
		}
		s.stamps[i+1] = now()
	}
	return nil
}

// post starts n operations.
func (s *stream) post(n int) error {
	if s.posts != nil {
		return s.posts.post(s.ctx, n)
	}
	for range n {
		if s.pending == nil {
			if err := s.implicit(); err != nil {
				return err
			}
			continue
		}
		if err := s.pending[s.place].Wait(s.ctx); err != nil {
			return err
		}
		s.pending[s.place] = s.explicit()
		if s.place++; s.place == len(s.pending) {
			s.place = 0
		}
	}
	return nil
}

// next is the place of the next operation.
func (s *stream) next() int {
	at := s.slot * s.stride
	if s.slot++; s.slot == s.slots {
		s.slot = 0
	}
	return at
}

// implicit starts an operation that only Flush completes.
func (s *stream) implicit() error {
	at := s.next()
	switch s.op {
	case putWord, putBytes:
		return conduit.PutSliceNBI(s.w, s.dst.Add(at), s.local[at:at+s.size])
	default:
		return conduit.GetSliceNBI(s.w, s.local[at:at+s.size], s.dst.Add(at))
	}
}

// explicit starts an operation that is waited for by itself.
func (s *stream) explicit() conduit.Pending {
	at := s.next()
	switch s.op {
	case putWord, putBytes:
		return conduit.PutSliceAsync(s.w, s.dst.Add(at), s.local[at:at+s.size])
	case getWord, getBytes:
		return conduit.GetSliceAsync(s.w, s.local[at:at+s.size], s.dst.Add(at))
	}
	return conduit.FetchAddAsync(s.w, s.word, 1).Pending
}

// drain completes everything.
func (s *stream) drain() error {
	if s.posts != nil {
		return s.posts.drain(s.ctx)
	}
	for range s.pending {
		if err := s.pending[s.place].Wait(s.ctx); err != nil {
			return err
		}
		if s.place++; s.place == len(s.pending) {
			s.place = 0
		}
	}
	return s.w.Flush(s.ctx)
}
