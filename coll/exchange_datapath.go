package coll

import "unsafe"

// overlap reports whether memories have a byte in common.
func overlap(a, b []byte) bool {
	x, y := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return len(a) > 0 && len(b) > 0 && x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

// exchangeAll passes short blocks on along rails, and others straight from member to member.
func exchangeAll(o *op) error {
	o.bind()
	t, d := o.t, o.data
	switch {
	case len(d.src.mem) == 0 && !d.varies:
		return o.rails.meet() // which finds mistakes
	case !d.varies && len(d.src.mem) <= t.shared.shape.short:
		return o.passOn()
	}
	if t.n == 1 {
		copy(d.dst.mem, d.src.mem)
		return nil
	}
	return o.straight(d.src.of)
}

// straight sends each other member its block, and receives one of each into dst. Mapped members
// read the blocks where they are.
func (o *op) straight(block func(to int) []byte) error {
	t, d := o.t, o.data
	if near, pulls, err := o.pulls(); err != nil {
		return err
	} else if pulls {
		return o.pullBlocks(near, &d.dst, block)
	}
	copy(d.dst.of(t.me), block(t.me))
	next := (t.me + t.n - 1) % t.n
	if err := o.pairs.expect(next, len(d.dst.of(next))); err != nil {
		return err
	}
	for k := 1; k < t.n; k++ {
		from, to := next, (t.me+k)%t.n
		if next = (from + t.n - 1) % t.n; k+1 < t.n {
			if err := o.pairs.expect(next, len(d.dst.of(next))); err != nil {
				return err
			}
		}
		if err := o.pairs.swap(to, block(to), from, d.dst.of(from)); err != nil {
			return err
		}
		if err := o.collect(); err != nil {
			return err
		}
	}
	return nil
}

// passOn is Bruck's all-to-all (Bruck et al. 1997): a block for the member k after its owner is
// sent on in each round r for which k has the bit 2^r, so that each message has half of all blocks.
func (o *op) passOn() error {
	t, d := o.t, o.data
	// Where each rail has one message they need, as in meet, no acknowledgements.
	single := uint64(len(d.src.mem)) <= t.shared.shape.chunk
	o.mute = o.mute || single
	if t.n == 2 && single {
		return o.passTwo()
	}
	n, scratch := d.each, t.scratch()
	all, rest := scratch[:t.n*n], scratch[t.n*n:]
	out, in := rest[:len(rest)/2], rest[len(rest)/2:]
	for k := range t.n {
		copy(all[k*n:], d.src.of((t.me+k)%t.n))
	}
	for r := range t.rails {
		if err := o.settle(o.ctx); err != nil { // out is used again
			return err
		}
		size := 0
		for k := 1 << r; k < t.n; k++ {
			if k>>r&1 == 1 {
				size += copy(out[size:], all[k*n:(k+1)*n])
			}
		}
		if err := o.rails.exchange(r, out[:size], in[:size]); err != nil {
			return err
		}
		size = 0
		for k := 1 << r; k < t.n; k++ {
			if k>>r&1 == 1 {
				size += copy(all[k*n:(k+1)*n], in[size:])
			}
		}
	}
	for k := range t.n {
		copy(d.dst.of((t.me-k+t.n)%t.n), all[k*n:(k+1)*n])
	}
	if single {
		o.rails.met()
	}
	return nil
}

// passTwo is passOn of two members and one message each.
func (o *op) passTwo() error {
	d, me := o.data, o.t.me
	if err := o.rails.send(0, d.src.of(1-me)); err != nil {
		return err
	}
	copy(d.dst.of(me), d.src.of(me))
	if err := o.rails.take(0, d.dst.of(1-me)); err != nil {
		return err
	}
	o.rails.met()
	return nil
}

// gatherAll has blocks that fit a message of a rail take the way of Team.AllGather. Longer ones,
// which would be several messages at each step, go straight.
func gatherAll(o *op) error {
	o.bind()
	t, d, n := o.t, o.data, o.data.each
	if n == 0 {
		return o.rails.meet() // which finds mistakes
	}
	if short := t.n*n <= t.shared.shape.short; short {
		all := t.scratch()[:t.n*n]
		copy(all, d.src.mem)
		if err := o.rails.bruckEqual(all, n); err != nil {
			return err
		}
		for k := range t.n {
			copy(d.dst.of((t.me-k+t.n)%t.n), all[k*n:(k+1)*n])
		}
		return o.settle(o.ctx) // the scratch is used again
	}
	if _, pulls, err := o.pulls(); err != nil {
		return err
	} else if pulls || n > int(t.shared.shape.chunk) {
		return o.straight(func(int) []byte { return d.src.mem })
	}
	copy(d.dst.of(t.me), d.src.mem)
	for r := range t.rails {
		has := 1 << r
		for k := range min(has, t.n-has) {
			mine, next := d.dst.of((t.me-k+t.n)%t.n), d.dst.of((t.me-k-has+2*t.n)%t.n)
			if err := o.rails.exchange(r, mine, next); err != nil {
				return err
			}
			if err := o.collect(); err != nil {
				return err
			}
		}
	}
	return nil
}

// scatter sends short blocks down a tree, others straight.
func scatter(o *op) error {
	o.bind()
	t, d := o.t, o.data
	switch {
	case t.n == 1:
		copy(d.dst.mem, d.src.mem)
		return nil
	case d.each == 0 && !d.varies:
		return o.rails.meet() // which finds mistakes
	case !d.varies && t.n*d.each <= t.shared.shape.short:
		return o.scatterDown()
	case t.me != o.root:
		if err := o.pairs.expect(o.root, len(d.dst.mem)); err != nil {
			return err
		}
		return o.pairs.swap(noMember, nil, o.root, d.dst.mem)
	}
	copy(d.dst.mem, d.src.of(t.me))
	for k := 1; k < t.n; k++ {
		to := (t.me + k) % t.n
		if err := o.pairs.swap(to, d.src.of(to), noMember, nil); err != nil {
			return err
		}
		if err := o.collect(); err != nil {
			return err
		}
	}
	return nil
}

// scatterDown sends each child of a binomial tree the blocks of all below it.
func (o *op) scatterDown() error {
	t, d, n := o.t, o.data, o.data.each
	me := (t.me - o.root + t.n) % t.n
	low := t.lowest(me)
	all := t.scratch()[:t.n*n]
	if me == 0 {
		for k := range t.n {
			copy(all[k*n:], d.src.of((o.root+k)%t.n))
		}
	} else if err := o.rails.exchange(low, nil, all[:min(1<<low, t.n-me)*n]); err != nil {
		return err
	}
	for r := low - 1; r >= 0; r-- {
		if child := me + 1<<r; child < t.n {
			if err := o.rails.exchange(r, all[n<<r:][:min(1<<r, t.n-child)*n], nil); err != nil {
				return err
			}
		}
	}
	copy(d.dst.mem, all[:n])
	return o.settle(o.ctx) // the scratch is used again
}

// gather is the reverse.
func gather(o *op) error {
	o.bind()
	t, d, n := o.t, o.data, o.data.each
	switch {
	case t.n == 1:
		copy(d.dst.mem, d.src.mem)
		return nil
	case n == 0 && !d.varies:
		return o.rails.meet() // which finds mistakes
	case !d.varies && t.n*n <= t.shared.shape.short:
		all := t.scratch()[:t.n*n]
		if err := o.rails.gatherUp(all, d.src.mem); err != nil {
			return err
		}
		for k := range t.n {
			if t.me == o.root {
				copy(d.dst.of((t.me-k+t.n)%t.n), all[k*n:(k+1)*n])
			}
		}
		return o.settle(o.ctx) // the scratch is used again
	case t.me != o.root:
		return o.pairs.swap(o.root, d.src.mem, noMember, nil)
	}
	copy(d.dst.of(t.me), d.src.mem)
	for k := 1; k < t.n; k++ {
		if err := o.pairs.expect((t.me+k)%t.n, len(d.dst.of((t.me+k)%t.n))); err != nil {
			return err
		}
	}
	for k := 1; k < t.n; k++ {
		from := (t.me + k) % t.n
		if err := o.pairs.swap(noMember, nil, from, d.dst.of(from)); err != nil {
			return err
		}
	}
	return nil
}
