//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"bytes"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/verbs"
)

// domain is a protection domain as a Registrar.
type domain struct{ *verbs.PD }

func (d domain) Register(addr uintptr, n uint64, access Access) (MR, error) {
	mr, err := d.PD.Register(ptr(addr), n, verbs.Access(access))
	if err != nil {
		return nil, err
	}
	return mr, nil
}

// wire is a queue pair connected to another of the same device.
type wire struct {
	t    testing.TB
	d    domain
	qp   *verbs.QP
	bell *verbs.Doorbell
	send *verbs.SendChain
	pool *Pool
}

func closing(t testing.TB, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func newWire(t testing.TB) *wire {
	t.Helper()
	ctx := must(verbs.Open(rdmatest.Device(t)))(t)
	closing(t, ctx)
	port := must(ctx.Port(1))(t)
	gid := must(verbs.ChooseGID(port, must(ctx.GIDs(1))(t), verbs.AutoGID))(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	w := &wire{t: t, d: domain{pd}}
	cq := must(ctx.CreateCQ(verbs.CQConfig{}))(t)
	closing(t, cq)
	qps := [2]*verbs.QP{}
	for i := range qps {
		qps[i] = must(pd.CreateQP(verbs.QPConfig{SendCQ: cq}))(t)
		closing(t, qps[i])
	}
	end := verbs.NewPathEnd(port, gid, nil)
	p := must(verbs.ComputePath(end, end))(t)
	for i, q := range qps {
		for _, err := range []error{
			q.Init(verbs.InitAttr{PKeyIndex: p.PKeyIndex, Access: verbs.AccessAll}),
			q.ReadyToReceive(verbs.RTRAttr{AV: p.AV, PathMTU: p.MTU, DestQPN: qps[1-i].Num(), RQPSN: 7}),
			q.ReadyToSend(verbs.RTSAttr{SQPSN: 7}),
		} {
			noError(t, err)
		}
	}
	w.qp = qps[0]
	w.bell = must(cq.NewDoorbell(verbs.DoorbellConfig{}))(t)
	closing(t, w.bell)
	w.send = must(verbs.NewSendChain(verbs.ChainConfig{Slots: 4, SGEs: 1}))(t)
	closing(t, w.send)
	w.pool = must(NewPool(PoolConfig{Registrar: w.d, MaxBytes: 256 << 20}))(t)
	closing(t, w.pool)
	return w
}

// post starts an RDMA WRITE or READ between a buffer and remote memory.
func (w *wire) post(op verbs.Opcode, b *Buffer, addr uintptr, rkey uint32) {
	w.t.Helper()
	wr := w.send.WR(0)
	wr.Flags, wr.Opcode = verbs.Signaled, op
	wr.SetRemote(uint64(addr), rkey)
	w.send.SetLocal(0, b.Addr(), uint32(len(b.Bytes())), b.LKey)
	if err := w.bell.Send(w.qp, w.send, 0, 1); err != nil {
		w.t.Fatal(err)
	}
	must(w.bell.Ring(0, 0))(w.t)
}

// wait ends it: it must have been a success.
func (w *wire) wait() {
	w.t.Helper()
	if n := must(w.bell.Ring(1, testTimeout))(w.t); n != 1 {
		w.t.Fatalf("%d completions, want 1", n)
	}
	if err := w.bell.Completions()[0].Err(); err != nil {
		w.t.Fatal(err)
	}
}

// arrives writes to memory through a Region of the cache, and reports whether the bytes are there.
func (w *wire) arrives(c *Cache, lo uintptr, n int, seed byte) bool {
	w.t.Helper()
	b := must(w.pool.Alloc(n))(w.t)
	defer w.pool.Free(b)
	for i := range b.Bytes() {
		b.Bytes()[i] = seed + byte(i*7) + byte(i>>12)*13
	}
	r := mustGet(w.t, c, lo, uint64(n), RemoteWrite)
	w.post(verbs.OpWrite, b, lo, r.RKey)
	w.wait()
	mustPut(w.t, c, r)
	return bytes.Equal(unsafe.Slice((*byte)(ptr(lo)), n), b.Bytes())
}

func deviceCache(t testing.TB, w *wire, o Origin) *Cache {
	t.Helper()
	c := must(New(Config{Registrar: w.d, Origin: o, MaxBytes: 1 << 30}))(t)
	closing(t, c)
	if o == Mapped {
		settle(t)
	}
	return c
}

// across writes before a change, so often as to hit, and after it. It returns whether the last
// bytes arrived.
func (w *wire) across(t *testing.T, c *Cache, x change, raw bool, writes int) bool {
	t.Helper()
	var at uintptr
	n := x.bytes()
	x.run(way{t, raw}, func(lo, hi uintptr) {
		at = lo
		for i := range writes {
			if !w.arrives(c, lo, n, byte(1+i)) {
				t.Fatal("lost before the change")
			}
		}
	})
	return w.arrives(c, at, n, 3)
}

func TestDeviceWritesReachTheNewPages_01_02(t *testing.T) {
	w := newWire(t)
	if s := deviceCache(t, w, Mapped).Status().Origins[Mapped]; s.Mode != Cached {
		t.Fatal("nothing is cached here: ", s.Why)
	}
	for _, x := range changes {
		t.Run(x.name, func(t *testing.T) {
			c := deviceCache(t, w, Mapped)
			if !w.across(t, c, x, false, 2) {
				t.Error("the bytes are not where they belong")
			}
			if s := c.Stats(); s.Hits == 0 || s.Invalidated == 0 {
				t.Errorf("nothing was cached, or nothing changed: %+v", s)
			}
		})
	}
}

// The control: without hooks the device says success, and the bytes are lost.
func TestDeviceWritesAreLostWithoutEvents_01_02(t *testing.T) {
	if verifying {
		t.Skip("this build finds it")
	}
	w := newWire(t)
	for _, x := range changes {
		if x.name == libcOnly {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			if w.across(t, deviceCache(t, w, Mapped), x, true, 1) {
				t.Error("the bytes arrived though no monitor saw the change")
			}
		})
	}
}

func TestDeviceSeesRawCallsAndTheGoHeap_04(t *testing.T) {
	w := newWire(t)
	for _, x := range changes {
		if !x.kernel {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			if !w.across(t, deviceCache(t, w, Any), x, true, 1) {
				t.Error("the bytes are not where they belong")
			}
		})
	}
	t.Run("Go heap", func(t *testing.T) {
		c := deviceCache(t, w, Any)
		for i := range 20 {
			b := make([]byte, 1<<20)
			if !w.arrives(c, uintptr(unsafe.Pointer(&b[0])), len(b), byte(i)) {
				t.Fatalf("round %d: the bytes are not where they belong", i)
			}
			runtime.KeepAlive(b) // arrives has its address only
			b = nil
			freeOSMemory()
		}
	})
}

