package jobtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
)

// The handlers of the ranks that end.
var (
	exitTable  = am.NewTable()
	exitEcho   = exitTable.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Args()...) })
	exitLeave  = exitTable.Handle("exit", func(c *am.Call) { os.Exit(int(c.Args()[0])) })
	exitKill   = exitTable.Handle("kill", func(*am.Call) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} })
	exitPanic  = exitTable.Handle("panic", func(*am.Call) { panic("out of cheese") })
	exitAbort  = exitTable.Handle("abort", func(c *am.Call) { exitingJob().Abort(int(c.Args()[0]), "from a handler") })
	exitHang   = exitTable.Handle("hang", func(*am.Call) { exitHangs.Add(1); select {} })
	exitNever  = exitTable.Handle("never", func(c *am.Call) { exitOwes.Add(1); c.Defer(time.Hour) })
	exitGather = exitTable.Handle("gather", func(c *am.Call) { exitMet[c.Arg(0)].Add(1) })

	exitJob             atomic.Pointer[conduit.Job]
	exitHangs, exitOwes atomic.Int32
	exitMet             [phases]atomic.Int32
)

// exitingJob is this rank's job. A request may be handled before the program has what Join returns.
func exitingJob() *conduit.Job {
	for exitJob.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	return exitJob.Load()
}

// When ranks meet.
const (
	phaseAll       = iota // before a death
	phaseLeave            // rank 1 may go
	phaseSurvivors        // after a death
	phases
)

// messageEndings are jobs whose ranks end with messages about.
var messageEndings = map[string]ending{
	"all close": {codes: []int{0}, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		return echoes(ctx, w, 20)
	})},
	"one exits early": {shm: true, codes: []int{4}, found: 2, part: withMessages(oneEnds(func() { os.Exit(4) }))},
	"one is killed":   {codes: []int{137}, found: 2, part: withMessages(oneEnds(func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }))},
	"one panics":      {shm: true, codes: []int{2}, found: 2, says: "panic: out of cheese", part: withMessages(oneEnds(func() { panic("out of cheese") }))},
	"one exits before it ever used a message": {codes: []int{4}, found: 2, part: rank(1, exits(4), withMessages(outliveMessages))},
	"one aborts":                 {shm: true, codes: []int{7}, found: 2, part: withMessages(oneEnds(func() { exitJob.Load().Abort(7, "mine") }))},
	"one exits in a handler":     {codes: []int{6}, found: 2, part: withMessages(oneEndsInHandler(exitLeave, 6))},
	"one is killed in a handler": {shm: true, codes: []int{137}, found: 2, part: withMessages(oneEndsInHandler(exitKill))},
	"one aborts in a handler":    {shm: true, codes: []int{7}, found: 2, says: "from a handler", part: withMessages(oneEndsInHandler(exitAbort, 7))},
	"all exit in a handler": {codes: []int{6}, found: -1, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		for r := range 3 {
			_ = exitLeave.Post(ctx, w, (w.Job().Rank()+1+r)%3, 6) // the last one is itself
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})},
	"one exits in a handler while its goroutine is in a barrier": {codes: []int{6}, found: 2, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		if w.Job().Rank() == 1 {
			return w.Job().Barrier(ctx)
		}
		return oneEndsInHandler(exitLeave, 6)(ctx, w)
	})},
	"one exits in a handler while its goroutine computes": {shm: true, codes: []int{6}, found: 2, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		for w.Job().Rank() == 1 {
			continue
		}
		return oneEndsInHandler(exitLeave, 6)(ctx, w)
	})},
	"a handler panics": {shm: true, codes: []int{0}, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		for r := range 3 {
			var re *am.RemoteError
			if _, err := exitPanic.Call(ctx, w, r); !errors.As(err, &re) || re.Rank != r || re.Reason != am.Panicked || re.Text != "out of cheese" {
				return fmt.Errorf("a call whose handler panics: %w", err)
			}
			if err := exitPanic.Post(ctx, w, r); err != nil {
				return err
			}
		}
		return echoes(ctx, w, 5)
	})},

	"one ends with calls outstanding in both directions": {codes: []int{4}, found: 2, grace: time.Second, part: withMessages(callsBothWays(func(ctx context.Context, w *conduit.Worker, p []*am.Pending) error {
		if w.Job().Rank() == 1 {
			os.Exit(4)
		}
		_, err := p[1].Wait(ctx)
		if _, done, err := p[2-w.Job().Rank()].Test(); done && !errors.Is(err, conduit.ErrPeerDown) { // the other survivor may have left
			return fmt.Errorf("a call to a rank that lives ended: %w", err)
		}
		return err
	}))},
	"all close with calls outstanding in both directions": {codes: []int{1}, found: -1, says: "in flight", grace: time.Second, part: withMessages(callsBothWays(func(context.Context, *conduit.Worker, []*am.Pending) error {
		return nil
	}))},
	"one exits between Prepare and Commit": {codes: []int{4}, found: 2, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		to := 1
		if w.Job().Rank() == 1 {
			to = 0
		}
		p, err := exitEcho.Prepare(ctx, w, to, 100)
		if err != nil {
			return err
		}
		if err := gatherThenOneMayLeave(ctx, w); err != nil {
			p.Cancel()
			return err
		}
		if w.Job().Rank() == 1 {
			os.Exit(4)
		}
		down := outliveMessages(ctx, w)
		if err := p.Commit(ctx); !errors.Is(err, conduit.ErrPeerDown) {
			return fmt.Errorf("Commit to the dead rank: %w", err)
		}
		return down
	})},
	"one closes with a prepared message": {shm: true, codes: []int{1}, found: -1, says: "1 messages are prepared", grace: time.Second, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		if err := echoes(ctx, w, 1); err != nil || w.Job().Rank() != 1 {
			return err
		}
		_, err := exitEcho.Prepare(ctx, w, 0, 100)
		return err
	})},

	"one returns from main and the others close": {codes: []int{0}, part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		err := echoes(ctx, w, 3)
		if err == nil {
			err = gatherThenOneMayLeave(ctx, w)
		}
		if err == nil && w.Job().Rank() == 1 {
			os.Exit(0)
		}
		return err
	})},
	"one neither closes nor ends": {codes: []int{1}, found: -1, stuck: true, grace: 300 * time.Millisecond, says: "not every rank has called Close within",
		part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
			err := echoes(ctx, w, 3)
			if err == nil && w.Job().Rank() == 1 {
				select {}
			}
			return err
		})},
	"one is stopped": {shm: true, codes: []int{1}, found: -1, stuck: true, grace: 300 * time.Millisecond, says: "within 300ms",
		part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
			err := gatherThenOneMayLeave(ctx, w)
			if err == nil && w.Job().Rank() == 1 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				select {} // another thread takes the signal, and may be late
			}
			return err
		})},
	"one hangs in a handler while all close": {codes: []int{1}, found: -1, grace: time.Second, says: "handlers", part: withMessages(func(ctx context.Context, w *conduit.Worker) error {
		if w.Job().Rank() == 0 {
			if err := exitHang.Post(ctx, w, 1); err != nil {
				return err
			}
		}
		if w.Job().Rank() == 1 {
			if err := until(ctx, "a handler hangs", func() bool { return exitHangs.Load() > 0 }); err != nil {
				return err
			}
		}
		return echoes(ctx, w, 3) // the handler that hangs delays no other
	})},
	"SIGINT while one calls, one computes and one closes":  {codes: []int{130}, signal: syscall.SIGINT, found: -1, part: withMessages(blockedWithMessages)},
	"SIGTERM while one calls, one computes and one closes": {shm: true, codes: []int{143}, signal: syscall.SIGTERM, found: -1, part: withMessages(blockedWithMessages)},
}

