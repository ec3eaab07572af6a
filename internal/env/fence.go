package env

import "context"

// Fence is what a worker has where its lanes keep bytes of other ranks: copies of what it read, and
// writes that were not sent yet. The worker calls it at each operation that orders memory accesses
// (package conduit, "Fences"), on the goroutine that uses the worker.
type Fence interface {
	// ReleaseFor returns when the writes that were kept have reached their targets. A message that
	// follows writes n bytes at off of a rank's user region; n is 0 where nothing does. With an error
	// the operation behind it does not begin. Where ctx has ended before, it begins what is to be
	// done, does not wait, and returns the cause of ctx unless all has been done.
	ReleaseFor(ctx context.Context, rank int, off uint64, n int) error

	// Acquire forgets the copies: what is read afterwards is no older than now. Writes that are kept
	// stay. It does not block.
	Acquire()
}
