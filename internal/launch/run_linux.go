package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// run is a job in progress.
type run struct {
	cfg       Config
	starter   starter
	ranks     []*rank
	events    chan event // two for each rank, in order
	failure   firstFailure
	ints      int                          // SIGINTs so far
	asked     map[syscall.Signal]time.Time // when each was forwarded last
	out, errs *sink
	mu        sync.Mutex
	files     []*sink // of Config.Output; guarded by mu

	early    []os.Signal    // of Config.Signals, from before all hosts had answered
	stops    chan os.Signal // to stop, and to continue
	stopping []os.Signal    // what it receives

	over         chan struct{} // closed by giveUpOutput
	giveUpOutput func()
}

// Run starts the ranks and returns when all have ended: with the code of the
// first one that failed, 128 and the signal where it was killed, else 0. When
// one fails, the others are ended. The error says that a rank could not be
// started (*StartError, *HostError) or that ctx ended the job; the ranks have ended then
// too.
func Run(ctx context.Context, cfg Config) (code int, err error) {
	descriptors := newLayout(os.Getenv) // before anything is opened
	cfg, err = cfg.withDefaults()
	if err != nil {
		return 126, err
	}
	r := &run{cfg: cfg, events: make(chan event, 2*cfg.N), over: make(chan struct{}),
		asked: map[syscall.Signal]time.Time{}}
	r.giveUpOutput = sync.OnceFunc(func() { close(r.over) })
	defer r.giveUpOutput()
	r.out = &sink{w: cfg.Stdout, name: "standard output", report: cfg.Report, over: r.over}
	r.errs = r.out
	if !same(cfg.Stdout, cfg.Stderr) {
		r.errs = &sink{w: cfg.Stderr, name: "standard error", report: cfg.Report, over: r.over}
	}
	if cfg.JobControl {
		r.stops = make(chan os.Signal, 64) // a write that is refused sends many
		r.stopping = stopSignals()
		signal.Notify(r.stops, r.stopping...)
		defer signal.Stop(r.stops)
	}
	if err = r.makeOutput(); err == nil {
		err = r.newStarter(descriptors)
	}
	if err != nil {
		if !errors.As(err, new(*StartError)) {
			err = fmt.Errorf("%w%s", err, limits(err))
		}
		return cmp.Or(startCode(err), 126), err
	}
	defer r.starter.close()
	r.ranks, err = r.starter.start(ctx)
	err = r.see(ctx, err)
	r.starter.close()
	err = errors.Join(err, r.endOutput())
	return r.result(err), err
}

// newStarter chooses how the ranks are started.
func (r *run) newStarter(l layout) error {
	if len(r.cfg.Hosts) > 0 {
		r.starter = newHosts(r)
		return nil
	}
	numbers := make([]int, r.cfg.N)
	for n := range numbers {
		numbers[n] = n
	}
	s, err := newLocal(&r.cfg, l, numbers, newHandover(), r.events)
	if err != nil {
		return err
	}
	s.output = r.output
	if r.cfg.JobControl {
		err = s.shareTerminal(func() { signal.Notify(r.stops, r.stopping...) })
	}
	if err != nil {
		s.close()
		return err
	}
	r.starter = s
	return nil
}

// makeOutput makes Config.Output, or says why it cannot be used before a rank or a host is named as
// the cause.
func (r *run) makeOutput() error {
	dir := r.cfg.Output
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o777)
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return fmt.Errorf("launch: the output's directory %s: %w", dir, err)
	}
	return nil
}

// outputError: it is the file that cannot be made, not the rank.
type outputError struct {
	rank int
	err  error
}

func (e *outputError) Error() string {
	return fmt.Sprintf("output of rank %d: %v%s", e.rank, e.err, limits(e.err))
}
func (e *outputError) Unwrap() error { return e.err }

// createOutput makes a file, or empties one, in a directory to which others may write too: a pipe
// of theirs would wait for its reader.
func createOutput(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o666)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w (a symbolic link is not followed: remove it, or name another directory)", err)
	case errors.Is(err, unix.ENXIO): // of a pipe, or a socket
		return nil, notRegular(name)
	case err != nil:
		return nil, err
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, notRegular(name)
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func notRegular(name string) error {
	return fmt.Errorf("%s is no regular file: remove it, or name another directory", name)
}

