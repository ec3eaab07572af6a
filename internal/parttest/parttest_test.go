package parttest

import (
	"testing"

	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/racetest"
)

func TestOnlyThePlainBuildDoesAll(t *testing.T) {
	want := 10
	if racetest.Enabled || owner.Checked || testing.Short() {
		want = 1
	}
	if n := Of(10); n != want {
		t.Errorf("%d of 10 worlds, want %d", n, want)
	}
	t.Setenv("IBCONDUIT_VM_INDEX", "0")
	if n, least := Of(10), Of(1); n != 1 || least != 1 {
		t.Errorf("in the VM %d of 10 worlds and %d of one, want 1 of each", n, least)
	}
}
