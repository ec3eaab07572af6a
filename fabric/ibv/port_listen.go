//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// MessageConfig says how ports connect.
type MessageConfig struct {
	// Endpoints is how many ports a rank can open; the same on all ranks. Default: 1. Negative: none, and nothing is
	// made for them.
	Endpoints int
	// Connections is above how many connections a port closes idle ones, those that were not used for
	// longest first. It is exceeded while all are in use. Default, 0: never.
	Connections int
	// Eager makes a port connect to all ranks when it is opened rather than when there is something to send.
	Eager bool
	// ConnectTimeout is how long a peer may leave the making, or the closing, of a connection unanswered before
	// it is taken for dead. It includes the time until the peer opens its port. Default: 1 minute.
	ConnectTimeout time.Duration
	// Keepalive is after how long an idle connection is tried, so that a peer's death is noticed without
	// traffic: that takes as long again as the device's retries. Default: 5 seconds; negative: never.
	Keepalive time.Duration
}

func (c *MessageConfig) fill() {
	if c.Endpoints == 0 {
		c.Endpoints = defaultEndpoints
	}
	c.Endpoints = min(max(c.Endpoints, 0), 1<<8)
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = defaultConnectTimeout
	}
	if c.Keepalive == 0 {
		c.Keepalive = defaultKeepalive
	}
	c.Keepalive = min(c.Keepalive, 1<<59) // 18 years: sums of times do not overflow
}

// listener is what a port needs before it is opened: the queue pair for
// datagrams, whose number the peers learn in Connect. It has no buffers then: what
// comes is lost, and repeated by who sent it.
type listener struct {
	channel *verbs.CompChannel
	cq      *verbs.CQ
	qp      *verbs.QP
	err     error // why the port cannot be opened
	opened  bool
}

// listen makes the listeners. A device that cannot is no reason not to connect the lanes.
func (n *Network) listen() {
	n.qkey = rand.Uint32() >> 1 // with the highest bit set it would be a privileged one (IBTA 1.4 vol. 1 §10.2.5)
	n.listeners = make([]listener, n.cfg.Messages.Endpoints)
	for i := range n.listeners {
		l := &n.listeners[i]
		if err := l.make(n); err != nil {
			_ = l.release()
			l.err = fmt.Errorf("ibv: port %d: %w", i, err)
			n.log.Warn("ibv: no messages", "port", i, "err", err)
		}
	}
}

func (l *listener) make(n *Network) (err error) {
	if n.dev.Attr().MaxSRQ == 0 {
		return fmt.Errorf("device %s has no shared receive queues: %w", n.dev.Name(), verbs.ErrNotSupported)
	}
	here, err := verbs.ComputePath(n.path, n.path)
	if err != nil {
		return err
	}
	if l.channel, err = n.dev.CreateCompChannel(); err != nil {
		return err
	}
	if l.cq, err = n.dev.CreateCQ(verbs.CQConfig{Entries: min(listenEntries, n.dev.Attr().MaxCQE), Channel: l.channel}); err != nil {
		return err
	}
	l.qp, err = n.pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: l.cq, MaxSendWR: dgramSends, MaxRecvWR: dgramRecvs})
	if err != nil {
		return err
	}
	if err = l.qp.Init(verbs.InitAttr{Port: n.port.Port, PKeyIndex: here.PKeyIndex, QKey: n.qkey}); err != nil {
		return err
	}
	if err = l.qp.ReadyToReceive(verbs.RTRAttr{}); err != nil {
		return err
	}
	return l.qp.ReadyToSend(verbs.RTSAttr{})
}

// release closes what there is.
func (l *listener) release() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	if l.cq != nil {
		errs = append(errs, l.cq.Close())
	}
	if l.channel != nil {
		errs = append(errs, l.channel.Close())
	}
	l.qp, l.cq, l.channel = nil, nil, nil
	return errors.Join(errs...)
}

// portTable is what this rank tells the others of its ports.
func (n *Network) portTable() *portTable {
	t := &portTable{qkey: n.qkey}
	for i := range n.listeners {
		qpn := uint32(0)
		if n.listeners[i].qp != nil {
			qpn = n.listeners[i].qp.Num()
		}
		t.qpns = append(t.qpns, qpn)
	}
	return t
}

// learnPorts reads what the others tell.
func (n *Network) learnPorts(tables [][]byte) error {
	ports := n.cfg.Messages.Endpoints
	n.qkeys, n.portQPNs = make([]uint32, n.cfg.Size), make([]uint32, n.cfg.Size*ports)
	for rank, b := range tables {
		if n.peers[rank].lanes == 0 {
			continue
		}
		t, err := decodePortTable(b, len(n.all), n.cfg.Size, ports)
		if err != nil {
			return fmt.Errorf("rank %d: %w (the numbers of lanes and of ports must be equal)", rank, err)
		}
		n.qkeys[rank] = t.qkey
		copy(n.portQPNs[rank*ports:], t.qpns)
	}
	return nil
}

// MessageLimits are what the device and the format of datagrams allow.
func (n *Network) MessageLimits() fabric.MessageLimits {
	a := n.dev.Attr()
	return fabric.MessageLimits{
		MaxMessage: int(min(n.port.MaxMsgSize, 1<<20)),
		MaxNote:    maxNote,
		MaxSlots:   min(a.MaxSRQWR, a.MaxCQE/2),
		Endpoints:  n.cfg.Messages.Endpoints,
	}
}

// wakePorts ends their waits, so that they see who is down.
func (n *Network) wakePorts() {
	n.portsMu.Lock()
	defer n.portsMu.Unlock()
	for _, p := range n.ports {
		p.Wake()
	}
}

func (n *Network) openPorts() int {
	n.portsMu.Lock()
	defer n.portsMu.Unlock()
	return len(n.ports)
}

// handles are the address handles of a port, one for each way to a peer's device.
type handles struct {
	pd    *verbs.PD
	byWay map[verbs.AddressVector]*handleOf
	clock uint64
}

type handleOf struct {
	ah   *verbs.AH
	uses int32 // datagrams that are not complete
	last uint64
}

// get returns the handle of a way, for one datagram; made if need be, in the place of the one not used for longest.
func (h *handles) get(av verbs.AddressVector) (*handleOf, error) {
	h.clock++
	if x := h.byWay[av]; x != nil {
		x.uses++
		x.last = h.clock
		return x, nil
	}
	if len(h.byWay) >= handlesMax {
		var oldest *handleOf
		var way verbs.AddressVector
		for w, x := range h.byWay {
			if x.uses == 0 && (oldest == nil || x.last < oldest.last) {
				oldest, way = x, w
			}
		}
		// There is one: fewer datagrams are on their way than handles are kept.
		if err := oldest.ah.Close(); err != nil {
			return nil, err
		}
		delete(h.byWay, way)
	}
	ah, err := h.pd.CreateAH(av)
	if err != nil {
		return nil, err
	}
	x := &handleOf{ah: ah, uses: 1, last: h.clock}
	h.byWay[av] = x
	return x, nil
}

func (h *handles) close() error {
	var errs []error
	for _, x := range h.byWay {
		errs = append(errs, x.ah.Close())
	}
	clear(h.byWay)
	return errors.Join(errs...)
}
