package flow

import "fmt"

// BrokenError names an identity of the books that does not hold.
type BrokenError struct {
	Identity  string
	Got, Want int
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("flow: %s: %d, want %d", e.Identity, e.Got, e.Want)
}

// Check goes through all accounts and returns a *BrokenError if one of the identities
// of the package comment does not hold. Tests call it always, products never.
func (p *Pool) Check() error {
	if err := p.checkTotals(); err != nil {
		return err
	}
	var held, reserved, counted, holders, recalled, hungry, topping, out int
	for peer, e := range p.peers.All() {
		a := e.account
		if a == nil {
			continue
		}
		held += a.held()
		reserved += int(a.replies)
		counted += int(a.counted)
		if h := a.held(); h < 0 || h > p.cfg.Window {
			return &BrokenError{fmt.Sprintf("peer %d: credits held <= window", peer), h, p.cfg.Window}
		}
		if err := p.checkLists(a); err != nil {
			return err
		}
		count := func(n *int, l *list) {
			if a.isIn(l) {
				*n++
			}
		}
		count(&holders, &p.holders)
		count(&recalled, &p.recalled)
		count(&hungry, &p.hungry)
		count(&topping, &p.topping)
		count(&out, &p.out)
	}
	for _, c := range [...]BrokenError{
		{"credits held by all accounts = held", held, p.held},
		{"replies reserved by all accounts = reserved", reserved, p.replies.reserved},
		{"credits asked back of all accounts = recalling", counted, p.recalling},
		{"accounts in holders", holders, p.holders.Len()},
		{"accounts in recalled", recalled, p.recalled.Len()},
		{"accounts in hungry", hungry, p.hungry.Len()},
		{"accounts in topping", topping, p.topping.Len()},
		{"accounts in out", out, p.out.Len()},
	} {
		if c.Got != c.Want {
			return &c
		}
	}
	return nil
}

func (p *Pool) checkTotals() error {
	if n := p.free + p.held + p.bare; n != p.cfg.Credits {
		return &BrokenError{"credits: free + held + bare = all", n, p.cfg.Credits}
	}
	if n := p.replies.free + p.replies.reserved + p.replies.bare; n != p.cfg.Replies {
		return &BrokenError{"replies: free + reserved + bare = all", n, p.cfg.Replies}
	}
	if n := p.held + p.replies.reserved; n > p.Posted()+p.extra {
		return &BrokenError{"credits held + replies reserved <= posted", n, p.Posted() + p.extra}
	}
	if n := min(p.free, p.held, p.bare, p.replies.free, p.replies.reserved, p.replies.bare, p.extra, p.recalling); n < 0 {
		return &BrokenError{"no count is negative", n, 0}
	}
	return nil
}

// checkLists compares where an account is with where it belongs.
func (p *Pool) checkLists(a *account) error {
	held := a.held()
	for _, c := range [...]struct {
		rule     string
		is, want bool
	}{
		{"in recalled <=> a recall is unanswered", a.isIn(&p.recalled), a.recalling()},
		{"in holders <=> holds credits, no recall", a.isIn(&p.holders), held > 0 && !a.recalling()},
		{"in hungry => holds none", a.isIn(&p.hungry) && held != 0, false},
		{"in topping => holds some, wants more", a.isIn(&p.topping) && (held == 0 || held >= int(a.target)), false},
	} {
		if c.is != c.want {
			return &BrokenError{fmt.Sprintf("peer %d: %s", a.peer, c.rule), held, int(a.target)}
		}
	}
	return nil
}

// Account are the totals of one connection at one end.
type Account struct {
	Epoch    uint32 // 0: no connection
	Granted  uint32
	Used     uint32 // at the sender taken, at the pool arrived
	Returned uint32
}

// Account returns a peer's totals.
func (p *Pool) Account(peer int) Account {
	a := p.account(peer)
	if a == nil {
		return Account{}
	}
	return Account{a.epoch, a.granted, a.arrived, a.returned}
}

// Account returns the totals.
func (s *Sender) Account() Account { return Account{s.epoch, s.granted, s.taken, s.returned} }

// Reconcile compares the books of both ends of one direction of a connection. inFlight is
// how many messages are under way. It returns a *BrokenError unless every credit
// of the connection is in exactly one place: the sender's purse, a message, a grant
// that the sender has not heard of, a return that the pool has not heard of.
func Reconcile(pool, sender Account, inFlight int) error {
	if pool.Epoch != sender.Epoch {
		return &BrokenError{"both ends have the same connection", int(sender.Epoch), int(pool.Epoch)}
	}
	unheard, unreturned := ahead(pool.Granted, sender.Granted), ahead(sender.Returned, pool.Returned)
	if unheard < 0 {
		return &BrokenError{"the sender heard of no grant that was not made", -unheard, 0}
	}
	if unreturned < 0 {
		return &BrokenError{"the pool heard of no return that was not made", -unreturned, 0}
	}
	if n := int(sender.Used - pool.Used); n != inFlight {
		return &BrokenError{"credits used = messages arrived + under way", n, inFlight}
	}
	balance := int(sender.Granted - sender.Used - sender.Returned)
	if balance < 0 {
		return &BrokenError{"the purse is not overdrawn", balance, 0}
	}
	held := int(pool.Granted - pool.Used - pool.Returned)
	if n := balance + inFlight + unheard + unreturned; n != held {
		return &BrokenError{"credits held = purse + messages + grants + returns under way", n, held}
	}
	return nil
}
