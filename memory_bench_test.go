package conduit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ibconduit/conduit/flow"
)

// benchMemory runs f at rank 0 of two over shared memory.
func benchMemory(b *testing.B, f func(ctx context.Context, j *Job, w *Worker) error) {
	b.Helper()
	cfg := withFetches(Config{Fabric: FabricSHM, Getenv: noEnv, Memory: MemoryConfig{Budget: flow.BudgetConfig{Limit: 32 << 20}}}, "same", func(r *FetchRequest) {
		_ = r.Reply(context.Background(), r.Job().Segment()[:r.Size()])
	})
	cfg.Memory.Payloads = map[string]func(*Payload){"in": (*Payload).Release}
	ctx := b.Context()
	err := RunLocalConfig(ctx, 2, cfg, func(j *Job) error {
		for i := range j.Segment() {
			j.Segment()[i] = 1
		}
		if err := j.Barrier(ctx); err != nil || j.Rank() == 1 {
			return err
		}
		return withWorker(j, func(w *Worker) error { return f(ctx, j, w) })
	})
	if err != nil {
		b.Error(err)
	}
}

const benchBytes = 64 << 10

func BenchmarkGetSlice64K(b *testing.B) {
	benchMemory(b, func(_ context.Context, _ *Job, w *Worker) error {
		dst := make([]byte, benchBytes)
		b.SetBytes(benchBytes)
		for b.Loop() {
			if err := GetSlice(w, dst, At[byte](1, 0)); err != nil {
				return err
			}
		}
		return nil
	})
}

// benchFetch submits sets of one fetch.
func benchFetch(b *testing.B, add func(*FetchSet)) {
	benchMemory(b, func(ctx context.Context, _ *Job, w *Worker) error {
		b.SetBytes(benchBytes)
		b.ReportAllocs()
		for b.Loop() {
			set := NewFetchSet(w)
			add(set)
			l, err := set.Submit(ctx)
			if err != nil {
				return err
			}
			l.Release()
		}
		return nil
	})
}

func BenchmarkFetchSlice64K(b *testing.B) {
	benchFetch(b, func(s *FetchSet) { FetchSlice(s, At[byte](1, 0), benchBytes) })
}

func BenchmarkFetchFrom64K(b *testing.B) {
	benchFetch(b, func(s *FetchSet) { FetchFrom[byte](s, 1, "same", benchBytes) })
}

func BenchmarkSendPayload64K(b *testing.B) {
	benchMemory(b, func(ctx context.Context, j *Job, w *Worker) error {
		data := make([]byte, benchBytes)
		b.SetBytes(benchBytes)
		b.ReportAllocs()
		for b.Loop() {
			if err := SendPayload(ctx, w, 1, "in", data); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkIncast has three ranks send payloads of 64 KiB to one, whose budget has memory for so
// many.
func BenchmarkIncast(b *testing.B) {
	for _, budget := range []int64{2, 4, 8, 16, 1024} {
		b.Run(fmt.Sprintf("budget=%d", budget), func(b *testing.B) {
			const senders, each = 3, 8
			var got, read atomic.Int64 // read: the compiler keeps the sum
			arrived := make(chan struct{}, 1)
			cfg := Config{Fabric: FabricSHM, Getenv: noEnv, Memory: MemoryConfig{Budget: flow.BudgetConfig{Limit: budget * benchBytes, Small: -1, Unscheduled: -1}}}
			cfg.Memory.Payloads = map[string]func(*Payload){"in": func(p *Payload) {
				var sum byte
				for _, v := range p.Data() {
					sum += v
				}
				p.Release()
				read.Store(int64(sum))
				if got.Add(1)%(senders*each) == 0 {
					arrived <- struct{}{}
				}
			}}
			ctx := b.Context()
			b.SetBytes(senders * each * benchBytes)
			round := make([]chan struct{}, senders+1)
			for i := range round {
				round[i] = make(chan struct{})
			}
			err := RunLocalConfig(ctx, senders+1, cfg, func(j *Job) error {
				if j.Rank() > 0 {
					data := make([]byte, benchBytes)
					for range round[j.Rank()] {
						var all sync.WaitGroup
						for range each {
							all.Go(func() { _ = SendPayload(ctx, j, 0, "in", data) })
						}
						all.Wait()
					}
					return nil
				}
				for b.Loop() {
					for _, r := range round[1:] {
						r <- struct{}{}
					}
					<-arrived
				}
				for _, r := range round[1:] {
					close(r)
				}
				s := j.Budget().MemoryStats()
				b.ReportMetric(float64(s.Peak)/benchBytes, "peak-payloads")
				if s.Peak > s.Limit || s.MemoryPeak > s.Limit {
					return fmt.Errorf("%d bytes held, %d with memory, of %d", s.Peak, s.MemoryPeak, s.Limit)
				}
				return nil
			})
			if err != nil {
				b.Error(err)
			}
		})
	}
}
