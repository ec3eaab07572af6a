//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/segment"
	"github.com/ibconduit/conduit/verbs"
)

// Config says how a rank attaches to a device.
type Config struct {
	Rank, Size int
	// Segment is registered at once and must stay mapped until Close.
	Segment *segment.Mapping
	// Device is the verbs device; empty: the best with an active port,
	// hardware before software.
	Device string
	// Port is numbered from 1; 0: the first active one.
	Port int
	// GIDIndex is an index of the GID table; negative: chosen, see verbs.ChooseGID.
	GIDIndex int
	// Lanes is how many lanes can be open at a time; the same on all ranks.
	// Default: 2.
	Lanes int
	// Depth is how many work requests a lane keeps in flight to one peer.
	// Default: 128.
	Depth int
	// Eager is to how many peers, the nearest by rank, each lane connects in Connect; to another it
	// connects with the first operation, which waits for that. The same on all ranks. Range to
	// 65535; default: 64. Negative: none, but the rank itself.
	Eager int
	// Connections is how many connections a lane keeps besides those: for one more it closes the one
	// not used for longest, once nothing is in flight on it. Default: 512; negative: no limit.
	Connections int
	// ConnectTimeout is how long a peer may leave the making of a connection unanswered, or the
	// closing of an endpoint's, before it is taken for dead. For endpoints it includes the time
	// until the peer opens its own. Default: 1 minute.
	ConnectTimeout time.Duration
	// ZeroCopyMin is from how many bytes on a put or get of memory outside the segment goes
	// directly from or to that memory, registered for it, instead of through the lane's slab.
	// Default: a measured crossover, which depends on whether registrations can be kept (see
	// tuning.go). Negative: never.
	ZeroCopyMin int64
	// Origin says where such memory comes from; see package regcache. Default: anywhere.
	Origin regcache.Origin
	// Sharing is the job's knowledge of processes that share the processors. Default: of the network's
	// own.
	Sharing *spin.Sharing
	// OnDown is called once for each peer that the device finds down before PeerDown is called for
	// it, from any goroutine that uses a lane or an endpoint. May be nil.
	OnDown func(rank int, cause error)
	// Log may be nil.
	Log *slog.Logger

	// Messages says how endpoints connect. The same on all ranks.
	Messages MessageConfig

	// For tests: codes of the retransmission timeout and of the retries; 0: verbs' defaults.
	timeout, retries uint8
	// For tests: the datagrams sent in the place of one of connection making.
	mangle func(datagram) []datagram
}

// Network is a rank's attachment to a device.
type Network struct {
	cfg     Config
	log     *slog.Logger
	dev     *verbs.Context
	pd      *verbs.PD
	mr      *verbs.MR
	port    verbs.PortAttr
	self    address
	path    verbs.PathEnd
	limits  fabric.Limits
	inline  int
	atomics bool // the device has them
	piece   int  // bytes of the largest work request

	mem      localMemory
	memories map[*fabric.Memory]*verbs.MR // that owners registered

	near  neighbors
	peers []remote // by rank, from Connect on

	deaths fabric.Deaths

	connector    connector
	listeners    []listener // by endpoint
	qkey         uint32     // of this rank's datagrams
	endpointQPNs []uint32   // of datagram queue pairs, by rank and endpoint

	endpointsMu sync.Mutex
	endpoints   []*endpoint // open ones

	mu     sync.Mutex
	all    []*queueSet
	free   []*queueSet
	open   int
	lost   int // queue sets that are of no more use
	closed bool
}

var (
	_ fabric.Messenger = (*Network)(nil)
	_ fabric.Peers     = (*Network)(nil)
)

// New opens the device and registers the segment.
func New(cfg Config) (*Network, error) {
	if cfg.Sharing == nil {
		cfg.Sharing = new(spin.Sharing)
	}
	n := &Network{cfg: cfg, log: cfg.Log}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if err := n.init(); err != nil {
		return nil, errors.Join(fmt.Errorf("ibv: %w", err), n.release())
	}
	return n, nil
}

