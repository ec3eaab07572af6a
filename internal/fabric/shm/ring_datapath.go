package shm

import "sync/atomic"

// put writes a message into the next posted slot. It is false if there is none.
func (r *ring) put(rank, epoch, seq uint32, data []byte) bool {
	c, ticket := r.claim(rank)
	if c == nil {
		return false
	}
	mine := wordOf(ticket, claimed, rank)
	c.n, c.epoch, c.seq = uint32(len(data)), epoch, seq
	if len(data) <= inlineMax {
		copy(c.inline[:], data)
	} else {
		id := atomic.LoadUint32(&c.slot)
		if id >= r.count { // the owner wrote another
			atomic.CompareAndSwapUint64(&c.word, mine, wordOf(ticket, taken, 0))
			return false
		}
		copy(r.slot(id, uint32(len(data))), data)
	}
	// It fails when the owner has given up the cell: then the message is not there.
	return atomic.CompareAndSwapUint64(&c.word, mine, wordOf(ticket, full, rank))
}

// claim takes the next posted cell. From then on the cell names its sender.
func (r *ring) claim(rank uint32) (*cell, uint64) {
	// The bound ends what only a hostile tail could keep going.
	for range r.mask + 1024 {
		t := atomic.LoadUint64(r.tail)
		c := r.cell(t)
		w := atomic.LoadUint64(&c.word)
		switch late := int32(wordTicket(w) - uint32(t)); {
		case late < 0: // of the lap before: nothing is posted here yet
			return nil, 0
		case late > 0: // others were faster, by a lap
		case w != wordOf(t, posted, 0):
			// Its sender has not got to the line below, and perhaps never will.
			atomic.CompareAndSwapUint64(r.tail, t, t+1)
		case atomic.CompareAndSwapUint64(&c.word, w, wordOf(t, claimed, rank)):
			atomic.CompareAndSwapUint64(r.tail, t, t+1)
			return c, t
		}
	}
	return nil, 0
}

// post offers a slot in the cell of a ticket.
func (r *ring) post(ticket uint64, id uint32) {
	c := r.cell(ticket)
	c.slot = id
	atomic.StoreUint64(&c.word, wordOf(ticket, posted, 0))
}

// giveUp takes a cell from the senders, which go on to the next. It is false if the cell
// changed meanwhile.
func (r *ring) giveUp(ticket, was uint64) bool {
	return atomic.CompareAndSwapUint64(&r.cell(ticket).word, was, wordOf(ticket, taken, 0))
}
