package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"golang.org/x/sync/errgroup"
)

// onSides joins n ranks of this process to a job for each side.
func onSides(t *testing.T, n int, largest int64, f func(ctx context.Context, sides []AllToAllSide, workers []*conduit.Worker) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sides := AllToAllSides(n, largest)
	var boots [][]bootstrap.Bootstrap // of sides, by rank
	for range sides {
		boots = append(boots, bootstrap.NewGroup(n))
	}
	var ranks errgroup.Group
	for r := range n {
		ranks.Go(func() (err error) {
			var workers []*conduit.Worker
			for i, s := range sides {
				cfg := conduit.Config{Bootstrap: boots[i][r], Fabric: conduit.FabricSHM}
				s.Configure(&cfg, n, largest)
				j, err := conduit.Join(ctx, cfg)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, j.Close()) }()
				w, err := j.NewWorker()
				if err != nil {
					return err
				}
				workers = append(workers, w)
			}
			err = f(ctx, sides, workers)
			for _, w := range workers {
				err = errors.Join(err, w.Close())
			}
			return err
		})
	}
	return ranks.Wait()
}

func TestAllToAllVerifiesEverySide(t *testing.T) {
	const largest = 100_000
	for _, n := range []int{1, 2, 3} {
		err := onSides(t, n, largest, func(ctx context.Context, sides []AllToAllSide, workers []*conduit.Worker) error {
			for _, size := range []int64{1, 8, 1000, largest} {
				p, err := MeasureAllToAll(ctx, sides, workers, size, 2, 3, time.Minute)
				if err != nil {
					return err
				}
				name, micros := p.Best()
				if len(p.Micros) != len(sides) || name == "" || micros <= 0 || len(p.Rounds["ample"]) != 2 {
					t.Errorf("%d ranks: %+v, the best is %q", n, p, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%d ranks: %v", n, err)
		}
	}
}

// A block that does not arrive, or arrives elsewhere, is found on each side.
func TestAllToAllFindsAWrongBlock(t *testing.T) {
	err := onSides(t, 2, 1000, func(ctx context.Context, sides []AllToAllSide, workers []*conduit.Worker) error {
		for i, s := range sides {
			a := AllToAll{AllToAllSide: s, w: workers[i]}
			src := make([]byte, 2000) // of zeros, which no block has
			_, err := a.round(ctx, make([]byte, 2000), src, 1000, 1)
			if wrong := (*WrongError)(nil); !errors.As(err, &wrong) {
				t.Errorf("%s: error %v", s.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
