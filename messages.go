package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/racesync"
)

// Endpoint makes a worker an [am.Via]: requests go through it, sum.Call(ctx, w, rank, args...). It
// returns the message endpoint of the network by which the rank's data go, nil in a job without
// handlers and of a worker that is closed. The endpoint is the job's, shared with other workers and
// still there after the worker's Close; any goroutine may use it.
func (w *Worker) Endpoint(rank int) *am.Endpoint {
	if w.peers == nil {
		return nil
	}
	return w.job.messages.to(w.turn, rank, &w.job.networks)
}

// Endpoint makes a job an [am.Via], for goroutines that have no worker: any number of them may use
// it.
func (j *Job) Endpoint(rank int) *am.Endpoint { return j.messages.to(0, rank, &j.networks) }

// MessageStats are the counters of active messages by network, summed over the endpoints; empty in
// a job without handlers. The library's own are not in it: LibraryStats has them.
func (j *Job) MessageStats() map[string]am.Stats { return j.messages.stats(&j.networks) }

// endpoints are a job's for messages of one kind: as many for each network, in the networks' order.
// There are none without handlers. They are fixed before Join returns.
type endpoints struct {
	all    []*am.Endpoint
	each   int // on each network
	first  int // the number of the first of them there
	table  *am.Table
	params am.Config
	words  words
	cfg    *Config
	busy   []error // of those that had something in flight when Close met the others first
}

// words are how errors call a kind of messages.
type words struct {
	kind   string // whose handlers they are
	params string // where their parameters are set
	each   string // where the number of their endpoints is set
	remedy string // where ranks differ in having them
}

// messagesOf are the program's.
func messagesOf(cfg *Config) endpoints {
	return endpoints{each: cfg.MessageEndpoints, table: cfg.Handlers, params: cfg.Messages, cfg: cfg, words: words{
		kind: "active messages", params: "Messages", each: "Config.MessageEndpoints",
		remedy: "start the same program on all ranks, and register before Join (Config.Handlers)"}}
}

// to is the k-th endpoint to a rank, nil where there are none.
func (s *endpoints) to(k, rank int, n *networks) *am.Endpoint {
	if len(s.all) == 0 {
		return nil
	}
	if uint(rank) >= uint(len(n.routes)) {
		return s.all[k] // which says that there is no such rank
	}
	return s.all[n.routes[rank].net*s.each+k]
}

// stats are the counters by network.
func (s *endpoints) stats(n *networks) map[string]am.Stats {
	all := make(map[string]am.Stats)
	for i, e := range s.all {
		name := n.all[i/s.each].Name()
		all[name] = all[name].Add(e.Stats())
	}
	return all
}

// openEndpoints opens the message endpoints, the program's and then the library's. Peers may send
// from now on; handlers run by themselves.
func (j *joining) openEndpoints() error {
	defer racesync.Release() // handlers see all endpoints
	h := &j.hellos[j.rank]
	j.raiseProcs() // connections on demand are answered by goroutines too
	if h.messages.handlers > 0 {
		cfg := j.messages.params
		cfg.Segment, cfg.SegmentOffset, cfg.SegmentSize = j.seg.User(), j.layout.UserOffset(), j.SegmentSize
		if j.cfg.Cache != nil {
			cfg.Fencer = fencer{j.Job}
		}
		if err := j.open(&j.messages, cfg); err != nil {
			return err
		}
	}
	if h.library.handlers > 0 {
		j.library.first = int(h.messages.endpoints)
		cfg := j.library.params
		cfg.Segment = j.seg.Bytes()
		cfg.SegmentSize = func(rank int) uint64 { return j.layout.UserOffset() + j.SegmentSize(rank) } // the user's region is the last
		if knowsAll(j.Job) != nil {
			cfg.Fencer = word{j.Job}
		}
		return j.open(&j.library, cfg)
	}
	return nil
}

