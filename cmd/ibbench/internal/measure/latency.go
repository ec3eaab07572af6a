package measure

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// latencyPoint measures from rank 0 to the last one.
func (s *session) latencyPoint(pt plan.Point) (*report.Series, error) {
	last := s.job.Size() - 1
	a := s.prepare(pt)
	if err := s.job.Barrier(s.ctx); err != nil { // no rank writes what another still prepares
		return nil, err
	}
	peer := -1
	switch s.job.Rank() {
	case 0:
		peer = last
	case last:
		peer = 0
	}
	if pt.Op == plan.AM {
		if err := s.prepareMessages(pt, a, peer); err != nil {
			return nil, err
		}
	}
	if peer < 0 {
		return nil, s.followLatency(pt, nil)
	}
	l := s.newLatency(pt, a, peer)
	if peer != last {
		return nil, s.followLatency(pt, l)
	}
	series, err := s.leadSamples(pt, &l.samples, func(c command) error { return l.stretch(pt, c) })
	if err != nil {
		return nil, err
	}
	if pt.Op == plan.AM {
		return series, s.reportCalls(pt, l, series)
	}
	series.Result.Errors, err = s.checkLatency(pt, l)
	return series, err
}

// newLatency prepares the side of a latency that talks to peer.
func (s *session) newLatency(pt plan.Point, a areas, peer int) *latency {
	if pt.Op == plan.AM {
		return s.newCalls(pt, peer)
	}
	size := uint64(pt.Size)
	end := (size + 7) &^ 7 // messages end with an aligned word
	l := &latency{
		ctx: s.ctx, w: s.workers[0], size: size, t: s.stamps,
		samples: samples{batch: 1, fixed: pt.Depth > 1 || pt.PerSecond > 0},
		begin:   a.remote + end - size, mark: a.remote + end - 8, mask: ^uint64(0),
		src: s.local[end-size : end], word: conduit.At[uint64](peer, a.remote+end-8),
	}
	if size < 8 {
		l.mask = 1<<(8*size) - 1
	}
	if pt.Depth > 1 {
		l.pending = make([]conduit.Pending, pt.Depth)
	}
	l.dst = conduit.At[byte](peer, l.begin)
	l.tail = (*uint64)(unsafe.Pointer(&s.local[end-8]))
	l.body = l.src[:max(size, 8)-8]
	l.op = operation(pt, s.job.FabricTo(peer) == conduit.FabricSHM)
	if l.op == pingOrdered || size < 8 {
		clear(l.src[len(l.body):]) // the mark's place
	}
	return l
}

// newCalls prepares the side of a round trip of active messages.
func (s *session) newCalls(pt plan.Point, peer int) *latency {
	return &latency{
		ctx: s.ctx, w: s.workers[0], op: call, samples: samples{batch: 1}, t: s.stamps,
		calls: &caller{m: s.messages, endpoint: s.messages.endpoints[0], peer: peer, payload: s.local[:pt.Size],
			answer: make([]byte, pt.Size)},
	}
}

// operation chooses the loop.
func operation(pt plan.Point, ordered bool) op {
	word := pt.Size == 8
	switch {
	case pt.PingPong() && word:
		return pingWord
	case pt.PingPong() && ordered && pt.Size > 8:
		return pingOrdered
	case pt.PingPong():
		return pingWhole
	case pt.Op == plan.Put && word:
		return putWord
	case pt.Op == plan.Put:
		return putBytes
	case pt.Op == plan.Get && word:
		return getWord
	case pt.Op == plan.Get:
		return getBytes
	case pt.Op == plan.AMO:
		return fetchAdd
	case pt.Op == plan.AM:
		return post
	}
	return compareSwap
}

// stretch does the samples of a command together with the peer.
func (l *latency) stretch(pt plan.Point, c command) error {
	if l.period = 0; c.Measured && pt.PerSecond > 0 {
		l.period = 1e9 / pt.PerSecond
	}
	run := l.run
	if l.calls != nil {
		run = func(n int) error { return l.calls.stretch(l, n) }
	}
	err := run(int(c.N))
	l.taken, l.took = l.times(int(c.N)), l.elapsed
	return err
}

// followLatency is the other side; l is nil on ranks that only wait.
func (s *session) followLatency(pt plan.Point, l *latency) error {
	active := l != nil && (pt.PingPong() || pt.Op == plan.AM)
	err := s.followSamples(!active, func(c command) error {
		if !active {
			return nil
		}
		l.batch = c.Batch
		return l.respond(l.messages(c.N, c.Measured && pt.PerSecond > 0))
	})
	if err != nil {
		return err
	}
	if pt.Op == plan.AM {
		return s.reportCalls(pt, l, nil)
	}
	// Rank 0 may still be reading this segment; nothing changes it before the barrier.
	return s.job.Barrier(s.ctx)
}

// checkLatency counts operations that left something else than they should.
func (s *session) checkLatency(pt plan.Point, l *latency) (wrong int64, err error) {
	last := s.job.Size() - 1
	a := areasOf(pt)
	switch l.op {
	case pingWord, pingOrdered, pingWhole:
		wrong = s.checkPing(l, a, last)
	case putBytes, putWord:
		got := make([]byte, pt.Size)
		if err := conduit.GetSlice(l.w, got, l.dst); err != nil {
			return 0, err
		}
		wrong = differ(got, l.src, pt.Size, pt.Size)
	case getBytes, getWord:
		want := s.expected(a, last)[l.begin-a.remote : l.begin-a.remote+l.size]
		wrong = differ(l.src, want, pt.Size, pt.Size)
	case fetchAdd, compareSwap:
		sum, err := conduit.Get(l.w, l.word)
		if err != nil {
			return 0, err
		}
		if sum != l.seq && (l.op == fetchAdd || pt.Depth == 1) {
			wrong = max(int64(sum-l.seq), int64(l.seq-sum))
		}
	}
	return wrong, s.job.Barrier(s.ctx)
}

// checkPing looks at the last message that came: the peer's pattern, ended by
// the number of the last one.
func (s *session) checkPing(l *latency, a areas, peer int) int64 {
	seg := s.job.Segment()
	want := s.expected(a, peer)
	at := l.begin - a.remote
	body := uint64(len(l.body))
	word := atomic.LoadUint64((*uint64)(unsafe.Pointer(&seg[l.mark])))
	if word != bits.ReverseBytes64(l.seq&l.mask) || string(seg[l.begin:l.begin+body]) != string(want[at:at+body]) {
		return 1
	}
	return 0
}
