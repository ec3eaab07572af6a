package conduit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// Close leaves the job. It is collective: it waits, at most Config.CloseTimeout,
// until every rank has called it, since a peer may still read this segment; if they have not, up
// to 2.5 s more, for them to read why it leaves. It refuses with ErrBusy while workers are open, and then the job goes
// on. Closing again does nothing and returns the same. After Close the segment is gone. Only where a handler does not
// end, or a message is prepared and not sent, Close leaves the job, but not the memory that these may use, and returns an error that
// matches [am.ErrBusy] too: close again when they have ended, until the error is another one or nil. The Close that succeeds counts the calls that the first one ended.
//
// Before it meets the others it waits for the messages of this rank, and afterwards it
// runs the handlers of what they sent before: every call has its end, every post its handler. Calls that
// nobody answers end with ErrClosed, and Close returns an *am.InFlightError which counts them; unless a rank is down it tells also of
// messages that may not have arrived, or been handled, within CloseTimeout. A death ends the wait, and is no error of Close where
// it was found before (DownRanks has it), or is the end of a process, or the bootstrap tells all ranks of it; one that only the network finds, while
// this rank waits, is a *PeerDownError. While a rank
// waits in Close its handlers run, and its goroutines may send on until every rank has called Close; then requests
// are refused with an error that wraps [am.ErrClosed].
func (j *Job) Close() error {
	lockrank.CheckCommunication("close")
	if j.cfg.Handlers.InHandler() {
		return fmt.Errorf("conduit: close: %w", am.ErrInHandler)
	}
	j.mu.Lock()
	if n := len(j.workers) + j.opening; n > 0 && !j.closed {
		j.mu.Unlock()
		return fmt.Errorf("conduit: close: %w: %d workers are open; close them first", ErrBusy, n)
	}
	j.closed = true
	j.leaving.Store(true)
	failed := j.failed
	j.mu.Unlock()
	j.closeMu.Lock()
	defer j.closeMu.Unlock()
	switch {
	case !j.shut:
		j.shut = true
		j.closeErr = j.shutdown(failed)
	case j.held:
		j.closeErr = errors.Join(j.releaseHeld(), j.meetErr)
	}
	return j.closeErr
}

// fail makes Close leave without waiting for the others, who have been told
// that this rank is dead.
func (j *Job) fail() {
	j.mu.Lock()
	j.failed = true
	j.mu.Unlock()
}

func (j *Job) shutdown(failed bool) error {
	if failed {
		return j.release()
	}
	ctx, cancel := context.WithTimeout(j.life, j.cfg.CloseTimeout)
	defer cancel()
	before := j.downs.Load()
	unhandled, err := j.meet(ctx)
	if !j.awaitNews(ctx) && before == 0 {
		// Found here, and by nobody else who would tell the program. The end of a process is seen by whoever has started it.
		if down := j.anyDown("close"); !errors.Is(down, io.EOF) {
			err = errors.Join(err, fmt.Errorf("conduit: %w", down))
		}
	}
	j.meetErr = err
	errs := []error{j.release(), err} // errors.As finds what counts calls first
	if !j.held {                      // else it says which handlers have not ended
		errs = append(errs, unhandled...)
	}
	return errors.Join(errs...)
}

// meet comes to a rest together with the others. What this rank has in flight nevertheless is told by release; unhandled is what arrived
// and was not handled in time.
//
// While a rank waits its handlers run, and the goroutines that they start may send requests. Behind the first meeting requests are
// refused; at the second none is on its way any more, and behind it no rank asks another, who may have closed its lanes.
func (j *Job) meet(ctx context.Context) (unhandled []error, err error) {
	own, cancel := context.WithTimeout(ctx, j.cfg.CloseTimeout/2)
	defer cancel()
	busy, err := j.awaitLanes(own, (*am.Endpoint).Quiesce)
	met, e := j.gather(ctx, "called Close")
	err = errors.Join(err, e)
	if met && len(j.lanes) > 0 {
		late, e := j.endRequests(ctx, busy)
		if err == nil { // a lane that is of no use any more says so each time
			err = e
		}
		met, e = j.gather(ctx, "ended what it had begun before Close")
		err = errors.Join(append(late, err, e)...)
	}
	unhandled, e = j.awaitLanes(ctx, (*am.Endpoint).Drain)
	if !met || j.size == 1 && j.life.Err() != nil {
		return nil, err // a death was told where it mattered, and to itself a rank sends nothing that lies unhandled
	}
	if err == nil {
		err = e
	}
	return unhandled, err
}

// endRequests is the part of Close between the meetings, for lanes of which some had something in flight before. late is what may not
// have arrived.
func (j *Job) endRequests(ctx context.Context, before []error) (late []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.CloseTimeout/4)
	defer cancel()
	if late, err = j.awaitLanes(ctx, (*am.Endpoint).EndRequests); err != nil {
		return late, err
	}
	for _, e := range before {
		if rest := (*am.InFlightError)(nil); errors.As(e, &rest) && rest.Calls+rest.Owed+rest.Handlers > 0 {
			return late, nil // with what was waited for long enough
		}
	}
	_, err = j.awaitLanes(ctx, (*am.Endpoint).Quiesce)
	return late, err
}

