package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// Until ends the rounds of a comparison: when the interval of 95 % confidence of each median ratio
// is within a share of it, or when Budget does not hold a further round.
type Until struct {
	Budget time.Duration
	Within float64 // 0.05: 5 %
}

// mostRounds bounds the rounds of a budget.
const mostRounds = 1000

// watch is the time that rounds take.
type watch struct {
	Until
	begun, last time.Time
	latest      time.Duration // of a round
	rounds      int
}

func (u Until) begin() *watch {
	t := time.Now()
	return &watch{Until: u, begun: t, last: t}
}

// round is called at the end of one.
func (w *watch) round() {
	t := time.Now()
	w.latest, w.last = t.Sub(w.last), t
	w.rounds++
}

// over says whether no further round is needed, or fits.
func (w *watch) over(all []*contest, kept []bool) bool {
	if w.rounds == 0 {
		return false
	}
	if time.Since(w.begun)+w.latest > w.Budget || w.rounds >= mostRounds {
		return true
	}
	width, ok := width(all, kept)
	return ok && width <= w.Within
}

// bound ends a round that takes far more than the budget: the first one is wanted all the same.
func (w *watch) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.Budget == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithDeadlineCause(ctx, w.begun.Add(2*w.Budget),
		fmt.Errorf("not finished within twice the budget of %v", w.Budget))
}

// width is the widest half of the intervals of the median ratios, as a share of these. There is
// none with fewer than 6 rounds.
func width(all []*contest, kept []bool) (share float64, ok bool) {
	for _, x := range all {
		if x.silent {
			continue
		}
		v := x.ratios(kept)
		low, high, ok := stats.MedianInterval(v)
		m := stats.Median(v)
		if !ok || m <= 0 {
			return 0, false
		}
		share = max(share, high/m-1, 1-low/m)
	}
	return share, true
}

// ratios of the rounds that count: of the medians, or of throughputs.
func (x *contest) ratios(kept []bool) (v []float64) {
	for i, r := range x.rounds {
		ours, theirs := judged(r.Ours), judged(r.Theirs)
		if kept[i] && theirs > 0 {
			v = append(v, ours/theirs)
		}
	}
	return v
}

func judged(f report.Figures) float64 {
	if f.P50 > 0 {
		return f.P50
	}
	return f.Mean
}

// interval of the median ratio.
func (x *contest) interval(kept []bool) (low, high float64, ok bool) {
	low, high, ok = stats.MedianInterval(x.ratios(kept))
	return report.Round3(low), report.Round3(high), ok
}

// progress says which round begins.
func (c *Comparison) progress(n int, w *watch) string {
	if c.Until.Budget == 0 {
		return fmt.Sprintf("round %d of %d", n+1, c.Rounds)
	}
	return fmt.Sprintf("round %d, %v left", n+1, max(c.Until.Budget-time.Since(w.begun), 0).Round(time.Second))
}
