package measure

import (
	"fmt"
	"slices"
	"sync"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// senders is a rank's lanes, and what they did in one stretch.
type senders struct {
	lanes []*stream // of active messages one for each goroutine
	ops   int64     // each has done
	most  int       // parts of a stretch, if it has as many operations
	parts int       // of the last stretch
}

// outcome is what each rank sends rank 0 about a stretch.
type outcome struct {
	Ops       int64
	ElapsedNS int64
	Rates     []float64 // operations per second in each part of the stretch
	Wrong     int64
}

// peerOf pairs rank i with i+n/2. active says whether this rank sends.
func (s *session) peerOf(pt plan.Point) (peer int, active bool) {
	half := s.job.Size() / 2
	rank := s.job.Rank()
	if rank < half {
		return rank + half, true
	}
	return rank - half, pt.Bidi
}

// throughput is one rank's part in a point of throughput.
type throughput struct {
	s    *session
	pt   plan.Point
	a    areas
	peer int
	me   *senders // nil: this rank does not send
}

// throughputPoint measures all pairs at once.
func (s *session) throughputPoint(pt plan.Point) (*report.Series, error) {
	a := s.prepare(pt)
	if err := s.job.Barrier(s.ctx); err != nil { // no rank writes what another still prepares
		return nil, err
	}
	peer, active := s.peerOf(pt)
	x := &throughput{s: s, pt: pt, a: a, peer: peer}
	if pt.Op == plan.AM {
		if err := s.prepareMessages(pt, a, peer); err != nil {
			return nil, err
		}
	}
	if active {
		x.open()
	}
	if s.job.Rank() == 0 {
		return x.lead()
	}
	err := s.followSamples(!active && pt.Op != plan.AM, func(c command) error {
		_, err := x.send(c.N)
		return err
	})
	if err == nil {
		_, err = x.finish(nil)
	}
	return nil, err
}

// open makes the lanes that send.
func (x *throughput) open() {
	me := &senders{most: x.pt.Intervals}
	if me.most == 0 {
		me.most = plan.DefaultIntervals
	}
	if x.pt.Op == plan.AM {
		me.lanes = x.newPosters()
	} else {
		me.lanes = x.newStreams()
	}
	for _, l := range me.lanes {
		l.stamps, l.counts = make([]int64, me.most+1), make([]int, me.most)
	}
	x.me = me
}

// newStreams makes a stream for each lane.
func (x *throughput) newStreams() (all []*stream) {
	s, pt := x.s, x.pt
	limit := s.plan.QueueDepth()
	for i := range pt.Lanes {
		at := uint64(pt.Window()) * uint64(i)
		l := &stream{
			ctx: s.ctx, w: s.workers[i], op: operation(pt, false), slots: pt.Slots(),
			size: int(pt.Size), stride: int(pt.Stride()),
			dst:   conduit.At[byte](x.peer, x.a.remote+at),
			word:  conduit.At[uint64](x.peer, x.a.remote+at),
			local: s.local[at : at+uint64(pt.Window())],
		}
		// The lane itself keeps as many in flight as it was opened for; fewer
		// are counted here. An atomic's result must be fetched in any case.
		if pt.Atomic() || pt.Depth < limit {
			l.pending = make([]conduit.Pending, pt.Depth)
		}
		all = append(all, l)
	}
	return all
}

// lead warms up and measures in one stretch: operations in flight must not be drained in between.
func (x *throughput) lead() (*report.Series, error) {
	p := &pace{pt: x.pt}
	var done, elapsed int64
	for n := p.warm(0, 0); n > 0; n = p.warm(done, elapsed) {
		out, err := x.announce(p, n)
		if err != nil {
			return nil, err
		}
		took := longest(out)
		done += n
		elapsed += took
		p.learn(int(n), took)
	}
	out, err := x.announce(p, p.stream())
	if err != nil {
		return nil, err
	}
	if err := x.s.lead(command{}); err != nil {
		return nil, err
	}
	series := seriesOf(x.pt, out, x.me.parts)
	end, err := x.finish(series)
	for _, o := range end {
		series.Result.Errors += o.Wrong
	}
	return series, err
}

// announce has all ranks do a stretch.
func (x *throughput) announce(p *pace, n int64) ([]outcome, error) {
	if err := x.s.lead(command{N: n, SleepNS: p.expect(n)}); err != nil {
		return nil, err
	}
	return x.send(n)
}

func longest(out []outcome) int64 {
	var t int64 = 1
	for _, o := range out {
		t = max(t, o.ElapsedNS)
	}
	return t
}

// seriesOf adds up the outcomes of the ranks at the same time.
func seriesOf(pt plan.Point, out []outcome, parts int) *report.Series {
	scale := 1.0 // of operations, to the unit of the result
	if pt.Kind == plan.BW {
		scale = float64(pt.Size)
	}
	r := report.Result{Unit: pt.Unit(), P: make(map[string]float64), ElapsedNS: longest(out)}
	rates := make([]float64, parts)
	for _, o := range out {
		r.Count += o.Ops
		for i := range o.Rates {
			rates[i] += o.Rates[i] * scale
		}
	}
	r.Bytes = r.Count * pt.Size
	r.PerSecond = report.RoundRate(float64(r.Count) / float64(r.ElapsedNS) * 1e9)
	r.Mean = round(float64(r.Count) * scale / float64(r.ElapsedNS) * 1e9)
	series := &report.Series{}
	step := r.ElapsedNS / int64(parts)
	for i, v := range rates {
		series.Intervals = append(series.Intervals, report.Interval{StartNS: int64(i) * step, ElapsedNS: step,
			Count: r.Count / int64(parts), Rate: round(v)})
	}
	slices.Sort(rates)
	r.Min, r.Max = round(rates[0]), round(rates[parts-1])
	r.P["50"] = round(rates[stats.Rank(50, parts)])
	series.Result = r
	if parts > 1 {
		series.Notes = []string{fmt.Sprintf("%s: min, p50 and max are of %d parts of the time, mean is of all", pt.Kind,
			parts)}
	}
	return series
}

func round(v float64) float64 { return float64(int64(v + 0.5)) }

// send runs a stretch of n operations per lane and gathers all ranks' outcomes.
func (x *throughput) send(n int64) ([]outcome, error) {
	var mine outcome
	if x.me != nil {
		if err := x.me.run(n); err != nil {
			return nil, err
		}
		mine = x.me.outcome(n)
	}
	if x.pt.Op == plan.AM {
		if err := x.attend(); err != nil {
			return nil, err
		}
	}
	return gather(x.s, mine)
}

// run starts all lanes together and waits for them.
func (me *senders) run(n int64) error {
	me.ops += n
	me.parts = int(min(int64(me.most), n)) // none is empty
	for _, l := range me.lanes {
		l.counts = l.counts[:me.parts]
	}
	errs := make([]error, len(me.lanes))
	if len(me.lanes) == 1 {
		return me.lanes[0].run(int(n))
	}
	var lanes sync.WaitGroup
	begin := make(chan struct{})
	for i, l := range me.lanes {
		lanes.Go(func() {
			<-begin
			errs[i] = l.run(int(n))
		})
	}
	close(begin)
	lanes.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// outcome sums up the lanes of the last stretch.
func (me *senders) outcome(n int64) outcome {
	o := outcome{Ops: n * int64(len(me.lanes)), Rates: make([]float64, me.parts)}
	first, last := me.lanes[0].stamps[0], int64(0)
	for _, l := range me.lanes {
		first, last = min(first, l.stamps[0]), max(last, l.stamps[me.parts])
		for i, c := range l.counts {
			o.Rates[i] += float64(c) / float64(max(l.stamps[i+1]-l.stamps[i], 1)) * 1e9
		}
	}
	o.ElapsedNS = max(last-first, 1)
	return o
}

// finish checks the bytes on every rank that sent, and gathers the faults.
// Rank 0 has announced the end of the point.
func (x *throughput) finish(series *report.Series) ([]outcome, error) {
	var mine outcome
	if x.pt.Op == plan.AM {
		if err := x.s.auditMessages(x.pt, series); err != nil {
			return nil, err
		}
	} else if x.me != nil {
		var err error
		if mine.Wrong, err = x.check(); err != nil {
			return nil, err
		}
	}
	out, err := gather(x.s, mine)
	if err != nil {
		return nil, err
	}
	return out, x.s.job.Barrier(x.s.ctx)
}

// check counts operations that left wrong bytes.
func (x *throughput) check() (wrong int64, err error) {
	pt, me, want := x.pt, x.me, x.s.expected(x.a, x.peer)
	for i, l := range me.lanes {
		at := uint64(pt.Window()) * uint64(i)
		used := int64(min(me.ops, int64(l.slots))) * pt.Stride() // slots that an operation has touched
		switch {
		case pt.Atomic():
			sum, err := conduit.Get(l.w, l.word)
			if err != nil {
				return 0, err
			}
			if pt.Op == plan.AMO && sum != uint64(me.ops) {
				wrong++
			}
		case pt.Op == plan.Put:
			got := make([]byte, used)
			if err := conduit.GetSlice(l.w, got, l.dst); err != nil {
				return 0, err
			}
			wrong += differ(got, l.local[:used], pt.Stride(), pt.Size)
		case pt.Op == plan.Get:
			wrong += differ(l.local[:used], want[at:at+uint64(used)], pt.Stride(), pt.Size)
		}
	}
	return wrong, nil
}
