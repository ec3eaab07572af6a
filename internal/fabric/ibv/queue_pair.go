//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/ibconduit/conduit/verbs"
)

// newQueue is a send queue to the rank, without a queue pair.
func (p *remote) newQueue(rank int) *sendQueue {
	return &sendQueue{rank: int32(rank), base: p.base, rkey: p.rkey, size: p.size}
}

// createQP requests the wanted inline capacity, and less where the
// device cannot.
func (n *Network) createQP(cq *verbs.CQ) (*verbs.QP, error) {
	wish := inlineWish
	if n.inline > 0 {
		wish = n.inline
	}
	for {
		qp, err := n.newQP(cq, n.cfg.Depth, wish)
		if err == nil {
			n.inline = min(wish, qp.Caps().MaxInline)
			return qp, nil
		}
		if wish == 0 {
			return nil, err
		}
		wish /= 2
		if wish < 16 {
			wish = 0
		}
	}
}

// newQP makes a queue pair of a lane, or the peer's end of one.
func (n *Network) newQP(cq *verbs.CQ, depth, inline int) (*verbs.QP, error) {
	qp, err := n.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, MaxSendWR: depth, MaxRecvWR: 1, MaxInline: inline})
	if err != nil {
		return nil, err
	}
	if err := qp.Init(verbs.InitAttr{Port: n.port.Port,
		Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | n.atomicAccess()}); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	return qp, nil
}

// establishLane brings either end of a lane's connection into the state in which it sends, to a
// queue pair that sends from packet number psn on; its own packets begin with own.
func (n *Network) establishLane(qp *verbs.QP, rank int, qpn, psn, own uint32) error {
	peer := &n.peers[rank]
	initiate := min(n.dev.Attr().MaxQPInitReadAtomic, int(peer.readAtomic), verbs.DefaultReadAtomic)
	return n.establish(qp, peer.end(), verbs.RTRAttr{DestQPN: qpn, RQPSN: psn, MaxDestRdAtomic: n.self.readAtomic},
		verbs.RTSAttr{SQPSN: own, MaxReadAtomic: uint8(max(initiate, 1))})
}

// establish brings a queue pair to a peer into the state in which it sends.
func (n *Network) establish(qp *verbs.QP, peer verbs.PathEnd, r verbs.RTRAttr, s verbs.RTSAttr) error {
	path, err := verbs.ComputePath(n.path, peer)
	if err != nil {
		return err
	}
	if path.PKeyIndex != 0 { // set at INIT to the first, which most fabrics have only
		if err := qp.Modify(verbs.QPAttr{State: verbs.StateInit, PKeyIndex: path.PKeyIndex},
			verbs.AttrState|verbs.AttrPKeyIndex); err != nil {
			return err
		}
	}
	r.AV, r.PathMTU = path.AV, path.MTU
	if err := qp.ReadyToReceive(r); err != nil {
		return err
	}
	s.Timeout, s.RetryCount = n.cfg.timeout, n.cfg.retries
	return qp.ReadyToSend(s)
}

func (n *Network) atomicAccess() verbs.Access {
	if n.dev.Attr().AtomicCap == verbs.AtomicNone {
		return 0
	}
	return verbs.AccessRemoteAtomic
}

func errClosed(op string) error {
	return fmt.Errorf("ibv: %s on something closed: %w", op, os.ErrClosed)
}

// closed closes c if it was made: not a nil pointer.
func closed[T interface {
	comparable
	Close() error
}](x T) error {
	var none T
	if x == none {
		return nil
	}
	return x.Close()
}

func randomPSN() uint32 { return rand.Uint32() & psnMask }
