package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// openEndpoints joins ranks and opens port 0 of each.
func openEndpoints(t testing.TB, n int, cfg fabric.EndpointConfig) []*endpoint {
	t.Helper()
	ports := make([]*endpoint, n)
	for r, net := range joinAll(t, n, 4096) {
		ports[r] = openEndpoint(t, net, cfg)
	}
	return ports
}

var smallEndpoint = fabric.EndpointConfig{Slots: 8, SlotSize: 512, Sends: 8}

// send sends one message of a size.
func send(t testing.TB, from *endpoint, peer, size int, cookie uint64, f fabric.SendFlag) {
	t.Helper()
	b, err := from.Reserve(0)
	must(t, err)
	for i := range b.Data[:size] {
		b.Data[i] = byte(i + size)
	}
	must(t, from.Send(peer, b, size, nil, cookie, f))
}

// exchange sends one message of a size from one endpoint to another and polls both until it is
// there.
func exchange(t testing.TB, from, to *endpoint, size int) fabric.Event {
	t.Helper()
	send(t, from, int(to.rank), size, 0, 0)
	return arrival(t, from, to, 10*time.Microsecond)
}

// arrival polls both, the receiver with a budget, until a message is there.
func arrival(t testing.TB, from, to *endpoint, budget time.Duration) fabric.Event {
	t.Helper()
	var e [1]fabric.Event
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		if from != to {
			if _, err := from.Poll(e[:], 0); err != nil {
				t.Fatal(err)
			}
		}
		n, err := to.Poll(e[:], budget)
		must(t, err)
		if n > 0 && e[0].Kind == fabric.Arrived {
			return e[0]
		}
	}
	t.Fatalf("the message did not come; sender %+v, receiver %+v", from.Stats(), to.Stats())
	return e[0]
}

func TestMessagesOfEverySizeAreExact(t *testing.T) {
	p := openEndpoints(t, 2, fabric.EndpointConfig{Slots: 3, SlotSize: 300, Sends: 1})
	for size := 0; size <= 300; size++ {
		e := exchange(t, p[0], p[1], size)
		if len(e.Data) != size || cap(e.Data) != size || e.Peer != 0 || e.Epoch != 1 {
			t.Fatalf("%d bytes of rank %d, connection %d, want %d bytes", len(e.Data), e.Peer, e.Epoch, size)
		}
		for i, b := range e.Data {
			if b != byte(i+size) {
				t.Fatalf("byte %d of %d is wrong", i, size)
			}
		}
		must(t, p[1].Post(e.Slot))
	}
}

func TestRankSendsToItself(t *testing.T) {
	p := openEndpoints(t, 1, smallEndpoint)[0]
	for round := range 3 {
		e := exchange(t, p, p, 200)
		if int(e.Epoch) != round+1 || p.Connected() != 1 {
			t.Errorf("connection %d, %d open, want %d and 1", e.Epoch, p.Connected(), round+1)
		}
		must(t, p.Post(e.Slot))
		must(t, p.Note(0, []byte("to myself")))
		must(t, p.Disconnect(0))
		var events [4]fabric.Event
		if n, err := p.Poll(events[:], 0); err != nil || n != 2 || string(events[0].Data) != "to myself" || events[1].Kind != fabric.Idle {
			t.Errorf("%+v, %v, want a note, then Idle", events[:n], err)
		}
	}
}

