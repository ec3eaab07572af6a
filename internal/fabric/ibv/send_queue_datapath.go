//go:build linux && cgo

package ibv

import (
	"errors"
	"time"

	"github.com/ibconduit/conduit/verbs"
)

// sendQueue is the send queue of one reliable connection, and where its peer's segment is. Its
// requests complete in order.
type sendQueue struct {
	qp         *verbs.QP
	rank       int32 // of the peer; none: it is not to one peer, and all is lost with it
	rkey       uint32
	base, size uint64 // of the peer's segment
	conn       *conn  // of a message endpoint; nil: of a lane
	used       uint32 // of a lane: queueSet.rings at the last operation
	epoch      uint32 // of the connection; 0: a lane's, made at start

	flight  list  // requests that were added and have not ended, oldest first
	wrs     int32 // their work requests
	silent  int32 // of the requests, those at the end that are unsignaled
	listed  bool  // in sender.silent
	waits   bool  // in sender.probes
	probing bool  // a probe is in flight
	err     error // why it is of no more use
}

// request is the record of what a send queue carries and completes as one: a work request, or
// several of which only the last may be signaled. Its owner keeps its purpose under
// the same index.
type request struct {
	queue      *sendQueue // the last that it was in
	next       int32
	wrs        int32
	generation uint32
	probe      bool
}

// A work request identifier is the index of its request, with the generation above it: a completion
// of a queue that was ended must not end another's request. The highest bits are the owner's, for
// its receives.
const (
	generationShift = 32
	generationMask  = 1<<30 - 1
)

// sender posts to the send queues of one completion queue, with one doorbell, and keeps requests in
// flight.
type sender struct {
	owner sendOwner
	wake  func() // the owner, which may sleep: a refused post makes no completion; nil: it never does
	bell  *verbs.Doorbell
	chain *verbs.SendChain

	requests []request
	free     int32  // list through next
	unused   int32  // its length
	out      int32  // work requests in flight, of all queues
	limit    int32  // of out
	depth    int32  // of the work requests of one queue
	every    int32  // of requests that need no completion, one is signaled
	signed   uint32 // how many were signaled

	slots  int        // of the chain, filled since the last ring
	open   *sendQueue // to which those from first on go
	first  int
	runs   []run        // for the doorbell to post before them
	silent []*sendQueue // of a lane, with silent requests since the last probeSilent
	probes []*sendQueue // that need a probe
	failed []*sendQueue // to be ended by the owner
}

// sendOwner is what a sender's requests are for.
type sendOwner interface {
	// ended is called for each request at its end; a probe has index none.
	ended(q *sendQueue, i int32, err error)
}

// run is a part of a ring, for one queue.
type run struct {
	queue    *sendQueue
	receives *receiveQueue // instead of queue
	first, n int
}

// list is a first-in, first-out list of requests.
type list struct{ head, tail, n int32 }

func (s *sender) push(l *list, i int32) {
	if l.n == 0 {
		l.head = i
	} else {
		s.requests[l.tail].next = i
	}
	l.tail = i
	l.n++
}

func (s *sender) pop(l *list) int32 {
	i := l.head
	l.head = s.requests[i].next
	l.n--
	return i
}

// makeDoorbell makes the doorbell and the chain.
func (s *sender) makeDoorbell(cq *verbs.CQ, inline int) (err error) {
	if s.bell, err = cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	s.chain, err = verbs.NewSendChain(verbs.ChainConfig{Slots: chainSlots, Inline: inline})
	return err
}

// makeRequests sizes the table of requests.
func (s *sender) makeRequests(n int) {
	s.requests, s.free, s.unused = make([]request, n), 0, int32(n)
	for i := range n {
		s.requests[i].next = int32(i + 1)
	}
}

// take returns a free request; there is one.
func (s *sender) take() int32 {
	i := s.free
	s.free = s.requests[i].next
	s.unused--
	return i
}

// giveBack frees a request.
func (s *sender) giveBack(i int32) {
	r := &s.requests[i]
	r.generation = (r.generation + 1) & generationMask
	r.next = s.free
	s.free = i
	s.unused++
}

