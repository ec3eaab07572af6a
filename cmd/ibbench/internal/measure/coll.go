package measure

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/coll"
)

// collectives is one rank's part in a point of collective operations. The peer of ibbench coll
// (package peer, mpi/coll.c) measures and checks in the same way.
type collectives struct {
	s *session
	samples
	pt     plan.Point
	once   func() error // one operation
	sum    []float64    // of an all-reduce
	in     []byte       // what an all-to-all sends
	out    []byte       // what it receives; the buffer of a broadcast
	round  uint64       // of checked operations
	errors int64        // of these, operations that left something wrong on this rank
}

// Checked operations in front of the samples of a stretch, and behind them.
const checked = 2

// collPoint measures a point of collective operations. All ranks call it together.
func (s *session) collPoint(pt plan.Point) (*report.Series, error) {
	c := &collectives{s: s, pt: pt, samples: samples{batch: pt.Batch, fixed: true}} // as the peer has it
	c.prepare()
	var series *report.Series
	var err error
	if s.job.Rank() > 0 {
		err = s.followSamples(false, c.stretch)
	} else {
		series, err = s.leadSamples(pt, &c.samples, c.stretch)
	}
	if err != nil {
		return nil, err
	}
	errors, err := gather(s, c.errors)
	if err != nil || s.job.Rank() > 0 {
		return nil, err
	}
	for _, n := range errors {
		series.Result.Errors += n
	}
	return series, nil
}

// prepare makes the buffers, and the operation.
func (c *collectives) prepare() {
	ctx, team, size := c.s.ctx, c.s.job.Team(), int(c.pt.Size)
	switch c.pt.Op {
	case plan.Barrier:
		c.once = func() error { return team.Barrier(ctx) }
	case plan.AllReduce:
		c.sum = make([]float64, size/8)
		c.once = func() error { return coll.AllReduce(ctx, team, c.sum, coll.Sum) }
	case plan.AllToAll:
		c.in, c.out = make([]byte, size*team.Size()), make([]byte, size*team.Size())
		c.once = func() error { return coll.AllToAll(ctx, team, c.out, c.in) }
	case plan.Bcast:
		c.out = make([]byte, size)
		c.once = func() error { return team.Broadcast(ctx, 0, c.out) }
	}
}

// stretch takes samples: each is a loop of operations without a barrier between them.
func (c *collectives) stretch(cmd command) error {
	if err := c.check(); err != nil {
		return err
	}
	c.taken = c.taken[:0]
	for range cmd.N {
		if err := c.s.job.Barrier(c.s.ctx); err != nil {
			return err
		}
		begin := now()
		for range c.pt.Batch {
			if err := c.once(); err != nil {
				return err
			}
		}
		c.taken = append(c.taken, now()-begin)
	}
	if err := c.check(); err != nil {
		return err
	}
	all, err := gather(c.s, c.taken)
	if err != nil {
		return err
	}
	for i := range c.taken { // an operation has ended when it has on all ranks
		for _, t := range all {
			c.taken[i] = max(c.taken[i], t[i])
		}
	}
	return nil
}

// check does some operations, each with a content of its own, and compares what they leave.
func (c *collectives) check() error {
	for range checked {
		c.round++
		verify, err := c.fill()
		if err != nil {
			return err
		}
		if err := c.once(); err != nil {
			return err
		}
		if !verify() {
			c.errors++
		}
	}
	return nil
}

// fill gives the buffers the content of the round. verify compares them with what they must have
// when the operation has ended.
func (c *collectives) fill() (verify func() bool, err error) {
	me, n := c.s.job.Rank(), c.s.job.Size()
	switch c.pt.Op {
	case plan.Barrier:
		return c.enter()
	case plan.AllReduce:
		base := func(i int) float64 { return float64(uint64(i)%1021 + c.round) }
		for i := range c.sum {
			c.sum[i] = base(i) * float64(me+1)
		}
		return func() bool {
			for i, v := range c.sum {
				if v != base(i)*float64(n*(n+1)/2) {
					return false
				}
			}
			return true
		}, nil
	case plan.AllToAll:
		size := int(c.pt.Size)
		for to := range n {
			mark(c.in[to*size:][:size], c.round, me, to)
		}
		return func() bool {
			for from := range n {
				if !marked(c.out[from*size:][:size], c.round, from, me) {
					return false
				}
			}
			return true
		}, nil
	case plan.Bcast:
		mark(c.out, c.round, me, me)
		return func() bool { return marked(c.out, c.round, 0, 0) }, nil
	}
	return nil, fmt.Errorf("operation %q is not measured by coll", c.pt.Op)
}

// enter announces to every rank that this one enters the barrier of the round. Behind the barrier
// all have said so; some may have entered the next one.
func (c *collectives) enter() (verify func() bool, err error) {
	w := c.s.workers[0]
	for r := range c.s.job.Size() {
		if err := conduit.Put(w, conduit.At[uint64](r, uint64(8*c.s.job.Rank())), c.round); err != nil {
			return nil, err
		}
	}
	return func() bool {
		for r := range c.s.job.Size() {
			if atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.s.job.Segment()[8*r]))) < c.round {
				return false
			}
		}
		return true
	}, nil
}

// mark fills memory that goes from a rank to another with what no other round and pair has there.
func mark(b []byte, round uint64, from, to int) {
	for i := range b {
		b[i] = markAt(i, round, from, to)
	}
}

func marked(b []byte, round uint64, from, to int) bool {
	for i := range b {
		if b[i] != markAt(i, round, from, to) {
			return false
		}
	}
	return true
}

func markAt(i int, round uint64, from, to int) byte {
	return byte(uint64(i) + uint64(i>>8) + 7*round + 31*uint64(from) + 101*uint64(to))
}
