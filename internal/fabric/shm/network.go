package shm

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/segment"
)

// Config is what a rank attaches.
type Config struct {
	Rank int // 0 <= Rank < Size
	Size int // ranks in the job, all networks together

	// Segment is this rank's segment, if it is mapped already; else SetSegment brings it.
	Segment *segment.Mapping

	// Job is the job's id, equal on all ranks. Ranks of different jobs do not
	// reach each other.
	Job string

	// Sharing is the job's knowledge of processes that share the processors. nil: of the network's
	// own.
	Sharing *spin.Sharing

	// OnDown, if not nil, is called once for each rank that died, from another
	// goroutine. It may call the Network, but not wait for Close.
	OnDown func(rank int, cause error)

	// OnLeft, if not nil, is called once for each rank that left in order, as OnDown is.
	OnLeft func(rank int)
}

// Network is one rank's attachment to the memory of the others. It implements
// fabric.Network.
type Network struct {
	cfg     Config
	self    addr
	targets []target // by rank; what lanes use
	peers   []peer   // by rank; the rest

	mu       sync.Mutex
	state    state
	lanes    int
	counters []*fabric.Counters // of closed lanes, for the next ones
	release  []func()           // gives all counters back
	listener *net.UnixListener

	deaths fabric.Deaths

	endpointMu sync.Mutex
	endpoints  [maxEndpoints]*endpoint   // by number; those that were opened, open or not
	early      [maxEndpoints][]handshake // requests to those that are not open yet
	open       int                       // endpoints; with mu

	start    time.Time
	closing  atomic.Bool
	watchers sync.WaitGroup
	tracked  *handle.Handle
}

type state int

const (
	fresh state = iota
	joining
	joined
	failed
	closed
)

var _ fabric.Peers = (*Network)(nil)

// New prepares a rank to be joined by its peers.
func New(cfg Config) (*Network, error) {
	switch {
	case cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size || cfg.Size > math.MaxInt32:
		return nil, fmt.Errorf("shm: no rank %d in a job of %d", cfg.Rank, cfg.Size)
	}
	n := &Network{cfg: cfg, targets: make([]target, cfg.Size), peers: make([]peer, cfg.Size), start: time.Now()}
	if cfg.Segment != nil {
		if err := n.SetSegment(cfg.Segment); err != nil {
			return nil, err
		}
	}
	where, err := here()
	if err != nil {
		return nil, err
	}
	job := sha256.Sum256([]byte(cfg.Job))
	n.self = addr{rank: uint32(cfg.Rank), pid: uint32(os.Getpid()), place: where, job: id(job[:16])}
	rand.Read(n.self.name[:]) // never fails, crypto/rand
	rand.Read(n.self.cookie[:])
	n.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: n.self.socket(), Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("shm: listening for the peers: %w", err)
	}
	n.tracked = handle.New(n, "shm network", fmt.Sprintf("of rank %d", cfg.Rank))
	return n, nil
}

// SetSegment says which is this rank's segment, before Connect: which ranks reach each other does
// not depend on it. It stays the caller's and must outlive the Network. It must be a shared mapping
// unless the job has one rank.
func (n *Network) SetSegment(m *segment.Mapping) error {
	if m.FD() < 0 && n.cfg.Size > 1 {
		return errors.New("shm: the segment is private memory; map it with segment.Config.Shared")
	}
	n.cfg.Segment = m
	return nil
}

// Name is "shm".
func (n *Network) Name() string { return "shm" }

// Addr is this rank's address. It holds a secret: a process of the same user on this host that
// has it can join in the name of a rank.
func (n *Network) Addr() []byte { return n.self.encode() }

// Connect maps the peers' segments. It ends with ctx, and without a deadline
// after joinTimeout. It does not use exchange, which may be nil. After an error
// the Network can only be closed.
func (n *Network) Connect(ctx context.Context, addrs [][]byte, _ fabric.Exchange) error {
	known, err := n.decodeAll(addrs)
	if err != nil {
		return err
	}
	if n.cfg.Segment == nil {
		return errors.New("shm: Connect without a segment: give one to New or SetSegment")
	}
	n.mu.Lock()
	if n.state != fresh {
		n.mu.Unlock()
		return errors.New("shm: Connect was called before, or after Close")
	}
	n.state = joining
	n.mu.Unlock()

	if err = n.join(ctx, known); err != nil {
		// No leave packet: to ranks that got further this rank has failed.
		err = errors.Join(err, n.leave(false))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.state = failed
		return err
	}
	n.state = joined
	if n.cfg.Sharing == nil {
		n.cfg.Sharing = new(spin.Sharing)
	}
	for r := range known {
		if known[r] != nil {
			n.attach(r)
		}
	}
	return nil
}

// decodeAll returns the addresses of the ranks that this network serves; the
// others stay nil.
func (n *Network) decodeAll(addrs [][]byte) ([]*addr, error) {
	if len(addrs) != n.cfg.Size {
		return nil, fmt.Errorf("shm: %d addresses for %d ranks", len(addrs), n.cfg.Size)
	}
	known := make([]*addr, n.cfg.Size)
	for r, b := range addrs {
		if b == nil {
			continue
		}
		a, err := n.peerAddr(r, b)
		if err != nil {
			return nil, err
		}
		if r == n.cfg.Rank && a != n.self {
			return nil, fmt.Errorf("shm: the address of this rank %d came back changed", r)
		}
		known[r] = &a
	}
	return known, nil
}

// attach opens a rank to the lanes and begins to watch it.
func (n *Network) attach(rank int) {
	t, p := &n.targets[rank], &n.peers[rank]
	mem := n.cfg.Segment.Bytes()
	if rank != n.cfg.Rank {
		mem = p.mapping.Bytes()
		p.raw, _ = p.conn.SyscallConn() // fails only for no connection at all
	}
	t.base, t.size = unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem))
	if !t.state.CompareAndSwap(absent, up) {
		return // PeerDown was faster
	}
	if rank != n.cfg.Rank {
		n.watchers.Go(func() { n.watch(rank) })
	}
}

// Close leaves the peers and unmaps their segments. It sends one packet to each and waits for
// none.
func (n *Network) Close() error {
	if first, err := n.shut(); err != nil || !first {
		return err
	}
	err := n.leave(true)
	for _, f := range n.release {
		f()
	}
	n.release, n.counters = nil, nil
	n.tracked.Close()
	return err
}

// shut makes the Network closed, unless it is in use; first is false when it was
// closed already.
func (n *Network) shut() (first bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.state == closed:
		return false, nil
	case n.state == joining:
		return false, fmt.Errorf("shm: Close during Connect: %w; cancel its context first", fabric.ErrBusy)
	case n.lanes > 0 || n.open > 0:
		return false, fmt.Errorf("shm: Close with %d open lanes and %d open endpoints: %w", n.lanes, n.open, fabric.ErrBusy)
	}
	n.state = closed
	return true, nil
}

// leave undoes New and Connect. It waits for watchers, which may be in OnDown,
// hence holds no lock.
func (n *Network) leave(inOrder bool) error {
	n.closing.Store(true)
	var errs []error
	if err := n.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	for r := range n.peers {
		if c := n.peers[r].conn; c != nil {
			if inOrder {
				sendLeave(c)
			}
			_ = c.Close()
		}
	}
	n.watchers.Wait()
	for i := range n.early {
		for _, h := range n.early[i] {
			h.drop()
		}
		n.early[i] = nil
	}
	for r := range n.peers {
		n.targets[r].state.Store(absent)
		if m := n.peers[r].mapping; m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
