// Package sim is a network in one process and in virtual time: thousands of
// ranks, one seed, the same run each time.
//
// A [World] has ranks, a clock and one generator of random numbers. [World.Run]
// runs a program on every rank, as coroutines of which one runs at a time; what
// they do to each other travels as timed events through one heap. Nothing
// depends on the machine's clock, on GOMAXPROCS or on the order of a map, so
// that a seed names a run: its trace, and the hash of it, come out the same.
//
// # Programs
//
// A program calls its rank's [Network], and the lanes and endpoints that it opens,
// like those of any network. Calls that wait (Wait, Flush, WaitWord, Poll with a
// budget, [Rank.Sleep]) park the coroutine in virtual time. A call that finds
// nothing costs [Config.PollCost], so that loops which poll make time pass.
// [Rank.Go] starts further tasks of a rank.
//
// A program must not wait for another by other means: a channel, a mutex held
// across a call that waits, or time.Sleep would stop the world. It uses
// [Rank.Sleep], and [Parker] where others use a channel; time-outs are made with
// [Rank.WithTimeout], cancellation with [Rank.WithCancel]. Contexts of the
// standard library, also those derived from these, are honoured, but each costs a look whenever
// tasks have run. Nothing here may be called from outside of the world while it
// runs.
//
// A run ends when every task has ended. It ends with an error that names what each rank waits
// for when nothing can happen any more ([DeadlockError]), and at the limits of
// time and of events ([LimitError]).
//
// # Replay
//
// [World.TraceHash] is a hash of all events so far; [Config.Trace] gets them as text,
// one line each: virtual nanoseconds, kind, rank, peer (-1: none) and two numbers that depend on
// the kind. A program that fails prints its seed; the same seed with a Trace shows the run. The
// package's own tests
// take the seed as -sim.seed and print the trace.
//
// # Model
//
// A message takes the time its bytes need at [Config.Bandwidth] behind what the
// same rank sent before, then [Config.Latency] and a random part of
// [Config.Jitter]. Messages of one connection, and puts of one lane to one
// peer, stay in order; everything else overtakes at random. Things that happen at
// the same instant happen in random order. There is no congestion on the way and none at the
// receiver, but for [World.Slow].
//
// Within what package fabric leaves open the world is unkind. Sources of large
// puts and of writes are read when they arrive, not when they are posted. Destinations
// of gets hold garbage until the bytes come. Long puts land in two
// pieces. Buffers and slots are overwritten once they are the network's again.
// Messages sent with More stay until a Send without it, or Kick. A message that
// is not Solicited does not end a Wait that has begun. Wait ends without reason
// at times. Clocks of ranks have different origins.
//
// Reliable traffic is never lost nor duplicated: while a link is cut it waits,
// and goes on in order when the link is restored. When nothing came through for
// [Config.RetryTimeout] the sender takes its peer for dead, and that is for good. Notes, and the
// datagrams that make connections, are lost, duplicated and reordered as
// [Config.Notes] has it, and lost when the way is cut.
//
// A message that meets no receive slot is counted (Stats().RNR of the receiver,
// [World.RNR]) and tried again after [Config.RNRDelay], with everything behind it
// on its connection waiting.
//
// A connection is made by three datagrams (request, reply, ready), repeated with doubling
// intervals. When both ends begin at once the lower rank's request wins. Beyond
// [Config.Connections] the one unused for longest is closed, if the other end agrees that
// nothing is in flight. The limit is soft: an endpoint whose connections are all in use opens
// another, and closes one as soon as it can.
//
// A killed rank stops within whatever it does. Of what it had sent a random part arrives. Its
// peers find out only by traffic: a connection without any shows nothing.
//
// # Beyond the contract
//
// After Reserve or Send answered ErrAgain, a buffer or queue that becomes free ends
// Wait. A Write needs no cookie if its source never changes. An endpoint takes messages
// to its own rank.
//
// # Memory
//
// A rank costs its segment, its open endpoints and lanes, and its tasks' stacks. An
// unconnected peer costs nothing; one that was connected once costs the number of its connections
// so far.
// Slots and send buffers get memory when first used.
//
// # What it does not prove
//
// Nothing about verbs, and nothing about memory ordering between processors: one
// task runs at a time. Costs of computing are not modelled: a program takes no virtual time.
//
// # Address
//
// Little-endian, 28 bytes: "ibcV", version 1, three zeros, rank (4 bytes), world
// (8 bytes, drawn from the seed), FNV-1a of the bytes before (8 bytes).
package sim
