package shm

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

func TestAlignedWordsAreNeverTorn(t *testing.T) {
	nets := joinAll(t, 2, 4096)
	for _, size := range []int{2, 4, 8} {
		w, r := newLane(t, nets[0]), newLane(t, nets[1])
		stop := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			zeros, ones := make([]byte, size), bytes.Repeat([]byte{0xFF}, size)
			for {
				select {
				case <-stop:
					return
				default:
					for range 64 {
						w.Put(1, 64, ones, 0)
						w.Put(1, 64, zeros, 0)
					}
				}
			}
		})
		got := make([]byte, size)
		for range 200_000 {
			r.Get(1, 64, got, 0)
			if bytes.Count(got, got[:1]) != size {
				t.Errorf("a word of %d bytes was half written: %x", size, got)
				break
			}
		}
		close(stop)
		writer.Wait()
	}
}

func TestFailedCompareSwapReturnsAnotherValue(t *testing.T) {
	// Another rank changes the word back and forth; a compare-swap that
	// returns compare has swapped, one that returns another value has not.
	nets := joinAll(t, 2, 4096)
	a, b := newLane(t, nets[0]), newLane(t, nets[1])
	const rounds = 100_000
	stop := make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() {
		for k := uint64(0); ; k++ {
			select {
			case <-stop:
				return
			default:
				b.Atomic(0, 0, fabric.Atomic{Op: fabric.CompareSwap, Operand: k % 2, Compare: 1 - k%2}, 0)
			}
		}
	})
	swapped := uint64(0)
	for range rounds {
		old, _, err := a.Atomic(0, 0, fabric.Atomic{Op: fabric.CompareSwap, Operand: 2, Compare: 1}, 0)
		must(t, err)
		if old == 1 {
			swapped++
			if now, _, _ := a.Atomic(0, 0, fabric.Atomic{Op: fabric.Swap}, 0); now != 2 {
				t.Fatalf("compare-swap reported success and left %d", now)
			}
		}
	}
	close(stop)
	other.Wait()
	t.Logf("%d of %d swapped", swapped, rounds)
}

func TestSecondGoroutineOnALaneIsDetected(t *testing.T) {
	l := newLane(t, joinAll(t, 1, 4096)[0])
	must(t, l.guard.Enter()) // as if another goroutine were inside
	_, perr := l.Put(0, 0, []byte{1}, 0)
	_, gerr := l.Get(0, 0, make([]byte, 1), 0)
	_, _, aerr := l.Atomic(0, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
	l.guard.Exit()
	for op, err := range map[string]error{"put": perr, "get": gerr, "atomic": aerr} {
		if errors.Is(err, owner.ErrConcurrent) != owner.Checked {
			t.Errorf("%s: %v, with checks %v", op, err, owner.Checked)
		}
	}
}

func TestLanesOpenOnlyWhileConnected(t *testing.T) {
	nets, addrs := newNetworks(t, 1, 4096, t.Name(), nil)
	if _, err := nets[0].NewLane(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("before Connect: %v", err)
	}
	must(t, connect(t.Context(), nets, addrs))
	l := newLane(t, nets[0])
	l.Put(0, 0, []byte{1}, 0)
	l.Close()
	if c := newLane(t, nets[0]).Counters(); c != l.Counters() || *c != (fabric.Counters{}) {
		t.Errorf("the next lane got counters %+v", c.Load())
	}
}

func TestUnknownHandleIsAnError(t *testing.T) {
	l := newLane(t, joinAll(t, 1, 4096)[0])
	if _, _, err := l.Test(12); err == nil {
		t.Error("Test of a handle that nobody has got")
	}
	if _, err := l.Wait(t.Context(), 12); err == nil {
		t.Error("Wait for a handle that nobody has got")
	}
}
