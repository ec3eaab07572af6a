package metrics

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/flow"
)

func TestTheBudgetIsCounted(t *testing.T) {
	cfg := shm
	cfg.Memory.Budget = flow.BudgetConfig{Limit: 1 << 20, Small: -1, StallAfter: time.Nanosecond}
	cfg.Memory.ReceiveSize = 64 << 10
	err := conduit.RunLocalConfig(t.Context(), 1, cfg, func(j *conduit.Job) error {
		ctx := t.Context()
		if err := j.Budget().Acquire(ctx, 1<<20); err != nil {
			return err
		}
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		waits := make(chan error, 1)
		go func() { waits <- j.Budget().Acquire(short, 4096) }()
		var s map[string]float64
		rank := "{rank=\"0\"}"
		for s["ibconduit_memory_stalls_total"+rank] == 0 {
			var err error
			if s, err = gather(NewCollector(j)); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		for name, want := range map[string]float64{
			"limit_bytes" + rank: 1 << 20, "peak_bytes" + rank: 1 << 20, "waiting" + rank: 1, "waiting_bytes" + rank: 4096, "queued_total" + rank: 1,
			"claims_total" + rank: 1, "receive_bytes" + rank: 64 << 10, `held_bytes{by="acquire",rank="0"}`: 1 << 20, `held_bytes{by="sets",rank="0"}`: 0,
		} {
			if got, ok := s["ibconduit_memory_"+name]; !ok || got != want {
				return fmt.Errorf("memory_%s is %v, want %v", name, got, want)
			}
		}
		if s["ibconduit_memory_head_age_seconds"+rank] <= 0 {
			return errors.New("the first that waits has no age")
		}
		cancel()
		err := <-waits
		j.Budget().Release(1 << 20)
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the wait that was given up: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
