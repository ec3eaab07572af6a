package coll

import (
	"context"
	"fmt"
	"math/bits"
	"reflect"
	"sync"
	"unsafe"

	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/internal/plain"
)

// On is what an operation on data goes to: a [*Team], or [Through], with whose lanes it waits.
// Those of an operation that was started (StartReduce and its kind) are the operation's until it is
// done.
type On interface {
	on() (*Team, env.Lanes)
}

func (t *Team) on() (*Team, env.Lanes)   { return t, nil }
func (x Through) on() (*Team, env.Lanes) { return x.t, x.lanes }

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
		return nil, fmt.Errorf("coll: %v: %w", k, &TypeError{Type: reflect.TypeFor[T](), Path: plain.Pointer[T]()})
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
func (d *payload) out(to int) int  { return d.pair(&d.src, to) }
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

// bind has the operation's messages tell members apart that have other lengths or types.
func (o *op) bind() {
	d := o.data
	h := mix(mix(uint64(d.each), uint64(d.size)), uint64(d.kind))
	s := &o.t.teams.shape
	h = mix(mix(h, uint64(s.short)), uint64(s.long)) // on which the way depends
	if d.varies {
		h = bits.ReverseBytes64(h) + 1
	}
	o.sign ^= h & 0xffff
}

// do runs an operation on data in the caller's goroutine.
func do(ctx context.Context, on On, k Kind, root int, d *payload, f func(*op) error) error {
	t, lanes := on.on()
	err := t.run(ctx, &call{kind: k, root: root, lanes: lanes, data: d, do: f})
	d.release()
	return err
}

// start starts it.
func start(ctx context.Context, on On, k Kind, root int, d *payload, f func(*op) error) *Pending {
	t, lanes := on.on()
	return t.pending().start(t, ctx, &call{kind: k, root: root, lanes: lanes, data: d, do: f})
}

// refused is an operation that was started and cannot be.
func refused(on On, err error) *Pending {
	t, _ := on.on()
	p := t.pending()
	p.end(&call{}, err)
	return p
}

// TypeError says that a type cannot be transferred because it holds pointers, which mean nothing to
// another rank.
type TypeError struct {
	Type reflect.Type
	Path string // the first of them, e.g. "T.Name (string)"
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%v cannot be transferred: %s holds a pointer", e.Type, e.Path)
}

// PanicError says that a function of the program panicked in a reduction. It breaks the team.
type PanicError struct {
	Value any    // of the panic
	Stack []byte // of the goroutine then, as runtime/debug.Stack returns it
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("the function of a reduction panicked: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
