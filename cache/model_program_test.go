package cache_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// action is what an operation of a model's program does.
type action uint8

const (
	doGet action = iota
	doPut
	doPrefetch
	doPrefetchEach
	doAcquire
	doRelease
	doFence
	doFlush     // which completes what passed by, and acquires nothing
	doAdd       // an atomic
	doLock      // to an atomic word, until doUnlock
	doUnlock    // which comes in the same epoch
	doCallRead  // a call whose handler loads
	doCallWrite // or stores
	doDirectGet
	doDirectPut
	doLaterPut // implicit, complete with the next flush
	doHint
	doSleep
	actions
)

var actionNames = [actions]string{"get", "put", "prefetch", "prefetch each", "acquire", "release", "fence", "flush", "add", "lock", "unlock",
	"call that reads", "call that writes", "direct get", "direct put", "implicit put", "hint", "sleep"}

// operation is a step of one worker.
type operation struct {
	do      action
	at      location
	version byte
	offs    []uint64
	arg     int
}

func (o *operation) String() string {
	switch o.do {
	case doAcquire, doRelease, doFence, doFlush:
		return actionNames[o.do]
	case doPrefetchEach:
		return fmt.Sprintf("%s of %d bytes at %v of rank %d", actionNames[o.do], o.at.n, o.offs, o.at.rank)
	case doAdd, doLock, doUnlock, doSleep:
		return fmt.Sprintf("%s %d", actionNames[o.do], o.arg)
	case doHint:
		return fmt.Sprintf("%s %d for %v", actionNames[o.do], o.arg, o.at)
	}
	return fmt.Sprintf("%s, version %d: %v", actionNames[o.do], o.version, o.at)
}

// program is what the workers of a world do, one on each rank, in epochs with barriers between.
type program struct {
	seed   uint64
	setup  setup
	ranks  int
	pages  int
	racy   bool // several workers may write a byte in one epoch
	apart  bool // operations that pass the cache by take other lanes
	epochs [][][]operation
	writer [][][]int8 // by epoch, rank and byte: who writes it, if the program is not racy
}

func (p *program) bytes() int { return p.pages * p.setup.cfg.PageSize }

func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d ranks, %d pages each, racy %v, other lanes %v, %+v\n", p.seed, p.ranks, p.pages, p.racy, p.apart, p.setup.cfg)
	for e, workers := range p.epochs {
		for w, ops := range workers {
			for i := range ops {
				fmt.Fprintf(&b, "  epoch %d, worker %d: %v\n", e, w, &ops[i])
			}
		}
	}
	return b.String()
}

const (
	words     = 2   // for atomics, at the begin of each rank's page 0
	guards    = 1   // words that are locks, behind them
	guarded0  = 64  // the bytes that the locks guard, of each rank
	guardedN  = 32  //
	firstData = 128 // what programs write by the rules of their kind
	maxSize   = 3000
)

// newProgram makes the program of a seed.
func newProgram(seed uint64) *program {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &program{seed: seed, ranks: 2 + rng.IntN(3), racy: rng.IntN(2) == 0, apart: rng.IntN(3) == 0}
	p.setup = randomSetup(rng)
	p.pages = 3 + rng.IntN(8)
	for p.bytes() < 512 {
		p.pages *= 2
	}
	for range 1 + rng.IntN(4) {
		p.addEpoch(rng)
	}
	return p
}

// addEpoch makes one more epoch. Addresses are skewed: most are in a few pages, and near to what
// was used before.
func (p *program) addEpoch(rng *rand.Rand) {
	var writer [][]int8
	for range p.ranks {
		w := make([]int8, p.bytes())
		for i := 0; i < len(w); {
			n := 1 + rng.IntN(1<<rng.IntN(11))
			by := int8(rng.IntN(p.ranks))
			for ; n > 0 && i < len(w); n-- {
				w[i] = by
				i++
			}
		}
		writer = append(writer, w)
	}
	epoch := make([][]operation, p.ranks)
	for me := range epoch {
		g := &author{p: p, rng: rng, me: me, writer: writer, last: location{(me + 1) % p.ranks, firstData, 8}}
		for n := 5 + rng.IntN(60); len(g.ops) < n; {
			g.add()
		}
		epoch[me] = g.ops
	}
	p.epochs, p.writer = append(p.epochs, epoch), append(p.writer, writer)
}

