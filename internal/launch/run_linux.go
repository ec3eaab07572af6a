package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// run is a job in progress.
type run struct {
	cfg    Config
	ranks  []*rank
	events chan event // two for each rank, in order
	blame  blame
	list   *endedList
	ints   int // SIGINTs so far

	layout   layout // of the descriptors of each rank
	children *children
	echo     *groupEcho     // nil: no rank is in our process group
	stops    chan os.Signal // to stop, and to continue
	stopping []os.Signal    // what it receives

	over         chan struct{} // closed by giveUpOutput
	giveUpOutput func()
}

// event is the end of a rank or, after that, of its output.
type event struct {
	rank *rank
	dry  bool
}

// Run starts the ranks and returns when all have ended: with the code of the
// first one that failed, 128 and the signal where it was killed, else 0. When
// one fails, the others are ended. The error says that a rank could not be
// started (*StartError) or that ctx ended the job; the ranks have ended then
// too.
func Run(ctx context.Context, cfg Config) (code int, err error) {
	descriptors := newLayout(os.Getenv) // before anything is opened
	cfg, err = cfg.withDefaults()
	if err != nil {
		return 126, err
	}
	path, err := exec.LookPath(cfg.Path)
	if err != nil {
		e := &StartError{0, cfg.Path, err}
		return e.ExitCode(), e
	}
	h, err := newHandover()
	if err != nil {
		return 126, err
	}
	defer h.remove()
	c := newChildren()
	if cfg.Adopt {
		if err := adopt(); err != nil {
			return 126, err
		}
		defer endAdopted()
		defer c.reapOrphans()()
	}
	if cfg.Guard {
		g, err := startGuard(h, c)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 126, fmt.Errorf("launch: guard: %w", err)
		}
		if err != nil { // no /proc: it would find nothing to kill
			cfg.Report(fmt.Sprintf("no guard: what the ranks start may outlive this process if it is killed: %v", err))
		} else {
			defer g.dismiss()
		}
	}
	d, err := watchDeaths()
	if err != nil {
		return 126, err
	}
	defer d.close()
	go d.watch()
	h.ended = newEndedList()
	defer h.ended.close()
	r := &run{cfg: cfg, events: make(chan event, 2*cfg.N), blame: blame{deaths: d}, list: h.ended, over: make(chan struct{}), children: c, layout: descriptors}
	r.giveUpOutput = sync.OnceFunc(func() { close(r.over) })
	defer r.giveUpOutput()
	if cfg.JobControl {
		if hasTerminal(cfg.Stdin) {
			if r.echo, err = startEcho(c); err != nil {
				return 126, fmt.Errorf("launch: echo of signals: %w", err)
			}
			defer r.echo.end()
		}
		r.stops = make(chan os.Signal, 4)
		r.stopping = stopSignals()
		signal.Notify(r.stops, r.stopping...)
		defer signal.Stop(r.stops)
	}
	out := &sink{w: cfg.Stdout, name: "standard output", report: cfg.Report, over: r.over}
	errs := out
	if !same(cfg.Stdout, cfg.Stderr) {
		errs = &sink{w: cfg.Stderr, name: "standard error", report: cfg.Report, over: r.over}
	}
	err = r.start(path, h, out, errs)
	if err == nil {
		h.close()
	}
	err = r.see(ctx, err)
	for _, k := range r.ranks {
		k.closePipes()
	}
	err = errors.Join(err, out.end(), errs.end())
	return r.result(err), err
}

// same: two writers that are surely one. Comparing may panic, as for structs
// that hold slices; those are taken for different.
func same(a, b any) (equal bool) {
	defer func() { _ = recover() }()
	return a == b
}

// start starts all ranks from one thread that lives until they have ended:
// PR_SET_PDEATHSIG is about the parent's thread, not of its process
// (prctl(2)), and Go ends threads as it likes.
func (r *run) start(path string, h *handover, out, errs *sink) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var orders atomic.Int64
		err := r.startAll(path, h, out, errs)
		ranks := r.ranks
		started <- err
		gone := make(chan struct{}, len(ranks))
		for _, k := range ranks {
			go func() {
				k.wait(&orders, r.children)
				gone <- struct{}{}
				r.events <- event{rank: k}
				k.drain()
				r.events <- event{k, true}
			}()
		}
		for range ranks {
			<-gone
		}
	}()
	return <-started
}