func TestDeviceFinishesIntoUnmappedMemory_09(t *testing.T) {
	const n = 16 << 20
	if !verbs.ReadMemlock().Allows(4 * n) {
		t.Skip("RLIMIT_MEMLOCK is below 64 MiB")
	}
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	p := reserve(t, n/int(page))
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		before := verbs.ReadMemlock().Pinned
		b := must(w.pool.Alloc(n))(t)
		pool := verbs.ReadMemlock().Pinned
		r := mustGet(t, c, p, n, RemoteWrite|RemoteRead)
		w.post(op, b, p, r.RKey)
		call(t, memtest.Munmap, p, n)
		mapAt(t, p, n, rw)
		if again := mustGet(t, c, p, n, RemoteWrite|RemoteRead); again.RKey == r.RKey {
			t.Error("handed out again")
		} else {
			mustPut(t, c, again)
		}
		w.wait()
		if now := verbs.ReadMemlock().Pinned; now < pool+2*n {
			t.Errorf("%d bytes pinned: deregistered before the last Put (%d before)", now, pool)
		}
		mustPut(t, c, r)
		if now := verbs.ReadMemlock().Pinned; now >= pool+2*n {
			t.Errorf("%d bytes pinned after the last Put", now)
		}
		w.pool.Free(b)
		c.Clear()
		if now := verbs.ReadMemlock().Pinned; now != before {
			t.Errorf("%d bytes pinned at the end, %d before", now, before)
		}
	}
	if s := c.Stats(); s.InvalidatedInUse != 2 || s.Puts != s.Gets {
		t.Errorf("%+v", s)
	}
}

func TestDeviceUnionOverAHoleIsTheExactRange_19(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	p := reserve(t, 12)
	if !w.arrives(c, p, int(4*page), 1) {
		t.Error("lost")
	}
	mapAt(t, p, page, 0) // PROT_NONE, behind the cache's back
	if !w.arrives(c, p+3*page, int(4*page), 2) {
		t.Error("lost")
	}
	if s := c.Stats(); s.RegisterErrors != 1 || s.Misses != 2 || s.Merged != 0 {
		t.Errorf("%+v", s)
	}
}

// The device writes into a page that the program may only read: it was writable when it was
// registered.
func TestDeviceWritesAfterMprotect_20(t *testing.T) {
	w := newWire(t)
	c := deviceCache(t, w, Mapped)
	p := reserve(t, 2)
	if !w.arrives(c, p, int(2*page), 1) {
		t.Error("lost")
	}
	protect(t, p, 2*page, 1)
	if !w.arrives(c, p, int(2*page), 2) {
		t.Error("lost after mprotect")
	}
	if s := c.Stats(); s.Hits != 1 {
		t.Errorf("%+v", s)
	}
}
