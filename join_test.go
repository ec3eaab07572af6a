package conduit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
)

// dyingBootstrap dies when the ranks have told one another who they are, before it meets any over a network.
type dyingBootstrap struct {
	bootstrap.Bootstrap
	exchanges int
}

var errDied = errors.New("it died")

func (d *dyingBootstrap) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	all, err := d.Bootstrap.Exchange(ctx, blob)
	if d.exchanges++; err == nil && d.exchanges == 2 {
		d.Abort(1, errDied.Error())
		return nil, errDied
	}
	return all, err
}

func TestRanksThatConnectHearOfADeathAtOnce(t *testing.T) {
	boots := bootstrap.NewGroup(3)
	boots[2] = &dyingBootstrap{Bootstrap: boots[2]}
	var ranks sync.WaitGroup
	for r, b := range boots {
		ranks.Go(func() {
			job, err := Join(t.Context(), Config{Getenv: noEnv, Bootstrap: b, SegmentSize: 1 << 16, Fabric: FabricAuto, JoinTimeout: 10 * time.Second})
			var lost *bootstrap.LostError
			switch {
			case err == nil:
				t.Errorf("rank %d joined", r)
				_ = job.Close()
			case r < 2 && (!errors.As(err, &lost) || lost.Rank != 2):
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ranks.Wait()
}
