// Package segment provides the memory that a rank offers to the others.
//
// # Mapping
//
// [Map] makes one mapping. The library's regions come first, by name, size and alignment as [Place]
// lays them out; the user's region is behind them, at a multiple of 64 KiB:
//
//	0                                            UserOffset          Len
//	| region | region | ... | padding            | User()  | padding |
//
// The offsets follow from the regions alone, so that they are equal on all ranks; only the user's
// region may have another size on each. A user that counts from the begin of the user's region, and
// with offsets that are checked before that is added, reaches nothing of the library's.
//
// Every byte is zero at first. The whole mapping is what a network registers
// or shares; an offset on the wire counts from its first byte.
//
// A shared mapping is a memfd, sealed against any change of its size before
// another process sees it: a peer that maps it with [MapFD] cannot be killed by
// SIGBUS because the owner truncated the file. MapFD refuses files without
// that seal.
//
// # Limits
//
// Map never finds a limit by running into it, since most of them answer with a
// signal (SIGBUS, SIGXFSZ, the OOM killer) and not with an error. It reads
// them first and answers [*LimitError] with the figures and the remedy:
//
//   - RLIMIT_AS, RLIMIT_DATA (private mappings), RLIMIT_FSIZE (shared ones);
//   - the memory limit of every cgroup above the process, v1 and v2;
//   - MemAvailable of the machine, and its commit limit where
//     vm.overcommit_memory is 2;
//   - RLIMIT_MEMLOCK, for memory that will be pinned by a process without
//     CAP_IPC_LOCK, less the buffers that will be; the soft limit is raised to the hard one,
//     since queues and registrations of other memory count later;
//   - the largest region that the device registers.
//
// [Prepare] does only that. Its [Plan] says of which pools of memory the segment takes how much, so
// that processes that share a pool can add up before any of them maps.
//
// Huge pages come out of a pool of their own and are not charged to cgroups
// or MemAvailable; they are populated at once, because a page missing later
// (a hugetlb cgroup, another process) would be a SIGBUS.
package segment
