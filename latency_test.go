package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestLatencyBucketsDouble(t *testing.T) {
	for k := range LatencyBuckets {
		bound := LatencyBound(k)
		if got := latencyBucket(bound); got != k {
			t.Errorf("%v is in bucket %d, want %d", bound, got, k)
		}
		if got := latencyBucket(bound + 1); got != min(k+1, LatencyBuckets-1) {
			t.Errorf("%v is in bucket %d, want %d", bound+1, got, k+1)
		}
	}
	for _, d := range []time.Duration{-1, 0, 1} {
		if got := latencyBucket(d); got != 0 {
			t.Errorf("%v is in bucket %d", d, got)
		}
	}
}

// Each operation is counted once, whichever way it is waited for; nothing is without Latency.
func TestLatenciesCountOperations(t *testing.T) {
	for _, on := range []bool{true, false} {
		cfg := Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Latency: on, Getenv: func(string) (string, bool) { return "", false }}
		err := RunLocalConfig(t.Context(), 2, cfg, func(j *Job) error {
			if err := j.Barrier(t.Context()); err != nil || j.Rank() != 0 {
				return err
			}
			w, err := j.NewWorker()
			if err != nil {
				return err
			}
			defer w.Close()
			if err := operateTimed(t.Context(), w); err != nil {
				return err
			}
			return wantLatencies(Latencies(j), on)
		})
		if err != nil {
			t.Errorf("Latency %t: %v", on, err)
		}
	}
}

// operateTimed does four puts that are measured, four gets, two atomics and a flush, and others.
func operateTimed(ctx context.Context, w *Worker) error {
	p, own := At[uint64](1, 64), At[uint64](0, 64)
	var errs []error
	done := func(err error) { errs = append(errs, err) }
	some := []uint64{1, 2, 3}
	done(Put(w, p, 1))
	done(PutSlice(w, p, some))
	put, puts := PutAsync(w, p, 2), PutSliceAsync(w, p, some)
	done(put.Wait(ctx))
	done(puts.Wait(ctx))
	for range 2 {
		_, err := Get(w, p)
		done(err)
	}
	done(GetSlice(w, some, p))
	gets := GetSliceAsync(w, some, p)
	done(gets.Wait(ctx))
	_, err := FetchAdd(w, p, 1)
	done(err)
	add := FetchAddAsync(w, p, 1)
	_, err = add.Wait(ctx)
	done(err)
	done(w.Flush(ctx))
	// Not measured: implicit, of a chain, of the own segment.
	done(PutNBI(w, p, 3))
	done(w.Chain(func() error { return PutNBI(w, p, 4) }))
	done(Put(w, own, 1))
	return errors.Join(errs...)
}

func wantLatencies(all map[string]map[string]Latency, on bool) error {
	if !on {
		if all != nil {
			return fmt.Errorf("without Latency: %v", all)
		}
		return nil
	}
	for op, want := range map[string]uint64{"put": 4, "get": 4, "atomic": 2, "flush": 1} {
		l := all[FabricSHM][op]
		var n uint64
		for _, c := range l.Count {
			n += c
		}
		if n != want || l.Sum <= 0 || l.Sum > time.Minute {
			return fmt.Errorf("%s: %d in all of %v, want %d", op, n, l.Sum, want)
		}
	}
	return nil
}
