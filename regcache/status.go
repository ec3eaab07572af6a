package regcache

import (
	"fmt"
	"strings"

	"github.com/ibconduit/conduit/memevents"
)

// Mode says what a cache does with memory of one origin.
type Mode uint8

// The modes.
const (
	PerOperation Mode = iota // each Get registers, each Put deregisters
	KeptAlive                // cached, and the object is kept alive as long
	Cached
)

func (m Mode) String() string { return [...]string{"per operation", "kept alive", "cached"}[m] }

// OriginStatus is what happens to memory of one origin.
type OriginStatus struct {
	Origin Origin
	Mode   Mode
	Why    string // why it is not cached; empty when it is
}

// Status says which origins are cached, and why the rest is not.
type Status struct {
	Origins []OriginStatus // one for each, in their order
	Events  memevents.Report
}

// Status reports the last test's results.
func (c *Cache) Status() Status {
	s := Status{Events: memevents.Status()}
	for o := range numOrigins {
		s.Origins = append(s.Origins, c.originStatus(o, s.Events))
	}
	return s
}

func (c *Cache) originStatus(o Origin, r memevents.Report) OriginStatus {
	_, somewhere := r.Covered()
	s := OriginStatus{Origin: o, Mode: Cached}
	if c.cfg.Uncached {
		s.Mode, s.Why = PerOperation, "switched off by Config.Uncached or "+Env
		return s
	}
	missing := origins[o].need &^ somewhere
	if missing == 0 {
		return s
	}
	s.Mode = PerOperation
	if o == GoHeap && somewhere.Has(keptAliveNeed) {
		s.Mode = KeptAlive
	}
	var why []string
	for _, k := range r.Classes {
		if missing.Has(memevents.Set(k.Class)) {
			why = append(why, fmt.Sprintf("no monitor sees %v: %s", k.Class, k.Why))
		}
	}
	s.Why = strings.Join(why, "; ")
	return s
}

func (s Status) String() string {
	var b strings.Builder
	for _, o := range s.Origins {
		fmt.Fprintf(&b, "memory %-10s %-14s %s\n", o.Origin, o.Mode, o.Why)
	}
	b.WriteString(s.Events.String())
	return b.String()
}
