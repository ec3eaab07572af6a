// Package shm is the network between ranks of one host: every rank maps the
// segments of the others and reaches them with plain loads, stores and the
// processor's atomics.
//
// Every operation is complete when its call returns, whatever its length;
// every handle is [fabric.Done]. A put, get or atomic allocates nothing and
// enters neither the kernel nor C.
//
// # Visibility
//
// What a completed put wrote is what any access sees that is ordered after it
// by something: a later put of the same lane that a peer has seen, a barrier, a
// channel. Between a put and the same lane's next get of another word the
// processor may still hold the put's bytes in its store buffer; where two ranks
// each put a word and then get the other's, Flush between the two makes at
// least one of them see the other's.
//
// Puts and gets of 1, 2, 4 and 8 bytes at a multiple of their length are single
// accesses: others see all of their bytes or none.
//
// # Joining
//
// A segment is a sealed memfd (package segment), with no name in any file
// system. Each rank listens on an abstract unix socket with a random name. Of
// each pair the higher rank dials the lower; both check that the other belongs
// to the same user (SO_PEERCRED) and presents both cookies, which travelled only in
// the bootstrap's exchange; then each hands its memfd to the other
// (SCM_RIGHTS). When every pair is joined the socket no longer listens.
//
// # Death
//
// The connection of a pair stays open. When it ends without a goodbye, the peer
// has died: OnDown is called once, and operations on it fail with
// [*fabric.PeerDownError] from then on. The peer's segment stays mapped until
// Close, so that slices from [fabric.Lane.Mapped] remain valid memory; what
// they hold is whatever the dead rank left. A rank that closes its Network
// says goodbye and is not reported; its segment, too, stays mapped in its peers.
//
// # Wire formats
//
// Numbers are little-endian. Address, version 1, 116 bytes:
//
//	 0  4  "ibcS"
//	 4  1  version
//	 5  3  zero
//	 8  4  rank
//	12  4  user id
//	16 16  boot id of the kernel (proc_sys_kernel(5))
//	32  8  network namespace: device of its nsfs inode
//	40  8  network namespace: inode
//	48 16  job: first half of SHA-256 over its id
//	64  8  length of the segment in bytes
//	72 16  name of the socket: hexadecimal, after "ibconduit-"
//	88 16  cookie
//	104 4  process id, as the rank itself sees it, for messages only
//	108 8  checksum: first 8 bytes of SHA-256 over the bytes before it
//
// Greeting, one packet in each direction, with the sender's memfd attached, 48 bytes:
//
//	 0  4  "ibcH"
//	 4  1  version
//	 5  1  1 from the dialling rank, 2 in answer
//	 6  2  zero
//	 8  4  rank of the sender
//	12  4  rank of the receiver
//	16 16  cookie of the receiver
//	32 16  cookie of the sender
//
// Goodbye, one packet: 1 byte, 3. Nothing else is ever sent.
package shm
