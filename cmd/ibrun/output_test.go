//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Others may write to the directory, as to /tmp.
func TestOutputDoesNotFollowLinks(t *testing.T) {
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
	if text, err := os.ReadFile(other); err != nil || string(text) != "another's" {
		t.Errorf("%q, %v", text, err)
	}
}
