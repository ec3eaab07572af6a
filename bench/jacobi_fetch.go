package bench

import (
	"fmt"
	"time"

	"github.com/ibconduit/conduit"
)

// asks is the function that other cubes fetch faces from: cube, side and iteration. A face of an
// iteration that the cube does not have yet is answered when it has: fetching does not order who
// makes and who takes, as sending did. A cube that has two iterations more has no such face, and
// cannot have: it needs a face of who asks first.
func (j *Jacobi) asks(r *conduit.FetchRequest) {
	k := faceKey{int(r.Arg(0)), int(r.Arg(1)), int(r.Arg(2))}
	if k.cube < 0 || k.cube >= len(j.ready) || k.side < 0 || k.side >= sides || r.Size() != 4*j.cubes.face() {
		_ = r.Fail(j.life, fmt.Errorf("no face %+v of %d bytes", k, r.Size()))
		return
	}
	j.mu.Lock()
	has := j.ready[k.cube]
	if has < k.iteration {
		j.later[k] = append(j.later[k], r)
	}
	j.mu.Unlock()
	switch {
	case has > k.iteration+1:
		_ = r.Fail(j.life, fmt.Errorf("face %+v, but the cube has iteration %d", k, has))
	case has >= k.iteration:
		j.answer(r)
	}
}

// answer has a request answered when its latency is over.
func (j *Jacobi) answer(r *conduit.FetchRequest) {
	if j.p.Latency == 0 {
		j.asked <- r
		return
	}
	time.AfterFunc(j.p.Latency, func() { j.asked <- r })
}

// reached says that a cube has an iteration: who asked for its faces gets them.
func (j *Jacobi) reached(l, i int) {
	var due []*conduit.FetchRequest
	j.mu.Lock()
	j.ready[l] = i
	for side := range sides {
		k := faceKey{l, side, i}
		due = append(due, j.later[k]...)
		delete(j.later, k)
	}
	j.mu.Unlock()
	for _, r := range due {
		j.answer(r)
	}
}

// serve answers requests with one buffer, until the run ends.
func (j *Jacobi) serve(buf []float32) {
	for {
		select {
		case <-j.ctx.Done():
			return
		case r := <-j.asked:
			cube, side, iteration := int(r.Arg(0)), int(r.Arg(1)), int(r.Arg(2))
			j.cubes.pack(buf, j.cells[cube][iteration%2], side)
			j.mu.Lock()
			j.served++
			j.mu.Unlock()
			_ = r.Reply(j.ctx, bytesOfCells(buf)) // who asked learns of an error
		}
	}
}

// ghosts are the faces of a cube that a set brings.
type ghosts [sides]*conduit.Fetched[float32]

// data are the faces that are there.
func (g *ghosts) data() (faces [sides][]float32) {
	for side, f := range g {
		faces[side] = f.Data()
	}
	return faces
}

// fetch adds the faces that a cube needs for iteration i+1 to a set.
func (j *Jacobi) fetch(set *conduit.FetchSet, l, i int) (g ghosts) {
	for side := range sides {
		rank, cube := j.cubes.beyond(j.me, l, side)
		g[side] = conduit.FetchFrom[float32](set, rank, faceName, j.cubes.face(), uint64(cube), uint64(side^1), uint64(i))
	}
	return g
}

// setFaces is how many faces a set of JacobiFetch has at most: a rank answers 4096 requests of one
// rank at a time.
const setFaces = 4096 / sides * sides

// fetchAll computes all cubes when the faces of all are there.
func (j *Jacobi) fetchAll(i int) error {
	for l := 0; l < len(j.cells); {
		set := conduit.NewFetchSet(j.w)
		var all []ghosts
		first := l
		for ; l < len(j.cells) && sides*(len(all)+1) <= setFaces; l++ {
			all = append(all, j.fetch(set, l, i))
		}
		lease, err := set.Submit(j.ctx)
		if err != nil {
			return err
		}
		for k := range all {
			faces := all[k].data()
			j.compute(first+k, i, &faces)
			for _, f := range all[k] {
				f.Release()
			}
		}
		lease.Release()
	}
	return nil
}

// fetchSets has the sets of several cubes under way, in the order of the cubes, and computes each
// cube when its faces are there. It holds none while it waits.
func (j *Jacobi) fetchSets(i int) error {
	type posted struct {
		l      int
		ghosts ghosts
		set    *conduit.PendingSet
	}
	var way []posted
	defer func() {
		for _, p := range way {
			p.set.Cancel()
		}
	}()
	next := 0
	for next < len(j.cells) || len(way) > 0 {
		// One more than fits: it is granted when the first is released.
		for most := j.job.Budget().Stats().Limit/(sides*j.p.faceBytes()) + 1; next < len(j.cells) && int64(len(way)) < most; next++ {
			set := conduit.NewFetchSet(j.w)
			p := posted{l: next, ghosts: j.fetch(set, next, i)}
			var err error
			if p.set, err = set.Post(); err != nil {
				return err
			}
			way = append(way, p)
		}
		at, lease, err := 0, (*conduit.Lease)(nil), error(nil)
		for k := range way { // starts those that have memory, too
			l, failed := way[k].set.Test()
			if failed != nil {
				return failed
			}
			if l != nil {
				at, lease = k, l
				break
			}
		}
		if lease == nil {
			if lease, err = way[0].set.Wait(j.ctx); err != nil {
				return err
			}
		}
		faces := way[at].ghosts.data()
		j.compute(way[at].l, i, &faces)
		lease.Release()
		way = append(way[:at], way[at+1:]...)
	}
	return nil
}

// fetchParts computes one cube after the other with fewer faces at once than a cube has: each part
// is added when it comes.
func (j *Jacobi) fetchParts(i int) error {
	for l := range j.cells {
		set := conduit.NewFetchSet(j.w)
		g := j.fetch(set, l, i)
		to := j.cells[l][(i+1)%2]
		first := true
		err := set.Each(j.ctx, func(*conduit.Lease) error {
			faces := g.data()
			if first {
				j.relax(l, i, &faces)
				first = false
				return nil
			}
			for side, f := range faces {
				if f != nil {
					j.cubes.add(to, f, side)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		j.reached(l, i+1)
	}
	return nil
}
