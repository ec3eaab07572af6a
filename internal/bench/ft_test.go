package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/racetest"
)

// onFT runs an FT on n ranks of this process.
func onFT(t *testing.T, p FTParams, n int, cfg conduit.Config) ([]Usage, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	all, results := make([]*FT, n), make([]Usage, n)
	for r := range all {
		var err error
		if all[r], err = NewFT(p, n); err != nil {
			t.Fatal(err)
		}
	}
	all[0].Configure(&cfg)
	if cfg.Memory.Fetches != nil {
		cfg.Memory.Fetches = map[string]func(*conduit.FetchRequest){blockName: func(r *conduit.FetchRequest) { all[r.Job().Rank()].x.asks(r) }}
	} else {
		cfg.Memory.Payloads = map[string]func(*conduit.Payload){blockName: func(p *conduit.Payload) { all[p.Job().Rank()].x.take(p) }}
	}
	err := conduit.RunLocalConfig(ctx, n, cfg, func(job *conduit.Job) error {
		w, err := job.NewWorker()
		if err != nil {
			return err
		}
		results[job.Rank()], err = all[job.Rank()].Run(ctx, w)
		return errors.Join(err, job.Budget().Check(), w.Close())
	})
	return results, err
}

var overSHM = conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 16}

// The checksums are those of the NAS benchmark, whatever the parts and the arm.
func TestFTHasThePublishedChecksums(t *testing.T) {
	for _, p := range []FTParams{
		{Arm: ArmNormal, Class: "S", Parts: 16},
		{Arm: ArmNormal, Class: "W", Parts: 4, Iterations: 2},
		{Arm: ArmTokens, Class: "S", Parts: 8, Tokens: 4096, Iterations: 2},
		{Arm: ArmTokens, Class: "S", Parts: 1, Tokens: 1},
		{Arm: ArmTokens, Class: "S", Parts: 16, Tokens: 4, Iterations: 3},
		{Arm: ArmTokens, Class: "W", Parts: 32, Tokens: 8, Iterations: 2},
	} {
		for _, n := range []int{1, 2, 4} {
			if racetest.Enabled && n != 2 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/%d/%d", p.Arm, p.Class, p.Parts, n), func(t *testing.T) {
				results, err := onFT(t, p, n, overSHM)
				if err != nil {
					t.Fatal(err)
				}
				for r, res := range results {
					if s := res.Sizes; res.Peak > s.InFlight || n > 1 && (res.Received == 0 || s.Pieces == 0) {
						t.Errorf("rank %d had %d bytes of blocks (%d received), want 1 to %d: %+v", r, res.Peak, res.Received, s.InFlight, s)
					}
				}
			})
		}
	}
}

// A transform of one line is the sum that defines it.
func TestFFTIsTheSum(t *testing.T) {
	for _, n := range []int{1, 2, 8, 32} {
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		x := make([]complex128, 2*n)
		for i := range x {
			x[i] = complex(rng.Float64(), rng.Float64())
		}
		got := append([]complex128(nil), x...)
		f := newFFT(n)
		f.lines(got, false)
		for l := range 2 {
			for k := range n {
				var want complex128
				for i, v := range x[l*n : (l+1)*n] {
					want += v * cmplx.Rect(1, -2*math.Pi*float64(i*k)/float64(n))
				}
				if cmplx.Abs(got[l*n+k]-want) > 1e-12 {
					t.Errorf("line %d of %d numbers: frequency %d is %v, want %v", l, n, k, got[l*n+k], want)
				}
			}
		}
		f.lines(got, true)
		for i := range x {
			if cmplx.Abs(got[i]/complex(float64(n), 0)-x[i]) > 1e-12 {
				t.Errorf("number %d is %v after both transforms, want %v", i, got[i]/complex(float64(n), 0), x[i])
			}
		}
	}
}

// A wrong number shows in the checksum, on all ranks.
func TestFTFindsAWrongNumber(t *testing.T) {
	f, err := NewFT(FTParams{Class: "S"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	sums := append([]complex128(nil), ftClasses["S"].sums...)
	if err := f.verify(sums); err != nil {
		t.Error(err)
	}
	sums[3] *= 1 + 1e-11
	var wrong *WrongError
	if err := f.verify(sums); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "checksum 4") {
		t.Errorf("error %v", err)
	}
}

func TestFTRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		p     FTParams
		ranks int
		want  string
	}{
		{FTParams{Arm: "x"}, 2, "no arm"}, {FTParams{Class: "X"}, 2, "no class"}, {FTParams{Tokens: -1}, 2, "-1 tokens"},
		{FTParams{Parts: 3}, 2, "power of 2"}, {FTParams{Iterations: 7}, 2, "want 1 to 6"}, {FTParams{}, 3, "3 ranks"},
		{FTParams{Parts: 4096}, 2, "too few lines"},
	} {
		if _, err := NewFT(c.p, c.ranks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v on %d ranks: error %v, want one with %q", c.p, c.ranks, err, c.want)
		}
	}
}
