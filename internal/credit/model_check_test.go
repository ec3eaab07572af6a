package credit

import "fmt"

// check compares a rank's accounts with themselves and with its device.
func (w *world) check(i int) error {
	r := w.ranks[i]
	if err := r.pool.Check(); err != nil {
		return fmt.Errorf("rank %d: %w", i, err)
	}
	if w.fault != spareLate && r.pool.Posted() != r.posted {
		return fmt.Errorf("rank %d: %d buffers are posted by the account, the device has %d", i, r.pool.Posted(), r.posted)
	}
	return nil
}

// reconcile compares the accounts of both ends of all pairs.
func (w *world) reconcile() error {
	for i, r := range w.ranks {
		for j := range w.ranks {
			if i == j {
				continue
			}
			p, _ := w.pair(i, j)
			if p.broken || !p.open[0] || !p.open[1] {
				continue
			}
			under := 0
			for _, m := range w.wires[i][j].messages {
				if !m.reply {
					under++
				}
			}
			for _, o := range r.hand {
				if o.to == j && o.epoch == p.epoch {
					under++
				}
			}
			pool, sender := w.ranks[j].pool.Account(i), r.senders[j].Account()
			if err := Reconcile(pool, sender, under); err != nil {
				return fmt.Errorf("from rank %d to %d: %w (pool %+v, sender %+v)", i, j, err, pool, sender)
			}
		}
	}
	return nil
}

// settle lets the world calm down and has some senders want something all the time,
// while the others are silent: each of the former must get to send one message
// within so many rounds. It returns how many it took.
func (w *world) settle(bound int) (rounds int, err error) {
	w.calm = true
	defer func() { w.calm = false }()
	for i := range w.ranks {
		for j := range i {
			if err := w.heal(i, j); err != nil {
				return 0, err
			}
		}
	}
	for i, r := range w.ranks {
		for len(r.hand) > 0 {
			if err := w.hand(i); err != nil {
				return 0, err
			}
		}
	}
	waiting := map[[2]int]uint64{} // what they had sent before
	for i := range w.ranks {
		for j := range w.ranks {
			if i != j && w.chance(2) {
				waiting[[2]int{i, j}] = w.wires[i][j].sent
			}
		}
	}
	for ; len(waiting) > 0; rounds++ {
		if rounds == bound {
			for k := range waiting {
				return rounds, fmt.Errorf("rank %d sent nothing to rank %d in %d rounds (%v; %s)", k[0], k[1], rounds,
					w.ranks[k[0]].senders[k[1]].Explain(w.now), w.ranks[k[1]].pool.Describe(w.now))
			}
		}
		if err := w.round(waiting); err != nil {
			return rounds, err
		}
	}
	return rounds, nil
}

// round gives each rank a turn in everything.
func (w *world) round(waiting map[[2]int]uint64) error {
	w.now += w.cfg.RecallAfter
	if w.fault == neverRecalled {
		w.now += 100 - w.cfg.RecallAfter
	}
	for i, r := range w.ranks {
		r.pool.Tick(w.now)
		for j := range w.ranks {
			before, on := waiting[[2]int{i, j}]
			if on && w.wires[i][j].sent > before {
				delete(waiting, [2]int{i, j})
			} else if on {
				if err := w.send(i, j, w.chance(3)); err != nil {
					return err
				}
			}
		}
		w.controls(i)
	}
	for j := range w.ranks {
		for range 2 * len(w.ranks) {
			if err := w.deliver(j); err != nil {
				return err
			}
		}
		for i := range w.ranks {
			for i != j && len(w.wires[i][j].controls) > 0 && w.ranks[j].blocked == nil {
				if err := w.deliverControl(i, j); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// run takes n steps at random, with calm times between.
func (w *world) run(n int) (longest int, err error) {
	const between = 20_000
	// A question is repeated at the latest after Retry << maxBackoff, 128 rounds; then
	// every rank before one in the queue has a turn.
	bound := 4<<maxBackoff + 40*len(w.ranks)
	for k := 1; k <= n; k++ {
		if err := w.step(); err != nil {
			return longest, fmt.Errorf("step %d: %w", k, err)
		}
		if k%64 == 0 {
			if err := w.reconcile(); err != nil {
				return longest, fmt.Errorf("step %d: %w", k, err)
			}
		}
		if k%between == 0 || k == n {
			rounds, err := w.settle(bound)
			longest = max(longest, rounds)
			if err != nil {
				return longest, fmt.Errorf("calm after step %d: %w", k, err)
			}
		}
	}
	return longest, nil
}
