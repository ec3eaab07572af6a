package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The timer of 10 seconds calls tick.
func TestProgressIsToldWhereNoTerminalIs(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	said := func() string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	x := newTerminal(f, false)
	if x.told == nil {
		t.Fatal("no timer")
	}
	x.tick()
	if got := said(); got != "" {
		t.Errorf("nothing goes on: %q", got)
	}
	x.live("round 1")
	x.live("round 2")
	x.tick()
	if got := said(); !strings.HasPrefix(got, "ibbench: after ") || !strings.HasSuffix(got, ": round 2\n") {
		t.Errorf("got %q", got)
	}
	before := said()
	x.end()
	x.tick()
	if got := said(); got != before {
		t.Errorf("after the end: %q", got)
	}
	if newTerminal(f, true).told != nil {
		t.Error("-q has a timer")
	}
}

// pseudoTerminal returns both ends of one.
func pseudoTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestALiveLineHasFiguresAndIsRemoved(t *testing.T) {
	master, slave := pseudoTerminal(t)
	var seen bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&seen, master) // ends with EIO when nobody has the other end
	}()
	cmd := program(t, "lat", "get", "--fabric", "shm", "--size", "8", "--duration", "600ms", "--live")
	cmd.Stderr = slave
	err := cmd.Run()
	_ = slave.Close()
	<-done
	if err != nil {
		t.Fatal(err, seen.String())
	}
	got := seen.String()
	if strings.Count(got, "\r\x1b[K") < 5 || !strings.Contains(got, " s  lat get, size 8: p50 ") {
		t.Errorf("the line does not move: %q", got)
	}
	if !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("it stays: %q", got)
	}
}
