package report

import (
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// AM is what the endpoints of all ranks did at a point of active messages, those of its warm-up and
// of its own bookkeeping included.
type AM struct {
	Sent        uint64   `json:"sent"`    // requests
	Handled     uint64   `json:"handled"` // of them
	RNR         uint64   `json:"rnr"`     // messages that met no receive buffer
	NoCredit    uint64   `json:"no_credit"`
	NoBuffer    uint64   `json:"no_buffer"`
	NoReply     uint64   `json:"no_reply"`
	QueueFull   uint64   `json:"queue_full"`
	Controls    uint64   `json:"controls"` // messages of only the flow control
	Copies      uint64   `json:"copies"`   // payloads whose receive buffer was needed
	Parks       uint64   `json:"parks"`
	Sleeps      uint64   `json:"sleeps"`
	HandOvers   uint64   `json:"hand_overs"`
	AllocsPerOp *float64 `json:"allocs_per_op,omitempty"` // of rank 0, at a latency
}

// Add adds the counters of another endpoint.
func (a *AM) Add(b *AM) {
	a.Sent += b.Sent
	a.Handled += b.Handled
	a.RNR += b.RNR
	a.NoCredit += b.NoCredit
	a.NoBuffer += b.NoBuffer
	a.NoReply += b.NoReply
	a.QueueFull += b.QueueFull
	a.Controls += b.Controls
	a.Copies += b.Copies
	a.Parks += b.Parks
	a.Sleeps += b.Sleeps
	a.HandOvers += b.HandOvers
}

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
		size := (&Series{Op: plan.AM, Size: k.size}).sizeText()
		t.printf("\n%s\nsize %s, depth %d, Mop/s: lanes down, goroutines across\n%8s", k.header, size, k.depth, "")
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
