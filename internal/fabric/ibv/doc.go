// Package ibv is the network over libibverbs: reliable connections (RC), one
// queue pair per lane, or endpoint, and peer that it uses.
//
// # Structure
//
// Calls go downward:
//
//	lane          fabric.Lane: starts operations, waits for them
//	queueSet      what a lane stands on: completion queue, send queues, slab, records
//	endpoint      fabric.Endpoint: Send, Poll, Wait
//	connector     makes and closes connections of lanes, for all of them
//	connections   makes, keeps and closes the connections of an endpoint
//	datagrams     unreliable datagrams: notes, and the words of connection making
//	messages      messages that wait for a connection, or are in flight
//	sender        posts to send queues, completes what they carry; of a queueSet, or of messages
//
// Network has the device, the addresses of all ranks, and which of them are down.
//
// # Send queues
//
// A sender posts work requests from a small chain in C memory and polls its completion queue in one
// call into C (see package verbs). Work requests of one queue pair complete in order, so a
// completion ends all before it (IBTA 1.4 vol. 1, 10.8.5). A request that the caller waits for is
// signaled; of the others every 16th of a lane and every 8th message is, and all while more than
// half of the records are in use, so that a full queue always drains. A queue with unsignaled last
// requests is probed by a signaled write of nothing: by Flush, Kick, keepalive, and before a
// connection is closed. A sender never has more in flight than its completion queue has entries.
//
// A queue pair that reports an error, or refuses work, is of no more use, and its peer is down. The
// queue pair is taken from the device before requests in flight end, so that memory is free again
// when the caller sees the error. Other queues, also of the same doorbell, are not affected.
//
// # Lanes
//
// A put of up to the queue pairs' inline capacity travels in the work request. A longer one, up to
// Limits.CopyMax, or from memory that is not registered, is copied through the lane's slab, in
// pieces if need be. What lies in the segment is sent from where it lies, and so is, from
// Network.ZeroCopyMin on, the program's own memory; see below. Gets arrive in the slab or directly
// in such memory, atomics in the slab. Transfers longer than the device's largest message, or than
// a mebibyte, are cut; a piece is never larger than what a lost packet should cost.
//
// A blocking operation of one work request on a lane with nothing in flight is posted and awaited
// in one call.
//
// # Atomics
//
// The device carries out fetch-add and compare-swap of 64 bits. Verbs has no portable way to those
// that some devices have besides, so all else is a loop of compare-swaps on the aligned 64 bits
// around the word. It needs no read before: a compare-swap that fails has read the word. A lane
// keeps a guess of the words that its loops work on: what it last saw there, or what its attempts
// in flight will leave, which one queue pair carries out in order. So loops on one word do not wait
// for each other, and one that is not overtaken takes a round trip.
//
// A loop that missed waits in its lane, with no request in flight, until the lane makes progress
// (Wait, Test, Flush, Poll, or any post); after the second miss for a random time besides, of at
// most 2 microseconds, then twice as much with each miss up to a millisecond.
//
// An implicit fetch-add or compare-swap takes nothing but a work request; its old value arrives in
// a place that all share.
//
// # Batches
//
// Post checks a batch, stages its pieces in the chain, and rings once at the end, and before that
// whenever the chain (128 work requests), a doorbell (32 changes of peer) or a queue is full.
// Pieces of a group that follow each other to one peer, in one direction and with one registered
// memory, are one request of several work requests, merged, with one record, and nothing is done
// at its end but to count. So are puts that travel in the work request, and what lies in the
// segment. Other pieces are operations with records of their own, children of the group's record.
// The last request to a peer is signaled; before that one is only when half a queue
// is not. Where the piece that should have been had nothing to move, a probe is.
//
// Memory that a lane registered is the protection domain's: all lanes use it. It counts the
// requests that use it, which are not over before the device is done with them, also when their
// lane is closed. Closing the network ends them all.
//
// A fence is IBV_SEND_FENCE of the next work request to the peer. Some atomics are loops of
// requests, which no flag orders: a fence waits for those that are in flight to the peer.
//
// # The program's own memory
//
// A put or get of at least Network.ZeroCopyMin bytes of memory outside the segment is registered
// through the network's regcache.Cache, and the registration is kept for the next one while nothing
// changes the memory. What cannot be kept is registered for the operation if it is large, else
// copied; what cannot be registered is copied, and counted in Counters.Unregistered. No operation
// fails for want of a registration.
//
// A registration, and with it the memory, is held until the last work request of the operation has
// ended: complete, failed, or left by a lane that was closed, at the latest when the Network is
// closed. A wait that a context ends gives nothing back: the operation goes on. The program may
// unmap memory under an operation: it ends in the pages that were registered. An operation that
// fails when it is posted has left its buffer.
//
// # Waiting
//
// A wait polls in C for up to 20 microseconds at a time, then lets other goroutines run; when
// nothing came for a while it arms the completion queue and parks in the Go runtime's poller,
// without allocating. It looks around every 10 ms: at a deadline it wakes, the cancellation of its
// context it notices then. A post that finds its queue full waits in the same way; it ends because
// the device's retries do.
//
// # Failure
//
// Every operation to a rank that is down, in flight and later, fails with *fabric.PeerDownError
// with the completion's status as its cause, and Config.OnDown is called before, once for each
// peer. With the default timeouts a silent peer is noticed after 7 retries of 1 to 4 seconds each
// (IBTA 1.4 vol. 1 §9.7.6.1.3); PeerDown ends the wait at once.
//
// A lane whose completion queue cannot be read is lost, and only it: operations in flight on it and
// all later operations fail with the reason, no peer is taken for dead, and its queue set serves no
// other lane.
//
// # Messages
//
// An endpoint has one shared receive queue with the slots, a queue pair for each connected peer,
// one for datagrams, and one completion queue for all. The queue pair for datagrams is made in
// Connect, which publishes its number; until the endpoint is opened nothing is posted to it, and
// requests for connections are repeated.
//
// Send and all else but Poll and Wait hold a lock while they fill and post work requests, with a
// doorbell of their own; the poller polls with another, without the lock, which it takes before
// only if requests wait to be posted. A turn of Poll is one call into C when
// there is something to post and something to take, one when there is nothing to post, else two:
// the posts, then the polling budget. Slots that Post gave back are on the device before any
// message or note that is sent later.
//
// A short message for which there is room goes from the caller's memory into its work request. Any
// other waits in a send buffer; up to the inline capacity it leaves that at the post. A message
// with a cookie or with a write is signaled, and so is the last of those that are
// posted together if any of them keeps its buffer, and all that keep theirs when buffers become
// scarce. The source of a write is, in this order: in the work request, in the segment, in the room
// that the message leaves of its send buffer, in registered memory, in a copy.
//
// At most 64 messages to a peer wait or are in flight. A message without a slot is repeated every
// 20 ms without end and counted in EndpointStats.RNR. RC gives no completion for it: the figure is
// the device's (send_rnr_err, out_of_buffer) since the endpoint was opened, and other endpoints of
// the same device show in it. A device without such a counter shows 0.
//
// A connection of an endpoint takes 192 bytes and a queue pair of 160 send requests. Of address
// handles there is one for each device of peers, at most 256.
//
// # Memory
//
// A rank keeps 64 bytes of each other's address, once. Of a peer that it never used a lane keeps 8
// bytes and an endpoint 12. In Connect it sends the others 9 bytes and 4 for each endpoint, and for
// each lane and near peer, however many ranks there are; each gets as much from each.
//
// # Connections of lanes
//
// To the Config.Eager nearest ranks lanes are connected in Connect, with one queue pair for both
// directions, for as long as the Network lives. To another rank a lane connects with the first
// operation, which waits, as long as [fabric.Bounded] says, and at most Config.ConnectTimeout: a
// rank that has left the request unanswered so long is down. One that answers that it has no queue
// pair to spare gets the request again, and the operation fails with its reason in the end.
//
// Such a connection is one way: it carries operations of the requesting lane. Its other end, the
// target, belongs to the peer's connector, posts nothing, and is not known to any lane there. Two
// ranks that connect to each other at once make two connections.
//
//	lane's end                                              target
//	(none) -- first operation / request ------------------> (none) -- request / reply --> made
//	asked  -- reply ---------------------------------------> up
//	up     -- too many, and nothing in flight / close -----> made -- close / closed --> (none)
//
// The request and close are repeated, after 1 ms, then after twice as long each time up to 128 ms.
// A lane with Config.Connections connections of this kind closes the one not used for longest for
// the next, when nothing is in flight on it any more: the target cannot know, as one-sided
// operations do not show there. So the two ends agree: the lane says that nothing is in flight, the
// target answers when it is closed.
//
// Connections of a rank are numbered from 1 upwards (the epoch). A target takes a request for the
// same lane with a later number for the close of the one before; an earlier one is a late copy. A
// reply to a request that no lane waits for is answered with a close: so a late copy leaves
// nothing. A peer can hold as many targets as it has lanes.
//
// The connector has a queue pair for datagrams, and a goroutine that sleeps until one comes or is
// to be repeated; it needs no endpoint and no poll. A job of near ranks only has none.
//
// # Connections of endpoints
//
// They are made and closed in Poll and Wait. Datagrams get lost: a question is repeated after 1 ms,
// then after twice as long each time up to 128 ms, and after Config.ConnectTimeout without an
// answer the peer is down.
//
//	            Send                   reply / ready, Up
//	(none) --------------> asking --------------------------> up <------------+
//	  ^ ^                    | request of a lower rank        |  |            |
//	  | |  request / reply   v                                |  | Disconnect,|
//	  | +---------------> answering --------------------------+  | too many / | stay
//	  |                          ready, or a message / Up        | close      |
//	  |                                                          v            |
//	  +------ closed, or the peer's close, or its next ------ closing --------+
//	          request / Idle
//	  ^                                                          |
//	  +--- a close with equal counts, nothing in flight / closed, Idle --- (up)
//
// (event / datagram or fabric.Event that follows; PeerDown, and ConnectTimeout, lead from
// everywhere to Down.)
//
// Connections of a pair are numbered from 1; a request carries the next number, and one with
// another number is a late copy. The requesting end is up when the reply comes, and sends; the end
// that answered is up when ready or a message comes. When both ask, the request of the lower rank
// counts and the higher rank answers it. A copy of an answered request, or of a reply, has the
// answer repeated.
//
// An end closes only a connection on which nothing of its own is in flight. It says how many
// messages it sent and received; the peer agrees if it has nothing in flight either and the counts
// match, so that no message is lost in a completion queue. An attempt that the peer did not agree
// to it never agrees to later: the asker goes on after "stay". Messages sent meanwhile wait, and
// open the next connection.
//
// A datagram is believed only if its source queue pair and its GID or LID are those that the rank
// published; it needs the Q_Key, 31 random bits. All others are counted in
// EndpointStats.NotesDropped.
//
// An error of a connection's queue pair is the peer's death, and so is no answer to the probe of a
// connection that was idle for MessageConfig.Keepalive. Of a peer that dies in the midst of a
// message of several packets the slot comes back if the device flushes it.
//
// # Wire formats
//
// The address of a rank (version 2), little-endian:
//
//	offset  bytes  meaning
//	0       1      version, 2
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
//	52      2      Config.Eager
//	54      2      number of P_Keys, then 2 bytes each
//
// The queue pair table (version 3), exchanged in Connect, little-endian: one byte version, 4 bytes
// Q_Key of this rank's datagrams, 4 bytes number of the connector's queue pair for datagrams, 0 if
// there is none; 4 bytes for each endpoint: the number of its queue pair for datagrams, 0 if the
// endpoint cannot be opened; then 4 bytes for each lane and near rank, lane by lane: the number of
// the queue pair that this rank made for it. With S ranks, of which 2h are near to each (h being
// half of Config.Eager), rank r is in the place (r - own + h) mod S; if all are near, h is 0.
//
// A datagram between endpoints, or connectors (version 1), little-endian, at most 256 bytes behind
// the 40 of the GRH:
//
//	offset  bytes  meaning
//	0       1      version, 1
//	1       1      kind: 1 note, 2 request, 3 reply, 4 ready, 5 refusal, 6 close, 7 closed, 8 stay
//	2       2      endpoint, or 2^15 and the lane of the requesting rank
//	4       4      rank that sends
//	8       4      rank to which it goes
//	12      4      number of the connection, from 1; of a note 0
//
// A note goes on with its bytes, to the end. All others have 32 bytes; unused ones are 0:
//
//	request, reply, refusal:    16  4  number of the queue pair (24 bits; refusal: 0)
//	                            20  4  first packet sequence number (24 bits); lane's refusal: errno
//	                            24  4  bytes of a slot, which must be equal at both ends; lane: 0
//	close, closed, stay:        16  4  attempt, from 1
//	                            20  4  close: messages that it sent on this connection, modulo 2^32
//	                            24  4  close: messages that it got
package ibv
