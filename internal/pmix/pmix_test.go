//go:build linux && cgo

package pmix

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fake compiles testdata/fake.c with what it is to do wrong, and loads it.
func fake(t *testing.T, defines ...string) (version string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "libpmix.so.2")
	args := []string{"-shared", "-fPIC", "-w", "-o", file, "testdata/fake.c"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return load(file)
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return c
}

// connected is a client of a fake.
func connected(t *testing.T, defines ...string) *Client {
	t.Helper()
	if _, err := fake(t, defines...); err != nil {
		t.Fatal(err)
	}
	c, err := Init(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestLibrariesThatDoNotFitAreRefused(t *testing.T) {
	for _, c := range []struct{ define, words string }{
		{`VERSION="OpenPMIx 2.2.5"`, "versions 3 to 6 are known"},
		{`VERSION="OpenPMIx 70.0.1"`, "versions 3 to 6 are known"},
		{`VERSION="unknown"`, "versions 3 to 6 are known"},
		{"LACKS_ABORT", "it lacks PMIx_Abort"},
	} {
		if _, err := fake(t, c.define); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q", c.define, err, c.words)
		}
	}
	if _, err := load("/nowhere/libpmix.so"); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "/nowhere/libpmix.so: cannot open shared object file") {
		t.Errorf("no such file: %v", err)
	}
	for _, v := range []string{"OpenPMIx 3.2.3", "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0)", "OpenPMIx 6.0.0"} {
		if err := known(v); err != nil {
			t.Error(err)
		}
	}
}

func TestLayoutsThatDifferAreNoticed(t *testing.T) {
	for _, define := range []string{"PROC_BYTES=300", "SIZE_TYPE=6"} {
		if _, err := fake(t, define); err != nil {
			t.Fatal(err)
		}
		if c, err := Init(ctx(t)); err == nil {
			t.Errorf("%s: rank %d of %d", define, c.Rank, c.Size)
		}
	}
}

func TestBlobsComeBackAsTheyWerePut(t *testing.T) {
	c := connected(t)
	if c.Namespace != "fake.1" || c.Rank != 0 || c.Size != 2 {
		t.Errorf("rank %d of %d of %q", c.Rank, c.Size, c.Namespace)
	}
	for _, b := range [][]byte{nil, []byte("with\x00zero"), bytes.Repeat([]byte("x"), 1<<20)} {
		if err := errors.Join(c.Put(ctx(t), "k", b), c.Fence(ctx(t), true)); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Get(ctx(t), 1, "k"); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes for %d: %v", len(got), len(b), err)
		}
	}
	if err := c.Abort(ctx(t), 7, "over"); err != nil {
		t.Error(err)
	}
}

func TestCallsThatHangEndWithTheirContext(t *testing.T) {
	if _, err := fake(t, "HANGS_IN_INIT"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Init(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "PMIx_Init") {
		t.Errorf("Init: %v", err)
	}

	c := connected(t, "HANGS_IN_FENCE")
	short, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Fence(short, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Fence: %v", err)
	}
	if err := c.Put(short, "k", nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "an earlier call has not returned") {
		t.Errorf("the call after it: %v", err)
	}
	if err := c.Abort(ctx(t), 7, "over"); err != nil {
		t.Errorf("Abort: %v", err)
	}

	d := connected(t, "HANGS_IN_FENCE")
	ended := make(chan error)
	go func() { ended <- d.Fence(ctx(t), false) }()
	for len(d.turn) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := d.Close(ctx(t)); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Fence of a client that was closed: %v", err)
	}
	for range d.Events() { // closed too
	}
}

func TestDeathsThatTheLauncherReportsArrive(t *testing.T) {
	c := connected(t, "DIES")
	var failed *StatusError
	if err := c.Fence(ctx(t), false); !errors.As(err, &failed) || failed.Status != -52 || !strings.Contains(err.Error(), "PARTIAL SUCCESS") {
		t.Errorf("Fence: %v", err)
	}
	select {
	case ev := <-c.Events():
		if ev.Rank != 1 || !ev.Death() {
			t.Errorf("%+v", ev)
		}
	case <-ctx(t).Done():
		t.Error("no event")
	}
}
