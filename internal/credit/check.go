package credit

import "fmt"

// BrokenError names an identity of the accounts that does not hold.
type BrokenError struct {
	Identity  string
	Got, Want int
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("credit: %s: %d, want %d", e.Identity, e.Got, e.Want)
}

// Check goes through all accounts and returns a *BrokenError if one of the identities
// of the package comment does not hold. Tests call it always, products never.
func (p *Pool) Check() error {
	if err := p.checkTotals(); err != nil {
		return err
	}
	var held, reserved, counted, holders, recalled, starved, wanting, due int
	count := func(n *int, in bool) {
		if in {
			*n++
		}
	}
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
		count(&holders, a.holding.In() == &p.holders)
		count(&recalled, a.holding.In() == &p.recalled)
		count(&starved, a.queued.In() == &p.starved)
		count(&wanting, a.queued.In() == &p.wanting)
		count(&due, a.due.In() == &p.due)
	}
	for _, c := range [...]BrokenError{
		{"credits held by all accounts = held", held, p.held},
		{"replies reserved by all accounts = reserved", reserved, p.replies.reserved},
		{"credits asked back of all accounts = recalling", counted, p.recalling},
		{"accounts in holders", holders, p.holders.Len()},
		{"accounts in recalled", recalled, p.recalled.Len()},
		{"accounts in starved", starved, p.starved.Len()},
		{"accounts in wanting", wanting, p.wanting.Len()},
		{"accounts in due", due, p.due.Len()},
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
		{"in recalled <=> a recall is unanswered", a.holding.In() == &p.recalled, a.recalling()},
		{"in holders <=> holds credits, no recall", a.holding.In() == &p.holders, held > 0 && !a.recalling()},
		{"in starved => holds none", a.queued.In() == &p.starved && held != 0, false},
		{"in wanting => holds some, wants more", a.queued.In() == &p.wanting && (held == 0 || held >= int(a.target)), false},
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

// Reconcile compares the accounts of both ends of one direction of a connection. inFlight is
// how many messages are under way. It returns a *BrokenError unless every credit of the
// connection is in exactly one place: the sender's balance, a message, a grant that has not
// reached the sender, a return that has not reached the pool.
func Reconcile(pool, sender Account, inFlight int) error {
	if pool.Epoch != sender.Epoch {
		return &BrokenError{"both ends have the same connection", int(sender.Epoch), int(pool.Epoch)}
	}
	grants, returns := ahead(pool.Granted, sender.Granted), ahead(sender.Returned, pool.Returned)
	if grants < 0 {
		return &BrokenError{"no grant reached the sender that was not made", -grants, 0}
	}
	if returns < 0 {
		return &BrokenError{"no return reached the pool that was not made", -returns, 0}
	}
	if n := int(sender.Used - pool.Used); n != inFlight {
		return &BrokenError{"credits used = messages arrived + under way", n, inFlight}
	}
	balance := int(sender.Granted - sender.Used - sender.Returned)
	if balance < 0 {
		return &BrokenError{"the balance is not overdrawn", balance, 0}
	}
	held := int(pool.Granted - pool.Used - pool.Returned)
	if n := balance + inFlight + grants + returns; n != held {
		return &BrokenError{"credits held = balance + messages + grants + returns under way", n, held}
	}
	return nil
}
