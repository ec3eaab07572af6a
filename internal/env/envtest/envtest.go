// Package envtest has jobs for tests of packages over env: simulated ones in
// virtual time ([World]), and ranks that are goroutines, which share memory ([SHM]) or reach each
// other by a network of the test's choice ([On]).
package envtest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// rank is the common part of the Envs here.
type rank struct {
	id, size int
	regions  map[string]env.Region
	net      fabric.Network
	ctx      context.Context
	closing  context.CancelCauseFunc
	messages *am.Endpoint // nil: none

	mu      sync.Mutex
	down    map[int]error
	order   []int // the dead, in the order in which they were found
	watches map[int]func(rank int, cause error)
	watched int
}

func newRank(id, size int, net fabric.Network) *rank {
	r := &rank{id: id, size: size, net: net, down: map[int]error{}, watches: map[int]func(int, error){}}
	r.ctx, r.closing = context.WithCancelCause(context.Background())
	return r
}

// layOut returns where regions lie, and the bytes of a segment.
func layOut(specs []env.Spec) (offs []uint64, size uint64, err error) {
	for _, s := range specs {
		align := max(s.Align, 64)
		if align&(align-1) != 0 {
			return nil, 0, fmt.Errorf("envtest: region %q: alignment %d is no power of two", s.Name, align)
		}
		size = (size + align - 1) &^ (align - 1)
		offs = append(offs, size)
		size += s.Size
	}
	return offs, (max(size, 8) + 7) &^ 7, nil
}

func (r *rank) place(specs []env.Spec, offs []uint64, segment []byte) {
	r.regions = map[string]env.Region{}
	for i, s := range specs {
		r.regions[s.Name] = env.Region{Bytes: segment[offs[i] : offs[i]+s.Size : offs[i]+s.Size], Off: offs[i]}
	}
}

func (r *rank) Rank() int { return r.id }
func (r *rank) Size() int { return r.size }

func (r *rank) Region(name string) env.Region {
	g, ok := r.regions[name]
	if !ok {
		panic(fmt.Sprintf("envtest: no Spec has a region %q", name))
	}
	return g
}

func (r *rank) NewLanes() (env.Lanes, error) {
	l, err := r.net.NewLane()
	if err != nil {
		return nil, err
	}
	return lanes{l}, nil
}

func (r *rank) CopyMax() int             { return r.net.Limits().CopyMax }
func (r *rank) Context() context.Context { return r.ctx }
func (r *rank) Learned()                 {}
func (r *rank) Logger() *slog.Logger     { return slog.New(slog.DiscardHandler) }
func (r *rank) Budget() env.Budget       { return nil }

func (r *rank) Down(rank int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.down[rank]
}

// SetDown has the network know first: when the part learns of it nothing more arrives.
func (r *rank) SetDown(rank int, cause error) {
	r.mu.Lock()
	if rank == r.id || r.down[rank] != nil {
		r.mu.Unlock()
		return
	}
	r.down[rank] = cause
	r.order = append(r.order, rank)
	var fs []func(int, error)
	for i := range r.watched {
		if f := r.watches[i]; f != nil {
			fs = append(fs, f)
		}
	}
	r.mu.Unlock()
	r.net.PeerDown(rank, cause)
	for _, f := range fs {
		f(rank, cause)
	}
}

func (r *rank) OnDown(f func(rank int, cause error)) (stop func()) {
	r.mu.Lock()
	id := r.watched
	r.watched++
	r.watches[id] = f
	order := append([]int(nil), r.order...)
	r.mu.Unlock()
	for _, dead := range order {
		f(dead, r.Down(dead))
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watches, id)
	}
}

// lanes are one lane of one network.
type lanes []fabric.Lane

func (l lanes) To(int) fabric.Lane     { return l[0] }
func (l lanes) Atomic(int) fabric.Lane { return l[0] }
func (l lanes) All() []fabric.Lane     { return l }
func (l lanes) Waiter() fabric.Lane    { return l[0] }
func (l lanes) Close() error           { return l[0].Close() }
