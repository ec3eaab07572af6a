package amtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Memory is a network of ranks in one process, in real time and for any goroutines: the
// smallest thing that keeps the contract of fabric.Messenger, with faults on demand. It has
// no endpoints, and no limit of connections.
type Memory struct {
	mu    sync.Mutex
	ranks []*MemoryRank
	rng   *rand.Rand

	// Faults, set before ports are open.
	NoteLoss float64 // share of notes that are lost
	Queue    int     // messages that wait for slots of one peer; default 64
}

// MemoryRank is one rank of a Memory.
type MemoryRank struct {
	fabric.Network // nil: endpoints are not for this
	m              *Memory
	rank           int
	Segment        []byte
	ports          map[int]*memoryPort
	dead           error
}

// NewMemory returns a network of n ranks with segments of size bytes.
func NewMemory(n, size int) *Memory {
	m := &Memory{rng: rand.New(rand.NewPCG(1, 2)), Queue: 64}
	for i := range n {
		m.ranks = append(m.ranks, &MemoryRank{m: m, rank: i, Segment: make([]byte, size), ports: map[int]*memoryPort{}})
	}
	return m
}

// Rank returns one rank.
func (m *Memory) Rank(i int) *MemoryRank { return m.ranks[i] }

// Kill stops a rank: nothing leaves or reaches it, and all others are told.
func (m *Memory) Kill(rank int, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranks[rank].dead = cause
	for _, r := range m.ranks {
		for _, p := range r.ports {
			if r.rank != rank {
				p.peerDown(rank, cause)
			}
		}
	}
}

// Inject has a message, or a note, arrive from a rank that never sent it.
func (m *Memory) Inject(from, to, port int, data []byte, note bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.ranks[to].ports[port]
	if note {
		p.push(fabric.Event{Kind: fabric.NoteArrived, Peer: from, Data: append([]byte(nil), data...)})
		return
	}
	p.meet(from)
	p.deliver(mail{from: from, data: append([]byte(nil), data...), buf: -1})
}

// Name is "memory".
func (r *MemoryRank) Name() string { return "memory" }

// Close does nothing.
func (r *MemoryRank) Close() error { return nil }

// MessageLimits are generous.
func (r *MemoryRank) MessageLimits() fabric.MessageLimits {
	return fabric.MessageLimits{MaxMessage: 1 << 20, MaxNote: 64, MaxSlots: 1 << 20}
}

// mail is a message on its way.
type mail struct {
	from   int
	data   []byte
	cookie uint64
	buf    int32
	sender *memoryPort
}

type memoryPort struct {
	r       *MemoryRank
	num     int
	cfg     fabric.EndpointConfig
	slots   [][]byte
	posted  []int32
	ours    []bool
	sends   [][]byte
	free    []int32
	taken   []bool
	events  []fabric.Event
	backlog []mail // without a slot
	to      map[int]int
	met     map[int]bool
	down    map[int]error
	kick    chan struct{}
	start   time.Time
	stats   fabric.EndpointStats
	closed  bool
}

// NewEndpoint opens a port.
func (r *MemoryRank) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.ports[i] != nil {
		return nil, fmt.Errorf("memory: port %d is open: %w", i, fabric.ErrBusy)
	}
	p := &memoryPort{r: r, num: i, cfg: cfg, kick: make(chan struct{}, 1), start: time.Now().Add(-time.Hour),
		ours: make([]bool, cfg.Slots), taken: make([]bool, cfg.Sends),
		to: map[int]int{}, met: map[int]bool{}, down: map[int]error{}}
	for i := range cfg.Slots {
		p.slots = append(p.slots, make([]byte, cfg.SlotSize))
		p.posted = append(p.posted, int32(i))
	}
	for i := range cfg.Sends {
		p.sends = append(p.sends, make([]byte, cfg.SlotSize))
		p.free = append(p.free, int32(i))
	}
	r.ports[i] = p
	return p, nil
}

