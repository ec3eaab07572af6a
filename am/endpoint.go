package am

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/sparse"
)

// Endpoint sends and receives the active messages of one endpoint of a network. Any number of
// goroutines may use it.
type Endpoint struct {
	core     core
	emitter  emitter
	replier  replier
	inbox    inbox
	progress progress
}

// Open opens endpoint i of a network for active messages. Its peers open theirs with the same
// number. It connects to no peer.
func Open(net fabric.Messenger, i int, cfg Config) (*Endpoint, error) {
	if err := cfg.populate(); err != nil {
		return nil, err
	}
	if err := cfg.fits(net.MessageLimits()); err != nil {
		return nil, fmt.Errorf("am: open endpoint %d of %s: %w", i, net.Name(), err)
	}
	pool, err := credit.NewPool(credit.PoolConfig{Config: cfg.Flow, Peers: cfg.Size, Credits: cfg.Credits,
		Replies: cfg.Replies})
	if err != nil {
		return nil, err
	}
	senders, err := credit.NewSenderConfig(cfg.Flow, cfg.Credits)
	if err != nil {
		return nil, err
	}
	below, err := net.NewEndpoint(i, cfg.endpoint())
	if err != nil {
		return nil, fmt.Errorf("am: open endpoint %d of %s: %w", i, net.Name(), err)
	}
	l := &Endpoint{}
	c := &l.core
	l.emitter.core = c
	l.replier.core, l.replier.emitter = c, &l.emitter
	l.inbox.core, l.inbox.replier = c, &l.replier
	l.progress.core, l.progress.emitter, l.progress.replier, l.progress.inbox = c, &l.emitter, &l.replier, &l.inbox
	c.net, c.cfg, c.table, c.hash, c.flow, c.self = below, cfg, cfg.Table, uint32(cfg.Table.Hash()), senders, l
	c.pool, c.peers = pool, sparse.Make[atomic.Pointer[peer]](cfg.Size)
	c.acquirer = acquirer{from: stock{c}, places: (3*cfg.Replies + 3) / 4, shares: max(1, cfg.Sends/4),
		prepares: cfg.Prepares}
	c.mu.Init(lockrank.Pool, 0)
	if slow := senders.Slowest(); cfg.SilentAfter > 0 && l.emitter.forgotten() < 2*slow {
		c.cfg.SilentAfter = 8 * slow // else a question would be forgotten before the next
	}
	if cfg.AttendAfter > 0 {
		c.attendant = c.newWaiter()
		cfg.Host.Go("attendant", l.progress.attend)
	}
	return l, nil
}

// Rank is this rank.
func (l *Endpoint) Rank() int { return l.core.cfg.Rank }

// Size is the number of ranks.
func (l *Endpoint) Size() int { return l.core.cfg.Size }

// MaxMedium is the largest payload of a Medium message in bytes.
func (l *Endpoint) MaxMedium() int { return l.core.cfg.MaxMedium }

// PeerDown says that a rank is dead, as another part of the program found out: its
// calls end at the next poll, which this brings about. It may be called with any lock held, and by
// the network.
func (l *Endpoint) PeerDown(rank int, cause error) { l.core.peerDown(rank, cause) }

// Test makes progress once, unless another goroutine does, and reports whether a handler ran. It
// does not wait. Errors: ErrInHandler, ErrClosed, or what made the network fail.
func (l *Endpoint) Test() (bool, error) {
	if err := l.mayUse("test"); err != nil {
		return false, err
	}
	lockrank.MustHoldNone("poll an endpoint")
	if !l.progress.tryLead() {
		if l.core.closing.Load() {
			return false, l.core.ended()
		}
		return false, nil // another goroutine does
	}
	b := l.progress.leaderBatch()
	l.progress.round(b, 0, 0)
	b = l.progress.leaveWith(b)
	some := b != nil // after run it is another goroutine's
	l.inbox.run(b)
	l.progress.handOver()
	return some, l.core.ended()
}