// room reports whether a queue takes so many work requests more.
func (s *sender) room(q *sendQueue, wrs int32) bool {
	return q.wrs+wrs <= s.depth && s.out+wrs <= s.limit
}

// full reports that the chain, or the doorbell, takes no more before it is rung.
func (s *sender) full() bool { return s.slots == chainSlots || len(s.runs) >= verbs.MaxBatch-1 }

// add puts a request of so many work requests at the end of a queue. There is room.
func (s *sender) add(q *sendQueue, i, wrs int32) {
	r := &s.requests[i]
	r.queue, r.wrs = q, wrs
	s.push(&q.flight, i)
	q.wrs += wrs
	s.out += wrs
}

// slot takes the next slot of the chain for a work request to a queue. The chain is not full.
func (s *sender) slot(q *sendQueue, id uint64) (int, *verbs.SendWR) {
	if s.open != q {
		s.openRun(q)
	}
	slot := s.slots
	s.slots = slot + 1
	w := s.chain.WR(slot)
	w.WRID, w.Flags = id, 0
	return slot, w
}

// openRun begins a run of slots to a queue.
func (s *sender) openRun(q *sendQueue) {
	s.closeRun()
	s.open = q
}

// closeRun hands the slots to the last queue to the doorbell.
func (s *sender) closeRun() {
	if s.slots > s.first {
		s.stage(run{queue: s.open, first: s.first, n: s.slots - s.first})
		s.first = s.slots
	}
}

// extend adds a work request to the last request of a queue, which is unsignaled. There is
// room.
func (s *sender) extend(q *sendQueue) {
	s.requests[q.flight.tail].wrs++
	q.wrs++
	s.out++
	q.silent-- // sign decides anew
}

// one adds a request of one work request to a queue, and takes its slot of the chain. There is
// room.
func (s *sender) one(q *sendQueue) (i int32, slot int, w *verbs.SendWR) {
	i = s.take()
	s.add(q, i, 1)
	slot, w = s.slot(q, s.id(i))
	return i, slot, w
}

func (s *sender) id(i int32) uint64 {
	return uint64(s.requests[i].generation)<<generationShift | uint64(i)
}

// sign decides whether a request is signaled, for which must is reason enough. Of each
// queue one in every does, all while more than half of the requests are in use, and the one that
// fills something, so that whatever is full always drains.
func (s *sender) sign(q *sendQueue, w *verbs.SendWR, must bool) bool {
	q.silent++
	if must || q.silent >= s.every || int(s.unused)*2 <= len(s.requests) || !s.room(q, 1) {
		w.Flags |= verbs.Signaled
		q.silent = 0
		s.signed++
		return true
	}
	if !q.listed && q.conn == nil {
		q.listed = true
		s.silent = append(s.silent, q)
	}
	return false
}

// probe posts a signaled write of nothing: it completes all requests before it,
// and shows that the peer's device is alive. It reports whether one is in flight.
func (s *sender) probe(q *sendQueue) bool {
	if q.probing || q.err != nil || s.unused == 0 || s.full() || !s.room(q, 1) {
		return q.probing
	}
	i, _, w := s.one(q)
	s.requests[i].probe, q.probing = true, true
	w.Opcode, w.Flags = verbs.OpWrite, w.Flags|verbs.Signaled
	w.SetNumSGE(0)
	w.SetRemote(q.base, q.rkey)
	q.silent = 0
	return true
}

// probeLater has a queue with silent requests probed by the next ring that has room.
func (s *sender) probeLater(q *sendQueue) {
	if q.silent > 0 && !q.waits {
		q.waits = true
		s.probes = append(s.probes, q)
	}
}

// probeSilent does so for all queues with silent requests.
func (s *sender) probeSilent() {
	for _, q := range s.silent {
		q.listed = false
		s.probeLater(q)
	}
	s.silent = s.silent[:0]
}

