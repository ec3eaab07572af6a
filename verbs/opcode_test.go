//go:build linux && cgo

package verbs

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestWriteAndReadMoveBytes(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	const far = rigBytes / 2
	for _, n := range []int{1, 8, 4096, 4097, 300_000} {
		pattern(r.mem[:n], n)
		r.postFrom(a, n, func(w *SendWR) { w.Opcode = OpWrite; w.WRID = 1; w.SetRemote(r.addr(far), r.mr.RKey()) })
		if wc := r.ok(a); wc.WRID != 1 || wc.Opcode != WCWrite || wc.QPNum != a.qp.Num() {
			t.Errorf("completion %s", describe(wc))
		}
		if !bytes.Equal(r.mem[:n], r.mem[far:far+n]) {
			t.Errorf("WRITE of %d bytes: target differs", n)
		}
		clear(r.mem[:n])
		r.postSend(a, func(w *SendWR) { w.Opcode = OpRead; w.WRID = 2; w.SetRemote(r.addr(far), r.mr.RKey()) })
		if wc := r.ok(a); wc.WRID != 2 || wc.Opcode != WCRead {
			t.Errorf("completion %s", describe(wc))
		}
		if !bytes.Equal(r.mem[:n], r.mem[far:far+n]) {
			t.Errorf("READ of %d bytes: result differs", n)
		}
	}
}

func TestSendCarriesBytes(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(endConfig{})
	for _, inline := range []bool{false, true} {
		name := fmt.Sprintf("inline=%v", inline)
		clear(r.mem[4096:8192])
		r.postRecv(b, 4096, 4096, 77)
		src := r.mem[:40]
		if inline {
			src = a.send.Area(0)[:40]
			a.send.SetInline(0, 40)
		} else {
			a.send.SetLocal(0, r.addr(0), 40, r.mr.LKey())
		}
		pattern(src, 3)
		r.postSend(a, func(w *SendWR) {
			w.Opcode = OpSend
			if inline {
				w.Flags |= Inline
			}
		})
		want := bytes.Clone(src)
		if inline {
			clear(src) // the post has copied it
		}
		wc := r.ok(b)
		if wc.WRID != 77 || wc.Opcode != WCRecv || wc.ByteLen != 40 || wc.QPNum != b.qp.Num() {
			t.Errorf("%s: completion %s", name, describe(wc))
		}
		if !bytes.Equal(r.mem[4096:4136], want) {
			t.Errorf("%s: content differs", name)
		}
		if wc := r.ok(a); wc.Opcode != WCSend {
			t.Errorf("%s: sender's completion %s", name, describe(wc))
		}
	}
}

func TestWriteWithImmConsumesAReceive(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(endConfig{})
	r.postRecv(b, 8192, 64, 5)
	pattern(r.mem[:100], 9)
	r.postFrom(a, 100, func(w *SendWR) { w.Opcode = OpWriteImm; w.SetRemote(r.addr(4096), r.mr.RKey()) })
	wc := r.ok(b)
	if wc.Opcode != WCRecv|1 || wc.WRID != 5 {
		t.Errorf("completion %s", describe(wc))
	}
	if !bytes.Equal(r.mem[:100], r.mem[4096:4196]) {
		t.Error("content differs")
	}
	r.ok(a)
}

func TestAtomicsReturnTheOldValueAndChangeTheWord(t *testing.T) {
	r := newRig(t)
	if r.ctx.Attr().AtomicCap == AtomicNone {
		rdmatest.Lacks(t, r.ctx.Name(), "atomics")
	}
	a, _ := r.pair(endConfig{})
	old, word := r.word(0), r.word(4096)
	*word = 1<<63 + 5
	r.postFrom(a, 8, func(w *SendWR) { w.SetFetchAdd(r.addr(4096), r.mr.RKey(), 1<<63+2) })
	if wc := r.ok(a); wc.Opcode != WCFetchAdd || *old != 1<<63+5 || *word != 7 {
		t.Errorf("FETCH_ADD: old %#x, word %#x, %s", *old, *word, describe(wc))
	}
	for _, c := range []struct{ compare, swap, old, after uint64 }{{8, 100, 7, 7}, {7, 1 << 40, 7, 1 << 40}} {
		r.postSend(a, func(w *SendWR) { w.SetCompareSwap(r.addr(4096), r.mr.RKey(), c.compare, c.swap) })
		if wc := r.ok(a); wc.Opcode != WCCompareSwap || *old != c.old || *word != c.after {
			t.Errorf("CMP_SWAP %d: old %#x, word %#x, %s", c.compare, *old, *word, describe(wc))
		}
	}
}

