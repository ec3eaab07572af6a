//go:build linux && cgo

package verbs

import (
	"bytes"
	"testing"
	"time"
)

// awaitEvent returns the next asynchronous event of a type, or fails.
func awaitEvent(t testing.TB, x *Context, want EventType) Event {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case ev := <-x.Events():
			if ev.Type == want {
				return ev
			}
			t.Logf("passed over: %v", ev)
		case <-deadline:
			t.Fatalf("no event %q within %v", want, patience)
		}
	}
}

func TestSRQFeedsTwoQPsAndReportsWhenLow(t *testing.T) {
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
	check(t, srq.SetLimit(6))
	if n, err := srq.Limit(); n != 6 || err != nil {
		t.Errorf("limit %d, %v; want 6", n, err)
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
	if ev := awaitEvent(t, r.ctx, EventSRQLimitReached); ev.SRQ != srq {
		t.Errorf("event %v, want one of the queue", ev)
	}
	if n := must(srq.Limit())(t); n != 0 {
		t.Errorf("limit %d after the event, want 0: it disarms itself", n)
	}
}
