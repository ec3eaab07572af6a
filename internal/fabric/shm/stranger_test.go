package shm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/segment"
)

// greet dials a rank with only the name of its socket, sends
// a packet with a descriptor, and returns what comes back.
func greet(t *testing.T, a addr, packet []byte, fds ...int) (reply []byte, fdCount int) {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: a.socket(), Net: "unixpacket"})
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	if _, _, err := c.WriteMsgUnix(packet, rights(fds), nil); err != nil {
		return nil, 0 // turned away before the first word
	}
	b, oob := make([]byte, 256), make([]byte, 256)
	n, oobn, _, _, _ := c.ReadMsgUnix(b, oob)
	got := descriptors(oob[:oobn])
	for _, fd := range got {
		unix.Close(fd)
	}
	return b[:max(0, n)], len(got) // -1 with ECONNRESET
}

func rights(fds []int) []byte {
	if len(fds) == 0 {
		return nil
	}
	return unix.UnixRights(fds...)
}

// hello is a greeting as the protocol has it.
func hello(from, to *addr) []byte {
	p := &joiner{n: &Network{self: *from}, known: make([]*addr, to.rank+1)}
	p.known[to.rank] = to
	return p.greeting(kindHello, int(to.rank))
}

func TestStrangerIsClosedWithoutAWord(t *testing.T) {
	nets, addrs := newNetworks(t, 2, 4096, t.Name(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	// Rank 0 waits for rank 1 while strangers call.
	joined := make(chan error, 1)
	go func() { joined <- nets[0].Connect(ctx, addrs, nil) }()

	mine := mapSegment(t, 4096)
	good := hello(&nets[1].self, &nets[0].self)
	change := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	for what, packet := range map[string][]byte{
		"noise": []byte("GET / HTTP/1.1"), "one byte": {3}, "short": good[:40], "long": append(bytes.Clone(good), 0),
		"version": change(4), "kind": change(5), "padding": change(7), "rank of sender": change(8), "rank of receiver": change(12),
		"cookie of receiver": change(16), "cookie of sender": change(47),
		"cookies of zeros": append(bytes.Clone(good[:16]), make([]byte, 32)...),
	} {
		if reply, fds := greet(t, nets[0].self, packet, mine.FD()); len(reply) != 0 || fds != 0 {
			t.Errorf("%s: got %d bytes and %d descriptors", what, len(reply), fds)
		}
	}
	must(t, nets[1].Connect(ctx, addrs, nil))
	must(t, <-joined)
	// All ranks have joined: the socket is closed.
	if c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: nets[0].self.socket(), Net: "unixpacket"}); err == nil {
		c.Close()
		t.Error("the socket listens after all ranks have joined")
	}
}

