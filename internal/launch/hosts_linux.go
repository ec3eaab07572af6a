package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// sshAtOnce is how many connections are made at a time.
const sshAtOnce = 64

// hosts starts ranks by an agent on each host.
type hosts struct {
	run    *run
	job    *handover // only its names: the agents make the rest
	all    []*agent
	root   *agent // that of rank 0
	rooted chan struct{}
	relays atomic.Uint32
	dying  atomic.Int64
	orders atomic.Int64
	closed sync.Once
}

func newHosts(r *run) *hosts {
	h := &hosts{run: r, job: newHandover(), rooted: make(chan struct{})}
	for _, host := range r.cfg.Hosts {
		if len(host.Ranks) == 0 {
			continue
		}
		a := &agent{hosts: h, name: host.Name, remotes: map[int]*remote{}, answered: make(chan struct{}), gone: make(chan struct{}), said: make(chan struct{}), read: make(chan struct{})}
		for _, n := range slices.Sorted(slices.Values(host.Ranks)) {
			m := &remote{agent: a}
			m.rank = &rank{number: n, process: m}
			a.numbers = append(a.numbers, n)
			a.remotes[n] = m
		}
		if h.all = append(h.all, a); a.numbers[0] == 0 {
			h.root = a
		}
	}
	return h
}

// start reaches all hosts before any rank starts.
func (h *hosts) start(ctx context.Context) (ranks []*rank, err error) {
	few := make(chan struct{}, sshAtOnce)
	if err := h.each(ctx, h.run.cfg.Signals, func(a *agent) error {
		few <- struct{}{}
		defer func() { <-few }()
		return a.connect()
	}); err != nil {
		return nil, err
	}
	// It takes no time; signals are for the ranks now.
	err = h.each(ctx, nil, func(a *agent) error {
		a.begin()
		<-a.answered
		return a.failure
	})
	for _, a := range h.all {
		for _, n := range a.numbers {
			if m := a.remotes[n]; m.runs() {
				ranks = append(ranks, m.rank)
			}
		}
	}
	slices.SortFunc(ranks, func(a, b *rank) int { return a.number - b.number })
	return ranks, err
}

// endedBy is a signal that came before all hosts had answered.
type endedBy syscall.Signal

func (s endedBy) Error() string {
	return fmt.Sprintf("launch: %v before all hosts had answered", syscall.Signal(s))
}

// each does something with all hosts at once and returns the errors. Where the job is ended
// meanwhile it ends the connections.
func (h *hosts) each(ctx context.Context, signals <-chan os.Signal, do func(*agent) error) error {
	errs := make(chan error, len(h.all))
	for _, a := range h.all {
		go func() { errs <- do(a) }()
	}
	var failed, ended error
	left := len(h.all)
	done := ctx.Done()
	for left > 0 {
		select {
		case err := <-errs:
			left--
			failed = errors.Join(failed, err)
		case s := <-signals:
			if sig, ok := s.(syscall.Signal); ok && sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 {
				ended = endedBy(sig)
				h.cut(ended)
			}
		case <-done:
			done = nil
			ended = fmt.Errorf("launch: job ended: %w", context.Cause(ctx))
			h.cut(ended)
		}
	}
	return cmp.Or(ended, failed)
}

// cut ends the connections to all hosts.
func (h *hosts) cut(why error) {
	for _, a := range h.all {
		a.cut(why)
	}
}

func (h *hosts) announce(k *rank) {
	for _, a := range h.all {
		a.ch.send(kindEnded, uint32(k.number), []byte(k.how()))
	}
}

func (h *hosts) pause() {
	for _, a := range h.all {
		a.ch.send(kindPause, 0, nil)
	}
	for _, a := range h.all {
		a.ch.flush(time.Second)
	}
}

func (h *hosts) resume() {
	for _, a := range h.all {
		a.ch.send(kindResume, 0, nil)
	}
}

func (h *hosts) abandon() { h.cut(errors.New("it does not end its ranks")) }

// close says goodbye, and ends the agents that do not go.
func (h *hosts) close() {
	h.closed.Do(func() {
		late := time.After(h.run.cfg.Grace)
		for _, a := range h.all {
			if a.ch == nil {
				a.cut(errors.New("the job did not begin"))
			} else {
				a.ch.send(kindBye, 0, nil)
			}
		}
		for _, a := range h.all {
			if a.ch != nil {
				a.ch.flush(time.Second)
				_ = a.in.Close()
			}
		}
		for _, a := range h.all {
			if a.cmd == nil {
				continue
			}
			select {
			case <-a.gone:
			case <-late:
				a.cut(errors.New("it does not go"))
				late = time.After(0)
				<-a.gone
			}
		}
	})
}

// relay joins a stream of another host with one of rank 0's.
func (h *hosts) relay(s *conn) {
	go func() {
		select {
		case <-h.rooted:
			join(s, h.root.ch.open(firstRelay+h.relays.Add(1)), func() {})
		case <-s.ch.done:
		}
	}()
}
