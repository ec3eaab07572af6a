package am

import (
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
)

// The model steps an acquirer through every order of events in which a few goroutines of one rank,
// its two peers and the network can act, over pools that are fakes. A goroutine runs a script:
//
//	c  call, which its peer answers
//	d  call, which its peer answers when an unlock has arrived
//	u  post: the unlock of one d
//	p  post with a payload, which needs a send buffer
//	s  post without
//	m  prepare a message, then commit it
//	t  prepare a message, try to commit it once, else cancel it
//
// each to the peer whose number follows. The peers call this rank, too, which has to reply.

// pools are the fakes behind an acquirer.
type pools struct {
	replies, buffers  int
	credits           [2]int
	deaf, unreachable [2]bool // dead: reply buffers are not taken for it, credits not given back
}

func (f *pools) takeBoth(p *peer, call bool) bool {
	return (!call || f.replies > 0) && take(&f.credits[p.rank]) && (!call || take(&f.replies))
}
func (f *pools) takeReply(p *peer) bool  { return !f.deaf[p.rank] && take(&f.replies) }
func (f *pools) takeCredit(p *peer) bool { return take(&f.credits[p.rank]) }
func (f *pools) giveReply(p *peer) {
	if !f.deaf[p.rank] {
		f.replies++
	}
}
func (f *pools) giveCredit(p *peer) {
	if !f.unreachable[p.rank] {
		f.credits[p.rank]++
	}
}
func (f *pools) giveBuffer(fabric.SendBuf) {
	f.buffers++
}
func (f *pools) takeBuffer() (fabric.SendBuf, bool) { return fabric.SendBuf{}, take(&f.buffers) }

func take(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return true
}

type phase uint8

const (
	ready    phase = iota // begins the next request of its script
	acquires              // its claim is queued, or complete and not sent
	prepares              // has a prepared message
	answered              // waits for a reply
)

// sender is one goroutine.
type sender struct {
	at       int // in its script
	phase    phase
	commits  bool // the claim is of a committed message
	refused  bool // the network had no room for this request once
	w        waiter
	deferred bool
}

// message of the model is on its way to a peer, or its reply back.
type modelMessage struct {
	from   int  // sender; -1: a reply of this rank
	op     byte // of the script
	buffer bool
}

// limits of one model.
type modelLimits struct {
	scripts                    []string
	replies, credits, buffers  int
	places, shares, incoming   int
	mayRefuse, startsConnected bool
	ends                       string // what may happen besides, see acquire_ends_test.go
}

// model is one state.
type model struct {
	*modelLimits
	pools    pools
	a        acquirer
	peers    [2]peer
	senders  []sender
	requests [2][]modelMessage // on their way to a peer
	answers  [2][]int          // senders whose replies are on their way
	held     [2][]int          // senders whose calls a peer defers
	unlocks  [2]int            // that arrived before their call
	incoming [2]int            // calls of a peer that this rank has not answered
	ended    int               // of modelLimits.ends
}

func newModel(l *modelLimits) *model {
	m := &model{modelLimits: l, pools: pools{replies: l.replies, buffers: l.buffers, credits: [2]int{l.credits, l.credits}}}
	m.a = acquirer{from: &m.pools, places: l.places, shares: l.shares, prepares: l.buffers - 1}
	m.senders = make([]sender, len(l.scripts))
	for i := range m.peers {
		m.peers[i].rank = i
		m.incoming[i] = l.incoming
		if l.startsConnected {
			m.a.connect(&m.peers[i])
		}
	}
	return m
}

