package conduit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/spin"
)

// failingBootstrap fails when the ranks have exchanged their hellos, before it meets any
// over a network.
type failingBootstrap struct {
	bootstrap.Bootstrap
	fail      func() error
	exchanges int
}

var errFailed = errors.New("it has failed")

func (f *failingBootstrap) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	all, err := f.Bootstrap.Exchange(ctx, blob)
	if f.exchanges++; err == nil && f.exchanges == 3 {
		err = f.fail()
	}
	return all, err
}

func TestRanksThatConnectLearnWhyOneDoesNot(t *testing.T) {
	for how, want := range map[string]string{"it died": " aborted the job with code 1: it has failed", "it lives": " failed: it has failed"} {
		t.Run(how, func(t *testing.T) {
			boots := bootstrap.NewGroup(4)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			boots[2] = &failingBootstrap{Bootstrap: boots[2], fail: func() error {
				if how == "it lives" {
					cancel(errFailed)
					return nil
				}
				boots[2].Abort(1, errFailed.Error())
				return errFailed
			}}
			var ranks sync.WaitGroup
			for r, b := range boots {
				ctx := ctx
				if r != 2 {
					ctx = t.Context()
				}
				ranks.Go(func() {
					job, err := Join(ctx, Config{Getenv: noEnv, Bootstrap: b, SegmentSize: 1 << 16, Fabric: FabricAuto, JoinTimeout: 10 * time.Second})
					var lost *bootstrap.LostError
					switch {
					case err == nil:
						t.Errorf("rank %d joined", r)
						_ = job.Close()
					case r == 2 && !errors.Is(err, errFailed),
						r != 2 && (!errors.As(err, &lost) || lost.Rank != 2 || !strings.HasSuffix(lost.Error(), want)):
						t.Errorf("rank %d: %v", r, err)
					}
				})
			}
			ranks.Wait()
		})
	}
}

// A rank of RunLocal that never comes to the exchange fails the others' Join.
func TestARankThatDiesInJoinIsNamed(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		boots := bootstrap.NewGroup(3)
		boots[1].Abort(3, "gone before its time")
		living := []int{0, 2}
		errs := joinEach(t, 2, func(i int) Config {
			c := cfg
			c.Bootstrap = boots[living[i]]
			return c
		}, func(_ context.Context, j *Job) error { return j.Close() })
		if err := boots[1].Close(); err != nil {
			t.Error(err)
		}
		for i, err := range errs {
			var lost *bootstrap.LostError
			if !errors.As(err, &lost) || lost.Rank != 1 {
				t.Errorf("rank %d: %v, want one that names rank 1", living[i], err)
			}
		}
	})
}

// Where processors are short whoever waits lets others run at once.
func TestRanksBeyondTheProcessorsAreCrowded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("which processors a rank may use is known on Linux")
	}
	cpus := runtime.NumCPU() // those that this process may use
	for _, n := range []int{cpus, cpus + 1} {
		onFabrics(t, n, Config{}, func(ctx context.Context, j *Job) error {
			want := n > cpus || spin.Quota() > 0 && float64(n) > spin.Quota()
			if got := (view{j}).Crowded(); got != want {
				return fmt.Errorf("with %d ranks on %d processors %v, want %v", n, cpus, got, want)
			}
			return j.Barrier(ctx)
		})
	}
}
