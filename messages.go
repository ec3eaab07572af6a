package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/fabric"
)

// Endpoint makes a worker an [am.Via]: requests go through it, sum.Call(ctx, w, rank, args...). It returns the lane of the
// network by which the rank's data go, nil in a job without handlers and of a worker that is closed. The lane
// is the job's, shared with other workers and still there after the worker's Close; any goroutine may use it.
func (w *Worker) Endpoint(rank int) *am.Endpoint {
	if w.peers == nil {
		return nil
	}
	return w.job.laneTo(w.turn, rank)
}

// Endpoint makes a job an [am.Via], for goroutines that have no worker: any number of them may use it.
func (j *Job) Endpoint(rank int) *am.Endpoint { return j.laneTo(0, rank) }

// laneTo is message lane k to a rank, nil in a job without handlers.
func (j *Job) laneTo(k, rank int) *am.Endpoint {
	if len(j.lanes) == 0 {
		return nil
	}
	if uint(rank) >= uint(len(j.routes)) {
		return j.lanes[k] // which says that there is no such rank
	}
	return j.lanes[j.routes[rank].net*j.cfg.MessageEndpoints+k]
}

// MessageStats are the counters of active messages by network, summed over the lanes; empty in a job without
// handlers.
func (j *Job) MessageStats() map[string]am.Stats {
	all := make(map[string]am.Stats)
	for i, l := range j.lanes {
		name := j.networks[i/j.cfg.MessageEndpoints].Name()
		all[name] = all[name].Add(l.Stats())
	}
	return all
}

// openLanes opens the lanes for messages. Peers may send from now on; handlers run by themselves.
func (j *Job) openLanes() error {
	if j.handlers == 0 {
		return nil
	}
	cfg := j.cfg.Messages
	cfg.Rank, cfg.Size, cfg.Table, cfg.OnClosed = j.rank, j.size, j.cfg.Handlers, j.cutOff
	cfg.Segment, cfg.SegmentSize = j.seg.User(), j.SegmentSize // the system areas are not for messages
	for _, n := range j.networks {
		m, ok := n.(fabric.Messenger)
		if !ok {
			return fmt.Errorf("network %s carries no active messages", n.Name())
		}
		for k := range j.cfg.MessageEndpoints {
			l, err := am.Open(m, k, cfg)
			if err != nil {
				return fmt.Errorf("message lane %d of %d (Config.MessageEndpoints): %w", k, j.cfg.MessageEndpoints, err)
			}
			j.lanes = append(j.lanes, l)
		}
	}
	return nil
}

// cutOff is told by a message lane whose peer is dead, or broke the protocol.
func (j *Job) cutOff(rank int, cause error) {
	if j.leaving.Load() && errors.Is(cause, os.ErrClosed) {
		return // all have met, and it was quicker to close its lanes
	}
	j.markDown(rank, cause)
}

