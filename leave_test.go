package conduit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Once a rank is dead Close waits for nobody. Whoever waits for a word of a rank that has left so hears of it.
func TestWhoLeavesBecauseOfADeathIsFoundDown(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Getenv = noEnv
		ctx := testContext(t)
		found := make(chan error, 1)
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error {
			return withWorker(j, func(w *Worker) error {
				switch j.Rank() {
				case 0: // leaves when rank 1 knows of the death
					for {
						if err := w.WaitUntil(ctx, 0, Equal, 1); !errors.Is(err, ErrPeerDown) {
							return err
						}
					}
				case 1:
					found <- waitForWhoLeft(ctx, w)
					return nil
				}
				return errors.New("out of cheese")
			})
		})
		if err == nil || !strings.Contains(err.Error(), "out of cheese") {
			t.Errorf("%v, want the error of rank 2 alone", err)
		}
		if err := <-found; err != nil {
			t.Error(err)
		}
	})
}

// waitForWhoLeft waits for a word that rank 0 never writes.
func waitForWhoLeft(ctx context.Context, w *Worker) error {
	for _, rank := range []int{2, 0} {
		var down *PeerDownError
		if err := w.WaitUntil(ctx, 8, Equal, 1); !errors.As(err, &down) || down.Rank != rank {
			return fmt.Errorf("%w, want rank %d down", err, rank)
		}
		if rank == 2 {
			if err := Put(w, At[uint64](0, 0), 1); err != nil {
				return err
			}
		}
	}
	return nil
}
