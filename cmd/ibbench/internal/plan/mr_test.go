package plan

import (
	"strings"
	"testing"
)

func TestRegionsMayBeNone(t *testing.T) {
	parses(t, Regions, map[string][]int{"0": {0}, "0,1000": {0, 1000}, "1..8": {1, 2, 4, 8}, " 3 , 0": {3, 0}},
		"", "-1", "0..4", "1..", "many", "65537", strings.Repeat("0,", 1500)+"0")
}

func TestAssertionsAboutRegistrations(t *testing.T) {
	for _, c := range []struct {
		op, text string
		bound    float64
	}{
		{Reg, "p99<1ms", 1e6}, {Reg, "mean<5us", 5e3}, {Hit, "hits>99.5%", 99.5}, {Hit, "allocs<=0", 0}, {Hit, "max<1s", 1e9},
		{Churn, "overhead<300ns", 300}, {Churn, "ratio<1.1x", 1.1},
	} {
		if a, err := ParseAssertion(c.text, MRKind(c.op)); err != nil || a.Bound != c.bound {
			t.Errorf("mr %s, %s: %+v, %v", c.op, c.text, a, err)
		}
	}
	for _, c := range [][2]string{{Reg, "ratio<1x"}, {Hit, "overhead<1ns"}, {Churn, "hits>1%"}, {Churn, "ratio<1s"}, {Hit, "allocs<1ns"}, {Reg, "p0<1s"}, {Reg, "frob<1s"}} {
		if a, err := ParseAssertion(c[1], MRKind(c[0])); err == nil {
			t.Errorf("mr %s, %s: %+v", c[0], c[1], a)
		}
	}
}

func TestPointsOfRegistrationsAreChecked(t *testing.T) {
	good := Point{Kind: MR, Op: Churn, Size: 4096, Regions: 1000, Iters: 1}
	if err := good.ValidateMR(); err != nil || good.Definition() != DefOp || good.Unit() != "ns" {
		t.Errorf("%v, %s in %s", err, good.Definition(), good.Unit())
	}
	for name, spoil := range map[string]func(*Point){
		"size": func(p *Point) { p.Size = 0 }, "too large": func(p *Point) { p.Size = MaxSize + 1 }, "regions": func(p *Point) { p.Regions = -1 },
		"too many": func(p *Point) { p.Regions = MaxRegions + 1 }, "in all": func(p *Point) { p.Size = MaxSize },
		"hit of nothing": func(p *Point) { p.Op, p.Regions = Hit, 0 },
	} {
		p := good
		spoil(&p)
		if p.ValidateMR() == nil {
			t.Errorf("%s: %+v is accepted", name, p)
		}
	}
}