func TestScatterListsGatherAndScatter(t *testing.T) {
	r := newRig(t)
	c := endConfig{qp: QPConfig{MaxSendSGE: 3, MaxRecvSGE: 3}}
	a, b := r.newEnd(c), r.newEnd(c)
	r.connect(a, b)
	send := must(NewSendChain(ChainConfig{SGEs: 3}))(t)
	closing(t, send)
	recv := must(NewRecvChain(ChainConfig{SGEs: 3}))(t)
	closing(t, recv)
	pattern(r.mem[:3000], 1)
	var want []byte
	for i, piece := range [][2]int{{0, 10}, {1000, 700}, {2500, 1}} {
		send.SGEs(0)[i] = SGE{Addr: r.addr(piece[0]), Length: uint32(piece[1]), LKey: r.mr.LKey()}
		want = append(want, r.mem[piece[0]:piece[0]+piece[1]]...)
	}
	for i, piece := range [][2]int{{8192, 500}, {10000, 200}, {12000, 100}} {
		recv.SGEs(0)[i] = SGE{Addr: r.addr(piece[0]), Length: uint32(piece[1]), LKey: r.mr.LKey()}
	}
	send.WR(0).SetNumSGE(3)
	send.WR(0).Flags = Signaled
	recv.WR(0).numSGE = 3
	check(t, b.bell.Recv(b.qp, recv, 0, 1))
	must(b.bell.Ring(0, 0))(t)
	check(t, a.bell.Send(a.qp, send, 0, 1))
	must(a.bell.Ring(0, 0))(t)
	if wc := r.ok(b); wc.ByteLen != 711 {
		t.Errorf("%d bytes, want 711", wc.ByteLen)
	}
	got := append(append(bytes.Clone(r.mem[8192:8692]), r.mem[10000:10200]...), r.mem[12000:12011]...)
	if !bytes.Equal(got, want) {
		t.Error("content differs")
	}
	r.ok(a)
}

func TestUDSendGoesToTheQPOfTheAddressHandle(t *testing.T) {
	r := newRig(t)
	a, b := r.newEnd(endConfig{qp: QPConfig{Type: UD}}), r.newEnd(endConfig{qp: QPConfig{Type: UD}})
	for _, e := range []*end{a, b} {
		check(t, e.qp.Init(InitAttr{QKey: testQKey}))
		check(t, e.qp.ReadyToReceive(RTRAttr{}))
		check(t, e.qp.ReadyToSend(RTSAttr{}))
	}
	ah := must(r.pd.CreateAH(r.path().AV))(t)
	closing(t, ah)
	const grh = 40 // IBTA 1.4 vol. 1 §8.3: a UD receive begins with room for it
	r.postRecv(b, 4096, grh+256, 6)
	pattern(r.mem[:200], 8)
	r.postFrom(a, 200, func(w *SendWR) { w.Opcode = OpSend; w.SetUD(ah, b.qp.Num(), testQKey) })
	r.ok(a)
	wc := r.ok(b)
	if wc.ByteLen != grh+200 || wc.SrcQP != a.qp.Num() || wc.QPNum != b.qp.Num() || wc.Flags&WCWithGRH == 0 {
		t.Errorf("completion %s", describe(wc))
	}
	if !bytes.Equal(r.mem[:200], r.mem[4096+grh:4096+grh+200]) {
		t.Error("content differs")
	}
}
