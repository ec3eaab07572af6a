package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ibconduit/conduit"
)

// blockName is the function that blocks come by: the parts from and to, and the phase.
const blockName = "ft.block"

// transpose has the lines of all parts lie along another axis, in another array: blocks go between
// the parts of one i (ftGrid). before makes a part of this rank ready, after is called when one has
// all of its blocks. Nobody reads from is read any more when it returns.
func (f *FT) transpose(to int, toAxis axis, from int, fromAxis axis, before, after func(l int)) error {
	f.mu.Lock()
	f.phase++
	phase := f.phase
	f.mu.Unlock()
	for l := range f.p.Parts {
		before(l)
		f.reached(l, phase)
	}
	t := turning{f: f, to: to, from: from, toAxis: toAxis, fromAxis: fromAxis, phase: phase, after: after}
	exchange := t.fetch
	if f.p.Arm == FTNormal {
		exchange = t.send
	}
	if err := exchange(); err != nil {
		return err
	}
	return f.w.Barrier(f.ctx)
}

// turning is one transpose.
type turning struct {
	f                *FT
	to, from         int
	toAxis, fromAxis axis
	phase            int
	after            func(l int)
}

// arrays of a phase, and the axes of its lines: the first is forwards.
func arrays(phase int) (from int, fromAxis, toAxis axis) {
	if phase == 1 {
		return 2, yAxis, zAxis
	}
	return 1, zAxis, yAxis
}

// partners are the parts that exchange blocks with one, those behind it first.
func (f *FT) partners(v int) []int {
	all := make([]int, f.g.p2)
	for k := range all {
		all[k] = v%f.g.p1 + (v/f.g.p1+k)%f.g.p2*f.g.p1
	}
	return all
}

func (f *FT) rankOf(v int) int { return v / f.p.Parts }

// local copies the blocks that a part gets of others of this rank.
func (t *turning) local(l int) {
	f := t.f
	w := f.first() + l
	for _, v := range f.partners(w) {
		if f.rankOf(v) == f.me {
			f.g.across(f.mine(t.to, l), t.toAxis, w, f.mine(t.from, v-f.first()), t.fromAxis, v)
		}
	}
}

// fetch fetches blocks part after part. Sets are posted ahead: as many as have memory, and one.
func (t *turning) fetch() error {
	type posted struct {
		l, from int
		block   *conduit.Fetched[complex128]
		set     *conduit.PendingSet
		lease   *conduit.Lease
	}
	f := t.f
	var way []posted
	started := 0 // of way
	defer func() {
		for _, p := range way {
			if p.lease != nil {
				p.lease.Release()
			}
			p.set.Cancel()
		}
	}()
	most := int(min(f.job.Budget().Stats().Limit/f.Sizes().Block+1, maxTokens))
	missing := make([]int, f.p.Parts)
	take := func() (err error) {
		// What is granted is asked for, in the order of granting.
		for ; started < len(way) && way[started].set.Granted(); started++ {
			if way[started].lease, err = way[started].set.Test(); err != nil {
				return err
			}
		}
		p := &way[0]
		if p.lease == nil {
			if p.lease, err = p.set.Wait(f.ctx); err != nil {
				return err
			}
		}
		f.g.unpack(f.mine(t.to, p.l), p.block.Data(), t.fromAxis, p.from, t.toAxis, f.first()+p.l)
		p.lease.Release()
		if missing[p.l]--; missing[p.l] == 0 {
			t.after(p.l)
		}
		way = slices.Delete(way, 0, 1)
		started = max(started-1, 0)
		return nil
	}
	for l := range f.p.Parts {
		w := f.first() + l
		t.local(l)
		for _, v := range f.partners(w) {
			if f.rankOf(v) == f.me {
				continue
			}
			for len(way) >= most {
				if err := take(); err != nil {
					return err
				}
			}
			set := conduit.NewFetchSet(f.w)
			p := posted{l: l, from: v, block: conduit.FetchFrom[complex128](set, f.rankOf(v), blockName, f.g.block(), uint64(v), uint64(w), uint64(t.phase))}
			var err error
			if p.set, err = set.Post(); err != nil {
				return err
			}
			missing[l]++
			way = append(way, p)
		}
		if missing[l] == 0 { // it has no blocks of other ranks
			t.after(l)
		}
	}
	for len(way) > 0 {
		if err := take(); err != nil {
			return err
		}
	}
	return nil
}

