package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

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
		a := &agent{hosts: h, name: host.Name, remotes: map[int]*remote{}, answered: make(chan struct{}),
			stop: make(chan struct{})}
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
	t := h.newTurns(ctx)
	if err := h.each(ctx, 0, func(a *agent) error {
		err := h.reach(a, t)
		if errors.Is(err, syscall.EMFILE) { // nor will the job begin without the others
			h.cut(err)
		}
		return err
	}); errors.Is(err, syscall.EMFILE) { // once for all hosts
		name := fmt.Sprintf("%s and %d more", h.all[0].name, len(h.all)-1)
		return nil, &HostError{Host: name,
			Err: fmt.Errorf("%w (each host takes three descriptors of the launcher, and more while it is reached: "+
				"raise ulimit -n, or use fewer hosts)", syscall.EMFILE)}
	} else if err != nil {
		return nil, err
	}
	// It takes no time, unless a host's file system does not answer. Signals are for the ranks now.
	err = h.each(ctx, h.run.cfg.Grace, func(a *agent) error {
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
type endedBy struct {
	signal  syscall.Signal
	waiting string
}

func (e endedBy) Error() string {
	return fmt.Sprintf("launch: %v before all hosts had answered; awaited: %s", e.signal, e.waiting)
}

// each does something with all hosts at once and returns the errors. Where the job is ended
// meanwhile it ends the connections; a signal does so after some time, or with the next one, and is
// handed to the ranks where all hosts answer before.
func (h *hosts) each(ctx context.Context, timeout time.Duration, do func(*agent) error) error {
	type answer struct {
		from *agent
		err  error
	}
	answers := make(chan answer, len(h.all))
	for _, a := range h.all {
		go func() { answers <- answer{a, do(a)} }()
	}
	var failed, ended error
	left := slices.Clone(h.all)
	done := ctx.Done()
	var early []os.Signal
	var ending syscall.Signal
	var late <-chan time.Time
	end := func(why error) {
		ended = why
		h.cut(why)
	}
	for len(left) > 0 {
		select {
		case a := <-answers:
			left = slices.DeleteFunc(left, func(l *agent) bool { return l == a.from })
			failed = errors.Join(failed, a.err)
		case s := <-h.run.cfg.Signals:
			early = append(early, s)
			if sig, ok := s.(syscall.Signal); ok && sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 {
				if timeout == 0 || ending != 0 {
					end(endedBy{sig, names(left)})
				} else {
					late = time.After(timeout)
				}
				ending = sig
			}
		case <-late:
			end(endedBy{ending, names(left)})
		case <-done:
			done = nil
			end(fmt.Errorf("launch: job ended: %w; hosts that had not answered: %s", context.Cause(ctx), names(left)))
		}
	}
	if ended == nil && timeout > 0 {
		h.run.early = early
	}
	return cmp.Or(ended, failed)
}

// names of hosts, for a message.
func names(all []*agent) string {
	const most = 16
	var text []string
	for _, a := range all[:min(most, len(all))] {
		text = append(text, a.name)
	}
	if len(all) > most {
		text = append(text, fmt.Sprintf("... (%d in all)", len(all)))
	}
	return strings.Join(text, ", ")
}

// cut ends the connections to all hosts.
func (h *hosts) cut(why error) {
	for _, a := range h.all {
		a.cut(why)
	}
}

func (h *hosts) announce(k *rank) {
	for _, a := range h.all {
		a.ch.Send(kindEnded, uint32(k.number), []byte(k.how()))
	}
}

func (h *hosts) pause() {
	for _, a := range h.all {
		a.ch.Send(kindPause, 0, nil)
	}
	for _, a := range h.all {
		a.ch.Flush(time.Second)
	}
}

func (h *hosts) resume() {
	for _, a := range h.all {
		a.ch.Send(kindResume, 0, nil)
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
				a.ch.Send(kindBye, 0, nil)
			}
		}
		for _, a := range h.all {
			if a.ch != nil {
				a.ch.Flush(time.Second)
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
