package shm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Ports of ranks in processes of their own; see process_test.go.

var processEndpoint = fabric.EndpointConfig{Slots: 64, SlotSize: 4096, Sends: 32}

func openEndpoint(t testing.TB, n *Network, cfg fabric.EndpointConfig) *endpoint {
	t.Helper()
	p, err := n.NewEndpoint(0, cfg)
	must(t, err)
	closeAtEnd(t, p)
	return p.(*endpoint)
}

// childEndpoint is the life of a rank that uses ports.
func childEndpoint(n *Network, role string, in *bufio.Scanner) error {
	fp, err := n.NewEndpoint(0, processEndpoint)
	if err != nil {
		return err
	}
	p := fp.(*endpoint)
	ended := make(chan struct{})
	go func() {
		for in.Scan() {
		}
		close(ended)
		p.Wake()
	}()
	c := &client{p: p}
	fmt.Println("ready")
	switch role {
	case "echo":
		err = c.echo(ended, false)
	case "sleepyecho":
		err = c.echo(ended, true)
	case "sink":
		err = c.sink(ended)
	case "flood":
		err = c.flood(ended)
	case "claimer": // claims a slot of rank 0 and stays in the middle of its message
		if err = c.send(0, make([]byte, 8)); err == nil {
			l := p.link(0)
			for {
				l.mu.Lock()
				if l.state == linkUp && l.waiting == 0 {
					if cell, _ := l.remote.claim(p.rank); cell == nil {
						err = errors.New("no slot to claim")
					}
					break
				}
				l.mu.Unlock()
				if _, err := p.Poll(c.events[:], time.Millisecond); err != nil {
					return err
				}
			}
			l.mu.Unlock()
			fmt.Println("claimed")
			<-ended
		}
	default:
		err = fmt.Errorf("no role %q", role)
	}
	return errors.Join(err, p.Close())
}

// client sends and takes messages.
type client struct {
	p      *endpoint
	events [64]fabric.Event
	slots  [64]int32
}

