// Package shm is the network between ranks of one host: every rank maps the
// segments of the others and reaches them with plain loads, stores and the
// processor's atomics.
//
// Every operation of a lane is complete when its call returns, whatever its length;
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
// The connection of a pair stays open. When it ends without a leave packet, the peer
// has died: OnDown is called once, and operations on it fail with
// [*fabric.PeerDownError] from then on. The peer's segment stays mapped until
// Close, so that slices from [fabric.Lane.Mapped] remain valid memory; what
// they hold is whatever the dead rank left. A rank that closes its Network
// leaves: OnLeft is called, it is not dead, and its segment, too, stays mapped in its peers.
//
// # Messages
//
// An endpoint ([Network.NewEndpoint]) owns a region: a sealed memfd with the receive slots, into
// which the senders write. A sender claims the next posted slot with one compare-and-swap that
// names it, copies the message, and publishes it with another; the message is complete, and its
// send buffer free, when Send returns, unless it must wait. No message enters the kernel but
// to wake a receiver that sleeps. Memory is the slots', whatever the number of ranks; a
// connected peer costs a few hundred bytes and a mapping, any other 8 bytes.
//
// A message that meets no posted slot waits in its send buffer, is counted once in RNR
// by its sender, and is tried again by each Poll, Kick and Wait of the sender, in order.
//
// A write before a message is a copy into the peer's segment, done before a slot is claimed.
// [fabric.More] holds nothing back, [fabric.Solicited] decides whether a sleeper is woken.
// Doorbells count these wake-ups.
//
// Event.Data is memory of the region, where any process of the same user that holds
// it could still write: a decoder copies a field before it checks it.
//
// Notes go through a ring of their own in the same region, and over the socket of the pair to a
// peer that has not handed over its region. A full ring loses them: counted by the sender
// where it sees it, else by the receiver.
//
// # Connections
//
// A connection of two endpoints is an agreement, with a number, that both count messages from 0.
// It is made and closed by packets over the socket of the pair, which the goroutine handles that
// watches for the peer's death; Poll is not needed for it. Endpoints hand each other their regions
// when they connect for the first time, and keep them mapped. A request to an endpoint that is not
// open yet waits. A sender to an endpoint that was closed gets a [*fabric.PeerDownError] and Down,
// at that endpoint only; other ranks learn nothing.
//
// # Sleeping
//
// Wait parks the goroutine; no thread waits. The sleeper sets a flag in its region and looks once
// more; a sender publishes and then looks at the flag. The side that clears the flag sends
// a packet over the socket. A sleeper looks by itself four times a second, because a
// sender may be stopped between its message and its packet.
//
// # Hostile and dead senders
//
// All senders can write to all of a region; it keeps out mistakes and reports them. It is no
// protection against hostile processes, which run as the same user anyway. An address, index or
// length from it is used only after comparison with the reader's own state: the
// owner keeps in private which slot lies in which cell. Each message carries its
// number, so that none is lost, repeated or exchanged in silence. A message with a wrong number
// ends its sender; a cell in a state that no sender can have left is given up, and its slot
// posted again; a tail that cannot be is put right. Packets that mean nothing end their sender.
//
// A sender that is killed while it writes leaves a cell with its rank. When the connection of the
// pair has ended, and thus all threads of the process, the owner posts the slot anew.
// A rank that others report dead may still run: its cell waits until then. So does one of a process
// that is stopped (SIGSTOP) in the middle of a message, and the messages behind it with it.
//
// # Memory of a region
//
// Version 1, in the processor's byte order. C is the smallest power of two that is not less than
// the number of slots S; P is the slot size rounded up to 64.
//
//	  0   4  "ibcR"
//	  4   4  version
//	  8   4  S
//	 12   4  slot size in bytes
//	 64   8  tail: ticket of the next cell to claim
//	128   4  armed: 1 while the owner sleeps
//	132   4  closed: 1 when the owner takes no more
//	192   8  tail of the notes
//	256      C cells of 128 bytes, then S slots of P bytes: messages
//	         64 cells of 128 bytes, then 64 slots of 256 bytes: notes
//
// A cell:
//
//	 0   8  word: bits 63-32 ticket modulo 2^32, 31-30 state, 29-0 rank of the sender
//	 8   4  slot, written by the owner
//	12   4  bytes of the message
//	16   4  number of the connection; 0 in a note
//	20   4  number of the message within it, from 0; 0 in a note
//	24 104  the message, if it is no longer; else it lies in the slot
//
// Tickets count cells without end; ticket t is of cell t modulo C. State of a cell and what may
// happen to it, for the cell of ticket t:
//
//	older ticket  --owner-->  t, posted (0)  after its slot was given back
//	posted        --sender->  claimed (1)    compare-and-swap; then tail from t to t+1, by it
//	                                         or by any that finds the cell claimed
//	claimed       --sender->  full (2)       compare-and-swap, after the cell's rest and the slot
//	any of these  --owner-->  taken (3)      given up; tail as before, by any that finds it so
//
// Words, tails and flags are accessed by sequentially consistent atomics, all else by plain ones:
// the owner's writes before it posted are seen by the claiming sender; a sender's before
// full are seen by the owner that read full. The owner looks at cells in the order of tickets,
// hence messages of one sender stay in order.
//
// # Wire formats
//
// Numbers are little-endian. Address, version 3, 108 bytes:
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
//	64 16  name of the socket: hexadecimal, after "ibconduit-"
//	80 16  cookie
//	96  4  process id, as the rank itself sees it, for messages only
//	100 8  checksum: first 8 bytes of SHA-256 over the bytes before it
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
// Leave, one packet: 1 byte, 3. Nothing follows it.
//
// Packets of endpoints, 20 bytes:
//
//	 0  1  kind: 4 request, 5 reply, 6 close, 7 closed, 8 not idle, 9 no endpoint, 10 wake
//	 1  3  zero
//	 4  4  endpoint
//	 8  4  number of the connection
//	12  4  request, reply: slots; close: messages sent
//	16  4  request, reply: bytes of a slot; close: messages taken
//
// The first request or reply of an endpoint to a peer brings the region's descriptor.
//
// Note: 1 byte, 11; 3 zeros; endpoint (4 bytes); up to 256 bytes.
package shm
