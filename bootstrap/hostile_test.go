package bootstrap

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

func tlsServer(c net.Conn, conf *tls.Config) *tls.Conn {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return tls.Server(c, conf)
}

// strangers reach the port without the secret.
var strangers = map[string]func(t *testing.T, c net.Conn, done <-chan struct{}){
	"sends garbage": func(t *testing.T, c net.Conn, _ <-chan struct{}) {
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: you\r\n\r\n"))
	},
	"hangs up": func(*testing.T, net.Conn, <-chan struct{}) {},
	"holds the connection": func(_ *testing.T, _ net.Conn, done <-chan struct{}) {
		<-done
	},
	"sends a byte now and then": func(_ *testing.T, c net.Conn, done <-chan struct{}) {
		for _, b := range []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3} { // the start of a ClientHello
			_, _ = c.Write([]byte{b})
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	},
}

func TestTCPStrangerNeverEndsTheJob(t *testing.T) {
	t.Parallel()
	for name, act := range strangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			rvs := tcpRanks(t, 3, nil)
			done := make(chan struct{})
			var wg sync.WaitGroup
			for range 3 {
				c, err := net.Dial("tcp", rvs[0].addr)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					defer c.Close()
					act(t, c, done)
				})
			}
			ranks, errs := join(ctx, rvs)
			defer closeAll(ranks)
			noErrors(t, errs)
			noErrors(t, onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }))
			close(done)
			wg.Wait()
		})
	}
}

func TestTCPStrangersAreCountedAndReported(t *testing.T) {
	t.Parallel()
	_, errs := patiently(func(timeout time.Duration) []error {
		rvs := tcpRanks(t, 3, func(_ int, rv *rendezvous) { rv.timeout = timeout })
		rvs[2] = nil
		for range 2 {
			c, err := net.Dial("tcp", rvs[0].addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		}
		_, errs := join(bounded(t), rvs)
		return errs
	}, 2)
	for r := range 2 {
		refusal(t, fmt.Sprintf("rank %d", r), errs[r], ReasonMissing, "missing rank 2",
			"refused: 127.0.0.1: tls: first record does not look like a TLS handshake (2 times)")
	}
}

// More silent strangers than handshakes at a time: the ranks wait in the
// backlog until the strangers' time is over, and the job still starts.
func TestTCPStartsDespiteManySilentStrangers(t *testing.T) {
	t.Parallel()
	rvs := tcpRanks(t, 3, func(_ int, rv *rendezvous) { rv.handshake = 500 * time.Millisecond })
	for range handshakesMax + 8 {
		c, err := net.Dial("tcp", rvs[0].addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	ranks, errs := join(bounded(t), rvs)
	defer closeAll(ranks)
	noErrors(t, errs)
}

func TestTCPRefusalsOfStrangersTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	r := &root{rv: &rendezvous{log: quiet}, refused: map[string]int{}}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for i := range 1000 {
		r.refuse(a, fmt.Errorf("invention %d", i))
	}
	if n := len(r.refused); n > refusedMax+1 {
		t.Errorf("%d different refusals are kept", n)
	}
	total := 0
	for _, n := range r.refused {
		total += n
	}
	if total != 1000 {
		t.Errorf("%d of 1000 refusals counted", total)
	}
}

// insider is a rank that holds the secret and breaks the protocol.
func insider(t *testing.T, ctx context.Context, rv *rendezvous) *tls.Conn {
	t.Helper()
	conf, err := tlsFor(rv.secret)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dialRoot(ctx, rv, conf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := awaitStart(ctx, rv, conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// withInsider joins ranks 0 and 1 with an insider as rank 2, which then sends the frame.
func withInsider(t *testing.T, frame []byte) []Bootstrap {
	t.Helper()
	ctx := bounded(t)
	rvs := tcpRanks(t, 3, nil)
	third := make(chan *tls.Conn, 1)
	go func() { third <- insider(t, ctx, rvs[2]) }()
	ranks, errs := join(ctx, rvs[:2])
	t.Cleanup(func() { closeAll(ranks) })
	noErrors(t, errs)
	conn := <-third
	t.Cleanup(func() { conn.NetConn().Close() })
	if _, err := conn.Write(frame); err != nil {
		t.Fatal(err)
	}
	return ranks
}

func TestTCPBadMessageOfARankIsALossOfThatRankOnly(t *testing.T) {
	t.Parallel()
	huge := newFrame(frameContribute, 0)
	binary.LittleEndian.PutUint32(huge[1:], 1<<31)
	for name, frame := range map[string][]byte{
		"speaks for another rank": encodeFrame(frameFailure, &failure{0, "", &cause{kind: causeDeath, text: "lies"}}),
		"unknown rank":            encodeFrame(frameFailure, &failure{1 << 20, "", &cause{kind: causeLeft}}),
		"unknown cause":           encodeFrame(frameFailure, &failure{2, "", &cause{kind: 77}}),
		"frame of rank 0":         finish(newFrame(frameStart, 0)),
		"unknown frame":           finish(newFrame(99, 0)),
		"too long":                huge,
		"too short":               finish(newFrame(frameContribute, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, b := range withInsider(t, frame) {
				if l := lossOf(t, b); l.Rank != 2 {
					t.Errorf("rank %d: %+v", b.Rank(), l)
				}
			}
		})
	}
}

func TestTCPCollectiveOutOfTurnFailsTheJob(t *testing.T) {
	t.Parallel()
	for name, frame := range map[string][]byte{
		"number":       encodeFrame(frameContribute, &contribution{op: opBarrier, seq: 7}),
		"unknown kind": encodeFrame(frameContribute, &contribution{op: 9, seq: 1}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			for r, err := range onAll(withInsider(t, frame), func(b Bootstrap) error { return b.Barrier(ctx) }) {
				wantLost(t, r, err, 2, ErrMisuse)
			}
		})
	}
}

func TestTCPHelloAboveItsLimitIsRefused(t *testing.T) {
	t.Parallel()
	ctx, over := context.WithCancelCause(bounded(t))
	rvs := tcpRanks(t, 2, nil)
	conf, err := tlsFor([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		raw, err := net.Dial("tcp", rvs[0].addr)
		if err != nil {
			t.Error(err)
			over(err)
			return
		}
		defer raw.Close()
		c := tls.Client(raw, conf)
		b := newFrame(frameHello, 0)
		binary.LittleEndian.PutUint32(b[1:], maxHello+1)
		_, _ = c.Write(b)
		_, _ = c.Read(make([]byte, 1)) // until rank 0 hangs up
		over(errOwnTime)
	})
	_, errs := join(ctx, rvs[:1])
	refusal(t, "rank 0", errs[0], ReasonMissing, fmt.Sprintf("of %d bytes, at most %d", maxHello+1, maxHello))
	wg.Wait()
}
