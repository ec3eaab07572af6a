package memevents

import (
	"fmt"
	"strings"
)

// Monitor is one way of hearing of events.
type Monitor struct {
	Name   string // symbols, preload, reloc, patch, userfaultfd
	Active bool
	Why    string // what it is, or why it is not active
}

// Coverage says which monitor sees a class of calls, if any.
type Coverage struct {
	Class   Class
	By      string // the monitor that noticed the test's call; empty: none
	Limited bool   // only for ranges that the kernel lets userfaultfd watch; Claim finds out which
	Why     string // why none does; empty otherwise
}

// Report is the result of the self-test.
type Report struct {
	Monitors []Monitor
	Classes  []Coverage // one for each Class, in their order
}

// Covered is the set of classes that a monitor sees, for any range (everywhere) or at least for
// those that the kernel lets userfaultfd watch.
func (r Report) Covered() (everywhere, somewhere Classes) {
	for _, c := range r.Classes {
		if c.By == "" {
			continue
		}
		somewhere |= Set(c.Class)
		if !c.Limited {
			everywhere |= Set(c.Class)
		}
	}
	return everywhere, somewhere
}

func (r Report) String() string {
	var b strings.Builder
	for _, m := range r.Monitors {
		state := "off"
		if m.Active {
			state = "on"
		}
		fmt.Fprintf(&b, "monitor %-12s %-4s %s\n", m.Name, state, m.Why)
	}
	for _, c := range r.Classes {
		by := c.By
		if by == "" {
			by = "-"
		}
		fmt.Fprintf(&b, "class   %-16s %-12s %s\n", c.Class, by, c.Why)
	}
	return b.String()
}
