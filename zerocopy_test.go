package conduit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

// awaitStillness waits until the runtime's discards are over: for a while, what was discarded is
// not kept registered.
func awaitStillness(ctx context.Context) error {
	for debug.FreeOSMemory(); memevents.Changing(0, 1<<47); time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			return errors.New("a discard lingers without end")
		}
	}
	return nil
}

func TestAJobWithoutVerbsRegistersNothing(t *testing.T) {
	runLocal(t, 1, Config{Fabric: FabricSHM}, func(ctx context.Context, j *Job) error {
		if r, ok := j.Registrations(); ok {
			return fmt.Errorf("%+v", r)
		}
		if r, ok := j.RetestRegistrations(); ok {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func TestTheProgramsOwnMemoryGoesWithoutACopy(t *testing.T) {
	dev := rdmatest.Device(t)
	const n = 200 << 10
	for _, min := range []int64{0, 4096, -1} {
		t.Run(fmt.Sprint(min), func(t *testing.T) {
			cfg := Config{Fabric: FabricIBV, Device: dev, SegmentSize: 4 << 20, ZeroCopyMin: min}
			runLocal(t, 2, cfg, func(ctx context.Context, j *Job) error {
				if j.Rank() == 1 {
					return errors.Join(j.Barrier(ctx), j.Barrier(ctx), samePattern(j.Segment()[64:64+n], 5))
				}
				err := awaitStillness(ctx)
				if err == nil {
					err = j.Barrier(ctx)
				}
				if err != nil {
					return err
				}
				err = withWorker(j, func(w *Worker) error {
					src, dst := make([]byte, n), make([]byte, n)
					pattern(src, 5)
					// While a change of memory is under way, as the collector makes them, a copy
					// serves.
					for i := 0; i == 0 || min >= 0 && i < 100 && j.Stats()["ibv"].ZeroCopy < 2; i++ {
						clear(dst)
						put := PutSliceAsync(w, At[byte](1, 64), src)
						if err := put.Wait(ctx); err != nil {
							return err
						}
						if err := GetSlice(w, dst, At[byte](1, 64)); err != nil {
							return err
						}
						if err := samePattern(dst, 5); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
				c := j.Stats()["ibv"]
				r, ok := j.RetestRegistrations()
				switch {
				case ok != (min >= 0):
					return fmt.Errorf("registrations: %v", ok)
				case min < 0 && (c.ZeroCopy != 0 || c.Bounced == 0):
					return fmt.Errorf("registered though never is asked for: %+v", c)
				case min >= 0 && (c.ZeroCopy < 2 || r.Stats.Gets != r.Stats.Puts || r.Min == 0):
					return fmt.Errorf("%+v, %+v", c, r)
				case min > 0 && r.Min != min:
					return fmt.Errorf("zero-copy begins at %d bytes, want %d", r.Min, min)
				case min == 0 && r.Status.Origins[regcache.Any].Mode != regcache.Cached:
					return fmt.Errorf("a retest without a change ended the keeping: %v", r.Status)
				}
				return j.Barrier(ctx)
			})
		})
	}
}
