package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/pressure"
)

const (
	touchSteps = 128
	// touchFaults is how many major faults of a step are the process's own: of pages of its program.
	touchFaults = 4
)

// Touch finds how much memory this process can have, as the paper does: it takes more and more, and
// touches all that it has, until that takes pages from a disk. clean is called after each step that
// did not, with the bytes that it has touched. An error is that most bytes are not enough, or that
// major faults are not known.
func Touch(ctx context.Context, most int64, clean func(bytes int64)) error {
	if most < touchSteps || most > math.MaxInt64/2 {
		return fmt.Errorf("bench: touch %s of memory: want %d or more", errtext.Count(most, "byte"), touchSteps)
	}
	page := os.Getpagesize()
	probe := pressure.New()
	last := probe.Read().MajorFaults
	if last < 0 {
		return errors.New("bench: touch: nothing tells of major faults here")
	}
	var runs [][]byte
	for range touchSteps {
		b, free, err := offheap.Map(int(most / touchSteps))
		if err != nil {
			return fmt.Errorf("bench: touch: %w", err)
		}
		defer free()
		runs = append(runs, b)
		// Twice: what a first pass takes from others, or they from it, is not its own yet.
		for range 2 {
			for _, b := range runs {
				for i := 0; i < len(b); i += page {
					b[i]++
				}
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		faults := probe.Read().MajorFaults
		if faults-last > touchFaults {
			return nil
		}
		last = faults
		clean(most / touchSteps * int64(len(runs)))
	}
	return fmt.Errorf("bench: touched %d bytes, and no page came from a disk", most)
}
