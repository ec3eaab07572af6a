package doctor

import (
	"math"
	"strings"

	"github.com/ibconduit/conduit/internal/pressure"
)

// pressure says what an adaptive budget of transient memory has to go by. What a machine lacks, the
// other probes make up for.
func (x *examination) pressure() {
	probes := pressure.NewAt(x.FS, func() pressure.Heap { return pressure.Heap{Limit: math.MaxInt64} })
	var have []string
	for _, s := range probes.Sources() {
		if s.Found && s.Probe != "Go's memory limit" { // which is each program's own
			have = append(have, s.Probe)
		}
	}
	r := probes.Read()
	if len(r.Bounds) == 0 {
		x.warn("pressure", "neither a memory group nor /proc/meminfo says how much memory there is: an adaptive budget cannot follow it",
			"set a budget in bytes: export IBCONDUIT_BUDGET=256M, or Config.Memory.Budget.Adapt.Ceiling")
		return
	}
	detail := "an adaptive budget goes by " + strings.Join(have, ", ")
	if r.StalledBy == "" {
		detail += "; the kernel does not account for stalls, so major faults tell of pressure"
	}
	x.ok("pressure", detail)
}
