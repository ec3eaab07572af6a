//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

func TestBadRKeyIsARemoteAccessErrorAndFlushes(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(endConfig{})
	r.postRecv(b, 4096, 64, 9)
	for i := range 3 {
		w := a.send.WR(i)
		w.WRID, w.Opcode, w.Flags = uint64(10+i), OpWrite, Signaled
		w.SetRemote(r.addr(4096), r.mr.RKey()^0xff00)
		a.send.SetLocal(i, r.addr(0), 8, r.mr.LKey())
	}
	check(t, a.bell.Send(a.qp, a.send, 0, 3))
	n := must(a.bell.Ring(3, testTimeout))(t)
	if n != 3 {
		t.Fatalf("%d completions, want 3", n)
	}
	err := a.bell.Completions()[0].Err()
	var e *WCError
	if !errors.As(err, &e) || e.Status != StatusRemoteAccess || e.WRID != 10 || e.QPNum != a.qp.Num() || !errors.Is(err, unix.EACCES) {
		t.Errorf("first: %v, want a remote access error", err)
	}
	for i, wc := range a.bell.Completions()[1:] {
		if wc.Status != StatusFlushed || wc.WRID != uint64(11+i) {
			t.Errorf("request %d: %v, want %v", 11+i, wc.Err(), StatusFlushed)
		}
	}
	// The responder's QP fails too, and its receives are flushed.
	if wc := r.next(b); wc.Status != StatusFlushed || wc.WRID != 9 {
		t.Errorf("responder: %s", describe(wc))
	}
	if s := a.bell.Stats(); s.Completions != 3 {
		t.Errorf("counters %+v", s)
	}
}

func TestSendWithoutAReceiveRunsOutOfRNRRetries(t *testing.T) {
	r := newRig(t)
	a, b := r.newEnd(endConfig{}), r.newEnd(endConfig{})
	p := r.path()
	for _, e := range []struct{ me, peer *end }{{a, b}, {b, a}} {
		check(t, e.me.qp.Init(InitAttr{Access: AccessAll}))
		check(t, e.me.qp.ReadyToReceive(RTRAttr{AV: p.AV, PathMTU: p.MTU, DestQPN: e.peer.qp.Num(), MinRNRTimer: 1}))
		check(t, e.me.qp.ReadyToSend(RTSAttr{RNRRetry: 1}))
	}
	r.postFrom(a, 8, func(w *SendWR) { w.Opcode = OpSend })
	if wc := r.next(a); !errors.Is(wc.Err(), StatusRNRRetryExceeded) || !errors.Is(wc.Err(), unix.ENOBUFS) {
		t.Errorf("%v, want %v", wc.Err(), StatusRNRRetryExceeded)
	}
}

func TestToErrorFlushesReceivesAndResetForgetsThem(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	r.postRecv(a, 0, 64, 21)
	check(t, a.qp.ToError())
	if wc := r.next(a); wc.WRID != 21 || wc.Status != StatusFlushed {
		t.Errorf("%s, want 21 flushed", describe(wc))
	}
	check(t, a.qp.Reset())
	check(t, a.qp.Init(InitAttr{})) // which only a QP in RESET does
	r.postRecv(a, 0, 64, 22)
	check(t, a.qp.Reset())
	if n := must(a.bell.Ring(1, 0))(t); n != 0 {
		t.Errorf("%d completions after RESET", n)
	}
}

func TestOverrunOfACQIsAnErrorFromThenOn(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{cq: CQConfig{Entries: 2}})
	if a.cq.Cap() > 15 {
		rdmatest.Lacks(t, r.ctx.Name(), "CQ that is so small")
	}
	a.send.SetLocal(0, r.addr(0), 8, r.mr.LKey())
	w := a.send.WR(0)
	w.Flags, w.Opcode = Signaled, OpWrite
	w.SetRemote(r.addr(4096), r.mr.RKey())
	for i := 0; i < a.cq.Cap()+2; i++ {
		check(t, a.bell.Send(a.qp, a.send, 0, 1))
		// The event may be there before the post that caused it returns.
		if _, err := a.bell.Ring(0, 0); err != nil && !errors.Is(err, ErrOverrun) {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(testTimeout); !a.cq.overrun.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the queue does not know of it")
		}
	}
	if _, err := a.bell.Ring(1, 0); !errors.Is(err, ErrOverrun) || !errors.Is(err, unix.EOVERFLOW) {
		t.Errorf("doorbell: %v, want %v", err, ErrOverrun)
	}
}

