//go:build linux && cgo

package ibv

import (
	"math/rand/v2"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// stageAtomic stages an atomic that the device has. There is room for it. Without a block the old
// value is not wanted.
func (e *queueSet) stageAtomic(q *sendQueue, o, block int32, off uint64, a *fabric.Atomic) *verbs.SendWR {
	i, slot, w := e.tx.one(q)
	p := part{op: o, block: block, hold: none, kind: kindAtomic + kind(a.Op)}
	if o == none {
		p.pieces, p.bare, p.off, p.n = 1, true, off, 8
	}
	e.parts[i] = p
	if block == none {
		block = e.slab.waste
	}
	e.fillAtomic(q, slot, w, block, off, a)
	return w
}

func (e *queueSet) fillAtomic(q *sendQueue, slot int, w *verbs.SendWR, block int32, off uint64, a *fabric.Atomic) {
	e.tx.chain.SetLocal(slot, e.slab.base+uint64(block), 8, e.slab.lkey)
	if a.Op == fabric.FetchAdd {
		w.SetFetchAdd(q.base+off, q.rkey, a.Operand)
	} else {
		w.SetCompareSwap(q.base+off, q.rkey, a.Compare, a.Operand)
	}
}

// attempts are the state of an operation that is a loop of compare-swaps. It needs no read before
// the first: a compare-swap that fails has read the word.
type attempts struct {
	guess  uint64 // what the attempt in flight expects
	misses int32  // attempts that failed
	due    time.Duration
}

// loops are a lane's operations that take several requests, one after another.
type loops struct {
	set     *queueSet
	n       int     // in flight
	again   []int32 // those whose last attempt failed
	guesses guesses
}

// attempt stages a loop's next compare-swap. There is room for it, and a block.
func (t *loops) attempt(q *sendQueue, o int32) *verbs.SendWR {
	e := t.set
	p := &e.ops.all[o]
	at := p.off &^ 7
	g := t.guesses.of(p.rank, at)
	if !g.is(p.rank, at) {
		*g = guess{known: true, rank: p.rank, off: at, word: p.old}
	}
	p.guess = g.word
	g.word = p.atomic.Outer(p.off, p.guess)
	return e.stageAtomic(q, o, e.slab.small.take(), at,
		&fabric.Atomic{Op: fabric.CompareSwap, Operand: g.word, Compare: p.guess})
}

// missed looks at what a loop's attempt found, and reports whether it needs another.
func (t *guesses) missed(p *operation, found uint64) bool {
	if found == p.guess {
		return false
	}
	if g := t.of(p.rank, p.off&^7); g.is(p.rank, p.off&^7) {
		g.word = found
	}
	if p.atomic.Outer(p.off, found) == found {
		return false // what it found is what it would leave
	}
	p.old = found
	p.misses++
	if p.due = 0; p.misses > 1 { // the first guess was perhaps none
		p.due = now() + backoff(p.misses-2)
	}
	return true
}

// backoff is a random pause after a loop was overtaken, and n times before that.
func backoff(n int32) time.Duration {
	return rand.N(min(backoffMin<<min(n, 20), backoffMax))
}

// now is a time that only grows.
func now() time.Duration { return time.Since(origin) }

var origin = time.Now()

// retry stages the attempts that are due and have room, and reports whether others are left.
func (t *loops) retry() bool {
	e := t.set
	left, at := t.again[:0], now()
	for _, o := range t.again {
		p := &e.ops.all[o]
		q := e.queues[p.rank]
		if q.err != nil || p.due > at || e.slab.small.empty() || e.tx.full() || !e.tx.room(q, 1) {
			left = append(left, o)
			continue
		}
		e.tx.sign(q, t.attempt(q, o), true)
	}
	t.again = left
	return len(left) > 0
}

// guesses are what a lane believes to be in the words that its loops work on: what it last saw
// there, or what its attempts in flight will leave, which the device carries out in order. So many
// loops on one word succeed together, and a word that no other rank changes takes one round trip. A
// wrong guess costs another; words that share an entry do, too.
type guesses [1 << guessBits]guess

const guessBits = 6

type guess struct {
	known bool
	rank  int32
	off   uint64 // of a word of 64 bits
	word  uint64
}

func (t *guesses) of(rank int32, off uint64) *guess {
	// Fibonacci hashing, Knuth, The Art of Computer Programming, vol. 3 §6.4.
	return &t[(off>>3+uint64(rank)<<32)*0x9e3779b97f4a7c15>>(64-guessBits)]
}

func (g *guess) is(rank int32, off uint64) bool { return g.known && g.rank == rank && g.off == off }
