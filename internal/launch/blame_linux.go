package launch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// blame finds the rank that failed first.
type blame struct {
	failed   []*rank
	others   int // ranks that had not ended when the first failure was seen
	first    *rank
	reported bool
}

// ended notes the end of a rank; true when it is the first failure.
func (b *blame) ended(k *rank, alive int) bool {
	if k.code() == 0 || b.first != nil {
		return false
	}
	b.failed = append(b.failed, k)
	if len(b.failed) > 1 {
		return false
	}
	b.others = alive
	return true
}

// settle decides as soon as no rank is left that began to end earlier and has not ended yet: what
// it ends with is not known. On a busy machine a process takes its time to die.
func (b *blame) settle(ranks []*rank) {
	if b.first != nil || len(b.failed) == 0 {
		return
	}
	first := slices.MinFunc(b.failed, compareDeaths)
	for _, k := range ranks {
		if !k.ended && deathPlace(k) < deathPlace(first) {
			return
		}
	}
	b.first = first
}

// decide is settle when there is no more time to wait: ranks receive signals now, and their ends
// mean nothing.
func (b *blame) decide() {
	if b.first == nil && len(b.failed) > 0 {
		b.first = slices.MinFunc(b.failed, compareDeaths)
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
func (b *blame) report(report func(string)) {
	if b.reported || b.first == nil || !b.first.dry {
		return
	}
	b.reported = true
	text := b.first.String()
	switch {
	case b.others == 1:
		text += "; ending the other rank"
	case b.others > 1:
		text += fmt.Sprintf("; ending the other %d ranks", b.others)
	}
	report(text)
}
