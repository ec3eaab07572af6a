package report

import (
	"fmt"
	"math"
)

// Heap is what a measurement of the shared heaps says beside its Result: how the heap that the
// blocks came from is divided when the point ends, before they are freed.
type Heap struct {
	Blocks        int64   `json:"blocks"` // in use, of all sizes
	InUse         int64   `json:"in_use"` // bytes, with what is lost between blocks
	Free          int64   `json:"free"`   // bytes below the heap's end
	LargestFree   int64   `json:"largest_free"`
	Fragmentation float64 `json:"fragmentation"` // percent of Free that the largest block does not have
	Meta          float64 `json:"meta"`          // percent of the heap's bytes that the bookkeeping has beside it
	Requests      int64   `json:"requests"`      // calls of the heap's own to other ranks during the point
}

// mergeHeaps has the medians of rounds, which of gives, and the sum of their requests.
func mergeHeaps(of func(func(*Series) float64) float64, rounds []*Series) *Heap {
	whole := func(pick func(*Heap) int64) int64 {
		return int64(math.Round(of(func(s *Series) float64 { return float64(pick(s.Heap)) })))
	}
	h := &Heap{
		Blocks: whole(func(h *Heap) int64 { return h.Blocks }), InUse: whole(func(h *Heap) int64 { return h.InUse }),
		Free: whole(func(h *Heap) int64 { return h.Free }), LargestFree: whole(func(h *Heap) int64 { return h.LargestFree }),
		Fragmentation: Round3(of(func(s *Series) float64 { return s.Heap.Fragmentation })), Meta: Round3(of(func(s *Series) float64 { return s.Heap.Meta })),
	}
	for _, r := range rounds {
		h.Requests += r.Heap.Requests
	}
	return h
}

// metric is one of those that are no times of an operation.
func (h *Heap) metric(name string) (float64, bool) {
	switch {
	case h == nil:
	case name == "fragmentation":
		return h.Fragmentation, true
	case name == "meta":
		return h.Meta, true
	}
	return 0, false
}

// heapColumns and heapRow must agree.
func (t *text) heapColumns() string {
	line := fmt.Sprintf("%8s %8s %9s %9s", "size", "live", "samples", "min")
	for _, p := range t.pct {
		line += fmt.Sprintf(" %9s", "p"+Key(p))
	}
	return line + fmt.Sprintf(" %9s %9s  %-4s %9s %9s %9s %6s", "max", "mean", "unit", "requests", "in use", "frag. %", "meta %")
}

func (t *text) heapRow(s *Series) string {
	r, h := &s.Result, s.Heap
	line := fmt.Sprintf("%8s %8d %9d %9s", s.sizeText(), s.Plan.Live, r.Count, micros(r.Min))
	for _, p := range t.pct {
		line += fmt.Sprintf(" %9s", micros(r.P[Key(p)]))
	}
	return line + fmt.Sprintf(" %9s %9s  %-4s %9d %9s %9.1f %6.2f", micros(r.Max), micros(r.Mean), "us", h.Requests, kilo(h.InUse)+"K", h.Fragmentation, h.Meta)
}
