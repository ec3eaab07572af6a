//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// A program that closes all descriptors closes ours: then what the kernel was to report is no
// longer valid, nor can be claimed, and the reader is at rest. What hooks see goes on.
func TestClosedDescriptorEndsKernelWatch_17(t *testing.T) {
	needUffd(t)
	wants(t, runHelper(t, nil, "closeall"), "closed the descriptor")
}

// closeUffd closes our descriptor behind the package's back.
func closeUffd(t testing.TB) {
	t.Helper()
	noError(t, unix.Close(int(i32(&table().uffd).Load())-1))
}

// ends waits until an entry is invalid and the reader at rest.
func ends(r Ref) error {
	for end := time.Now().Add(testTimeout); r.Valid() || gate.Load()&1 != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("valid still, or the gate stays odd")
		}
	}
	return nil
}

// unmapReturns reports an error if a raw munmap of the page does not come back.
func unmapReturns(p uintptr) error {
	freed := make(chan struct{})
	go func() {
		unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
		close(freed)
	}()
	select {
	case <-freed:
		return nil
	case <-time.After(testTimeout):
		return errors.New("a call that unmaps does not return")
	}
}

// newPipe returns the ends of a pipe of the program's, which has that text in it.
func newPipe(t testing.TB, text string) (read, write int) {
	t.Helper()
	var pipe [2]int
	noError(t, unix.Pipe2(pipe[:], unix.O_NONBLOCK))
	_, err := unix.Write(pipe[1], []byte(text))
	noError(t, err)
	return pipe[0], pipe[1]
}

// stillHas reports an error unless the pipe has that text in it.
func stillHas(pipe int, text string) error {
	left := make([]byte, 2*len(text))
	if n, err := unix.Read(pipe, left); err != nil || string(left[:n]) != text {
		return fmt.Errorf("%q is left in the program's pipe: %v", left[:max(n, 0)], err)
	}
	return nil
}

var _ = helper("closeall", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	p := newPages(2)
	r := watchPage(t, w, p, ForGoMap)
	closeUffd(t)
	unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
	noError(t, ends(r))
	if _, err := claimSoon(w, page(p, 1), ForGoMap); !errors.Is(err, ErrUnwatched) {
		return fmt.Errorf("claim of what the kernel is to watch: %v", err)
	}
	c, err := claimSoon(w, page(p, 1), CalledFromC)
	if err != nil || !w.Publish(c) {
		return fmt.Errorf("claim of what hooks see: %v", err)
	}
	if c.Release(); !c.Acquire() {
		return errors.New("no hit on what hooks see")
	}
	report := Retest()
	if _, somewhere := report.Covered(); somewhere.Has(Set(RawUnmap)) || !somewhere.Has(CalledFromC) {
		return fmt.Errorf("covered: %v", somewhere)
	}
	if why := report.Classes[RawUnmap].Why; !strings.Contains(why, "closed its descriptor") {
		return fmt.Errorf("the report says: %s", why)
	}
	return nil
})

// Our descriptor may not only be closed: the next file that the program opens takes its number.
// What that file holds is the program's, and what the kernel was to report is over.
func TestFileInUffdsPlaceIsNotRead_17(t *testing.T) {
	needUffd(t)
	for _, when := range []string{"before a claim", "before an event", "with nothing to read"} {
		t.Run(when, func(t *testing.T) {
			wants(t, runHelper(t, nil, "reusefd", when), "descriptor of userfaultfd")
		})
	}
}

var _ = helper("reusefd", func(t testing.TB, args []string) error {
	w := newWatcher(t, WatcherConfig{})
	p := newPages(2)
	r := watchPage(t, w, p, ForGoMap)
	text := strings.Repeat("of the program", 100)
	if args[0] == "with nothing to read" {
		text = ""
	}
	pipe, _ := newPipe(t, text)
	noError(t, unix.Dup2(pipe, int(i32(&table().uffd).Load())-1))
	var freed sync.WaitGroup
	if args[0] == "before a claim" {
		if _, err := claimSoon(w, page(p, 1), ForGoMap); !errors.Is(err, ErrUnwatched) {
			return fmt.Errorf("claim of what the kernel is to watch: %v", err)
		}
	} else {
		freed.Go(func() { unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0) }) // waits for the reader
	}
	noError(t, ends(r))
	freed.Wait()
	return stillHas(pipe, text)
})

// Hooks wake Go through descriptors too: never a file that has come in their place.
func TestFileInEventsPlaceIsNotWritten_17(t *testing.T) { runHelper(t, nil, "reuseevent") }

var _ = helper("reuseevent", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	p := newPages(1)
	r := watchPage(t, w, p, CalledFromC)
	file, err := unix.MemfdCreate("the program's", 0)
	noError(t, err)
	noError(t, unix.Dup2(file, int(i32(&w.m.watcher[w.id].efd).Load())-1))
	memtest.Call(memtest.Munmap, p, pageSize)
	var s unix.Stat_t
	if err := unix.Fstat(file, &s); err != nil || r.Valid() || u32(&w.m.watcher[w.id].signalled).Load() == 0 {
		return fmt.Errorf("no event was due: %v", err)
	}
	if s.Size != 0 {
		return fmt.Errorf("%d bytes were written to the program's file", s.Size)
	}
	return nil
})

// The next owner of a watcher's place must not read from a file that has come in the descriptor's.
func TestFileInEventsPlaceIsNotRead_17(t *testing.T) {
	runHelper(t, nil, "reuseread")
}

var _ = helper("reuseread", func(t testing.TB, _ []string) error {
	efd := &table().watcher[0].efd
	open := func() error {
		w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
		p := newPages(1)
		watchPage(t, w, p, CalledFromC)
		memtest.Call(memtest.Munmap, p, pageSize)
		noError(t, w.Wait(context.Background()))
		for _, r := range w.Drain(nil) {
			w.Retire(r)
		}
		return w.Close()
	}
	noError(t, open())
	const text = "of the program, as you see"
	pipe, _ := newPipe(t, text)
	noError(t, unix.Dup2(pipe, int(i32(efd).Load())-1))
	noError(t, open())
	return stillHas(pipe, text)
})

// The reader writes what has happened to standard error, and does not wait until that is read:
// callers wait for the reader.
func TestReaderDoesNotWaitForStandardError_17(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "fullstderr")
}

var _ = helper("fullstderr", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	p := newPages(1)
	watchPage(t, w, p, ForGoMap)
	_, full := newPipe(t, "")
	var err error
	for err == nil {
		_, err = unix.Write(full, make([]byte, 4096))
	}
	_, err = unix.FcntlInt(uintptr(full), unix.F_SETFL, 0)
	noError(t, err)
	noError(t, unix.Dup2(full, 2))
	closeUffd(t)
	return unmapReturns(p)
})

// What the program has in the descriptor's place reports nothing, whatever it answers.
func TestFileInUffdsPlaceReportsNothing_17(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "asksanother")
}

var _ = helper("asksanother", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	if !w.Reported() {
		return errors.New("not reported, though nothing was unmapped")
	}
	other, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	noError(t, err)
	noError(t, unix.Dup2(other, int(i32(&table().uffd).Load())-1))
	if w.Reported() || w.WaitReported() {
		return errors.New("reported by a file that is no userfaultfd")
	}
	return nil
})
