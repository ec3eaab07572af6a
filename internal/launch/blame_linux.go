package launch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"
)

// settleTime is how long ranks that end after the first failure may still
// turn out to have begun to end before it.
const settleTime = 100 * time.Millisecond

// blame finds the rank that failed first.
type blame struct {
	deaths *deaths
	failed []*rank
	others int       // ranks that had not ended when the first failure was seen
	until  time.Time // when ranks are told to end, after which their ends say nothing
	first  *rank
	told   bool
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

// waitsFor reports whether a rank that has not ended began to end before all
// that have failed: on a busy machine a process takes its time to die.
func (b *blame) waitsFor(ranks []*rank) bool {
	first := math.MaxInt
	for _, k := range b.failed {
		if n, ok := b.deaths.place(k); ok {
			first = min(first, n)
		}
	}
	for _, k := range ranks {
		if n, ok := b.deaths.place(k); ok && !k.ended && n < first {
			return true
		}
	}
	return false
}

// settle decides, once: whoever was killed by a signal that is never an answer
// to a peer's end, then whoever began to end first, then whoever was seen first.
func (b *blame) settle() {
	if b.first != nil || len(b.failed) == 0 {
		return
	}
	rest := func(k *rank) int {
		if k.status.Signaled() && slices.Contains(never, k.status.Signal()) {
			return 0
		}
		return 1
	}
	place := func(k *rank) int {
		if n, ok := b.deaths.place(k); ok {
			return n
		}
		return math.MaxInt
	}
	b.first = slices.MinFunc(b.failed, func(x, y *rank) int {
		return cmp.Or(cmp.Compare(rest(x), rest(y)), cmp.Compare(place(x), place(y)), cmp.Compare(x.order, y.order))
	})
}

// never do these signals follow from another rank's end.
var never = []syscall.Signal{
	syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS, syscall.SIGXCPU, syscall.SIGXFSZ,
}

// report says which rank it was, once, after that rank's own last words.
func (b *blame) report(say func(string)) {
	if b.told || b.first == nil || !b.first.dry {
		return
	}
	b.told = true
	text := b.first.String()
	switch {
	case b.others == 1:
		text += "; ending the other rank"
	case b.others > 1:
		text += fmt.Sprintf("; ending the other %d ranks", b.others)
	}
	say(text)
}
