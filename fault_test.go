package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/verbs"
)

// What a program does wrong comes back as an error value that says what it was,
// and nothing reaches the wire: the rank goes on working.
func TestWrongOperationsAreRefused(t *testing.T) {
	const size = 4 << 20
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		var bounds *BoundsError
		var align *AlignError
		var rank *RankError
		var typ *TypeError
		buf := make([]byte, 100)
		get := func(p Ptr[int64]) error { _, err := Get(w, p); return err }
		add := func(p Ptr[int64]) error { _, err := FetchAdd(w, p, 1); return err }
		for what, c := range map[string]struct {
			err error
			as  any
		}{
			"get beyond the end":            {get(At[int64](1, size)), &bounds},
			"get across the end":            {get(At[int64](1, size-7)), &bounds},
			"get of an offset that wraps":   {get(At[int64](1, ^uint64(0)-3)), &bounds},
			"put across the end":            {Put(w, At[[16]byte](0, size-15), [16]byte{}), &bounds},
			"slice across the end":          {PutSlice(w, At[byte](1, size-99), buf), &bounds},
			"get of a slice across the end": {GetSlice(w, buf, At[byte](1, size-99)), &bounds},
			"an implicit put outside":       {PutNBI(w, At[int64](1, size), 1), &bounds},
			"atomic across the end":         {add(At[int64](1, size-4)), &bounds},
			"the runtime's own area":        {add(At[int64](1, size+4096)), &bounds},
			"unaligned atomic":              {add(At[int64](1, 12)), &align},
			"rank beyond the job":           {get(At[int64](2, 0)), &rank},
			"negative rank":                 {get(At[int64](-1, 0)), &rank},
			"type with pointers":            {Put(w, At[string](1, 0), "x"), &typ},
			"slice of pointers":             {GetSlice(w, make([]*int, 1), At[*int](1, 0)), &typ},
		} {
			if c.err == nil || !errors.As(c.err, c.as) {
				return fmt.Errorf("%s: error %v, want a %T", what, c.err, c.as)
			}
		}
		if p := GetAsync(w, At[int64](1, size)); !errors.As(p.err, &bounds) {
			return fmt.Errorf("asynchronous get outside: %v", p.err)
		}
		if p := PutAsync(w, At[int64](7, 0), 1); !errors.As(p.Wait(ctx), &rank) {
			return fmt.Errorf("asynchronous put to no rank: %v", p.err)
		}
		if err := get(Ptr[int64]{}); !errors.Is(err, ErrNullPtr) {
			return fmt.Errorf("null pointer: %v", err)
		}
		if err := j.Broadcast(ctx, 5, buf); !errors.As(err, &rank) {
			return fmt.Errorf("broadcast from no rank: %v", err)
		}
		if err := w.WaitUntil(ctx, 4, Equal, 0); !errors.As(err, &align) {
			return fmt.Errorf("wait on an unaligned word: %v", err)
		}
		if err := w.WaitUntil(ctx, size, Equal, 0); !errors.As(err, &bounds) {
			return fmt.Errorf("wait outside the segment: %v", err)
		}
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := w.WaitUntil(short, 0, Less+1, 0); err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("wait for a condition that there is not: %v", err)
		}
		if n := w.Stats()[j.cfg.Fabric]; n.Puts+n.Gets+n.Atomics != 0 {
			return fmt.Errorf("refused operations were counted as started: %+v", n)
		}
		// Everything still works.
		if err := Put(w, At[int64](1-j.Rank(), 0), 5); err != nil {
			return err
		}
		return w.Barrier(ctx)
	}))
}

func TestUseAfterCloseIsAnError(t *testing.T) {
	onFabrics(t, 1, Config{}, func(ctx context.Context, j *Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		if err := wantErr(j.Close(), ErrBusy, "1 workers are open"); err != nil {
			return fmt.Errorf("close with an open worker: %w", err)
		}
		if err := Put(w, At[int64](0, 0), 1); err != nil {
			return fmt.Errorf("after a refused close: %w", err)
		}
		if err := errors.Join(w.Close(), w.Close()); err != nil {
			return err
		}
		_, get := Get(w, At[int64](0, 0))
		_, add := FetchAdd(w, At[int64](0, 0), 1)
		p := GetAsync(w, At[int64](0, 0))
		for what, err := range map[string]error{
			"Put": Put(w, At[int64](0, 0), 1), "Get": get, "FetchAdd": add, "GetAsync": p.err, "Flush": w.Flush(ctx), "Poll": w.Poll(),
			"PutSlice": PutSlice(w, At[byte](0, 0), []byte{1}), "Chain": w.Chain(func() error { return nil }), "WaitUntil": w.WaitUntil(ctx, 0, Equal, 0),
		} {
			if err := wantErr(err, os.ErrClosed); err != nil {
				return fmt.Errorf("%s on a closed worker: %w", what, err)
			}
		}
		if err := errors.Join(j.Close(), j.Close()); err != nil {
			return err
		}
		_, err = j.NewWorker()
		for what, err := range map[string]error{"NewWorker": err, "Barrier": j.Barrier(ctx), "Broadcast": j.Broadcast(ctx, 0, []byte{1})} {
			if err := wantErr(err, os.ErrClosed); err != nil {
				return fmt.Errorf("%s on a closed job: %w", what, err)
			}
		}
		return nil
	})
}