// clone copies a state, with the claims' places in their queues.
func (m *model) clone() *model {
	n := &model{modelLimits: m.modelLimits, pools: m.pools, unlocks: m.unlocks, incoming: m.incoming, ended: m.ended}
	n.a = acquirer{from: &n.pools, places: m.a.places, shares: m.a.shares, prepares: m.a.prepares, shared: m.a.shared, prepared: m.a.prepared}
	n.senders = make([]sender, len(m.senders))
	for i := range m.peers {
		p, q := &n.peers[i], &m.peers[i]
		p.rank, p.calls, p.connection, p.connected, p.shares, p.full = q.rank, q.calls, q.connection, q.connected, q.shares, q.full
		n.requests[i], n.answers[i], n.held[i] = slices.Clone(m.requests[i]), slices.Clone(m.answers[i]), slices.Clone(m.held[i])
	}
	for i := range m.senders {
		s, t := &n.senders[i], &m.senders[i]
		s.at, s.phase, s.commits, s.refused, s.deferred = t.at, t.phase, t.commits, t.refused, t.deferred
		s.w.state.Store(t.w.state.Load())
		c, d := &s.w.claim, &t.w.claim
		c.needs, c.next, c.share, c.w = d.needs, d.next, d.share, &s.w
		if d.p != nil {
			c.p = &n.peers[d.p.rank]
		}
	}
	for k, q := range m.queues() {
		for c := q.First(); c != nil; c = c.waiting.Next() {
			i := m.senderOf(c)
			n.queues()[k].Add(&n.senders[i].w.claim.waiting, &n.senders[i].w.claim)
		}
	}
	return n
}

func (m *model) queues() []*fifo {
	a, p, q := &m.a, &m.peers[0], &m.peers[1]
	return []*fifo{&a.replies, &a.shareless, &a.unprepared, &a.buffers, &p.place, &p.credit, &p.room, &q.place, &q.credit, &q.room}
}

func (m *model) senderOf(c *claim) int {
	for i := range m.senders {
		if &m.senders[i].w == c.w {
			return i
		}
	}
	panic("a claim of no sender")
}

// key tells states apart. All numbers in it are less than 256.
func (m *model) key(b []byte) []byte {
	add := func(n ...int) {
		for _, x := range n {
			b = append(b, byte(x))
		}
	}
	yes := func(v bool) int {
		if v {
			return 1
		}
		return 0
	}
	add(m.pools.replies, m.pools.buffers, m.a.prepared, m.ended)
	for i := range m.senders {
		s := &m.senders[i]
		add(s.at, int(s.phase), yes(s.commits), yes(s.refused), yes(s.w.pending()), int(s.w.claim.next), int(s.w.claim.share))
	}
	for _, q := range m.queues() {
		add(255)
		for c := q.First(); c != nil; c = c.waiting.Next() {
			add(m.senderOf(c))
		}
	}
	for k := range m.peers {
		p := &m.peers[k]
		add(254, m.pools.credits[k], p.calls, yes(p.connected), int(p.connection), p.shares, yes(p.full), yes(m.pools.deaf[k]), m.unlocks[k], m.incoming[k])
		for _, x := range m.requests[k] {
			add(x.from+1, int(x.op), yes(x.buffer))
		}
		add(253)
		add(m.answers[k]...)
		add(252)
		add(m.held[k]...)
	}
	return b
}

// next is the request that a sender makes, and its peer.
func (m *model) next(s *sender, i int) (op byte, p *peer) {
	script := m.scripts[i]
	return script[2*s.at], &m.peers[script[2*s.at+1]-'0']
}

// events are all that may happen, each a function that changes the state that it is given.
func (m *model) events() (all []func(*model)) {
	for i := range m.senders {
		s := &m.senders[i]
		switch {
		case s.phase == ready && 2*s.at < len(m.scripts[i]):
			all = append(all, func(m *model) { m.begin(i) })
		case s.phase == prepares:
			all = append(all, func(m *model) { m.commit(i) })
		case s.phase == acquires && s.w.claim.next == acquired && s.w.pending() && !m.pools.deaf[s.w.claim.p.rank]:
			all = append(all, func(m *model) { m.send(i, false) })
			if op, _ := m.next(s, i); m.mayRefuse && !s.refused && (op != 'm' && op != 't' || s.commits) {
				all = append(all, func(m *model) { m.send(i, true) })
			}
		}
	}
	for k := range m.peers {
		p := &m.peers[k]
		if !p.connected && !m.pools.deaf[k] {
			all = append(all, func(m *model) { m.a.connect(&m.peers[k]) })
		}
		if p.full {
			all = append(all, func(m *model) { m.a.roomAt(&m.peers[k]) })
		}
		if len(m.requests[k]) > 0 && p.connected {
			all = append(all, func(m *model) { m.arrive(k) })
		}
		if len(m.answers[k]) > 0 {
			all = append(all, func(m *model) { m.answer(k) })
		}
		if m.incoming[k] > 0 && (m.pools.credits[k] > 0 || m.a.reply(&m.peers[k])) {
			all = append(all, func(m *model) { m.replyTo(k) })
		}
	}
	return append(all, m.endings()...)
}