// Serve makes progress until ctx ends, whose cause it returns, or the endpoint is closed. A rank
// that does nothing but serve others calls it.
func (l *Endpoint) Serve(ctx context.Context) error {
	if err := l.mayUse("serve"); err != nil {
		return err
	}
	w := l.progress.waiter()
	defer l.progress.recycle(w)
	for {
		if err := l.progress.await(ctx, w); err != nil {
			return err
		}
	}
}

// ParkerAt returns a Parker whose Park makes progress of an endpoint meanwhile, as Serve does.
func ParkerAt(l *Endpoint) Parker { return servingParker{l, l.progress.waiter()} }

type servingParker struct {
	l *Endpoint
	w *waiter
}

func (p servingParker) Park(ctx context.Context) error { return p.l.progress.await(ctx, p.w) }
func (p servingParker) Unpark()                        { p.w.unpark() }

// Poke has a goroutine that sleeps in the network look at once.
func (l *Endpoint) Poke() { l.core.net.Wake() }

// Close ends the endpoint. Everything pending gets ErrClosed. Its error wraps an *InFlightError if
// that was something, which is for the caller to judge: an endpoint is closed in good order as
// Quiesce says. With handlers that do not end, or memory lent by Prepare, it wraps ErrBusy after
// Config.CloseAfter, and the network's endpoint stays open: call it again. The Close that succeeds
// says what else was in flight; one after that is nil.
func (l *Endpoint) Close() error {
	if err := l.mayUse("close"); err != nil {
		return err
	}
	lockrank.MustHoldNone("close")
	l.core.shut(ErrClosed)
	l.core.eachPeer(func(*peer) {}) // messages that are being handed to the network, whose memory ends with it, come first
	const step = time.Millisecond
	for waited := time.Duration(0); !l.takeLast(); waited += step {
		if l.progress.closed.Load() {
			return nil
		}
		if waited >= l.core.cfg.CloseAfter {
			l.core.mu.Lock()
			l.core.rest.Handlers = 0 // of them this error tells
			l.core.mu.Unlock()
			return fmt.Errorf("%w, after %v: %s", ErrBusy, waited, l.users())
		}
		l.core.net.Wake()
		l.core.cfg.Host.Sleep(step)
	}
	l.progress.closed.Store(true)
	err := l.core.net.Close()
	l.core.mu.Lock()
	rest := l.core.rest
	l.core.mu.Unlock()
	if rest != (InFlightError{}) {
		rest.Op = "close"
		return errors.Join(err, &rest)
	}
	return err
}

// takeLast takes the lead for good, if the endpoint is not in use any more. Nothing arrives while
// it looks.
func (l *Endpoint) takeLast() bool {
	if l.core.attendant != nil && !l.progress.gone.Load() || l.progress.waiting.Load() > 0 || l.prepared() > 0 ||
		!l.progress.tryLead() {
		return false
	}
	l.core.mu.Lock()
	still := l.core.handlingLocked() == 0 && l.core.lent == 0 && l.core.functions+l.core.copying == 0
	l.core.mu.Unlock()
	if still {
		return true
	}
	l.progress.leave()
	return false
}

// users says what keeps an endpoint from being closed.
func (l *Endpoint) users() string {
	l.core.mu.Lock()
	running := l.core.handlingLocked()
	l.core.mu.Unlock()
	s := fmt.Sprintf("%d handlers run or are yet to run, %d messages are prepared", running, l.prepared())
	if n := l.progress.waiting.Load(); n > 0 {
		s += fmt.Sprintf(", %d goroutines wait", n)
	}
	if n := l.receiving(); n > 0 {
		s += fmt.Sprintf(", %d functions of receivers run", n)
	}
	if l.core.attendant != nil && !l.progress.gone.Load() {
		s += ", the attendant has not ended"
	}
	if l.progress.lead.Load() {
		s += ", a goroutine polls"
	}
	return s
}

// prepared counts the send buffers in the program's hands.
func (l *Endpoint) prepared() int {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	return l.core.acquirer.prepared
}

// receiving counts the functions of receivers, and those of Call.Go, that run or are to.
func (l *Endpoint) receiving() int {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	return l.core.functions
}
