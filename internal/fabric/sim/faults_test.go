package sim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

func wordOf(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }

var smallEndpoint = fabric.EndpointConfig{Slots: 4, SlotSize: 16, Sends: 8}

// openEndpoint opens endpoint 0 of a rank that is closed when the world is.
func openEndpoint(t testing.TB, r *Rank) fabric.Endpoint {
	t.Helper()
	p, err := r.Net().NewEndpoint(0, smallEndpoint)
	must(t, err)
	return p
}

// until polls until an event of a kind comes.
func until(ctx context.Context, p fabric.Endpoint, kind fabric.EventKind) (fabric.Event, error) {
	var e [1]fabric.Event
	for {
		n, err := p.Poll(e[:], 100*us)
		if err != nil {
			return e[0], err
		}
		if n == 1 && e[0].Kind == kind {
			return e[0], nil
		}
		if ctx.Err() != nil {
			return e[0], fmt.Errorf("no event of kind %d: %w", kind, context.Cause(ctx))
		}
	}
}

func send(p fabric.Endpoint, peer int, cookie uint64) error {
	b, err := p.Reserve(0)
	if err != nil {
		return err
	}
	b.Data[0] = 1
	return p.Send(peer, b, 1, nil, cookie, fabric.Solicited)
}

// deliver sends a message to rank 1 and waits until it is complete.
func deliver(ctx context.Context, p fabric.Endpoint, cookie uint64) (fabric.Event, error) {
	if err := send(p, 1, cookie); err != nil {
		return fabric.Event{}, err
	}
	return until(ctx, p, fabric.Sent)
}

// two runs programs of two ranks with endpoints.
func two(t *testing.T, cfg Config, programs ...func(ctx context.Context, r *Rank, p fabric.Endpoint) error) *World {
	t.Helper()
	cfg.Ranks, cfg.SegmentSize = len(programs), 64
	w := newWorld(t, cfg)
	err := w.Run(func(ctx context.Context, r *Rank) error {
		ctx, cancel := r.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return programs[r.ID()](ctx, r, openEndpoint(t, r))
	})
	if err != nil {
		t.Fatalf("seed %d: %v", cfg.Seed, err)
	}
	return w
}

func TestCutShorterThanTheTimeoutDelaysOnly(t *testing.T) {
	seeds(t, func(t *testing.T, cfg Config) {
		w := two(t, cfg, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
			if _, err := deliver(ctx, p, 1); err != nil {
				return err
			}
			r.World().Cut(0, 1)
			r.World().At(200*time.Millisecond, func() { r.World().Restore(0, 1) })
			before := r.World().Now()
			e, err := deliver(ctx, p, 2)
			if err != nil || e.Err != nil {
				return errors.Join(err, e.Err)
			}
			if d := r.World().Now() - before; d < 200*time.Millisecond || d > 201*time.Millisecond {
				return fmt.Errorf("a message took %v of virtual time through a cut of 200 ms", d)
			}
			return nil
		}, func(ctx context.Context, _ *Rank, p fabric.Endpoint) error {
			for range 2 {
				if _, err := until(ctx, p, fabric.Arrived); err != nil {
					return err
				}
			}
			return nil
		})
		if w.RNR() != 0 {
			t.Fatalf("%d messages met no slot", w.RNR())
		}
	})
}

func TestPartitionLongerThanTheTimeoutIsADeath(t *testing.T) {
	seeds(t, func(t *testing.T, cfg Config) {
		found := 0
		cfg.OnDown = func(at *Rank, rank int, cause error) {
			if at.ID() == 0 && rank == 1 && cause != nil {
				found++
			}
		}
		two(t, cfg, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
			if _, err := deliver(ctx, p, 1); err != nil {
				return err
			}
			r.World().Partition(1)
			e, err := deliver(ctx, p, 2)
			if err != nil || !errors.Is(e.Err, fabric.ErrPeerDown) || e.Cookie != 2 {
				return fmt.Errorf("%+v, %w", e, err)
			}
			if _, err := until(ctx, p, fabric.Down); err != nil {
				return err
			}
			r.World().Heal()
			if err := send(p, 1, 3); !errors.Is(err, fabric.ErrPeerDown) {
				return fmt.Errorf("a dead rank came back: %w", err)
			}
			return nil
		}, func(ctx context.Context, _ *Rank, p fabric.Endpoint) error {
			_, err := until(ctx, p, fabric.Arrived)
			return err
		})
		if found != 1 {
			t.Fatalf("OnDown was called %d times, want once", found)
		}
	})
}

func TestKilledRankStopsAndTrafficFindsOut(t *testing.T) {
	seeds(t, func(t *testing.T, cfg Config) {
		steps := 0
		two(t, cfg, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
			l, err := r.Net().NewLane()
			if err != nil {
				return err
			}
			if err := r.Sleep(ctx, 50*us); err != nil {
				return err
			}
			r.World().Kill(1)
			at := steps
			h, err := l.Put(1, 0, make([]byte, 8), 0)
			if err != nil {
				return err
			}
			if _, err := l.Wait(ctx, h); !errors.Is(err, fabric.ErrPeerDown) {
				return fmt.Errorf("a put to a dead rank: %w", err)
			}
			if _, err := until(ctx, p, fabric.Down); err != nil {
				return err
			}
			if steps != at {
				return fmt.Errorf("a dead rank took %d steps", steps-at)
			}
			return nil
		}, func(ctx context.Context, r *Rank, _ fabric.Endpoint) error {
			for {
				if err := r.Sleep(ctx, us); err != nil {
					return err
				}
				steps++
			}
		})
	})
}

