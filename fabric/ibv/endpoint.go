//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/verbs"
)

// endpoint is what a lane stands on: a completion queue, a queue pair per peer,
// and the tables of what is in flight. It outlives the lanes that use it, one
// after another.
type endpoint struct {
	net     *Network
	index   int
	channel *verbs.CompChannel
	cq      *verbs.CQ
	mirror  *verbs.QP // the far end of the connection to this rank itself
	links   []link    // by rank

	// From prepare on.
	bell         *verbs.Doorbell
	chain        *verbs.SendChain
	slab         slab
	slabMR       *verbs.MR
	counters     *fabric.Counters
	freeCounters func()

	wrs    []wr    // index is the work request's WRID
	freeWR int32   // list through wr.next
	ops    []op    // index+1 is the low half of a handle
	freeOp int32   // list through op.next
	active []int32 // links with work requests out

	holds    []hold // registrations that work requests use
	freeHold int32  // list through hold.next

	outstanding int32 // work requests collected or posted and not complete
	limit       int32 // of outstanding: the completion queue's capacity
	downSeen    uint32
	rings       uint32    // calls into C
	yielded     time.Time // when the scheduler last saw the goroutine
	batching    bool

	// Slots of the chain that wait for the doorbell, and the run of them that
	// goes to one link.
	pending  []int32 // work requests, in the order of their slots
	runLink  int32
	runFirst int
	runs     int

	ended       uint64  // how many work requests ended; a wait for room looks at it
	owing       []int32 // links that owe a completion for silent requests, see owe
	again       []int32 // swaps to try again
	dead        []int32 // links that broke and of which nobody was told
	lost        []int32 // links whose queue pair refused work
	deaf        error   // why the completion queue cannot be read any more
	implicitErr error   // first error of an implicit operation since Flush
	lastOld     uint64  // the old value of the operation collected last
}

// link is a lane's connection to one peer.
type link struct {
	qp          *verbs.QP // nil: not served by this network
	base, size  uint64    // the peer's segment
	rkey        uint32
	rank        int32
	outstanding int32 // work requests collected or posted and not complete
	silent      int32 // of them, those at the end that asked for no completion
	head, tail  int32 // them, oldest first, through wr.next
	place       int32 // in endpoint.active
	owes        bool  // in endpoint.owing
	err         error // once broken: *fabric.PeerDownError, or the endpoint's deaf
}

// wr is what is known of a work request in flight.
type wr struct {
	next  int32
	link  int32
	op    int32 // none: implicit
	block int32 // of the slab, or none
	last  bool  // the last piece of its operation
	kind  kind
	hold  int32  // index+1 of the registration that it uses; 0: none. Only where dst is set
	dst   []byte // where a bounced get's bytes go, or the memory under hold
}

type kind uint8

const (
	kindPut kind = iota
	kindGet
	kindAtomic
	kindFlush
)

func (k kind) String() string { return [...]string{"put", "get", "atomic", "flush"}[k] }

// op is an operation that somebody holds a handle of.
type op struct {
	generation uint32
	next       int32
	parts      int32 // work requests still out
	live       bool  // somebody holds the handle, or requests are out
	abandoned  bool  // nobody will collect it
	swap       bool  // a compare-swap to be tried until it finds what it expects
	rank       int32
	offset     uint64
	operand    uint64
	compare    uint64
	old        uint64
	err        error
}

// prepare makes the endpoint ready for a lane. What is costly is made once, and
// only for endpoints that are used.
func (e *endpoint) prepare() (err error) {
	if e.bell == nil {
		if err := e.build(); err != nil {
			return errors.Join(fmt.Errorf("ibv: lane %d: %w", e.index, err), e.unbuild())
		}
	}
	*e.counters = fabric.Counters{}
	e.implicitErr = nil
	return nil
}

