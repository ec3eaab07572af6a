package conduit

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/fencecheck"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/segment"
)

// Job is one rank's membership in a job.
type Job struct {
	cfg        Config
	rank, size int
	life       context.Context // bounds whatever the rank waits for: RunLocal's, else Background

	boot      bootstrap.Bootstrap
	needs     needs          // of the parts
	layout    segment.Layout // of the segments of all ranks
	seg       *segment.Mapping
	heaps     *heaps
	memory    *memory
	members   *membership
	networks  networks
	sharing   spin.Sharing // of the processors, with other ranks
	coll      *coll.Teams
	checker   *fencecheck.Checker // nil: nothing looks for missing fences
	messages  endpoints           // of the program
	library   endpoints           // of the library's parts
	workers   workers
	latencies *latencies     // nil: nothing is measured
	watching  sync.WaitGroup // the bootstrap's reports

	closeMu  sync.Mutex // held by a Close
	closed   bool       // everything is given back
	closeErr error      // what no later Close takes back

	aborted atomic.Pointer[bootstrap.AbortError] // in RunLocal
}

// Rank is this process's number in the job, from 0.
func (j *Job) Rank() int { return j.rank }

// Size is the number of ranks.
func (j *Job) Size() int { return j.size }

// ID is the launcher's name for the job.
func (j *Job) ID() string { return j.boot.JobID() }

// Segment is this rank's own segment. Peers write it at any time: read a word that a peer may be
// writing with sync/atomic, and wait for it with [Worker.WaitUntil]. It lies outside the Go heap
// and is valid until Close. It begins with the static arrays and heaps of the job, if it has some:
// what a program does by offsets of its own begins at Info().Shared.End().
func (j *Job) Segment() []byte { return j.seg.User() }

// SegmentSize is the size in bytes of a rank's segment, 0 for a rank that the
// job does not have.
func (j *Job) SegmentSize(rank int) uint64 {
	if r := j.networks.to(rank); r != nil {
		return r.user
	}
	return 0
}

// FabricTo names the network that puts and gets to rank use: "shm" or "ibv".
func (j *Job) FabricTo(rank int) string {
	if r := j.networks.to(rank); r != nil {
		return r.data.Name()
	}
	return ""
}

// CPUAtomics reports whether the conduit's atomics on this rank's segment are
// atomic also with respect to sync/atomic and plain word accesses of the owner.
// They are over shared memory; a verbs device usually guarantees atomicity only
// among its own operations.
func (j *Job) CPUAtomics() bool { return j.networks.routes[j.rank].cpuAtomics }

// Abort writes msg to standard error, exits this process with code, and has the launcher end the
// job where it can: a PMI launcher and ibrun do. A code whose lowest 8 bits are 0, as 0 or 256,
// would be the code of a good end: 1 in its place. Over TCP the other ranks find this one down,
// with msg. It does not return, but in [RunLocal], where it only marks the rank as dead; RunLocal's
// error has a *bootstrap.AbortError for it.
func (j *Job) Abort(code int, msg string) {
	j.aborted.CompareAndSwap(nil, &bootstrap.AbortError{Code: bootstrap.AbortCode(code), Msg: msg})
	j.boot.Abort(code, msg)
}

// DownRanks are the ranks known to be dead, with how that was found out.
func (j *Job) DownRanks() map[int]error { return j.members.causes() }

// checkOpen ends waits when the job is closed or cancelled under them.
func (j *Job) checkOpen() error {
	if j.life.Err() != nil {
		return errCancelled(j.life)
	}
	select {
	case <-j.members.gone:
		return errClosed("wait", "job")
	default:
		return nil
	}
}

// Info describes a job to what observes it. It does not change, and is valid after Close.
type Info struct {
	ID        string   // the launcher's name for the job
	Rank      int      // of this process
	Size      int      // ranks of the job
	LocalRank int      // its place among the ranks of its host, from 0; -1 where that is not known
	Bootstrap string   // how the job was found: "pmi1 (PMI_FD)"
	Networks  []string // in use by this rank, fastest first
	Devices   []DevicePort
	Shared    SharedLayout // of the segments
	Memory    MemoryLayout
}

// DevicePort is a port of a verbs device that a job uses.
type DevicePort struct {
	Device string // "mlx5_0"
	Port   int    // from 1
}

// Info describes the job.
func (j *Job) Info() Info {
	i := Info{ID: j.ID(), Rank: j.rank, Size: j.size, LocalRank: -1, Bootstrap: j.boot.Name(),
		Networks: j.networks.names(), Shared: j.heaps.SharedLayout, Memory: j.memory.Layout()}
	if local, _, ok := j.boot.Local(); ok {
		i.LocalRank = local
	}
	for _, n := range j.networks.all {
		if d, ok := n.(interface {
			Device() string
			Port() int
		}); ok {
			i.Devices = append(i.Devices, DevicePort{Device: d.Device(), Port: d.Port()})
		}
	}
	return i
}