func TestRefusedModifySaysWhatWasWrong(t *testing.T) {
	r := newRig(t)
	p := r.path()
	good := RTRAttr{AV: p.AV, PathMTU: p.MTU, DestQPN: 17}
	rtr := func(change func(*RTRAttr)) func(q *QP) error {
		return func(q *QP) error {
			if err := q.Init(InitAttr{Access: AccessAll}); err != nil {
				return err
			}
			a := good
			change(&a)
			return q.ReadyToReceive(a)
		}
	}
	for _, c := range []struct {
		name string
		do   func(q *QP) error
		want []string
	}{
		{"skipped state", func(q *QP) error { return q.ReadyToSend(RTSAttr{}) }, []string{"RC QPs cannot go from RESET to RTS"}},
		{"missing attributes", func(q *QP) error {
			return q.Modify(QPAttr{State: StateInit, Port: 1}, AttrState|AttrPort)
		}, []string{"RESET to INIT of RC QPs: missing: access flags, P_Key index"}},
		{"superfluous attributes", func(q *QP) error {
			return q.Modify(QPAttr{State: StateInit, Port: 1, QKey: 1}, AttrState|AttrPort|AttrPKeyIndex|AttrAccess|AttrQKey)
		}, []string{"superfluous: Q_Key"}},
		{"no such port", func(q *QP) error { return q.Init(InitAttr{Port: 9}) }, []string{"port 9 of a device with 1"}},
		{"empty GID", rtr(func(a *RTRAttr) { a.AV.SGIDIndex = 200 }), []string{"GID index 200", "is empty"}},
		{"no route", rtr(func(a *RTRAttr) { a.AV.DGID = gidOf("203.0.113.9") }), []string{"203.0.113.9", fmt.Sprint("GID index ", r.gid.Index), r.gid.GID.String(), "route"}},
		{"no GRH", rtr(func(a *RTRAttr) { a.AV.Global = false }), []string{"RoCE needs a GRH"}},
	} {
		q := must(r.pd.CreateQP(QPConfig{SendCQ: r.anyCQ()}))(t)
		err := c.do(q)
		var e *Error
		if !errors.As(err, &e) || e.Errno == 0 || e.Op != "ibv_modify_qp" || e.Device != r.ctx.Name() {
			t.Errorf("%s: %#v", c.name, err)
		} else {
			holds(t, err, c.want...)
			t.Logf("%s: %v", c.name, err)
		}
		check(t, q.Close())
	}
}

// anyCQ returns a CQ of the rig that nothing completes on.
func (r *rig) anyCQ() *CQ {
	q := must(r.ctx.CreateCQ(CQConfig{Entries: 4}))(r.t)
	closing(r.t, q)
	return q
}