// begin begins the next request of a sender.
func (m *model) begin(i int) {
	s := &m.senders[i]
	op, p := m.next(s, i)
	s.w.state.Store(0)
	c := &s.w.claim
	*c = claim{p: p, w: &s.w, share: c.share}
	if m.pools.deaf[p.rank] {
		s.at++ // it is refused
		return
	}
	if op == 'm' || op == 't' {
		c.needs = needsPrepare
	} else {
		m.needs(c, op)
	}
	s.phase, s.commits, s.refused = acquires, false, false
	if m.a.takeAtOnce(c) || m.a.acquire(c) {
		s.w.state.Store(signaled)
	}
}

// needs are those of emitter.needLocked.
func (m *model) needs(c *claim, op byte) {
	e := emitter{new(core)}
	o := outgoing{kind: request, wants: op == 'c' || op == 'd'}
	if op == 'p' || op == 'm' || op == 't' {
		o.cat, o.payload = medium, make([]byte, argsSize+1) // takes a buffer
	}
	p := c.p
	e.acquirer.buffers = fifo{}
	e.needLocked(c, p, &o, 0)
	if m.a.buffers.Len() > 0 {
		c.needs |= needsBuffer
	}
}

// commit commits a prepared message.
func (m *model) commit(i int) {
	s := &m.senders[i]
	op, p := m.next(s, i)
	c := &s.w.claim
	*c = claim{p: p, w: &s.w}
	if m.pools.deaf[p.rank] {
		m.a.cancel(fabric.SendBuf{})
		s.at, s.phase = s.at+1, ready
		return
	}
	m.needs(c, op)
	c.needs &^= needsBuffer
	if op == 't' {
		if m.a.takeAtOnce(c) || m.a.try(c) {
			m.a.unprepare()
			m.transmit(i, true)
		} else {
			m.a.cancel(fabric.SendBuf{})
			s.at, s.phase = s.at+1, ready
		}
		return
	}
	copied := false
	if m.a.takeAtOnce(c) || m.a.commit(c, fabric.SendBuf{}, func() { copied = true }) {
		m.a.unprepare()
		m.transmit(i, true)
		return
	}
	if !copied {
		panic("a commit that waits did not copy its payload")
	}
	*c = claim{p: p, w: &s.w}
	m.needs(c, 'p')
	s.phase, s.commits = acquires, true
	s.w.state.Store(0)
	if m.a.acquire(c) {
		s.w.state.Store(signaled)
	}
}

// send sends a request whose claim is complete, or finds that the network's queue is full after
// all.
func (m *model) send(i int, refused bool) {
	s := &m.senders[i]
	op, _ := m.next(s, i)
	c := &s.w.claim
	if (op == 'm' || op == 't') && !s.commits {
		s.phase = prepares
		return
	}
	if refused {
		s.refused = true
		s.w.state.Store(0)
		c.p.full = true
		m.a.retreat(c, stageRoom)
		if m.a.acquireFirst(c) {
			s.w.state.Store(signaled)
		}
		return
	}
	m.transmit(i, c.needs.has(stageBuffer))
}

func (m *model) transmit(i int, buffer bool) {
	s := &m.senders[i]
	op, p := m.next(s, i)
	m.requests[p.rank] = append(m.requests[p.rank], modelMessage{i, op, buffer})
	if s.phase = ready; op == 'c' || op == 'd' {
		s.phase = answered
	} else {
		s.at++
	}
}

// arrive brings a request to its peer: the buffer comes free, the leader serves those who wait for
// one, and the peer posts its receive buffer again, which is a credit.
func (m *model) arrive(k int) {
	x := m.requests[k][0]
	m.requests[k] = m.requests[k][1:]
	if x.buffer {
		m.pools.buffers++
	}
	m.a.serve(&m.a.buffers)
	if x.from < 0 {
		return
	}
	m.pools.credits[k]++
	m.a.credited(&m.peers[k])
	switch {
	case x.op == 'c':
		m.answers[k] = append(m.answers[k], x.from)
	case x.op == 'd' && m.unlocks[k] > 0:
		m.unlocks[k]--
		m.answers[k] = append(m.answers[k], x.from)
	case x.op == 'd':
		m.held[k] = append(m.held[k], x.from)
	case x.op == 'u' && len(m.held[k]) > 0:
		m.answers[k] = append(m.answers[k], m.held[k][0])
		m.held[k] = m.held[k][1:]
	case x.op == 'u':
		m.unlocks[k]++
	}
}

