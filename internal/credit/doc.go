// Package credit keeps senders from overrunning receivers: credits bound the messages to one (L1 of
// package flow's levels). It counts and decides; it sends nothing, starts no goroutine and reads no
// clock.
//
// A receiver has a [Pool] of buffers posted to its device (one shared receive
// queue, or the slots of a ring). A credit is the right to use one of them, once,
// for a request. The pool grants credits to peers; each peer keeps them as the balance of a
// [Sender], and takes one for each request. Because there are never
// more credits than posted buffers, no message meets a receiver without one: over
// verbs, no receiver-not-ready event, with memory that grows with the pool and not
// with the number of ranks.
//
// A credit is in exactly one place:
//
//	           grant                    Apply
//	+--> free --------> on its way --------------> balance --------+
//	|                                                | | ^         |
//	|                                            Take| | |Cancel   | recall
//	|  Reposted           Arrived                    v | |         v
//	+<--------- bare <------------ in a message <----+-+-+   on its way back
//	|    (its buffer is taken,                                     |
//	|     no other is posted)                                      |
//	+<-------------------------------------------------------------+
//	|                         Apply
//	+<---- held: all of the four places on the right, when the connection ends (Close)
//
// The pool sees the places on the right as one number a peer, held. [Pool.Check] tests
//
//	free + held + bare = Credits                       credits are neither made nor lost
//	held = sum of the peers' credits
//	reply buffers free + reserved + bare = Replies
//	held + reserved <= posted                          hence never a message without a buffer
//
// and [Reconcile] the same across the two ends of a pair.
//
// # Grants and recalls
//
// A connection opens with a few credits ([Config].Initial) if there are any. Below
// half of the credits of the last grant, messages carry [Header].Want, the number
// of credits that the sender wants to hold; below a quarter they want
// an answer at once. Grants ride on messages that go to the peer anyway, else on a
// control message. A sender that ran dry sends its wish by a control message and repeats that until
// it gets something. A sender that needs an answer wants twice as many as
// before, up to Config.Window; one that gets a recall, half.
//
// When more peers want credits than there are, the starved (those without any) come first, in
// the order of their wishes, in equal parts of at least one; each of them therefore gets a
// credit as soon as those before it got theirs. Where these come from: messages
// that arrive bring their credits back, and those go to the queue, not to their last user;
// and while peers wait, a peer that used none for Config.RecallAfter is
// recalled from ([Header].Recall), and a busy one gives back what exceeds its
// part. The answer states how many it could give back; the others are in messages, and
// come back with them. A peer that does not answer gets the recall again, and others as well. An
// answer without Want ends the peer's wish.
//
// # Replies
//
// A reply needs no credit. The sender reserves the reply buffer, at itself, before it sends
// a request that will be answered ([Pool.ReserveReply]); these buffers are
// posted beside those for requests, and bound the number of unanswered requests.
// So a handler can always reply, and no cycle of requests and replies can stand still.
//
// # The user's part
//
// The order of calls when messages arrived, which a [Pool] checks:
//
//	for each message   Arrived or ReplyArrived; Header.Decode; Pool.Apply; Sender.Apply
//	post a spare for each buffer (or copy the message, and post its own)
//	Reposted(n)        only now the credits can be granted again
//	BeforeHandlers     an error while one is missing
//	run the handlers
//	NextControl, Asks  and send the control messages that are due
//
// and when one is sent:
//
//	ReserveReply       if it will be answered
//	Take               ErrNoCredit: poll, send what Asks wants, try again
//	Pool.Fill, Sender.Fill, Header.Encode; send; on failure Cancel, CancelReply, Unsaid of both
//
// Every header is filled by both the Pool and the Sender of the pair. Between
// messages [Pool.Due] and [Sender.Due] are when to call Tick and Asks.
//
// Locks are the user's: a Pool is used by one goroutine at a time, and so is a Sender;
// Senders and the Pool do not touch one another.
//
// # Connections
//
// An account is of one connection, which both ends number alike, from 1 on. When
// one ends, by death or for lack of use, both ends Close: all that was out comes back
// to the pool, once, wherever it was; and the next starts from nothing. Headers
// and messages of other connections are counted and ignored. A peer
// without a connection costs a quarter of a byte, or 16 bytes where one of the 31 with numbers
// around its own had one.
//
// # Lost, repeated and late control messages
//
// Counters on the wire are totals of the connection ([Header]): the newest one
// counts, whatever came before or comes twice. Lost ones are requested
// again: by the sender as long as it has no credit, by the pool as long as others
// have none. Totals wrap around at 2^32.
//
// # Hostile peers
//
// [Pool.Bar] grants nothing to a peer that does not take its replies, which keeps it from making
// more calls.
//
// A header that grants beyond the window, returns credits that the peer never had,
// or answers a recall that was never made is refused whole, with a [*ViolationError]
// that names the peer. A request without a credit and a reply without a
// request are errors, too; their buffers must be posted again like any other, and no
// credit is granted in the place of one that is missing.
package credit
