package env

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/am"
)

// Goroutines is the Host of processes in real time.
type Goroutines struct{ am.Goroutines }

var origin = time.Now()

// Now is the time since the process began.
func (Goroutines) Now() time.Duration { return time.Since(origin) }

// WithTimeout is context.WithTimeout.
func (Goroutines) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return withTimeout(parent, d)
}
