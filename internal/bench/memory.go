package bench

import (
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit"
)

// align is where places begin: at a page of the largest size that a cache has, so that two places
// share none.
const align = 4096

// layout deals out the memory of a segment, alike on all ranks.
type layout struct {
	ranks int
	top   uint64
}

// place is n elements at the same offset of every rank.
type place[T any] struct {
	off uint64
	n   int
}

// reserve takes room for n elements at every rank.
func reserve[T any](l *layout, n int) place[T] {
	var v T
	l.top = (l.top + align - 1) &^ (align - 1)
	p := place[T]{off: l.top, n: n}
	l.top += uint64(n) * uint64(unsafe.Sizeof(v))
	return p
}

// on is the place of a rank.
func (p place[T]) on(rank int) conduit.Ptr[T] { return conduit.At[T](rank, p.off) }

// here is this rank's own, as memory.
func (p place[T]) here(r *rank) []T {
	if p.n == 0 {
		return nil
	}
	s, err := conduit.Slice(r.job, p.on(r.me), p.n)
	if err != nil {
		panic(err) // Start has compared the layout with the segment
	}
	return s
}

// loads and stores tell a fence checker that this rank uses n of its elements from the i-th on, as
// memory, until its next fence.
func (p place[T]) loads(r *rank, i, n int)  { conduit.NoteLoad(r.w, p.on(r.me).Add(i), n) }
func (p place[T]) stores(r *rank, i, n int) { conduit.NoteStore(r.w, p.on(r.me).Add(i), n) }

// get reads element i of a rank: this rank's own from memory, whatever network the job uses.
func (p place[T]) get(r *rank, owner, i int) (T, error) {
	if owner == r.me {
		return p.here(r)[i], nil
	}
	return conduit.Get(r.w, p.on(owner).Add(i))
}

// spread is a vector of total elements, each rank having per of them; the last ones may have less.
type spread[T any] struct {
	place[T]
	total, per int
	base       []conduit.Ptr[T]
	lo         int // the first of this rank's elements
	mem        []T // this rank's
}

func reserveSpread[T any](l *layout, total int) spread[T] {
	s := spread[T]{total: total, per: (total + l.ranks - 1) / l.ranks}
	s.place = reserve[T](l, s.per)
	for r := range l.ranks {
		s.base = append(s.base, s.on(r))
	}
	return s
}

// bind has get and put know this rank's elements, which are memory whatever network the job uses.
func (s *spread[T]) bind(r *rank) { s.lo, s.mem = r.me*s.per, s.here(r) }

// get reads element i.
func (s *spread[T]) get(w *conduit.Worker, i int) (T, error) {
	if k := i - s.lo; uint(k) < uint(len(s.mem)) {
		return s.mem[k], nil
	}
	return conduit.Get(w, s.base[i/s.per].Add(i%s.per))
}

// put writes element i.
func (s *spread[T]) put(w *conduit.Worker, i int, v T) error {
	if k := i - s.lo; uint(k) < uint(len(s.mem)) {
		s.mem[k] = v
		return nil
	}
	return conduit.Put(w, s.base[i/s.per].Add(i%s.per), v)
}

// mine are the elements of a rank: from lo to before hi.
func (s *spread[T]) mine(rank int) (lo, hi int) {
	return min(rank*s.per, s.total), min((rank+1)*s.per, s.total)
}

// mix is splitmix64's output function (Steele, Lea and Flood 2014): a bijection of 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// random is splitmix64 as a sequence.
type random uint64

func (s *random) next() uint64 {
	v := mix(uint64(*s))
	*s += 0x9e3779b97f4a7c15
	return v
}

// below is a number from 0 to before n, by multiplication (Lemire 2019); the bias is n/2^64.
func (s *random) below(n int) int { return mulHigh(s.next(), n) }

// unit is a number from 0 to before 1.
func (s *random) unit() float64 { return float64(s.next()>>11) / (1 << 53) }

// fold is one step of a checksum that depends on the order.
func fold(sum, v uint64) uint64 { return sum*0x100000001b3 + v }

// same compares a result with the right one.
func same[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return nil
}
