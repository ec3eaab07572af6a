//go:build !linux || !cgo

package conduit

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// newIBV says why there is no verbs in this build: verbs.ErrNotSupported.
func newIBV(*Job, int) (fabric.Network, error) {
	_, err := verbs.Library()
	return nil, fmt.Errorf("%w: %w", err, fabric.ErrUnreachable)
}

func pinnedBuffers(*Job) (uint64, error) { return 0, nil }
