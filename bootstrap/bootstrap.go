package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// Bootstrap is a rank's connection to the launcher's exchange, or to ours.
// The package documentation says what may be called when.
type Bootstrap interface {
	// Rank is this process's number, from 0 to Size-1.
	Rank() int
	// Size is the number of ranks of the job, at least 1.
	Size() int
	// JobID is the same on every rank and differs between jobs that run at
	// the same time. It is not a secret.
	JobID() string
	// Local is the place of this rank among the ranks of its host. ok is
	// false as long as that is not known; after the first Exchange it is.
	Local() (rank, size int, ok bool)

	// Exchange gives every rank's blob to every rank; the result's index is
	// the rank, and the slices belong to the caller. Collective. A failed
	// Exchange or Barrier is final: later ones fail with the same cause.
	Exchange(ctx context.Context, blob []byte) ([][]byte, error)
	// Barrier returns when every rank has called it. Collective.
	Barrier(ctx context.Context) error

	// Abort ends the job as far as the backend can, writes msg to standard
	// error and exits the process with code, or with 1 where the code's lowest 8 bits, all
	// that an exit status has, are 0. It does not return, except for
	// a member of NewGroup, which it only marks as dead.
	Abort(code int, msg string)
	// Lost delivers, once for each rank, the deaths that this backend
	// notices after New. A rank that called Close did not die, unless it left without
	// the others: it called Leave, had given up a collective before, or a rank is lost. The
	// channel never blocks the backend, is closed by Close, and may never deliver.
	Lost() <-chan Loss

	// Name is the backend and what it was chosen by, as "pmi1 (PMI_FD)".
	Name() string
	// Fail is Close for a rank that cannot go on: over TCP and in a group the others lose it at
	// once, for this reason, which is not nil.
	Fail(why error) error
	// Leave is Close for a rank that does not wait for the others, which may still need it: over
	// TCP and in a group they lose it at once, for this reason, which is not nil.
	Leave(why error) error
	// Close leaves the job and frees everything; a second Close does nothing.
	// It does not wait for the other ranks: call Barrier first when they
	// must all have come this far.
	Close() error
}

// Loss is the death of one rank.
type Loss struct {
	Rank  int
	Cause error // wraps io.EOF, a network errno, ErrFailed, or *AbortError
}

// Limits on the exchange.
const (
	// MaxBlob is the largest blob that Exchange takes, in bytes.
	MaxBlob = 64 << 20
	// MaxResult is the largest sum of all ranks' blobs, in bytes.
	MaxResult = 1 << 30
	// MaxRanks is the largest job that can meet over TCP: rank 0 has a connection to each of the
	// others.
	MaxRanks = 1 << 20
)

// Options say how New finds the job. The zero value reads the process's own
// environment.
type Options struct {
	// Lookup reads one variable of the environment. Default: os.LookupEnv.
	Lookup func(name string) (value string, ok bool)
	// Timeout bounds the time until all ranks have arrived, when the context
	// has no nearer deadline. Default: 60 s.
	Timeout time.Duration
	// Log receives warnings, and one line at debug level that names the
	// launcher found. Default: slog.Default().
	Log *slog.Logger
	// Build identifies the program; it must be equal on all ranks. Set it
	// where one job runs several programs, or one on several architectures.
	// Default: the Go build id of the executable; where IBCONDUIT_PROGRAMS says that the job has
	// several programs, nothing is compared.
	Build string
}

func (o Options) withDefaults() Options {
	if o.Lookup == nil {
		o.Lookup = os.LookupEnv
	}
	if o.Timeout <= 0 {
		o.Timeout = 60 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if n, _ := o.Lookup("IBCONDUIT_PROGRAMS"); o.Build == "" && n != "" && n != "1" {
		o.Build = "one of " + n
	}
	if o.Build == "" {
		o.Build = buildID()
	}
	return o
}

// New finds out how this process was launched and joins the job; see the
// package documentation for the order of detection and the variables. It is
// collective over the ranks of the job where the backend has a join of its
// own (TCP). Under PMI a process can call it once. A process that was started as one of several and
// finds no other is refused with ErrAlone, except in a binary of go test.
func New(ctx context.Context, opts Options) (Bootstrap, error) {
	opts = opts.withDefaults()
	found, err := detect(opts.Lookup, ownProgram())
	if errors.Is(err, ErrAlone) && goTest() {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	be, err := found.join(ctx, opts)
	if err != nil {
		return nil, prefixed(err)
	}
	j := newJob(be, found.name(), opts)
	opts.Log.Debug(fmt.Sprintf("bootstrap: %s rank %d/%d job %s", j.Name(), j.Rank(), j.Size(), j.JobID()))
	return j, nil
}

// Detection is how New would join a job.
type Detection struct {
	// Name is what Bootstrap.Name would be, as "pmi1 (PMI_FD)".
	Name string
}

// Detect says how New would join, without joining. The error is the one that New would return
// for these variables.
func Detect(opts Options) (Detection, error) {
	found, err := detect(opts.withDefaults().Lookup, "./prog")
	return Detection{Name: found.name()}, err
}

// NewGroup makes a job of n ranks inside this process, for tests and for
// programs that run their ranks as goroutines. Abort marks its rank as dead
// for the others and returns; everything else is as between processes.
func NewGroup(n int) []Bootstrap {
	h := newHub(n)
	id := fmt.Sprintf("group-%d-%d", os.Getpid(), groups.Add(1))
	ranks := make([]Bootstrap, n)
	for r := range ranks {
		m := newMember(h, r, identity{rank: r, size: n, job: id, localRank: r, localSize: n, localKnown: true})
		ranks[r] = newJob(m, "group", Options{}.withDefaults())
	}
	return ranks
}

// groups makes job ids unique within the process.
var groups atomic.Uint64