// answer brings a reply: its buffer is posted again.
func (m *model) answer(k int) {
	s := &m.senders[m.answers[k][0]]
	m.answers[k] = m.answers[k][1:]
	s.at, s.phase = s.at+1, ready
	m.a.leavePlace(&m.peers[k])
	m.pools.replies++
	m.a.serve(&m.a.replies)
}

// replyTo answers a call of a peer.
func (m *model) replyTo(k int) {
	if m.a.reply(&m.peers[k]) {
		m.incoming[k]--
		m.requests[k] = append(m.requests[k], modelMessage{from: -1})
	}
}

// check holds a state against the rules.
func (m *model) check() error {
	replies, buffers, prepared, shares := m.pools.replies, m.pools.buffers, 0, 0
	credits := m.pools.credits
	var calls [2]int
	for i := range m.senders {
		s := &m.senders[i]
		c := &s.w.claim
		switch s.phase {
		case acquires:
			for g, n := range [acquired]*int{stagePlace: &calls[c.p.rank], stageReply: &replies, stageCredit: &credits[c.p.rank], stagePrepare: &prepared, stageBuffer: &buffers} {
				if n != nil && c.needs.has(stage(g)) && c.next > stage(g) && !(stage(g) == stageReply && m.pools.deaf[c.p.rank]) {
					*n++
				}
			}
			if c.next < acquired && c.waiting.In() != m.a.queueOf(c) || c.next == acquired && c.waiting.In() != nil {
				return fmt.Errorf("sender %d lacks stage %d and is in another queue", i, c.next)
			}
			if (c.next == acquired || m.pools.deaf[c.p.rank]) && !s.w.pending() {
				return fmt.Errorf("sender %d has everything, or a dead peer, and was not woken", i)
			}
		case prepares:
			buffers++
			prepared++
		case answered:
			_, p := m.next(s, i)
			replies++
			calls[p.rank]++
		}
	}
	for k := range m.requests {
		for _, x := range m.requests[k] {
			if x.from >= 0 {
				credits[k]++
			}
			if x.buffer {
				buffers++
			}
		}
		shares += m.peers[k].shares
	}
	for k := range m.peers {
		if p := &m.peers[k]; credits[k] != m.credits && !m.pools.deaf[k] || calls[k] != p.calls || p.calls > m.places {
			return fmt.Errorf("peer %d: %d credits of %d, %d calls, %d places taken of %d", k, credits[k], m.credits, calls[k], p.calls, m.places)
		}
	}
	if replies != m.replies || buffers != m.buffers || prepared != m.a.prepared || shares != m.a.shared || shares > m.shares {
		return fmt.Errorf("%d reply buffers of %d, %d send buffers of %d, %d prepared of %d, %d shares of %d", replies, m.replies, buffers, m.buffers, prepared, m.a.prepared, shares, m.shares)
	}
	return m.checkQueues()
}

// checkQueues finds claims that wait for what is there.
func (m *model) checkQueues() error {
	for _, q := range m.queues() {
		for c := q.First(); c != nil; c = c.waiting.Next() {
			if c.next == stageShare && c.p.connected {
				return fmt.Errorf("sender %d waits for a share, which it does not need", m.senderOf(c))
			}
		}
		c := q.First()
		if c == nil {
			continue
		}
		there := [acquired]bool{
			stagePlace: c.p.calls < m.places, stageReply: m.pools.replies > 0, stageCredit: m.pools.credits[c.p.rank] > 0,
			stageShare: c.p.connected || m.a.shared < m.shares, stageRoom: !c.p.full, stagePrepare: m.a.prepared < m.a.prepares,
			stageBuffer: m.pools.buffers > 0,
		}
		if there[c.next] && !m.pools.deaf[c.p.rank] {
			return fmt.Errorf("sender %d waits for stage %d, which is there", m.senderOf(c), c.next)
		}
	}
	return nil
}

// done reports whether everything has ended.
func (m *model) done() bool {
	for i := range m.senders {
		if s := &m.senders[i]; s.phase != ready || 2*s.at < len(m.scripts[i]) {
			return false
		}
	}
	return m.incoming == [2]int{}
}
