// Package fabric is the contract between the conduit and its networks.
//
// A [Network] is one rank's attachment to one kind of transport: verbs
// (internal/fabric/ibv), memory shared between the ranks of a host (internal/fabric/shm), or a
// simulation (internal/fabric/sim). It publishes an opaque address, takes the
// addresses of the peers, and opens lanes. A [Lane] is a single-owner queue
// of one-sided operations: put, get and atomics on the peers' segments.
//
// # Addresses
//
// Everything that crosses the wire is a (rank, offset) pair. An offset counts
// bytes from the start of the target's segment; segments need not be mapped at
// equal addresses nor have equal sizes. A network checks every operation
// against the size that the peer published, before anything reaches the wire,
// and answers [*BoundsError], [*AlignError] or [*RankError].
//
// # Completion
//
// A [Handle] names an operation in flight on the lane that returned it. The
// zero Handle, [Done], means that the operation is complete already. An
// operation is complete when
//
//   - a put's bytes are in the target's segment, where any later get by any
//     rank sees them;
//   - a get's bytes are in the caller's buffer;
//   - an atomic has been applied and, unless it is [Implicit], its old value is known.
//
// "Later" means ordered after it by something: a put that the other rank has
// seen, a barrier, a channel. A lane that needs its own completed puts to be
// visible before its next get calls Flush in between.
//
// Operations posted with [Implicit] have no handle of their own: only
// [Lane.Flush] completes them, and reports their errors, with peer, offset and
// length ([*OpError]). That leaves the network free to signal one completion for many.
//
// An error that is known before anything is posted (a bad range, a rank that is
// down) is returned by the operation itself and by nothing else; the operation
// counts as never posted.
//
// # Buffers
//
// The source of a put may be reused as soon as Put returns if its length is at
// most [Limits.CopyMax], or if an operation that is not [Implicit] returned
// Done. Otherwise it must stay unchanged until the operation is complete;
// networks send directly from registered memory. The destination of a get
// belongs to the network until the operation is complete. Buffers may be Go
// memory: no network hands a Go pointer to a device.
//
// # Order
//
// Operations on different peers are not ordered. Puts to one peer on one lane
// become visible there in the order in which they were posted. Nothing else is
// ordered: a get may overtake an earlier put, and a put an earlier get. Flush
// orders everything.
//
// # Batches
//
// A [Batch] is a list of operations that [Lane.Post] posts together: one doorbell,
// one crossing into C. It is a value: parts of a program that share a lane build
// batches side by side. Operations of a batch that have no tag are implicit; those
// of a group are reported complete as one, by the group's tag, in the [Completions] of
// the part that posted it. Of operations of a group that follow each other to one
// peer only the last is signaled.
//
// A batch is checked as a whole before anything of it is posted. What depends on a
// peer fails by itself: the group's completion has an [*OpError], and other groups
// are not concerned.
//
// A gather is a batch of gets into pieces of one memory, a scatter one of puts from
// it.
//
// # Registered memory
//
// [Lane.Register] makes memory known to a network once; pieces of batches name it by
// [Memory] and offset. That saves each operation the look-up of a registration, or the
// copy through a buffer of the lane. The owner closes it when no operation uses it any
// more; its Close fails with ErrBusy before.
//
// # Ownership
//
// A Network's methods may be called from any goroutine. A Lane is used by one
// goroutine at a time; it may be handed over with any synchronisation that
// orders the two goroutines. Close of a Network with open lanes is an error;
// operations on a closed lane wrap os.ErrClosed.
package fabric
