package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// storm is a world in which everything happens: messages, notes, puts, time-outs, cuts and a
// death. Nothing that goes wrong is an error here, only a difference between two runs.
func storm(w *World) error {
	w.At(30*time.Microsecond, func() { w.Cut(0, 1) })
	w.At(300*time.Microsecond, func() { w.Delay(5, 6, time.Microsecond) })
	w.At(90*time.Microsecond, func() { w.Restore(0, 1) })
	w.At(50*time.Microsecond, func() { w.Slow(2, 3*time.Microsecond) })
	w.At(120*time.Microsecond, func() { w.Kill(w.Size() - 1) })
	w.At(200*time.Microsecond, func() { w.Partition(3, 4) })
	w.At(260*time.Microsecond, func() { w.Heal() })
	return w.Run(func(ctx context.Context, r *Rank) error {
		p, err := r.Net().NewEndpoint(0, fabric.EndpointConfig{Slots: 16, SlotSize: 64, Sends: 8})
		if err != nil {
			return err
		}
		l, err := r.Net().NewLane()
		if err != nil {
			return err
		}
		r.Go("lane", func(ctx context.Context) error {
			for ctx.Err() == nil {
				h, err := l.Put(r.Rand().IntN(r.Size()), uint64(8*r.ID()), make([]byte, 8+r.Rand().IntN(300)), 0)
				if err == nil {
					short, cancel := r.WithTimeout(ctx, 4*time.Microsecond)
					_, err = l.Wait(short, h)
					cancel()
				}
				if err != nil {
					if err := r.Sleep(ctx, time.Microsecond); err != nil {
						return nil
					}
				}
			}
			return nil
		})
		events := make([]fabric.Event, 4)
		for w.Now() < 500*time.Microsecond {
			peer := r.Rand().IntN(r.Size())
			if b, err := p.Reserve(0); err == nil {
				if p.Send(peer, b, 1+r.Rand().IntN(64), nil, uint64(r.Rand().IntN(2)), fabric.Solicited) != nil {
					p.Release(b)
				}
			}
			_ = p.Note(peer, []byte("note"))
			n, err := p.Poll(events, 2*time.Microsecond)
			if err != nil {
				return err
			}
			for _, e := range events[:n] {
				if e.Kind == fabric.Arrived {
					if err := p.Post(e.Slot); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

func stormConfig(seed uint64) Config {
	return Config{Ranks: 8, Seed: seed, SegmentSize: 1024, Connections: 3, Notes: Notes{Loss: 0.1, Dup: 0.1}, RetryTimeout: 100 * time.Microsecond}
}

func TestSeedNamesTheRunWhateverGOMAXPROCS(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	type run struct {
		trace string
		hash  uint64
	}
	seen := make(map[uint64]uint64)
	for seed := range uint64(5) {
		var first run
		for i, procs := range []int{1, 2, 4, 2} {
			runtime.GOMAXPROCS(procs)
			trace, hash, err := traceOf(t, stormConfig(seed), storm)
			must(t, err)
			if i == 0 {
				first = run{trace, hash}
				continue
			}
			if trace != first.trace {
				t.Fatalf("seed %d with GOMAXPROCS=%d: %s", seed, procs, firstDifference(first.trace, trace))
			}
			if hash != first.hash {
				t.Fatalf("seed %d: the same trace has hashes %#x and %#x", seed, first.hash, hash)
			}
		}
		if other, ok := seen[first.hash]; ok {
			t.Fatalf("seeds %d and %d have the same run", other, seed)
		}
		seen[first.hash] = seed
		for _, kind := range markNames {
			if kind != "" && !strings.Contains(first.trace, " "+kind+" ") && kind != "atomic" && kind != "get" && kind != "note-dropped" && kind != "refused" && kind != "rnr" {
				t.Errorf("seed %d: nothing of kind %q happened", seed, kind)
			}
		}
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d of the trace is %q, was %q", i+1, y[i], x[i])
		}
	}
	return fmt.Sprintf("the traces have %d and %d lines", len(x), len(y))
}

// The hash must not depend on whether there is a trace.
func TestHashIsTheSameWithoutATrace(t *testing.T) {
	_, hash, err := traceOf(t, stormConfig(9), storm)
	must(t, err)
	w := newWorld(t, stormConfig(9))
	must(t, storm(w))
	if w.TraceHash() != hash {
		t.Fatalf("hash %#x without a trace, %#x with it", w.TraceHash(), hash)
	}
}

// A change of one event changes the hash: a fault planted in a run is noticed.
func TestHashNoticesOneEventMore(t *testing.T) {
	w := newWorld(t, stormConfig(9))
	w.At(100*time.Microsecond, func() { w.Delay(5, 6, 0) })
	must(t, storm(w))
	v := newWorld(t, stormConfig(9))
	must(t, storm(v))
	if w.TraceHash() == v.TraceHash() {
		t.Fatal("two different runs have one hash")
	}
}

func TestRandomMailArrivesUnderEverySeed(t *testing.T) {
	seeds(t, func(t *testing.T, cfg Config) {
		cfg.Ranks, cfg.Connections = 10, 4
		cfg.Notes = Notes{Loss: 0.2, Dup: 0.2}
		cfg.HandshakeTries = 60
		w := newWorld(t, cfg)
		for k := range 20 {
			w.At(time.Duration(k*50)*time.Microsecond, func() { verify(t, w) })
		}
		w.At(20*time.Microsecond, func() { w.Cut(1, 2) })
		w.At(400*time.Microsecond, func() { w.Restore(1, 2) })
		w.At(50*time.Microsecond, func() { w.Partition(3, 4, 5) })
		w.At(600*time.Microsecond, func() { w.Heal() })
		w.At(10*time.Microsecond, func() { w.Slow(7, 20*time.Microsecond) })
		if err := (mail{count: 100, batch: 8, size: 64, slots: 16}).run(w); err != nil {
			t.Fatalf("seed %d: %v", cfg.Seed, err)
		}
		for i := range w.Size() {
			p := w.Rank(i).net.endpoints[0]
			if p.stats.Sends != 100 {
				t.Fatalf("rank %d sent %d messages, want 100", i, p.stats.Sends)
			}
		}
	})
}

func TestWritesToTheTraceThatFailEndTheRun(t *testing.T) {
	full := errors.New("disk full")
	cfg := stormConfig(1)
	cfg.Trace = writer(func([]byte) (int, error) { return 0, full })
	if err := storm(newWorld(t, cfg)); !errors.Is(err, full) {
		t.Fatalf("got %v, want %v", err, full)
	}
}

type writer func([]byte) (int, error)

func (f writer) Write(b []byte) (int, error) { return f(b) }
