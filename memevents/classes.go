package memevents

import "strings"

// Class is one kind of call that can take memory away. What a monitor sees differs by the way the
// call takes.
type Class uint8

// The classes, by the caller and the call.
const (
	Munmap    Class = iota // C code: munmap
	MmapFixed              // C code: mmap with MAP_FIXED over memory
	Mremap                 // C code: mremap, the old range and a fixed destination
	Madvise                // C code: madvise that discards pages
	Brk                    // C code: brk and sbrk
	Shm                    // C code: shmdt, shmat with SHM_REMAP
	RemapFile              // C code: remap_file_pages
	Guard                  // C code: madvise with MADV_GUARD_INSTALL
	LibcFree               // inside the libc: free of a large block, realloc, stacks of threads
	LibcBrk                // inside the libc: malloc_trim and free, which lower the break
	// No libc: munmap, mremap, mmap of package syscall; the loader's dlclose
	RawUnmap
	// No libc: madvise of package syscall and of the Go runtime (debug.FreeOSMemory, the scavenger)
	RawDiscard
	RawGuard     // no libc: MADV_GUARD_INSTALL
	RawShm       // no libc: shmdt, shmat with SHM_REMAP
	RawRemapFile // no libc: remap_file_pages
	// ftruncate, fallocate of a shared file by descriptor: no monitor sees it
	Truncate
	numClasses
)

var classNames = [numClasses]string{
	Munmap: "munmap", MmapFixed: "mmap-fixed", Mremap: "mremap", Madvise: "madvise", Brk: "brk", Shm: "shm",
	RemapFile: "remap_file_pages", Guard: "guard", LibcFree: "libc-free", LibcBrk: "libc-brk",
	RawUnmap: "raw-unmap", RawDiscard: "raw-discard", RawGuard: "raw-guard", RawShm: "raw-shm",
	RawRemapFile: "raw-remap_file", Truncate: "truncate",
}

func (c Class) String() string {
	if c < numClasses {
		return classNames[c]
	}
	return "unknown class"
}

// Classes is a set of Class.
type Classes uint32

// Set is the set of the given classes.
func Set(classes ...Class) (s Classes) {
	for _, c := range classes {
		s |= 1 << c
	}
	return s
}

// What a caller of Claim needs, by where the memory comes from.
const (
	// CalledFromC is what ordinary C code can do to memory that it mapped itself, through the libc.
	// It is enough for memory that only this project's allocators unmap, and for Go memory that is
	// kept alive.
	CalledFromC Classes = 1<<Munmap | 1<<MmapFixed | 1<<Mremap | 1<<Madvise | 1<<Brk | 1<<Shm | 1<<RemapFile
	// ForMalloc is for memory from the C heap.
	ForMalloc = CalledFromC | 1<<LibcFree | 1<<LibcBrk
	// ForGoMap is for memory mapped by package syscall.
	ForGoMap = CalledFromC | 1<<RawUnmap | 1<<RawDiscard
	// ForGoHeap is for memory of the Go heap that nothing keeps alive.
	ForGoHeap = CalledFromC | 1<<RawDiscard
	// UnmappedLate are the classes that userfaultfd reports when the addresses are free already,
	// which a hook never does. Where only it covers them, Acquire proves nothing to a caller that
	// has mapped the range meanwhile; see Late and Watcher.Reported.
	UnmappedLate = CalledFromC&^(1<<Madvise) | 1<<LibcFree | 1<<LibcBrk | 1<<RawUnmap
	// ForAny is for memory of unknown origin. It leaves out changes that no monitor can see, or so
	// rare that the program has to avoid them: RawGuard, RawShm, RawRemapFile, Truncate; the package
	// documentation names them.
	ForAny = ForMalloc | ForGoMap
)

// Has reports whether the set holds all of want.
func (s Classes) Has(want Classes) bool { return s&want == want }

func (s Classes) String() string {
	var names []string
	for c := range numClasses {
		if s&(1<<c) != 0 {
			names = append(names, c.String())
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, " ")
}
