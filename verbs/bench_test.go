//go:build linux && cgo

package verbs

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

// BenchmarkEmptyPoll is what one crossing into C and one look at an empty queue cost.
func BenchmarkEmptyPoll(b *testing.B) {
	r := newRig(b)
	e, _ := r.pair(endConfig{})
	for b.Loop() {
		e.bell.Ring(1, 0)
	}
}

// BenchmarkWrite8 posts one inline WRITE and waits for its completion, in one crossing.
func BenchmarkWrite8(b *testing.B) {
	r := newRig(b)
	e, _ := r.pair(endConfig{})
	w := e.send.WR(0)
	w.Opcode, w.Flags = OpWrite, Signaled
	w.SetRemote(r.addr(4096), r.mr.RKey())
	e.send.SetInline(0, 8)
	for b.Loop() {
		e.bell.Send(e.qp, e.send, 0, 1)
		if n, err := e.bell.Ring(1, testTimeout); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkWrite8Batch16 does so for sixteen, the last of them signalled.
func BenchmarkWrite8Batch16(b *testing.B) {
	r := newRig(b)
	e, _ := r.pair(endConfig{})
	for i := range 16 {
		w := e.send.WR(i)
		w.Opcode, w.Flags = OpWrite, 0
		w.SetRemote(r.addr(4096), r.mr.RKey())
		e.send.SetInline(i, 8)
	}
	e.send.WR(15).Flags |= Signaled
	for b.Loop() {
		e.bell.Send(e.qp, e.send, 0, 16)
		if n, err := e.bell.Ring(1, testTimeout); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkPingPong8 is the loop of perftest's ib_write_lat -s 8 between two processes: each writes
// to the other when its own word has changed. p50-ns and p99-ns are of half a round trip, as
// perftest prints them.
func BenchmarkPingPong8(b *testing.B) {
	r := newRig(b)
	e := r.newEnd(endConfig{})
	peer := startPonger(b, r, e)
	r.pinger(e, peer)
	word := r.word(4096)
	var samples []uint64
	last := ticks() // the clock may cost more than what is measured
	n := uint64(0)
	for b.Loop() {
		n++
		if met, err := shoot(e, n, word, n, testTimeout); !met || err != nil {
			b.Fatal(n, met, err)
		}
		now := ticks()
		samples = append(samples, now-last)
		last = now
	}
	slices.Sort(samples)
	half := func(ticks uint64) float64 { return float64(ticks) * 1000 / float64(ticksPerMicrosecond()) / 2 }
	b.ReportMetric(half(samples[len(samples)/2]), "p50-ns")
	b.ReportMetric(half(samples[len(samples)*99/100]), "p99-ns")
}

// card is what the two processes send each other, in one line.
type card struct {
	QPN  uint32
	Addr uint64 // of the word that the other writes to
	RKey uint32
}

func (r *rig) card(e *end) card { return card{e.qp.Num(), r.addr(4096), r.mr.RKey()} }

// join connects the end to a QP of another process on the same device.
func (r *rig) join(e *end, c card) {
	p := r.path()
	check(r.t, e.qp.Init(InitAttr{Access: AccessAll}))
	check(r.t, e.qp.ReadyToReceive(RTRAttr{AV: p.AV, PathMTU: p.MTU, DestQPN: c.QPN}))
	check(r.t, e.qp.ReadyToSend(RTSAttr{}))
}

// pinger prepares the end's slots: inline WRITEs of 8 bytes, one in 16 signalled so that the send
// queue is freed.
func (r *rig) pinger(e *end, to card) {
	for i := range e.send.slots {
		w := e.send.WR(i)
		w.Opcode = OpWrite
		w.SetRemote(to.Addr, to.RKey)
		e.send.SetInline(i, 8)
	}
	e.send.WR(0).Flags |= Signaled
}

// shoot writes value to the peer and waits until the own word is at least until, or the time is
// over.
func shoot(e *end, value uint64, word *uint64, until uint64, budget time.Duration) (bool, error) {
	slot := int(value) % e.send.slots
	*(*uint64)(ptr(e.send.Area(slot))) = value
	if err := e.bell.Send(e.qp, e.send, slot, 1); err != nil {
		return false, err
	}
	want := 0
	if slot == 1 && value > 1 { // the completion of slot 0 is there: take it in passing
		want = 1
	}
	if _, err := e.bell.Ring(want, testTimeout); err != nil {
		return false, err
	}
	return reached(word, until, budget), nil
}

// reached waits until a word is at least until, and reports false when the time is over.
func reached(word *uint64, until uint64, budget time.Duration) bool {
	end := ticks() + uint64(budget.Microseconds())*ticksPerMicrosecond()
	for atomic.LoadUint64(word) < until {
		if ticks() >= end {
			return atomic.LoadUint64(word) >= until
		}
	}
	return true
}

const envPonger = "IBCONDUIT_TEST_PONGER"

// startPonger starts this test binary as the other side, and connects the end to it.
func startPonger(b testing.TB, r *rig, e *end) card {
	cmd := exec.Command(os.Args[0], "-test.run=^TestTwoProcessesWriteToEachOther$")
	cmd.Env = append(os.Environ(), envPonger+"=1", rdmatest.EnvDevice+"="+r.ctx.Name())
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())(b)
	out := must(cmd.StdoutPipe())(b)
	check(b, cmd.Start())
	b.Cleanup(func() {
		in.Close() // makes it end
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	check(b, json.NewEncoder(in).Encode(r.card(e)))
	var peer card
	check(b, json.NewDecoder(out).Decode(&peer))
	r.join(e, peer)
	return peer
}

// TestTwoProcessesWriteToEachOther is the loop of BenchmarkPingPong8, and the other process of
// both.
func TestTwoProcessesWriteToEachOther(t *testing.T) {
	if os.Getenv(envPonger) == "1" {
		pong(t)
		return
	}
	r := newRig(t)
	e := r.newEnd(endConfig{})
	peer := startPonger(t, r, e)
	r.pinger(e, peer)
	const rounds = 100
	word := r.word(4096)
	for n := uint64(1); n <= rounds; n++ {
		if met, err := shoot(e, n, word, n, testTimeout); !met || err != nil {
			t.Fatal(n, met, err)
		}
	}
	if got := atomic.LoadUint64(word); got != rounds {
		t.Errorf("the other process answered %d times, want %d", got, rounds)
	}
}

// pong writes back whatever word arrives, until standard input ends.
func pong(t *testing.T) {
	r := newRig(t)
	e := r.newEnd(endConfig{})
	var peer card
	check(t, json.NewDecoder(os.Stdin).Decode(&peer))
	r.join(e, peer)
	r.pinger(e, peer)
	check(t, json.NewEncoder(os.Stdout).Encode(r.card(e)))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		os.Stdin.Read(make([]byte, 1)) // until the other side closes it
		stop.Store(true)
		close(done)
	}()
	word := r.word(4096)
	for seen := uint64(0); !stop.Load(); {
		for met := reached(word, seen+1, time.Millisecond); met; {
			seen++
			var err error
			if met, err = shoot(e, seen, word, seen+1, time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	<-done
}
