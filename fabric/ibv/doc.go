// Package ibv is the network over libibverbs: reliable connections (RC), one
// queue pair per lane and peer.
//
// # Data path
//
// A lane posts work requests from a small chain in C memory and polls its
// completion queue in one call into C (see package verbs). A put of up to the
// queue pairs' inline capacity travels in the work request. A longer one, up to
// Limits.CopyMax, or from memory that is not registered, is copied through the
// lane's slab, in pieces if need be. What lies in the segment is sent from where
// it lies, and so is, from Network.ZeroCopyMin on, the program's own memory; see below.
// Gets arrive in the slab or directly in such memory, atomics in the slab.
// Transfers longer than the device's largest message, or than a mebibyte, are
// cut; a piece is never larger than what a lost packet should cost.
//
// An operation with a handle asks for a completion of its own; of the implicit
// ones every 16th does. Completions of one queue pair come in order, so one
// retires all before it (IBTA 1.4 vol. 1 §10.8.5). When a
// queue, the slab or the completion queue is half full every request asks for one, so that a full
// one always drains. The lane never has more requests out than the completion
// queue has entries, failed ones included: it cannot overrun.
//
// # The program's own memory
//
// A put or get of at least Network.ZeroCopyMin bytes of memory outside the segment, wherever it comes from, is
// registered through the network's regcache.Cache, and the registration is kept for the next one while nothing
// changes the memory. What cannot be kept is registered for the operation if it is large, else copied; what cannot be registered is
// copied, and counted in Counters.Unregistered. No operation fails for want of a registration.
//
// A registration, and with it the memory, is held until the last work request of the operation has ended: complete,
// failed, flushed because its peer died, or left by a lane that was closed, at the latest when the Network is
// closed. A wait that a context ends gives nothing back: the operation goes on. The program may unmap memory under
// an operation: it ends in the pages that were registered. An operation that fails when it is posted has left its buffer.
//
// # Waiting
//
// A wait polls in C for up to 20 microseconds at a time, then lets other
// goroutines run; when nothing came for a while it arms the completion queue and parks in the Go
// runtime's poller. A post that finds its queue full waits in the same way; it
// ends because the device's retries do.
//
// # Failure
//
// A queue pair that reports an error is of no more use: every operation on it,
// in flight and later, fails with *fabric.PeerDownError whose cause is the
// completion's status, and Config.OnDown is told, once for each peer. With the default timeouts a
// silent peer is noticed after 7 retries of 1 to 4 seconds each (IBTA 1.4 vol. 1
// §9.7.6.1.3); when somebody else notices earlier, PeerDown ends the wait at
// once.
//
// A lane whose completion queue cannot be read is lost, and only it: what is in
// flight on it and all later operations fail with the reason, no peer is taken for
// dead, and the endpoint serves no other lane.
//
// # Wire formats
//
// The address of a rank (version 1), little-endian:
//
//	offset  bytes  meaning
//	0       1      version, 1
//	1       1      link layer (1 InfiniBand, 2 Ethernet)
//	2       1      GID type (0 IB, 1 RoCEv1, 2 RoCEv2)
//	3       1      active MTU code
//	4       1      active width code
//	5       1      active speed code
//	6       1      flags: 1 GRH required
//	7       1      READs and atomics served at once per queue pair
//	8       2      LID
//	10      2      lanes
//	12      4      first packet sequence number (24 bits) of every queue pair
//	16      16     GID
//	32      8      address of the segment
//	40      8      bytes of the segment
//	48      4      rkey of the segment
//	52      2      number of P_Keys, then 2 bytes each
//
// The queue pair table (version 1), exchanged in Connect: one byte version,
// then 4 bytes for each lane and rank, lane by lane: the number of the queue
// pair that this rank made for that lane and rank.
package ibv
