package conduit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/segment"
)

// Job is one rank's membership in a job.
type Job struct {
	cfg        Config
	rank, size int

	boot     bootstrap.Bootstrap
	seg      *segment.Mapping
	networks []fabric.Network // fastest first; fixed, under downMu, before Join returns
	routes   []route          // by rank
	copyMax  int              // the least Limits.CopyMax of the networks
	coll     *collectives
	handlers int        // of active messages; 0: there are no lanes for them
	lanes    []*am.Lane // MessageLanes for each of networks, in that order; fixed before Join returns

	downs atomic.Uint32 // how many ranks are down
	down  sync.Map      // rank (int) -> cause (error)

	// downMu is taken last, and no network is called under it: lanes tell of
	// deaths from inside calls that are made under mu.
	downMu sync.Mutex
	first  int                     // the rank whose death was found out first; fixed before downs counts it
	latest int                     // the rank whose death was found out last; under downMu
	leave  context.CancelCauseFunc // ends Close's wait; nil before; under downMu
	left   []int                   // ranks whose goodbye was heard and is not known to be a loss; under downMu

	mu      sync.Mutex // guards what follows
	workers map[*Worker]struct{}
	opening int   // workers that NewWorker is about to return
	opened  int   // workers, ever
	retired Stats // of workers that were closed
	closed  bool
	failed  bool // this rank leaves without waiting for the others

	leaving  atomic.Bool     // Close was called
	life     context.Context // bounds whatever the rank waits for: RunLocal's, else Background
	closing  chan struct{}   // closed when Close has heard of everybody
	told     chan struct{}   // closed when the bootstrap has told of a death
	watchers sync.WaitGroup

	closeMu  sync.Mutex    // held by whoever closes
	shut     bool          // Close has left the job
	alone    error         // why it leaves without the others, who may still need it
	news     time.Duration // for how long it waits before for the bootstrap to tell of a death
	held     bool          // by a handler that did not end; the networks and the segment are not closed yet
	closeErr error

	aborted atomic.Pointer[bootstrap.AbortError] // in RunLocal
}

// route is how operations on one rank travel.
type route struct {
	data, amo  fabric.Network
	net        int    // index of data among the networks
	cpuAtomics bool   // amo works on mapped memory with the processor's atomics
	user       uint64 // bytes of the rank's segment
	system     uint64 // where its system area begins
}

// Rank is this process's number in the job, from 0.
func (j *Job) Rank() int { return j.rank }

// Size is the number of ranks.
func (j *Job) Size() int { return j.size }

// ID is the launcher's name for the job.
func (j *Job) ID() string { return j.boot.JobID() }

// Segment is this rank's own segment. Peers write it at any time: read a word
// that a peer may be writing with sync/atomic, and wait for it with
// [Worker.WaitUntil]. It lies outside the Go heap and is valid until Close.
func (j *Job) Segment() []byte { return j.seg.User() }

// SegmentSize is the size in bytes of a rank's segment, 0 for a rank that the
// job does not have.
func (j *Job) SegmentSize(rank int) uint64 {
	if rank < 0 || rank >= j.size {
		return 0
	}
	return j.routes[rank].user
}

// FabricTo names the network that puts and gets to rank use: "shm" or "ibv".
func (j *Job) FabricTo(rank int) string {
	if rank < 0 || rank >= j.size {
		return ""
	}
	return j.routes[rank].data.Name()
}

// CPUAtomics reports whether the conduit's atomics on this rank's segment are
// atomic also with respect to sync/atomic and plain word accesses of the owner.
// They are over shared memory; a verbs device usually guarantees atomicity only
// among its own operations.
func (j *Job) CPUAtomics() bool { return j.routes[j.rank].cpuAtomics }

// Abort writes msg to standard error, exits this process with code, and has the launcher end the job where it can: a PMI
// launcher and ibrun do. A code whose lowest 8 bits are 0, as 0 or 256, would be that of a good end: 1 in its place. Over TCP the other ranks
// find this one down, with msg. It does not return, but in [RunLocal], where it only marks the rank as dead; RunLocal's error has a
// *bootstrap.AbortError for it.
func (j *Job) Abort(code int, msg string) {
	j.aborted.CompareAndSwap(nil, &bootstrap.AbortError{Code: bootstrap.AbortCode(code), Msg: msg})
	j.boot.Abort(code, msg)
}

