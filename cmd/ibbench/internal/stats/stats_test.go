package stats

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// exactPercentile is the definition, word by word: the smallest sample that at
// least p percent of the samples do not exceed.
func exactPercentile(v []int64, p float64) int64 {
	v = slices.Clone(v)
	slices.Sort(v)
	for _, x := range v {
		atMost := 0
		for _, y := range v {
			if y <= x {
				atMost++
			}
		}
		if float64(atMost)*100 >= p*float64(len(v))-1e-6 {
			return x
		}
	}
	panic("no samples")
}

func TestStatisticsEqualTheirDefinitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 200).Draw(t, "samples")
		div := rapid.SampledFrom([]float64{1, 2, 64}).Draw(t, "div")
		s := New(int64(len(v)), div, false)
		var sum float64
		for _, x := range v {
			s.Add(x)
			sum += float64(x)
		}
		if got, want := s.Min(), float64(slices.Min(v))/div; got != want {
			t.Fatalf("min %v, want %v", got, want)
		}
		if got, want := s.Max(), float64(slices.Max(v))/div; got != want {
			t.Fatalf("max %v, want %v", got, want)
		}
		if got, want := s.Mean(), sum/float64(len(v))/div; math.Abs(got-want) > 1e-9*want {
			t.Fatalf("mean %v, want %v", got, want)
		}
		for _, p := range []float64{1, 50, 90, 99, 99.9, 99.99} {
			if got, want := s.Percentile(p), float64(exactPercentile(v, p))/div; got != want {
				t.Fatalf("p%v of %v is %v, want %v", p, v, got, want)
			}
		}
	})
}

func TestPercentilesOfRoundNumbersAreExact(t *testing.T) {
	s := New(1000, 1, false)
	for i := range 1000 {
		s.Add(int64(1000 - i))
	}
	for p, want := range map[float64]float64{50: 500, 90: 900, 99: 990, 99.9: 999, 99.99: 1000, 0.1: 1} {
		if got := s.Percentile(p); got != want {
			t.Errorf("p%v = %v, want %v", p, got, want)
		}
	}
}

func TestBeyondTheBoundTheHistogramServes(t *testing.T) {
	s := New(10, 1, false) // room for ten only
	for i := int64(1); i <= 100000; i++ {
		s.Add(i)
	}
	if s.Exact() {
		t.Fatal("100000 samples in 10 places are said to be exact")
	}
	for _, p := range []float64{50, 99} {
		want := p * 1000
		if got := s.Percentile(p); math.Abs(got-want) > want/1000 {
			t.Errorf("p%v = %v, want %v within three digits", p, got, want)
		}
	}
	if s.Count() != 100000 || s.Min() != 1 || s.Max() != 100000 {
		t.Errorf("count %d min %v max %v", s.Count(), s.Min(), s.Max())
	}
}

func TestTheHistogramHoldsEverySample(t *testing.T) {
	for _, fine := range []bool{false, true} {
		s := New(100, 256, fine)
		for i := range int64(100) {
			s.Add(1000 + i)
		}
		var n int64
		for _, b := range s.Hist().Buckets {
			n += b[2]
			if b[0] > b[1] {
				t.Errorf("bucket %v", b)
			}
		}
		if n != 100 {
			t.Errorf("fine=%v: %d of 100 samples", fine, n)
		}
		if fine && len(s.Hist().Buckets) < 50 {
			t.Errorf("in ps 4 ns should spread over many buckets, not %d", len(s.Hist().Buckets))
		}
	}
}

func TestAddingAllocatesNothing(t *testing.T) {
	s := New(1<<20, 2, false)
	if n := testing.AllocsPerRun(100, func() { s.Add(10); s.Add(1 << 30) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNoSamplesGiveZeros(t *testing.T) {
	s := New(0, 1, false)
	if s.Min() != 0 || s.Max() != 0 || s.Mean() != 0 || s.Percentile(50) != 0 || len(s.Hist().Buckets) != 0 {
		t.Error("figures of nothing")
	}
}

func TestMedianIsTheMiddle(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := Median(c.v); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.v, got, c.want)
		}
	}
}

// The places are those of tables of order statistics (for example David and Nagaraja 2003).
func TestTheIntervalOfAMedianIsBetweenTwoFigures(t *testing.T) {
	for n, k := range map[int]int{5: 0, 6: 1, 8: 1, 9: 2, 12: 3, 20: 6, 21: 6, 101: 41} {
		var v []float64
		for i := range n {
			v = append(v, float64(n-i)) // 1 to n
		}
		low, high, ok := MedianInterval(v)
		if ok != (k > 0) || low != float64(k) || ok && high != float64(n+1-k) {
			t.Errorf("of %d: %v to %v, %v; want %d to %d", n, low, high, ok, k, n+1-k)
		}
	}
}
