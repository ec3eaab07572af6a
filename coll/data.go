package coll

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"github.com/ibconduit/conduit/internal/plain"
)

// payload is what an operation on data works with, in bytes.
type payload struct {
	dst, src blocks
	each     int // bytes of a block, where all have the same
	size     int // bytes of an element
	kind     reflect.Kind
	fold     folder
	varies   bool  // a block's length is the business of those who send and receive it
	dstAt    []int // where blocks begin and end, of operations in which lengths vary; kept
	srcAt    []int
}

// payloads are not made for each operation.
var payloads = sync.Pool{New: func() any { return new(payload) }}

// folder does a reduction's function on bytes. A function is one without an allocation.
type folder interface{ fold(dst, src []byte) }

type foldOf[T any] func(dst, src []T)

func (f foldOf[T]) fold(dst, src []byte) { f(elements[T](dst), elements[T](src)) }

func elements[T any](b []byte) []T {
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))/max(1, unsafe.Sizeof(v)))
}

func bytesOf[T any](s []T) []byte {
	var v T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(v))
}

// payloadOf is a payload for elements of a type, or why they cannot be sent.
func payloadOf[T any](k Kind) (*payload, error) {
	if !plain.Is[T]() {
		return nil, fmt.Errorf("coll: %v: %w", k, plain.Err[T]())
	}
	var v T
	d := payloads.Get().(*payload)
	d.size, d.kind = int(unsafe.Sizeof(v)), reflect.TypeFor[T]().Kind()
	return d, nil
}

// release gives a payload back and forgets the caller's memory.
func (d *payload) release() {
	*d = payload{dstAt: d.dstAt[:0], srcAt: d.srcAt[:0]}
	payloads.Put(d)
}

// blocks are memory in blocks by member: equally long ones, or from at[i] to at[i+1].
type blocks struct {
	mem  []byte
	each int
	at   []int
}

func (b *blocks) of(i int) []byte {
	if b.at != nil {
		return b.mem[b.at[i]:b.at[i+1]]
	}
	return b.mem[i*b.each : (i+1)*b.each]
}

// in and out are how many bytes a member sends to this one, and this one to it, where they vary.
func (d *payload) in(from int) int { return d.pair(&d.dst, from) }

func (d *payload) out(to int) int { return d.pair(&d.src, to) }

func (d *payload) pair(b *blocks, with int) int {
	switch {
	case !d.varies:
		return 0
	case b.at == nil: // of one who is not root
		return len(b.mem)
	}
	return b.at[with+1] - b.at[with]
}

// mix is a step of a hash (the finalizer of splitmix64; Steele, Lea, Flood 2014).
func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0x9E3779B97F4A7C15
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return h ^ h>>31
}

// share is the beginning and the end of a member's share; it has whole elements.
func (d *payload) share(n, i, m int) (from, to int) {
	count := n / d.size
	return count * i / m * d.size, count * (i + 1) / m * d.size
}
