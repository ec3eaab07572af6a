package shm

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// pair is two connected endpoints; the process of the second attacks the first.
func pair(t testing.TB) (victim, hostile *endpoint) {
	t.Helper()
	p := openEndpoints(t, 2, smallEndpoint)
	e := exchange(t, p[1], p[0], 200)
	must(t, p[0].Post(e.Slot))
	must(t, p[1].Note(0, []byte("so that no ticket is 0")))
	for p[0].noted.head == 0 {
		if _, err := p[0].Poll(make([]fabric.Event, 1), 0); err != nil {
			t.Fatal(err)
		}
	}
	return p[0], p[1]
}

// remote is rank 0's region, as another rank has it mapped.
func remote(p *endpoint) *region {
	l := p.link(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remote
}

// settle polls until all slots of the victim are posted and so many cells were repaired.
func settle(t testing.TB, p *endpoint, repairs uint64) {
	t.Helper()
	var events [8]fabric.Event
	for end := time.Now().Add(testTimeout); p.posts.repairs.Load() < repairs || p.Stats().Posted != p.cfg.Slots; {
		n, err := p.Poll(events[:], time.Millisecond)
		must(t, err)
		for _, e := range events[:n] {
			if e.Kind == fabric.Arrived {
				t.Errorf("a message of %d bytes came out of a broken cell", len(e.Data))
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%d repairs of %d, %+v", p.posts.repairs.Load(), repairs, p.Stats())
		}
	}
}

// A message with wrong numbers ends its sender, and costs the receiver no slot.
func TestWrongMessagesEndTheirSender(t *testing.T) {
	for what, lie := range map[string]func(c *cell, l *link){
		"one byte too long":  func(c *cell, l *link) { c.n = 513 },
		"as long as can be":  func(c *cell, l *link) { c.n = math.MaxUint32 },
		"another connection": func(c *cell, l *link) { c.epoch++ },
		"none":               func(c *cell, l *link) { c.epoch = 0 },
		"a message again":    func(c *cell, l *link) { c.seq-- },
		"a message missing":  func(c *cell, l *link) { c.seq++ },
	} {
		victim, hostile := pair(t)
		l := hostile.link(0)
		l.mu.Lock()
		c, ticket := l.remote.claim(hostile.rank)
		c.n, c.epoch, c.seq = 8, l.epoch, l.sent
		lie(c, l)
		atomic.StoreUint64(&c.word, wordOf(ticket, full, hostile.rank))
		l.mu.Unlock()
		if e := ended(t, victim); e.Peer != 1 || e.Err == nil {
			t.Errorf("%s: %+v", what, e)
		}
		settle(t, victim, 0)
	}
}

// A cell in an impossible state is skipped, its slot is posted again, and the next message comes.
func TestCellsThatCannotBeAreRepaired(t *testing.T) {
	for what, word := range map[string]func(h uint64) uint64{
		"zero":                func(h uint64) uint64 { return 0 },
		"ones":                func(h uint64) uint64 { return math.MaxUint64 },
		"a later ticket":      func(h uint64) uint64 { return wordOf(h+8, posted, 0) },
		"posted by a rank":    func(h uint64) uint64 { return wordOf(h, posted, 1) },
		"claimed by no rank":  func(h uint64) uint64 { return wordOf(h, claimed, 2) },
		"full of no rank":     func(h uint64) uint64 { return wordOf(h, full, maxRank) },
		"taken":               func(h uint64) uint64 { return wordOf(h, taken, 0) },
		"full of the victim":  func(h uint64) uint64 { return wordOf(h, full, 0) },
		"a note's of nowhere": func(h uint64) uint64 { return wordOf(h, full, 3) },
	} {
		victim, hostile := pair(t)
		for _, r := range []*receiver{&victim.receive, &victim.noted} {
			if what == "full of the victim" && r == &victim.noted {
				continue // a note to oneself is none
			}
			r2, was := remote(hostile), victim.posts.repairs.Load()
			ring := &r2.ring
			if r == &victim.noted {
				ring = &r2.note
			}
			atomic.StoreUint64(&ring.cell(r.head).word, word(r.head))
			want := was + 1
			if what == "full of the victim" {
				want = was
			}
			settle(t, victim, want)
		}
		if e := exchange(t, hostile, victim, 100); len(e.Data) != 100 {
			t.Errorf("%s: %d bytes", what, len(e.Data))
		}
	}
}

func TestSenderChecksSlotNumbers(t *testing.T) {
	victim, hostile := pair(t) // here the receiver misleads the sender
	for _, id := range []uint32{8, math.MaxUint32} {
		atomic.StoreUint32(&victim.receive.cell(victim.receive.head).slot, id)
		e := exchange(t, hostile, victim, 500) // found out, and sent again
		if len(e.Data) != 500 {
			t.Errorf("%d bytes", len(e.Data))
		}
		must(t, victim.Post(e.Slot))
	}
	if r := victim.posts.repairs.Load(); r != 2 {
		t.Errorf("%d cells were repaired, want 2", r)
	}
}

func TestTailThatCannotBeIsPutRight(t *testing.T) {
	victim, hostile := pair(t)
	r := &victim.receive
	for _, budget := range []time.Duration{0, time.Microsecond, time.Millisecond} { // none is too short to notice
		for what, tail := range map[string]func() uint64{
			"0":                        func() uint64 { return 0 },
			"the last":                 func() uint64 { return math.MaxUint64 },
			"far ahead":                func() uint64 { return 1 << 40 },
			"behind":                   func() uint64 { return r.head - 1 },
			"beyond an unclaimed cell": func() uint64 { return r.head + 1 },
			"the end":                  func() uint64 { return r.next },
			"beyond the end":           func() uint64 { return r.next + 1 },
		} {
			t.Logf("%s with a budget of %v", what, budget)
			atomic.StoreUint64(r.tail, tail())
			send(t, hostile, int(victim.rank), 8, 0, 0)
			must(t, victim.Post(arrival(t, hostile, victim, budget).Slot))
		}
	}
}

// A process writes anything anywhere into the region while others send. Whatever comes out of
// it is within the region.
func TestPollStaysInARegionUnderAttack(t *testing.T) {
	p := openEndpoints(t, 3, smallEndpoint)
	victim, hostile, other := p[0], p[1], p[2]
	for _, q := range p[1:] {
		must(t, victim.Post(exchange(t, q, victim, 8).Slot))
	}
	rng := rand.New(rand.NewPCG(6, 7))
	mem := remote(hostile).mem.Bytes()
	cells := headSize + int(victim.receive.mask+1)*cellSize
	x := &client{p: victim}
	lent := make(map[int32]bool)
	for range 20_000 {
		at := rng.IntN(len(mem)) &^ 7
		if rng.IntN(4) > 0 {
			at = rng.IntN(cells) &^ 7
		}
		w := (*uint64)(unsafe.Pointer(victim.byteAt(at)))
		switch rng.IntN(3) {
		case 0:
			atomic.StoreUint64(w, rng.Uint64())
		case 1: // nearly right
			atomic.StoreUint64(w, wordOf(victim.receive.head+uint64(rng.IntN(3)), uint32(rng.IntN(4)), uint32(rng.IntN(4))))
		case 2:
			atomic.AddUint64(w, 1<<rng.IntN(64))
		}
		if b, err := other.Reserve(0); err == nil {
			if other.Send(0, b, 1+rng.IntN(512), nil, 0, 0) != nil {
				other.Release(b)
			}
		}
		n, err := victim.Poll(x.events[:], 0)
		must(t, err)
		for _, e := range x.events[:n] {
			if e.Kind != fabric.Arrived {
				continue
			}
			if lent[e.Slot] || e.Slot < 0 || int(e.Slot) >= smallEndpoint.Slots || len(e.Data) > smallEndpoint.SlotSize || e.Peer < 0 || e.Peer > 2 {
				t.Fatalf("slot %d, lent: %v, %d bytes of rank %d", e.Slot, lent[e.Slot], len(e.Data), e.Peer)
			}
			lent[e.Slot] = true
		}
		for id := range lent {
			if rng.IntN(2) == 0 {
				must(t, victim.Post(id))
				delete(lent, id)
			}
		}
		must(t, other.Kick())
	}
	if victim.posts.repairs.Load() == 0 {
		t.Error("nothing had to be repaired: the test does not write where it matters")
	}
}

// byteAt is an aligned place of the endpoint's region.
func (p *endpoint) byteAt(off int) *byte { return &p.region.mem.Bytes()[off] }

func TestPacketsThatMeanNothingEndTheirSender(t *testing.T) {
	k := func(kind byte, port, epoch, a, b uint32) []byte {
		x := packet{kind: kind, endpoint: port, epoch: epoch, a: a, b: b}.encode()
		return x[:]
	}
	for what, b := range map[string][]byte{
		"short":                          k(kindRequest, 0, 1, 8, 512)[:19],
		"long":                           append(k(kindRequest, 0, 1, 8, 512), 0),
		"kind":                           k(kindNote+1, 0, 1, 8, 512),
		"endpoint":                       k(kindRequest, maxEndpoints, 1, 8, 512),
		"request without a region":       k(kindRequest, 0, 2, 8, 512),
		"no slots":                       k(kindRequest, 0, 2, 0, 512),
		"too many slots":                 k(kindRequest, 0, 2, maxSlots+1, 512),
		"slots without size":             k(kindRequest, 0, 2, 8, 0),
		"reply to no request":            k(kindReply, 5, 1, 8, 512),
		"wake of an endpoint never seen": k(kindWake, 5, 0, 0, 0),
		"long note":                      append([]byte{kindNote, 0, 0, 0, 0, 0, 0, 0}, make([]byte, maxNote+1)...),
		"note to endpoint 99":            {kindNote, 0, 0, 0, 99, 0, 0, 0, 1},
	} {
		p := openEndpoints(t, 3, smallEndpoint)
		if _, err := p[1].n.peers[0].conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if e := ended(t, p[0]); e.Peer != 1 {
			t.Errorf("%s: %+v", what, e)
		}
		var pd *fabric.PeerDownError
		if err := p[0].Note(1, nil); !errors.As(err, &pd) {
			t.Errorf("%s: note to the sender: %v", what, err)
		}
		if e := exchange(t, p[2], p[0], 8); e.Peer != 2 {
			t.Errorf("%s: message of rank %d", what, e.Peer)
		}
	}
}

func FuzzPacket(f *testing.F) {
	for kind := range byte(kindNote + 2) {
		b := packet{kind: kind, endpoint: 1, epoch: 2, a: 3, b: 4}.encode()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := decodePacket(b)
		if err != nil {
			return
		}
		if again := k.encode(); string(again[:]) != string(b) {
			t.Errorf("%x is not the encoding of %+v", b, k)
		}
	})
}

// FuzzRegion writes into the region of a rank that sends to itself.
func FuzzRegion(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 0, 0, 0, 255, 1, 2})
	f.Add([]byte{3, 0, 64, 0, 1, 128, 1, 3, 1, 0, 9, 2})
	f.Fuzz(func(t *testing.T, script []byte) {
		n, _ := newNetworks(t, 1, 4096, t.Name(), nil)
		must(t, n[0].Connect(t.Context(), [][]byte{n[0].Addr()}, nil))
		p := openEndpoint(t, n[0], fabric.EndpointConfig{Slots: 3, SlotSize: 150, Sends: 2})
		var events [2]fabric.Event
		for len(script) >= 4 {
			op, at, v := script[0]%4, int(script[1])<<8|int(script[2]), script[3]
			script = script[4:]
			switch op {
			case 0:
				mem := p.region.mem.Bytes()
				mem[at%len(mem)] = v
			case 1:
				if b, err := p.Reserve(0); err == nil && p.Send(0, b, int(v)%151, nil, 0, 0) != nil {
					p.Release(b)
				}
			case 2:
				_ = p.Note(0, make([]byte, v))
			case 3:
				k, err := p.Poll(events[:], 0)
				must(t, err)
				for _, e := range events[:k] {
					if e.Kind == fabric.Arrived {
						if len(e.Data) > 150 {
							t.Fatalf("%d bytes in a slot of 150", len(e.Data))
						}
						must(t, p.Post(e.Slot))
					}
				}
				_ = p.Kick()
			}
		}
	})
}

