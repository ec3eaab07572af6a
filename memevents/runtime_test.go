//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/memtest"
)

// The Go runtime discards and maps: in processes of their own, so that a hang is an end by the
// clock and not the suite's.

// ---- the scavenger ----

// Go memory that was dropped goes back to the system unseen by hooks. Nothing valid may be left on
// it: because userfaultfd reported it, or because nothing was claimed. The control claims as if
// only C code discarded.
func TestScavengedMemoryIsNoHit_04(t *testing.T) {
	for _, c := range []struct{ name, monitors, need, want string }{
		{"userfaultfd", "symbols,userfaultfd", "go heap", "no stale hit"},
		{"policy", "symbols", "go heap", "refused"},
		{"control", "symbols", "called from c", "stale hit on"},
	} {
		for _, preloaded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s preload=%v", c.name, preloaded), func(t *testing.T) {
				env := []string{EnvMonitors + "=" + c.monitors}
				if preloaded {
					env = append(env, preload(t, "libmemevents.so"))
				}
				if c.name == "userfaultfd" {
					needUffd(t)
				}
				wants(t, runHelper(t, env, "scavenge", c.need), c.want)
			})
		}
	}
}

var _ = helper("scavenge", func(t testing.TB, args []string) error {
	w := newWatcher(t, WatcherConfig{})
	pagemap, err := os.Open("/proc/self/pagemap")
	noError(t, err)
	need := ForGoHeap
	if args[0] == "called from c" {
		need = CalledFromC
	}
	debug.SetMemoryLimit(24 << 20) // so that the scavenger has work
	s := scavenging{w: w, pagemap: pagemap, need: need}
	end := time.Now().Add(3 * time.Second)
	goesOn := func() bool { // a busy machine takes longer until the scavenger has done something
		nothing := need == CalledFromC || s.gone == 0
		return s.stale == "" && (time.Now().Before(end) || nothing && time.Now().Before(end.Add(testTimeout)))
	}
	for goesOn() {
		if err := s.round(); errors.Is(err, ErrUnwatched) {
			fmt.Println("refused")
			return nil
		}
	}
	switch {
	case s.stale != "":
		fmt.Println(s.stale)
	case s.gone == 0:
		return fmt.Errorf("of %d ranges none went back to the system: nothing was tested", s.watched)
	default:
		fmt.Printf("no stale hit, %d ranges, %d discarded\n", s.watched, s.gone)
	}
	return nil
})

type scavenging struct {
	w             *Watcher
	pagemap       *os.File
	need          Classes
	live          []Ref
	watched, gone int
	stale         string
}

// round watches some Go memory, drops it and looks for a while at what is still valid.
func (s *scavenging) round() error {
	for range 4 {
		heap := make([]byte, 4<<20)
		for i := 0; i < len(heap); i += int(pageSize) {
			heap[i] = 1
		}
		lo, hi, _, _ := sliceRange(heap)
		r, err := s.w.ClaimLive(lo, hi, 0, s.need)
		if err != nil {
			return err
		}
		if s.w.Publish(r) {
			r.Release()
			s.live = append(s.live, r)
			s.watched++
		} else {
			s.w.Retire(r)
		}
		runtime.KeepAlive(heap)
	}
	runtime.GC()
	for range 20 {
		time.Sleep(time.Millisecond)
		s.look()
	}
	for _, r := range s.w.Drain(nil) {
		s.gone++
		s.w.Retire(r)
	}
	return nil
}

// look finds a valid entry of which a page is no longer there. All pages were written to before, so
// one that is missing was discarded, and the entry should have been stale before that.
func (s *scavenging) look() {
	valid := s.live[:0]
	for _, r := range s.live {
		if !r.Valid() {
			continue
		}
		valid = append(valid, r)
		if !s.missing(r) || !r.Acquire() {
			continue
		}
		r.Release()
		s.stale = fmt.Sprintf("stale hit on %v", r)
	}
	s.live = valid
}

