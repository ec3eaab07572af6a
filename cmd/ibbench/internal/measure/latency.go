package measure

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
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
	if peer == last {
		return s.leadLatency(pt, l)
	}
	return nil, s.followLatency(pt, l)
}

// newLatency prepares the side of a latency that talks to peer.
func (s *session) newLatency(pt plan.Point, a areas, peer int) *latency {
	if pt.Op == plan.AM {
		return s.newCalls(pt, peer)
	}
	size := uint64(pt.Size)
	end := (size + 7) &^ 7 // messages end with an aligned word
	l := &latency{
		ctx: s.ctx, w: s.workers[0], size: size, depth: pt.Depth, batch: 1, t: s.stamps,
		begin: a.remote + end - size, mark: a.remote + end - 8, mask: ^uint64(0),
		src:  s.local[end-size : end],
		word: conduit.At[uint64](peer, a.remote+end-8),
	}
	if size < 8 {
		l.mask = 1<<(8*size) - 1
	}
	l.dst = conduit.At[byte](peer, l.begin)
	l.tail = (*uint64)(unsafe.Pointer(&s.local[end-8]))
	l.body = l.src[:max(size, 8)-8]
	l.pending = make([]conduit.Pending, pt.Depth)
	l.posted = make([]int64, pt.Depth)
	l.op = operation(pt, s.job.FabricTo(peer) == conduit.FabricSHM)
	if l.op == pingOrdered || size < 8 {
		clear(l.src[len(l.body):]) // the mark's place
	}
	return l
}

// newCalls prepares the side of a round trip of active messages.
func (s *session) newCalls(pt plan.Point, peer int) *latency {
	return &latency{
		ctx: s.ctx, w: s.workers[0], op: call, depth: 1, batch: 1, t: s.stamps,
		calls: &caller{m: s.messages, endpoint: s.messages.endpoints[0], peer: peer, payload: s.local[:pt.Size], answer: make([]byte, pt.Size)},
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

// leadLatency warms up, measures, and checks.
func (s *session) leadLatency(pt plan.Point, l *latency) (*report.Series, error) {
	p := &pace{pt: pt}
	l.period = 0
	var done, elapsed int64
	for n := p.warm(0, 0); n > 0; n = p.warm(done, elapsed) {
		begin, batch := now(), l.batch
		if err := s.stretch(l, p, n); err != nil {
			return nil, err
		}
		took := now() - begin
		done += n * int64(batch)
		elapsed += took
		p.learn(int(n), took)
		s.chooseBatch(pt, l, p, int(n))
	}
	s.keepBatch(pt, l.batch)
	if pt.PerSecond > 0 {
		l.period = 1e9 / pt.PerSecond
		p.perNS = max(p.perNS, l.period)
	}
	return s.measureLatency(pt, l, p)
}

// chooseBatch settles how many operations make a sample, from the median of the
// last n samples: a mean would be taken in by one interruption.
func (s *session) chooseBatch(pt plan.Point, l *latency, p *pace, n int) {
	if pt.Depth > 1 || pt.PerSecond > 0 {
		return
	}
	last := stats.New(int64(n), float64(l.batch), false)
	for _, t := range l.samples(n) {
		last.Add(t)
	}
	batch := s.batch(pt, last.Percentile(50))
	p.perNS *= float64(batch) / float64(l.batch)
	l.batch = batch
}

// stretch does n samples together with the peer.
func (s *session) stretch(l *latency, p *pace, n int64) error {
	if err := s.lead(command{N: n, Messages: l.messages(n), SleepNS: p.expect(n)}); err != nil {
		return err
	}
	if l.calls != nil {
		return l.calls.stretch(l, int(n))
	}
	return l.run(int(n))
}

func (s *session) measureLatency(pt plan.Point, l *latency, p *pace) (*report.Series, error) {
	div := float64(l.batch)
	if pt.Definition() == plan.DefHalf {
		div *= 2
	}
	capacity := pt.Iters
	if capacity == 0 {
		capacity = 1 << 40
	}
	all, round := stats.New(capacity, div, l.batch > 1), report.Rounding(l.batch)
	series := &report.Series{}
	if l.calls != nil {
		l.calls.mallocs, l.calls.counted = 0, 0 // those of the warm-up
	}
	var done, elapsed int64
	begin := now()
	for n := p.next(0, 0); n > 0; n = p.next(done, elapsed) {
		start := now()
		if err := s.stretch(l, p, n); err != nil {
			return nil, err
		}
		samples := l.samples(int(n))
		part := stats.New(n, div, false)
		for _, t := range samples {
			all.Add(t)
			part.Add(t)
		}
		took := now() - start
		series.Intervals = append(series.Intervals, report.Interval{
			StartNS: start - begin, ElapsedNS: l.elapsed, Count: n,
			P50: round(part.Percentile(50)), Max: round(part.Max()),
		})
		done += n
		// Meeting the peer is not measuring, but a peer that is starved must not make it last for
		// ever.
		elapsed += max(l.elapsed, took/4)
		p.learn(int(n), l.elapsed)
		s.soFar(pt, all)
	}
	if err := s.lead(command{}); err != nil {
		return nil, err
	}
	series.Result = report.Latency(all, s.plan.Pct, l.batch)
	series.Hist = all.Hist()
	series.Notes = notesOf(pt, l, all, done, series.Intervals)
	var err error
	if pt.Op == plan.AM {
		return series, s.reportCalls(pt, l, series)
	}
	series.Result.Errors, err = s.checkLatency(pt, l)
	return series, err
}

func notesOf(pt plan.Point, l *latency, all *stats.Samples, done int64, parts []report.Interval) (notes []string) {
	if l.batch > 1 {
		notes = append(notes, fmt.Sprintf("%s at size %d: %d operations per sample, since one is too short for the clock; the tail is averaged", pt.Name(), pt.Size, l.batch))
	}
	if !all.Exact() {
		notes = append(notes, fmt.Sprintf("%s at size %d: percentiles of %d samples come from the histogram, three digits", pt.Name(), pt.Size, all.Count()))
	}
	if pt.PerSecond > 0 {
		var took int64
		for _, p := range parts {
			took += p.ElapsedNS
		}
		notes = append(notes, fmt.Sprintf("%s at size %d: open loop at %.0f/s, %.0f/s achieved; times count from when each operation was due (coordinated omission corrected)",
			pt.Name(), pt.Size, pt.PerSecond, float64(done)/float64(max(took, 1))*1e9))
	}
	return notes
}

// followLatency is the other side; l is nil on ranks that only wait.
func (s *session) followLatency(pt plan.Point, l *latency) error {
	active := l != nil && (pt.PingPong() || pt.Op == plan.AM)
	for {
		c, err := s.follow(!active)
		if err != nil {
			return err
		}
		if c.N == 0 {
			break
		}
		if active {
			if err := l.respond(c.Messages); err != nil {
				return err
			}
		}
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
