//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// The orders that look right and are not are caught at the stops. The shipped one survives those,
// and eight threads that race (IBCONDUIT_STRESS: for how long).
func TestOnlyTheShippedOrderSurvives_08(t *testing.T) {
	env := []string{preload(t, "testmodes.so"), onlySymbols}
	for order, name := range []string{"shipped", "before only", "after only", "before and after"} {
		out, err := tryHelper(t, env, "order", fmt.Sprint(order))
		caught := strings.Contains(out, "stale hit")
		switch {
		case err != nil && !caught:
			t.Errorf("%s: %v\n%s", name, err, out)
		case caught != (order != 0):
			t.Errorf("%s: caught %v\n%s", name, caught, out)
		}
	}
}

// farAway is an address between Go's heap and what is mapped without a wish, not at the edge of a
// huge page.
const farAway = 0x5000_0010_0000

var _ = helper("order", func(t testing.TB, args []string) error {
	w := newWatcher(t, WatcherConfig{})
	var order uint32
	fmt.Sscan(args[0], &order)
	// Where no other mapping of the process comes while the page is gone: the kernel gives
	// addresses from the top down.
	p := must(t, memtest.Mmap, farAway, pageSize, rw, anonymous, noFD, 0)
	var entries []raceEntry
	// The miss path of a cache: an entry, or none if the range is changing.
	get := func() {
		r, err := w.Claim(p, p+pageSize, 0, CalledFromC)
		if err != nil {
			return
		}
		reg := register(p, 1)
		if w.Publish(r) {
			r.Release()
			entries = append(entries, raceEntry{r, reg})
		}
	}
	check := func(when string) error {
		for i, e := range entries {
			if e.Acquire() && e.lies() {
				return fmt.Errorf("stale hit on entry %d %s", i, when)
			}
		}
		return nil
	}
	for len(entries) == 0 {
		get()
	}
	memtest.SetOrder(order)
	memtest.StopAt(p)
	done := make(chan struct{})
	go func() { memtest.Call(memtest.Munmap, p, pageSize); close(done) }()
	await := func(stage uint32) {
		for memtest.Stopped() != stage {
			time.Sleep(time.Millisecond)
		}
	}
	await(1) // reported, if the order reports before; the pages are still there
	get()
	memtest.GoOnFrom(1)
	await(2) // the pages are gone; reported, if the order reports after: not yet
	if _, _, e := unix.RawSyscall6(unix.SYS_MMAP, p, pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0); e != 0 {
		return e
	}
	noError(t, check("while munmap runs"))
	memtest.GoOnFrom(2)
	<-done
	memtest.StopAt(0)
	if err := check("after munmap"); err != nil || order != 0 {
		return err
	}
	hits, err := race(w, newPages(raceRanges), memtest.Stress(500*time.Millisecond))
	if err == nil && hits == 0 {
		err = errors.New("no hit: nothing was tested")
	}
	return err
})

// A registrar that sleeps while the memory is discarded must not get a valid entry.
func TestChangeDuringRegistration_08(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	r, err := w.Claim(p, page(p, 1), 0, CalledFromC)
	noError(t, err)
	done := make(chan struct{})
	go func() { memtest.Call(memtest.Madvise, p, pageSize, unix.MADV_DONTNEED); close(done) }()
	<-done
	if w.Publish(r) {
		t.Error("published what was discarded meanwhile")
	}
	if n := w.Drain(nil); len(n) != 0 {
		t.Error("the registrar's entry was drained as well:", n)
	}
	w.Retire(r)
}

// While a change is in progress no caller has to wait: a registration of the range is refused,
// others go on.
func TestClaimDuringChangeIsRefusedAtOnce_08(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p, other := mapPages(t, 1), mapPages(t, 1)
	id := memtest.OpenWindow(p, page(p, 1))
	if _, err := w.Claim(p, page(p, 1), 0, CalledFromC); !errors.Is(err, ErrChanging) {
		t.Error("claim of a changing range:", err)
	}
	if _, err := w.ClaimLive(p, page(p, 1), 0, CalledFromC); !errors.Is(err, ErrChanging) {
		t.Error("claim of live memory in a changing range:", err)
	}
	if !Changing(p, page(p, 1)) || Changing(other, page(other, 1)) {
		t.Error("Changing is wrong")
	}
	evict(t, w, watch(t, w, other, page(other, 1), CalledFromC))
	memtest.CloseWindow(id)
	evict(t, w, watch(t, w, p, page(p, 1), CalledFromC))
}

