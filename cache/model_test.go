package cache_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

var operations = flag.Int("operations", 0, "of the model's random programs (default 150000; a tenth where parttest.Of says so)")

// TestModel runs random programs in simulated worlds, each of which is one seed, and holds what the
// workers read against four oracles:
//
//	A  in programs without races: the one value that each byte has (exact)
//	B  in all: a value that may be read, by vector clocks (oracle)
//	C  the cache's structure and counters, after each operation (Cache.Verify)
//	D  what is left in memory, which programs without races leave without a cache too
//
// `go test ./cache -run TestModel -operations 100000000 -timeout 0` runs more. A program that fails
// is made smaller, and printed.
func TestModel(t *testing.T) {
	want := cmp.Or(*operations, parttest.Of(150_000))
	seed, done, exact := *seedAt, 0, 0
	for ; done < want; seed++ {
		p := newProgram(seed)
		n, err := p.run()
		if err != nil {
			small, err := p.shrink(err)
			t.Fatalf("%v\n%v", small, err)
		}
		if done += n; !p.racy {
			exact++
		}
	}
	t.Logf("seeds %d to %d: %d operations of %d programs, %d of them without races", *seedAt, seed-1, done, seed-*seedAt, exact)
}

// modelRun is a program that runs.
type modelRun struct {
	*program
	*trial
	oracle *oracle
	exact  [][]byte  // by rank and byte: the version, in programs without races
	stamp  [][]int32 // and in which epoch it was written
	done   int       // operations
	images [][]byte  // what is left
}

// run runs the program with its cache, and some programs without one, which must leave the same.
func (p *program) run() (int, error) {
	m, err := p.runWith(p.setup)
	if err != nil || p.racy || p.seed%16 != 0 {
		return m.done, err
	}
	off, err := p.runWith(setup{name: "off", off: true, cfg: p.setup.cfg})
	if err != nil {
		return m.done, fmt.Errorf("without a cache: %w", err)
	}
	for r := range m.images {
		for i, v := range m.images[r] {
			if v != off.images[r][i] && i >= firstData {
				return m.done, fmt.Errorf("oracle D: byte %d of rank %d is left as %d, without a cache as %d", i, r, v, off.images[r][i])
			}
		}
	}
	return m.done, nil
}

func (p *program) runWith(s setup) (m *modelRun, err error) {
	rng := rand.New(rand.NewPCG(p.seed, 8))
	x := &trial{litmus: &litmus{}, setup: s, seed: p.seed, rng: rng, apart: p.apart, bytes: uint64(p.bytes()),
		page: uint64(s.cfg.PageSize), line: uint64(s.cfg.LineSize)}
	m = &modelRun{program: p, trial: x, oracle: newOracle(p), images: make([][]byte, p.ranks)}
	for r := range p.ranks {
		m.exact, m.stamp = append(m.exact, make([]byte, p.bytes())), append(m.stamp, make([]int32, p.bytes()))
		for i := range m.stamp[r] {
			m.stamp[r][i] = -1
		}
		x.ranks = append(x.ranks, &worker{trial: x, f: m.worker})
	}
	cfg := sim.Config{Ranks: p.ranks, Seed: p.seed, MaxTime: 10 * time.Second, MaxEvents: 20e6}
	cfg.Jitter = time.Duration(rng.IntN(1<<(2+rng.IntN(12)))) - 1
	cfg.Depth = []int{64, 8, 2}[rng.IntN(3)]
	w, err := envtest.NewWorld(cfg, env.Spec{Name: region, Size: x.bytes})
	if err != nil {
		return m, err
	}
	for range rng.IntN(3) {
		if a, b := rng.IntN(p.ranks), rng.IntN(p.ranks); a != b {
			w.Delay(a, b, time.Duration(rng.IntN(30_000)))
		}
	}
	if err := w.Run(x.main); err != nil {
		return m, err
	}
	for r := range p.ranks {
		mem := w.Env(r).Region(region).Bytes
		m.images[r] = mem
		if err := m.oracle.left(r, mem); err != nil {
			return m, err
		}
		for off := firstData; off < p.bytes() && !p.racy; off++ {
			if v := decode(r, uint64(off), mem[off]); v != m.exact[r][off] {
				return m, fmt.Errorf("oracle D: byte %d of rank %d is left with version %d, want %d", off, r, v, m.exact[r][off])
			}
		}
		for k := range words {
			if v, n := *word(mem[8*k:]), len(m.oracle.adds[r*words+k]); v != uint64(n) {
				return m, fmt.Errorf("oracle D: word %d of rank %d is left as %d after %d additions", k, r, v, n)
			}
		}
	}
	return m, nil
}

// worker is what a rank does.
func (m *modelRun) worker(w *worker) {
	epoch, i, where := 0, 0, ""
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				f.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			panic(failure{fmt.Errorf("epoch %d, worker %d, operation %d (%s): %w", epoch, w.me, i, where, f.err)})
		}
	}()
	for epoch = range m.epochs {
		ops := m.epochs[epoch][w.me]
		for i = range ops {
			where = ops[i].String()
			m.step(w, int32(epoch), &ops[i])
			m.done++
		}
		where = "barrier"
		w.release()
		m.oracle.released(w.me)
		w.meet()
		if w.me == 0 {
			m.oracle.barrier()
		}
		w.meet()
		w.acquire()
		m.oracle.acquired(w.me)
	}
}

