package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ibconduit/conduit/internal/pmix"
)

// eventTime is how long a failed fence waits for the event that says which rank has ended.
const eventTime = 200 * time.Millisecond

// pmixed is the exchange of Open MPI's mpirun, of srun --mpi=pmix and of PRRTE.
type pmixed struct {
	identity
	client  *pmix.Client
	gen     int           // of the next Exchange; a key is never used twice
	timeout time.Duration // until all have come to the first one
	event   time.Duration // eventTime; longer in tests only
	losses  chan Loss
	dead    context.Context // ends with the first death that the launcher tells of, for its cause
	exit    func(code int)
}

func joinPMIx(ctx context.Context, opts Options) (backend, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, opts.Timeout, errOwnTime)
	defer cancel()
	c, err := pmix.Init(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (does the launcher's PMIx fit this libpmix? %s names another, "+
			"or IBCONDUIT_BOOTSTRAP=tcp and %s)", err, pmix.EnvLibrary, meetOverTCP)
	}
	if c.Size == 1 { // any number of programs may be this rank
		_ = c.Close(ctx)
		return newSelf(), nil
	}
	p := &pmixed{identity: identity{rank: c.Rank, size: c.Size, job: c.Namespace}, client: c, timeout: opts.Timeout,
		event: eventTime, losses: make(chan Loss, c.Size), exit: os.Exit}
	dead, found := context.WithCancelCause(context.Background())
	p.dead = dead
	go p.watch(found)
	return p, nil
}

// watch makes losses of the launcher's events.
func (p *pmixed) watch(found context.CancelCauseFunc) {
	defer close(p.losses)
	known := map[uint32]bool{uint32(p.rank): true}
	for ev := range p.client.Events() {
		if !ev.Death() || int64(ev.Rank) >= int64(p.size) || known[ev.Rank] {
			continue
		}
		known[ev.Rank] = true
		loss := &LostError{Rank: int(ev.Rank),
			Cause: death(fmt.Errorf("the launcher reports its end (PMIx event %d): %w", ev.Status, io.EOF))}
		found(loss)
		p.losses <- Loss{loss.Rank, loss}
	}
}

func (p *pmixed) id() identity { return p.identity }

// within ends a collective with the first death.
func (p *pmixed) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.dead, func() { cancel(context.Cause(p.dead)) })
	return ctx, func() { stop(); cancel(nil) }
}

func (p *pmixed) exchange(ctx context.Context, blob []byte) (blobs [][]byte, err error) {
	ctx, done := p.within(ctx)
	defer done()
	if p.gen == 0 {
		var cancel func()
		ctx, cancel = firstWithin(ctx, p.timeout)
		defer cancel()
		defer func() {
			if errors.As(err, new(*pmix.StatusError)) && p.dead.Err() == nil {
				err = fmt.Errorf("%w; or %w", err, errTaken)
			}
		}()
	}
	key := fmt.Sprintf("ibc.%d", p.gen)
	p.gen++
	if err := p.client.Put(ctx, key, blob); err != nil {
		return nil, err
	}
	if err := p.fence(ctx, true); err != nil {
		return nil, err
	}
	blobs = make([][]byte, p.size)
	for r := range blobs {
		if blobs[r], err = p.client.Get(ctx, r, key); err != nil {
			return nil, fmt.Errorf("blob of rank %d: %w", r, err)
		}
	}
	return blobs, nil
}

func (p *pmixed) barrier(ctx context.Context) error {
	ctx, done := p.within(ctx)
	defer done()
	return p.fence(ctx, false)
}

// fence says of how many ranks it is: PMIx does not name the ranks that are missing.
func (p *pmixed) fence(ctx context.Context, collect bool) error {
	begun := time.Now()
	err := p.client.Fence(ctx, collect)
	var failed *pmix.StatusError
	switch {
	case errors.As(err, &failed):
		select {
		case <-p.dead.Done():
		case <-time.After(p.event):
		case <-ctx.Done(): // which a death ends too
		}
		if p.dead.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(p.dead), err)
		}
		return fmt.Errorf("a rank has ended, see the launcher's message: %w: %w", err, io.EOF)
	case err != nil && ctx.Err() != nil && p.dead.Err() == nil:
		return fmt.Errorf("not all %d ranks within %v; see the launcher's message: %w",
			p.size, time.Since(begun).Round(time.Millisecond), err)
	}
	return err
}

func (p *pmixed) lost() <-chan Loss { return p.losses }

// abort has the launcher end the job. PMIx_Abort returns under Open MPI 4.1 (measured), and this
// process must not run on.
func (p *pmixed) abort(code int, msg string) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	_ = p.client.Abort(ctx, code, msg)
	p.exit(code)
}

// close: PMIx cannot carry why.
func (p *pmixed) close(*cause) error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	return p.client.Close(ctx)
}
