package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// bench writes the lines of Go's benchmark format, for benchstat.
type bench struct {
	w     io.Writer
	pct   []float64
	begun bool
}

func (b *bench) Add(s *Series) error {
	if !b.begun {
		b.begun = true
		if _, err := fmt.Fprintf(b.w, "goos: linux\ngoarch: %s\npkg: github.com/ibconduit/conduit/cmd/ibbench\ncpu: %s\n", s.Env.Arch, s.Env.CPU); err != nil {
			return err
		}
	}
	if s.Flow != nil && s.Flow.Failed != "" {
		return nil
	}
	if s.MPI != nil {
		if err := b.line(s, "/impl=conduit", &s.Result); err != nil {
			return err
		}
		return b.line(s, "/impl=openmpi", &s.MPI.Result)
	}
	if s.Kind != KindPerftest {
		return b.line(s, "", &s.Result)
	}
	if err := b.line(s, "/impl=conduit", &s.Result); err != nil {
		return err
	}
	return b.line(s, "/impl="+cmp.Or(s.Perftest.Peer, "perftest"), &s.Perftest.Result)
}

func (b *bench) Close() error { return nil }

func (b *bench) line(s *Series, impl string, r *Result) error {
	name := "Benchmark" + title(s.Plan.Kind) + title(s.Op)
	if s.Plan.Ack {
		name += "Ack"
	}
	name += fmt.Sprintf("/fabric=%s/size=%d", s.Env.Fabric, s.Size)
	switch {
	case s.MR != nil && s.Op != plan.Reg:
		name += fmt.Sprintf("/regions=%d", s.Plan.Regions)
	case s.Cache != nil:
		if s.Plan.Variant != "" {
			name += "/variant=" + s.Plan.Variant
		}
		name += "/cache=" + s.Cache.Side
	case s.Flow != nil:
		if s.Plan.Variant != "" {
			name += "/variant=" + strings.ReplaceAll(s.Plan.Variant, " ", "_")
		}
		name += fmt.Sprintf("/arm=%s/limit=%d", strings.ReplaceAll(s.Flow.Arm, " ", "_"), s.Flow.Limit)
	case s.Heap != nil:
		name += fmt.Sprintf("/live=%d", s.Plan.Live)
	case s.Kind == plan.Coll || s.Join != nil:
		name += fmt.Sprintf("/ranks=%d", s.Env.Ranks)
	case s.MR == nil && s.Plan.Kind != plan.Lat:
		name += fmt.Sprintf("/depth=%d/lanes=%d", s.Plan.Depth, s.Plan.Lanes)
		if s.Op == plan.AM {
			name += fmt.Sprintf("/goroutines=%d", s.Plan.Goroutines)
		}
	}
	if s.Plan.Local != "" {
		name += "/local=" + s.Plan.Local
	}
	line := fmt.Sprintf("%s%s-%d\t%d", name, impl, s.Env.GoMaxProcs, max(r.Count, 1))
	switch {
	case r.Unit == "ns":
		line += "\t" + plain(r.Mean) + " ns/op"
		for _, p := range b.pct {
			if v, ok := r.P[Key(p)]; ok {
				line += "\t" + plain(v) + " p" + Key(p) + "-ns/op"
			}
		}
	case r.Unit == "B/s":
		line += "\t" + plain(Round3(r.Mean/1e6)) + " MB/s"
	default:
		line += "\t" + plain(r.Mean) + " op/s"
	}
	if s.MR != nil {
		line += mrBench(s.MR)
	}
	if s.AM != nil && s.AM.AllocsPerOp != nil && (impl == "" || impl == "/impl=conduit") {
		line += "\t" + plain(*s.AM.AllocsPerOp) + " allocs/op"
	}
	_, err := fmt.Fprintln(b.w, line)
	return err
}

func title(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