// Stats are counters by network name.
type Stats map[string]fabric.Counters

func (s Stats) add(name string, c fabric.Counters) { s[name] = s[name].Add(c) }

func (s Stats) merge(o Stats) {
	for name, c := range o {
		s.add(name, c)
	}
}

// Stats sums the counters of all workers, open and closed, and of the job's
// own operations.
func (j *Job) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := make(Stats)
	s.merge(j.retired)
	for w := range j.workers {
		s.merge(w.statsLocked())
	}
	if j.coll != nil {
		s.merge(j.coll.stats())
	}
	return s
}

// DownRanks are the ranks known to be dead, with how that was found out.
func (j *Job) DownRanks() map[int]error {
	m := make(map[int]error)
	j.down.Range(func(k, v any) bool {
		m[k.(int)] = v.(error)
		return true
	})
	return m
}

// downCause is nil while the rank is alive.
func (j *Job) downCause(rank int) error {
	if j.downs.Load() == 0 {
		return nil
	}
	if c, ok := j.down.Load(rank); ok {
		return c.(error)
	}
	return nil
}

// anyDown is the death that was found out first, for operations that need all ranks: those who leave
// because of it are found down as well, and it is what they leave for.
func (j *Job) anyDown(op string) error {
	if j.downs.Load() == 0 {
		return nil
	}
	return &PeerDownError{Rank: j.first, Op: op, Cause: j.downCause(j.first)}
}

// lastDown is the death that was found out last.
func (j *Job) lastDown(op string) error {
	j.downMu.Lock()
	defer j.downMu.Unlock()
	return &PeerDownError{Rank: j.latest, Op: op, Cause: j.downCause(j.latest)}
}

// markDown records a rank's death and tells the networks, once.
func (j *Job) markDown(rank int, cause error) {
	if rank < 0 || rank >= j.size || rank == j.rank {
		return
	}
	j.downMu.Lock()
	if _, known := j.down.LoadOrStore(rank, cause); known {
		j.downMu.Unlock()
		return
	}
	if j.latest = rank; j.downs.Load() == 0 {
		j.first = rank
	}
	j.downs.Add(1)
	networks := slices.Clone(j.networks)
	if j.leave != nil {
		j.leave(&PeerDownError{Rank: rank, Op: "close", Cause: cause})
	}
	j.downMu.Unlock()
	j.cfg.Logger.Warn("rank is down", "rank", rank, "cause", cause)
	for _, n := range networks {
		n.PeerDown(rank, cause) // whose ports tell the message lanes
	}
	if rank == 0 {
		j.losesLeavers()
	}
}

// markLeft hears that a rank of this host has closed the job.
func (j *Job) markLeft(rank int) {
	j.downMu.Lock()
	j.left = append(j.left, rank)
	j.downMu.Unlock()
	j.losesLeavers()
}

// losesLeavers: where a rank is lost nobody leaves in good order. That is the bootstrap's to tell, but over TCP it hears of it
// through rank 0 alone.
func (j *Job) losesLeavers() {
	if j.downCause(0) == nil {
		return
	}
	j.downMu.Lock()
	left := j.left
	j.left = nil
	j.downMu.Unlock()
	for _, rank := range left {
		j.markDown(rank, leftAlone{})
	}
}

// leftAlone is the cause where a rank left that others may still need.
type leftAlone struct{}

func (leftAlone) Error() string { return "left the job without the others, after rank 0 was lost" }
func (leftAlone) Unwrap() error { return bootstrap.ErrLeft }

// addNetwork brings a network in, and tells it of the deaths so far: they may be
// found out while others are still connecting.
func (j *Job) addNetwork(n fabric.Network) {
	j.downMu.Lock()
	j.networks = append(j.networks, n)
	j.downMu.Unlock()
	for rank, cause := range j.DownRanks() {
		n.PeerDown(rank, cause)
	}
}

