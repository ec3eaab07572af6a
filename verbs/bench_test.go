//go:build linux && cgo

package verbs

import (
	"slices"
	"testing"
	"time"
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
		if n, err := e.bell.Ring(1, patience); n != 1 || err != nil {
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
		if n, err := e.bell.Ring(1, patience); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkPingPong8 is the loop of perftest's ib_write_lat -s 8 with two goroutines: each writes to the other when its own word has changed.
// p50-ns and p99-ns are of half a round trip, as perftest prints them.
func BenchmarkPingPong8(b *testing.B) {
	r := newRig(b)
	x, y := r.pair(endConfig{})
	stop := make(chan struct{})
	done := make(chan error)
	xWord, yWord := r.word(4096), r.word(8192)
	*xWord, *yWord = 0, 0
	r.pinger(x, r.addr(8192))
	r.pinger(y, r.addr(4096))
	go func() { done <- answer(y, yWord, stop) }()
	var samples []int64
	last := time.Now()
	n := uint64(0)
	for b.Loop() {
		n++
		if _, met, err := shoot(x, n, xWord, n, patience); !met || err != nil {
			b.Fatal(n, met, err)
		}
		now := time.Now()
		samples = append(samples, int64(now.Sub(last))/2)
		last = now
	}
	close(stop)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	slices.Sort(samples)
	b.ReportMetric(float64(samples[len(samples)/2]), "p50-ns")
	b.ReportMetric(float64(samples[len(samples)*99/100]), "p99-ns")
}

// pinger prepares the end's slots: inline WRITEs of 8 bytes, one in 16 signalled so that the send queue is freed.
func (r *rig) pinger(e *end, to uint64) {
	for i := range e.send.Slots() {
		w := e.send.WR(i)
		w.Opcode = OpWrite
		w.SetRemote(to, r.mr.RKey())
		e.send.SetInline(i, 8)
	}
	e.send.WR(0).Flags |= Signaled
}

// shoot writes value to the peer and waits until the own word is at least until.
func shoot(e *end, value uint64, word *uint64, until uint64, budget time.Duration) (int, bool, error) {
	slot := int(value) % e.send.Slots()
	*(*uint64)(ptr(e.send.Area(slot))) = value
	if err := e.bell.Send(e.qp, e.send, slot, 1); err != nil {
		return 0, false, err
	}
	if slot == 1 && value > 1 { // the completion of slot 0 is long there: take it
		if _, err := e.bell.Ring(1, budget); err != nil {
			return 0, false, err
		}
	}
	return e.bell.RingUntil(word, UntilAtLeast, until, 0, budget)
}

// answer writes back every value that arrives, until stopped.
func answer(e *end, word *uint64, stop chan struct{}) error {
	seen := uint64(0)
	for {
		_, met, err := e.bell.RingUntil(word, UntilAtLeast, seen+1, 0, time.Millisecond)
		if err != nil {
			return err
		}
		if !met {
			select {
			case <-stop:
				return nil
			default:
				continue
			}
		}
		for seen < e.bell.Seen() {
			seen++
			if _, _, err := shoot(e, seen, word, 0, 0); err != nil {
				return err
			}
		}
	}
}
