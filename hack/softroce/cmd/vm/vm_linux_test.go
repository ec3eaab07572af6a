package main

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestOutputsAndTimeOfATestRunAreFound(t *testing.T) {
	got := testFlags([]string{"/tmp/a.test", "-test.coverprofile=/w/c.out", "-test.cpuprofile", "cpu.out", "--test.trace=t.out",
		"-test.outputdir=/out", "-test.gocoverdir=/cov", "-test.timeout=90s", "-run", "x", "test.blockprofile=no"})
	want := []string{"/cov", "/w/c.out", "/out/cpu.out", "/out/t.out"}
	if !slices.Equal(got.outputs, want) || got.timeout != 90*time.Second {
		t.Fatalf("%+v", got)
	}
}

func TestSizesAreParsedWithSuffixes(t *testing.T) {
	for in, want := range map[string]int64{"65536": 65536, "64K": 65536, "1m": 1 << 20, "2G": 2 << 30, "unlimited": 0} {
		var b bytesFlag
		if err := b.Set(in); err != nil || int64(b) != want {
			t.Errorf("%s: %d %v", in, b, err)
		}
	}
	for _, in := range []string{"", "K", "-1", "0", "1T", "9999999999999G"} {
		var b bytesFlag
		if b.Set(in) == nil {
			t.Errorf("%q accepted as %d", in, b)
		}
	}
}

func TestFlagsMayFollowTheVerbAndEndAtTheCommand(t *testing.T) {
	for _, c := range []struct {
		args, rest []string
		cpus       int
	}{
		{[]string{"-cpus", "1", "run", "-no-rdma", "--", "ls", "-l"}, []string{"run", "ls", "-l"}, 1},
		{[]string{"run", "-cpus", "2", "ls", "-no-rdma"}, []string{"run", "ls", "-no-rdma"}, 2},
		{[]string{"-exec", "run", "-cpus", "3"}, []string{"run", "-cpus", "3"}, 0},
		{[]string{"/tmp/a.test", "-test.v"}, []string{"/tmp/a.test", "-test.v"}, 0},
	} {
		o := newOptions()
		rest, err := o.parse(c.args)
		if err != nil || !slices.Equal(rest, c.rest) || o.cpus != c.cpus {
			t.Errorf("%q: %q, cpus %d, %v", c.args, rest, o.cpus, err)
		}
	}
}

func TestLinesOfGuestsStayWholeAndPrefixed(t *testing.T) {
	var (
		mu  sync.Mutex
		out bytes.Buffer
	)
	a := &lineWriter{mu: &mu, w: &out, prefix: "[a] "}
	b := &lineWriter{mu: &mu, w: &out, prefix: "[b] "}
	for _, s := range []string{"one", " line\nand", " more"} {
		if _, err := a.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
	}
	a.flush()
	b.flush()
	if want := "[b] x\n[a] one line\n[b] x\n[b] x\n[a] and more\n"; out.String() != want {
		t.Fatalf("%q", out.String())
	}
}
