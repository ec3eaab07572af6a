package bootstrap

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/ibconduit/conduit/internal/ranklist"
)

// op is the kind of a collective. It crosses the wire.
type op uint8

const (
	opExchange op = 1
	opBarrier  op = 2
)

func (o op) String() string {
	switch o {
	case opExchange:
		return "Exchange"
	case opBarrier:
		return "Barrier"
	}
	return fmt.Sprintf("collective %d", uint8(o))
}

// event is what a hub delivers to a rank: the outcome of a collective, or that a
// rank can take part no more.
type event struct {
	outcome *outcome
	failure *failure
}

type outcome struct {
	op     op
	seq    uint32
	blobs  [][]byte
	shared bool   // other ranks hold the same slices
	frame  []byte // encoded once for all connections
}

type failure struct {
	rank    int
	process string // host and pid
	why     *cause
}

func (f *failure) err() *LostError { return &LostError{f.rank, f.process, f.why} }

// memberState of a rank, as the hub sees it.
type memberState uint8

const (
	taking memberState = iota // takes part
	mute                      // takes part no more, but is alive
	ended                     // left or dead
)

// hub gathers the contributions of all ranks and hands out the result. It
// lives in rank 0 of a TCP job, or in a group. Events reach each rank in the
// same order; deliver functions are called with the lock held and must neither
// block nor call the hub.
type hub struct {
	mu      sync.Mutex
	process []string // host and pid of each rank
	deliver []func(event)
	state   []memberState

	seq   uint32 // of the round that is open, from 1
	op    op     // of the open round, once a rank has contributed
	have  []bool
	blobs [][]byte
	count int
	bytes int
}

func newHub(size int) *hub {
	return &hub{
		process: make([]string, size), deliver: make([]func(event), size), state: make([]memberState, size),
		seq: 1, have: make([]bool, size), blobs: make([][]byte, size),
	}
}

// attach names the function that takes a rank's events.
func (h *hub) attach(rank int, process string, deliver func(event)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.process[rank], h.deliver[rank] = process, deliver
}

// contribute adds one rank's part to the open round. A part that does not
// fit, from a program error or a hostile rank, ends that rank's membership.
func (h *hub) contribute(rank int, o op, seq uint32, blob []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state[rank] != taking {
		return
	}
	switch {
	case o != opExchange && o != opBarrier:
		h.misuseLocked(rank, "asked for the unknown %v", o)
	case seq != h.seq || h.have[rank]:
		h.misuseLocked(rank, "is in collective %d while the job is in %d", seq, h.seq)
	case h.count > 0 && o != h.op:
		h.misuseLocked(rank, "called %v where another rank called %v (collective %d): %v", o, h.op, seq, ErrMisuse)
	case h.bytes+len(blob) > MaxResult:
		h.misuseLocked(rank, "brought the sum of all blobs above %d bytes", MaxResult)
	default:
		h.op = o
		h.have[rank], h.blobs[rank] = true, blob
		h.bytes += len(blob)
		if h.count++; h.count == len(h.have) {
			h.completeLocked()
		}
	}
}

func (h *hub) completeLocked() {
	h.tellLocked(event{outcome: &outcome{op: h.op, seq: h.seq, blobs: h.blobs, shared: true}})
	n := len(h.have)
	h.seq, h.have, h.blobs, h.count, h.bytes = h.seq+1, make([]bool, n), make([][]byte, n), 0, 0
}

// giveUp withdraws a rank from round seq. It has no effect when the outcome is already on its way.
func (h *hub) giveUp(rank int, seq uint32, why *cause) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state[rank] != taking || seq < h.seq {
		return
	}
	var missing []int
	for r, ok := range h.have {
		if !ok && h.state[r] == taking {
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 {
		why.text += "; waiting for " + ranklist.Text(missing)
	}
	h.dropLocked(rank, why)
}

// fail ends a rank's part in the job.
func (h *hub) fail(rank int, why *cause) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state[rank] != ended {
		h.dropLocked(rank, why)
	}
}

func (h *hub) misuseLocked(rank int, format string, args ...any) {
	h.dropLocked(rank, &cause{kind: causeMisuse, text: fmt.Sprintf(format, args...)})
}

func (h *hub) dropLocked(rank int, why *cause) {
	h.state[rank] = mute
	if why.ends() {
		h.state[rank], h.deliver[rank] = ended, nil
	}
	h.tellLocked(event{failure: &failure{rank, h.process[rank], why}})
}

func (h *hub) tellLocked(ev event) {
	for _, deliver := range h.deliver {
		if deliver != nil {
			deliver(ev)
		}
	}
}

// settled returns when an event that was delivered to one rank is delivered to all.
func (h *hub) settled() {
	h.mu.Lock()
	defer h.mu.Unlock()
}

// hubUplink is the way from a client to a hub in the same process.
type hubUplink struct {
	hub  *hub
	rank int
}

func (u hubUplink) contribute(o op, seq uint32, blob []byte) {
	u.hub.contribute(u.rank, o, seq, bytes.Clone(blob))
}
func (u hubUplink) giveUp(seq uint32, why *cause) { u.hub.giveUp(u.rank, seq, why) }
func (u hubUplink) fail(why *cause)               { u.hub.fail(u.rank, why) }
