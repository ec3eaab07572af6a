//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// slow makes a put of src wait: its peer does not answer.
func (r *rig) slow(l *lane, src []byte, f fabric.Flag) fabric.Handle {
	r.Helper()
	settle(r.TB, src)
	r.mute(1, 0)
	h, err := l.Put(1, 0, src, f)
	r.must("put", err)
	return h
}

func TestARegistrationIsGivenBack(t *testing.T) {
	for _, f := range []fabric.Flag{0, fabric.Implicit} {
		for name, end := range map[string]func(r *rig, l *lane, h fabric.Handle){
			"the peer dies": func(r *rig, l *lane, h fabric.Handle) {
				r.nets[0].PeerDown(1, errKilled)
				_, err := l.Wait(r.ctx, h)
				if err = errors.Join(err, l.Flush(r.ctx)); !errors.Is(err, errKilled) {
					r.Errorf("wait and flush: %v", err)
				}
			},
			"the context ends, then the peer dies": func(r *rig, l *lane, h fabric.Handle) {
				over, cancel := context.WithCancel(r.ctx)
				cancel()
				_, err := l.Wait(over, h)
				if err = errors.Join(err, l.Flush(over)); !errors.Is(err, context.Canceled) {
					r.Errorf("wait and flush: %v", err)
				}
				if r.out() != 1 {
					r.Errorf("%d registrations are out while the operation goes on, want 1", r.out())
				}
				r.nets[0].PeerDown(1, errKilled)
				_, _ = l.Wait(r.ctx, h)
				_ = l.Flush(r.ctx)
			},
			"the lane is closed, and opened again": func(r *rig, l *lane, h fabric.Handle) {
				_ = l.Close()
				r.nets[0].PeerDown(1, errKilled)
				r.must("close of the next lane", r.lane(0).Close())
			},
			"the network is closed": func(r *rig, l *lane, h fabric.Handle) {
				r.must("close of the lane", l.Close()) // which is not polled from then on
				if r.out() != 1 {
					r.Errorf("%d registrations are out, want 1", r.out())
				}
				r.must("close of the network", r.nets[0].Close())
			},
			"the lane is lost": func(r *rig, l *lane, h fabric.Handle) {
				_ = l.set.lose(errKilled)
				// Only from RESET: in another state the device may still work on it
				r.must("INIT after RESET", l.set.queues[1].qp.Init(verbs.InitAttr{}))
				if _, err := l.Wait(r.ctx, h); h != fabric.Done && !errors.Is(err, errKilled) {
					r.Errorf("wait: %v", err)
				}
			},
			"the device gives up": func(r *rig, l *lane, h fabric.Handle) {
				_, _ = l.Wait(r.ctx, h)
				if err := l.Flush(r.ctx); h == fabric.Done {
					r.down("flush", err, 1, verbs.StatusRetryExceeded)
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, flags %d", name, f), func(t *testing.T) {
				cfg := Config{Lanes: 1}
				if name == "the device gives up" {
					cfg = quick(cfg)
				}
				r := newRig(t, 2, cfg)
				l := r.lane(0)
				h := r.slow(l, make([]byte, 700<<10), f)
				if r.out() != 1 && cfg.retries == 0 {
					t.Fatalf("%d registrations are out, want 1", r.out())
				}
				end(r, l, h)
				if r.out() != 0 {
					t.Errorf("%d registrations are out at the end", r.out())
				}
			})
		}
	}
}

