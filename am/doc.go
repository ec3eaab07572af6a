// Package am sends active messages: requests that run a handler on another rank, with at most
// one reply each.
//
// # Messages
//
// A request names a [Handler], carries up to [MaxArgs] arguments of 64 bits, and perhaps a payload:
//
//	Short   none
//	Medium  bytes that the handler is lent while it runs, at most Endpoint.MaxMedium
//	Long    bytes that are at an offset of the target's segment before the handler runs
//
// It goes through a [Via]: a [Endpoint], or a worker or job of package conduit, which opens the lanes.
//
// Call waits for the reply, Start does not, Post wants none. A handler that makes no
// reply to a call answers it with an empty one when it returns, or with a failure if the reply that it tried
// to make did not fit; with [Call.Defer] it
// keeps the right and the duty to reply, for any goroutine, once, within a time. TryPost and its like
// never wait: they return the obstacle. Prepare lends the memory that the device reads, for the program
// to write a payload in place.
//
// A call ends exactly once: with its reply, a *RemoteError (the handler panicked, gave no reply in time or one that cannot be sent,
// or the request names what is not there), a *fabric.PeerDownError, ErrClosed, or, for its caller only, the
// end of the context or a *StallError; what comes later is dropped. A post without an error
// has been given to the network, which delivers it unless one of the two ranks dies.
//
// Messages may run their handlers in any order, and at the same time.
//
// # Handlers
//
// Handlers are registered by name before the job starts, in a [Table]; all ranks have the same, which
// Hash and Check compare. They run on whatever goroutine polls. They may reply, look up, and lock briefly.
// So nobody may send, wait or poll with a lock held that a handler takes: the handler may run right there, and would wait for ever.
// They must not send requests, wait or poll: nothing they do may need a message to
// arrive. The debug build panics on it, the release build returns ErrInHandler. A panic
// is recovered and becomes the caller's error, or is kept ([Endpoint.Errors]) where there is none. One that ends its
// goroutine (runtime.Goexit, FailNow of a test) panics, as the goroutine is not its own.
//
// A request of a rank to itself runs its handler on the caller's goroutine.
//
// # No deadlock
//
// A request takes a credit of package flow; who sends one that will be answered has reserved the buffer for
// the answer. A reply takes neither credit nor waiting: it has send buffers of its own, and when
// they are all in use waits in memory. Before a handler runs the buffer of its message is posted again, or
// a spare in its place. So handlers always end, replies always arrive, and every waiting goroutine
// polls or has somebody poll for it.
//
// Who waits holds its turn for a credit while it waits for a reply buffer, and both while it waits for a
// send buffer, never the other way round; so queues have no cycles, and nobody is overtaken for ever. One exception:
// the first who waits for a credit takes its reply buffer when its turn for that comes, and keeps it. No credit depends on one.
// Prepare takes the send buffer first: a commit that has to wait moves its payload to memory and gives
// the buffer back. TryCommit keeps it; where all are kept so, it goes past those who wait for one, and does so again and again as
// long as credits are few.
//
// When deferred replies come is for the program to see to. Where they wait for requests of the rank that they go to, as that of
// a lock waits for the unlock, these should be posts, which pass calls that wait for a reply buffer. Where they are calls,
// Config.Replies must be more than the calls that may wait at once.
//
// # Progress
//
// One goroutine leads: it polls the port, 15 µs at a time, and gives way in between. The others park; whoever leaves the
// lead wakes one. Handlers run after the lead was given up. When nothing happened for Config.SpinFor the leader
// sleeps in the port; where messages turn out to come clearly sooner when it polls, it does so for longer. When nobody leads
// for Config.AttendAfter, because the program computes, an attendant goroutine does, and
// steps back as soon as somebody waits. Endpoint.Serve, Test and Poke are for programs that want
// to do it themselves. Every message is sent Solicited: its receiver may sleep.
//
// Time is the port's, so that a simulation replays.
//
// # Connections, death
//
// The connection of credits with a peer begins with the first control message or message, and lasts until its death
// or the end of the lane. The network's own connections come and go below it (events Up and Idle), which changes
// nothing: a message that is sent while the network closes an idle connection goes over the next
// one, with a credit of before. So credits cannot end with the network's connections.
//
// A peer is dead when the network says so (event Down). As a silent connection tells nothing, a rank that
// owes a reply for Config.PingAfter is sent a ping, until EndRequests or Drain; a rank that leaves questions for credits unanswered for
// Config.SilentAfter is taken for dead. A peer that breaks the protocol is cut off likewise.
// Either way all calls to it end, all credits come back, deferred replies to it go nowhere, once, and others go on.
//
// # Hostile peers
//
// Nothing that arrives is believed. What no correct rank sends (another version or table, lengths that do not add up,
// unused bytes that are set, a request without a credit, a reply to no call) cuts the sender off, with a *[MessageError] or
// *[flow.ViolationError] in Endpoint.Errors and for Config.OnClosed. A request that names a handler or a part of the segment that is
// not there is refused; the connection goes on. Notes are unauthenticated, so broken ones are counted and dropped.
// Who calls and takes no replies is granted no credits while more of them wait than this rank's Config.Replies: they fill the send
// buffers, but not the memory.
//
// # Wire format
//
// Version 1. Little endian. A message is a head of 48 bytes, then the payload of a Medium or the offset of
// a Long, then the arguments. A note is a head with kind 4.
//
//	bytes  field
//	0      version: 1
//	1      kind: 1 request, 2 reply, 3 failure, 4 control (a note), 5 ping
//	2      bits 0-1: 0 Short, 1 Medium, 2 Long; bit 2: a reply is wanted; others 0
//	3      number of arguments: 0 to 16
//	4-5    handler, its index in the order of names; 0 but in requests
//	6-7    0
//	8-15   token of the call, by which the reply finds it; 0 where no reply is wanted
//	16-19  length of the payload
//	20-23  lower half of the table's hash
//	24-43  header of credits (package flow), followed by 0 where it is short
//	44-47  0
//	48-    Medium: the payload. Long: offset in the receiver's segment, 8 bytes
//	then   the arguments, 8 bytes each
//
// The length of the message is the sum of its parts. A failure is a Medium with one argument, the
// [Reason]; its payload is text. Control and ping have the head only.
package am
