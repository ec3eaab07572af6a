package plan

import (
	"strings"
	"testing"
)

func TestPointsOfStartsAreChecked(t *testing.T) {
	good := Point{Kind: Join, Op: Job, Size: 4, Segment: 1 << 20}
	if err := good.validate(); err != nil || good.Definition() != DefStart || good.Unit() != "ns" {
		t.Errorf("%v, %s in %s", err, good.Definition(), good.Unit())
	}
	for want, spoil := range map[string]func(*Point){
		"not measured by": func(p *Point) { p.Op = Put }, "1 rank:": func(p *Point) { p.Size = 1 }, "want 2 to 4096": func(p *Point) { p.Size = MaxRanks + 1 },
		"a segment of 0 bytes": func(p *Point) { p.Segment = 0 }, "1 to 1T": func(p *Point) { p.Segment = MaxSegment + 1 },
	} {
		p := good
		spoil(&p)
		if err := p.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", p, err, want)
		}
	}
}