// Another process writes into the rings all the time: a Poll looks at each cell once.
func TestPollLooksAtEachCellOnce(t *testing.T) {
	victim, hostile := pair(t)
	f := remote(hostile)
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for _, r := range []*ring{&f.ring, &f.note} {
		wg.Go(func() {
			for !stop.Load() {
				for i := range r.mask + 1 {
					atomic.StoreUint64(&r.cell(i).word, 0)
				}
			}
		})
	}
	var events [8]fabric.Event
	for repairs := victim.posts.repairs.Load() + 10_000; victim.posts.repairs.Load() < repairs; {
		cells, notes := victim.receive.head, victim.noted.head
		if _, err := victim.Poll(events[:], 0); err != nil {
			t.Fatal(err)
		}
		if cells, notes = victim.receive.head-cells, victim.noted.head-notes; cells > uint64(victim.cfg.Slots) || notes > noteSlots {
			t.Fatalf("one Poll went over %d cells of %d, and %d notes of %d", cells, victim.cfg.Slots, notes, noteSlots)
		}
	}
}

// A cell may name a rank that is not served, as those of other hosts: none of them can have left it
// so, and none is blamed.
func TestCellsOfRanksThatAreNotServedAreGivenUp(t *testing.T) {
	for _, state := range []uint32{full, claimed} {
		nets, addrs := newNetworks(t, 3, 4096, t.Name(), func(at, rank int, cause error) { t.Errorf("rank %d finds rank %d down: %v", at, rank, cause) })
		addrs[2] = nil
		must(t, connect(t.Context(), nets[:2], addrs))
		victim, hostile := openEndpoint(t, nets[0], smallEndpoint), openEndpoint(t, nets[1], smallEndpoint)
		must(t, victim.Post(exchange(t, hostile, victim, 200).Slot))
		cell := remote(hostile).cell(victim.receive.head)
		atomic.StoreUint64(&cell.word, wordOf(victim.receive.head, state, 2))
		settle(t, victim, 1)
		exchange(t, hostile, victim, 200)
	}
}