func TestSendPollAndPostAllocateNothing(t *testing.T) {
	p := openEndpoints(t, 2, smallEndpoint)
	x, y := &client{p: p[0]}, &client{p: p[1]}
	msg := make([]byte, 256)
	round := func() {
		for _, n := range []int{8, 256} {
			send(t, p[0], 1, n, 7, fabric.Solicited)
		}
		must(t, p[0].Note(1, msg[:64]))
		for got := 0; got < 2; {
			k, err := y.take(10*time.Microsecond, nil)
			must(t, err)
			got += k
			if _, err := x.take(0, nil); err != nil { // the Sent events
				t.Fatal(err)
			}
		}
	}
	round() // makes the connection
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

// Eight goroutines at each of three ranks send to the other two, as fast as credits allow.
func TestManySendersShareAnEndpoint(t *testing.T) {
	const ranks, senders, each = 3, 8, 600
	cfg := fabric.EndpointConfig{Slots: 32, SlotSize: 256, Sends: 12, Reserved: 2}
	ports := openEndpoints(t, ranks, cfg)
	var taken [ranks][senders * ranks][]uint64 // by receiver: numbers in order of arrival
	var credits [ranks]atomic.Int64
	for r := range credits {
		credits[r].Store(int64(cfg.Slots))
	}
	var left atomic.Int64
	left.Store(ranks * senders * each)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for r, p := range ports {
		wg.Go(func() { // the one that polls
			x := &client{p: p}
			for left.Load() > 0 && ctx.Err() == nil {
				k, err := x.take(50*time.Microsecond, func(e *fabric.Event) error {
					sender := int(e.Data[0])
					taken[r][sender] = append(taken[r][sender], binary.LittleEndian.Uint64(e.Data[1:]))
					left.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
					cancel()
				}
				credits[r].Add(int64(k))
			}
		})
		for s := range senders {
			wg.Go(func() {
				for i := range uint64(each) {
					to := (r + 1 + (int(i)+s)%(ranks-1)) % ranks
					for credits[to].Add(-1) < 0 {
						credits[to].Add(1)
						if ctx.Err() != nil {
							return
						}
						time.Sleep(50 * time.Microsecond)
					}
					for {
						b, err := p.Reserve(0)
						if err == nil {
							b.Data[0] = byte(r*senders + s)
							binary.LittleEndian.PutUint64(b.Data[1:], i)
							if err = p.Send(to, b, 9+int(i)%200, nil, 0, fabric.Solicited); err == nil {
								break
							}
							p.Release(b)
						}
						if !errors.Is(err, fabric.ErrAgain) || ctx.Err() != nil {
							t.Error(err)
							cancel()
							return
						}
						time.Sleep(50 * time.Microsecond)
					}
				}
			})
		}
	}
	wg.Wait()
	total := 0
	for r := range taken {
		for sender, seqs := range taken[r] {
			for k := 1; k < len(seqs); k++ {
				if seqs[k] <= seqs[k-1] {
					t.Fatalf("rank %d took message %d of sender %d after %d", r, seqs[k], sender, seqs[k-1])
				}
			}
			total += len(seqs)
		}
		if s := ports[r].Stats(); s.RNR != 0 || s.Posted != cfg.Slots || s.FreeSends != cfg.Sends {
			t.Errorf("rank %d: %+v", r, s)
		}
	}
	if total != ranks*senders*each {
		t.Errorf("%d messages arrived, want %d", total, ranks*senders*each)
	}
}

func TestSlotSizesMustAgree(t *testing.T) {
	nets := joinAll(t, 2, 4096)
	a, b := openEndpoint(t, nets[0], smallEndpoint), openEndpoint(t, nets[1], fabric.EndpointConfig{Slots: 8, SlotSize: 1024, Sends: 8})
	send(t, a, 1, 8, 5, 0)
	for _, p := range []*endpoint{a, b} {
		e := ended(t, p)
		if e.Kind != fabric.Down || !strings.Contains(e.Err.Error(), "both ends must agree") {
			t.Errorf("rank %d: %+v", p.rank, e)
		}
	}
}

// ended polls until a peer's end.
func ended(t testing.TB, p *endpoint) fabric.Event {
	t.Helper()
	var e [1]fabric.Event
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		n, err := p.Poll(e[:], time.Millisecond)
		must(t, err)
		if n > 0 && e[0].Kind == fabric.Down {
			return e[0]
		}
	}
	t.Fatalf("rank %d: no peer ended; %+v", p.rank, p.Stats())
	return e[0]
}

func TestClosedEndpointIsDownForItsSenders(t *testing.T) {
	p := openEndpoints(t, 3, smallEndpoint)
	for _, to := range p[1:] {
		e := exchange(t, p[0], to, 8)
		must(t, to.Post(e.Slot))
	}
	must(t, p[1].Close())
	b, err := p[0].Reserve(0)
	must(t, err)
	var pd *fabric.PeerDownError
	if err := p[0].Send(1, b, 8, nil, 0, 0); !errors.As(err, &pd) || !errors.Is(err, errEndpointClosed) {
		t.Errorf("send to a closed port: %v", err)
	}
	if e := ended(t, p[0]); e.Peer != 1 || !errors.Is(e.Err, errEndpointClosed) {
		t.Errorf("%+v", e)
	}
	// A rank without a connection learns it when it requests one.
	send(t, p[2], 1, 8, 0, 0)
	if e := ended(t, p[2]); e.Peer != 1 || !errors.Is(e.Err, errEndpointClosed) {
		t.Errorf("%+v", e)
	}
	p[0].Release(b)
	exchange(t, p[0], p[2], 8) // the others go on
	if _, err := p[0].n.NewEndpoint(0, smallEndpoint); err == nil || !strings.Contains(err.Error(), "opened before") {
		t.Errorf("a number was used twice: %v", err)
	}
}

func TestPeerThatLeftDuringARequestIsDown(t *testing.T) {
	nets := joinAll(t, 2, 4096)
	p := openEndpoint(t, nets[0], smallEndpoint)
	send(t, p, 1, 8, 3, 0) // waits for an endpoint that is never opened
	must(t, nets[1].Close())
	var got []string
	var why error
	for end := time.Now().Add(testTimeout); len(got) < 2 && time.Now().Before(end); {
		var e [1]fabric.Event
		if n, err := p.Poll(e[:], time.Millisecond); err != nil {
			t.Fatal(err)
		} else if n > 0 {
			why = e[0].Err
			got = append(got, fmt.Sprint(e[0].Kind, e[0].Cookie, errors.Is(e[0].Err, errLeft)))
		}
	}
	if want := []string{fmt.Sprint(fabric.Sent, 3, true), fmt.Sprint(fabric.Down, 0, true)}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %v, want %v; %v", got, want, why)
	}
}

