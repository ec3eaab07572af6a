package coll

// view is some of the members, or all, in order.
type view struct {
	list  []int // nil: all
	m, me int
}

func (v view) at(i int) int {
	if i = i % v.m; v.list != nil {
		return v.list[i]
	}
	return i
}

// reduceShares has each member of a view reduce a share of the data, which the others send it, and
// send what comes out to all of them, or to root. In round k a member sends to the one k before it,
// and receives from the one k after it; those behind the last come first in the order of ranks, and
// are put together apart.
func (o reducer) reduceShares(v view, buf []byte, root int) error {
	place := o.data.whole(o.t.shared.shape.place)
	for len(buf) > 0 {
		n := min(len(buf), v.m*place)
		if err := o.reducePiece(v, buf[:n], root); err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

func (o reducer) reducePiece(v view, c []byte, root int) error {
	t, d := o.t, o.data
	of := func(i int) []byte {
		from, to := d.share(len(c), i%v.m, v.m)
		return c[from:to]
	}
	mine, scratch := of(v.me), t.scratch()
	first := scratch[len(scratch)/2:][:len(mine)] // of the ranks before this one
	acc := mine
	if root >= 0 {
		acc = scratch[:len(mine)]
		copy(acc, mine)
	}
	for k := 1; k < v.m; k++ {
		if err := o.pairs.expect(v.at(v.me+k), len(mine)); err != nil {
			return err
		}
	}
	for k := 1; k < v.m; k++ {
		if to := of(v.me + v.m - k); len(to) > 0 {
			if err := o.pairs.sendTo(v.at(v.me+v.m-k), to); err != nil {
				return err
			}
		}
		if len(mine) == 0 {
			continue
		}
		b, err := o.pairs.receiveFrom(v.at(v.me + k))
		if err != nil {
			return err
		}
		switch b = b[:len(mine)]; {
		case v.me+k < v.m:
			err = o.fold(acc, b)
		case v.me+k == v.m:
			copy(first, b)
		default:
			err = o.fold(first, b)
		}
		if err != nil {
			return err
		}
		if err := o.pairs.consumedPlace(); err != nil {
			return err
		}
	}
	if v.me > 0 {
		if err := o.fold(first, acc); err != nil {
			return err
		}
		copy(acc, first)
	}
	if err := o.settle(o.ctx); err != nil {
		return err
	}
	if root >= 0 {
		return o.sharesTo(v, root, c, acc)
	}
	for k := 1; k < v.m; k++ {
		if err := o.pairs.expect(v.at(v.me+k), len(of(v.me+k))); err != nil {
			return err
		}
	}
	for k := 1; k < v.m; k++ {
		if err := o.pairs.swap(v.at(v.me+v.m-k), mine, v.at(v.me+k), of(v.me+k)); err != nil {
			return err
		}
	}
	return o.settle(o.ctx)
}

// sharesTo sends root the shares that the members have reduced.
func (o reducer) sharesTo(v view, root int, c, mine []byte) error {
	d := o.data
	if v.at(v.me) != root {
		if len(mine) == 0 {
			return nil
		}
		if err := o.pairs.sendTo(root, mine); err != nil {
			return err
		}
		return o.settle(o.ctx) // the scratch is used again
	}
	for i := range v.m {
		from, to := d.share(len(c), i, v.m)
		if i == v.me {
			copy(c[from:to], mine)
			continue
		}
		if err := o.pairs.expect(v.at(i), to-from); err != nil {
			return err
		}
	}
	for i := range v.m {
		from, to := d.share(len(c), i, v.m)
		if i == v.me {
			continue
		}
		if err := o.pairs.swap(noMember, nil, v.at(i), c[from:to]); err != nil {
			return err
		}
	}
	return nil
}
