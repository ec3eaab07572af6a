package metrics

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ibconduit/conduit"
)

// prefix of every name.
const prefix = "ibconduit_"

// Collector is a prometheus.Collector over jobs. It may be used by any number
// of goroutines.
type Collector struct {
	mu      sync.Mutex
	members []*member
}

// member is one job's share of a Collector.
type member struct {
	job     *conduit.Job
	sources []Source
	labels  prometheus.Labels
	descs   map[string]*prometheus.Desc
}

// NewCollector makes a Collector over the jobs of this process. Jobs that join
// later need a Collector of their own; one registry takes several.
func NewCollector(jobs ...*conduit.Job) *Collector {
	c := &Collector{}
	for _, j := range jobs {
		info := j.Info()
		c.members = append(c.members, &member{
			job:     j,
			sources: []Source{jobSource{j, info}, newPortSource(info.Devices)},
			labels:  prometheus.Labels{"job_id": strings.ToValidUTF8(info.ID, "?"), "rank": strconv.Itoa(info.Rank)},
			descs:   make(map[string]*prometheus.Desc),
		})
	}
	return c
}

// Add attaches more counters to a job of the Collector, with the labels of the
// job. Call it before the Collector is registered.
func (c *Collector) Add(job *conduit.Job, s Source) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if m.job == job {
			m.sources = append(m.sources, s)
			return nil
		}
	}
	return fmt.Errorf("metrics: job %s rank %d is not in this Collector: give it to NewCollector first",
		job.ID(), job.Rank())
}

// Describe sends the descriptions of all metrics that there are now.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	sent := make(map[*prometheus.Desc]bool)
	c.figures(func(d *prometheus.Desc, _ Figure) {
		if !sent[d] {
			sent[d] = true
			ch <- d
		}
	})
}

// Collect reads everything.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.figures(func(d *prometheus.Desc, f Figure) {
		m, err := f.metric(d)
		if err != nil {
			m = prometheus.NewInvalidMetric(d, err)
		}
		ch <- m
	})
}

func (f Figure) metric(d *prometheus.Desc) (prometheus.Metric, error) {
	values := make([]string, 0, len(f.Labels)/2)
	for i := 1; i < len(f.Labels); i += 2 {
		values = append(values, f.Labels[i])
	}
	switch f.Kind {
	case Gauge:
		return prometheus.NewConstMetric(d, prometheus.GaugeValue, f.Value, values...)
	case Histogram:
		var count uint64
		upTo := make(map[float64]uint64, len(f.Buckets))
		for _, b := range f.Buckets {
			if count = b.Count; !math.IsInf(b.UpTo, 1) { // which is the count's
				upTo[b.UpTo] = b.Count
			}
		}
		return prometheus.NewConstHistogram(d, count, f.Value, upTo, values...)
	}
	return prometheus.NewConstMetric(d, prometheus.CounterValue, f.Value, values...)
}

// figures reads all sources and finds the description of each figure. emit is
// called without the lock, since it may wait for the scraper.
func (c *Collector) figures(emit func(*prometheus.Desc, Figure)) {
	type described struct {
		desc *prometheus.Desc
		fig  Figure
	}
	var all []described
	c.mu.Lock()
	for _, m := range c.members {
		for _, s := range m.sources {
			s.Figures(func(f Figure) { all = append(all, described{m.desc(f), f}) })
		}
	}
	c.mu.Unlock()
	for _, d := range all {
		emit(d.desc, d.fig)
	}
}

// desc is made at the first figure of a name and kept.
func (m *member) desc(f Figure) *prometheus.Desc {
	d, ok := m.descs[f.Name]
	if !ok {
		var names []string
		for i := 0; i < len(f.Labels); i += 2 {
			names = append(names, f.Labels[i])
		}
		d = prometheus.NewDesc(prefix+f.Name, f.Help, names, m.labels)
		m.descs[f.Name] = d
	}
	return d
}
