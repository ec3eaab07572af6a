// Package am sends active messages: requests that run a handler on another rank, with at most one
// reply each.
//
// # Messages
//
// A request names a [Handler], carries up to [MaxArgs] arguments of 64 bits, and perhaps a payload:
//
//	Short   none
//	Medium  bytes that are lent to the handler while it runs, at most Endpoint.MaxMedium
//	Long    bytes that are at an offset of the target's segment before the handler runs
//
// It goes through a [Via]: an [Endpoint], or a worker or job of package conduit, which opens the
// endpoints.
//
// Call waits for the reply, Start does not, Post wants none. A handler that makes no reply to a
// call answers it with an empty one when it returns, or with a failure if the reply that it tried
// to make did not fit. With [Call.Defer] it keeps the right and the duty to reply, for any
// goroutine, once, within a time. Posts with [NoWait] return the obstacle in place of waiting. They
// come behind requests that are queued, so they may fail for as long as blocking calls keep a queue
// full. Prepare lends the memory that the device reads, for the program to write a payload in
// place; at most Config.Prepares messages are prepared at once.
//
// A call ends exactly once: with its reply, a *RemoteError (the handler panicked, gave no reply in
// time or one that cannot be sent, or the request names a missing handler or place), a
// *fabric.PeerDownError, ErrClosed, or, for its caller only, the end of the context or a
// *StallError; what comes later is dropped. A post without an error has been given to the network,
// which delivers it unless one of the two ranks dies.
//
// Messages may run their handlers in any order, and at the same time.
//
// # Large payloads on demand
//
// A Long writes where its sender says. With [Large] the receiver says where, once it has memory:
// the sender announces the payload (a request to send), the receiver grants memory in its segment,
// now or later, or refuses, and the sender writes the payload there, then notifies the receiver.
// UCX and MPI libraries call this a rendezvous. The steps are messages like posts, which take a
// credit each and nothing while they wait for the next. So a payload that waits for memory holds no
// credit, no buffer and no place of a call, and messages pass it.
//
// A rank has at most 16 payloads announced to another; the others wait at their sender. Each
// announcement has one answer, and behind a grant comes the payload or its withdrawal. The receiver
// learns of the end of each once ([Receiver]): the payload has come, its sender has withdrawn it
// (ctx, a *StallError), its sender is dead, or the endpoint is closed. Only then is granted memory
// its own again. Of a sender that was taken for dead wrongly the network may still bring what it
// writes, there as in all of the segment, until it has closed the connection.
//
// # Handlers
//
// Handlers are registered by name before the job starts, in a [Table]; all ranks have the same,
// which Hash and Check compare. They run on the goroutine that polls. They may reply, look up, and
// lock briefly. So a program must not send, wait or poll with a lock held that a handler takes: the
// handler may run right there, and would wait for ever. Handlers must not send requests, wait or
// poll: nothing that they do may need a message to arrive. The debug build panics on it, the
// release build returns ErrInHandler. A panic is recovered and becomes the caller's error, or is
// kept ([Endpoint.Errors]) where there is none. A handler that ends its goroutine (runtime.Goexit,
// FailNow of a test) panics, as the goroutine is not its own.
//
// Names that begin with "conduit." ([Reserved]) are the library's, in a table of its own
// ([NewLibraryTable]) on endpoints that share nothing with the program's. So a program may call the
// library while it holds what its own messages wait for.
//
// A request of a rank to itself runs its handler on the caller's goroutine.
//
// # No deadlock
//
// A request takes what it needs in one order, without exceptions: a call a place at its peer, then
// the buffer for its reply; then any request a credit (package flow), a share of the send buffers
// where the peer is not connected, room in the network's queue to the peer, and a send buffer, but
// for a message with payload and arguments no longer than the arguments of a Short can be. If
// all is there, that is one look under one lock. Each missing one has a queue, first come, first
// served; a request that waits holds what comes before and nothing behind. So requests never wait
// for each other in a circle. What ends each wait does not depend on requests that wait:
//
//   - places and reply buffers come back with replies. A reply takes none of these resources: it
//     has send buffers of its own, and when they are all in use waits in memory.
//   - a receiver posts the buffer of a message, or has a spare posted in its place, before the
//     handler runs. So credits come back whatever handlers do.
//   - the network brings messages to their targets, or finds the target dead.
//   - a program can prepare fewer messages than there are send buffers, and a commit that has to
//     wait copies its payload and gives the buffer back.
//
// One peer that does not reply holds at most 3/4 of the reply buffers, rounded up: its further
// calls wait for a place. Several such peers can hold all. Messages to peers that are not connected
// hold at most a quarter of the send buffers, at least one.
//
// When deferred replies come is for the program to see to. Where they wait for requests of the rank
// that they go to, as the reply of a lock waits for the unlock, these should be posts, which begin
// at the credit and so never wait behind calls that lack a place or a reply buffer. Where they are
// calls, 3/4 of Config.Replies must be more than the calls that may wait at once.
//
// # Progress
//
// One goroutine leads: it polls the network, 15 µs at a time, and yields in between. The others
// park; a goroutine that leaves the lead unparks one. Handlers run after the lead was given up.
// It gives its processor to other processes where that serves (Config.Sharing). When nothing
// happened for Config.SpinFor the leader sleeps in the network. When no goroutine leads for
// Config.AttendAfter, because the program computes, an attendant does, and steps back as soon as a
// goroutine waits. Endpoint.Serve, Test and Poke, and ParkerAt, are for programs that want to do it
// themselves. Every message is sent
// solicited: its receiver may sleep.
//
// Time is the network's, so that a simulation replays.
//
// # Connections, death
//
// The connection of credits with a peer begins with the first control message or message, and lasts
// until its death or the end of the endpoint. The network's own connections come and go below it
// (events Up and Idle): a message that is sent while the network closes an idle connection goes
// over the next one, with a credit of before. So credits do not end with the network's connections.
//
// A peer is dead when the network says so (event Down). As a silent connection proves nothing, a
// rank that owes a reply for Config.PingAfter is sent a ping, until EndRequests or Drain; a rank
// that leaves questions for credits unanswered for Config.SilentAfter is taken for dead. A peer
// that breaks the protocol is cut off likewise. Either way all calls to it end, all credits come
// back, deferred replies to it are dropped, once, and the other peers are not concerned.
//
// # Hostile peers
//
// Nothing that arrives is believed. What no correct rank sends (another version or table, lengths
// that do not add up, unused bytes that are set, a request without a credit, a reply to no call, a
// grant without an announcement) cuts the sender off, with a *[MessageError] or
// *[flow.ViolationError] in Endpoint.Errors and for Config.OnClosed. A request that names a handler
// or a part of the segment that is not there is refused; the connection goes on. Notes are
// unauthenticated, so broken ones are counted and dropped. A peer that calls and takes no replies
// is granted no credits while more of them wait than this rank's Config.Replies: they fill the send
// buffers, but not the memory.
//
// # Structure
//
// The parts share the core, name those below them, and call downwards only:
//
//	Endpoint  endpoint.go call.go send.go prepare.go quiesce.go   the API; waits for resources
//	          large.go                                            large payloads
//	progress  progress.go service.go stall.go                     lead, park, attend; deadlines
//	inbox     receive_datapath.go handle_datapath.go self.go      events, accounts, handlers
//	replier   reply_datapath.go deferred.go                       replies, now or later
//	emitter   emit_datapath.go control.go                         messages and notes to the network
//	core      core.go peer.go acquire.go calls.go owed.go         peers, credits, calls, one lock
//	          death.go                                            what ends with a peer
//	          large_step.go                                       the steps of large payloads
//
// Wake-ups go through waiters (waiter.go). Two locks protect it all: a peer's, held while a message
// is handed to the network, and then the endpoint's, under which credits, calls and counts change
// together.
//
// # Wire format
//
// Version 2. Little endian. A message is a head of 48 bytes, then the payload of a Medium or the
// offset of a Long, then the arguments. A note is a head with kind 4.
//
//	bytes  field
//	0      version: 2
//	1      kind: 1 request, 2 reply, 3 failure, 4 control (a note), 5 ping, 6 announcement, 7 grant,
//	       8 refusal, 9 data, 10 withdrawal
//	2      bits 0-1: 0 Short, 1 Medium, 2 Long; bit 2: a reply is wanted; others 0
//	3      number of arguments: 0 to 16
//	4-5    handler, its index in the order of names; 0 but in requests and announcements
//	6-7    0
//	8-15   token of the call, by which the reply finds it; 0 where no reply is wanted; from
//	       announcement on the payload's, which its sender chose
//	16-19  length of the payload
//	20-23  lower half of the table's hash
//	24-43  header of credits (package flow), followed by 0 where it is short
//	44-47  0
//	48-    Medium: the payload. Long: offset in the receiver's segment, 8 bytes
//	then   the arguments, 8 bytes each
//
// The length of the message is the sum of its parts. A failure is a Medium with one argument, the
// [Reason]; its payload is text. Control, ping and withdrawal have the head only. An announcement
// is a Short, its first argument the length of the payload; a grant a Short with the offset in
// the receiver's segment and the length; a refusal a Medium with text; data are a Long.
package am
