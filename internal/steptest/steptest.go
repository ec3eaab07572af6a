// Package steptest counts the instructions that a thread of another process spends in this module's
// Go code, one by one: exact, on any machine, and nearly the same each time. The process must be
// this program again, since it is this one's table of functions that says where the thread is.
package steptest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// EnvRequire makes a test that may not step a thread fail when it is "1", so that skipping cannot
// hide rot.
const EnvRequire = "IBCONDUIT_REQUIRE_PTRACE"

// Skip skips a test if err says that no thread can be stepped here, unless EnvRequire is set.
func Skip(t testing.TB, err error) {
	t.Helper()
	if os.Getenv(EnvRequire) != "1" && (errors.Is(err, ErrUnsupported) || errors.Is(err, fs.ErrPermission)) {
		t.Skip(err)
	}
}

// ErrUnsupported is why nothing can be counted where there is no way to step a thread.
var ErrUnsupported = errors.New("instructions are counted on linux/amd64 only")

// Count is what the operation with the fewest took. The others are that and what comes on top now
// and then: buffers that are given back together, timers, polls in vain while the peer has no
// processor.
type Count struct {
	Operations int            // how many were stepped
	Own        int            // instructions of this module, but for its tests
	Functions  map[string]int // of Own
}

// String lists the functions, those with the most first.
func (c Count) String() string {
	var b strings.Builder
	for _, name := range slices.SortedFunc(maps.Keys(c.Functions), func(x, y string) int { return cmp.Compare(c.Functions[y], c.Functions[x]) }) {
		fmt.Fprintf(&b, "%6d  %s\n", c.Functions[name], name)
	}
	return b.String()
}

// mostTimes is how many times as many operations are stepped as were asked for, before it is no
// peer's fault that all of them take too much.
const mostTimes = 16

// enough says whether the operations that were stepped tell what one takes: n of them, and one that
// is within most, or so many that none will be.
func enough(all []map[string]int, n, most int) bool {
	return len(all) >= n && (least(all).Own <= most || len(all) >= mostTimes*n)
}

// least returns the count of the operation with the fewest.
func least(all []map[string]int) (c Count) {
	c.Operations = len(all)
	for i, f := range all {
		total := 0
		for _, n := range f {
			total += n
		}
		if i == 0 || total < c.Own {
			c.Own, c.Functions = total, f
		}
	}
	return c
}
