package conduit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/fabric"
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
	handlers int            // of active messages; 0: there are no lanes for them
	lanes    []*am.Endpoint // MessageEndpoints for each of networks, in that order; fixed before Join returns

	downs atomic.Uint32 // how many ranks are down
	down  sync.Map      // rank (int) -> cause (error)

	// downMu is taken last, and no network is called under it: lanes tell of
	// deaths from inside calls that are made under mu.
	downMu sync.Mutex
	first  int                     // the rank whose death was found out first; fixed before downs counts it
	latest int                     // the rank whose death was found out last; under downMu
	leave  context.CancelCauseFunc // ends Close's wait; nil before; under downMu
	left   []int                   // ranks whose goodbye was heard and is not known to be a loss; under downMu
	told   map[int]bool            // ranks of whose end the bootstrap has told; under downMu
	news   chan struct{}           // closed, and made anew, when it tells of one more; under downMu

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
	watchers sync.WaitGroup

	closeMu  sync.Mutex    // held by whoever closes
	shut     bool          // Close has left the job
	alone    error         // why it leaves without the others, who may still need it
	stay     time.Duration // for how long it waits before for the bootstrap to tell of a death
	found    bool          // which is that of rank first; else anybody's
	held     bool          // by a handler that did not end; the networks and the segment are not closed yet
	meetErr  error         // what went wrong before, which no later Close takes back
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
func (j *Job) watch(lost <-chan bootstrap.Loss) {
	defer j.watchers.Done()
	for {
		select {
		case l, ok := <-lost:
			if !ok {
				return
			}
			j.downMu.Lock()
			j.told[l.Rank] = true
			close(j.news)
			j.news = make(chan struct{})
			j.downMu.Unlock()
			j.markDown(l.Rank, l.Cause)
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
