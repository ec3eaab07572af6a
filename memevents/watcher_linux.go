//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher owns entries of the table: one for each registration cache. Its methods may be called by
// any number of goroutines.
type Watcher struct {
	m      *C.struct_ibc_mem
	id     C.uint32_t
	wakeup *os.File // a second descriptor of the watcher's eventfd, which itself is never closed
	closed atomic.Bool
}

// NewWatcher makes a watcher. The first call of the process tests the monitors; see Status.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	m := table()
	if forked(m) {
		return nil, errForked("new watcher")
	}
	Status()
	id := C.ibc_mem_watcher_open(m, C.uint64_t(cfg.deadLimit()))
	if id < 0 {
		return nil, &Error{Op: "new watcher", Err: ErrBusy,
			Detail: fmt.Sprintf("all %d watchers are in use", C.IBC_MEM_WATCHERS), Remedy: "close one"}
	}
	w := &Watcher{m: m, id: C.uint32_t(id)}
	var err error
	if w.wakeup, err = eventFile(&m.watcher[id].efd, "watcher"); err != nil {
		C.ibc_mem_watcher_close(m, w.id)
		return nil, err
	}
	var old [8]byte
	// What woke the last owner of this place
	unix.Read(int(i32(&m.watcher[id].efd).Load()-1), old[:])
	return w, nil
}

// eventFile returns a file for the eventfd that hooks write to, which it makes at the first time.
// Hooks may hold its number for a while, so the number stays taken for good and the file is a
// duplicate.
func eventFile(efd *C.int32_t, what string) (*os.File, error) {
	if was := i32(efd).Load(); was == 0 || !isEventfd(int(was)-1) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return nil, failed("eventfd", err, what, "raise the limit of open files (ulimit -n)")
		}
		var s unix.Stat_t
		if err := unix.Fstat(fd, &s); err != nil {
			unix.Close(fd)
			return nil, failed("fstat", err, what, "")
		}
		u64(&table().event_dev).Store(uint64(s.Dev))
		u64(&table().event_ino).Store(s.Ino)
		if !i32(efd).CompareAndSwap(was, int32(fd)+1) {
			unix.Close(fd)
		}
	}
	fd, err := unix.FcntlInt(uintptr(i32(efd).Load()-1), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, failed("dup", err, what, "raise the limit of open files (ulimit -n)")
	}
	return os.NewFile(uintptr(fd), "memevents "+what), nil
}

// isEventfd: the program may have closed the descriptor, and have another file in its place.
func isEventfd(fd int) bool {
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && to == "anon_inode:[eventfd]"
}

func failed(op string, err error, detail, remedy string) error {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &Error{Op: op, Errno: errno, Detail: detail, Remedy: remedy}
}

// Close gives the watcher back. It refuses with ErrBusy while entries are claimed. It is
// idempotent.
func (w *Watcher) Close() error {
	if forked(w.m) {
		return errForked("close watcher")
	}
	if !w.closed.CompareAndSwap(false, true) {
		return nil
	}
	if busy := C.ibc_mem_watcher_close(w.m, w.id); busy != 0 {
		w.closed.Store(false)
		return &Error{Op: "close watcher", Err: ErrBusy, Detail: fmt.Sprintf("%d ranges are still claimed", busy),
			Remedy: "retire them first"}
	}
	return w.wakeup.Close()
}

// Claim announces that the pages of [lo, hi), all of them mapped, are about to be registered, and
// returns the entry that will say whether they are still the same. need has the classes that the
// caller cannot rule out for this memory. The tag is the caller's own. On success the caller
// registers, then calls Publish, or Retire if registering failed. On any error it registers for
// this operation only, or not at all.
func (w *Watcher) Claim(lo, hi uintptr, tag uint32, need Classes) (Ref, error) {
	return w.claim(lo, hi, tag, need, C.IBC_MEM_LOOK_ALL)
}

// ClaimLive is Claim for a range of which every page is in use by the caller until Publish: live
// objects, allocated blocks, maps that no other thread of the program discards meanwhile. It is not
// for a range that was widened over pages of which the caller knows nothing, such as those between
// two registrations. In return it is not refused because of discards without a reported end;
// the package documentation says why it is safe.
func (w *Watcher) ClaimLive(lo, hi uintptr, tag uint32, need Classes) (Ref, error) {
	return w.claim(lo, hi, tag, need, C.IBC_MEM_LOOK_CALLS)
}

func (w *Watcher) claim(lo, hi uintptr, tag uint32, need Classes, look C.int) (Ref, error) {
	page := uintptr(os.Getpagesize())
	from, to := lo&^(page-1), (hi+page-1)&^(page-1)
	switch {
	case w.closed.Load():
		return Ref{}, &Error{Op: "claim", Err: os.ErrClosed}
	case lo >= hi || to < hi:
		return Ref{}, &Error{Op: "claim", Errno: syscall.EINVAL, Detail: fmt.Sprintf("[%#x,%#x) is not a range", lo, hi)}
	}
	if u32(&w.m.doubt).Load() != 0 {
		Retest()
	}
	everywhere, somewhere := covered()
	if missing := need &^ somewhere; missing != 0 {
		return Ref{}, errUnseen(missing)
	}
	var slot C.uint32_t
	uffd := cbool(need&^everywhere != 0)
	switch C.ibc_mem_claim(w.m, w.id, C.uint64_t(from), C.uint64_t(to), C.uint32_t(tag), uffd, look, &slot) {
	case C.IBC_MEM_UNWATCHED:
		return Ref{}, &Error{Op: "claim", Err: ErrUnwatched,
			Detail: fmt.Sprintf("userfaultfd does not take [%#x,%#x)", from, to)}
	case C.IBC_MEM_FULL:
		return Ref{}, &Error{Op: "claim", Err: ErrFull, Detail: fmt.Sprintf("%d ranges", Slots),
			Remedy: "evict an idle one"}
	case C.IBC_MEM_CHANGING:
		return Ref{}, errChanging
	case C.IBC_MEM_FORKED:
		return Ref{}, errForked("claim")
	}
	if u32(&w.m.doubt).Load() != 0 { // a library came since
		C.ibc_mem_retire(w.m, slot)
		return Ref{}, errChanging
	}
	// A Retest that loses a class invalidates claimed ranges, after it said so here.
	if e, s := covered(); need&(everywhere&^e|somewhere&^s) != 0 {
		C.ibc_mem_retire(w.m, slot)
		return Ref{}, errUnseen(need & (everywhere&^e | somewhere&^s))
	}
	e := slotOf(w.m, slot)
	return Ref{e: e, valid: e.state.Load()&^3 | valid}, nil
}

