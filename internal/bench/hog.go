package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/ibconduit/conduit/internal/offheap"
)

// Hog takes memory from others, as another job on the machine does: it touches every page of a
// region again and again, so that the kernel takes other pages when it needs some. Fields that are
// 0 get the defaults.
type Hog struct {
	Bytes  int64         // at most; it has no default
	Every  time.Duration // between two touches of a page. Default: 100 ms
	Period time.Duration // of a sawtooth from nothing to Bytes; 0: Bytes all the time
	// Took is called after each round of touching with the bytes that it has. nil: not.
	Took func(bytes int64)
}

const (
	hogEvery = 100 * time.Millisecond
	// hogSteps is in how many steps a sawtooth grows, at least one each Every.
	hogSteps = 16
)

// at is how many bytes the hog has after a time.
func (h Hog) at(t time.Duration) int64 {
	if h.Period == 0 {
		return h.Bytes
	}
	steps := max(min(int64(h.Period/h.Every), hogSteps), 1)
	step := int64(t%h.Period) * steps / int64(h.Period)
	return h.Bytes * step / max(steps-1, 1)
}

// Run takes memory until ctx ends, and gives it back. It returns nil then.
func (h Hog) Run(ctx context.Context) error {
	if h.Every == 0 {
		h.Every = hogEvery
	}
	if h.Bytes < 1 || h.Bytes > math.MaxInt64/hogSteps || h.Every < 0 || h.Period < 0 || h.Period > 0 && h.Period < h.Every {
		return fmt.Errorf("bench: a hog of %d bytes, touched every %v, with a period of %v: want 1 byte or more, and a period of 0 or at least one touch",
			h.Bytes, h.Every, h.Period)
	}
	page := os.Getpagesize()
	step := max(h.Bytes/hogSteps, int64(page))
	var runs [][]byte
	var frees []func()
	defer func() {
		for _, free := range frees {
			free()
		}
	}()
	var has int64
	begin := time.Now()
	tick := time.NewTicker(h.Every)
	defer tick.Stop()
	for {
		for want := h.at(time.Since(begin)); has < want; has += int64(len(runs[len(runs)-1])) {
			b, free, err := offheap.Map(int(min(step, want-has)))
			if err != nil {
				return fmt.Errorf("bench: hog: %w", err)
			}
			runs, frees = append(runs, b), append(frees, free)
		}
		for want := h.at(time.Since(begin)); has > want && len(runs) > 0; runs = runs[:len(runs)-1] {
			has -= int64(len(runs[len(runs)-1]))
			frees[len(frees)-1]()
			frees = frees[:len(frees)-1]
		}
		for _, b := range runs {
			for i := 0; i < len(b); i += page {
				b[i]++
			}
		}
		if h.Took != nil {
			h.Took(has)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
