//go:build cgo

package bootstrap

import (
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPMIxNamesTheRankWhoseDeathItTells(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "libpmix.so.2")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-w", "-DDIES", "-o", lib, "../internal/pmix/testdata/fake.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	b, err := New(bounded(t), Options{Log: quiet, Lookup: env("PMIX_RANK", "0", "PMIX_NAMESPACE", "fake.1", "IBCONDUIT_LIBPMIX", lib)})
	if err != nil {
		t.Fatal(err)
	}
	if b.Rank() != 0 || b.Size() != 2 || b.JobID() != "fake.1" || b.Name() != "pmix (PMIX_RANK)" {
		t.Errorf("rank %d of %d of %s by %s", b.Rank(), b.Size(), b.JobID(), b.Name())
	}
	b.(*job).be.(*pmixed).event = time.Minute
	err = b.Barrier(bounded(t))
	wantLost(t, 0, err, 1, io.EOF, "PMIx event -402")
	if l := lossOf(t, b); l.Rank != 1 {
		t.Errorf("%+v", l)
	}
	if err := b.Barrier(bounded(t)); err == nil {
		t.Error("a barrier after the death")
	}
	var exited int
	b.(*job).be.(*pmixed).exit = func(code int) { exited = code }
	if b.Abort(7, "test"); exited != 7 {
		t.Errorf("Abort exits with %d", exited)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	for range b.Lost() { // closed
	}
	if err := b.Barrier(bounded(t)); err == nil || errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "closed") {
		t.Errorf("a barrier after Close: %v", err)
	}
}