// eachLane calls f for all message lanes at the same time.
func (j *Job) eachLane(f func(*am.Endpoint) error) error {
	errs := make([]error, len(j.lanes))
	var all sync.WaitGroup
	for i, l := range j.lanes {
		all.Go(func() { errs[i] = f(l) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// awaitLanes waits for something of all lanes until ctx ends, so that a rank with a call that nobody answers, or a handler that does not
// end, meets the others nevertheless. busy are the *am.InFlightErrors of lanes: their Close counts again what it can. The other
// error is that of a lane that is of no use any more.
func (j *Job) awaitLanes(ctx context.Context, wait func(*am.Endpoint, context.Context) error) (busy []error, err error) {
	var mu sync.Mutex
	err = j.eachLane(func(l *am.Endpoint) error {
		err := j.within(ctx, func() error { return wait(l, ctx) })
		if !errors.As(err, new(*am.InFlightError)) {
			return err
		}
		mu.Lock()
		busy = append(busy, err)
		mu.Unlock()
		return nil
	})
	return busy, err
}

// within is f, which ends with ctx unless it runs a handler that does not.
func (j *Job) within(ctx context.Context, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(min(j.cfg.CloseTimeout/8, time.Second)): // it has had time to see that
		return &am.InFlightError{Op: "close", Handlers: 1, Cause: context.Cause(ctx)}
	}
}

// closeLanes closes the message lanes, and tells what they kept to themselves.
func (j *Job) closeLanes() error {
	err := j.eachLane((*am.Endpoint).Close)
	for i, l := range j.lanes {
		if e := l.Errors(); len(e) > 0 {
			last := e[len(e)-1]
			j.cfg.Logger.Warn("active messages met errors that no caller was told", "network", j.networks[i/j.cfg.MessageEndpoints].Name(),
				"lane", i%j.cfg.MessageEndpoints, "kept", len(e), "last", last.Err)
		}
	}
	switch {
	case errors.Is(err, am.ErrBusy):
		return fmt.Errorf("conduit: close: %w; the segment stays: close again when they have ended", err)
	case err != nil:
		return fmt.Errorf("conduit: close: %w", err)
	}
	return nil
}

// describe says what the ranks must agree on for messages.
func (h *hello) describe(cfg *Config) error {
	if cfg.Handlers.Len() == 0 {
		return nil
	}
	terms, err := cfg.Messages.Terms()
	if err != nil {
		return fmt.Errorf("Config.Messages: %w", err)
	}
	h.hash = cfg.Handlers.Hash()
	h.handlers, h.lanes = uint64(cfg.Handlers.Len()), uint64(cfg.MessageEndpoints)
	for _, t := range terms {
		h.terms = append(h.terms, t.Value)
	}
	return nil
}

// compareHandlers refuses ranks that would not understand each other's messages. All come to the same verdict, since
// all compare the same answers with rank 0's.
func (j *Job) compareHandlers(ctx context.Context, all []hello) error {
	first := &all[0]
	for r := range all {
		switch h := &all[r]; {
		case (h.handlers == 0) != (first.handlers == 0):
			return fmt.Errorf("rank %d has %d handlers of active messages, rank 0 has %d: start the same program on all ranks, and register before Join (Config.Handlers)",
				r, h.handlers, first.handlers)
		case h.hash != first.hash:
			return j.nameDifference(ctx, r, all)
		case h.lanes != first.lanes:
			return fmt.Errorf("rank %d was configured with %d message lanes, rank 0 with %d: they must be equal (Config.MessageEndpoints, IBCONDUIT_MESSAGE_ENDPOINTS; %s)",
				r, h.lanes, first.lanes, setWhereHostsDiffer)
		default:
			if err := j.compareTerms(r, h.terms, first.terms); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameDifference finds a handler in which a rank differs from rank 0: both send their lists.
func (j *Job) nameDifference(ctx context.Context, odd int, all []hello) error {
	var mine []byte
	if j.rank == 0 || j.rank == odd {
		mine = j.cfg.Handlers.Encode()
	}
	lists, err := j.boot.Exchange(ctx, mine)
	if err != nil {
		return err
	}
	other := odd
	if all[j.rank].hash != all[0].hash {
		other = 0
	}
	if err := j.cfg.Handlers.Check(other, lists[other]); err != nil {
		return err
	}
	return fmt.Errorf("the handlers of rank %d have another hash than those of rank 0, and the same names", odd)
}

func (j *Job) compareTerms(rank int, terms, first []uint64) error {
	if len(terms) != len(first) {
		return fmt.Errorf("rank %d has %d parameters of messages, rank 0 has %d: mixed binaries", rank, len(terms), len(first))
	}
	names, err := j.cfg.Messages.Terms()
	if err != nil {
		return err
	}
	for i := range terms {
		if terms[i] == first[i] {
			continue
		}
		name := fmt.Sprintf("parameter %d", i)
		if i < len(names) {
			name = names[i].Name
		}
		return fmt.Errorf("rank %d was configured with Messages.%s %d, rank 0 with %d: they must be equal", rank, name, terms[i], first[i])
	}
	return nil
}