// send sends to a peer as soon as it can.
func (c *client) send(peer int, data []byte) error {
	for {
		b, err := c.p.Reserve(0)
		if err == nil {
			n := copy(b.Data, data)
			return c.p.Send(peer, b, n, nil, 0, fabric.Solicited)
		}
		if !errors.Is(err, fabric.ErrAgain) {
			return err
		}
		if err := c.p.Kick(); err != nil {
			return err
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// take polls once and gives each message to f.
func (c *client) take(budget time.Duration, f func(e *fabric.Event) error) (int, error) {
	n, err := c.p.Poll(c.events[:], budget)
	k := 0
	for i := range c.events[:n] {
		e := &c.events[i]
		if e.Kind != fabric.Arrived {
			continue
		}
		if f != nil {
			if err := f(e); err != nil {
				return k, err
			}
		}
		c.slots[k] = e.Slot
		k++
	}
	if k > 0 {
		err = errors.Join(err, c.p.Post(c.slots[:k]...))
	}
	return k, err
}

func over(ended chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// echo sends every message back.
func (c *client) echo(ended chan struct{}, sleepy bool) error {
	back := func(e *fabric.Event) error { return c.send(e.Peer, e.Data) }
	for !over(ended) {
		k, err := c.take(100*time.Microsecond, back)
		if err != nil {
			return err
		}
		if sleepy && k == 0 {
			if err := c.p.Wait(context.Background()); err != nil {
				return err
			}
		}
	}
	return nil
}

// sink takes messages, checks their numbers, and grants credits by a word of the sender's segment.
func (c *client) sink(ended chan struct{}) error {
	l, err := c.p.n.NewLane()
	if err != nil {
		return err
	}
	defer l.Close()
	var word [8]byte
	count := uint64(0)
	check := func(e *fabric.Event) error {
		if got := binary.LittleEndian.Uint64(e.Data); got != count {
			return fmt.Errorf("message %d came where %d should", got, count)
		}
		count++
		return nil
	}
	for !over(ended) {
		k, err := c.take(100*time.Microsecond, check)
		if err != nil {
			return err
		}
		if k > 0 {
			binary.LittleEndian.PutUint64(word[:], count)
			if _, err := l.Put(0, 0, word[:], 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// flood sends numbered messages of all sizes to rank 0, without regard to slots.
func (c *client) flood(ended chan struct{}) error {
	rng := rand.New(rand.NewPCG(1, uint64(c.p.rank)))
	buf := make([]byte, processEndpoint.SlotSize)
	for seq := uint64(0); !over(ended); seq++ {
		n := 16 + rng.IntN(1<<rng.IntN(12))
		for i := range buf[:n] {
			buf[i] = byte(seq) + byte(i)
		}
		binary.LittleEndian.PutUint64(buf, seq)
		if err := c.send(0, buf[:n]); err != nil {
			return err
		}
		if seq%16 == 0 {
			if _, err := c.take(0, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// await takes messages until there is one; between polls it sleeps, or not.
func (c *client) await(ctx context.Context, sleepy bool, f func(e *fabric.Event) error) error {
	for {
		budget := 100 * time.Microsecond
		if sleepy {
			budget = 0
		}
		k, err := c.take(budget, f)
		if k > 0 || err != nil {
			return err
		}
		if sleepy {
			if err := c.p.Wait(ctx); err != nil {
				return err
			}
		}
	}
}

// floodCheck checks what floods send.
type floodCheck struct {
	client
	seq  map[int]uint64
	down map[int]bool
}

func newFloodCheck(p *endpoint) *floodCheck {
	return &floodCheck{client: client{p: p}, seq: make(map[int]uint64), down: make(map[int]bool)}
}

func (x *floodCheck) poll(t testing.TB) {
	t.Helper()
	n, err := x.p.Poll(x.events[:], time.Millisecond)
	must(t, err)
	for i := range x.events[:n] {
		switch e := &x.events[i]; e.Kind {
		case fabric.Arrived:
			x.check(t, e)
			must(t, x.p.Post(e.Slot))
		case fabric.Down:
			x.down[e.Peer] = true
		}
	}
}

func (x *floodCheck) check(t testing.TB, e *fabric.Event) {
	t.Helper()
	if x.down[e.Peer] {
		t.Fatalf("a message of rank %d after its end", e.Peer)
	}
	if got := binary.LittleEndian.Uint64(e.Data); got != x.seq[e.Peer] {
		t.Fatalf("message %d of rank %d came where %d should", got, e.Peer, x.seq[e.Peer])
	}
	for i, b := range e.Data[8:] {
		if b != byte(x.seq[e.Peer])+byte(i+8) {
			t.Fatalf("message %d of rank %d: byte %d is wrong", x.seq[e.Peer], e.Peer, i+8)
		}
	}
	x.seq[e.Peer]++
}

// until polls until cond holds.
func (x *floodCheck) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !cond(); {
		x.poll(t)
		if time.Now().After(end) {
			t.Fatalf("no end of waiting for %s; %+v", what, x.p.Stats())
		}
	}
}

func TestKilledSendersAreTheOnlyOnesToStop(t *testing.T) {
	n, kids := startJob(t, 5, "flood", nil)
	for _, c := range kids {
		c.line(t)
	}
	p := openEndpoint(t, n, processEndpoint)
	x := newFloodCheck(p)
	x.until(t, "messages of all", func() bool { return min(x.seq[1], x.seq[2], x.seq[3], x.seq[4]) > 200 })
	for _, victim := range []int{2, 4} {
		must(t, kids[victim-1].Cmd.Process.Kill())
		was := [2]uint64{x.seq[1], x.seq[3]}
		x.until(t, "the end of the victim, and more of the others", func() bool {
			return x.down[victim] && x.seq[1] > was[0]+200 && x.seq[3] > was[1]+200
		})
	}
	for _, survivor := range []int{1, 3} {
		must(t, kids[survivor-1].Cmd.Process.Signal(unix.SIGKILL))
	}
	x.until(t, "all slots", func() bool { return x.down[1] && x.down[3] && p.Stats().Posted == processEndpoint.Slots })
	if r := p.posts.repairs.Load(); r > 4 {
		t.Errorf("%d slots had to be taken back, want at most one of each victim", r)
	}
}

func TestSlotOfAKilledSenderComesBack(t *testing.T) {
	n, kids := startJob(t, 3, "claimer", nil)
	p := openEndpoint(t, n, processEndpoint)
	x := &client{p: p}
	for _, c := range kids {
		c.line(t)
	}
	lines := make(chan string, 2)
	for _, c := range kids {
		go func() { c.Out.Scan(); lines <- c.Out.Text() }()
	}
	for claims := 0; claims < 2; {
		if _, err := x.take(time.Millisecond, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-lines:
			if claims++; s != "claimed" {
				t.Fatalf("a child says %q", s)
			}
		default:
		}
	}
	must(t, kids[0].Cmd.Process.Kill())
	must(t, kids[1].Cmd.Process.Kill())
	for end := time.Now().Add(testTimeout); p.posts.repairs.Load() < 2; {
		if _, err := x.take(time.Millisecond, nil); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("the slots that they had claimed did not come back")
		}
	}
	if s := p.Stats(); s.Posted != processEndpoint.Slots || s.Connects+s.Accepts != 2 {
		t.Errorf("%+v, want all %d slots posted", s, processEndpoint.Slots)
	}
}

func TestMessagesBetweenSleepingProcessesComeBack(t *testing.T) {
	n, kids := startJob(t, 2, "sleepyecho", nil)
	kids[0].line(t)
	p := openEndpoint(t, n, processEndpoint)
	x := &client{p: p}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for round := 0; round < 500 || p.Stats().Doorbells == 0; round++ {
		if round >= 500 { // the peer did not fall asleep before the message came: give it time
			time.Sleep(5 * time.Millisecond)
		}
		if ctx.Err() != nil {
			t.Fatal("no peer was woken")
		}
		msg := make([]byte, 1+round*7%4096)
		msg[0] = byte(round)
		must(t, x.send(1, msg))
		must(t, x.await(ctx, true, func(e *fabric.Event) error {
			if len(e.Data) != len(msg) || e.Data[0] != byte(round) {
				return fmt.Errorf("round %d: %d bytes came back", round, len(e.Data))
			}
			return nil
		}))
	}
	kids[0].finish(t)
}

// BenchmarkRoundTrip is a message and its echo between two processes that poll.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{8, 64, 256, 4096} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) { roundTrips(b, "echo", size) })
	}
}

// BenchmarkSleepyRoundTrip is the same when both sleep until they are woken.
func BenchmarkSleepyRoundTrip(b *testing.B) { roundTrips(b, "sleepyecho", 8) }

func roundTrips(b *testing.B, role string, size int) {
	n, kids := startJob(b, 2, role, nil)
	kids[0].line(b)
	x := &client{p: openEndpoint(b, n, processEndpoint)}
	msg := make([]byte, size)
	for b.Loop() {
		must(b, x.send(1, msg))
		must(b, x.await(b.Context(), role == "sleepyecho", nil))
	}
	kids[0].finish(b)
}

// BenchmarkOneWay is a stream of messages to another process, which checks their order.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{8, 64, 4096} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			n, kids := startJob(b, 2, "sink", nil)
			kids[0].line(b)
			p := openEndpoint(b, n, processEndpoint)
			x := &client{p: p}
			word := n.cfg.Segment.Bytes()[:8]
			msg := make([]byte, size)
			sent, credit := uint64(0), uint64(processEndpoint.Slots)
			b.SetBytes(int64(size))
			for b.Loop() {
				for sent >= credit {
					credit = loadWord(word) + uint64(processEndpoint.Slots)
				}
				binary.LittleEndian.PutUint64(msg, sent)
				must(b, x.send(1, msg))
				sent++
			}
			for loadWord(word) < sent {
			}
			if r := p.Stats().RNR; r > 0 {
				b.Errorf("%d messages met no slot", r)
			}
			kids[0].finish(b)
		})
	}
}
