package jobtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/racetest"
)

// ending is a job of three ranks that ends in some way.
type ending struct {
	before func()                                          // of rank 1, instead of Join
	part   func(ctx context.Context, j *conduit.Job) error // of each rank, between Join and Close
	codes  []int                                           // those that the launcher may return
	found  int                                             // how many ranks must find another one down; -1: it depends on which is faster
	quiet  bool                                            // no rank meets an error
	says   string                                          // what some rank must print besides
	stuck  bool                                            // ranks must be ended by the launcher, which has little patience
	signal syscall.Signal                                  // to the launcher, when all ranks wait; it forwards it to one after another
	grace  time.Duration                                   // CloseTimeout; 0: an hour
	shm    bool                                            // over shared memory only: to a device it is like another one
}

// tracebackCodes are those of a process that a signal ends with Go's traceback. With the race
// detector the traceback itself dies of SIGSEGV now and then: the signal came while the detector's
// C code was running (runtime.tracebackHexdump of Go 1.26.8).
var tracebackCodes = func() []int {
	if racetest.Enabled {
		return []int{2, 128 + int(syscall.SIGSEGV)}
	}
	return []int{2}
}()

// endings are what GASNet's testexit tries, as far as it makes sense for Go, and some more.
var endings = map[string]ending{
	"all exit at once":  {part: func(context.Context, *conduit.Job) error { os.Exit(5); return nil }, codes: []int{5}, found: -1},
	"all abort at once": {part: func(_ context.Context, j *conduit.Job) error { j.Abort(7+j.Rank(), "mine"); return nil }, codes: []int{7, 8, 9}, found: -1},
	"none closes": {shm: true, codes: []int{0}, part: func(ctx context.Context, j *conduit.Job) error {
		err := meet(ctx, j)
		if err == nil {
			os.Exit(0)
		}
		return err
	}},
	"one returns from main while the others close": {codes: []int{0}, part: rank(1, func(ctx context.Context, j *conduit.Job) {
		_ = meet(ctx, j)
		os.Exit(0)
	}, meet)},

	"one exits while the others compute": {shm: true, codes: []int{4}, stuck: true, part: rank(1, exits(4), func(context.Context, *conduit.Job) error {
		for {
			continue
		}
	})},
	"one exits while the others sleep and ignore SIGTERM": {shm: true, codes: []int{4}, stuck: true, part: rank(1, exits(4), func(context.Context, *conduit.Job) error {
		signal.Ignore(syscall.SIGTERM)
		select {}
	})},
	"one exits while the others are in a barrier": {codes: []int{4}, found: 2, part: rank(1, exits(4), barrier)},
	"one exits while the others wait for a word":  {codes: []int{4}, found: 2, part: rank(1, exits(4), waitWord)},
	"one exits before the others open a worker": {codes: []int{4}, found: 2, part: rank(1, exits(4), func(ctx context.Context, j *conduit.Job) error {
		if err := until(ctx, "rank 1 is down", func() bool { return knowsDown(j, 1) }); err != nil {
			return err
		}
		return waitWord(ctx, j)
	})},
	"one exits while the others join":              {codes: []int{4}, found: 2, before: exitInJoin, part: barrier},
	"rank 0 exits":                                 {codes: []int{4}, found: 2, part: rank(0, exits(4), barrier)},
	"rank 0 is killed":                             {shm: true, codes: []int{137}, found: 2, part: rank(0, kills(syscall.SIGKILL), barrier)},
	"rank 0 aborts":                                {codes: []int{7}, found: 2, part: rank(0, aborts(7), barrier), says: "out of cheese"},
	"one aborts while the others compute":          {shm: true, codes: []int{7}, stuck: true, part: rank(1, aborts(7), func(context.Context, *conduit.Job) error { select {} })},
	"one is sent SIGTERM":                          {shm: true, codes: []int{143}, found: 2, part: rank(1, kills(syscall.SIGTERM), barrier)},
	"one is sent SIGQUIT":                          {shm: true, codes: tracebackCodes, found: 2, part: rank(1, kills(syscall.SIGQUIT), barrier), says: "SIGQUIT"},
	"one is sent SIGABRT":                          {shm: true, codes: tracebackCodes, found: 2, part: rank(1, kills(syscall.SIGABRT), barrier), says: "SIGABRT"},
	"one reads from a nil pointer":                 {shm: true, codes: []int{2}, found: 2, part: rank(1, func(_ context.Context, j *conduit.Job) { fmt.Println((*(**conduit.Job)(nil)).Rank()) }, barrier), says: "nil pointer dereference"},
	"a goroutine panics while its rank is blocked": {shm: true, codes: []int{2}, found: 2, part: rank(1, beside(func() { panic("mine") }), waitWord), says: "panic: mine"},
	"a goroutine exits while its rank is blocked":  {codes: []int{4}, found: 2, part: rank(1, beside(func() { os.Exit(4) }), waitWord)},
	"the second exits because the first did": {shm: true, codes: []int{4}, found: 2, part: rank(1, exits(4), func(ctx context.Context, j *conduit.Job) error {
		if err := waitWord(ctx, j); j.Rank() == 2 {
			found(j.Rank(), err)
			os.Exit(6)
		} else {
			return err
		}
		return nil
	})},

	"one neither closes nor ends": {codes: []int{1}, stuck: true, grace: 300 * time.Millisecond, found: -1, says: "not every rank has called Close within",
		part: rank(1, func(context.Context, *conduit.Job) { select {} }, nothing)},
	"one is stopped": {codes: []int{1}, stuck: true, grace: 300 * time.Millisecond, found: -1, says: "not every rank has called Close within",
		part: rank(1, kills(syscall.SIGSTOP), nothing)},

	"one is killed, and the others go on":       {codes: []int{137}, found: 2, part: dieProgram},
	"one is killed, and teams without it go on": {codes: []int{137}, found: 2, part: teamsProgram},

	"SIGINT to the launcher":  {codes: []int{130}, found: -1, signal: syscall.SIGINT, part: blocked},
	"SIGTERM to the launcher": {shm: true, codes: []int{143}, found: -1, signal: syscall.SIGTERM, part: blocked},
	"SIGHUP to the launcher":  {shm: true, codes: []int{129}, found: -1, signal: syscall.SIGHUP, part: blocked},
	"SIGTERM, which one ignores": {shm: true, codes: []int{143}, found: -1, stuck: true, signal: syscall.SIGTERM, part: func(ctx context.Context, j *conduit.Job) error {
		if j.Rank() == 1 {
			signal.Ignore(syscall.SIGTERM)
			fmt.Println("waits")
			select {}
		}
		return blocked(ctx, j)
	}},
	"SIGTERM, after which all close": {codes: []int{0}, signal: syscall.SIGTERM, part: func(ctx context.Context, j *conduit.Job) error {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
		defer stop()
		fmt.Println("waits")
		<-ctx.Done()
		return nil
	}},
}

