// Package parttest says how much of a random test a build does.
package parttest

import (
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/racetest"
)

// Of is the part of n that this build does: all of it in the plain build, a tenth with the race
// detector, in the debug build, in the VM and with -short. Those run the same worlds to find other
// mistakes, which any of them shows. It is called after flags are parsed.
func Of(n int) int {
	if racetest.Enabled || owner.Checked || testing.Short() || os.Getenv("IBCONDUIT_VM_INDEX") != "" {
		return (n + 9) / 10
	}
	return n
}