// startAll starts rank 0 last where it has the terminal: as soon as it runs it may read that, and
// stop with our whole group.
func (r *run) startAll(path string, h *handover, out, errs *sink) error {
	start := func(numbers ...int) error {
		for _, n := range numbers {
			k, err := r.startRank(path, n, h, out, errs)
			if err != nil {
				return &StartError{n, r.cfg.Path, err}
			}
			r.ranks = append(r.ranks, k)
		}
		return nil
	}
	all := make([]int, r.cfg.N)
	for n := range all {
		all[n] = n
	}
	if r.echo == nil {
		return start(all...)
	}
	back := r.ignoreTerminal()
	err := start(all[1:]...)
	back()
	if err != nil {
		return err
	}
	return start(0)
}

var errUnread = errors.New("launch: the rest of the output is lost: it is not read")

// see waits until all ranks have ended and hurries them where needed. Their output may take its
// time, unless the job is ended from outside.
func (r *run) see(ctx context.Context, err error) error {
	hurry := stopped()
	defer hurry.Stop()
	var next syscall.Signal
	end := func(s syscall.Signal, after time.Duration) {
		next = s
		hurry.Reset(after)
	}
	done := ctx.Done()
	ending := false // from outside
	var giveUp <-chan time.Time
	if err != nil {
		end(syscall.SIGTERM, 0)
	}
	for alive, wet := len(r.ranks), len(r.ranks); wet > 0; {
		if ending && alive == 0 && giveUp == nil {
			giveUp = time.After(r.cfg.Grace)
		}
		select {
		case ev := <-r.events:
			if ev.dry {
				wet--
				ev.rank.dry = true
				break
			}
			alive--
			ev.rank.ended = true
			if alive == 0 {
				defer time.AfterFunc(r.cfg.Grace, r.giveUpOutput).Stop()
			}
			r.list.add(ev.rank)
			if err == nil && r.blame.ended(ev.rank, alive) {
				end(syscall.SIGTERM, r.cfg.Grace)
			}
			r.blame.settle(r.ranks)
		case s := <-r.stops:
			if s == syscall.SIGCONT {
				r.signal(syscall.SIGCONT)
			} else {
				r.stop(s.(syscall.Signal))
			}
		case s := <-r.cfg.Signals:
			r.forward(s)
			ending = ending || s != syscall.SIGUSR1 && s != syscall.SIGUSR2
		case <-done:
			done, ending = nil, true
			if err == nil {
				err = fmt.Errorf("launch: job ended: %w", context.Cause(ctx))
			}
			end(syscall.SIGTERM, 0)
		case <-hurry.C:
			r.blame.decide()
			r.signal(next)
			if next != syscall.SIGKILL {
				end(syscall.SIGKILL, r.cfg.Grace)
			}
		case <-giveUp:
			r.blame.decide()
			return errors.Join(err, errUnread)
		}
		r.blame.report(r.cfg.Report)
	}
	r.blame.decide()
	r.blame.report(r.cfg.Report)
	return err
}

// stopped is a timer that does not run.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// forward hands on a signal; the second SIGINT is for a job that ignores the
// first.
func (r *run) forward(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if sig == syscall.SIGINT {
		if r.ints++; r.ints > 1 {
			r.cfg.Report("second interrupt: killing all ranks")
			r.signal(syscall.SIGKILL)
			return
		}
	}
	r.pass(sig)
}

func (r *run) signal(s syscall.Signal) {
	for _, k := range r.ranks {
		k.signal(s)
	}
}

func (r *run) result(err error) int {
	var se *StartError
	switch {
	case errors.As(err, &se):
		return se.ExitCode()
	case r.blame.first != nil:
		return r.blame.first.code()
	case err != nil:
		return 1
	}
	return 0
}
