// Package memevents says when registered memory stops being the memory that was registered.
//
// A registration (MR) pins pages. When the program unmaps or discards them and the same addresses
// come back with other pages, an operation through the old MR succeeds and moves the wrong bytes.
// This package sees such changes before they happen, keeps a table of the watched ranges, and lets
// a cache look them up in a few nanoseconds, without C, whether what it holds is still true. It
// registers nothing itself.
//
// # The protocol of an entry
//
// A Watcher is one cache's share of the table. An entry goes FREE, PENDING, VALID, STALE, FREE:
//
//	// PENDING; or ClaimLive, see "Discards by raw calls"
//	ref, err := w.Claim(lo, hi, tag, need)
//	// ErrChanging, ErrFull, ErrUnwatched: register for this operation only
//	if err != nil { ... }
//	mr, err := register(lo, hi)
//	if err != nil { w.Retire(ref) }              // FREE again
//	if !w.Publish(ref) {                         // VALID, with one reference for the caller
//		deregister(mr); w.Retire(ref)            // it changed meanwhile: try once more, then do without
//	}
//	... use ...
//	// true: the last reference of an entry that is no longer valid
//	if ref.Release() { sweep }
//
//	if ref.Acquire() { hit }                     // any later use; lock free
//
//	// entries that a change made STALE, each delivered once
//	for _, ref := range w.Drain(nil) {
//		if ref.Refs() == 0 { deregister(mrs[ref.Tag()]); w.Retire(ref) } else { keep it for later }
//	}
//	// STALE by its owner's wish: the owner's as if drained
//	if w.Evict(ref) { ... }
//	// until more than MaxDeadBytes are waiting to be drained
//	err = w.Wait(ctx)
//
// The owner of an entry: the claimer until Publish returns true; then none until Evict returns true
// or Drain delivers it; then that caller, which Retires it. Only Publish reports a change that
// meets a PENDING entry, only Drain one that meets a VALID entry. So each entry is deregistered
// once, whatever races.
//
// An entry with references is never waited for and never taken away: operations in flight finish
// into the pages that were registered, Acquire hands it out no more, and Release or the next sweep
// ends it. Refs may count, for an instant, a reference that a failing Acquire takes back; a caller
// that finds an entry in use looks again at the next call. A sweep belongs into every miss.
//
// Which changes must end an entry is the caller's need: see CalledFromC, ForMalloc, ForGoMap,
// ForGoHeap, ForAny. Claim refuses with ErrUnwatched what no monitor sees: it never warns and goes
// on.
//
// # What a hit proves
//
// Every change of a class in need that returned before Acquire was called has made
// the entry stale before that Acquire looked. Where only the kernel reports an unmapping, one whose
// call has not returned may have freed addresses for others: they call Reported before. Any other
// change in progress during Acquire may or may not be seen, which is the program's own race: it
// unmaps memory that it communicates from. No later hit is wrong because of it.
//
// # Monitors
//
//   - symbols: this package's C code defines mmap, munmap, mremap, madvise, brk, sbrk, shmat,
//     shmdt, process_madvise and remap_file_pages in the executable; every library calls them, and
//     the Go runtime for its arenas.
//   - preload: the same code as libmemevents.so (build.sh) in LD_PRELOAD, for programs in which Go
//     is a plugin or a library. When it is there its table is used, and the hooks of the Go image
//     pass on to it: each event counts once.
//   - reloc: where symbols do not lead here and nothing is preloaded, the relocations of all loaded
//     objects are changed, also of objects that dlopen brings later. Memory that constructors of
//     those unmap is not noticed: every entry becomes stale when such a dlopen returns. Addresses
//     of calls that libraries keep in initialised data are changed too, those that their code has
//     copied elsewhere by then are not. One that is bound to another definition makes the next
//     claim test anew. Libraries that the libc itself loads (name services, character sets) are
//     found by Retest.
//   - userfaultfd: the kernel reports, also raw system calls and calls inside the libc, for
//     ranges that it can watch: memory without a file behind it, and shared memory; of huge pages
//     (MAP_HUGETLB) whole ones only. A thread of C reads, and another holds the file. Wants
//     CAP_SYS_PTRACE, access to /dev/userfaultfd or a kernel that gives its restricted mode to all.
//     A program that closes its descriptor ends it: nothing that needed it stays valid, and a file
//     that gets its number is not read; the reader looks for that once a second, and callers that
//     wait for it go on then. A userfaultfd of the program's own that gets the number is questioned
//     by Reported until then.
//   - patch: off by default; the libc's own text, for free, realloc and malloc_trim where
//     userfaultfd is forbidden. amd64 only, done before main and never undone.
//
// Each is tested by real calls at the start, and by Retest: Status says which monitor covers each
// class, or why none does. A Retest that finds a class lost makes every entry stale. Calls go on to
// the next definition, or to where relocations led before they were changed, so other interposers
// keep working. A relocation that other code changes later stays his, which Retest finds. The C
// library is glibc; others are not tested.
//
// Environment: IBCONDUIT_MEM_EVENTS, IBCONDUIT_MEM_MONITORS, IBCONDUIT_MEM_LOG_LEVEL; see EnvEvents
// and its neighbours.
//
// # Unnoticed changes
//
//   - ftruncate, fallocate(PUNCH_HOLE) of a mapped file by descriptor, by whatever process:
//     Truncate is never covered.
//   - MADV_REMOVE on another mapping of the same file, which it takes the pages from too, by
//     another process or by a raw call. Called through the libc it makes every entry stale, for it
//     is not known where the file is mapped.
//   - mprotect: a registration outlives it, and devices go on writing to pages that the program may
//     not.
//   - By raw system calls: guards (MADV_GUARD_INSTALL), System V segments (shmdt, shmat with
//     SHM_REMAP) and remap_file_pages. The kernel unmaps for these without a word to userfaultfd
//     (ipc/shm.c, mm/mmap.c pass no list for its events). RawGuard, RawShm and RawRemapFile are
//     never covered.
//   - By Acquire without Reported: a range that one thread unmaps by a raw call or inside the libc
//     (free), and that another maps anew so before the kernel has reported it. See "Unmapping by
//     raw calls".
//   - A hole in a range while it is claimed. userfaultfd watches the pages mapped at that moment,
//     and pages that come into the hole by a raw call afterwards are not watched: all of a claimed
//     range has to be mapped.
//   - Calls of libraries that come after the test and are bound past the symbols (RTLD_DEEPBIND),
//     until the next Retest; those in a namespace of their own (dlmopen), for good. Only
//     userfaultfd reports what they do.
//   - The files' own initialised data in libraries that are unloaded: Claim refuses RawUnmap there.
//
// Each of them is the program's to avoid for memory that it communicates from. An madvise that
// io_uring carries out is a raw call in all this.
//
// # Unmapping by raw calls
//
// userfaultfd reports an munmap or mremap when the addresses are free already, and then wakes the
// reader. Another thread may have mapped them by then, and want the memory that is there now: two
// threads that take large blocks from malloc do so all the time. Nothing in the process's memory
// has changed at that moment, so no look at the table can help; only the kernel knows, which counts
// such unmappings from before their addresses are free (mmap_changing, raised under the lock that
// the next mapping must take) until after their events were read. So a caller that hits on behalf
// of memory that can go in this way queries it, by Reported, and then acquires: an unmapping
// counted then makes a miss; for others the gate and the entry say the rest. Late says which
// classes are in question; a Claim needs no question, for its pages are registered after it. Before
// Linux 5.15 the kernel's count is a flag, which the first of several unmappings clears. Should a
// kernel not lower it again, WaitReported fails from then on, and each operation registers.
//
// # Discards by raw calls
//
// madvise of the Go runtime (debug.FreeOSMemory, the scavenger) and of package syscall is reported
// before it happens, so an entry that stands there is stale in time. The trouble is with a claim
// that comes between the report and the end of the call, for nothing reports the end: the caller
// wakes when its event is read, takes the lock of the address space, and then discards
// (fs/userfaultfd.c, userfaultfd_remove; mm/madvise.c). The kernel's sign of it (mmap_changing,
// by EAGAIN of UFFDIO_WRITEPROTECT) ends before that lock is taken, so waiting for it and for the
// lock proves nothing about a caller that is preempted in between; and the event does not name the
// caller, which could otherwise be watched until it returns. So Claim refuses such a range, with
// ErrChanging, for a second after the report; 32 ranges are kept, and widened where there are more.
// That a thread which is ready to run is run for some microseconds within a second is an
// assumption. It is the only one of its kind here.
//
// ClaimLive needs neither. The code that discards pages owns them meanwhile: the Go runtime marks
// pages as allocated before it gives them back and as free only afterwards (runtime,
// pageAlloc.scavengeOne), so no page of a live object is ever in a discard that has begun; malloc
// implementations do the same, under a lock or by taking the extent off their lists. A range of
// live memory therefore meets no discard but one that the program makes itself, of memory that it
// is communicating from at that moment. A change reported after the claim ends the entry like any
// other. Only a range that was widened over memory of others, as by merging, needs Claim.
//
// # Rules for what runs inside a hook
//
// A hook may run on any thread, in a signal handler, before any constructor, and inside the Go
// runtime's own mmap with its locks held. It calls no Go, no malloc, no stdio, no dlsym and no
// lock, waits for nothing, leaves errno only, and never deregisters. ibc_mem_path.h repeats this
// where it binds, and a test reads the object files. Handlers in C (ibc_mem_add_handler) are bound
// by the same.
//
// # Fork
//
// In the child of a fork nothing here is true. Its hooks pass on, its copy of the table finds
// nothing valid (Acquire and Publish fail), and every call that can fail does so with ErrForked;
// Retire and Drain do nothing. Children that share the memory until they exec (vfork, posix_spawn,
// os/exec) need nothing. A child of _Fork(3) or of the bare system call, which run no handlers of
// pthread_atfork(3), is not distinguished from its parent: it must not call this package.
package memevents
