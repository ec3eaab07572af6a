package plan

import (
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/errtext"
)

// MR measures registrations of the program's own memory. Its points are of one process and need no
// Plan.
const MR = "mr"

// Operations of MR.
const (
	Reg   = "reg"   // registering and deregistering
	Hit   = "hit"   // Get and Put of what the cache holds
	Churn = "churn" // unmapping while a cache listens
)

// MRKind is the kind of assertions about an operation of MR, as "overhead<300ns".
func MRKind(op string) string { return MR + " " + op }

// MaxRegions is the limit of MR.
const MaxRegions = 1 << 16

// ValidateMR returns the first thing that is wrong with a point of MR.
func (p Point) ValidateMR() error {
	switch {
	case p.Size < 1 || p.Size > MaxSize:
		return fmt.Errorf("size %d: want 1 byte to 1G", p.Size)
	case p.Regions < 0 || p.Regions > MaxRegions:
		return fmt.Errorf("%d regions: want 0 to %d", p.Regions, MaxRegions)
	case p.Op == Hit && p.Regions == 0:
		return errors.New("0 regions: a hit needs 1")
	case p.Op != Reg && p.Size*int64(max(p.Regions, 1)) > maxRegistered:
		return fmt.Errorf("%s of %d bytes: more than 64G in all", errtext.Count(p.Regions, "region"), p.Size)
	}
	return nil
}

const maxRegistered = 64 << 30