// output is where a rank's standard output (1) or standard error (2) goes.
func (r *run) output(number, fd int, coming func() bool) (outputWriter, error) {
	if dir := r.cfg.Output; dir != "" {
		f, err := createOutput(filepath.Join(dir, OutputFile(number, r.cfg.N, fd)))
		if err != nil {
			return nil, &outputError{number, err}
		}
		to := &sink{w: f, name: f.Name(), report: r.cfg.Report, over: r.over}
		r.mu.Lock()
		r.files = append(r.files, to)
		r.mu.Unlock()
		return &stream{sink: to, hold: holdTime, coming: coming}, nil
	}
	to := r.out
	if fd == 2 {
		to = r.errs
	}
	return &stream{sink: to, prefix: []byte(r.cfg.Prefix(number)), hold: holdTime, coming: coming}, nil
}

func (r *run) endOutput() (err error) {
	err = errors.Join(r.out.end(), r.errs.end())
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files {
		err = errors.Join(err, f.end(), f.w.(*os.File).Close())
	}
	return err
}

// same: two writers that are surely one, as the files of a terminal are, and the files of 2>&1.
// Comparing may panic, as for structs that hold slices; such are taken for different.
func same(a, b any) (equal bool) {
	defer func() { _ = recover() }()
	f, _ := a.(*os.File)
	g, _ := b.(*os.File)
	one, err := f.Stat() // of nil it is an error
	other, err2 := g.Stat()
	return a == b || err == nil && err2 == nil && os.SameFile(one, other)
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
	forward := func(s os.Signal) {
		r.forward(s)
		ending = ending || s != syscall.SIGUSR1 && s != syscall.SIGUSR2
	}
	for _, s := range r.early {
		forward(s)
	}
	waited := false // for ranks to end, before the next signal
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
			r.starter.announce(ev.rank)
			if err == nil && r.failure.ended(ev.rank, alive) {
				end(syscall.SIGTERM, r.cfg.Grace)
				waited = true
			}
			r.failure.settle(r.ranks)
		case s := <-r.stops:
			r.stopOrContinue(s.(syscall.Signal))
		case s := <-r.cfg.Signals:
			forward(s)
		case <-done:
			done, ending = nil, true
			if err == nil {
				err = fmt.Errorf("launch: job ended: %w", context.Cause(ctx))
			}
			if end(syscall.SIGTERM, 0); r.cfg.Stacks && alive > 0 {
				r.cfg.Report(r.alive() + " still run: SIGQUIT, which has Go programs print their stacks")
				r.signal(syscall.SIGQUIT)
				r.signal(syscall.SIGCONT) // one that is stopped takes it only then
				end(syscall.SIGTERM, r.cfg.Grace)
			}
			waited = r.cfg.Stacks
		case <-hurry.C:
			r.failure.decide()
			if waited && alive > 0 && next != 0 {
				r.cfg.Report(fmt.Sprintf("%s did not end within %v: %v", r.alive(), r.cfg.Grace, unix.SignalName(next)))
			}
			waited = true
			if next == 0 {
				r.starter.abandon()
				break
			}
			r.signal(next)
			switch next {
			case syscall.SIGKILL:
				end(0, r.cfg.Grace)
			default:
				r.signal(syscall.SIGCONT)
				end(syscall.SIGKILL, r.cfg.Grace)
			}
		case <-giveUp:
			r.failure.decide()
			return errors.Join(err, errUnread)
		}
		r.failure.report(r.cfg.Report)
	}
	r.failure.decide()
	r.failure.report(r.cfg.Report)
	return err
}

// stopped is a timer that does not run.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// onceTime: a signal that ends, and comes again within this time, is one still. timeout(1) signals
// its child and then its group, and wrappers hand on what their group has received too.
const onceTime = 200 * time.Millisecond

// forward hands on a signal; the second SIGINT is for a job that ignores the
// first.
func (r *run) forward(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if sig == syscall.SIGINT || sig == syscall.SIGTERM {
		if time.Since(r.asked[sig]) < onceTime {
			return
		}
		r.asked[sig] = time.Now()
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

// alive names the ranks that have not ended.
func (r *run) alive() string {
	var numbers []int
	for _, k := range r.ranks {
		if !k.ended {
			numbers = append(numbers, k.number)
		}
	}
	slices.Sort(numbers)
	return rankList(numbers)
}

func (r *run) signal(s syscall.Signal) {
	for _, k := range r.ranks {
		k.signal(s)
	}
}

func (r *run) result(err error) int {
	switch {
	case startCode(err) != 0:
		return startCode(err)
	case r.failure.first != nil:
		return r.failure.first.code()
	case err != nil:
		return 1
	}
	return 0
}

// startCode is the code of a job that could not start, or 0.
func startCode(err error) int {
	var (
		se *StartError
		he *HostError
		by endedBy
	)
	switch {
	case errors.As(err, &by):
		return 128 + int(by.signal)
	case errors.As(err, &se):
		return se.ExitCode()
	case errors.As(err, &he):
		return he.ExitCode()
	}
	return 0
}