// rank has one rank do one thing, and the others another.
func rank(r int, its func(context.Context, *conduit.Job), others func(context.Context, *conduit.Job) error) func(context.Context, *conduit.Job) error {
	return func(ctx context.Context, j *conduit.Job) error {
		if j.Rank() != r {
			return others(ctx, j)
		}
		its(ctx, j)
		return nil
	}
}

func exits(code int) func(context.Context, *conduit.Job) {
	return func(context.Context, *conduit.Job) { os.Exit(code) }
}

func kills(s syscall.Signal) func(context.Context, *conduit.Job) {
	return func(context.Context, *conduit.Job) {
		_ = syscall.Kill(os.Getpid(), s)
		select {}
	}
}

func aborts(code int) func(context.Context, *conduit.Job) {
	return func(_ context.Context, j *conduit.Job) { j.Abort(code, "out of cheese") }
}

// beside ends the rank from a goroutine while the main one waits.
func beside(end func()) func(context.Context, *conduit.Job) {
	return func(ctx context.Context, j *conduit.Job) {
		go func() {
			if until(ctx, "the barrier has begun", func() bool { return inCall("Barrier") }) == nil {
				end()
			}
		}()
		_ = j.Barrier(ctx)
	}
}

func nothing(context.Context, *conduit.Job) error { return nil }

func barrier(ctx context.Context, j *conduit.Job) error { return j.Barrier(ctx) }

func waitWord(ctx context.Context, j *conduit.Job) error {
	return withWorker(j, func(w *conduit.Worker) error { return w.WaitUntil(ctx, 0, conduit.Equal, 1) })
}

