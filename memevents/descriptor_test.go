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
)

// A program that closes all descriptors closes ours: then what the kernel was to tell of is no longer valid, nor can be
// claimed, and the reader is at rest. What hooks see goes on.
func TestClosedDescriptorEndsWhatTheKernelWatched_17(t *testing.T) {
	needUffd(t)
	if out := runHelper(t, nil, "closeall"); !strings.Contains(out, "closed the descriptor") {
		t.Errorf("nothing was said: %q", out)
	}
}

func init() {
	helpers["closeall"] = func([]string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		p := newPages(2)
		r, err := published(w, p, ForGoMap)
		if err != nil {
			return err
		}
		if err := unix.Close(int(i32(&table().uffd).Load()) - 1); err != nil {
			return err
		}
		unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
		for end := time.Now().Add(patience); r.Valid() || gate.Load()&1 != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("valid still, or the gate stays odd")
			}
		}
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
	}
}

// Our descriptor may not only be closed: the next file that the program opens takes its number. What that file holds is the
// program's, and what the kernel was to tell of is over.
func TestAnotherFileInTheDescriptorsPlaceIsNotRead_17(t *testing.T) {
	needUffd(t)
	for _, when := range []string{"before a claim", "before an event", "with nothing to read"} {
		t.Run(when, func(t *testing.T) {
			if out := runHelper(t, nil, "reusefd", when); !strings.Contains(out, "descriptor of userfaultfd") {
				t.Errorf("nothing was said: %q", out)
			}
		})
	}
}

func init() {
	helpers["reusefd"] = func(args []string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		p := newPages(2)
		r, err := published(w, p, ForGoMap)
		if err != nil {
			return err
		}
		text := strings.Repeat("of the program", 100)
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK); err != nil {
			return err
		}
		if args[0] == "with nothing to read" {
			text = ""
		}
		if _, err := unix.Write(pipe[1], []byte(text)); err != nil {
			return err
		}
		if err := unix.Dup2(pipe[0], int(i32(&table().uffd).Load())-1); err != nil {
			return err
		}
		var freed sync.WaitGroup
		if args[0] == "before a claim" {
			if _, err := claimSoon(w, page(p, 1), ForGoMap); !errors.Is(err, ErrUnwatched) {
				return fmt.Errorf("claim of what the kernel is to watch: %v", err)
			}
		} else {
			freed.Go(func() { unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0) }) // waits for the reader
		}
		for end := time.Now().Add(patience); r.Valid() || gate.Load()&1 != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("valid still, or the gate stays odd")
			}
		}
		freed.Wait()
		left := make([]byte, 2*len(text))
		if n, err := unix.Read(pipe[0], left); err != nil || string(left[:n]) != text {
			return fmt.Errorf("%d of %d bytes are left in the program's pipe: %v", n, len(text), err)
		}
		return nil
	}
}

// Hooks wake Go through descriptors too: never a file that has come in their place.
func TestNothingIsWrittenToAFileInTheEventsPlace_17(t *testing.T) { runHelper(t, nil, "reuseevent") }

func init() {
	helpers["reuseevent"] = func([]string) error {
		w, err := NewWatcher(WatcherConfig{MaxDeadBytes: -1})
		if err != nil {
			return err
		}
		p := newPages(1)
		r, err := published(w, p, CalledFromC)
		if err != nil {
			return err
		}
		file, err := unix.MemfdCreate("the program's", 0)
		if err != nil {
			return err
		}
		if err := unix.Dup2(file, int(i32(&w.m.watcher[w.id].efd).Load())-1); err != nil {
			return err
		}
		cCall(callMunmap, p, pageSize)
		var s unix.Stat_t
		if err := unix.Fstat(file, &s); err != nil || r.Valid() || u32(&w.m.watcher[w.id].signalled).Load() == 0 {
			return fmt.Errorf("no event was due: %v", err)
		}
		if s.Size != 0 {
			return fmt.Errorf("%d bytes were written to the program's file", s.Size)
		}
		return nil
	}
}

// The next owner of a watcher's place must not read from a file that has come in the descriptor's.
func TestNothingIsReadFromAFileInTheEventsPlace_17(t *testing.T) {
	runHelper(t, nil, "reuseread", "watcher")
	runHelper(t, nil, "reuseread", "subscription")
}

func init() {
	helpers["reuseread"] = func(args []string) error {
		efd := &table().ring_efd
		open := func() error {
			s, err := Subscribe(0)
			if err == nil {
				s.Close()
			}
			return err
		}
		if args[0] == "watcher" {
			efd = &table().watcher[0].efd
			open = func() error {
				w, err := NewWatcher(WatcherConfig{MaxDeadBytes: -1})
				if err != nil {
					return err
				}
				p := newPages(1)
				if _, err := published(w, p, CalledFromC); err != nil {
					return err
				}
				cCall(callMunmap, p, pageSize)
				if err := w.Wait(context.Background()); err != nil {
					return err
				}
				for _, r := range w.Drain(nil) {
					w.Retire(r)
				}
				return w.Close()
			}
		}
		if err := open(); err != nil {
			return err
		}
		const text = "of the program, as you see"
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK); err != nil {
			return err
		}
		if _, err := unix.Write(pipe[1], []byte(text)); err != nil {
			return err
		}
		if err := unix.Dup2(pipe[0], int(i32(efd).Load())-1); err != nil {
			return err
		}
		if err := open(); err != nil {
			return err
		}
		left := make([]byte, 2*len(text))
		if n, err := unix.Read(pipe[0], left); err != nil || string(left[:n]) != text {
			return fmt.Errorf("%q is left in the program's pipe: %v", left[:max(n, 0)], err)
		}
		return nil
	}
}

// The reader says what has happened, and does not wait until somebody listens: callers wait for it.
func TestTheReaderDoesNotWaitForStandardError_17(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "fullstderr")
}

func init() {
	helpers["fullstderr"] = func([]string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		p := newPages(1)
		if _, err := published(w, p, ForGoMap); err != nil {
			return err
		}
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK); err != nil {
			return err
		}
		for err == nil {
			_, err = unix.Write(pipe[1], make([]byte, 4096))
		}
		if _, err := unix.FcntlInt(uintptr(pipe[1]), unix.F_SETFL, 0); err != nil {
			return err
		}
		if err := unix.Dup2(pipe[1], 2); err != nil {
			return err
		}
		if err := unix.Close(int(i32(&table().uffd).Load()) - 1); err != nil {
			return err
		}
		freed := make(chan struct{})
		go func() {
			unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
			close(freed)
		}()
		select {
		case <-freed:
			return nil
		case <-time.After(patience):
			return errors.New("a call that unmaps waits for who reads standard error")
		}
	}
}

// What the program has in the descriptor's place tells nothing, whatever it answers.
func TestAnotherFileInTheDescriptorsPlaceHasNotTold_17(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "asksanother")
}

func init() {
	helpers["asksanother"] = func([]string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		if !w.Told() {
			return errors.New("not told, though nothing was unmapped")
		}
		other, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Dup2(other, int(i32(&table().uffd).Load())-1); err != nil {
			return err
		}
		if w.Told() || w.WaitTold() {
			return errors.New("told by a file that is no userfaultfd")
		}
		return nil
	}
}