func (p *memoryPort) push(e fabric.Event) {
	if p.closed {
		return
	}
	p.events = append(p.events, e)
	p.Wake()
}

// meet is the first traffic with a peer.
func (p *memoryPort) meet(peer int) {
	if !p.met[peer] {
		p.met[peer] = true
		p.push(fabric.Event{Kind: fabric.Up, Peer: peer, Epoch: 1})
	}
}

func (p *memoryPort) peerDown(rank int, cause error) {
	if p.down[rank] == nil && !p.closed {
		p.down[rank] = cause
		for i := 0; i < len(p.backlog); i++ {
			if p.backlog[i].from == rank {
				p.backlog = append(p.backlog[:i], p.backlog[i+1:]...)
				i--
			}
		}
		p.push(fabric.Event{Kind: fabric.Down, Peer: rank, Err: cause})
	}
}

func (p *memoryPort) usable(op string) error {
	if p.closed {
		return fmt.Errorf("memory: %s: port: %w", op, os.ErrClosed)
	}
	return nil
}

func (p *memoryPort) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	p.r.m.mu.Lock()
	defer p.r.m.mu.Unlock()
	return p.reserve(f)
}

func (p *memoryPort) reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := p.usable("reserve"); err != nil {
		return fabric.SendBuf{}, err
	}
	least := p.cfg.Reserved
	if f&fabric.Urgent != 0 {
		least = 0
	}
	k := len(p.free) - 1
	if k < least {
		return fabric.SendBuf{}, errNoBuffer
	}
	id := p.free[k]
	p.free, p.taken[id] = p.free[:k], true
	return fabric.SendBuf{Data: p.sends[id], ID: id}, nil
}

var (
	errFull     = fmt.Errorf("memory: full: %w", fabric.ErrAgain)
	errNoBuffer = fmt.Errorf("memory: %w", fabric.ErrNoBuffer)
)

func (p *memoryPort) Release(b fabric.SendBuf) {
	p.r.m.mu.Lock()
	defer p.r.m.mu.Unlock()
	if !p.closed {
		p.release(b.ID)
	}
}

func (p *memoryPort) release(id int32) {
	if !p.taken[id] {
		panic(fmt.Sprintf("memory: send buffer %d was given back twice", id))
	}
	p.taken[id] = false
	p.free = append(p.free, id)
}

func (p *memoryPort) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	m := p.r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.ID != fabric.Copied {
		return p.send(peer, b, n, w, cookie)
	}
	if err := fabric.CheckCopied(peer, b, n, w, cookie); err != nil {
		return err
	}
	own, err := p.reserve(f)
	if err != nil {
		return err
	}
	copy(own.Data, b.Data[:n])
	if err = p.send(peer, own, n, nil, 0); err != nil {
		p.release(own.ID)
	}
	return err
}

func (p *memoryPort) send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64) error {
	m := p.r.m
	if err := p.usable("send"); err != nil {
		return err
	}
	if p.r.dead != nil {
		return p.r.dead
	}
	if p.down[peer] != nil {
		return &fabric.PeerDownError{Rank: peer, Op: "send", Cause: p.down[peer]}
	}
	if w != nil {
		if err := fabric.CheckRange("write", peer, w.Off, uint64(len(w.Src)), uint64(len(m.ranks[peer].Segment))); err != nil {
			return err
		}
	}
	q := m.ranks[peer].ports[p.num]
	if q == nil || q.closed || p.to[peer] >= m.Queue {
		return errFull
	}
	p.meet(peer)
	q.meet(p.r.rank)
	if w != nil {
		copy(m.ranks[peer].Segment[w.Off:], w.Src)
		p.stats.Writes++
	}
	p.stats.Sends++
	p.to[peer]++
	q.deliver(mail{from: p.r.rank, data: b.Data[:n], cookie: cookie, buf: b.ID, sender: p}) // the buffer is taken until then
	return nil
}

