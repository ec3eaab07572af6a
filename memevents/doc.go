// Package memevents says when registered memory stops being the memory that was registered.
//
// A registration (MR) pins pages. When the program unmaps or discards them and the same addresses come back with
// other pages, an operation through the old MR succeeds and moves the wrong bytes. This package hears of such
// changes before they happen, keeps a table of the ranges somebody watches, and lets a cache ask in a few
// nanoseconds, without C, whether what it holds is still true. It registers nothing itself.
//
// # The protocol of an entry
//
// A Watcher is one cache's share of the table. An entry goes FREE, PENDING, VALID, STALE, FREE:
//
//	ref, err := w.Claim(lo, hi, tag, need)       // PENDING
//	if err != nil { ... }                        // ErrChanging, ErrFull, ErrUnwatched: register for this operation only
//	mr, err := register(lo, hi)
//	if err != nil { w.Retire(ref) }              // FREE again
//	if !w.Publish(ref) {                         // VALID, with one reference for the caller
//		deregister(mr); w.Retire(ref)            // it changed meanwhile: try once more, then do without
//	}
//	... use ...
//	if ref.Release() { sweep }                   // true: the last reference of an entry that is no longer valid
//
//	if ref.Acquire() { hit }                     // any later use; lock free
//
//	for _, ref := range w.Drain(nil) {           // entries that a change made STALE, each delivered once
//		if ref.Refs() == 0 { deregister(mrs[ref.Tag()]); w.Retire(ref) } else { keep it for later }
//	}
//	if w.Evict(ref) { ... }                      // STALE by its owner's wish: the owner's as if drained
//	err = w.Wait(ctx)                            // until more than MaxDeadBytes are waiting to be drained
//
// Who owns an entry: the claimer until Publish returns true; then nobody until Evict returns true or Drain
// delivers it; then that caller, who Retires it. A change that meets a PENDING entry is told by Publish alone,
// one that meets a VALID entry by Drain alone. So each entry is deregistered once, whatever races.
//
// An entry with references is never waited for and never taken away: operations in flight finish into the
// pages that were registered, Acquire hands it out no more, and Release or the next sweep ends it. Refs may count,
// for an instant, a reference that a failing Acquire takes back; who finds an entry in use looks again at the
// next call. A sweep belongs into every miss.
//
// Which changes an entry must hear of is the caller's need: see CalledFromC, ForMalloc, ForGoMap, ForGoHeap, ForAny.
// Claim refuses with ErrUnwatched what nobody sees: it never warns and goes on.
//
// # What a hit proves
//
// Every change whose call returned before Acquire was called, and whose class was in need, has made the entry
// stale before that Acquire looked. A change in progress during Acquire may or may not be seen, which is the
// program's own race: it unmaps memory that it communicates from. No later hit is wrong because of it.
//
// # Monitors
//
//   - symbols: this package's C code defines mmap, munmap, mremap, madvise, brk, sbrk, shmat, shmdt, process_madvise
//     and remap_file_pages in the executable; every library calls them, and the Go runtime for its arenas.
//   - preload: the same code as libmemevents.so in LD_PRELOAD, for programs in which Go is a plugin or a library.
//     When it is there its table is used, and the executable's own hooks pass on to it: each event counts once.
//   - userfaultfd: the kernel tells, also of raw system calls and of what the libc does inside, for ranges that
//     it can watch; a thread of C reads.
//
// Each is tested by real calls at the start, and by Retest: Status says which class is covered by whom, or why
// by nobody.
//
// Calls go on to whoever defines them next, so other interposers keep working.
package memevents