// missing reports whether a page of the range is neither present nor swapped out (pagemap,
// proc(5)).
func (s *scavenging) missing(r Ref) bool {
	lo, hi := r.Range()
	bits := make([]byte, (hi-lo)/pageSize*8)
	if _, err := s.pagemap.ReadAt(bits, int64(lo/pageSize)*8); err != nil {
		return false
	}
	for ; len(bits) > 0; bits = bits[8:] {
		if binary.LittleEndian.Uint64(bits)>>62 == 0 {
			return true
		}
	}
	return false
}

// ---- nothing hangs ----

// The reader is a thread of C: with one processor, and with two, the collector and the kernel's
// events go on side by side. A reader that is a goroutine hangs here at once.
func TestCollectorAndReaderDoNotDeadlock_13(t *testing.T) {
	needUffd(t)
	duration := 10 * time.Second
	if long() {
		duration = time.Minute
	}
	var wg sync.WaitGroup
	for _, procs := range []string{"1", "2"} {
		wg.Go(func() {
			out, err := tryHelper(t, []string{"GOMAXPROCS=" + procs}, "collect", duration.String())
			if err != nil {
				t.Errorf("GOMAXPROCS=%s: %v\n%s", procs, err, out)
			}
			t.Logf("GOMAXPROCS=%s: %s", procs, out)
		})
	}
	wg.Wait()
}

var _ = helper("collect", func(t testing.TB, args []string) error {
	duration, err := time.ParseDuration(args[0])
	noError(t, err)
	w := newWatcher(t, WatcherConfig{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	_, before := memtest.ReaderEvents()
	reported, rounds := uint64(0), 0
	end := time.Now().Add(duration)
	for ; time.Now().Before(end) || reported == 0 && time.Now().Before(end.Add(testTimeout)); rounds++ {
		heap := make([]byte, 4<<20)
		heap[0], heap[len(heap)-1] = 1, 1
		if r, err := w.ClaimLive(sliceRange(heap)); err == nil {
			if w.Publish(r) {
				r.Release()
			} else {
				w.Retire(r)
			}
		}
		runtime.KeepAlive(heap)
		heap = nil
		debug.FreeOSMemory()
		for _, r := range w.Drain(nil) {
			w.Retire(r)
		}
		_, now := memtest.ReaderEvents()
		reported = now - before
	}
	close(stop)
	wg.Wait()
	fmt.Printf("%d rounds, %d discards reported", rounds, reported)
	if reported == 0 {
		return errors.New("no discarded memory was reported: nothing was tested")
	}
	return Verify()
})

// ---- the runtime's own mmap ----

// The runtime maps memory with its locks held, in the middle of a collection, through our hook:
// with ranges watched and a handler in place.
func TestTheRuntimesOwnMmapInsideTheHook_11(t *testing.T) {
	calls := 1000
	if long() {
		calls = 100000
	}
	for _, procs := range []string{"1", "2"} {
		out := runHelper(t, []string{"GOMAXPROCS=" + procs}, "grow", strconv.Itoa(calls))
		t.Logf("GOMAXPROCS=%s: %s", procs, out)
	}
}

var _ = helper("grow", func(t testing.TB, args []string) error {
	want, err := strconv.ParseUint(args[0], 10, 64)
	noError(t, err)
	w := newWatcher(t, WatcherConfig{})
	AdviseHuge(1 << 40) // a handler that looks at every mmap
	p := newPages(1000)
	var refs []Ref
	for i := range 1000 {
		r := watchPage(t, w, page(p, i), CalledFromC)
		refs = append(refs, r)
	}
	// Addresses are what is used up: this memory is not written to.
	before := memtest.CallsSeen(memtest.Mmap)
	var keep [][]byte
	for i := 0; memtest.CallsSeen(memtest.Mmap)-before < want; i++ {
		keep = append(keep, make([]byte, 4<<20))
		if i%64 == 0 {
			go runtime.GC()
		}
		if uint64(i) > 20*want {
			return fmt.Errorf("only %d calls in %d allocations", memtest.CallsSeen(memtest.Mmap)-before, i)
		}
	}
	runtime.KeepAlive(keep)
	for _, r := range refs {
		if !r.Valid() {
			return fmt.Errorf("the runtime's calls invalidated %v", r)
		}
	}
	fmt.Printf("%d calls of mmap", memtest.CallsSeen(memtest.Mmap)-before)
	return Verify()
})
