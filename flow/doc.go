// Package flow keeps senders from overrunning receivers, and a rank's communication from
// overrunning its memory. It counts and decides; it sends nothing and starts no goroutine: messages
// go through package am; clocks, probes of memory and what goroutines wait with are passed in.
//
// It has three levels. Credits (L1) bound the messages to a receiver, with a [Pool] and [Sender]s.
// A [Budget] bounds the bytes of transient memory (L2), and follows the memory of the machine (L3).
// The levels are independent: nothing in a Budget holds up a reply or a credit.
//
// # Credits
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
// and messages of other connections are counted and ignored. A control message to a
// peer without a connection may begin one ([Pool.Opens]): a rank that has never sent
// anything gets its first credit before the network makes a connection for it. A peer
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
//
// # A budget of bytes
//
// Data that communication brings, and that the program uses and frees, are transient memory. A
// [Budget] keeps it within a limit, M_C, so that with the application's memory, M_A, it stays in
// the memory that there is: M_A + M_C <= M. It follows Shi, Zheng, Kale, "Run-time Support for
// Controlling Communication-Induced Memory Fluctuation", in bytes instead of messages.
//
// A program says what it wants before there is memory for it. Bytes are granted, only then is the
// memory made and the transfer begun, and they come back when the program has freed the data:
//
//	                Post            grant           Start          ended         Release
//	set (fetch)     ----> queue ----------> granted ------> flies --------> lease -------> free
//	                Offer           grant           data           Release
//	offer (send)    ----> queue ----------> granted -------------> arrived -------------> free
//	                Acquire         grant           Release
//	plain           ----> queue ----------> acquired ------> free
//
// Each byte comes back once, also when a caller gives up, a transfer fails or a rank dies: a fetch
// that is given up keeps its bytes until nothing can write to its memory any more. [Budget.Check]
// tests
//
//	bulk + small + unscheduled = limit       the parts of the limit
//	held of each part = sum of its claims    bytes are neither made nor lost
//
// and that the first in the queue waits only for bytes that are not there.
//
// # One queue, and why nothing stands still
//
// All claims of a rank are granted in the order in which they were posted. A claim that does not
// fit holds up those behind it, also smaller ones. Two conditions on the program then suffice for
// progress. A1: data needed together are posted together, as one set, granted whole; a rank that
// holds a set waits for none that it posted later. A2: a set fits ([Budget.Largest]). Then those
// that hold bytes do not wait for bytes and give them back, and the first in the queue gets its
// own. This holds also where the data of a set are made by others that wait for sets, if these were
// posted before: a stencil's cell posts its next set before it answers its neighbours.
//
// The package sees to both. A2: a larger set is refused ([SetTooLargeError]) or served in parts
// ([FetchSet.Each]). A1: an [Owner] that is to wait while it holds an earlier set is refused
// ([HoldAndWaitError]), whether or not there are bytes, so that a mistake shows in the first run
// and not in the first that is short of memory. With [BudgetConfig].Reserve such a wait is served
// from bytes beyond the limit; that helps those that wait for bytes, not those that need data made
// by others that do. To post ahead, and to hand a lease over, is no wait.
//
// Small claims have a part of the limit of their own, and pass the queue in it: they cannot take
// bytes that the first waits for. Beyond that part they wait like others.
//
// Bytes are alike, places in a region are not: free places of one may lie apart, or be less than
// the limit. Sets with memory in one ([FetchSet.Placed]) are held to more: small ones count as
// held, and the owner of a place waits for no other, whichever was posted before
// ([Pending.HoldAndWait]), but for one that the reserve serves, which has a region of its own. A
// wait for a place has a head as one for bytes has ([Pending.WaitsForPlace]).
//
// # Payloads that others send
//
// A rank that has a large payload for this one requests memory ([Budget.Offer]); the grant is what
// lets it send. With am the receiver of large payloads does that:
//
//	Announced   offer, err := b.Offer(a.From(), size, func(o *Offer) { make memory; a.Grant(off) })
//	            err: a.Refuse(err)
//	Ended       with an error: offer.Release(); else when the data are consumed
//
// Offers wait in the one queue; fairness among ranks, in bytes, decides whose offer takes a
// place that comes first. A small allowance for payloads that come unasked is set apart
// ([Budget.Allowance]), so that it is within the limit whatever peers do.
//
// # Adapting to the machine
//
// [Budget.Observe] takes a [Reading] of the machine's memory, such as internal/pressure makes, ten
// times a second by default. The limit is at most the rest of the tightest bound when the
// application's own memory is at its peak of the last seconds; it is halved under pressure, and
// grows by a step in calm while claims wait; it is never below a floor, which makes Largest
// a constant. Each change is a [Decision]. Bytes that are held when the limit falls stay so:
// nothing more is granted until they are below it.
//
// Locks: a Budget has one, of class Limit of internal/lockrank, and calls nothing of others under
// it but Unpark and the clock.
package flow