func (n *Network) init() (err error) {
	if n.cfg.Lanes <= 0 {
		n.cfg.Lanes = defaultLanes
	}
	n.cfg.Lanes = min(n.cfg.Lanes, maxLanes)
	if n.cfg.Eager == 0 {
		n.cfg.Eager = defaultEager
	}
	n.cfg.Eager = min(max(n.cfg.Eager, 0), maxEager)
	if n.cfg.Connections == 0 {
		n.cfg.Connections = defaultConnections
	}
	if n.cfg.ConnectTimeout <= 0 {
		n.cfg.ConnectTimeout = defaultConnectTimeout
	}
	n.near = newNeighbors(n.cfg.Size, n.cfg.Eager)
	n.cfg.Messages.fill()
	if n.cfg.Depth <= 0 {
		n.cfg.Depth = defaultDepth
	}
	choice, err := n.openDevice()
	if err != nil {
		return err
	}
	attr := n.dev.Attr()
	n.atomics = attr.AtomicCap != verbs.AtomicNone
	n.cfg.Depth = min(n.cfg.Depth, maxDepth, attr.MaxQPWR)
	if n.pd, err = n.dev.AllocPD(); err != nil {
		return err
	}
	mem := n.cfg.Segment.Bytes()
	n.mr, err = n.pd.Register(unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem)),
		verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|n.atomicAccess())
	if err != nil {
		return err
	}
	n.mem.pd, n.mem.log, n.mem.origin, n.mem.asked = n.pd, n.log, n.cfg.Origin, n.cfg.ZeroCopyMin
	n.mem.base, n.mem.size, n.mem.lkey = n.mr.Addr(), n.mr.Len(), n.mr.LKey()
	if err := n.mem.openCache(); err != nil {
		return err
	}
	pkeys, err := n.dev.PKeys(n.port.Port)
	if err != nil {
		return err
	}
	n.path = verbs.NewPathEnd(n.port, choice, pkeys)
	n.self = address{
		end:        n.path,
		readAtomic: uint8(min(attr.MaxQPReadAtomic, verbs.DefaultReadAtomic)),
		lanes:      n.cfg.Lanes,
		eager:      n.cfg.Eager,
		psn:        rand.Uint32() & psnMask,
		base:       n.mr.Addr(),
		size:       n.mr.Len(),
		rkey:       n.mr.RKey(),
	}
	n.piece = min(maxPiece, int(min(n.port.MaxMsgSize, 1<<30)))
	if n.piece == 0 {
		n.piece = maxPiece
	}
	n.limits = fabric.Limits{
		CopyMax:    copyMax,
		Depth:      n.cfg.Depth,
		Lanes:      n.cfg.Lanes,
		CPUAtomics: attr.AtomicCap == verbs.AtomicGlob,
	}
	n.log.Info("ibv: device opened", "device", n.dev.Name(), "port", n.port.Port, "link", n.port.LinkLayer,
		"mtu", n.port.ActiveMTU, "gid", choice.Explain())
	return nil
}

// openDevice opens the wanted device, or the best, and settles on a port and
// a GID of it.
func (n *Network) openDevice() (verbs.GIDChoice, error) {
	names := []string{n.cfg.Device}
	if n.cfg.Device == "" {
		infos, err := verbs.Devices()
		if err != nil {
			return verbs.GIDChoice{}, err
		}
		names = ranked(infos)
		if len(names) == 0 {
			_, err := verbs.Open("") // its error says what to do
			return verbs.GIDChoice{}, err
		}
	}
	var errs []error
	for _, name := range names {
		choice, err := n.tryDevice(name)
		if err == nil {
			return choice, nil
		}
		errs = append(errs, err)
	}
	return verbs.GIDChoice{}, errors.Join(errs...)
}

func (n *Network) tryDevice(name string) (verbs.GIDChoice, error) {
	dev, err := verbs.Open(name)
	if err != nil {
		return verbs.GIDChoice{}, err
	}
	ports := []int{n.cfg.Port}
	if n.cfg.Port == 0 {
		ports = ports[:0]
		for p := range dev.Attr().Ports {
			ports = append(ports, p+1)
		}
	}
	var errs []error
	for _, p := range ports {
		port, choice, err := choosePort(dev, p, n.cfg.GIDIndex)
		if err == nil {
			n.dev, n.port = dev, port
			return choice, nil
		}
		errs = append(errs, fmt.Errorf("device %s port %d: %w", name, p, err))
	}
	return verbs.GIDChoice{}, errors.Join(append(errs, dev.Close())...)
}

func choosePort(dev *verbs.Context, port, gid int) (verbs.PortAttr, verbs.GIDChoice, error) {
	attr, err := dev.Port(port)
	if err != nil {
		return attr, verbs.GIDChoice{}, err
	}
	gids, err := dev.GIDs(port)
	if err != nil {
		return attr, verbs.GIDChoice{}, err
	}
	choice, err := verbs.ChooseGID(attr, gids, max(gid, verbs.AutoGID))
	return attr, choice, err
}

// Name is "ibv".
func (n *Network) Name() string { return "ibv" }