func errUnseen(missing Classes) error {
	return &Error{Op: "claim", Err: ErrUnwatched, Detail: "no monitor sees " + missing.String(), Remedy: "see Status"}
}

// It is met on a busy path, and always reads the same.
var errChanging error = &Error{Op: "claim", Err: ErrChanging}

// Publish makes the entry of a finished registration available to Acquire, and acquires it once for
// the caller. False means that the range changed while it was being registered: the caller
// deregisters and Retires, and may try once more. It waits, for some microseconds, while events of
// userfaultfd are being dealt with.
func (w *Watcher) Publish(r Ref) bool {
	if forked(w.m) || !gatePassed(w.m) {
		return false
	}
	r.e.refs.Add(1)
	if r.e.state.CompareAndSwap(r.valid&^3|pending, r.valid) {
		return true
	}
	r.e.refs.Add(-1)
	return false
}

// Settle does the waiting of Publish beforehand: for an owner that publishes under a lock.
func (w *Watcher) Settle() { gatePassed(w.m) }

// gatePassed waits until what userfaultfd had reported before the call is dealt with: the calls
// that it reported may have returned. False: the reader has not moved for a second.
func gatePassed(m *C.struct_ibc_mem) bool {
	g := gate.Load()
	for i := 0; g&1 != 0 && gate.Load() == g; i++ {
		switch {
		case i < 1000:
			runtime.Gosched()
		case i == 1000:
			C.ibc_mem_gate_wait(m)
		default:
			return false
		}
	}
	return true
}

// Evict takes an entry out of use because its owner wants to. True: from now on Acquire fails, and
// the caller deregisters and Retires when Refs is 0. False: the range changed before, and Drain
// delivers the entry.
func (w *Watcher) Evict(r Ref) bool {
	return r.e.state.CompareAndSwap(r.valid, r.valid&^3|stale)
}

// Retire ends an entry that is the caller's: its registration failed, or Publish said no, Evict
// yes, or Drain delivered it; and it is deregistered and unreferenced. The Ref fits nothing
// afterwards.
func (w *Watcher) Retire(r Ref) {
	s := r.e.state.Load()
	if s != r.valid&^3|pending && s != r.valid&^3|stale {
		panic(fmt.Sprintf("memevents: retired %v, which is valid, or was retired before", r))
	}
	C.ibc_mem_retire(w.m, r.slot(w.m))
}

// Drain appends to dst the entries that were invalidated since the last call, each once. They are
// then the caller's: it deregisters and Retires each as soon as its Refs is 0. It calls C only if
// there are any.
func (w *Watcher) Drain(dst []Ref) []Ref {
	var slots [64]C.uint32_t
	if w.closed.Load() { // its place may be another's
		return dst
	}
	d := &w.m.watcher[w.id]
	// signalled by itself: a hook sets it late, when the list was drained already. Left standing,
	// it would keep the next wake back.
	for u32(&d.dead_head).Load() != 0 || u32(&d.signalled).Load() != 0 {
		n := C.ibc_mem_drain(w.m, w.id, &slots[0], C.uint32_t(len(slots)))
		for _, slot := range slots[:n] {
			e := slotOf(w.m, slot)
			dst = append(dst, Ref{e: e, valid: e.state.Load()&^3 | valid})
		}
		if int(n) < len(slots) {
			break
		}
	}
	return dst
}

// Dead says what waits to be drained. The two numbers are read one after the other.
func (w *Watcher) Dead() (ranges int, bytes int64) {
	if w.closed.Load() {
		return 0, 0
	}
	d := &w.m.watcher[w.id]
	return int(u64(&d.dead_count).Load()), int64(u64(&d.dead_bytes).Load())
}

// Wait returns nil when more than MaxDeadBytes are dead, which it reports once until the next
// Drain; otherwise the context's error, or os.ErrClosed.
func (w *Watcher) Wait(ctx context.Context) error {
	if forked(w.m) { // the descriptor is the parent's too, whose event this would take
		return errForked("wait")
	}
	return waitEvent(ctx, w.wakeup)
}

// waitEvent waits for an eventfd in the runtime's poller.
func waitEvent(ctx context.Context, f *os.File) error {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var n [8]byte
	_, err := f.Read(n[:])
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Changing reports whether some part of the range is being changed at this moment.
func Changing(lo, hi uintptr) bool {
	return C.ibc_mem_changing(table(), C.uint64_t(lo), C.uint64_t(hi), C.IBC_MEM_LOOK_ALL) != 0 || forked(table())
}
