package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/offheap"
)

// take is the function that gets what other cubes send: cube and side of the receiver, iteration.
// It keeps the payload until the cube is computed.
func (j *Jacobi) take(p *conduit.Payload) {
	l, side := int(p.Arg(0)), int(p.Arg(1))
	j.mu.Lock()
	ok := l >= 0 && l < len(j.came) && side >= 0 && side < sides && len(p.Data()) == 4*j.cubes.face() && j.came[l][side] == nil
	if ok {
		j.came[l][side] = p
		j.arrived++
	}
	all := j.arrived == sides*len(j.came)
	j.mu.Unlock()
	if !ok {
		p.Release()
		return
	}
	if all {
		j.all <- struct{}{}
	}
}

// exchange sends and receives the faces of all cubes, and computes then. Nobody is an iteration
// ahead: a receiver has memory for one face of each side.
func (j *Jacobi) exchange(i int) error {
	face := int(j.p.faceBytes())
	mem, free, err := offheap.Map(sides * len(j.cells) * face)
	if err != nil {
		return err
	}
	defer func() { free() }()
	j.packed = int64(len(mem))
	packed := make([][]float32, 0, sides*len(j.cells))
	for l := range j.cells {
		for side := range sides {
			buf := floats(mem[len(packed)*face:])[:j.cubes.face()]
			j.cubes.pack(buf, j.cells[l][i%2], side)
			packed = append(packed, buf)
		}
	}
	if err := j.sendAll(packed, i); err != nil {
		return err
	}
	select {
	case <-j.all:
	case <-j.ctx.Done():
		return context.Cause(j.ctx)
	}
	free()
	free = func() {}
	for l := range j.cells {
		j.mu.Lock()
		came := j.came[l]
		j.came[l], j.arrived = [sides]*conduit.Payload{}, j.arrived-sides
		j.mu.Unlock()
		var faces [sides][]float32
		for side, p := range came {
			faces[side] = floats(p.Data())
		}
		j.compute(l, i, &faces)
		for _, p := range came {
			p.Release()
		}
	}
	return j.w.Barrier(j.ctx)
}

// sendAll sends the faces, some at a time.
func (j *Jacobi) sendAll(packed [][]float32, i int) error {
	var all sync.WaitGroup
	errs := make([]error, senders)
	for s := range senders {
		all.Go(func() {
			for n := s; n < len(packed) && errs[s] == nil; n += senders {
				rank, cube := j.cubes.beyond(j.me, n/sides, n%sides)
				if err := conduit.SendPayload(j.ctx, j.job, rank, faceName, bytesOfCells(packed[n]), uint64(cube), uint64(n%sides^1), uint64(i)); err != nil {
					errs[s] = fmt.Errorf("face %d: %w", n, err)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
