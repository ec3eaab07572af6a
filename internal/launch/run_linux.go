package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/ranklist"
)

// run is a job in progress.
type run struct {
	cfg     Config
	starter starter
	ranks   []*rank
	events  chan event // two for each rank, in order
	failure firstFailure
	ints    int                          // SIGINTs so far
	asked   map[syscall.Signal]time.Time // when each was forwarded last
	outputs *outputs

	early    []os.Signal    // of Config.Signals, from before all hosts had answered
	stops    chan os.Signal // to stop, and to continue
	stopping []os.Signal    // what it receives
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
	r := &run{cfg: cfg, events: make(chan event, 2*cfg.N), outputs: newOutputs(&cfg),
		asked: map[syscall.Signal]time.Time{}}
	defer r.outputs.giveUp()
	if cfg.JobControl {
		r.stops = make(chan os.Signal, 64) // a write that is refused sends many
		r.stopping = stopSignals()
		signal.Notify(r.stops, r.stopping...)
		defer signal.Stop(r.stops)
	}
	if err = r.outputs.makeDir(); err == nil {
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
	err = errors.Join(err, r.outputs.end())
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
	s.output = r.outputs.open
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
				defer time.AfterFunc(r.cfg.Grace, r.outputs.giveUp).Stop()
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

// alive names the ranks that have not ended.
func (r *run) alive() string {
	var numbers []int
	for _, k := range r.ranks {
		if !k.ended {
			numbers = append(numbers, k.number)
		}
	}
	return ranklist.Text(numbers)
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
