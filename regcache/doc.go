// Package regcache gives a usable registration for a range of the program's own memory, and never a
// stale one.
//
// A registration (MR) pins pages. If the program gives the pages back and the same addresses return
// with others, an operation through the old MR succeeds and moves the wrong bytes. A Cache
// therefore keeps an MR only while package memevents is certain to see every such change; what
// cannot be watched is registered for one operation. That is slower and right, and Status says why.
//
//	c, err := regcache.New(regcache.Config{Registrar: pd})
//	defer c.Close()
//	access := regcache.LocalWrite | regcache.RemoteWrite
//	r, err := c.Get(unsafe.Pointer(&buf[0]), uint64(len(buf)), access)
//	... post work requests with r.LKey or r.RKey, and wait for their completions ...
//	err = c.Put(r)
//
// # What a Region promises
//
// Between Get and Put its keys give access to the memory that the addresses meant when Get was
// called, and the MR stays registered. The memory must stay allocated until Put; a Region keeps an
// object of the Go heap reachable. If the program takes pages of it away meanwhile, operations in
// flight end in the pages that were registered, no later Get returns the MR, and it is deregistered
// after the last Put. Put reports this with ErrInvalidated if Config.Strict is set, and Stats
// counts it in either case; both mean all that the keys cover.
//
// The keys cover at least the range, and may cover more: whole pages, and the overlapping ranges
// that this cache was called with, with the access of all of them together, for such ranges are
// merged. A caller that must not show a neighbour to the peer uses a cache of its own, or a Pool. A
// registration for one operation is exact.
//
// # Where memory comes from
//
// What can take memory away depends on its owner, and so does what must be watched; see Origin. Get
// assumes Config.Origin, by default Any: memory of unknown origin. GetFrom is for callers that know
// the origin.
//
// Memory of the Go heap is cached when userfaultfd reports the runtime's discards. Without it,
// the cache keeps the object alive as long as it keeps the MR (Origin GoHeap), or registers per
// operation (Any). Goroutine stacks never get here: a variable is, if its address goes to Get,
// allocated on the heap.
//
// # Unnoticed changes
//
//   - mprotect. A page that was writable when it was registered stays so for the device: the bytes
//     arrive, also where the program itself may only read (so it is in the kernel, and in the
//     caches of other libraries). A Get with access that the memory lacks now, and that no earlier
//     Get wanted, fails.
//   - ftruncate and fallocate(FALLOC_FL_PUNCH_HOLE) of a mapped file, by its descriptor, and
//     MADV_REMOVE on another mapping of it, by another process or without the libc.
//   - madvise(MADV_GUARD_INSTALL), remap_file_pages, shmdt and shmat(SHM_REMAP) made without the
//     libc: the kernel is not reported.
//
// Where only userfaultfd reports some way in which memory of an origin is unmapped (Any, Malloc and
// GoMapped by default), a Get queries the kernel before it hits, by one system call of some 0.3 us:
// another thread may have freed the addresses an instant ago (memevents.Watcher.Reported). Memory
// registered for Mapped or GoHeap needs no query, nor for Malloc where the libc's text is
// patched.
//
// A range that userfaultfd watches cannot be watched by another userfaultfd of the program until
// the cache has let go of it (Clear): that one gets EBUSY. What another watches already is
// registered per operation.
//
// To the kernel a watched part of a mapping is a mapping of its own. Where only a part was passed
// to Get, an mremap that moves or grows the whole fails with EFAULT until the cache has let go
// (Clear), and later too if pages were first touched meanwhile; realloc copies instead. A caller
// that moves memory passes all of it, or as Mapped where that is true, which hooks see. Since
// Linux 6.17 an mremap with MREMAP_FIXED that keeps the length may move several mappings: it too
// fails with EFAULT where it meets a watched range, and by then it has moved what lies before.
//
// # Fork
//
// os/exec needs nothing. A child that C code forks has no cache: a Get fails with
// memevents.ErrForked, and whatever it gives back or closes ends nothing of the parent's; nor do
// the calls of its copy of a Pool.
//
// # Order of use
//
// All methods may be called from any number of goroutines. A hit takes no lock, allocates nothing
// and calls no C; for some origins it queries the kernel, as said above. A miss registers, which
// takes some ten microseconds and a few milliseconds per gigabyte; callers that miss on the same
// range wait for one registration instead of making several. Several caches may exist, one for each
// protection domain; they share the table of package memevents.
package regcache
