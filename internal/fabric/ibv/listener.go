//go:build linux && cgo

package ibv

import (
	"errors"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
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
	if c.Keepalive == 0 {
		c.Keepalive = defaultKeepalive
	}
	c.Keepalive = min(c.Keepalive, 1<<59) // 18 years: sums of times do not overflow
}

// listener is a queue pair for datagrams, with a number that peers get in Connect: the connector's,
// or an endpoint's before it is opened. It has no buffers then: datagrams that come are lost, and
// repeated by its sender.
type listener struct {
	channel *verbs.CompChannel
	cq      *verbs.CQ
	qp      *verbs.QP
	err     error // why the endpoint cannot be opened
	opened  bool
}

func (l *listener) make(n *Network, entries int) (err error) {
	here, err := verbs.ComputePath(n.path, n.path)
	if err != nil {
		return err
	}
	if l.channel, err = n.dev.CreateCompChannel(); err != nil {
		return err
	}
	if l.cq, err = n.dev.CreateCQ(verbs.CQConfig{Entries: min(entries, n.dev.Attr().MaxCQE),
		Channel: l.channel}); err != nil {
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

// MessageLimits are the limits of the device and the format of datagrams.
func (n *Network) MessageLimits() fabric.MessageLimits {
	a := n.dev.Attr()
	return fabric.MessageLimits{
		MaxMessage: int(min(n.port.MaxMsgSize, 1<<20)),
		MaxNote:    maxNote,
		MaxSlots:   min(a.MaxSRQWR, a.MaxCQE/2),
		Endpoints:  n.cfg.Messages.Endpoints,
	}
}