func TestRefusedCreationSaysTheLimit(t *testing.T) {
	r := newRig(t)
	attr := r.ctx.Attr()
	cq := r.anyCQ()
	for name, c := range map[string]struct {
		do   func() (interface{ Close() error }, error)
		want string
	}{
		"CQ":        {func() (interface{ Close() error }, error) { return r.ctx.CreateCQ(CQConfig{Entries: attr.MaxCQE + 1}) }, "ask for 1 to"},
		"CQ vector": {func() (interface{ Close() error }, error) { return r.ctx.CreateCQ(CQConfig{Vector: 1 << 20}) }, "completion vectors"},
		"QP": {func() (interface{ Close() error }, error) {
			return r.pd.CreateQP(QPConfig{SendCQ: cq, MaxSendWR: attr.MaxQPWR + 1})
		}, "send requests asked, the device allows"},
		"QP no CQ":   {func() (interface{ Close() error }, error) { return r.pd.CreateQP(QPConfig{}) }, "SendCQ"},
		"SRQ":        {func() (interface{ Close() error }, error) { return r.pd.CreateSRQ(SRQConfig{MaxWR: attr.MaxSRQWR + 1}) }, "SRQs of"},
		"MR access":  {func() (interface{ Close() error }, error) { return r.pd.Register(ptr(r.mem), 4096, AccessRemoteWrite) }, "need local write"},
		"MR mapping": {func() (interface{ Close() error }, error) { return r.pd.Register(ptr(r.mem), rigBytes<<10, AccessAll) }, "not mapped"},
		"MR size":    {func() (interface{ Close() error }, error) { return r.pd.Register(ptr(r.mem), 1<<63, AccessAll) }, "bytes"},
		"AH":         {func() (interface{ Close() error }, error) { return r.pd.CreateAH(AddressVector{Port: 1}) }, "GRH"},
	} {
		x, err := c.do()
		var e *Error
		if !errors.As(err, &e) || e.Errno == 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want an errno and %q", name, err, c.want)
			if err == nil {
				x.Close()
			}
			continue
		}
		t.Logf("%s: %v", name, err)
	}
}

func TestSwitchedOffFeaturesAreNotSupported(t *testing.T) {
	t.Setenv(EnvDisable, "srq,inline")
	r := newRig(t)
	if _, err := r.pd.CreateSRQ(SRQConfig{}); !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), EnvDisable) {
		t.Errorf("SRQ: %v", err)
	}
	if e := r.newEnd(endConfig{qp: QPConfig{MaxInline: 64}}); e.qp.Caps().MaxInline != 0 {
		t.Errorf("inline: %d bytes", e.qp.Caps().MaxInline)
	}
	t.Setenv(EnvDisable, "nonsense")
	if x, err := Open(r.ctx.Name()); err == nil {
		x.Close()
		t.Error("an unknown feature was accepted")
	}
}

// objects are some of each kind on a context of their own; the test closes them.
type objects struct {
	ctx  *Context
	pd   *PD
	mem  []byte
	mr   *MR
	ch   *CompChannel
	cq   *CQ
	bell *Doorbell
	srq  *SRQ
}

func newObjects(t *testing.T, r *rig) (o objects) {
	t.Helper()
	o.ctx = must(Open(r.ctx.Name()))(t)
	o.pd = must(o.ctx.AllocPD())(t)
	o.mem = mapped(t, 8192)
	o.mr = must(o.pd.Register(ptr(o.mem), 4096, AccessAll))(t)
	o.ch = must(o.ctx.CreateCompChannel())(t)
	o.cq = must(o.ctx.CreateCQ(CQConfig{Channel: o.ch}))(t)
	o.bell = must(o.cq.NewDoorbell(DoorbellConfig{}))(t)
	o.srq = must(o.pd.CreateSRQ(SRQConfig{}))(t)
	return o
}

func TestCloseOfAParentNamesItsChildren(t *testing.T) {
	o := newObjects(t, newRig(t))
	ctx, pd, mr1, ch, cq, bell, srq := o.ctx, o.pd, o.mr, o.ch, o.cq, o.bell, o.srq
	mr2 := must(pd.Register(ptr(o.mem), 8192, AccessAll))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq, SRQ: srq}))(t)
	refused := func(c interface{ Close() error }, want ...string) {
		t.Helper()
		err := c.Close()
		if !errors.Is(err, ErrBusy) || !errors.Is(err, unix.EBUSY) {
			t.Errorf("%v, want %v", err, ErrBusy)
			return
		}
		holds(t, err, want...)
	}
	refused(ctx, "1 PD", "1 CQ", "1 completion channel")
	refused(pd, "2 MR", "1 QP", "1 SRQ")
	refused(ch, "1 CQ")
	refused(cq, "1 QP", "1 doorbell")
	refused(srq, "1 QP")
	for range 2 { // Close is idempotent
		for _, c := range []interface{ Close() error }{qp, srq, bell, cq, ch, mr1, mr2, pd, ctx} {
			check(t, c.Close())
		}
	}
}

