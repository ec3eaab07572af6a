package launch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// firstFailure finds the rank that failed first.
type firstFailure struct {
	failed   []*rank
	others   int // ranks that had not ended when the first failure was seen
	first    *rank
	reported bool
}

// ended notes the end of a rank; true when it is the first failure.
func (f *firstFailure) ended(k *rank, alive int) bool {
	if k.code() == 0 || f.first != nil {
		return false
	}
	f.failed = append(f.failed, k)
	if len(f.failed) > 1 {
		return false
	}
	f.others = alive
	return true
}

// settle decides as soon as no rank is left that began to end earlier and has not ended yet: what
// it ends with is not known. On a busy machine a process takes its time to die.
func (f *firstFailure) settle(ranks []*rank) {
	if f.first != nil || len(f.failed) == 0 {
		return
	}
	first := slices.MinFunc(f.failed, compareDeaths)
	for _, k := range ranks {
		if !k.ended && deathPlace(k) < deathPlace(first) {
			return
		}
	}
	f.first = first
}

// decide is settle when there is no more time to wait: ranks receive signals now, and their ends
// mean nothing.
func (f *firstFailure) decide() {
	if f.first == nil && len(f.failed) > 0 {
		f.first = slices.MinFunc(f.failed, compareDeaths)
	}
}

// compareDeaths orders ranks by when they began to end, then by when they were seen to end.
func compareDeaths(x, y *rank) int {
	return cmp.Or(cmp.Compare(deathPlace(x), deathPlace(y)), cmp.Compare(x.order, y.order))
}

func deathPlace(k *rank) int {
	if n, ok := k.place(); ok {
		return n
	}
	return math.MaxInt
}

// report names the rank, once, after that rank's own output.
func (f *firstFailure) report(report func(string)) {
	if f.reported || f.first == nil || !f.first.dry {
		return
	}
	f.reported = true
	text := f.first.String()
	switch {
	case f.others == 1:
		text += "; ending the other rank"
	case f.others > 1:
		text += fmt.Sprintf("; ending the other %d ranks", f.others)
	}
	report(text)
}
