package report

import (
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// grid is a table of rates, lanes down and goroutines across, where both or either vary.
func (t *text) grid() {
	type key struct {
		header      string
		size        int64
		depth       int
		lanes, goes int
	}
	rates := make(map[key]float64)
	var tables []key
	var lanes, goes []int
	for _, s := range t.all {
		if s.Plan.Kind != plan.Rate || s.Op != plan.AM {
			continue
		}
		k := key{header(s), s.Size, s.Plan.Depth, s.Plan.Lanes, s.Plan.Goroutines}
		rates[k] = s.Result.Mean
		lanes, goes = append(lanes, k.lanes), append(goes, k.goes)
		if k.lanes, k.goes = 0, 0; !slices.Contains(tables, k) {
			tables = append(tables, k)
		}
	}
	slices.Sort(lanes)
	slices.Sort(goes)
	lanes, goes = slices.Compact(lanes), slices.Compact(goes)
	if len(lanes) < 2 && len(goes) < 2 {
		return
	}
	for _, k := range tables {
		t.printf("\n%s\nsize %s, depth %d, Mop/s: lanes down, goroutines across\n%8s", k.header, SizeName(plan.AM, k.size), k.depth, "")
		for _, k.goes = range goes {
			t.printf(" %9d", k.goes)
		}
		t.printf("\n")
		for _, k.lanes = range lanes {
			t.printf("%8d", k.lanes)
			for _, k.goes = range goes {
				t.printf(" %9s", gridCell(rates, k))
			}
			t.printf("\n")
		}
	}
}

func gridCell[K comparable](rates map[K]float64, k K) string {
	if v, ok := rates[k]; ok {
		return mega(v)
	}
	return "-"
}