func TestMoreChangesThanWindowsCloseAll_08(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	var ids []uint32
	for range 300 {
		ids = append(ids, memtest.OpenWindow(1<<40, 1<<40+pageSize))
	}
	if _, err := w.Claim(p, page(p, 1), 0, CalledFromC); !errors.Is(err, ErrChanging) {
		t.Error("claim while windows overflow:", err)
	}
	for _, id := range ids {
		memtest.CloseWindow(id)
	}
	evict(t, w, watch(t, w, p, page(p, 1), CalledFromC))
}

// Registrars, users and unmappers race, in turns of which a hit that is stale is provably so.
func TestRacingRegistrarsNeverKeepAStaleEntry(t *testing.T) {
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	hits, err := race(w, mapPages(t, raceRanges), memtest.Stress(500*time.Millisecond))
	if err != nil || hits == 0 {
		t.Errorf("%v; %d hits", err, hits)
	}
	t.Log(hits, "hits")
}

const raceRanges = 4

// raced is a page that eight threads register, look up and replace. mu is held for writing while it
// is replaced and for reading by lookups, so that a hit on what was replaced came after the call
// had returned.
type raced struct {
	mu  sync.RWMutex
	p   uintptr
	cur atomic.Pointer[raceEntry]
}

type raceEntry struct {
	Ref
	registration
}

// race returns how many hits there were, and what was wrong with one.
func race(w *Watcher, base uintptr, d time.Duration) (hits int64, err error) {
	var (
		ranges [raceRanges]raced
		stop   = make(chan struct{})
		wg     sync.WaitGroup
		single sync.Mutex // one registrar at a time, as in a cache's miss path
		count  atomic.Int64
		failed atomic.Pointer[error]
	)
	for i := range ranges {
		ranges[i].p = page(base, i)
	}
	threads := func(n int, f func(r *raced, round int) error) {
		for range n {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if err := f(&ranges[i%raceRanges], i/raceRanges); err != nil {
						failed.CompareAndSwap(nil, &err)
						return
					}
				}
			})
		}
	}
	threads(3, func(r *raced, _ int) error {
		single.Lock()
		defer single.Unlock()
		return r.register(w)
	})
	threads(3, func(r *raced, _ int) error { return r.lookUp(&count) })
	threads(2, func(r *raced, round int) error { return r.replace(round%2 == 0) })
	time.Sleep(d)
	// A busy machine takes longer
	for end := time.Now().Add(testTimeout); count.Load() == 0 && failed.Load() == nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	close(stop)
	wg.Wait()
	for i := range ranges {
		if err := ranges[i].lookUp(&count); err != nil {
			failed.CompareAndSwap(nil, &err)
		}
		if e := ranges[i].cur.Load(); e != nil && w.Evict(e.Ref) {
			w.Retire(e.Ref)
		}
	}
	for _, dead := range w.Drain(nil) {
		w.Retire(dead)
	}
	if e := failed.Load(); e != nil {
		return count.Load(), *e
	}
	return count.Load(), nil
}

// register makes an entry if there is none.
func (r *raced) register(w *Watcher) error {
	for _, dead := range w.Drain(nil) {
		if dead.Refs() != 0 {
			return fmt.Errorf("%v has %d references", dead, dead.Refs())
		}
		w.Retire(dead)
	}
	if e := r.cur.Load(); e != nil && e.Valid() {
		return nil
	}
	ref, err := w.Claim(r.p, page(r.p, 1), 0, CalledFromC)
	if err != nil { // it is being replaced
		return nil
	}
	e := &raceEntry{ref, register(r.p, 1)}
	if !w.Publish(ref) {
		w.Retire(ref)
		return nil
	}
	r.cur.Store(e)
	ref.Release()
	return nil
}

func (r *raced) lookUp(hits *atomic.Int64) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.cur.Load()
	if e == nil || !e.Acquire() {
		return nil
	}
	defer e.Release()
	hits.Add(1)
	if e.lies() {
		return errors.New("a stale hit: the page was replaced")
	}
	return nil
}

func (r *raced) replace(discard bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errno unix.Errno
	if discard {
		_, errno = memtest.Call(memtest.Madvise, r.p, pageSize, unix.MADV_DONTNEED)
	} else {
		_, errno = memtest.Call(memtest.Mmap, r.p, pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}