func TestUseAfterCloseIsErrClosed(t *testing.T) {
	r := newRig(t)
	o := newObjects(t, r)
	ctx, pd, mem, mr, ch, cq, bell, srq := o.ctx, o.pd, o.mem, o.mr, o.ch, o.cq, o.bell, o.srq
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq}))(t)
	send := must(NewSendChain(ChainConfig{}))(t)
	recv := must(NewRecvChain(ChainConfig{}))(t)
	live := must(r.anyCQ().NewDoorbell(DoorbellConfig{}))(t)
	defer live.Close()
	key := mr.RKey()
	for _, c := range []interface{ Close() error }{qp, srq, bell, cq, ch, mr, pd, ctx} {
		check(t, c.Close())
	}
	for name, f := range map[string]func() error{
		"Port":             func() error { _, err := ctx.Port(1); return err },
		"GIDs":             func() error { _, err := ctx.GIDs(1); return err },
		"PKeys":            func() error { _, err := ctx.PKeys(1); return err },
		"AllocPD":          func() error { _, err := ctx.AllocPD(); return err },
		"CreateCQ":         func() error { _, err := ctx.CreateCQ(CQConfig{}); return err },
		"CreateChannel":    func() error { _, err := ctx.CreateCompChannel(); return err },
		"CQ on a channel":  func() error { _, err := r.ctx.CreateCQ(CQConfig{Channel: ch}); return err },
		"Register":         func() error { _, err := pd.Register(ptr(mem), 4096, AccessAll); return err },
		"CreateQP":         func() error { _, err := pd.CreateQP(QPConfig{SendCQ: r.anyCQ()}); return err },
		"QP on a CQ":       func() error { _, err := r.pd.CreateQP(QPConfig{SendCQ: cq}); return err },
		"CreateSRQ":        func() error { _, err := pd.CreateSRQ(SRQConfig{}); return err },
		"CreateAH":         func() error { _, err := pd.CreateAH(AddressVector{Port: 1}); return err },
		"Wait":             func() error { _, err := ch.Wait(within(t)); return err },
		"Arm":              func() error { return cq.Arm(false) },
		"Resize":           func() error { return cq.Resize(8) },
		"NewDoorbell":      func() error { _, err := cq.NewDoorbell(DoorbellConfig{}); return err },
		"Ring":             func() error { _, err := bell.Ring(1, 0); return err },
		"Send to a QP":     func() error { return live.Send(qp, send, 0, 1) },
		"Send by doorbell": func() error { return bell.Send(qp, send, 0, 1) },
		"Recv":             func() error { return live.Recv(qp, recv, 0, 1) },
		"SRQRecv":          func() error { return live.SRQRecv(srq, recv, 0, 1) },
		"Modify":           func() error { return qp.ToError() },
	} {
		if err := f(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v, want %v", name, err, os.ErrClosed)
		}
	}
	if mr.RKey() != key || ctx.Attr().MaxQP == 0 || bell.Completions() != nil || bell.Stats() != (DoorbellStats{}) {
		t.Error("accessors must go on answering")
	}
	check(t, send.Close())
	check(t, recv.Close())
}

func TestOpenObjectIsListedWithItsStack(t *testing.T) {
	r := newRig(t)
	domains := func() (n int) {
		for _, h := range handle.Live() {
			if h.Kind == "PD" && strings.Contains(h.Stack, t.Name()) {
				n++
			}
		}
		return n
	}
	before := domains() // the rig's
	pd := must(r.ctx.AllocPD())(t)
	if n := domains() - before; n != 1 {
		t.Errorf("%d more listed after AllocPD, want 1", n)
	}
	check(t, pd.Close())
	if n := domains() - before; n != 0 {
		t.Errorf("%d more listed after Close, want 0", n)
	}
}