func (m *modelRun) step(w *worker, epoch int32, o *operation) {
	me, l := w.me, o.at
	switch o.do {
	case doGet:
		m.check(w, epoch, l, w.get(l))
	case doPut:
		m.write(me, epoch, o)
		w.put(l, o.version)
	case doPrefetch:
		w.prefetch(l)
	case doPrefetchEach:
		if l.rank != me {
			w.verified("prefetch each", w.c.PrefetchEach(w.ctx, l.rank, o.offs, l.n))
		}
	case doAcquire:
		w.acquire()
		m.oracle.acquired(me)
	case doRelease:
		w.release()
		m.oracle.released(me)
	case doFence:
		w.flush()
		m.oracle.released(me)
		w.acquire()
		m.oracle.acquired(me)
	case doFlush:
		w.flush()
		m.oracle.later[me] = 0
		m.oracle.released(me)
	case doAdd:
		m.add(w, o.arg)
	case doLock:
		m.lock(w, l.rank)
	case doUnlock:
		m.oracle.released(me)
		m.oracle.locks[l.rank] = m.oracle.told[me]
		w.atomic(lockOf(l.rank), fabric.Atomic{Op: fabric.Swap})
		m.oracle.acquired(me)
	case doCallRead:
		var got []byte
		w.call(l.rank, func(mem []byte) {
			m.oracle.released(me)
			got = versions(l, mem[l.off:][:l.n])
			m.check(w, epoch, l, got)
		})
		m.oracle.acquired(me)
	case doCallWrite:
		w.call(l.rank, func(mem []byte) {
			m.write(me, epoch, o)
			copy(mem[l.off:], data(l, o.version))
		})
		m.oracle.released(me)
		m.oracle.acquired(me)
	case doDirectGet:
		m.check(w, epoch, l, w.getDirect(l))
	case doDirectPut:
		m.write(me, epoch, o)
		w.putDirect(l, o.version)
	case doLaterPut:
		m.oracle.later[me] = m.oracle.known[me][me] + 1
		m.write(me, epoch, o)
		w.putLater(l, o.version)
	case doHint:
		w.hint(l, harmlessHints[o.arg%len(harmlessHints)])
	case doSleep:
		w.sleep(time.Duration(o.arg * 1000))
	}
}

// write notes a write that begins.
func (m *modelRun) write(me int, epoch int32, o *operation) {
	m.oracle.write(me, o.at, o.version)
	for i := range o.at.n {
		at := o.at.off + uint64(i)
		m.exact[o.at.rank][at], m.stamp[o.at.rank][at] = o.version, epoch
	}
}

// check holds what was read against the oracles.
func (m *modelRun) check(w *worker, epoch int32, l location, got []byte) {
	w.must("read", m.oracle.read(w.me, l, got))
	if m.racy {
		return
	}
	writer := m.writer[epoch][l.rank]
	for i, v := range got {
		at := l.off + uint64(i)
		if at < firstData || m.stamp[l.rank][at] == epoch && writer[at] != int8(w.me) {
			continue // another worker writes it now
		}
		if v != m.exact[l.rank][at] {
			w.fail("oracle A: byte %d of %v has version %d, want %d", i, l, v, m.exact[l.rank][at])
		}
	}
}

func (m *modelRun) add(w *worker, arg int) {
	rank, k := arg%m.program.ranks, arg/8%words
	l := location{rank, 8 * uint64(k), 8}
	if rank == w.me {
		return // a rank's own atomics go through a device too, but its loads do not
	}
	w.deliver()
	m.oracle.delivered(w.me)
	m.oracle.adding(w.me, rank*words+k)
	old := w.add(l, 1)
	w.must("add", m.oracle.sum(w.me, rank*words+k, old))
	m.oracle.acquired(w.me)
	if arg&1 == 0 {
		if now, n := w.value(l), uint64(len(m.oracle.adds[rank*words+k])); now <= old || now > n {
			w.fail("a word that was %d before an addition of 1 is %d, after %d additions", old, now, n)
		}
	}
}

func lockOf(rank int) location { return location{rank, 8 * words, 8} }

func (m *modelRun) lock(w *worker, rank int) {
	w.release()
	m.oracle.released(w.me)
	for w.atomic(lockOf(rank), fabric.Atomic{Op: fabric.CompareSwap, Operand: 1}) != 0 {
		m.oracle.acquired(w.me)
		w.sleep(time.Duration(1000 + w.rng.IntN(20_000)))
	}
	m.oracle.hear(w.me, &m.oracle.locks[rank])
	m.oracle.acquired(w.me)
}

// shrink leaves out what does not matter for the failure.
func (p *program) shrink(err error) (*program, error) {
	best, deadline := p, time.Now().Add(10*time.Second)
	for part := 8; part <= 256; part *= 2 {
		for e := range best.epochs {
			for w := range best.epochs[e] {
				for at := 0; at < len(best.epochs[e][w]); {
					if time.Now().After(deadline) {
						return best, err
					}
					n := max(1, len(p.epochs[e][w])/part)
					q := best.without(e, w, at, n)
					if _, failed := q.run(); failed != nil && !errors.As(failed, new(*sim.DeadlockError)) {
						best, err = q, failed
					} else {
						at += n
					}
				}
			}
		}
	}
	return best, err
}

// without is the program without some operations. A lock goes with its unlock: both stay.
func (p *program) without(epoch, worker, at, n int) *program {
	q := *p
	q.epochs = append([][][]operation(nil), p.epochs...)
	q.epochs[epoch] = append([][]operation(nil), p.epochs[epoch]...)
	ops := p.epochs[epoch][worker]
	var left []operation
	for i, o := range ops {
		if i < at || i >= at+n || o.do == doLock || o.do == doUnlock {
			left = append(left, o)
		}
	}
	q.epochs[epoch][worker] = left
	return &q
}
