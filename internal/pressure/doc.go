// Package pressure reads what the kernel and Go's runtime publish about memory: the probes of a
// [flow.Budget] that adapts. It needs no privilege. What a machine lacks, cgroups or the accounting
// of stalls, the other probes make up for, and [Reader.Sources] says which there are.
//
// The probes, in this order; of stalls the first that is there counts, of bounds all:
//
//	probe              files                                               gives
//	cgroup v2          memory.current, high, max, events, stat, pressure   bounds, hits, stalls
//	cgroup v1          memory.usage_in_bytes, limit_in_bytes, failcnt,
//	                   stat                                                bounds, hits
//	/proc/pressure     /proc/pressure/memory                               stalls of the machine
//	MemAvailable       /proc/meminfo                                       the machine's bound
//	major faults       /proc/self/stat                                     faults
//	Go's memory limit  runtime/metrics                                     growth of the heap
//	pinned             /proc/thread-self/status                            VmPin and VmLck
//
// The groups above a group bound it too, as far as the mount namespace shows them. A group of v2
// accounts for stalls even where the memory controller is v1's.
//
// Stalls are read as totals, ten times a second. Triggers of less than 2 s need CAP_SYS_RESOURCE
// and are refused on /proc/pressure/memory; a total needs no descriptor, and reading all probes
// takes 0.24 ms (BenchmarkRead). prometheus/procfs reads no group's memory.pressure, and imports
// net.
//
// Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, and
// Documentation/accounting/psi.rst of Linux; proc_meminfo(5), proc_pid_stat(5), proc_pid_status(5).
package pressure
