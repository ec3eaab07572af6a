package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
	cmd := program(t, "lat", "get", "--fabric", "shm", "--size", "8", "--duration", "600ms", "--rounds", "3")
	cmd.Stderr = slave
	err := cmd.Run()
	_ = slave.Close()
	<-done
	if err != nil {
		t.Fatal(err, seen.String())
	}
	got := seen.String()
	if strings.Count(got, "\r\x1b[K") < 4 || !strings.Contains(got, "] lat get, size 8") {
		t.Errorf("the line does not change: %q", got)
	}
	if !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("it stays: %q", got)
	}
}