// deathNews is for how long a rank that leaves because of a death waits for the bootstrap to tell of that: who it leaves behind is to hear
// of the dead rank first, not of this one.
const deathNews = time.Second

// awaitNews waits, before this rank says goodbye, as long as gather found that it has to. It is false where that is because of a death of
// which only the network has told.
func (j *Job) awaitNews(ctx context.Context) bool {
	if j.stay == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, j.stay)
	defer cancel()
	for {
		j.downMu.Lock()
		heard, news := len(j.told) > 0, j.news
		if j.found {
			heard = j.told[j.first]
		}
		j.downMu.Unlock()
		if heard {
			return true
		}
		if ctx.Err() != nil {
			return !j.found
		}
		select {
		case <-news:
		case <-ctx.Done(): // looks once more
		}
	}
}

// gather waits until every rank has come here, and reports whether all have; done is what an error says of the others. It is the bootstrap's barrier:
// what it tells needs no queue pair, so that none has to outlive it. A rank that is found dead meanwhile
// ends it.
func (j *Job) gather(ctx context.Context, done string) (met bool, err error) {
	if j.size == 1 {
		return true, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.downMu.Lock()
	j.leave = cancel
	j.downMu.Unlock()
	for _, l := range j.lanes { // so that handlers run here though an attendant would come late, or never
		go func() { _ = l.Serve(ctx) }() // in a handler that does not end it stays; the lane's Close counts that
	}
	err = j.coll.last(ctx)
	if err == nil {
		return true, nil
	}
	j.alone = err
	var lost *bootstrap.LostError
	others := errors.As(err, &lost) && lost.Rank != j.rank
	late := !others && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrPeerDown)
	switch {
	case j.life.Err() != nil:
		return false, fmt.Errorf("conduit: close: %w", errCancelled(j.life))
	case late && errors.Is(err, errTurn):
		return false, fmt.Errorf("conduit: close: %w, for %v (Config.CloseTimeout)", err, j.cfg.CloseTimeout)
	case late: // whoever is found down since may have left because this rank gave up: nobody else says why
		j.alone = fmt.Errorf("not every rank has %s within %v (Config.CloseTimeout)", done, j.cfg.CloseTimeout)
		return false, fmt.Errorf("conduit: close: %w: %w", err, j.alone)
	case j.downs.Load() > 0:
		// The deaths were reported where they mattered; leaving is what is left to do.
		j.alone, j.stay, j.found = j.anyDown("close"), deathNews, true
		return false, nil
	case others:
		// A rank that has died, gave up waiting, or left because of a death, and says so itself: through rank 0, which has to stay for that.
		if j.rank == 0 {
			j.stay = 2 * deathNews
		} else {
			j.alone = nil
		}
		return false, nil
	}
	return false, err
}

// release gives everything back, in whatever state Join or Close left it.
func (j *Job) release() error {
	select {
	case <-j.closing:
	default:
		close(j.closing)
	}
	var errs []error
	if j.alone != nil { // first: handlers may take their time, and the end of a network would not say why
		errs = append(errs, j.boot.Leave(j.alone))
	}
	lanes := j.closeLanes()
	j.held = errors.Is(lanes, am.ErrBusy)
	if j.coll != nil {
		errs = append(errs, j.coll.close())
	}
	if !j.held {
		errs = append(errs, j.closeNetworks())
	}
	if j.boot != nil {
		errs = append(errs, j.boot.Close())
	}
	j.watchers.Wait()
	if j.seg != nil && !j.held {
		errs = append(errs, j.seg.Close())
	}
	rest := errors.Join(errs...)
	if j.held {
		j.meetErr = errors.Join(rest, j.meetErr)
	}
	return errors.Join(lanes, rest)
}

func (j *Job) closeNetworks() error {
	var errs []error
	for _, n := range j.networks {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// releaseHeld gives back what release could not.
func (j *Job) releaseHeld() error {
	err := j.closeLanes()
	if j.held = errors.Is(err, am.ErrBusy); j.held {
		return err
	}
	return errors.Join(err, j.closeNetworks(), j.seg.Close())
}

// closeWorkers closes workers that a rank function left open, so that the job
// can end. The errors name how many there were.
func (j *Job) closeWorkers() error {
	j.mu.Lock()
	left := make([]*Worker, 0, len(j.workers))
	for w := range j.workers {
		left = append(left, w)
	}
	j.mu.Unlock()
	if len(left) == 0 {
		return nil
	}
	errs := []error{fmt.Errorf("conduit: %d workers were left open", len(left))}
	for _, w := range left {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}
