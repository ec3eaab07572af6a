package coll

func scan(o *op) error   { return reducer{o}.prefix(false) }
func exScan(o *op) error { return reducer{o}.prefix(true) }

// prefix reduces the data of the members up to this one, or those before it. Short, it takes a
// message a rail; long, the data passes from member to member, so that each sends it once.
func (o reducer) prefix(exclusive bool) error {
	o.bind()
	t, d, buf := o.t, o.data, o.data.dst.mem
	switch {
	case len(buf) == 0:
		return o.rails.meet() // which finds mistakes
	case t.n == 1:
		return nil
	case d.size > o.unit():
		return o.prefixWhole(exclusive)
	}
	unit := d.whole(uint64(o.unit()))
	messages := (len(buf) + unit - 1) / unit
	chain := messages*t.rails > messages+t.n-2
	for at := 0; at < len(buf); at += unit {
		c := buf[at:min(at+unit, len(buf))]
		var err error
		switch {
		case chain && exclusive:
			err = o.chainBefore(c)
		case chain:
			err = o.chain(c)
		case exclusive:
			err = o.doubleBefore(c)
		default:
			err = o.double(c, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chain receives the data of the members before this one, puts its own behind it, and passes it on.
func (o reducer) chain(c []byte) error {
	t := o.t
	if t.me > 0 {
		if err := o.foldBefore(0, c); err != nil {
			return err
		}
	}
	if t.me == t.n-1 {
		return nil
	}
	return o.rails.send(0, c)
}

// chainBefore does so, and keeps what it receives.
func (o reducer) chainBefore(c []byte) error {
	t := o.t
	if t.me == 0 {
		return o.rails.send(0, c)
	}
	b, err := o.rails.receive(0)
	if err != nil {
		return err
	}
	b = b[:len(c)]
	if t.me < t.n-1 {
		next := t.scratch()[:len(c)]
		if err := o.settle(o.ctx); err != nil { // it may still be sent from
			return err
		}
		copy(next, b)
		if err := o.fold(next, c); err != nil {
			return err
		}
		if err := o.rails.send(0, next); err != nil {
			return err
		}
	}
	copy(c, b)
	return o.rails.consumed(0)
}

// double has each member send what it has to the one 2^r after it in round r, so that what it has
// are 2^r members' data then, 2^(r+1) afterwards (Hillis, Steele 1986). Members before first take
// no part.
func (o reducer) double(c []byte, first int) error {
	t := o.t
	for r := range t.rails {
		if t.me >= first && t.me+1<<r < t.n {
			if err := o.rails.send(r, c); err != nil {
				return err
			}
		}
		if t.me-1<<r >= first {
			if err := o.settle(o.ctx); err != nil {
				return err
			}
			if err := o.foldBefore(r, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// doubleBefore shifts the data by one member first.
func (o reducer) doubleBefore(c []byte) error {
	t := o.t
	if t.me < t.n-1 {
		if err := o.rails.send(0, c); err != nil {
			return err
		}
	}
	if t.me == 0 {
		return nil
	}
	if err := o.settle(o.ctx); err != nil {
		return err
	}
	if err := o.rails.take(0, c); err != nil {
		return err
	}
	return o.double(c, 1)
}

// prefixWhole is for elements that fit no message. The last member goes first, as the others need
// what it has no more.
func (o reducer) prefixWhole(exclusive bool) error {
	if err := o.rails.meet(); err != nil { // see collectWhole
		return err
	}
	for at := o.t.n - 1; at > 0; at-- {
		members := at + 1
		if exclusive {
			members--
		}
		if err := o.collectWhole(at, members); err != nil {
			return err
		}
	}
	return nil
}