func TestTwoGoroutinesInOneWorkerAreFound(t *testing.T) {
	onFabrics(t, 1, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if err := w.guard.Enter(); err != nil { // as a goroutine inside a call does
			return err
		}
		var err error
		var other sync.WaitGroup
		other.Go(func() { _, err = Get(w, At[int64](0, 0)) })
		other.Wait()
		w.guard.Exit()
		if owner.Checked != errors.Is(err, ErrConcurrent) { // the release build does not look
			return fmt.Errorf("second goroutine: %v", err)
		}
		return nil
	}))
}

func TestATooLargeSegmentIsRefusedWithFigures(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.SegmentSize, cfg.Getenv = 1<<46, noEnv
		j, err := Join(t.Context(), cfg)
		var limit *LimitError
		if !errors.As(err, &limit) {
			if err == nil {
				j.Close()
			}
			t.Fatalf("%v, want a LimitError", err)
		}
		if limit.Asked < 1<<46 || limit.Limit == 0 || limit.Limit >= limit.Asked || limit.Which == "" || limit.Remedy == "" {
			t.Errorf("figures are missing: %+v", limit)
		}
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	onFabrics(t, 2, Config{}, func(ctx context.Context, j *Job) error {
		if j.Rank() == 1 {
			return withWorker(j, func(w *Worker) error { return w.WaitUntil(ctx, 0, Equal, 1) })
		}
		err := withWorker(j, func(w *Worker) error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := wantErr(w.WaitUntil(short, 0, Equal, 1), context.DeadlineExceeded); err != nil {
				return err
			}
			if err := wantErr(j.Barrier(short), context.DeadlineExceeded); err != nil {
				return fmt.Errorf("a barrier that was too late to begin: %w", err)
			}
			if err := wantErr(j.Barrier(collectedFor(ctx, j)), context.DeadlineExceeded); err != nil {
				return err
			}
			if err := wantErr(j.Barrier(ctx), ErrCollective); err != nil {
				return err
			}
			return Put(w, At[uint64](1, 0), 1)
		})
		return err
	})
}

func TestRunLocalReportsARankThatFails(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Getenv = noEnv
		boom := errors.New("boom")
		for what, c := range map[string]struct {
			fail func() error
			want string
		}{
			"an error": {func() error { return boom }, "boom"},
			"a panic":  {func() error { panic("out of cheese") }, "panic: out of cheese"},
			"an exit":  {func() error { runtime.Goexit(); return nil }, errExited.Error()},
		} {
			for _, n := range []int{1, 3} {
				err := RunLocalConfig(t.Context(), n, cfg, func(j *Job) error {
					if j.Rank() == n-1 {
						return c.fail()
					}
					return j.Barrier(t.Context())
				})
				want := fmt.Sprintf("rank %d: %s", n-1, c.want)
				if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrPeerDown) != (n > 1) {
					t.Errorf("%s: %v, want %q and the others' ErrPeerDown", what, err, want)
				}
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		err := RunLocalConfig(ctx, 2, cfg, func(j *Job) error {
			if j.Rank() == 0 {
				cancel(errors.New("enough"))
			}
			return withWorker(j, func(w *Worker) error { return w.WaitUntil(context.Background(), 0, Equal, 1) })
		})
		if err == nil || !strings.Contains(err.Error(), "conduit: the job was cancelled: enough") {
			t.Errorf("a cancelled RunLocal whose ranks wait for ever: %v", err)
		}
	})
}