func TestPeerWithoutASealedSegmentIsRefused(t *testing.T) {
	loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(loose)
	must(t, unix.Ftruncate(loose, 8192))
	good := mapSegment(t, 8192)
	for what, fds := range map[string][]int{"unsealed": {loose}, "no": nil, "two": {good.FD(), good.FD()}} {
		nets, addrs := newNetworks(t, 2, 8192, t.Name(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		joined := make(chan error, 1)
		go func() { joined <- nets[0].Connect(ctx, addrs, nil) }()
		greet(t, nets[0].self, hello(&nets[1].self, &nets[0].self), fds...)
		if err := <-joined; err == nil || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%s segment: %v, want an error that names rank 1", what, err)
		}
		cancel()
	}
}

func TestMissingRankIsNamed(t *testing.T) {
	var err error
	for wait := 200 * time.Millisecond; wait < testTimeout; wait *= 10 { // a busy machine needs longer until the others have met
		nets, addrs := newNetworks(t, 3, 4096, t.Name(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		err = connect(ctx, nets[:2], addrs) // rank 2 never comes
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "ranks [2]") {
			return
		}
	}
	t.Errorf("got %v, want a deadline error that names rank 2", err)
}

func TestRankThatGaveUpIsNamedAtOnce(t *testing.T) {
	nets, addrs := newNetworks(t, 2, 4096, t.Name(), nil)
	must(t, nets[0].Close())
	err := nets[1].Connect(t.Context(), addrs, nil)
	if !errors.Is(err, unix.ECONNREFUSED) || !strings.Contains(err.Error(), "rank 0") {
		t.Errorf("got %v, want ECONNREFUSED of rank 0", err)
	}
}

func TestUnreachablePlacesAreNamed(t *testing.T) {
	nets, _ := newNetworks(t, 2, 4096, t.Name(), nil)
	for want, change := range map[string]func(*addr){
		"another host": func(a *addr) { a.place.boot[3] ^= 1 }, "network namespace": func(a *addr) { a.place.nsInode++ },
		"user": func(a *addr) { a.place.uid++ }, "another job": func(a *addr) { a.job[0] ^= 1 }, "of rank 0": func(a *addr) { a.rank = 0 },
	} {
		a := nets[1].self
		change(&a)
		if err := nets[0].Reach(1, a.encode()); !errors.Is(err, fabric.ErrUnreachable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	old := nets[1].Addr()
	old[4] = 9
	if err := nets[0].Reach(1, old); err == nil || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("other version: got %v", err)
	}
	if err := nets[0].Reach(1, nets[1].Addr()); err != nil {
		t.Error(err)
	}
}

func TestTwoJobsInOneProcessDoNotMeet(t *testing.T) {
	a, aAddrs := newNetworks(t, 2, 4096, "a", nil)
	b, bAddrs := newNetworks(t, 2, 4096, "b", nil)
	var wg sync.WaitGroup
	for _, j := range []struct {
		nets  []*Network
		addrs [][]byte
	}{{a, aAddrs}, {b, bAddrs}} {
		wg.Go(func() {
			if err := connect(t.Context(), j.nets, j.addrs); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := newLane(t, a[0]).Put(1, 0, []byte{7}, 0); err != nil {
		t.Fatal(err)
	}
	if a[1].cfg.Segment.Bytes()[0] != 7 || b[1].cfg.Segment.Bytes()[0] != 0 {
		t.Error("a put of one job reached the other")
	}
	if err := a[0].Reach(1, bAddrs[1]); err == nil {
		t.Error("a rank of another job is reachable")
	}
}

func TestRanksOfOtherNetworksAreNotServed(t *testing.T) {
	nets, addrs := newNetworks(t, 3, 4096, t.Name(), nil)
	// Rank 1 is on another host for both.
	near := [][]byte{addrs[0], nil, addrs[2]}
	must(t, connect(t.Context(), []*Network{nets[0], nets[2]}, near))
	l := newLane(t, nets[0])
	var re *fabric.RankError
	if _, err := l.Get(1, 0, make([]byte, 1), 0); !errors.As(err, &re) || !strings.Contains(err.Error(), "not served") {
		t.Errorf("got %v", err)
	}
	if l.Mapped(1) != nil || l.Mapped(2) == nil {
		t.Error("wrong ranks are mapped")
	}
}

// Which ranks reach each other is known before their segments are mapped.
func TestASegmentMayComeAfterReach(t *testing.T) {
	var nets []*Network
	var addrs [][]byte
	for r := range 2 {
		n, err := New(Config{Rank: r, Size: 2, Job: t.Name()})
		must(t, err)
		defer n.Close()
		nets, addrs = append(nets, n), append(addrs, n.Addr())
	}
	must(t, nets[0].Reach(1, addrs[1]))
	if err := nets[0].Connect(t.Context(), addrs, nil); err == nil || !strings.Contains(err.Error(), "SetSegment") {
		t.Errorf("without a segment: %v", err)
	}
	for r, size := range []int64{4096, 12288} {
		must(t, nets[r].SetSegment(mapSegment(t, size)))
	}
	must(t, connect(t.Context(), nets, addrs))
	l := newLane(t, nets[0])
	if _, err := l.Put(1, 12287, []byte{7}, 0); err != nil || nets[1].cfg.Segment.Bytes()[12287] != 7 {
		t.Errorf("the last byte of the peer's: %v", err)
	}
	if _, err := l.Put(1, 12288, []byte{7}, 0); err == nil {
		t.Error("a put behind the peer's segment")
	}
	must(t, l.Close())
}

func TestPrivateSegmentIsRefused(t *testing.T) {
	m, err := segment.Map(segment.Config{Size: 4096})
	must(t, err)
	defer m.Close()
	if _, err := New(Config{Size: 2, Segment: m}); err == nil || !strings.Contains(err.Error(), "Shared") {
		t.Errorf("got %v", err)
	}
}

func TestLeavingIsNoDeath(t *testing.T) {
	deaths := make(chan int, 10)
	nets, addrs := newNetworks(t, 3, 4096, t.Name(), func(_, r int, _ error) { deaths <- r })
	must(t, connect(t.Context(), nets, addrs))
	l := newLane(t, nets[0])
	must(t, nets[1].Close())
	must(t, nets[2].peers[0].conn.Close()) // as if the process had died
	reported := map[int]bool{}
	for len(reported) < 2 { // at both ends of the broken connection
		select {
		case r := <-deaths:
			reported[r] = true
		case <-time.After(testTimeout):
			t.Fatalf("reported: %v, want ranks 0 and 2", reported)
		}
	}
	if !reported[0] || !reported[2] {
		t.Errorf("reported: %v, want ranks 0 and 2", reported)
	}
	if _, err := l.Put(1, 0, []byte{1}, 0); err != nil {
		t.Errorf("put to a rank that left: %v", err)
	}
}

func TestRankThatFailsToJoinIsDeadToOthers(t *testing.T) {
	deaths := make(chan int, 10)
	nets, addrs := newNetworks(t, 3, 4096, t.Name(), func(at, r int, _ error) {
		if at == 0 {
			deaths <- r
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	joined := make(chan error, 1)
	go func() { joined <- nets[0].Connect(ctx, [][]byte{addrs[0], nil, addrs[2]}, nil) }()
	short, stop := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- nets[2].Connect(short, addrs, nil) }() // rank 1 never comes
	must(t, <-joined)
	time.Sleep(50 * time.Millisecond) // rank 2 takes note of rank 0 as well
	stop()
	if err := <-failed; err == nil {
		t.Fatal("rank 2 joined a rank that never came")
	}
	select {
	case r := <-deaths:
		if r != 2 {
			t.Errorf("rank %d was reported", r)
		}
	case <-time.After(testTimeout):
		t.Fatal("not noticed")
	}
}

func TestPeerThatSpeaksOutOfTurnIsDown(t *testing.T) {
	deaths := make(chan error, 10)
	nets, addrs := newNetworks(t, 2, 4096, t.Name(), func(at, _ int, cause error) {
		if at == 0 {
			deaths <- cause
		}
	})
	must(t, connect(t.Context(), nets, addrs))
	if _, err := nets[1].peers[0].conn.Write([]byte("hello?")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-deaths:
	case <-time.After(testTimeout):
		t.Fatal("not noticed")
	}
}

func FuzzAddr(f *testing.F) {
	m, err := segment.Map(segment.Config{Size: 4096, Shared: true})
	if err != nil {
		f.Fatal(err)
	}
	defer m.Close()
	n, err := New(Config{Rank: 0, Size: 2, Segment: m})
	if err != nil {
		f.Fatal(err)
	}
	defer n.Close()
	f.Add([]byte{})
	f.Add(n.Addr())
	f.Add(n.Addr()[:60])
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddr(b)
		if err == nil && !bytes.Equal(a.encode(), b) {
			t.Errorf("%x is not the encoding of %+v", b, a)
		}
		_ = n.Reach(1, b)
	})
}

func TestOtherUserIsTurnedAway(t *testing.T) {
	nets, addrs := newNetworks(t, 2, 4096, t.Name(), nil)
	for r, n := range nets { // all claim a user that the kernel does not confirm
		n.self.place.uid += 4711
		addrs[r] = n.Addr()
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	waiting := make(chan error, 1)
	go func() { waiting <- nets[0].Connect(ctx, addrs, nil) }()
	if err := nets[1].Connect(ctx, addrs, nil); !errors.Is(err, os.ErrPermission) {
		t.Errorf("the dialling rank got %v, want ErrPermission", err)
	}
	// The listening side decides by itself, before it reads a word.
	mine := mapSegment(t, 4096)
	if reply, fds := greet(t, nets[0].self, hello(&nets[1].self, &nets[0].self), mine.FD()); len(reply) != 0 || fds != 0 {
		t.Errorf("the listening rank answered with %d bytes and %d descriptors", len(reply), fds)
	}
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("the listening rank: %v", err)
	}
}