// watch passes the launcher's news of deaths on until the job closes.
func (j *Job) watch() {
	defer j.watchers.Done()
	lost, told := j.boot.Lost(), false
	for {
		select {
		case l, ok := <-lost:
			if !ok {
				return
			}
			j.markDown(l.Rank, l.Cause)
			if !told {
				told = true
				close(j.told)
			}
		case <-j.closing:
			return
		}
	}
}

// checkOpen lets waits end when the job is closed or cancelled under them.
func (j *Job) checkOpen() error {
	if j.life.Err() != nil {
		return errCancelled(j.life)
	}
	select {
	case <-j.closing:
		return errClosed("wait", "job")
	default:
		return nil
	}
}

// Close leaves the job. It is collective: it waits, at most Config.CloseTimeout,
// until every rank has called it, since a peer may still read this segment; if they have not, up
// to 2 s more, for them to read why it leaves. It refuses with ErrBusy while workers are open, and then the job goes
// on. Closing again does nothing and returns the same. After Close the segment is gone. Only where a handler does not
// end, or a message is prepared and not sent, Close leaves the job, but not the memory that these may use, and returns an error that
// matches [am.ErrBusy] too: close again when they have ended, until the error is another one or nil. The Close that succeeds counts the calls that the first one ended.
//
// Before it meets the others it waits for the messages of this rank, and afterwards it
// runs the handlers of what they sent before: every call has its end, every post its handler. Calls that
// nobody answers end with ErrClosed, and Close returns an *am.InFlightError which counts them; unless a rank is down it tells also of
// messages that may not have arrived, or been handled, within CloseTimeout. While a rank
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
		j.closeErr = j.releaseHeld()
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
	unhandled, err := j.meet(ctx)
	j.awaitNews(ctx)
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
	busy, err := j.awaitLanes(own, (*am.Lane).Quiesce)
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
	unhandled, e = j.awaitLanes(ctx, (*am.Lane).Drain)
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
	if late, err = j.awaitLanes(ctx, (*am.Lane).EndRequests); err != nil {
		return late, err
	}
	for _, e := range before {
		if rest := (*am.InFlightError)(nil); errors.As(e, &rest) && rest.Calls+rest.Owed+rest.Handlers > 0 {
			return late, nil // with what was waited for long enough
		}
	}
	_, err = j.awaitLanes(ctx, (*am.Lane).Quiesce)
	return late, err
}

// deathNews is for how long a rank that leaves because of a death waits for the bootstrap to tell of that: who it leaves behind is to hear
// of the dead rank first, not of this one.
const deathNews = time.Second

func (j *Job) awaitNews(ctx context.Context) {
	if j.alone == nil || j.news == 0 {
		return
	}
	t := time.NewTimer(j.news)
	defer t.Stop()
	select {
	case <-j.told:
	case <-t.C:
	case <-ctx.Done():
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
	j.alone = err
	var lost *bootstrap.LostError
	switch {
	case err == nil:
		return true, nil
	case j.life.Err() != nil:
		return false, fmt.Errorf("conduit: close: %w", errCancelled(j.life))
	case j.downs.Load() > 0:
		// The deaths were reported where they mattered; leaving is what is left to do.
		j.alone, j.news = j.anyDown("close"), deathNews
		return false, nil
	case errors.Is(err, errTurn):
		return false, fmt.Errorf("conduit: close: %w, for %v (Config.CloseTimeout)", err, j.cfg.CloseTimeout)
	case errors.As(err, &lost) && lost.Rank != j.rank:
		// A rank that has died, gave up waiting, or left because of a death, and says so itself: through rank 0, which has to stay for that.
		if j.rank == 0 {
			j.news = 2 * deathNews
		} else {
			j.alone = nil
		}
		return false, nil
	case ctx.Err() != nil:
		j.alone = fmt.Errorf("not every rank has %s within %v (Config.CloseTimeout)", done, j.cfg.CloseTimeout)
		return false, fmt.Errorf("conduit: close: %w: %w", err, j.alone)
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
	errs = append(errs, lanes)
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
	return errors.Join(errs...)
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
