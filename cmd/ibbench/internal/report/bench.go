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
		if _, err := fmt.Fprintf(b.w, "goos: linux\ngoarch: %s\npkg: github.com/ibconduit/conduit/cmd/ibbench\ncpu: %s\n",
			s.Env.Arch, s.Env.CPU); err != nil {
			return err
		}
	}
	if s.Text("flow.failed") != "" {
		return nil
	}
	p := s.Peer()
	if p == nil {
		return b.line(s, "", &s.Result)
	}
	if err := b.line(s, "/impl=conduit", &s.Result); err != nil {
		return err
	}
	peer := cmp.Or(p.Peer, p.Place)
	if s.Kind == plan.Coll {
		peer = "openmpi"
	}
	return b.line(s, "/impl="+peer, &p.Result)
}

func (b *bench) Close() error { return nil }

func (b *bench) line(s *Series, impl string, r *Result) error {
	name := "Benchmark" + title(s.Plan.Kind) + title(s.Op)
	if s.Plan.Ack {
		name += "Ack"
	}
	name += fmt.Sprintf("/fabric=%s/size=%d", s.Env.Fabric, s.Size)
	variant := ""
	if s.Plan.Variant != "" {
		variant = "/variant=" + strings.ReplaceAll(s.Plan.Variant, " ", "_")
	}
	switch s.Kind {
	case plan.MR:
		if s.Op != plan.Reg {
			name += fmt.Sprintf("/regions=%d", s.Plan.Regions)
		}
	case plan.Cache:
		name += variant + "/cache=" + s.Text("cache.side")
	case plan.Flow:
		name += fmt.Sprintf("%s/arm=%s/limit=%.0f", variant, strings.ReplaceAll(s.Text("flow.arm"), " ", "_"),
			s.Value("flow.limit"))
	case plan.Coll:
		name += fmt.Sprintf("/ranks=%d", s.Env.Ranks)
	default:
		if s.Plan.Kind == plan.Lat {
			break
		}
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
	for _, d := range declared {
		if m, ok := s.Metrics[d.name]; ok && d.bench != "" && r == &s.Result {
			line += "\t" + plain(Round3(m.Value)) + " " + d.bench
		}
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
