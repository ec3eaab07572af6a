// Package heap is the shared heaps of a job: memory that one rank allocates and every rank reads
// and writes. It is the memory management of the Berkeley UPC runtime, with its fatal errors made
// errors.
//
// # Layout
//
// Each rank gives the same number of bytes, Size, in which offsets count from 0:
//
//	0                Local          Limit                          Size - Global            Size
//	| local heap ->  | for it: no messages  | free      | <- global heap              |
//
// A rank's local heap grows upwards. The global heap grows downwards, alike at all ranks: a block
// of it is the same range of offsets at each of them. Rank 0 keeps the boundary: no local heap may
// pass the limit, the global heap must not go below it. The limit is one for all ranks, so that one
// rank with a large local heap leaves less for the global one; Stats and errors name it.
//
// # Operations
//
//   - [Heap.Alloc] takes memory of this rank's local heap: no message, unless the heap passes the
//     limit that this rank knows: one call to rank 0.
//   - [Heap.GlobalAlloc] takes memory of the global heap: one call to rank 0.
//   - [Heap.AllAlloc] is the same, called by all ranks together, and gives all of them the result.
//   - [Heap.Free] and [Heap.FreeAsync] free any of them, at any rank: a block of another rank by
//     one message. [Heap.AllFree] is called by all ranks.
//
// Memory is not cleared. A block's bytes have their former values, or with Config.Check a pattern.
//
// # Running out
//
// Before rank 0 says that there is no memory it gives the global heap what local heaps do not use
// any more, and the reverse. The first takes two phases, as every rank must give up its limit
// before rank 0 may use the memory below: rank 0 calls all ranks, each trims its heap, lowers its
// limit to its top and answers that; only when all have answered does rank 0 lower the limit of the
// job. Reclaims are numbered by epochs. The replies to requests for growth carry the epoch, and a
// rank ignores those that are older than the last reclaim that it answered; so none that was
// overtaken brings back a limit that was given up. If a rank is dead, or does not answer in time,
// nothing is granted. Within an epoch the largest limit counts, whatever the order in which replies
// come.
//
// An error is a [*NoMemoryError] with the figures; it changes nothing, and a smaller request may
// still succeed.
//
// # Messages
//
// The handlers are the library's. All arguments are 64-bit words.
//
//	conduit.heap.grow    want, least          ->  status, epoch, limit, figures
//	conduit.heap.global  bytes, align         ->  status, offset, epoch, limit, figures
//	conduit.heap.free    offset, kind         ->  status, block
//	conduit.heap.trim    epoch                ->  top
//
// Figures are the ones of a NoMemoryError that rank 0 knows: global in use, global reserved, limit,
// the rank with the limit, largest free block, in use in the local heap of rank 0.
//
// # Locks
//
// The global heap's lock comes before a local heap's, and that before the lock of the boundary;
// none is held while a message is waited for, and handlers hold them briefly.
package heap
