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

// Close leaves the job. It is collective: it waits, at most Config.CloseTimeout, until every rank
// has called it, since a peer may still read this segment; if they have not, up to 2.5 s more, for
// them to read why it leaves. It refuses with ErrBusy while workers are open, and then the job goes
// on. Closing again does nothing and returns the same. After Close the segment is gone. Only where
// a handler does not end, or a message is prepared and not sent, Close leaves the job, but not the
// memory that these may use, and returns an error that matches [am.ErrBusy] too: close again when
// they have ended, until the error is another one or nil. The Close that succeeds counts the calls
// that the first one ended.
//
// Before it meets the others it waits for the messages of this rank, and afterwards it runs the
// handlers of what they sent before: every call has its end, every post its handler. Calls that get
// no reply end with ErrClosed, and Close returns an *am.InFlightError which counts them; unless a
// rank is down it counts also messages that may not have arrived, or been handled, within
// CloseTimeout. A death ends the wait, and is no error of Close where it was found before
// (DownRanks has it), or is the end of a process, or the bootstrap reports it to all ranks; one
// that only the network finds, while this rank waits, is a *PeerDownError. While a rank waits in
// Close its handlers run, and its goroutines may send on until every rank has called Close; then
// requests are refused with an error that wraps [am.ErrClosed].
func (j *Job) Close() error {
	lockrank.CheckCommunication("close")
	if j.cfg.Handlers.InHandler() {
		return fmt.Errorf("conduit: close: %w", am.ErrInHandler)
	}
	if err := j.workers.close(j.members); err != nil {
		return err
	}
	j.closeMu.Lock()
	defer j.closeMu.Unlock()
	if j.closed {
		return j.closeErr
	}
	var unhandled error
	if !j.members.has(left) { // nor dead: then the others know it, and wait for nothing
		j.closeErr, unhandled = j.leave()
	}
	busy, err := j.release()
	j.closeErr = errors.Join(err, j.closeErr) // errors.As finds the count of calls first
	if busy != nil {
		return errors.Join(busy, j.closeErr)
	}
	j.closed, j.closeErr = true, errors.Join(j.closeErr, unhandled)
	return j.closeErr
}

// leave is what MPI_Finalize does: this rank's messages end, all ranks enter a barrier, requests
// are refused and those that were sent meanwhile end, all meet again, and what has arrived is
// handled. Only behind the second barrier is no request on its way. unhandled is what arrived and
// was not handled in time.
func (j *Job) leave() (err, unhandled error) {
	ctx, cancel := context.WithTimeout(j.life, j.cfg.CloseTimeout)
	defer cancel()
	known := j.members.first("close") != nil
	_, broken := j.eachKind(ctx, j.cfg.CloseTimeout/2, func(s *endpoints, ctx context.Context) (busy []error, err error) {
		s.busy, err = s.await(ctx, (*am.Endpoint).Quiesce)
		return nil, err
	})
	d := j.meetOthers(ctx, "called Close")
	if d == nil && len(j.messages.all)+len(j.library.all) > 0 {
		late, e := j.eachKind(ctx, j.cfg.CloseTimeout/4, (*endpoints).endRequests)
		if broken == nil { // an endpoint that is of no use any more says so each time
			broken = e
		}
		err = errors.Join(late...)
		d = j.meetOthers(ctx, "ended what it had begun before Close")
	}
	rest, e := j.eachKind(ctx, j.cfg.CloseTimeout, func(s *endpoints, ctx context.Context) ([]error, error) {
		return s.await(ctx, (*am.Endpoint).Drain)
	})
	if d == nil {
		if broken == nil {
			broken = e
		}
		if j.size > 1 || j.life.Err() == nil { // what a rank sends itself it has handled
			unhandled = errors.Join(rest...)
		}
		return errors.Join(err, broken), unhandled
	}
	err = errors.Join(err, broken, d.err)
	if death := d.await(ctx); !known {
		err = errors.Join(err, death)
	}
	if d.reason != nil { // now, as the end of a network would not say why
		err = errors.Join(err, j.boot.Leave(d.reason))
	}
	return err, nil
}

