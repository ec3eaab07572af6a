//go:build linux

package qemu

import (
	"slices"
	"strings"
	"testing"
)

func TestEmulatedGuestsBootOnOneProcessor(t *testing.T) {
	for _, c := range []struct {
		accel string
		cpus  int
		want  bool
	}{{TCG, 2, true}, {TCG, 4, true}, {TCG, 1, false}, {KVM, 2, false}} {
		args := (&Spec{Accel: c.accel, CPUs: c.cpus, Append: "last=1"}).args()
		params := strings.Fields(args[slices.Index(args, "-append")+1])
		if got := slices.Contains(params, "maxcpus=1") && slices.Contains(params, "noreplace-smp"); got != c.want {
			t.Errorf("%s with %d processors: %q", c.accel, c.cpus, params)
		}
		if params[len(params)-1] != "last=1" {
			t.Errorf("what the caller adds is not the last: %q", params)
		}
	}
}
