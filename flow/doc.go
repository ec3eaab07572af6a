// Package flow keeps a rank's communication from overrunning its memory. It counts and decides; it
// sends nothing and starts no goroutine: messages go through package am; clocks, probes of memory
// and what goroutines wait with are passed in.
//
// Credits (L1, internal/credit) bound the messages to a receiver. A [Budget] bounds the bytes of
// transient memory (L2), and follows the memory of the machine (L3). The levels are independent:
// nothing in a Budget holds up a reply or a credit.
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
