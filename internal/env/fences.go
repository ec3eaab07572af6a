package env

import "context"

// Fences are how a worker uses a part that keeps bytes of other ranks for it: copies of what it
// read, and writes that were not sent yet. The worker calls them at each operation that orders
// memory accesses (package conduit, "Fences and parts"), on the goroutine that uses the worker, but
// for a Release before a collective operation of the job, when no other call is inside the worker.
// The part keeps no bytes of a rank whose memory is mapped here (fabric.Lane.Mapped), where the
// worker's loads and stores go past it; unless the job wants that, to test it.
type Fences interface {
	// Release returns when the writes that the part kept have reached their targets. With an error
	// the operation behind it does not begin. Where ctx has ended before, it begins what is to be
	// done, does not wait, and returns the cause of ctx unless all has been done.
	Release(ctx context.Context) error

	// Acquire makes the part forget its copies: what is read afterwards is no older than now. Writes
	// that it keeps stay. It does not block.
	Acquire()

	// Direct is called before an operation that passes the part by: it reads, or writes, n bytes at
	// off of a rank's user region; an atomic that returns nothing is a write. When it returns, writes
	// of these bytes that the part kept have reached their target, and copies that the operation makes
	// old are forgotten. A write that does not block is in flight until the worker's next Flush or
	// Release: until then the part keeps no copy of its bytes. With an error the operation does not
	// begin.
	Direct(ctx context.Context, rank int, off uint64, n int, write bool) error

	// Close is called when the worker closes, after a Release.
	Close() error
}