// Device is the name of the verbs device.
func (n *Network) Device() string { return n.dev.Name() }

// Port is the device's port, from 1.
func (n *Network) Port() int { return n.port.Port }

// Addr is the address in the format that the package comment gives.
func (n *Network) Addr() []byte { return n.self.encode() }

// Limits are fixed when the device is opened.
func (n *Network) Limits() fabric.Limits { return n.limits }

// Reach reports whether there is a path to the port of the rank.
func (n *Network) Reach(rank int, addr []byte) error {
	if rank < 0 || rank >= n.cfg.Size {
		return fmt.Errorf("%w: %w", &fabric.RankError{Op: "ibv: reach", Rank: rank, Size: n.cfg.Size}, fabric.ErrUnreachable)
	}
	a, err := decodeAddress(addr)
	if err != nil {
		return fmt.Errorf("ibv: address of rank %d: %w: %w", rank, err, fabric.ErrUnreachable)
	}
	if a.lanes != n.cfg.Lanes {
		return fmt.Errorf("ibv: rank %d has %d lanes, this rank %d; they must be equal: %w",
			rank, a.lanes, n.cfg.Lanes, fabric.ErrUnreachable)
	}
	if a.eager != n.cfg.Eager {
		return fmt.Errorf("ibv: rank %d connects to %d peers at start, this rank to %d; "+
			"they must be equal (Config.EagerPeers, IBCONDUIT_EAGER_PEERS): %w",
			rank, a.eager, n.cfg.Eager, fabric.ErrUnreachable)
	}
	if _, err := verbs.ComputePath(n.path, a.end); err != nil {
		return fmt.Errorf("ibv: rank %d: %w: %w", rank, err, fabric.ErrUnreachable)
	}
	return nil
}

// NewLane returns a lane on a free queue set. If that has work in flight of the lane before, it
// waits for it a while.
func (n *Network) NewLane() (fabric.Lane, error) {
	e, err := n.take()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainFor)
	defer cancel()
	if err := e.drain(ctx); err != nil {
		n.giveBack(e)
		return nil, fmt.Errorf("ibv: %w: the device still tries what closed lanes left, "+
			"for up to half a minute when a peer is silent: %w", fabric.ErrNoLane, err)
	}
	if e.lost != nil {
		n.giveBack(e)
		return n.NewLane()
	}
	if err := e.prepare(); err != nil {
		n.giveBack(e)
		return nil, err
	}
	return &lane{set: e, counters: e.counters}, nil
}

// take takes the free queue set that has least in flight.
func (n *Network) take() (*queueSet, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return nil, errClosed("new lane")
	case len(n.free) == 0 && n.lost > 0:
		return nil, fmt.Errorf("ibv: %w: of %d, %d are lost since their completion queues could not be read",
			fabric.ErrNoLane, len(n.all), n.lost)
	case len(n.free) == 0:
		return nil, fmt.Errorf("ibv: %w: all are in use; close one, or raise the number at start (Config.Workers, "+
			"IBCONDUIT_WORKERS)", fabric.ErrNoLane)
	}
	best := 0
	for i, e := range n.free {
		if e.tx.out < n.free[best].tx.out {
			best = i
		}
	}
	e := n.free[best]
	n.free = slices.Delete(n.free, best, best+1)
	n.open++
	return e, nil
}

func (n *Network) giveBack(e *queueSet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.lost == nil {
		n.free = append(n.free, e)
	} else {
		n.lost++
	}
	n.open--
}

// Close closes everything. It fails with fabric.ErrBusy while lanes or endpoints are open.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	if endpoints := n.openEndpoints(); n.open+endpoints > 0 {
		return fmt.Errorf("ibv: close: %w: %d lanes and %d endpoints are open", fabric.ErrBusy, n.open, endpoints)
	}
	n.closed = true
	return n.release()
}

// release closes children before parents, whatever init and Connect reached.
func (n *Network) release() error {
	errs := []error{n.connector.close()}
	for _, e := range n.all {
		errs = append(errs, e.release())
	}
	n.all, n.free = nil, nil
	for m, mr := range n.memories {
		m.Revoke()
		errs = append(errs, mr.Close())
	}
	n.memories = nil
	for i := range n.listeners {
		errs = append(errs, n.listeners[i].release())
	}
	return errors.Join(append(errs, n.mem.closeCache(), closed(n.mr), closed(n.pd), closed(n.dev))...)
}

func (n *Network) openEndpoints() int {
	n.endpointsMu.Lock()
	defer n.endpointsMu.Unlock()
	return len(n.endpoints)
}