// withMessages gives a part of a job a worker, and has messages to go wherever they can.
func withMessages(part func(ctx context.Context, w *conduit.Worker) error) func(context.Context, *conduit.Job) error {
	return func(ctx context.Context, j *conduit.Job) error {
		exitJob.Store(j)
		return withWorker(j, func(w *conduit.Worker) error { return part(ctx, w) })
	}
}

// echoes calls every rank some times.
func echoes(ctx context.Context, w *conduit.Worker, rounds int) error {
	for i := range rounds {
		for r := range w.Job().Size() {
			if err := echo(ctx, w, r, uint64(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func echo(ctx context.Context, w *conduit.Worker, rank int, v uint64) error {
	reply, err := exitEcho.CallWith(ctx, w, rank, am.Medium(make([]byte, 100)), v, uint64(rank))
	if err == nil && (reply.Len() != 2 || reply.Arg(0) != v) {
		err = fmt.Errorf("rank %d replied %d to %d", rank, reply.Args(), v)
	}
	return err
}

// gather returns when the ranks named have all come here.
func gather(ctx context.Context, w *conduit.Worker, phase int, ranks ...int) error {
	for _, r := range ranks {
		if _, err := exitGather.Call(ctx, w, r, uint64(phase)); err != nil {
			return fmt.Errorf("a rank that lives: %w", err)
		}
	}
	return met(ctx, phase, len(ranks))
}

func met(ctx context.Context, phase, n int) error {
	return until(ctx, "all are here", func() bool { return int(exitMet[phase].Load()) >= n })
}

// gatherThenOneMayLeave: when rank 1 returns from it, all ranks are together and none needs it any
// more: a reply that is on its way dies with its sender.
func gatherThenOneMayLeave(ctx context.Context, w *conduit.Worker) error {
	if err := gather(ctx, w, phaseAll, 0, 1, 2); err != nil {
		return err
	}
	if w.Job().Rank() != 1 {
		return exitGather.Post(ctx, w, 1, phaseLeave)
	}
	return met(ctx, phaseLeave, 2)
}

// oneEnds: rank 1 ends amidst traffic of all kinds.
func oneEnds(end func()) func(ctx context.Context, w *conduit.Worker) error {
	return func(ctx context.Context, w *conduit.Worker) error {
		if w.Job().Rank() != 1 {
			return outliveMessages(ctx, w)
		}
		for i := range 50 {
			for _, r := range []int{0, 2} {
				if err := exitEcho.Post(ctx, w, r, uint64(i)); err != nil {
					return err
				}
				if _, err := exitEcho.Start(ctx, w, r, am.Long(4096, make([]byte, 2000)), 1); err != nil {
					return err
				}
			}
		}
		end()
		return errors.New("rank 1 has not ended")
	}
}

// oneEndsInHandler: rank 0 calls what ends rank 1.
func oneEndsInHandler(h *am.Handler, args ...uint64) func(ctx context.Context, w *conduit.Worker) error {
	return func(ctx context.Context, w *conduit.Worker) error {
		switch w.Job().Rank() {
		case 0:
			if _, err := h.Call(ctx, w, 1, args...); !errors.Is(err, conduit.ErrPeerDown) {
				return fmt.Errorf("the call that ends rank 1: %w", err)
			}
		case 1:
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return outliveMessages(ctx, w)
	}
}

// outliveMessages calls rank 1 until it is found down, as every later use says, and then goes on
// with the other survivor.
func outliveMessages(ctx context.Context, w *conduit.Worker) error {
	var err error
	for i := uint64(0); err == nil; i++ {
		if err = echo(ctx, w, 1, i); err == nil {
			err = exitEcho.Post(ctx, w, 1, i)
		}
	}
	var down *conduit.PeerDownError
	if !errors.As(err, &down) || down.Rank != 1 {
		return fmt.Errorf("want rank 1 down: %w", err)
	}
	_, call := exitEcho.Call(ctx, w, 1)
	_, start := exitEcho.Start(ctx, w, 1, am.Payload{})
	_, get := conduit.Get(w, conduit.At[uint64](1, 0))
	for what, err := range map[string]error{
		"call": call, "start": start, "get": get, "post": exitEcho.Post(ctx, w, 1), "try": exitEcho.Post(am.NoWait, w, 1), "barrier": w.Job().Barrier(ctx),
	} {
		if !errors.Is(err, conduit.ErrPeerDown) {
			return fmt.Errorf("%s after rank 1 was found down: %w", what, err)
		}
	}
	if w.Job().DownRanks()[1] == nil {
		return errors.New("the job does not know that rank 1 is down")
	}
	other := 2 - w.Job().Rank()
	for i := range uint64(20) {
		if err := echo(ctx, w, other, i); err != nil {
			return fmt.Errorf("the survivors' calls: %w", err)
		}
	}
	if err := gather(ctx, w, phaseSurvivors, 0, 2); err != nil {
		return err
	}
	return err
}

// callsBothWays has every rank owe every other one a reply that never comes.
func callsBothWays(then func(context.Context, *conduit.Worker, []*am.Pending) error) func(context.Context, *conduit.Worker) error {
	return func(ctx context.Context, w *conduit.Worker) error {
		p := make([]*am.Pending, w.Job().Size())
		for r := range p {
			var err error
			if p[r], err = exitNever.Start(ctx, w, r, am.Payload{}); err != nil {
				return err
			}
		}
		if err := until(ctx, "it owes every rank a reply", func() bool { return int(exitOwes.Load()) >= len(p) || knowsDown(w.Job(), 1) }); err != nil {
			return err
		}
		return then(ctx, w, p)
	}
}

// blockedWithMessages: each rank waits for ever in its own way.
func blockedWithMessages(ctx context.Context, w *conduit.Worker) error {
	if err := echoes(ctx, w, 3); err != nil {
		return err
	}
	fmt.Println("waits")
	switch w.Job().Rank() {
	case 0:
		return nil // into Close
	case 1:
		_, err := exitNever.Call(ctx, w, 0)
		return err
	}
	for {
		continue
	}
}

// Whatever ranks with messages do, the job ends by itself in bounded time with the right code, no
// process is left, and those that need a rank that left get an error.
func TestEveryEndWithMessagesHasTheRightCode(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		for name, e := range messageEndings {
			if e.shm && cfg.Fabric != conduit.FabricSHM {
				continue
			}
			t.Run(name, func(t *testing.T) {
				e.check(t, rankEnv("ending with messages", cfg, "IBCONDUIT_TEST_EXIT="+name, "GORACE=atexit_sleep_ms=0"))
			})
		}
	})
}