// open opens endpoints.
func (j *Job) open(s *endpoints, cfg am.Config) error {
	cfg.Rank, cfg.Size, cfg.Table, cfg.OnClosed, cfg.Sharing = j.rank, j.size, s.table, j.closedPeer, &j.sharing
	for _, n := range j.networks.all {
		m, ok := n.(fabric.Messenger)
		if !ok {
			return fmt.Errorf("network %s carries no active messages", n.Name())
		}
		for k := range s.each {
			e, err := am.Open(m, s.first+k, cfg)
			if err != nil {
				return fmt.Errorf("message endpoint %d of %d (%s): %w", k, s.each, s.words.each, err)
			}
			s.all = append(s.all, e)
		}
	}
	return nil
}

// closedPeer is called by a message endpoint whose peer is dead, or broke the protocol.
func (j *Job) closedPeer(rank int, cause error) {
	if j.members.has(leaving) && errors.Is(cause, os.ErrClosed) {
		return // all have met, and the peer was quicker to close its endpoints
	}
	j.members.die(rank, cause)
}

// serve runs handlers until ctx ends, also where no attendant does.
func (s *endpoints) serve(ctx context.Context) {
	for _, e := range s.all {
		go func() { _ = e.Serve(ctx) }() // it stays in a handler that does not end; Close counts that one
	}
}

// forAll calls f for all endpoints at the same time.
func (s *endpoints) forAll(f func(*am.Endpoint) error) error {
	errs := make([]error, len(s.all))
	var all sync.WaitGroup
	for i, e := range s.all {
		all.Go(func() { errs[i] = f(e) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// await waits for something of all endpoints, no longer than ctx. busy are the *am.InFlightErrors
// of endpoints, whose Close counts again what it can. The other error is that of an endpoint that
// is of no use any more.
func (s *endpoints) await(ctx context.Context, wait func(*am.Endpoint, context.Context) error) (busy []error, err error) {
	var mu sync.Mutex
	err = s.forAll(func(e *am.Endpoint) error {
		err := s.within(ctx, func() error { return wait(e, ctx) })
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
func (s *endpoints) within(ctx context.Context, f func() error) error {
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
	case <-time.After(min(s.cfg.CloseTimeout/8, time.Second)): // it has had time to see that
		return &am.InFlightError{Op: "close", Handlers: 1, Cause: context.Cause(ctx)}
	}
}

// endRequests is the part of Close between its barriers. late is what may not have arrived.
func (s *endpoints) endRequests(ctx context.Context) (late []error, err error) {
	late, err = s.await(ctx, (*am.Endpoint).EndRequests)
	for _, e := range s.busy {
		rest := (*am.InFlightError)(nil)
		if errors.As(e, &rest) && rest.Calls+rest.Owed+rest.Handlers > 0 {
			return late, err // these were waited for long enough
		}
	}
	if err == nil {
		_, err = s.await(ctx, (*am.Endpoint).Quiesce)
	}
	return late, err
}

// close closes the endpoints, and logs the errors that they kept. busy is of those that are still
// in use: they are to be closed again, and the others have no error then.
func (s *endpoints) close() (busy, err error) {
	var mu sync.Mutex
	err = s.forAll(func(e *am.Endpoint) error {
		err := e.Close()
		if !errors.Is(err, am.ErrBusy) {
			return err
		}
		mu.Lock()
		busy = errors.Join(busy, err)
		mu.Unlock()
		return nil
	})
	for i, e := range s.all {
		if kept := e.Errors(); len(kept) > 0 {
			s.cfg.Logger.Warn("active messages met errors that no caller got", "of", s.words.kind, "endpoint", i, "kept", len(kept), "last", kept[len(kept)-1].Err)
		}
	}
	if busy != nil {
		busy = fmt.Errorf("conduit: close: %w; the segment stays: close again when they have ended", busy)
	}
	if err != nil {
		err = fmt.Errorf("conduit: close: %w", err)
	}
	return busy, err
}
