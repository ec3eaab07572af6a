//go:build linux && cgo

package ibv

import (
	"errors"

	"github.com/ibconduit/conduit/verbs"
)

// datagrams are what an endpoint, or the connector, sends and receives outside of connections. The
// endpoint's mu protects its own.
type datagrams struct {
	n       *Network
	num     int // of the endpoint, or laneBit of the connector
	tx      *sender
	room    func() bool // for one datagram more; posts what is staged, if need be
	q       sendQueue
	in      receiveQueue
	lent    []int32 // receive buffers of the notes that the last Poll returned
	inMem   []byte
	outMem  []byte
	lkey    uint32
	freeOut []int32 // send buffers
	outAH   []*addressHandle
	handles addressHandles
}

func (d *datagrams) init(qp *verbs.QP) error {
	d.q, d.in.qp = sendQueue{qp: qp, rank: none}, qp
	d.handles = addressHandles{pd: d.n.pd, byPath: make(map[verbs.AddressVector]*addressHandle)}
	d.outAH = make([]*addressHandle, dgramSends)
	for i := range int32(dgramSends) {
		d.freeOut = append(d.freeOut, i)
	}
	return d.in.makeChain(dgramRecvs, idIn, d.inMem, inStride, inStride, d.lkey)
}

// takeBack takes back the buffers of the notes that the last Poll returned.
func (d *datagrams) takeBack() {
	if len(d.lent) > 0 {
		d.in.bare = append(d.in.bare, d.lent...)
		d.lent = d.lent[:0]
	}
}

func (d *datagrams) inBytes(i int32) []byte {
	at := int(i) * inStride
	return d.inMem[at : at+inStride : at+inStride]
}

func (d *datagrams) outBytes(i int32) []byte {
	at := int(i) * datagramMax
	return d.outMem[at : at+datagramMax : at+datagramMax]
}

// send stages a datagram, the connector's for the lane that its endpoint says. It reports whether
// there was room for it.
func (d *datagrams) send(g datagram) bool {
	rank, n := int(g.to), d.n
	qpn := n.datagramQPN(rank, d.num)
	if qpn == 0 || len(d.freeOut) == 0 || !d.room() {
		return false
	}
	path, err := verbs.ComputePath(n.path, n.peers[rank].end())
	if err != nil {
		return false // Reach said so
	}
	h, err := d.handles.get(path.AV)
	if err != nil {
		n.log.Warn("ibv: datagrams do not reach a rank", "rank", rank, "err", err)
		return false
	}
	i := d.freeOut[len(d.freeOut)-1]
	d.freeOut = d.freeOut[:len(d.freeOut)-1]
	d.outAH[i] = h
	g.endpoint |= uint16(d.num)
	g.from = uint32(n.cfg.Rank)
	b := d.outBytes(i)
	size := g.encode(b)
	slot, w := d.tx.slot(&d.q, idOut<<idShift|uint64(i))
	w.Opcode, w.Flags = verbs.OpSend, verbs.Signaled|verbs.Solicited
	d.tx.chain.SetLocal(slot, addrOf(b), uint32(size), d.lkey)
	w.SetUD(h.ah, qpn, n.peers[rank].qkey)
	return true
}

// sent is called at the end of a datagram that was sent.
func (d *datagrams) sent(i int32, wc *verbs.WC) {
	d.outAH[i].uses--
	d.outAH[i] = nil
	d.freeOut = append(d.freeOut, i)
	if wc.Status != verbs.StatusSuccess && wc.Status != verbs.StatusFlushed {
		// The send queue stops at an error (IBTA 1.4 vol. 1 §10.3.1.6); lost datagrams stay lost.
		d.n.log.Warn("ibv: a datagram was not sent", "endpoint", d.num, "err", wc.Err())
		_ = d.q.qp.Modify(verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQE}, verbs.AttrState|verbs.AttrCurState)
	}
}

// understand decodes a datagram, and checks that it is from the rank that it names, and for this
// endpoint.
func (d *datagrams) understand(i int32, wc *verbs.WC) (g datagram, ok bool) {
	b, n := d.inBytes(i), d.n
	if wc.Status != verbs.StatusSuccess || wc.ByteLen < grhBytes || int(wc.ByteLen) > len(b) {
		return g, false
	}
	g, err := decodeDatagram(b[grhBytes:wc.ByteLen])
	if err != nil || g.to != uint32(n.cfg.Rank) || !d.has(g.endpoint) || g.from >= uint32(n.cfg.Size) ||
		!n.peers[g.from].served() {
		return g, false
	}
	end := n.peers[g.from].end()
	return g, wc.SrcQP == n.datagramQPN(int(g.from), d.num) && sentFrom(&end, b, wc.SLID, wc.Flags&verbs.WCWithGRH != 0)
}

// has reports whether datagrams for an endpoint, or a lane, are for this end.
func (d *datagrams) has(endpoint uint16) bool {
	if d.num == laneBit {
		return endpoint&laneBit != 0 && int(endpoint&^laneBit) < d.n.cfg.Lanes
	}
	return int(endpoint) == d.num
}

// datagramQPN is the number of the queue pair to which a rank's datagrams go; 0: there is none.
func (n *Network) datagramQPN(rank, num int) uint32 {
	if num == laneBit {
		return n.peers[rank].listener
	}
	return n.endpointQPNs[rank*n.cfg.Messages.Endpoints+num]
}

// addressHandles are the address handles of an endpoint, one for each path to a peer's device.
type addressHandles struct {
	pd     *verbs.PD
	byPath map[verbs.AddressVector]*addressHandle
	clock  uint64
}

type addressHandle struct {
	ah   *verbs.AH
	uses int32 // datagrams that are not complete
	last uint64
}

// get returns the handle of a path, for one datagram; made if need be, in the place of the one not
// used for longest.
func (h *addressHandles) get(av verbs.AddressVector) (*addressHandle, error) {
	h.clock++
	if x := h.byPath[av]; x != nil {
		x.uses++
		x.last = h.clock
		return x, nil
	}
	if len(h.byPath) >= handlesMax {
		var oldest *addressHandle
		var path verbs.AddressVector
		for v, x := range h.byPath {
			if x.uses == 0 && (oldest == nil || x.last < oldest.last) {
				oldest, path = x, v
			}
		}
		// There is one: fewer datagrams are in flight than handles are kept.
		if err := oldest.ah.Close(); err != nil {
			return nil, err
		}
		delete(h.byPath, path)
	}
	ah, err := h.pd.CreateAH(av)
	if err != nil {
		return nil, err
	}
	x := &addressHandle{ah: ah, uses: 1, last: h.clock}
	h.byPath[av] = x
	return x, nil
}

func (h *addressHandles) close() error {
	var errs []error
	for _, x := range h.byPath {
		errs = append(errs, x.ah.Close())
	}
	clear(h.byPath)
	return errors.Join(errs...)
}
