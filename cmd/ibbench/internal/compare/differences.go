package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// trait is what may explain a difference.
type trait struct {
	what string
	of   func(*report.Series) string // "": it has none
}

// device makes a trait of a device's.
func device(of func(*report.Device) any) func(*report.Series) string {
	return func(s *report.Series) string {
		if s.Env.Device == nil {
			return ""
		}
		return fmt.Sprint(of(s.Env.Device))
	}
}

// machines are the traits of the machines of all series that differ.
func machines(older, newer []*report.Series) (notes []string) {
	for _, t := range []trait{
		{"the kernel", func(s *report.Series) string { return s.Env.Kernel }},
		{"the processor", func(s *report.Series) string { return s.Env.CPU }},
		{"the number of processors", func(s *report.Series) string { return fmt.Sprint(s.Env.CPUs) }},
		{"Go", func(s *report.Series) string { return s.Env.Go }},
		{"the device", device(func(d *report.Device) any { return d.Name })},
		{"its firmware", device(func(d *report.Device) any { return d.Firmware })},
		{"its link", device(func(d *report.Device) any { return d.Link })},
		{"its MTU", device(func(d *report.Device) any { return d.MTU })},
		{"the number of hosts", func(s *report.Series) string { return fmt.Sprint(s.Env.Hosts) }},
		{"the commit", func(s *report.Series) string { return cmp.Or(s.Env.Commit, "unknown") }},
	} {
		if how := t.differs(older, newer); how != "" {
			notes = append(notes, t.what+" differs: "+how)
		}
	}
	return notes
}

// differs says how; "" where all of both sides are alike.
func (t trait) differs(older, newer []*report.Series) string {
	values := func(all []*report.Series) (v []string) {
		for _, s := range all {
			v = append(v, t.of(s))
		}
		slices.Sort(v)
		return slices.DeleteFunc(slices.Compact(v), func(v string) bool { return v == "" })
	}
	a, b := values(older), values(newer)
	if len(a) < 2 && slices.Equal(a, b) || len(a) == 0 || len(b) == 0 {
		return ""
	}
	return strings.Join(a, " and ") + ", then " + strings.Join(b, " and ")
}