func TestADeviceThatIsNotThereIsNamed(t *testing.T) {
	dev := rdmatest.Device(t)
	for _, c := range []struct {
		cfg   Config
		is    error
		texts []string
	}{
		{Config{Device: "mlx9_7"}, verbs.ErrNoDevice, []string{"mlx9_7", dev}},
		{Config{Device: dev, GID: "200"}, verbs.ErrNoGID, []string{"GID 200"}},
	} {
		c.cfg.Fabric, c.cfg.SegmentSize, c.cfg.Getenv = FabricIBV, 1<<20, noEnv
		_, err := Join(t.Context(), c.cfg)
		if err := wantErr(err, c.is, c.texts...); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlySoManyWorkersOverVerbs(t *testing.T) {
	cfg := Config{Fabric: FabricIBV, Device: rdmatest.Device(t), Workers: 2, SegmentSize: 1 << 20}
	runLocal(t, 1, cfg, func(ctx context.Context, j *Job) error {
		a, err := j.NewWorker()
		if err != nil {
			return err
		}
		return errors.Join(withWorker(j, func(*Worker) error {
			_, err := j.NewWorker()
			return wantErr(err, ErrNoWorker, "IBCONDUIT_WORKERS")
		}), withWorker(j, func(w *Worker) error { // the one given back serves again
			return Put(w, At[int64](0, 0), 1)
		}), a.Close())
	})
}

// The others can do nothing about it but read why. Where they have a device, without the reason
// their users would look at the wrong host.
func TestARankThatCannotJoinSendsItsReason(t *testing.T) {
	for name, c := range map[string]struct {
		fabric string
		change func(*Config)
		reason string // on all ranks
		others string // and on the others
	}{
		"segment": {FabricSHM, func(c *Config) { c.SegmentSize = 1 << 50 }, "bytes asked for", "rank 1 cannot take part"},
		"device":  {FabricIBV, func(c *Config) { c.Device = "mlx9_7" }, "mlx9_7", "rank 1 has no usable verbs device"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Fabric: c.fabric, SegmentSize: 1 << 20}
			if c.fabric == FabricIBV {
				cfg.Device = rdmatest.Device(t)
			}
			odd := cfg
			c.change(&odd)
			for r, err := range failToJoin(t, cfg, odd, cfg) {
				if err == nil || !strings.Contains(err.Error(), c.reason) || r != 1 && !strings.Contains(err.Error(), c.others) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// fewExchanges is a bootstrap in which the others have given up after some exchanges, when this
// rank says what its device is.
type fewExchanges struct {
	bootstrap.Bootstrap
	left int
}

func (b *fewExchanges) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	if b.left == 0 {
		return nil, bootstrap.ErrGaveUp
	}
	b.left--
	return b.Bootstrap.Exchange(ctx, blob)
}

func TestAJoinTooLateForASlowDeviceSaysSo(t *testing.T) {
	for timeout, slow := range map[time.Duration]bool{time.Nanosecond: true, time.Hour: false} {
		_, err := Join(t.Context(), Config{Fabric: FabricIBV, SegmentSize: 1 << 20, Getenv: noEnv, JoinTimeout: timeout,
			Bootstrap: &fewExchanges{bootstrap.NewGroup(1)[0], 3}})
		if err := wantErr(err, bootstrap.ErrGaveUp); err != nil {
			t.Error(err)
		}
		if said := err != nil && strings.Contains(err.Error(), "opening the device and registering the segment of "); said != slow {
			t.Errorf("of %v to join: %v", timeout, err)
		}
	}
}

func TestNoDeviceAtAllSaysWhatToDo(t *testing.T) {
	infos, err := verbs.Devices()
	if len(infos) > 0 {
		t.Skip("this host has a device")
	}
	remedy := "ibbench doctor"
	if errors.Is(err, verbs.ErrNotSupported) { // in a build without cgo
		remedy = "CGO_ENABLED=1"
	}
	_, err = Join(t.Context(), Config{Fabric: FabricIBV, SegmentSize: 1 << 20, Getenv: noEnv})
	if err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("%v, want %q", err, remedy)
	}
}

// The port of Soft-RoCE is down when its interface is.
func TestAPortThatIsDownIsRefusedWithTheRemedy(t *testing.T) {
	dev := rdmatest.Device(t)
	if !strings.HasPrefix(dev, "rxe") || os.Getenv(rdmatest.EnvRequire) != "1" {
		t.Skip("takes the device's interface down: only where the device is there for tests (" + rdmatest.EnvRequire + "=1)")
	}
	netdev, err := os.ReadFile("/sys/class/infiniband/" + dev + "/ports/1/gid_attrs/ndevs/0")
	if err != nil {
		t.Fatal(err)
	}
	link := func(state string) {
		if out, err := exec.Command("ip", "link", "set", strings.TrimSpace(string(netdev)), state).CombinedOutput(); err != nil {
			t.Fatalf("ip link set %s: %v: %s", state, err, out)
		}
	}
	link("down")
	_, err = Join(t.Context(), Config{Fabric: FabricIBV, Device: dev, SegmentSize: 1 << 20, Getenv: noEnv})
	link("up")
	if err := wantErr(err, verbs.ErrNoGID, "down", "ip link set"); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		j, err := Join(t.Context(), Config{Fabric: FabricIBV, Device: dev, SegmentSize: 1 << 20, Getenv: noEnv})
		if err == nil {
			if err := j.Close(); err != nil {
				t.Error(err)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the port did not come back: %v", err)
		}
	}
}