// author writes the operations of a worker in an epoch.
type author struct {
	p      *program
	rng    *rand.Rand
	me     int
	writer [][]int8
	last   location
	ops    []operation
}

// place is a range of data.
func (g *author) place() location {
	rng, size := g.rng, g.p.bytes()
	l := location{rank: rng.IntN(g.p.ranks)}
	if l.rank == g.me && rng.IntN(4) > 0 {
		l.rank = (g.me + 1) % g.p.ranks
	}
	switch rng.IntN(8) {
	case 0:
		l.n = 1 + rng.IntN(maxSize)
	case 1, 2:
		l.n = 1 + rng.IntN(200)
	default:
		l.n = 1 + rng.IntN(16)
	}
	at := 0
	switch rng.IntN(4) {
	case 0:
		at = firstData + rng.IntN(size-firstData)
	case 1:
		l.rank = g.last.rank
		at = int(g.last.off) + rng.IntN(64) - 32
	case 2:
		l.rank = g.last.rank
		at = int(g.last.off) + g.last.n // a stream
	case 3: // about the end of a page
		at = g.p.setup.cfg.PageSize*(1+rng.IntN(2)*rng.IntN(g.p.pages)) + rng.IntN(16) - 8
	}
	at = min(max(at, firstData), size-1)
	l.off, l.n = uint64(at), min(l.n, size-at)
	g.last = l
	return l
}

// mine is a range that this worker may write, or none.
func (g *author) mine() location {
	l := g.place()
	if g.p.racy {
		return l
	}
	w := g.writer[l.rank]
	for i := range l.n { // from the first byte that is its own
		if w[l.off+uint64(i)] == int8(g.me) {
			l = l.part(i, l.n-i)
			break
		}
	}
	n := 0
	for n < l.n && w[l.off+uint64(n)] == int8(g.me) {
		n++
	}
	l.n = n
	return l
}

func (g *author) op(do action, l location) {
	o := operation{do: do, at: l, version: byte(1 + g.rng.IntN(250)), arg: g.rng.IntN(64)}
	switch do {
	case doPut, doDirectPut, doLaterPut, doCallWrite:
		if l.n == 0 {
			return
		}
	case doPrefetchEach:
		for range 1 + g.rng.IntN(12) {
			o.offs = append(o.offs, min(g.place().off, uint64(g.p.bytes()-1)))
		}
		o.at.n = 1
	}
	g.ops = append(g.ops, o)
}

func (g *author) add() {
	switch k := g.rng.IntN(100); {
	case k < 34:
		g.op(doGet, g.place())
	case k < 62:
		g.op(doPut, g.mine())
	case k < 65:
		g.op(doAcquire, location{})
	case k < 69:
		g.op(doRelease, location{})
	case k < 71:
		g.op(doFence, location{})
	case k < 76:
		g.op(doAdd, location{})
	case k < 78:
		g.op(doCallRead, g.place())
	case k < 80:
		g.op(doCallWrite, g.mine())
	case k < 84:
		g.op(doPrefetch, g.place())
	case k < 86:
		g.op(doPrefetchEach, g.place())
	case k < 89:
		g.op(doDirectGet, g.place())
	case k < 91:
		g.op(doDirectPut, g.mine())
	case k < 92:
		// Until the flush no operation but a prefetch may be of the same bytes.
		if l := g.mine(); l.n > 0 {
			g.op(doLaterPut, l)
			if g.rng.IntN(2) == 0 {
				g.op(doAdd, location{})
			}
			if g.rng.IntN(2) == 0 {
				g.op(doPrefetch, l)
				if g.rng.IntN(2) == 0 {
					g.op(doSleep, location{})
				}
			}
			g.op(doFlush, location{})
			g.op(doGet, l)
		}
	case k < 94:
		g.op(doHint, g.place())
	case k < 96:
		g.section()
	default:
		g.op(doSleep, location{})
	}
}

// section reads and writes what a lock guards, with other operations between.
func (g *author) section() {
	home := g.rng.IntN(g.p.ranks)
	inside := func() location {
		at := g.rng.IntN(guardedN)
		return location{home, guarded0 + uint64(at), 1 + g.rng.IntN(guardedN-at)}
	}
	g.op(doLock, location{rank: home})
	for range 1 + g.rng.IntN(4) {
		g.op(doGet, inside())
		g.op(doPut, inside())
		if g.rng.IntN(3) == 0 {
			g.op(doPut, g.mine())
		}
	}
	g.op(doUnlock, location{rank: home})
}
