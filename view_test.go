package conduit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// partLanes has ranks use lanes of a part in a region.
func partLanes(ctx context.Context, j *Job) error {
	v := view{j}
	lanes, err := v.NewLanes()
	if err != nil {
		return err
	}
	defer lanes.Close()
	r, to := v.Region("conduit.a"), neighbour(j)
	if len(r.Bytes) != 4096 || len(lanes.All()) != len(j.networks.all) {
		return fmt.Errorf("%d bytes, %d lanes", len(r.Bytes), len(lanes.All()))
	}
	src := make([]byte, 100)
	pattern(src, j.Rank())
	if _, err := lanes.To(to).Put(to, r.Off+64, src, fabric.Implicit); err != nil {
		return err
	}
	for _, l := range lanes.All() {
		if err := l.Flush(ctx); err != nil {
			return err
		}
	}
	_, h, err := lanes.Atomic(to).Atomic(to, r.Off, fabric.Atomic{Op: fabric.FetchAdd, Operand: 5}, fabric.Blocking)
	if err == nil && h != fabric.Done {
		_, err = lanes.Atomic(to).Wait(ctx, h)
	}
	if err != nil {
		return err
	}
	word := (*uint64)(unsafe.Pointer(&r.Bytes[0]))
	if err := errors.Join(v.WaitWord(ctx, word, fabric.Equal, 5, nil), lanes.Waiter().WaitWord(ctx, word, fabric.Equal, 5, nil), j.Barrier(ctx)); err != nil {
		return err
	}
	if err := samePattern(r.Bytes[64:164], 1-j.Rank()); err != nil {
		return err
	}
	return lanes.Close()
}

func TestAPartReachesItsRegionOnAllRanks(t *testing.T) {
	onFabrics(t, 2, withNeeds(Config{}, needs{regions: []env.Spec{{Name: "conduit.a", Size: 4096}}, lanes: 1}), func(ctx context.Context, j *Job) error {
		before := j.Stats()
		if err := partLanes(ctx, j); err != nil {
			return err
		}
		name := j.FabricTo(neighbour(j))
		if after := j.Stats(); after[name].Atomics != before[name].Atomics+1 || len(j.workers.parts) != 1 { // those of coll
			return fmt.Errorf("%d atomics are counted, %d lanes are open", after[name].Atomics, len(j.workers.parts))
		}
		return nil
	})
}

func TestARegionThatNobodyAskedForPanics(t *testing.T) {
	runLocal(t, 1, Config{}, func(_ context.Context, j *Job) (err error) {
		defer func() {
			if recover() == nil {
				err = errors.New("it did not")
			}
		}()
		view{j}.Region("conduit.none")
		return nil
	})
}

func TestAPartLearnsOfEachDeathOnce(t *testing.T) {
	runLocal(t, 4, Config{SegmentSize: 4096, Fabric: FabricSHM}, func(ctx context.Context, j *Job) error {
		if j.Rank() != 0 { // which does not wait for these in Close, as it takes them for dead
			return nil
		}
		v, cause := view{j}, errors.New("another rank found it")
		var mu sync.Mutex
		early, late, stopped := map[int]int{}, map[int]int{}, map[int]int{}
		count := func(m map[int]int) func(int, error) {
			return func(rank int, _ error) {
				mu.Lock()
				defer mu.Unlock()
				m[rank]++
			}
		}
		v.OnDown(count(early))
		stop := v.OnDown(count(stopped))
		v.SetDown(2, cause)
		stop()
		v.OnDown(count(late))
		v.SetDown(2, errors.New("again"))
		v.SetDown(0, cause) // itself
		v.SetDown(1, cause)
		mu.Lock()
		defer mu.Unlock()
		for _, m := range []map[int]int{early, late} {
			if len(m) != 2 || m[1] != 1 || m[2] != 1 {
				return fmt.Errorf("calls by rank: %v", m)
			}
		}
		if len(stopped) != 1 || !errors.Is(v.Down(2), cause) || v.Down(0) != nil || v.Down(3) != nil {
			return fmt.Errorf("calls until stop: %v; down: %v, %v, %v", stopped, v.Down(0), v.Down(2), v.Down(3))
		}
		return nil
	})
}

func TestAPartLearnsThatItsJobEnds(t *testing.T) {
	closing := make(chan context.Context, 2)
	runLocal(t, 2, Config{SegmentSize: 4096, Fabric: FabricSHM}, func(_ context.Context, j *Job) error {
		closing <- view{j}.Context()
		return nil
	})
	for range 2 {
		ctx := <-closing
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := RunLocalConfig(ctx, 1, Config{SegmentSize: 4096, Getenv: noEnv}, func(j *Job) error {
		cancel()
		<-view{j}.Context().Done()
		return errors.Join(j.checkOpen(), wantErr(context.Cause(view{j}.Context()), context.Canceled, "the job was cancelled"))
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDeathsAreToldOnceWhilePartsBegin(t *testing.T) {
	const parts, deaths = 60, 20 // begin one by one, and come meanwhile
	m := newMembership(slog.New(slog.DiscardHandler))
	m.size = 1 + parts*deaths
	var told [parts][1 + parts*deaths]atomic.Int32
	for i := range told {
		var dying sync.WaitGroup
		dying.Go(func() {
			for r := range deaths {
				m.die(1+i*deaths+r, errFailed)
			}
		})
		m.informs(func(rank int, _ error) { told[i][rank].Add(1) })
		dying.Wait()
	}
	for i := range told {
		for r := 1; r < m.size; r++ {
			if n := told[i][r].Load(); n != 1 {
				t.Fatalf("part %d was told %d times of rank %d", i, n, r)
			}
		}
	}
}
