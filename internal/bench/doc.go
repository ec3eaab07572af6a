// Package bench has the kernels that measure what communication costs a program: each is a
// computation over a job that reads and writes other ranks' memory by conduit.Get and conduit.Put,
// in the pattern of a known benchmark, and checks its own result.
//
//	k, err := bench.Find("ptrans")
//	n, err := k.Bytes(p, ranks)                    // conduit.Config.SegmentSize, or more
//	...
//	b, err := k.Start(ctx, w, p)                   // all ranks together
//	res, err := b.Run()                            // as often as wanted
//
// A kernel is the same with and without a cache for remote data: it fences where the memory model
// asks for it (Worker.Barrier, "Fences" in package conduit), and nowhere else. What a
// rank has itself it reads as memory, but in all-local: with Config.Fabric "ibv" a get of it would
// go through the device.
//
// [Jacobi] and [Incast] are about the memory of messages instead. They need a budget and functions
// in the job's configuration, which they set, and have arms that get their data in different ways.
// A [Hog] takes memory from others.
//
// # Results
//
// What is computed follows from Params alone, also where ranks work side by side. Every run ends
// with a check of all that was computed: by values that each word must have (seq, gups, bulk), by a
// sequential run of the same computation (ssca2, stencil, md), and by what must hold of it: the
// error bound of ptrans, an identity of betweenness centrality, forces that add up to nothing, the
// energy and pressure of a known lattice. A wrong result is a *WrongError on all ranks.
//
// # Measurements
//
// Run measures from a barrier to the barrier after the last access, so that writes that were kept
// back are in the time. Filling memory and checking are not. Reads begin with nothing kept: the
// barrier is a fence. Counts are those of the networks to other ranks, for all ranks, until all
// writes are where they belong: what a cache fetches, and what the kernel's own barriers send. Over
// shared memory loads and stores of others' memory count as gets and puts.
//
// A kernel's memory is at equal offsets in each rank's segment; arrays begin at multiples of 4 KiB.
package bench
