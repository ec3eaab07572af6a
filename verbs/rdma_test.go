//go:build linux && cgo

package verbs

import (
	"context"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

// testTimeout bounds every wait of the tests: a TCG virtual machine beside other work can be slow.
const testTimeout = 45 * time.Second

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

// closing closes c at the end of the test and fails it when that fails.
func closing(t testing.TB, c interface{ Close() error }) {
	t.Cleanup(func() {
		t.Helper()
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// rig is an open device with a domain, its port and GID, and two queue pairs' worth of memory.
type rig struct {
	t    testing.TB
	ctx  *Context
	pd   *PD
	port PortAttr
	gid  GIDChoice
	mem  []byte
	mr   *MR
}

const rigBytes = 1 << 20

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigIn(t, rdmatest.Device(t), rigBytes)
}

// newRigIn is newRig with less memory, on a named device.
func newRigIn(t testing.TB, name string, n int) *rig {
	t.Helper()
	r := &rig{t: t, ctx: must(Open(name))(t)}
	closing(t, r.ctx)
	r.port = must(r.ctx.Port(1))(t)
	r.gid = must(ChooseGID(r.port, must(r.ctx.GIDs(1))(t), AutoGID))(t)
	r.pd = must(r.ctx.AllocPD())(t)
	closing(t, r.pd)
	r.mem = mapped(t, n)
	r.mr = must(r.pd.Register(unsafe.Pointer(&r.mem[0]), uint64(n), AccessAll))(t)
	closing(t, r.mr)
	return r
}

// mapped returns anonymous memory that lives until the test's end.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	mem := must(unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

func (r *rig) addr(off int) uint64 { return r.mr.Addr() + uint64(off) }

func (r *rig) word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&r.mem[off])) }

// end is one side of a connection, with what it needs to post.
type end struct {
	cq   *CQ
	qp   *QP
	bell *Doorbell
	send *SendChain
	recv *RecvChain
}

type endConfig struct {
	cq     CQConfig
	qp     QPConfig
	shared *CQ
}

func (r *rig) newEnd(c endConfig) *end {
	r.t.Helper()
	e := &end{cq: c.shared}
	if e.cq == nil {
		e.cq = must(r.ctx.CreateCQ(c.cq))(r.t)
		closing(r.t, e.cq)
	}
	c.qp.SendCQ = e.cq
	if c.qp.MaxInline == 0 {
		c.qp.MaxInline = 64
	}
	e.qp = must(r.pd.CreateQP(c.qp))(r.t)
	closing(r.t, e.qp)
	e.bell = must(e.cq.NewDoorbell(DoorbellConfig{}))(r.t)
	closing(r.t, e.bell)
	e.send = must(NewSendChain(ChainConfig{Slots: 16, SGEs: 1, Inline: 64}))(r.t)
	closing(r.t, e.send)
	e.recv = must(NewRecvChain(ChainConfig{Slots: 16, SGEs: 1}))(r.t)
	closing(r.t, e.recv)
	return e
}

func (r *rig) path() Path {
	e := NewPathEnd(r.port, r.gid, nil)
	return must(ComputePath(e, e))(r.t)
}

const testQKey = 0x11111111

// connect joins two QPs of this device, of one type, and brings them to RTS.
func (r *rig) connect(a, b *end) {
	r.t.Helper()
	p := r.path()
	for _, e := range []struct{ me, peer *end }{{a, b}, {b, a}} {
		q := e.me.qp
		check(r.t, q.Init(InitAttr{PKeyIndex: p.PKeyIndex, Access: AccessAll, QKey: testQKey}))
		check(r.t, q.ReadyToReceive(RTRAttr{AV: p.AV, PathMTU: p.MTU, DestQPN: e.peer.qp.Num(), RQPSN: 7}))
		check(r.t, q.ReadyToSend(RTSAttr{SQPSN: 7}))
	}
}

// pair returns two connected ends.
func (r *rig) pair(c endConfig) (a, b *end) {
	r.t.Helper()
	a, b = r.newEnd(c), r.newEnd(c)
	r.connect(a, b)
	return a, b
}

// postSend posts slot 0 of the end's chain after set has filled it in.
func (r *rig) postSend(e *end, set func(w *SendWR)) {
	r.t.Helper()
	w := e.send.WR(0)
	w.Flags = Signaled
	set(w)
	check(r.t, e.bell.Send(e.qp, e.send, 0, 1))
	if n, err := e.bell.Ring(0, 0); n != 0 || err != nil {
		r.t.Fatalf("post: %d completions, %v", n, err)
	}
}

// postFrom posts slot 0 with the first n bytes of the rig's memory as its local buffer.
func (r *rig) postFrom(e *end, n int, set func(w *SendWR)) {
	r.t.Helper()
	e.send.SetLocal(0, r.addr(0), uint32(n), r.mr.LKey())
	r.postSend(e, set)
}

// postRecv posts one receive into the rig's memory.
func (r *rig) postRecv(e *end, off, n int, id uint64) {
	r.t.Helper()
	e.recv.WR(0).WRID = id
	e.recv.SetLocal(0, r.addr(off), uint32(n), r.mr.LKey())
	check(r.t, e.bell.Recv(e.qp, e.recv, 0, 1))
	must(e.bell.Ring(0, 0))(r.t)
}

// next waits for one completion.
func (r *rig) next(e *end) WC {
	r.t.Helper()
	n := must(e.bell.Ring(1, testTimeout))(r.t)
	if n != 1 {
		r.t.Fatalf("%d completions within %v, want 1", n, testTimeout)
	}
	return e.bell.Completions()[0]
}

// ok waits for one completion, which must be a success.
func (r *rig) ok(e *end) WC {
	r.t.Helper()
	wc := r.next(e)
	check(r.t, wc.Err())
	return wc
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + seed)
	}
}

func describe(wc WC) string { return fmt.Sprintf("%+v", wc) }
