//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/bootstrap"
)

// outlived are the ways in which rank 1 ends, and the code of a rank that does.
var outlived = map[string]struct {
	end  func(b bootstrap.Bootstrap)
	code int
}{
	"rank 1 dies slowly":  {func(bootstrap.Bootstrap) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }, 137},
	"rank 1 exits slowly": {func(bootstrap.Bootstrap) { syscall.Exit(3) }, 3},
	"rank 1 aborts":       {func(b bootstrap.Bootstrap) { b.Abort(9, "out of cheese") }, 9},
}

// line names a fifo that the others read and rank 1 writes, as a connection between them.
const line = "IBCONDUIT_TEST_LINE"

// outlive is a rank of a job whose rank 1 ends and whose others exit with 1 as soon as they see it.
func outlive(ctx context.Context, what string) error {
	b, err := bootstrap.New(ctx, bootstrap.Options{})
	if err != nil {
		return err
	}
	if b.Rank() == 1 {
		err := errors.Join(openConnection(os.Getenv(line)), b.Barrier(ctx))
		if err == nil {
			outlived[what].end(b)
		}
		return fmt.Errorf("rank 1 goes on: %w", err)
	}
	conn, err := os.Open(os.Getenv(line))
	if err := errors.Join(err, b.Barrier(ctx)); err != nil {
		return err
	}
	ended := make(chan struct{}, 2)
	go func() { <-b.Lost(); ended <- struct{}{} }()
	go func() { _, _ = io.Copy(io.Discard, conn); ended <- struct{}{} }()
	<-ended
	syscall.Exit(1)
	return nil
}

// openConnection opens the writing end of the fifo as a high descriptor, and as a lower one a file
// that takes long to close for its many pages: what has a still lower number is closed much later
// than the connection.
func openConnection(path string) error {
	conn, err := unix.Open(path, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	pages, err := unix.MemfdCreate("slow to close", 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(pages, 0, 0, 128<<20),
		unix.Dup3(conn, 200, 0), unix.Close(conn), unix.Dup3(pages, 100, 0), unix.Close(pages))
}

// A peer that reacts may be gone before the launcher can wait for the rank that it reacted to.
func TestTheCodeIsNotThatOfARankThatReacted(t *testing.T) {
	for what, o := range outlived {
		fifo := filepath.Join(t.TempDir(), "line")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			code, out, errs := finish(t, []string{line + "=" + fifo}, "-n", "4", "--env", asRank+"="+what, self)
			if code != o.code || !strings.Contains(errs, "ibrun: rank 1 (pid ") {
				t.Errorf("%s: code %d, want %d; %s%s", what, code, o.code, errs, out)
			}
		}
	}
}
