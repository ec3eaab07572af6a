package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Everything that a chain may hold: values, slices and atomics, implicit ones and ones to wait for,
// more of them than a chain collects, and some that wait in the midst.
func TestAChainHoldsAllKindsOfOperations(t *testing.T) {
	const ops = chainMost + 300
	onFabrics(t, 3, Config{QueueDepth: 16}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		other := (j.Rank() + 1) % 3
		base := uint64(j.Rank()) << 20
		words := base + 16*ops
		var (
			puts [ops]Pending
			gets [ops]Promise[uint64]
			adds [ops]Promise[uint64]
			big  = make([]byte, 5000)
		)
		pattern(big, j.Rank())
		err := w.Chain(func() error {
			for i := range uint64(ops) {
				if err := PutNBI(w, At[uint64](other, base+16*i), 3*i); err != nil {
					return err
				}
				puts[i] = PutAsync(w, At[uint64](other, base+16*i+8), 5*i)
				adds[i] = FetchAddAsync(w, At[uint64](other, words), 2)
				if i == 700 { // in the midst
					if v, err := Get(w, At[uint64](other, words+8)); v != 0 || err != nil {
						return fmt.Errorf("get in a chain: %d, %v", v, err)
					}
					if err := puts[3].Wait(ctx); err != nil {
						return err
					}
					if err := w.Flush(ctx); err != nil {
						return err
					}
				}
			}
			return PutSliceNBI(w, At[byte](other, words+64), big)
		})
		if err != nil {
			return err
		}
		for i := range puts { // out of order, and one twice
			k := i * 7 % ops
			if err := puts[k].Wait(ctx); err != nil {
				return err
			}
			if v, err := adds[k].Wait(ctx); v != uint64(2*k) || err != nil {
				return fmt.Errorf("fetch-add %d: %d, %v", k, v, err)
			}
		}
		if err := w.Flush(ctx); err != nil {
			return err
		}
		err = w.Chain(func() error {
			for i := range gets {
				gets[i] = GetAsync(w, At[uint64](other, base+8*uint64(i)))
			}
			return errors.Join()
		})
		if err != nil {
			return err
		}
		for i := range gets {
			for done := i%2 == 0; !done; {
				var err error
				if done, err = gets[i].Test(); err != nil {
					return err
				}
			}
			want := uint64(3 * (i / 2))
			if i%2 == 1 {
				want = uint64(5 * (i / 2))
			}
			if v, err := gets[i].Wait(ctx); v != want || err != nil {
				return fmt.Errorf("get %d: %d, %v, want %d", i, v, err, want)
			}
		}
		got := make([]byte, len(big))
		if err := GetSlice(w, got, At[byte](other, words+64)); err != nil {
			return err
		}
		return samePattern(got, j.Rank())
	}))
}

func TestAChainAllocatesNothing(t *testing.T) {
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 {
			return nil
		}
		var first error
		var gets [4]Promise[uint64]
		collect := func() error {
			for i := range gets {
				gets[i] = GetAsync(w, At[uint64](1, 64))
			}
			return PutNBI(w, At[uint64](1, 8), 5)
		}
		allocs := testing.AllocsPerRun(500, func() {
			err := w.Chain(collect)
			for i := range gets {
				_, e := gets[i].Wait(ctx)
				err = errors.Join(err, e)
			}
			first = errors.Join(first, err, w.Flush(ctx))
		})
		if first != nil || allocs != 0 {
			return fmt.Errorf("%v allocations, %w", allocs, first)
		}
		return nil
	}))
}

// What was collected for a rank that is found dead fails where it is waited for, but for what loads
// and stores have done; the chain's other operations do not.
func TestADeathInAChainFailsItsOperations(t *testing.T) {
	onFabrics(t, 3, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() != 0 {
			return nil
		}
		cause := errors.New("killed on purpose")
		var puts [3]Pending
		err := w.Chain(func() error {
			if err := PutNBI(w, At[int64](1, 16), 5); err != nil { // no group's: Flush reports it
				return err
			}
			for rank := range puts {
				puts[rank] = PutAsync(w, At[int64](rank, 8), 5)
			}
			for _, n := range j.networks.all {
				n.PeerDown(1, cause)
			}
			return nil
		})
		if err != nil {
			return err
		}
		direct := j.cfg.Fabric == FabricSHM && j.cfg.Cache == nil
		for rank := range puts {
			for range 2 {
				err := puts[rank].Wait(ctx)
				if failed := errors.Is(err, ErrPeerDown) && errors.Is(err, cause); failed != (rank == 1 && !direct) || err != nil && !failed {
					return fmt.Errorf("put to rank %d: %w", rank, err)
				}
			}
		}
		var failed *OpError
		if err := w.Flush(ctx); direct {
			if err != nil {
				return err
			}
		} else if !errors.As(err, &failed) || failed.Rank != 1 || failed.Off != 16 || failed.Len != 8 {
			return fmt.Errorf("flush: %w", err)
		}
		return nil
	}))
}

// refusing is a lane that posts no batch.
type refusing struct{ fabric.Lane }

var errUnposted = errors.New("refused")

func (refusing) Post(*fabric.Batch, *fabric.Completions, fabric.Flag) error { return errUnposted }

// What a lane refuses is told by the operations that are waited for, and by Chain: nobody else
// knows of the implicit ones.
func TestARefusedChainIsNotSilent(t *testing.T) {
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		for i, l := range w.lanes {
			w.lanes[i] = refusing{l}
		}
		for _, waits := range []bool{false, true} {
			var h fabric.Handle
			l := &w.byNet[w.routes[1].net]
			err := w.Chain(func() error {
				if _, err := (*l).Put(1, w.begin, make([]byte, 8), fabric.Implicit); err != nil {
					return err
				}
				var err error
				if h, err = (*l).Put(1, w.begin, make([]byte, 8), 0); err != nil || !waits {
					return err
				}
				if _, err := (*l).Wait(ctx, h); !errors.Is(err, errUnposted) {
					return fmt.Errorf("wait: %w", err)
				}
				return nil
			})
			if err != errUnposted {
				return fmt.Errorf("chain, waiting in it %v: %w", waits, err)
			}
			if _, err := w.chain.lanes[w.routes[1].net].Wait(ctx, h); waits == errors.Is(err, errUnposted) {
				return fmt.Errorf("wait after the chain: %w", err)
			}
			if err := w.Chain(func() error { return nil }); err != nil {
				return fmt.Errorf("the next chain: %w", err)
			}
		}
		return nil
	}))
}
