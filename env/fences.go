package env

import "context"

// Fences is what a part tells a worker for which it keeps bytes of other ranks: copies that it has
// read, writes that it has not sent. The worker calls it at each operation that orders memory
// accesses, on the goroutine that uses the worker. A part that has Fences keeps no bytes of a rank
// whose memory is mapped here (fabric.Lane.Mapped): the worker's loads and stores go there directly.
type Fences interface {
	// Release returns when the writes that the part kept have reached their targets. With an error the
	// operation behind it does not begin.
	Release(ctx context.Context) error

	// Acquire makes the part forget its copies: what is read afterwards is no older than now. Writes
	// that it keeps stay.
	Acquire()

	// Direct is called before an operation that passes the part by: it reads, or writes, n bytes at off
	// of a rank's user region. Writes of these bytes that the part kept have reached their target when
	// it returns, and copies that the operation makes old are forgotten. A write that does not block is
	// in flight until the worker's next Flush or fence: the part keeps no copy of its bytes until then.
	// With an error the operation does not begin.
	Direct(ctx context.Context, rank int, off uint64, n int, write bool) error

	// Close is called when the worker closes, after a Release.
	Close() error
}
