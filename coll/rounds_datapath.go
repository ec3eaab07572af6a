package coll

// meet is a dissemination barrier (Hensgen, Finkel, Manber 1988): in round r every member sends a
// message to the one 2^r after it, and waits for the one 2^r before. It needs no acknowledgements:
// see met.
func (o *rails) meet() error {
	o.step.mute = true
	for r := range o.step.t.rails {
		if err := o.send(r, nil); err != nil {
			return err
		}
		if err := o.take(r, nil); err != nil {
			return err
		}
	}
	o.met()
	return nil
}

// pass sends a message to the children of a node of the binomial tree.
func (o *rails) pass(me, low int, data []byte) error {
	for r := low - 1; r >= 0; r-- {
		if me+1<<r < o.step.t.n {
			if err := o.send(r, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// gatherEqual returns the members' blobs one behind the other, by rank. All are as long as mine.
func (o *rails) gatherEqual(mine []byte) ([]byte, error) {
	t, n := o.step.t, len(mine)
	blobs := make([]byte, t.n*n)
	copy(blobs, mine)
	if err := o.bruckEqual(blobs, n); err != nil {
		return nil, err
	}
	all := make([]byte, 0, len(blobs))
	for i := range t.n {
		k := (t.me - i + t.n) % t.n
		all = append(all, blobs[k*n:(k+1)*n]...)
	}
	return all, nil
}

// bruckEqual is bruck for blobs of n bytes. Where each rail has one message it is, like meet,
// without acknowledgements.
func (o *rails) bruckEqual(blobs []byte, n int) error {
	single := n > 0 && uint64(len(blobs)) <= o.step.t.shared.shape.chunk
	o.step.mute = o.step.mute || single
	if err := o.bruck(blobs, func(k int) uint64 { return uint64(k * n) }); err != nil {
		return err
	}
	if single {
		o.met()
	}
	return nil
}

// bruck fills blobs, which begins with this member's own, with the blobs of the members before it,
// the nearest first (Bruck et al. 1997). In round r a member has the blobs of 2^r members, and
// sends them, or the ones still missing there, to the one 2^r after it. Each blob reaches each
// member once. size is how many bytes the first k blobs have.
func (o *rails) bruck(blobs []byte, size func(k int) uint64) error {
	for r := range o.step.t.rails {
		has := 1 << r
		more := min(has, o.step.t.n-has)
		// The receiver's blobs are others: the ones that it gets are those that this member has.
		if err := o.exchange(r, blobs[:size(more)], blobs[size(has):size(has+more)]); err != nil {
			return err
		}
	}
	return nil
}

// gatherUp collects blocks along a binomial tree with root 0 when members are counted down from
// root: so each sends along a rail. A member's block is followed by the blocks of the members
// before it. all has room for them on every member.
func (o *rails) gatherUp(all, mine []byte) error {
	t, n := o.step.t, len(mine)
	v, low := t.mirrored(o.step.root)
	copy(all, mine)
	for r := range low {
		if v+1<<r >= t.n {
			break
		}
		child := min(1<<r, t.n-v-1<<r) * n
		if err := o.exchange(r, nil, all[n<<r:n<<r+child]); err != nil {
			return err
		}
	}
	if v == 0 {
		return nil
	}
	return o.exchange(low, all[:min(1<<low, t.n-v)*n], nil)
}