// asks is the function that parts of other ranks fetch blocks from. A block of a phase that the
// part has not reached is answered when it has.
func (f *FT) asks(r *conduit.FetchRequest) {
	v, w, phase := int(r.Arg(0)), int(r.Arg(1)), int(r.Arg(2))
	if v < 0 || w < 0 || v/f.p.Parts != r.Job().Rank() || w >= f.g.p1*f.g.p2 || r.Size() != 16*f.g.block() || phase < 1 {
		_ = r.Fail(f.life, fmt.Errorf("no block of part %d for part %d, of %d bytes", v, w, r.Size()))
		return
	}
	f.mu.Lock()
	has := f.ready[v%f.p.Parts] >= phase
	if !has {
		f.later = append(f.later, r)
	}
	f.mu.Unlock()
	if has {
		f.answer(r)
	}
}

// reached says that a part has its blocks of a phase.
func (f *FT) reached(l, phase int) {
	f.mu.Lock()
	f.ready[l] = phase
	var due []*conduit.FetchRequest
	f.later = slices.DeleteFunc(f.later, func(r *conduit.FetchRequest) bool {
		now := int(r.Arg(0))%f.p.Parts == l && int(r.Arg(2)) <= phase
		if now {
			due = append(due, r)
		}
		return now
	})
	f.mu.Unlock()
	for _, r := range due {
		f.answer(r)
	}
}

// answer has a request answered.
func (f *FT) answer(r *conduit.FetchRequest) {
	select {
	case f.asked <- r:
	case <-f.life.Done():
	}
}

// serve answers requests with one buffer, until the run ends.
func (f *FT) serve(buf []complex128) {
	for {
		select {
		case <-f.ctx.Done():
			return
		case r := <-f.asked:
			v, w := int(r.Arg(0)), int(r.Arg(1))
			from, fromAxis, toAxis := arrays(int(r.Arg(2)))
			f.g.pack(buf, f.mine(from, v%f.p.Parts), fromAxis, v, toAxis, w)
			_ = r.Reply(f.ctx, bytesOfNumbers(buf)) // who asked learns of an error
		}
	}
}

// take is the function that gets what parts of other ranks send. It keeps the payload until all
// have come. Nobody is a phase ahead: a transpose ends with a barrier.
func (f *FT) take(p *conduit.Payload) {
	v, w := int(p.Arg(0)), int(p.Arg(1))
	f.mu.Lock()
	ok := len(p.Data()) == 16*f.g.block() && w/f.p.Parts == p.Job().Rank() && f.came[[2]int{v, w}] == nil
	if ok {
		f.came[[2]int{v, w}] = p
	}
	all := len(f.came) == f.Sizes().Blocks
	f.mu.Unlock()
	if !ok {
		p.Release()
	} else if all {
		f.all <- struct{}{}
	}
}

// send packs and sends all blocks, and unpacks when all have come.
func (t *turning) send() error {
	f := t.f
	type packed struct {
		v, w int
		buf  []complex128
	}
	bufs, free, err := f.buffers(f.Sizes().Blocks)
	if err != nil {
		return err
	}
	defer func() { free() }()
	var all []packed
	for l := range f.p.Parts {
		v := f.first() + l
		for _, w := range f.partners(v) {
			if f.rankOf(w) == f.me {
				continue
			}
			buf := bufs[len(all)]
			f.g.pack(buf, f.mine(t.from, l), t.fromAxis, v, t.toAxis, w)
			all = append(all, packed{v, w, buf})
		}
	}
	errs := make([]error, ftSenders)
	var sending sync.WaitGroup
	for s := range ftSenders {
		sending.Go(func() {
			for n := s; n < len(all) && errs[s] == nil; n += ftSenders {
				p := all[n]
				errs[s] = conduit.SendPayload(f.ctx, f.job, f.rankOf(p.w), blockName, bytesOfNumbers(p.buf), uint64(p.v), uint64(p.w), uint64(t.phase))
			}
		})
	}
	sending.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(all) > 0 {
		select {
		case <-f.all:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
	free()
	free = func() {}
	f.mu.Lock()
	came := f.came
	f.came = map[[2]int]*conduit.Payload{}
	f.mu.Unlock()
	for l := range f.p.Parts {
		w := f.first() + l
		t.local(l)
		for _, v := range f.partners(w) {
			if p := came[[2]int{v, w}]; p != nil {
				f.g.unpack(f.mine(t.to, l), numbers(p.Data()), t.fromAxis, v, t.toAxis, w)
				p.Release()
			}
		}
		t.after(l)
	}
	return nil
}
