package am

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/lockrank/errring"
	"github.com/ibconduit/conduit/internal/sparse"
)

// Endpoint sends and receives the active messages of one port. Any number of goroutines
// may use it.
type Endpoint struct {
	port  fabric.Endpoint
	cfg   Config
	table *Table
	hash  uint32 // of the table, on every message
	purse *flow.Config
	peers sparse.Array[atomic.Pointer[peer]] // by rank; nil: never heard of

	mu        lockrank.Mutex // Pool
	pool      *flow.Pool
	calls     calls
	waiting   list // for send buffers
	replyless list // for reply buffers
	parked    list
	asking    []*peer // whose credits Tick must look after
	late      []*letter
	owed      []*DeferredReply
	owedDue   time.Duration // the earliest deadline; 0: none
	pingDue   time.Duration // when those of whom replies are awaited are looked at; 0: there are none
	stallDue  time.Duration // when the watchdog looks at who is parked; 0: nobody is
	idle      []*waiter     // free ones
	batches   []*batch      // free ones
	active    []*batch      // those with several handlers that run
	end       error         // not nil: the lane is closed, or its port failed
	rest      InFlightError // what Close ended, for the one that succeeds to tell
	sealed    bool          // requests are refused
	mute      bool          // nobody is pinged
	lent      int           // receive buffers that handlers keep

	nextIdle  atomic.Pointer[waiter] // a free one that can be had without the lock
	nextBatch atomic.Pointer[batch]  // likewise

	engine   engine
	deaths   atomic.Pointer[death] // told by PeerDown
	prepared atomic.Int32          // send buffers in the program's hands
	stats    counters
	ring     errring.Ring
}

// peer is what a lane knows of one rank that it has heard of.
type peer struct {
	mu      lockrank.Mutex // Endpoint[rank]
	rank    int
	purse   *flow.Sender
	heard   bool // it has granted something
	asking  bool // is in Endpoint.asking
	down    error
	quiet   time.Duration // since when its questions have no answer; 0: there are none
	asked   time.Duration // the last of them
	full    bool          // the network's queue was
	fullAt  time.Duration // when that was seen last
	waiting list          // for credits, or room in the queue
	posts   list          // those of waiting whose messages want no reply
	late    int           // of Endpoint.late; under the lane's lock

	head head                      // of the message that is being sent
	owed bool                      // its header says what a control message would say otherwise
	text [headSize + argsSize]byte // of one without a payload
}

// Open opens port i of a network for active messages. Its peers open theirs with the
// same number. Nobody is connected by it.
func Open(net fabric.Messenger, i int, cfg Config) (*Endpoint, error) {
	if err := cfg.populate(); err != nil {
		return nil, err
	}
	if err := cfg.fits(net.MessageLimits()); err != nil {
		return nil, fmt.Errorf("am: open port %d of %s: %w", i, net.Name(), err)
	}
	pool, err := flow.NewPool(flow.PoolConfig{Config: cfg.Flow, Peers: cfg.Size, Credits: cfg.Credits, Replies: cfg.Replies})
	if err != nil {
		return nil, err
	}
	purse, err := flow.NewSenderConfig(cfg.Flow, cfg.Credits)
	if err != nil {
		return nil, err
	}
	port, err := net.NewEndpoint(i, cfg.port())
	if err != nil {
		return nil, fmt.Errorf("am: open port %d of %s: %w", i, net.Name(), err)
	}
	l := &Endpoint{port: port, cfg: cfg, table: cfg.Table, hash: uint32(cfg.Table.Hash()), purse: purse, pool: pool,
		peers: sparse.Make[atomic.Pointer[peer]](cfg.Size)}
	l.mu.Init(lockrank.Pool, 0)
	if slow := purse.Slowest(); cfg.SilentAfter > 0 && l.forgotten() < 2*slow {
		l.cfg.SilentAfter = 8 * slow // else a question would be forgotten before the next
	}
	l.engine.event, l.engine.patience = port.Now(), newPatience(cfg.SpinFor)
	if cfg.AttendAfter > 0 {
		l.engine.attendant = l.newWaiter()
		cfg.Host.Go("attendant", l.attend)
	}
	return l, nil
}

// peer returns what is known of a rank, from now on something.
func (l *Endpoint) peer(rank int) (*peer, error) {
	if at := l.peers.Find(rank); at != nil {
		if p := at.Load(); p != nil {
			return p, nil
		}
	}
	if rank < 0 || rank >= l.peers.Len() {
		return nil, &fabric.RankError{Op: "am", Rank: rank, Size: l.peers.Len()}
	}
	at, p := l.peers.At(rank), &peer{rank: rank, purse: flow.NewSender(rank, l.purse)}
	p.mu.Init(lockrank.Endpoint, rank)
	if !at.CompareAndSwap(nil, p) {
		p = at.Load()
	}
	return p, nil
}

// known is peer for a rank that the network names.
func (l *Endpoint) known(rank int) *peer {
	p, err := l.peer(rank)
	if err != nil {
		panic(fmt.Sprintf("am: an event of rank %d, which does not exist", rank)) // a mistake of the network
	}
	return p
}

// open begins the connection of credits, if it was not begun. The peer's lock is held.
func (l *Endpoint) open(p *peer, now time.Duration) error {
	if p.purse.Epoch() != 0 {
		return nil
	}
	if err := p.purse.Open(connection); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool.Open(p.rank, connection, now)
}

// waiter returns a free one.
func (l *Endpoint) waiter() *waiter {
	if w := l.nextIdle.Swap(nil); w != nil {
		return w
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := len(l.idle) - 1; k >= 0 {
		w := l.idle[k]
		l.idle = l.idle[:k]
		return w
	}
	return l.newWaiter()
}

func (l *Endpoint) newWaiter() *waiter { return &waiter{parker: l.cfg.Host.NewParker()} }

// recycle takes back a waiter that is in no list and no entry.
func (l *Endpoint) recycle(w *waiter) {
	w.state.Store(0)
	w.reply.reset()
	w.err, w.token, w.h, w.since, w.began = nil, 0, nil, 0, 0
	if l.nextIdle.CompareAndSwap(nil, w) {
		return
	}
	l.mu.Lock()
	l.idle = append(l.idle, w)
	l.mu.Unlock()
}

// report keeps an error for diagnostics.
func (l *Endpoint) report(rank int, err error) { l.ring.Add(l.port.Now(), rank, err) }

// Rank is this rank.
func (l *Endpoint) Rank() int { return l.cfg.Rank }

// Size is the number of ranks.
func (l *Endpoint) Size() int { return l.cfg.Size }

// MaxMedium is the largest payload of a Medium message in bytes.
func (l *Endpoint) MaxMedium() int { return l.cfg.MaxMedium }