// postProbes posts the probes that have room. Where there is none, a request with a
// completion is in flight, see sign.
func (s *sender) postProbes() {
	left := s.probes[:0]
	for _, q := range s.probes {
		if q.waits = q.silent > 0 && q.err == nil && (q.probing || !s.probe(q)); q.waits {
			left = append(left, q)
		}
	}
	s.probes = left
}

// stage hands a run to the doorbell. It fails only for a closed queue or a full doorbell, neither
// of which can be.
func (s *sender) stage(r run) {
	var err error
	if r.receives != nil {
		err = r.receives.stage(s.bell, r.first, r.n)
	} else {
		err = s.bell.Send(r.queue.qp, s.chain, r.first, r.n)
	}
	if err != nil {
		panic(err)
	}
	s.runs = append(s.runs, r)
}

// staged reports whether there is something to post.
func (s *sender) staged() bool { return s.slots > 0 || len(s.runs) > 0 }

// ring posts staged requests and polls for completions within a budget, as Doorbell.Ring does.
// Queues that refused work are in failed; an error means that polling failed, or a queue that all
// need.
func (s *sender) ring(want int, budget time.Duration) (n int, err error) {
	if s.slots > 0 && len(s.runs) == 0 {
		if n, err = s.bell.Call(s.open.qp, s.chain, 0, s.slots, want, budget); err != nil {
			err = s.refused(err, run{queue: s.open})
		}
	} else {
		s.closeRun()
		if n, err = s.bell.Ring(want, budget); err != nil {
			err = s.refused(err, s.runs...)
		}
	}
	s.slots, s.first, s.runs = 0, 0, s.runs[:0]
	return n, err
}

// postOne posts the first work request of another chain behind staged requests. Its error is that
// of ring.
func (s *sender) postOne(q *sendQueue, chain *verbs.SendChain) error {
	if s.slots > 0 {
		s.closeRun()
	}
	err := s.bell.PostOne(q.qp, chain, 0)
	if err != nil {
		err = s.refused(err, append(s.runs, run{queue: q})...)
	}
	s.slots, s.first, s.runs = 0, 0, s.runs[:0]
	return err
}

// refused notes which queues refused work, if that is the error of a ring. Else it returns the
// error.
func (s *sender) refused(err error, runs ...run) error {
	if post := (*verbs.PostError)(nil); !errors.As(err, &post) {
		return err
	}
	for i, r := range runs {
		switch why := s.bell.Refused(i); {
		case why == nil:
		case r.queue == nil || r.queue.rank == none:
			return why
		default:
			s.fail(r.queue, why)
			if s.wake != nil {
				s.wake()
			}
		}
	}
	return nil
}

// fail notes that a queue is of no more use. The owner ends it.
func (s *sender) fail(q *sendQueue, cause error) {
	if q.err == nil {
		q.err = cause
		s.failed = append(s.failed, q)
	}
}

// completed deals with a completion. A request that succeeded ends, and so do those before it on
// its queue. One that failed ends with its queue.
func (s *sender) completed(wc *verbs.WC) {
	i := int32(uint32(wc.WRID))
	if int(uint32(i)) >= len(s.requests) {
		return
	}
	r := &s.requests[i]
	q := r.queue
	if q == nil || wc.WRID != s.id(i) {
		return // it has ended
	}
	if wc.Status != verbs.StatusSuccess {
		if q.err == nil {
			for q.flight.head != i {
				s.end(q, nil)
			}
			s.fail(q, wc.Err())
		}
		return
	}
	for last := false; !last; {
		last = q.flight.head == i
		s.end(q, nil)
	}
}

// end ends the oldest request of a queue.
func (s *sender) end(q *sendQueue, err error) {
	i := s.pop(&q.flight)
	r := &s.requests[i]
	q.wrs -= r.wrs
	s.out -= r.wrs
	if q.flight.n == 0 {
		q.silent = 0
	}
	s.giveBack(i)
	if r.probe {
		r.probe, q.probing = false, false
		i = none
	}
	s.owner.ended(q, i, err)
}

// endAll ends the rest of a queue, which the device does not work on any more.
func (s *sender) endAll(q *sendQueue, err error) {
	for q.flight.n > 0 {
		s.end(q, err)
	}
}
