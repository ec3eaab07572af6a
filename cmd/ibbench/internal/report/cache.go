package report

import (
	"cmp"
	"fmt"
)

// Cache is what a kernel of package bench did on one side, beside its Result, which has the times
// of its runs.
type Cache struct {
	Side string `json:"side"`
	Base bool   `json:"base,omitempty"` // the side that the others are compared with

	// Of all ranks in one run, the median of the runs.
	Messages int64 `json:"messages"` // gets, puts and atomics of the networks, with the kernel's own barriers
	Requests int64 `json:"requests"` // work requests, where the network has some
	Bytes    int64 `json:"bytes"`    // that gets and puts moved

	// Of the caches, the medians too. Gets that passed a cache by are neither hits nor misses.
	Hits       int64 `json:"hits,omitempty"`
	Misses     int64 `json:"misses,omitempty"`
	Prefetched int64 `json:"prefetched,omitempty"` // lines
	Unused     int64 `json:"unused,omitempty"`     // of them
	Fetched    int64 `json:"fetched,omitempty"`    // bytes of lines
	Used       int64 `json:"used,omitempty"`       // bytes of lines that were asked for

	Time          *Estimate `json:"time"`            // ns of a run
	Ratio         *Estimate `json:"ratio,omitempty"` // the base's time to this one's within a round: above 1 this side is faster
	MessagesRatio float64   `json:"messages_ratio,omitempty"`
	BytesRatio    float64   `json:"bytes_ratio,omitempty"` // this side's to the base's
}

// Estimate is a median with an interval that holds the true one with a probability of 95 % at
// least (stats.MedianInterval).
type Estimate struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func (e *Estimate) String() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", e.Median, e.Low, e.High)
}

// metric is one of those that compare with the base, which has none.
func (c *Cache) metric(name string) (float64, bool) {
	switch {
	case c == nil || c.Base:
	case name == "ratio":
		return c.Ratio.Median, true
	case name == "messages":
		return c.MessagesRatio, true
	case name == "bytes":
		return c.BytesRatio, true
	}
	return 0, false
}

// cacheColumns and cacheRow must agree.
func (t *text) cacheColumns() string {
	return fmt.Sprintf("%-20s %8s %-5s %6s %10s %-22s  %-4s %9s %11s  %-22s %9s %9s %6s %8s %7s", "kernel", "size", "cache", "rounds",
		"median", "95 % interval", "unit", "messages", "bytes", "times as fast", "messages", "bytes", "hits", "ahead", "unused")
}

func (t *text) cacheRow(s *Series) string {
	c := s.Cache
	name := s.Op
	if s.Plan.Variant != "" {
		name += " " + s.Plan.Variant
	}
	line := fmt.Sprintf("%-20s %8d %-5s %6d %10s %-22s  %-4s %9d %11d", name, s.Size, c.Side, s.Result.Count,
		micros(c.Time.Median), micros(c.Time.Low)+" to "+micros(c.Time.High), "us", c.Messages, c.Bytes)
	if c.Base {
		return line
	}
	line += fmt.Sprintf("  %-22s %8.3fx %8.3fx", c.Ratio, c.MessagesRatio, c.BytesRatio)
	if c.Hits+c.Misses+c.Prefetched == 0 {
		return line
	}
	return line + fmt.Sprintf(" %5.1f%% %8d %6.1f%%", percent(c.Hits, c.Hits+c.Misses), c.Prefetched, percent(c.Unused, c.Prefetched))
}

// percent is a part of a whole; of nothing it is 0.
func percent(part, whole int64) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

// cache adds the columns of kernels.
func (t *table) cache(s *Series, add func(string, string), number func(string, float64), integer func(string, int64)) {
	c := s.Cache
	ratio := cmp.Or(c.Ratio, &Estimate{Median: 1, Low: 1, High: 1})
	add("side", c.Side)
	integer("messages", c.Messages)
	integer("requests", c.Requests)
	integer("bytes", c.Bytes)
	integer("hits", c.Hits)
	integer("misses", c.Misses)
	integer("prefetched", c.Prefetched)
	integer("unused", c.Unused)
	integer("fetched", c.Fetched)
	integer("used", c.Used)
	number("ratio", ratio.Median)
	number("ratio_low", ratio.Low)
	number("ratio_high", ratio.High)
}