// eachKind is a step of leave for the program's messages, and then for the library's: what answers
// the program's may need these. Together they take no longer than ctx and the limit: a rank with a
// call that gets no reply, or a handler that does not end, meets the others nevertheless.
func (j *Job) eachKind(ctx context.Context, limit time.Duration,
	step func(*endpoints, context.Context) (busy []error, err error)) (busy []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	busy, err = step(&j.messages, ctx)
	more, e := step(&j.library, ctx)
	return append(busy, more...), errors.Join(err, e)
}

// deathReport is how long a rank that leaves because of a death waits for the bootstrap to report
// it: the others should learn of the dead rank first, not of this one.
const deathReport = time.Second

// earlyEnd is how a rank leaves that has not met the others.
type earlyEnd struct {
	err    error           // of Close
	reason error           // for the others; nil where they have it
	report <-chan struct{} // the bootstrap's report that has to come first,
	within time.Duration   // unless it takes longer
	death  error           // the error of Close where it does
}

func (d *earlyEnd) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.within)
	defer cancel()
	select {
	case <-d.report:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-d.report:
		return nil
	default:
		return d.death
	}
}

// meetOthers waits until every rank has come here, and returns nil if all have. It is the
// bootstrap's barrier, which needs no queue pair. A death ends it. done is what an error says that
// the others have not.
func (j *Job) meetOthers(ctx context.Context, done string) *earlyEnd {
	if j.size == 1 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	complete := j.members.complete
	defer context.AfterFunc(complete, func() { cancel(context.Cause(complete)) })()
	j.messages.serve(ctx)
	j.library.serve(ctx)
	err := j.last(ctx)
	if err == nil {
		return nil
	}
	var lost *bootstrap.LostError
	other := errors.As(err, &lost) && lost.Rank != j.rank
	late := !other && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrPeerDown)
	death := j.members.first("close")
	switch {
	case j.life.Err() != nil:
		return &earlyEnd{err: fmt.Errorf("conduit: close: %w", errCancelled(j.life)), reason: err}
	case late && errors.Is(err, errTurn):
		return &earlyEnd{err: fmt.Errorf("conduit: close: %w, for %v (Config.CloseTimeout)", err, j.cfg.CloseTimeout),
			reason: err}
	case late: // also if a rank is dead since: it may have left because this one gave up
		reason := fmt.Errorf("not every rank has %s within %v (Config.CloseTimeout)", done, j.cfg.CloseTimeout)
		return &earlyEnd{err: fmt.Errorf("conduit: close: %w: %w", err, reason), reason: reason}
	case errors.Is(death, io.EOF): // the end of a process, which its launcher sees
		return &earlyEnd{reason: death, report: j.members.firstReported, within: deathReport}
	case death != nil:
		return &earlyEnd{reason: death, report: j.members.firstReported, within: deathReport,
			death: fmt.Errorf("conduit: %w", death)}
	case other && j.rank == 0: // through which the others learn of it
		return &earlyEnd{reason: err, report: j.members.anyReported, within: 2 * deathReport}
	case other: // it died, gave up, or left because of a death; rank 0 passes on which
		return &earlyEnd{}
	}
	return &earlyEnd{err: err, reason: err}
}

// release gives everything back, in whatever state Join or Close left it. busy says what of the
// message endpoints is still in use; then they, the networks and the segment stay, and release may
// be called again.
func (j *Job) release() (busy, err error) {
	j.members.end()
	j.memory.End()
	heapErr := j.heaps.close()                       // before the messages that it sends
	if busy, err = j.messages.close(); busy == nil { // handlers that run may use the library's
		var lib error
		busy, lib = j.library.close()
		err = errors.Join(err, lib)
	}
	errs := []error{err, heapErr}
	if j.coll != nil {
		errs = append(errs, j.coll.Close())
	}
	if busy == nil {
		errs = append(errs, j.networks.close())
	}
	if j.boot != nil {
		errs = append(errs, j.boot.Close())
	}
	j.watching.Wait()
	if busy == nil { // no network writes to a buffer any more
		errs = append(errs, j.memory.Close())
	}
	if j.seg != nil && busy == nil {
		errs = append(errs, j.seg.Close())
	}
	return busy, errors.Join(errs...)
}