// An operation whose last pieces find no room because the peer died has the buffer back when it
// fails.
func TestACutOperationGivesItsRegistrationBack(t *testing.T) {
	for name, post := range map[string]func(l *lane, b []byte, f fabric.Flag) (fabric.Handle, error){
		"put": func(l *lane, b []byte, f fabric.Flag) (fabric.Handle, error) { return l.Put(1, 0, b, f) },
		"get": func(l *lane, b []byte, f fabric.Flag) (fabric.Handle, error) { return l.Get(1, 0, b, f) },
	} {
		for _, f := range []fabric.Flag{0, fabric.Implicit} {
			t.Run(fmt.Sprintf("%s, flags %d", name, f), func(t *testing.T) {
				r := newRig(t, 2, Config{Depth: 4, Lanes: 1})
				r.nets[0].piece = 16 << 10
				l := r.lane(0)
				r.mute(1, 0)
				timer := time.AfterFunc(50*time.Millisecond, func() { r.nets[0].PeerDown(1, errKilled) })
				defer timer.Stop()
				mem := make([]byte, 20*16<<10)
				settle(t, mem)
				_, err := post(l, mem, f)
				r.down(name, err, 1, errKilled)
				refused := l.counters.Load().Unregistered > 0 // copied then, which needs no end
				if r.out() != 0 || l.set.tx.out != 0 && !refused {
					t.Errorf("%d registrations and %d work requests are out", r.out(), l.set.tx.out)
				}
				_ = l.Flush(r.ctx)
				r.idle(l)
			})
		}
	}
}

// failing refuses every registration.
type failing struct{ errno syscall.Errno }

func (f failing) Register(uintptr, uint64, regcache.Access) (regcache.MR, error) { return nil, f.errno }

// withRegistrar replaces a rank's registrar before its first use.
func (r *rig) withRegistrar(rank int, g regcache.Registrar) {
	r.Helper()
	n := r.nets[rank]
	r.must("close of the cache", n.mem.cache.Close())
	c, err := regcache.New(regcache.Config{Registrar: g})
	r.must("new cache", err)
	n.mem.cache = c
}

func TestWhatCannotBeRegisteredIsCopied(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.ENOMEM, unix.EPERM, unix.EFAULT, unix.EINVAL, unix.EAGAIN} {
		t.Run(errno.Error(), func(t *testing.T) {
			r := newRig(t, 2, Config{ZeroCopyMin: 4096})
			r.withRegistrar(0, failing{errno})
			l := r.lane(0)
			mem := make([]byte, 300<<10)
			fill(mem, 1)
			r.put(l, 0, mem)
			clear(mem)
			r.get(l, 0, mem)
			if !filled(mem, 1) {
				t.Error("other bytes arrived")
			}
			if c := l.counters.Load(); c.Unregistered != 2 || c.Bounced != 2 || c.ZeroCopy != 0 || c.Completed != 2 || c.Errors != 0 {
				t.Errorf("%+v", c)
			}
			r.idle(l)
		})
	}
}

// A device refuses more than may be locked. Root is not bound by the limit, so the capability goes
// for a while.
func TestBeyondTheMemlockLimitTheSlabServes(t *testing.T) {
	limit := withoutLocking(t) // before the device is opened: it serves only the credentials of then
	r := newRig(t, 2, Config{ZeroCopyMin: 4096})
	l := r.lane(0)
	mem := mapped(t, 256<<10)
	fill(mem, 1)
	limit(uint64(verbs.ReadMemlock().Pinned) + 64<<10)
	r.put(l, 0, mem)
	if !filled(r.segs[1][:len(mem)], 1) {
		t.Error("other bytes arrived")
	}
	if c := l.counters.Load(); c.Unregistered != 1 || c.Bounced != 1 || c.ZeroCopy != 0 {
		t.Errorf("above the limit: %+v", c)
	}
	r.put(l, 0, mem[:16<<10])
	if c := l.counters.Load(); c.Unregistered != 1 || c.Bounced != 1 || c.ZeroCopy != 1 {
		t.Errorf("within the limit: %+v", c)
	}
}

// withoutLocking takes CAP_IPC_LOCK from this thread, and returns how to set RLIMIT_MEMLOCK.
func withoutLocking(t *testing.T) func(bytes uint64) {
	t.Helper()
	// Capabilities are a thread's. It ends with the test, since the kernel lets only threads of the
	// credentials with which a device was opened write to it, and those that were set back are
	// others (ib_safe_file_access, include/rdma/ib.h).
	runtime.LockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had, d [2]unix.CapUserData
	if err := unix.Capget(&h, &had[0]); err != nil {
		t.Fatal(err)
	}
	d = had
	d[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	var old unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old), unix.Capset(&h, &d[0])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Capset(&h, &had[0]), unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)); err != nil {
			t.Error(err)
		}
	})
	return func(bytes uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
	}
}