// Of the messages that a rank has sent when it dies, the first ones arrive.
func TestDeathLosesOnlyTheLastMessages(t *testing.T) {
	seeds(t, func(t *testing.T, cfg Config) {
		cfg.Notes.Jitter = 1
		two(t, cfg, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
			want := byte(1)
			var e [1]fabric.Event
			for r.World().Now() < time.Second {
				n, err := p.Poll(e[:], time.Millisecond)
				if err != nil {
					return err
				}
				if n == 1 && e[0].Kind == fabric.Arrived {
					if e[0].Data[0] != want {
						return fmt.Errorf("message %d came, want %d", e[0].Data[0], want)
					}
					want++
					if err := p.Post(e[0].Slot); err != nil {
						return err
					}
				}
			}
			return nil
		}, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
			for k := byte(1); ; k++ {
				b, err := p.Reserve(0)
				if err == nil {
					b.Data[0] = k
					err = p.Send(0, b, 1, nil, 0, 0)
				}
				if err != nil {
					return err
				}
				if k == 6 {
					r.World().Kill(1)
				}
				if err := r.Sleep(ctx, us); err != nil {
					return err
				}
			}
		})
	})
}

func TestMissingSlotIsCountedOnceForEachTry(t *testing.T) {
	w := two(t, Config{Seed: 3}, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
		for k := range smallEndpoint.Slots + 1 {
			if err := send(p, 1, uint64(k+1)); err != nil {
				return err
			}
		}
		for range smallEndpoint.Slots + 1 {
			if _, err := until(ctx, p, fabric.Sent); err != nil {
				return err
			}
		}
		return nil
	}, func(ctx context.Context, r *Rank, p fabric.Endpoint) error {
		var held []int32
		for range smallEndpoint.Slots {
			e, err := until(ctx, p, fabric.Arrived)
			if err != nil {
				return err
			}
			held = append(held, e.Slot)
		}
		for p.Stats().RNR < 3 {
			if err := r.Sleep(ctx, us); err != nil {
				return err
			}
		}
		if err := p.Post(held...); err != nil {
			return err
		}
		_, err := until(ctx, p, fabric.Arrived)
		return err
	})
	if got := w.Rank(1).net.endpoints[0].stats.RNR; got != w.RNR() || got < 3 {
		t.Fatalf("rank 1 counted %d, the world %d", got, w.RNR())
	}
}

// The one unused for longest goes, at both ends, and comes back when it is used.
func TestTooManyConnectionsCloseTheLeastUsed(t *testing.T) {
	const ranks, limit = 6, 2
	w := newWorld(t, Config{Ranks: ranks, Seed: 5, Connections: limit})
	idles := make([]int, ranks)
	err := w.Run(func(ctx context.Context, r *Rank) error {
		p := openEndpoint(t, r)
		var e [4]fabric.Event
		for k := range 400 {
			if r.ID() == 0 && k%20 == 0 && k < 300 {
				if err := send(p, 1+k/20%(ranks-1), 0); err != nil {
					return err
				}
			}
			n, err := p.Poll(e[:], 10*us)
			if err != nil {
				return err
			}
			for _, e := range e[:n] {
				switch e.Kind {
				case fabric.Idle:
					idles[r.ID()]++
				case fabric.Arrived:
					if err := p.Post(e.Slot); err != nil {
						return err
					}
				}
			}
		}
		if n := p.Connected(); n > limit {
			return fmt.Errorf("%d connections are open, the limit is %d", n, limit)
		}
		return nil
	})
	must(t, err)
	total := 0
	for _, n := range idles[1:] {
		total += n
	}
	if idles[0] == 0 || idles[0] != total {
		t.Fatalf("rank 0 saw %d connections close, its peers %d", idles[0], total)
	}
	if got := w.Rank(0).net.endpoints[0].stats.Sends; got != 15 {
		t.Fatalf("%d messages were sent", got)
	}
}

func TestSlowReceiverPollsLate(t *testing.T) {
	w := newWorld(t, Config{Ranks: 1})
	w.Slow(0, time.Millisecond)
	err := w.Run(func(ctx context.Context, r *Rank) error {
		p := openEndpoint(t, r)
		before := w.Now()
		_, err := p.Poll(nil, 0)
		if d := w.Now() - before; d < time.Millisecond {
			return fmt.Errorf("a slow poll took %v", d)
		}
		return err
	})
	must(t, err)
}

// What a put's source holds when it arrives is what arrives, if it is too long to be copied:
// a program that reuses it too early sees it.
func TestLongPutsReadTheirSourceOnArrival(t *testing.T) {
	w := newWorld(t, Config{Ranks: 2, SegmentSize: 4096})
	err := w.Run(func(ctx context.Context, r *Rank) error {
		if r.ID() == 1 {
			return nil
		}
		l, err := r.Net().NewLane()
		if err != nil {
			return err
		}
		src := make([]byte, 4000)
		h, err := l.Put(1, 0, src, 0)
		if err != nil {
			return err
		}
		src[3999] = 7 // against the contract
		if _, err := l.Wait(ctx, h); err != nil {
			return err
		}
		if got := w.Rank(1).Segment()[3999]; got != 7 {
			return fmt.Errorf("the source was read when the put was posted: %d", got)
		}
		return nil
	})
	must(t, err)
}
