package am

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/sparse"
)

// Endpoint sends and receives the active messages of one endpoint of a network. Any number of
// goroutines may use it.
type Endpoint struct{ progress }

// Open opens endpoint i of a network for active messages. Its peers open theirs with the same
// number. It connects to no peer.
func Open(net fabric.Messenger, i int, cfg Config) (*Endpoint, error) {
	if err := cfg.populate(); err != nil {
		return nil, err
	}
	if err := cfg.fits(net.MessageLimits()); err != nil {
		return nil, fmt.Errorf("am: open endpoint %d of %s: %w", i, net.Name(), err)
	}
	pool, err := flow.NewPool(flow.PoolConfig{Config: cfg.Flow, Peers: cfg.Size, Credits: cfg.Credits, Replies: cfg.Replies})
	if err != nil {
		return nil, err
	}
	senders, err := flow.NewSenderConfig(cfg.Flow, cfg.Credits)
	if err != nil {
		return nil, err
	}
	below, err := net.NewEndpoint(i, cfg.endpoint())
	if err != nil {
		return nil, fmt.Errorf("am: open endpoint %d of %s: %w", i, net.Name(), err)
	}
	l := &Endpoint{}
	l.net, l.cfg, l.table, l.hash, l.flow, l.self = below, cfg, cfg.Table, uint32(cfg.Table.Hash()), senders, l
	l.pool, l.peers = pool, sparse.Make[atomic.Pointer[peer]](cfg.Size)
	l.acquirer = acquirer{from: &l.core, places: (3*cfg.Replies + 3) / 4, shares: max(1, cfg.Sends/4), prepares: cfg.Prepares}
	l.mu.Init(lockrank.Pool, 0)
	if slow := senders.Slowest(); cfg.SilentAfter > 0 && l.forgotten() < 2*slow {
		l.cfg.SilentAfter = 8 * slow // else a question would be forgotten before the next
	}
	if cfg.AttendAfter > 0 {
		l.attendant = l.newWaiter()
		cfg.Host.Go("attendant", l.attend)
	}
	return l, nil
}

// Rank is this rank.
func (l *Endpoint) Rank() int { return l.cfg.Rank }

// Size is the number of ranks.
func (l *Endpoint) Size() int { return l.cfg.Size }

// MaxMedium is the largest payload of a Medium message in bytes.
func (l *Endpoint) MaxMedium() int { return l.cfg.MaxMedium }

// PeerDown tells the endpoint that a rank is dead, as another part of the program found out: its
// calls end at the next poll, which this brings about. It may be called with any lock held, and by
// the network.
func (l *Endpoint) PeerDown(rank int, cause error) { l.peerDown(rank, cause) }

// Test makes progress once, unless another goroutine does, and reports whether a handler ran. It
// does not wait. Errors: ErrInHandler, ErrClosed, or what made the network fail.
func (l *Endpoint) Test() (bool, error) {
	if err := l.mayUse("test"); err != nil {
		return false, err
	}
	lockrank.MustHoldNone("poll an endpoint")
	if !l.tryLead() {
		if l.closing.Load() {
			return false, l.ended()
		}
		return false, nil // another goroutine does
	}
	b := l.leaderBatch()
	l.round(b, 0, 0)
	b = l.leaveWith(b)
	some := b != nil // after run it is another goroutine's
	l.run(b)
	l.handOver()
	return some, l.ended()
}

// Serve makes progress until ctx ends, whose cause it returns, or the endpoint is closed. A rank
// that does nothing but serve others calls it.
func (l *Endpoint) Serve(ctx context.Context) error {
	if err := l.mayUse("serve"); err != nil {
		return err
	}
	w := l.waiter()
	defer l.recycle(w)
	for {
		if err := l.await(ctx, w); err != nil {
			return err
		}
	}
}

// ParkerAt returns a Parker whose Park makes progress of an endpoint meanwhile, as Serve does.
func ParkerAt(l *Endpoint) Parker { return servingParker{l, l.waiter()} }

type servingParker struct {
	l *Endpoint
	w *waiter
}

func (p servingParker) Park(ctx context.Context) error { return p.l.await(ctx, p.w) }
func (p servingParker) Unpark()                        { p.w.unpark() }

// Poke has a goroutine that sleeps in the network look at once.
func (l *Endpoint) Poke() { l.net.Wake() }

// Close ends the endpoint. Everything pending gets ErrClosed. Its error wraps an *InFlightError if
// that was something, which is for the caller to judge: an endpoint is closed in good order as
// Quiesce says. With handlers that do not end, or memory lent by Prepare, it wraps ErrBusy after
// Config.CloseAfter, and the network's endpoint stays open: call it again. The Close that succeeds
// tells what else was in flight; one after that is nil.
func (l *Endpoint) Close() error {
	if err := l.mayUse("close"); err != nil {
		return err
	}
	lockrank.MustHoldNone("close")
	l.shut(ErrClosed)
	l.eachPeer(func(*peer) {}) // messages that are being handed to the network, whose memory ends with it, come first
	const step = time.Millisecond
	for waited := time.Duration(0); !l.takeLast(); waited += step {
		if l.closed.Load() {
			return nil
		}
		if waited >= l.cfg.CloseAfter {
			l.mu.Lock()
			l.rest.Handlers = 0 // of them this error tells
			l.mu.Unlock()
			return fmt.Errorf("%w, after %v: %s", ErrBusy, waited, l.users())
		}
		l.net.Wake()
		l.cfg.Host.Sleep(step)
	}
	l.closed.Store(true)
	err := l.net.Close()
	l.mu.Lock()
	rest := l.rest
	l.mu.Unlock()
	if rest != (InFlightError{}) {
		rest.Op = "close"
		return errors.Join(err, &rest)
	}
	return err
}

// takeLast takes the lead for good, if the endpoint is not in use any more. Nothing arrives while
// it looks.
func (l *Endpoint) takeLast() bool {
	if l.attendant != nil && !l.gone.Load() || l.waiting.Load() > 0 || l.prepared() > 0 || !l.tryLead() {
		return false
	}
	l.mu.Lock()
	still := l.handlingLocked() == 0 && l.lent == 0 && l.telling+l.copying == 0
	l.mu.Unlock()
	if still {
		return true
	}
	l.leave()
	return false
}

// users says what keeps an endpoint from being closed.
func (l *Endpoint) users() string {
	l.mu.Lock()
	running := l.handlingLocked()
	l.mu.Unlock()
	s := fmt.Sprintf("%d handlers run or are yet to run, %d messages are prepared", running, l.prepared())
	if n := l.waiting.Load(); n > 0 {
		s += fmt.Sprintf(", %d goroutines wait", n)
	}
	if n := l.receiving(); n > 0 {
		s += fmt.Sprintf(", %d functions of receivers run", n)
	}
	if l.attendant != nil && !l.gone.Load() {
		s += ", the attendant has not ended"
	}
	if l.lead.Load() {
		s += ", a goroutine polls"
	}
	return s
}

// prepared counts the send buffers in the program's hands.
func (l *Endpoint) prepared() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acquirer.prepared
}

// receiving counts the functions of receivers, and those of Call.Go, that run or are to.
func (l *Endpoint) receiving() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.telling
}