func TestEndpointsOfOneRankAreSeparate(t *testing.T) {
	nets := joinAll(t, 2, 4096)
	var p [2][2]*endpoint
	for r, n := range nets {
		for i := range 2 {
			q, err := n.NewEndpoint(i*7, smallEndpoint)
			must(t, err)
			t.Cleanup(func() { q.Close() })
			p[r][i] = q.(*endpoint)
		}
	}
	for i, want := range []int{30, 40} {
		if e := exchange(t, p[0][i], p[1][i], want); len(e.Data) != want {
			t.Errorf("endpoint %d got %d bytes, want %d", i, len(e.Data), want)
		}
	}
	for r := range p {
		for i := range p[r] {
			if c := p[r][i].Connected(); c != 1 {
				t.Errorf("endpoint %d of rank %d has %d connections", i, r, c)
			}
		}
	}
}

// A rank that closes before it has read all packets resets the connection, and the kernel reports
// that before the leave packet.
func TestLeavingBehindUnreadPacketsIsNoDeath(t *testing.T) {
	deaths := make(chan error, 10)
	nets, addrs := newNetworks(t, 2, 4096, t.Name(), func(_, _ int, cause error) { deaths <- cause })
	must(t, connect(t.Context(), nets, addrs))
	p := openEndpoint(t, nets[0], smallEndpoint)
	nets[1].endpointMu.Lock() // its watcher is stopped with the first packet in hand
	for range 3 {
		must(t, p.Note(1, []byte("never read")))
	}
	closed := make(chan error, 1)
	go func() { closed <- nets[1].Close() }()
	for end := time.Now().Add(testTimeout); !nets[0].peers[1].gone.Load(); {
		time.Sleep(time.Millisecond)
		if len(deaths) > 0 || time.Now().After(end) {
			break
		}
	}
	nets[1].endpointMu.Unlock()
	must(t, <-closed)
	if len(deaths) > 0 {
		t.Errorf("a rank that left was reported: %v", <-deaths)
	}
}