func (e *endpoint) build() (err error) {
	n := e.net
	if e.bell, err = e.cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	if e.chain, err = verbs.NewSendChain(verbs.ChainConfig{Slots: chainSlots, Inline: max(n.inline, 8)}); err != nil {
		return err
	}
	if e.counters, e.freeCounters, err = offheap.Alloc[fabric.Counters](); err != nil {
		return err
	}
	smalls := min(max(n.cfg.Depth, 64), 1024)
	mem, err := unix.Mmap(-1, 0, slabBytes(smalls), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mapping a slab of %d bytes: %w", slabBytes(smalls), err)
	}
	e.slab.mem = mem
	e.slabMR, err = n.pd.Register(unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem)), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	e.slab = newSlab(mem, e.slabMR.LKey(), smalls)
	e.wrs = make([]wr, e.limit)
	for i := range e.wrs {
		e.wrs[i].next = int32(i) + 1
	}
	e.wrs[len(e.wrs)-1].next = none
	e.freeWR, e.freeOp, e.freeHold, e.runLink = 0, none, none, none
	e.pending = make([]int32, 0, chainSlots)
	return nil
}

// drain waits until nothing of an earlier lane is in flight.
func (e *endpoint) drain(ctx context.Context) error {
	for p := (pacer{}); e.outstanding > 0; {
		if err := e.turn(ctx, &p); err != nil && e.outstanding > 0 {
			return err
		}
	}
	return nil
}

func (e *endpoint) unbuild() error {
	var errs []error
	if e.bell != nil {
		errs = append(errs, e.bell.Close())
	}
	if e.chain != nil {
		errs = append(errs, e.chain.Close())
	}
	if e.slabMR != nil {
		errs = append(errs, e.slabMR.Close())
	}
	if e.slab.mem != nil {
		errs = append(errs, unix.Munmap(e.slab.mem))
	}
	if e.freeCounters != nil {
		e.freeCounters()
	}
	e.bell, e.chain, e.slabMR, e.slab, e.counters, e.freeCounters = nil, nil, nil, slab{}, nil, nil
	return errors.Join(errs...)
}

// release closes the queue pairs first: after that the device reaches nothing.
func (e *endpoint) release() error {
	var errs []error
	for i := range e.links {
		if qp := e.links[i].qp; qp != nil {
			errs = append(errs, qp.Close())
		}
	}
	if e.mirror != nil {
		errs = append(errs, e.mirror.Close())
	}
	e.putBackAll()
	errs = append(errs, e.unbuild())
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.channel != nil {
		errs = append(errs, e.channel.Close())
	}
	return errors.Join(errs...)
}

// newOp returns an operation for a handle.
func (e *endpoint) newOp(rank int, parts int32) int32 {
	i := e.freeOp
	if i == none {
		e.ops = append(e.ops, op{generation: 1})
		i = int32(len(e.ops) - 1)
	} else {
		e.freeOp = e.ops[i].next
	}
	o := &e.ops[i]
	// Atomic sets what else it needs; freeOpAt has cleared the error.
	o.next, o.live, o.abandoned, o.swap, o.parts, o.rank, o.old = none, true, false, false, parts, int32(rank), 0
	return i
}

// freeOpAt gives an operation back; its handle is spent.
func (e *endpoint) freeOpAt(i int32) {
	o := &e.ops[i]
	o.generation++
	o.live, o.err = false, nil
	o.next = e.freeOp
	e.freeOp = i
}

// abandonOp gives an operation back, at once or when its last piece ends: nobody will
// collect it. Its handle is spent.
func (e *endpoint) abandonOp(i int32) {
	if e.ops[i].parts == 0 {
		e.freeOpAt(i)
	} else {
		e.ops[i].abandoned = true
	}
}

func (e *endpoint) handle(i int32) fabric.Handle {
	return fabric.Handle(e.ops[i].generation)<<32 | fabric.Handle(i+1)
}

// find returns the operation of a handle, or none when it is spent or foreign.
func (e *endpoint) find(h fabric.Handle) int32 {
	i := int64(uint32(h)) - 1
	if i < 0 || i >= int64(len(e.ops)) || !e.ops[i].live || e.ops[i].abandoned || e.ops[i].generation != uint32(h>>32) {
		return none
	}
	return int32(i)
}
