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

// MessageConfig says how endpoints connect.
type MessageConfig struct {
	// Endpoints is how many endpoints a rank can open; the same on all ranks. Default: 1. Negative:
	// none, and nothing is made for them.
	Endpoints int
	// Connections is above how many connections an endpoint closes idle ones, those that were not
	// used for longest first. It is exceeded while all are in use. Default, 0: never.
	Connections int
	// Eager makes an endpoint connect to all ranks when it is opened rather than when there is
	// something to send.
	Eager bool
	// ConnectTimeout is how long a peer may leave the making, or the closing, of a connection
	// unanswered before it is taken for dead. It includes the time until the peer opens its
	// endpoint. Default: 1 minute.
	ConnectTimeout time.Duration
	// Keepalive is after how long an idle connection is probed, so that a peer's death is noticed
	// without traffic: that takes as long again as the device's retries. Default: 5 seconds;
	// negative: never.
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

// listener is what an endpoint needs before it is opened: the queue pair for datagrams, whose
// number the peers get in Connect. It has no buffers then: what comes is lost, and repeated by its
// sender.
type listener struct {
	channel *verbs.CompChannel
	cq      *verbs.CQ
	qp      *verbs.QP
	err     error // why the endpoint cannot be opened
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
			l.err = fmt.Errorf("ibv: endpoint %d: %w", i, err)
			n.log.Warn("ibv: no messages", "endpoint", i, "err", err)
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
	err := errors.Join(closed(l.qp), closed(l.cq), closed(l.channel))
	l.qp, l.cq, l.channel = nil, nil, nil
	return err
}

// endpointTable is what this rank publishes of its endpoints.
func (n *Network) endpointTable() *endpointTable {
	t := &endpointTable{qkey: n.qkey}
	for i := range n.listeners {
		qpn := uint32(0)
		if n.listeners[i].qp != nil {
			qpn = n.listeners[i].qp.Num()
		}
		t.qpns = append(t.qpns, qpn)
	}
	return t
}

// readEndpointTables reads what the others publish.
func (n *Network) readEndpointTables(tables [][]byte) error {
	endpoints := n.cfg.Messages.Endpoints
	n.qkeys, n.endpointQPNs = make([]uint32, n.cfg.Size), make([]uint32, n.cfg.Size*endpoints)
	for rank, b := range tables {
		if n.peers[rank].lanes == 0 {
			continue
		}
		t, err := decodeEndpointTable(b, len(n.all), n.cfg.Size, endpoints)
		if err != nil {
			return fmt.Errorf("rank %d: %w (the numbers of lanes and of endpoints must be equal)", rank, err)
		}
		n.qkeys[rank] = t.qkey
		copy(n.endpointQPNs[rank*endpoints:], t.qpns)
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

// wakeEndpoints ends their waits, so that they see which ranks are down.
func (n *Network) wakeEndpoints() {
	n.endpointsMu.Lock()
	defer n.endpointsMu.Unlock()
	for _, p := range n.endpoints {
		p.Wake()
	}
}

func (n *Network) openEndpoints() int {
	n.endpointsMu.Lock()
	defer n.endpointsMu.Unlock()
	return len(n.endpoints)
}
