//go:build linux && cgo

package verbs

import (
	"bytes"
	"testing"
)

func TestSRQFeedsTwoQPs(t *testing.T) {
	r := newRig(t)
	srq := must(r.pd.CreateSRQ(SRQConfig{MaxWR: 16}))(t)
	closing(t, srq)
	shared := must(r.ctx.CreateCQ(CQConfig{}))(t)
	closing(t, shared)
	sender := endConfig{}
	recver := endConfig{shared: shared, qp: QPConfig{SRQ: srq}}
	a1, b1 := r.newEnd(sender), r.newEnd(recver)
	a2, b2 := r.newEnd(sender), r.newEnd(recver)
	r.connect(a1, b1)
	r.connect(a2, b2)

	const slots, size = 8, 256
	for i := range slots {
		b1.recv.WR(i).WRID = uint64(i)
		b1.recv.SetLocal(i, r.addr(4096+i*size), size, r.mr.LKey())
	}
	check(t, b1.bell.SRQRecv(srq, b1.recv, 0, slots))
	must(b1.bell.Ring(0, 0))(t)
	if b1.bell.Posted() != slots {
		t.Fatalf("%d posted, want %d", b1.bell.Posted(), slots)
	}
	for i, e := range []*end{a1, a2, a1} {
		pattern(r.mem[:size], i)
		r.postFrom(e, size, func(w *SendWR) { w.Opcode = OpSend })
		wc := r.ok(b1)
		to := b1
		if e == a2 {
			to = b2
		}
		at := 4096 + int(wc.WRID)*size
		if wc.QPNum != to.qp.Num() || !bytes.Equal(r.mem[:size], r.mem[at:at+size]) {
			t.Errorf("message %d: completion %s", i, describe(wc))
		}
		r.ok(e)
	}
}
