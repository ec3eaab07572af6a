package env

import "context"

// Worker is a part's view of a worker of the program, through which a call of the part goes. One
// goroutine uses it at a time.
type Worker interface {
	// Open is nil until the worker closes. op is for the error.
	Open(op string) error
	// Enter begins a call of the worker, and Exit ends it. Errors: as of Open; in the debug build,
	// that another goroutine is inside.
	Enter(op string) error
	Exit()
	// Get starts a get of len(dst) bytes at off of a rank's user region, outside of a call. Rank -1 is
	// a null pointer's. Without a Get nothing is in flight: it succeeded, or there is an error.
	// With both, parts of it may be in flight until the worker's next flush.
	Get(rank int, off uint64, dst []byte) (Get, error)
}

// Get is a get in flight. Its methods are for inside of a call of its worker. Once it is done they
// are not called any more.
type Get interface {
	// Wait blocks until the get is done, well or with an error. When ctx ends first it is not done.
	Wait(ctx context.Context) (done bool, err error)
	// Test makes progress, and does not wait.
	Test() (done bool, err error)
}