// blocked: each rank waits for ever in its own way.
func blocked(_ context.Context, j *conduit.Job) error {
	fmt.Println("waits")
	switch j.Rank() {
	case 0:
		return nil // into Close
	case 1:
		return j.Barrier(context.Background())
	}
	return waitWord(context.Background(), j)
}

// meet returns when every rank has come here, and needs nothing more from any.
func meet(ctx context.Context, j *conduit.Job) error {
	return withWorker(j, func(w *conduit.Worker) error {
		for r := range j.Size() {
			if _, err := conduit.FetchAdd(w, conduit.At[uint64](r, 0), 1); err != nil {
				return err
			}
		}
		for {
			if err := w.WaitUntil(ctx, 0, conduit.GreaterEqual, uint64(j.Size())); !errors.Is(err, conduit.ErrPeerDown) {
				return err
			}
		}
	})
}

func exitInJoin() {
	if _, err := bootstrap.New(context.Background(), bootstrap.Options{}); err != nil {
		fmt.Println(err)
		os.Exit(9)
	}
	os.Exit(4)
}

// found prints an error, and which other rank it is about.
func found(rank int, err error) {
	var down *conduit.PeerDownError
	var lost *bootstrap.LostError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Printf("rank %d: waited in vain: %v\n", rank, err)
	case errors.As(err, &down):
		fmt.Printf("rank %d found rank %d down: %v\n", rank, down.Rank, err)
	case errors.As(err, &lost):
		fmt.Printf("rank %d found rank %d down: %v\n", rank, lost.Rank, err)
	case err != nil:
		fmt.Printf("rank %d: %v\n", rank, err)
	}
}

// endingMain is a rank of a job that ends in one of the ways.
func endingMain(ways map[string]ending, handlers *am.Table) int {
	fmt.Printf("pid %d\n", os.Getpid())
	e, me := ways[os.Getenv("IBCONDUIT_TEST_EXIT")], os.Getenv("IBCONDUIT_RANK")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if e.before != nil && me == "1" {
		e.before()
	}
	closing := cmp.Or(e.grace, time.Hour)
	j, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 20, CloseTimeout: closing, Handlers: handlers, Messages: am.Config{CloseAfter: e.grace}})
	if err != nil {
		found(int(me[0]-'0'), err)
		return 1
	}
	err = e.part(ctx, j)
	err = errors.Join(err, j.Close())
	found(j.Rank(), err)
	if err != nil {
		return 1
	}
	return 0
}

// run runs the job once.
func (e *ending) run(t *testing.T, env []string) (out string, code int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &interrupter{text: "waits\n", signals: make(chan os.Signal, 1), signal: e.signal}
	cfg := launch.Config{N: 3, Path: exe, Env: env, Stdout: w, Stderr: w, Signals: w.signals, Grace: endByThemselves}
	if e.signal != 0 {
		w.times = 3
	}
	if e.stuck {
		cfg.Grace = 500 * time.Millisecond
	}
	code, err = launch.Run(testContext(t), cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, w.String())
	}
	return w.String(), code
}

// check runs the job and compares its end with what it should be.
func (e *ending) check(t *testing.T, env []string) {
	t.Helper()
	out, code := e.run(t, env)
	if !slices.Contains(e.codes, code) {
		t.Errorf("exit code %d, want one of %d", code, e.codes)
	}
	if n := strings.Count(out, " found rank "); e.found >= 0 && n != e.found {
		t.Errorf("%d ranks found another one down, want %d", n, e.found)
	}
	if e.quiet && strings.Contains(out, "rank ") {
		t.Error("a rank met an error")
	}
	if !strings.Contains(out, e.says) {
		t.Errorf("no rank said %q", e.says)
	}
	noneLeft(t, out, 3)
	if t.Failed() {
		t.Log(out)
	}
}

// Whatever the ranks do, the job ends by itself within the launcher's times, with the right
// code, no process is left, and those that needed a rank that left get an error.
func TestEveryEndHasTheRightCode(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		for name, e := range endings {
			if e.shm && cfg.Fabric != conduit.FabricSHM {
				continue
			}
			t.Run(name, func(t *testing.T) {
				e.check(t, rankEnv("ending", cfg, "IBCONDUIT_TEST_EXIT="+name, "GORACE=atexit_sleep_ms=0"))
			})
		}
	})
}
