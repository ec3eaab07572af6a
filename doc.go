// Package conduit lets the processes of a job read and write each other's
// memory without the owner's processor: over RDMA (libibverbs) between hosts,
// over shared memory within one.
//
// A job is N ranks, each a process that a launcher started (or a goroutine, see
// [RunLocal]). [Join] makes a process a rank: it finds the launcher, maps the
// rank's segment, registers it once, and connects to the peers. From then on
// every rank reaches every segment:
//
//	job, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 30})
//	...
//	defer job.Close()
//	w, err := job.NewWorker()
//	...
//	defer w.Close()
//	p := conduit.At[int64](right, 0)         // the first word of the right neighbour
//	err = conduit.Put(w, p, 42)              // complete: the word is there
//	v, err := conduit.Get(w, p)
//	old, err := conduit.FetchAdd(w, p, 1)
//	err = job.Barrier(ctx)
//
// # Workers
//
// All communication goes through a [Worker], which one goroutine uses at a
// time. It may be handed over, through a channel for instance. Built with -tags
// debug, two goroutines in one Worker get [ErrConcurrent]. A Job's methods may
// be called from any goroutine; the collective ones (Barrier, Broadcast, AllGather, AllReduce,
// AllToAll, Close; also those of a Worker) must be called by every rank in the same order.
//
// # Completion and order
//
// A blocking operation that returns nil is complete: the bytes are where they
// belong. An asynchronous one (PutAsync, GetSliceAsync, ...) returns a value to
// wait on; an implicit one (PutNBI, PutSliceNBI, GetSliceNBI, and the atomics without a result:
// Add, Or, Max, ...) is completed by [Worker.Flush], which also reports its errors. Puts of one
// worker to one rank become visible there in the order of the calls; nothing else is ordered except
// by Flush or by waiting. A goroutine that waits for a peer's put uses [Worker.WaitUntil].
//
// Two ranks that touch the same bytes at the same time, one of them writing,
// race, as in Go itself; the atomics do not race with each other. Whether they
// are atomic also to loads and stores of the owner is [Job.CPUAtomics]. [Word] says what they are
// carried out by, and what an atomic on 32 bits may do to the 32 bits beside them.
//
// # Memory
//
// Transfers hold no Go pointers: [At] marks a pointer to any other
// type invalid and its use is a [*TypeError]. Buffers of slice operations may be
// Go memory. The segment is outside the Go heap, see [Job.Segment].
//
// # Shared heaps and arrays
//
// With Config.HeapSize a rank takes memory that all ranks use and any rank frees ([Alloc],
// [GlobalAlloc], [AllAlloc]), and all ranks make arrays with elements on all of them:
//
//	a, err := conduit.NewArray[float64](ctx, job, 1<<20, conduit.Block(1024))
//	err = conduit.Put(w, a.At(i), 1.5)
//	err = a.GetSlice(w, dst, i)              // wherever the elements lie
//	for i, v := range a.Mine() { *v = float64(i) }
//
// They lie at the begin of the segments, [Info].Shared says up to where. docs/heap.md has what each
// call guarantees and costs.
//
// # Messages
//
// Ranks run functions on one another: package am. Its handlers are registered before Join
// ([Config].Handlers), the same on all ranks; a request goes through a Worker or a Job, which have
// endpoints to every rank:
//
//	var sum = am.Handle("sum", func(c *am.Call) { _ = c.Reply(c.Arg(0) + c.Arg(1)) })
//	...
//	r, err := sum.Call(ctx, w, rank, 20, 22)
//
// Handlers run on whatever goroutine polls, also while the rank computes, or waits in Barrier or
// Close. They must not wait themselves: Barrier and its kind, WaitUntil, and Close, return
// am.ErrInHandler there, and panic in the debug build. A Long message writes into [Job.Segment].
//
// # Transient memory
//
// With a budget ([Config].Memory) data that a rank needs for a while are fetched when there is
// memory for them ([NewFetchSet]), and large payloads wait for memory at their receiver
// ([SendPayload]): so communication takes no more than the budget. docs/memory-aware-flow.md has
// the rules.
//
// # Fences
//
// Parts of the library, as those for collective operations, have regions of their own in front of
// the user's in each segment, and lanes of their own; offsets that a program uses count from the
// user's region, and reach no other (parts.go has the table of parts).
//
// With the cache for remote data ([Config].Cache) a worker keeps bytes of other ranks: copies of
// what it read, and writes that it has not sent. It then has a fence, which its operations call. To
// release is to have all such writes complete at their targets; to acquire is to read nothing
// afterwards that is older (ISO C11 §7.17.3):
//
//	operation                                          before   after
//	Worker.Flush, Worker.Close                         release  -
//	Worker.Acquire                                     -        acquire
//	Worker.Fence                                       release  acquire
//	Job.Barrier, Broadcast, AllGather, Free, AllFree   -        acquire (see below)
//	AllReduce, AllReduceValue, AllToAll of a Job       -        acquire (see below)
//	any other operation of a coll.Team                 -        acquire (see below)
//	Worker.WaitUntil                                   release  acquire
//	Worker.Barrier, Broadcast, AllGather               release  acquire
//	an atomic that returns a value                     release  acquire
//	Call, CallWith, CommitCall through a worker        release  acquire
//	Start through a worker                             release  -
//	  Wait, or Test, that says that it has ended       -        acquire
//	Post, PostWith, Commit through a worker            release  -
//	Large.Send through a worker                        release  -
//	FetchSet.Submit, PendingSet.Wait and Test          release  acquire
//	SendPayload through a worker                       release  -
//	Poll, Chain, Wait and Test of a put or get         -        -
//
// An atomic releases the cache's writes, and does not complete operations that the worker has
// begun without waiting (PutNBI, Add), as in a job without a cache: Flush does. An atomic that was
// started acquires when its value is there: in Wait or Test, or at once; so does a Flush that
// completes it. A release that fails is the operation's error, and the operation does not begin;
// only the collective ones go on, as others wait for this rank. Requests with [am.NoWait] do not
// wait for a release either: [am.ErrNotReleased] says that writes are on their way. Puts and gets
// that pass the cache by, those without a copy among them, and the payload of a Long, leave no
// older copy. A large payload releases again before it is written.
//
// When a call through a worker has ended, the workers of its rank acquire at their next access: any
// goroutine may learn of the end. So do a lease's.
//
// What else goes through no worker cannot release or acquire for one. This rank may have learned of
// what others wrote when a handler, or a function of an [am.Receiver], begins, when it has ended,
// and when a collective operation has: each worker acquires at its next access that could differ.
// What a handler finds in its segment while it runs, it passes on to a worker when it has ended.
// A program that replies later, by an [am.DeferredReply], or calls through a Job or an endpoint,
// flushes the worker before.
//
// A collective operation of a Job releases no worker. Where one of this rank has writes that were
// not sent, it takes place, as the others wait for it, and returns [ErrUnsent]; Free does not free.
// Flush before it, or use the Worker's Barrier, Broadcast or AllGather, which fence.
//
// With a cache puts complete with releases only, whatever their own documentation says, and gets
// return data that the worker has read since it acquired last. In a job without one none of this
// happens, and costs nothing: there an operation that has returned is complete.
//
// # Failure
//
// A rank that dies makes operations and calls to it fail with an error that matches
// [ErrPeerDown], and collective operations too; everything else goes on. Every wait can be
// bounded: collective operations, calls and WaitUntil take a context, Get and Put have the worker's
// ([Worker.SetContext]).
package conduit
