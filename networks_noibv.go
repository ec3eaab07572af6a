//go:build !linux || !cgo

package conduit

import (
	"fmt"

	"github.com/ibconduit/conduit/fabric"
)

// newIBV says why there is no verbs in this build.
func newIBV(*joining) (fabric.Network, error) {
	return nil, fmt.Errorf("this program was built without verbs: build it on Linux with CGO_ENABLED=1 and libibverbs-dev (rdma-core-devel) installed: %w", fabric.ErrUnreachable)
}
