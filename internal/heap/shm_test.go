package heap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
)

// shm runs f on ranks that are goroutines over shared memory.
func shm(t testing.TB, n int, size uint64, cfg Config, f func(ctx context.Context, m *member) error) {
	envtest.SHM(t, n, func(ctx context.Context, e env.Env) error {
		m, err := join(ctx, e, cfg, am.Config{})
		if err != nil {
			return err
		}
		defer m.close()
		if err := f(ctx, m); err != nil {
			return err
		}
		return m.team.Barrier(ctx)
	}, specs(t, n, size)...)
}

// isDown reports whether err says that a rank is dead.
func isDown(err error, rank int) bool {
	var e *fabric.PeerDownError
	return errors.As(err, &e) && e.Rank == rank
}

// Real goroutines, several a rank, allocate and free, and write all that they have.
func TestGoroutinesShareHeapsOverSHM(t *testing.T) {
	const size, each = 512 * alloc.PageSize, 3
	for _, make := range []func() alloc.Allocator{nil, func() alloc.Allocator { return alloc.NewBuddy() }} {
		shm(t, 3, size, Config{New: make}, func(ctx context.Context, m *member) error {
			errs := atOnce(each, func(g int) error {
				rng := rand.New(rand.NewPCG(uint64(m.Rank()), uint64(g)))
				mark := byte(1 + m.Rank()*each + g)
				var mine []block
				for range 1500 {
					if len(mine) < 40 && rng.IntN(2) == 0 {
						b := block{n: randomSize(rng, size)}
						var err error
						if rng.IntN(4) == 0 {
							b.global = true
							b.p, err = m.h.GlobalAlloc(ctx, 3, b.n, 0)
						} else {
							b.p, err = m.h.Alloc(ctx, b.n, 0)
						}
						if errors.Is(err, ErrNoSharedMemory) {
							continue
						}
						if err != nil {
							return err
						}
						fill(m.h.Bytes(b.p.off, b.n), mark) // of a global block: the part at this rank
						mine = append(mine, b)
					} else if len(mine) > 0 {
						b := mine[0]
						mine = mine[1:]
						for i, v := range m.h.Bytes(b.p.off, b.n) {
							if v != mark {
								return fmt.Errorf("byte %d of %v is %d, want %d", i, b.p, v, mark)
							}
						}
						if err := m.h.Free(ctx, b.p); err != nil {
							return err
						}
					}
				}
				for _, b := range mine {
					if err := m.h.Free(ctx, b.p); err != nil {
						return err
					}
				}
				return nil
			})
			if err := errors.Join(errs...); err != nil {
				return err
			}
			if err := m.team.Barrier(ctx); err != nil {
				return err
			}
			if s := m.h.Stats(); s.Local.Blocks != 0 || s.Global.Blocks != 0 {
				return fmt.Errorf("rank %d: %d and %d blocks are left", m.Rank(), s.Local.Blocks, s.Global.Blocks)
			}
			return nil
		})
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// atOnce runs f n times at once.
func atOnce(n int, f func(i int) error) []error {
	errs, done := make([]error, n), make(chan int)
	for i := range n {
		go func() {
			errs[i] = f(i)
			done <- i
		}()
	}
	for range n {
		<-done
	}
	return errs
}

func benchmarkAllocFree(b *testing.B, make1 func() alloc.Allocator) {
	const live, size = 100_000, 4 << 30
	shm(b, 1, size, Config{New: make1}, func(ctx context.Context, m *member) error {
		rng := rand.New(rand.NewPCG(1, 2))
		random := func() uint64 { return 16 + rng.Uint64N(1<<(4+rng.IntN(13))) }
		blocks, sizes, which := make([]Ptr, live), make([]uint64, 1<<16), make([]int, 1<<16)
		var err error
		for i := range blocks {
			if blocks[i], err = m.h.Alloc(ctx, random(), 0); err != nil {
				return err
			}
		}
		for i := range sizes {
			sizes[i], which[i] = random(), rng.IntN(live)
		}
		b.ResetTimer()
		for i := range b.N {
			k := which[i&0xffff]
			if err := m.h.Free(ctx, blocks[k]); err != nil {
				return err
			}
			if blocks[k], err = m.h.Alloc(ctx, sizes[i&0xffff], 0); err != nil {
				return err
			}
		}
		b.StopTimer()
		return nil
	})
}