// deliver puts a message in a slot, or has it wait.
func (p *memoryPort) deliver(x mail) {
	k := len(p.posted) - 1
	if k < 0 {
		p.stats.RNR++
		p.backlog = append(p.backlog, x)
		return
	}
	id := p.posted[k]
	p.posted, p.ours[id] = p.posted[:k], true
	n := copy(p.slots[id], x.data)
	p.stats.Arrivals++
	p.push(fabric.Event{Kind: fabric.Arrived, Peer: x.from, Slot: id, Epoch: 1, Data: p.slots[id][:n:n]})
	if s := x.sender; s != nil {
		s.to[p.r.rank]--
		s.release(x.buf)
		if x.cookie != 0 {
			s.push(fabric.Event{Kind: fabric.Sent, Peer: p.r.rank, Cookie: x.cookie})
		}
	}
}

func (p *memoryPort) Kick() error { return nil }

func (p *memoryPort) Note(peer int, data []byte) error {
	m := p.r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.down[peer] != nil {
		return &fabric.PeerDownError{Rank: peer, Op: "note", Cause: p.down[peer]}
	}
	if len(data) > 64 {
		return errors.New("memory: the note is too long")
	}
	p.stats.Notes++
	q := m.ranks[peer].ports[p.num]
	if q == nil || p.r.dead != nil || q.down[p.r.rank] != nil || m.rng.Float64() < m.NoteLoss {
		return nil
	}
	q.push(fabric.Event{Kind: fabric.NoteArrived, Peer: p.r.rank, Data: append([]byte(nil), data...)})
	return nil
}

func (p *memoryPort) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	for until := time.Now().Add(budget); ; runtime.Gosched() {
		n, err := p.poll(events)
		if n > 0 || err != nil || !time.Now().Before(until) {
			return n, err
		}
	}
}

func (p *memoryPort) poll(events []fabric.Event) (int, error) {
	p.r.m.mu.Lock()
	defer p.r.m.mu.Unlock()
	if err := p.usable("poll"); err != nil {
		return 0, err
	}
	if p.r.dead != nil { // nothing reaches it any more
		return 0, nil
	}
	n := copy(events, p.events)
	p.events = append(p.events[:0], p.events[n:]...)
	return n, nil
}

func (p *memoryPort) Post(slots ...int32) error {
	p.r.m.mu.Lock()
	defer p.r.m.mu.Unlock()
	for _, id := range slots {
		if !p.ours[id] {
			return fmt.Errorf("memory: slot %d is not the caller's", id)
		}
		for i := range p.slots[id] {
			p.slots[id][i] = 0xA5
		}
		p.ours[id] = false
		p.posted = append(p.posted, id)
	}
	for len(p.backlog) > 0 && len(p.posted) > 0 {
		x := p.backlog[0]
		p.backlog = p.backlog[1:]
		p.deliver(x)
	}
	return nil
}

func (p *memoryPort) Wait(ctx context.Context) error {
	p.r.m.mu.Lock()
	some := len(p.events) > 0 && p.r.dead == nil
	p.r.m.mu.Unlock()
	if some {
		return nil
	}
	select {
	case <-p.kick:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *memoryPort) Wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *memoryPort) Now() time.Duration    { return time.Since(p.start) }
func (p *memoryPort) After(t time.Duration) { time.AfterFunc(t-p.Now(), p.Wake) }
func (p *memoryPort) Connected() int        { return len(p.met) }
func (p *memoryPort) Disconnect(int) error  { return nil }

func (p *memoryPort) Stats() fabric.EndpointStats {
	p.r.m.mu.Lock()
	defer p.r.m.mu.Unlock()
	s := p.stats
	s.Posted, s.FreeSends = len(p.posted), len(p.free)
	return s
}

func (p *memoryPort) Close() error {
	p.r.m.mu.Lock()
	defer p.r.m.mu.Unlock()
	p.closed = true
	return nil
}
