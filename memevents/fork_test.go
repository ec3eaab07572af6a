//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// A child of fork has a copy of the table and shares the descriptors: its hooks must not touch the
// parent's.
func TestForkedChildLeavesTheParentAlone_21(t *testing.T) {
	runHelper(t, []string{onlySymbols}, "fork", artifact(t, "foreign.so"))
}

var _ = helper("fork", func(t testing.TB, args []string) error {
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	p := newPages(1)
	r := watchPage(t, w, p, CalledFromC)
	if status := memtest.Func("ibc_foreign_fork", p, pageSize); status != 0 {
		return fmt.Errorf("the child ended with status %#x", status)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := w.Wait(ctx); err == nil {
		return errors.New("the child's munmap woke the parent")
	}
	if !r.Acquire() {
		return errors.New("the child's munmap invalidated the parent's entry")
	}
	memtest.Call(memtest.Munmap, p, pageSize) // the control: the parent's own does both
	if err := w.Wait(context.Background()); err != nil || r.Acquire() {
		return fmt.Errorf("the parent's munmap: %v", err)
	}
	return nil
})

// What Go code finds in a child that C code forked: no hit on the copied table, and errors,
// whatever the parent's other threads were doing. The parent's entries stay.
func TestForkedChildFindsNothingValid_21(t *testing.T) {
	runHelper(t, nil, "forkgo", artifact(t, "foreign.so"))
	runHelper(t, []string{preload(t, "libmemevents.so")}, "forkgo", artifact(t, "foreign.so"))
}

var _ = helper("forkgo", func(t testing.TB, args []string) error {
	// A child has one thread, and the collector wants more
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // so that it finds a free processor
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	p := newPages(102)
	var refs []Ref
	for i := range 100 {
		r := watchPage(t, w, page(p, i), CalledFromC)
		refs = append(refs, r)
	}
	unfinished, err := claimSoon(w, page(p, 100), CalledFromC)
	noError(t, err)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // so that a child may find the table's lock held
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if r, err := w.ClaimLive(page(p, 101), page(p, 102), 0, CalledFromC); err == nil {
				w.Retire(r)
			}
		}
	}()
	// Now and then Go itself hangs in a child, for want of its other threads: these say nothing.
	spoke := 0
	end := time.Now().Add(testTimeout)
	for n := 0; n < 20 || spoke < 10 && time.Now().Before(end); n++ {
		err := forkAndLook(w, refs, unfinished, page(p, 101))
		if err == nil {
			spoke++
		} else if !errors.Is(err, errSilent) {
			return err
		}
	}
	if spoke < 10 {
		return fmt.Errorf("%d children said something", spoke)
	}
	close(stop)
	<-done
	for _, r := range refs {
		if !r.Acquire() {
			return errors.New("a child invalidated the parent's entry")
		}
		r.Release()
	}
	if len(w.Drain(nil)) != 0 {
		return errors.New("the parent drained something")
	}
	return Verify()
})

var errSilent = errors.New("the child said nothing")

// forkAndLook forks, and returns what the child found wrong.
func forkAndLook(w *Watcher, refs []Ref, unfinished Ref, fresh uintptr) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	pid := int(int32(memtest.Func("ibc_foreign_bare_fork")))
	if pid == 0 {
		word := "right"
		if err := lookFromChild(w, refs, unfinished, fresh); err != nil {
			word = err.Error()
		}
		unix.Write(pipe[1], []byte(word))
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	unix.Close(pipe[1])
	said := make([]byte, 512)
	fds := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	n, err := 0, error(nil)
	// Signals of the runtime end it early
	for until := time.Now().Add(2 * time.Second); n <= 0 && time.Now().Before(until); {
		n, err = unix.Poll(fds, 100)
	}
	unix.Kill(pid, unix.SIGKILL) // it has spoken, or hangs
	unix.Wait4(pid, nil, 0, nil)
	if n != 1 {
		return fmt.Errorf("%w: %v", errSilent, err)
	}
	if n, _ = unix.Read(pipe[0], said); string(said[:max(n, 0)]) != "right" {
		return fmt.Errorf("in the child: %q", said[:max(n, 0)])
	}
	return nil
}

func lookFromChild(w *Watcher, refs []Ref, unfinished Ref, fresh uintptr) error {
	for _, r := range refs {
		if r.Acquire() {
			return errors.New("a hit")
		}
	}
	if w.Publish(unfinished) {
		return errors.New("published")
	}
	w.Retire(unfinished)
	_, claim := w.Claim(fresh, fresh+pageSize, 0, CalledFromC)
	_, live := w.ClaimLive(fresh, fresh+pageSize, 0, CalledFromC)
	_, another := NewWatcher(WatcherConfig{})
	_, protect := Protect(fresh, fresh+pageSize)
	for call, err := range map[string]error{
		"claim": claim, "claim of live memory": live, "new watcher": another, "protect": protect,
		"wait": w.Wait(context.Background()), "close": w.Close(), "verify": Verify(),
	} {
		if !errors.Is(err, ErrForked) {
			return fmt.Errorf("%s: %v", call, err)
		}
	}
	if len(w.Drain(nil)) != 0 || !Changing(fresh, fresh+pageSize) {
		return errors.New("drained, or not changing")
	}
	if everywhere, somewhere := Retest().Covered(); everywhere|somewhere != 0 {
		return fmt.Errorf("covered: %v", everywhere|somewhere)
	}
	return nil
}
