package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The timer of 10 seconds calls tell.
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
	x.tell()
	if got := said(); got != "" {
		t.Errorf("nothing goes on: %q", got)
	}
	x.live("round 1")
	x.live("round 2")
	x.tell()
	if got := said(); !strings.HasPrefix(got, "ibbench: after ") || !strings.HasSuffix(got, ": round 2\n") {
		t.Errorf("got %q", got)
	}
	before := said()
	x.end()
	x.tell()
	if got := said(); got != before {
		t.Errorf("after the end: %q", got)
	}
	if newTerminal(f, true).told != nil {
		t.Error("-q has a timer")
	}
}