func TestGarbageContextIsReportedAsALeak(t *testing.T) {
	name := rdmatest.Device(t)
	reports := make(chan handle.Record, 8)
	handle.OnLeak(func(r handle.Record) { reports <- r })
	defer handle.OnLeak(nil)
	// The event goroutine and the registry must not keep it alive. What the leak leaves behind is
	// cleaned up by hand.
	free := leakContext(t, name)
	defer func() { check(t, free()) }()
	deadline := time.After(testTimeout)
	for {
		runtime.GC()
		select {
		case r := <-reports:
			if r.Kind == "context" && strings.Contains(r.Stack, "leakContext") {
				handle.Forgive(r)
				return
			}
		case <-deadline:
			t.Fatal("an unreachable context was not reported")
		case <-time.After(time.Millisecond):
		}
	}
}

// leakContext opens a device and forgets it. It returns how to free what the leak leaves behind.
//
//go:noinline
func leakContext(t *testing.T, name string) (free func() error) {
	t.Helper()
	x := must(Open(name))(t)
	return x.destroy
}

func TestUnknownDeviceIsNamedBesideTheOnesThereAre(t *testing.T) {
	name := rdmatest.Device(t)
	_, err := Open("mlx5_99")
	if !errors.Is(err, ErrNoDevice) || !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), name) {
		t.Errorf("%v, want one that names %s", err, name)
	}
	infos := must(Devices())(t)
	for _, i := range infos {
		if i.Name == name {
			return
		}
	}
	t.Errorf("%s is not among %+v", name, infos)
}

// envSmallMemlock makes the test binary register memory under a small limit and without
// CAP_IPC_LOCK, instead of testing.
const envSmallMemlock = "IBCONDUIT_TEST_SMALL_MEMLOCK"

func TestMemlockFailureExplainsFiguresAndRemedy(t *testing.T) {
	name := rdmatest.Device(t)
	if os.Getenv(envSmallMemlock) == "1" {
		registerWithSmallMemlock(t, name)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), envSmallMemlock+"=1", rdmatest.EnvDevice+"="+name)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "explained:") {
		t.Errorf("%v\n%s", err, out)
	}
}

func registerWithSmallMemlock(t *testing.T, name string) {
	r := newRigIn(t, name, 16<<10)
	check(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 128 << 10, Max: 128 << 10}))
	dropIPCLock(t)
	big := mapped(t, 1<<20)
	mr, err := r.pd.Register(ptr(big), 1<<20, AccessAll)
	if err == nil {
		mr.Close()
		t.Fatal("1 MiB was pinned under a limit of 128 KiB")
	}
	holds(t, err, "1 MiB asked", "RLIMIT_MEMLOCK is 128 KiB", "without CAP_IPC_LOCK", "ulimit -l unlimited", "limits.conf")
	if !errors.Is(err, unix.ENOMEM) {
		t.Errorf("%v, want ENOMEM", err)
	}
	t.Logf("explained: %v", err)
}

// dropIPCLock takes CAP_IPC_LOCK from this goroutine's thread, which ends with it.
func dropIPCLock(t *testing.T) {
	t.Helper()
	lockThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	check(t, unix.Capget(&hdr, &data[0]))
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	check(t, unix.Capset(&hdr, &data[0]))
}

// The kernel asks for the capabilities of the thread that registers, which need not be those of the
// main thread, /proc/self's.
func TestMemlockIsThatOfTheCallingThread(t *testing.T) {
	lockThread()
	if unix.Gettid() == unix.Getpid() { // another thread runs what is started now
		t.Run("other", TestMemlockIsThatOfTheCallingThread)
		return
	}
	dropIPCLock(t)
	if ReadMemlock().CapIPCLck {
		t.Error("a thread without CAP_IPC_LOCK was said to have it")
	}
}
