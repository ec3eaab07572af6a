// Package pmix is a client of PMIx, by which srun --mpi=pmix, Open MPI's mpirun and others let the
// ranks of a job exchange data. It loads libpmix at run time: a program that has it is not linked
// with the library, needs no header of it, and runs where it is not installed.
//
// Calls of PMIx block and take no context: each runs on a thread of its own, and is left behind
// there when its context ends. Later calls wait for it, until their contexts end.
package pmix

import (
	"errors"
	"fmt"
)

// EnvLibrary names the file that is loaded in the place of libpmix.so.2.
const EnvLibrary = "IBCONDUIT_LIBPMIX"

// ErrNoLibrary: there is no libpmix that can be used.
var ErrNoLibrary = errors.New("no usable libpmix")

// StatusError is an error of the library.
type StatusError struct {
	Op     string // "PMIx_Fence"
	Status int    // negative, as in pmix_common.h
	Text   string // the library's words
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Op, e.Text, e.Status) }

// Event is a report of the launcher about a rank.
type Event struct {
	Status int32
	Rank   uint32
}

// Death says whether the event means that the rank has ended in any way but in good order, by the
// numbers of pmix_common.h and pmix_deprecated.h.
func (e Event) Death() bool {
	switch e.Status {
	case -7, -8, -9, // ABORTED, REQUESTED_ABORT, ABORTING
		-200,                   // TERM_WO_SYNC
		-400, -401, -402, -403: // KILLED_BY_CMD, FAILED_TO_START, ABORTED_BY_SIG, SENSOR_BOUND_EXCEEDED
		return true
	}
	return false
}
