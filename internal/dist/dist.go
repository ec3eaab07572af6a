// Package dist says where the elements of a shared array lie: blocked-cyclic over the ranks of a
// job, cyclic, or all at one rank. It is the arithmetic of UPC's shared pointers (UPC Language
// Specification 1.3, § 6.4.2, § 6.5.1.1): divisions round to minus infinity, and remainders are
// not negative. Nothing here communicates or looks at memory.
//
// Element i of an array with blocks of B elements over T ranks lies at rank (i div B) mod T, in the
// row i div (B*T), at phase i mod B of its block. A rank's blocks lie one behind the other, without
// gaps.
package dist

import (
	"fmt"
	"math/bits"
)

// Layout is how an array lies on the ranks. Make one with [New].
type Layout struct {
	block uint64 // elements; 0: indefinite
	ranks uint64
	size  uint64 // bytes of an element

	blockShift, rankShift uint8 // where block and ranks are powers of two
	blockPow2, rankPow2   bool
}

// Ref is a pointer into an array: an element, or a place before or behind all of them, which
// arithmetic may reach. It is valid with the Layout that made it. Two point to the same element if
// Rank and Off are equal.
type Ref struct {
	Rank  uint32
	Phase uint64 // in the block, 0 for Indefinite
	Off   uint64 // in bytes from the begin of the array at the rank, modulo 2^64
}

// Indefinite is the block size of an array with all elements at rank 0.
const Indefinite = 0

// Most that New takes: products of them do not overflow.
const (
	MaxRanks = 1 << 31
	MaxBlock = 1 << 40 // elements
	MaxSize  = 1 << 32 // bytes of an element
)

// New is a layout of elements of size bytes over some ranks, in blocks of so many elements.
func New(block, ranks, size uint64) (Layout, error) {
	switch {
	case ranks == 0 || ranks > MaxRanks:
		return Layout{}, fmt.Errorf("dist: %d ranks, want 1 to %d", ranks, MaxRanks)
	case size == 0 || size > MaxSize:
		return Layout{}, fmt.Errorf("dist: elements of %d bytes, want 1 to %d", size, uint64(MaxSize))
	case block > MaxBlock:
		return Layout{}, fmt.Errorf("dist: blocks of %d elements, want %d at most", block, uint64(MaxBlock))
	}
	l := Layout{block: block, ranks: ranks, size: size}
	l.blockPow2, l.blockShift = block&(block-1) == 0 && block > 0, uint8(bits.TrailingZeros64(block|1<<63))
	l.rankPow2, l.rankShift = ranks&(ranks-1) == 0, uint8(bits.TrailingZeros64(ranks))
	return l, nil
}

// Block is the number of elements of a block, 0 for Indefinite.
func (l *Layout) Block() uint64 { return l.block }

// Ranks is over how many ranks the array lies.
func (l *Layout) Ranks() int { return int(l.ranks) }

// At is where element i lies.
func (l *Layout) At(i uint64) Ref {
	if l.block == Indefinite {
		return Ref{Off: i * l.size}
	}
	var nth, phase, row, rank uint64
	if l.blockPow2 {
		nth, phase = i>>l.blockShift, i&(l.block-1)
	} else {
		nth, phase = i/l.block, i%l.block
	}
	if l.rankPow2 {
		row, rank = nth>>l.rankShift, nth&(l.ranks-1)
	} else {
		row, rank = nth/l.ranks, nth%l.ranks
	}
	return Ref{Rank: uint32(rank), Phase: phase, Off: (row*l.block + phase) * l.size}
}

// Add moves a pointer by i elements.
func (l *Layout) Add(r Ref, i int64) Ref {
	if l.block == Indefinite {
		r.Off += uint64(i) * l.size
		return r
	}
	phase, blocks := divide(int64(r.Phase), i, int64(l.block))
	rank, rows := divide(int64(r.Rank), blocks, int64(l.ranks))
	r.Off += (uint64(phase) - r.Phase + uint64(rows)*l.block) * l.size
	r.Phase, r.Rank = uint64(phase), uint32(rank)
	return r
}

// divide is (a+b) mod d and (a+b) div d, where 0 <= a < d, without overflow.
func divide(a, b, d int64) (mod, div int64) {
	div, mod = b/d, b%d
	if mod < 0 {
		mod += d
		div--
	}
	if mod += a; mod >= d {
		mod -= d
		div++
	}
	return mod, div
}

// Sub is the number of elements from a to b, so that Add(a, n) is b. Not ok: there is none, as the
// two are not of one array of this layout, or it is too large.
func (l *Layout) Sub(b, a Ref) (n int64, ok bool) {
	apart := int64(b.Off - a.Off)
	if apart%int64(l.size) != 0 {
		return 0, false
	}
	apart /= int64(l.size)
	if l.block == Indefinite {
		return apart, a.Rank == b.Rank
	}
	// What lies between the begins of their blocks is a number of rows.
	apart -= int64(b.Phase) - int64(a.Phase)
	if apart%int64(l.block) != 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(magnitude(apart), l.ranks)
	if hi != 0 || lo > 1<<61 {
		return 0, false
	}
	n = int64(lo)
	if apart < 0 {
		n = -n
	}
	n += (int64(b.Rank)-int64(a.Rank))*int64(l.block) + int64(b.Phase) - int64(a.Phase)
	return n, n > -1<<62 && n < 1<<62
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// Local is how many of the first total elements lie at a rank (upc_affinitysize, in elements).
func (l *Layout) Local(total uint64, rank int) uint64 {
	t := uint64(rank)
	switch {
	case rank < 0 || t >= l.ranks:
		return 0
	case l.block == Indefinite || l.block >= total:
		if t == 0 {
			return total
		}
		return 0
	}
	full := total / l.block // blocks
	n := full / l.ranks * l.block
	switch last := full % l.ranks; {
	case t < last:
		n += l.block
	case t == last:
		n += total % l.block
	}
	return n
}

// LocalMost is the largest Local of any rank: what an array of total elements takes at each rank if
// all give it as much.
func (l *Layout) LocalMost(total uint64) uint64 { return l.Local(total, 0) }

// Bytes is what an array of total elements takes at each rank. Not ok: it is more than 2^63 - 1.
func (l *Layout) Bytes(total uint64) (n uint64, ok bool) {
	hi, n := bits.Mul64(l.LocalMost(total), l.size)
	return n, hi == 0 && n < 1<<63
}

// Run is a part of an array that lies in one piece at one rank.
type Run struct {
	Off   uint64 // in bytes, as a Ref's
	First uint64 // its first element
	Len   uint64 // in elements
}

// LocalRuns calls f for each piece of the first total elements that lies at a rank, in order, until
// f returns false.
func (l *Layout) LocalRuns(total uint64, rank int, f func(Run) bool) {
	left, first, off := l.Local(total, rank), uint64(rank)*l.block, uint64(0)
	for left > 0 {
		k := left
		if l.block != Indefinite && l.ranks > 1 {
			k = min(left, l.block)
		}
		if !f(Run{Off: off, First: first, Len: k}) {
			return
		}
		left -= k
		off += k * l.size
		first += l.block * l.ranks
	}
}
