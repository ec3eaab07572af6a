//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Others may write to the directory, as to /tmp.
func TestOutputGoesToRegularFilesOnly(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "rank-1.err")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	code, _, errs := finish(t, nil, "-n", "2", "--output", dir, "sh", "-c", "echo text >&2")
	if code != 1 || !strings.Contains(errs, "output of rank 1: open "+link+": ") || !strings.Contains(errs, "a symbolic link is not followed: remove it") {
		t.Errorf("code %d: %s", code, errs)
	}
	// Nor does it wait for the reader of a pipe.
	pipe := filepath.Join(t.TempDir(), "rank-0.out")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs = finish(t, nil, "--output", filepath.Dir(pipe), "true")
	if code != 1 || !strings.Contains(errs, "output of rank 0: "+pipe+" is no regular file: remove it") {
		t.Errorf("code %d: %s", code, errs)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "another's" {
		t.Errorf("%q, %v", text, err)
	}
}
