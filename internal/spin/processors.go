package spin

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/bits"
	"os"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// Processors says where this process runs, for PerProcessor of others: 8 bytes that stand for the
// machine, 8 for the control group that sets its quota, then words of 64 bits with one for each
// processor that the process may use. Where that is not known there are none.
func Processors() []byte {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	name, _ := os.Hostname()
	b := binary.LittleEndian.AppendUint64(machine(boot, name), quotaGroup())
	for _, w := range allowed() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// machine is by the kernel's boot, as for shared memory (internal/fabric/shm): containers of one
// machine have names of their own, and its processors in common. Where that is not known it is the
// name.
func machine(boot []byte, name string) []byte {
	h := fnv.New64a()
	if len(boot) > 0 {
		h.Write(boot)
	} else {
		h.Write([]byte(name))
	}
	return h.Sum(nil)
}

// Quota is how many processors the control group of this process may use at a time; 0: no limit.
func Quota() float64 {
	cpus, _ := sysinfo.Host().CPUQuota()
	return cpus
}

// PerProcessor is how many of several processes share a processor where one of them runs, at least
// 1: those that share its processors, over these, or the ones in its group, over the group's
// quota. all are the results of Processors at each, or anything.
func PerProcessor(all [][]byte, me int, quota float64) int {
	var union [maxWords]uint64
	sharers, members, cpus := 0, 0, 0
	for _, b := range all {
		if shares(b, all[me]) {
			sharers++
			if group(b) == group(all[me]) {
				members++
			}
			for i := range wordsOf(b) {
				union[i] |= wordAt(b, i)
			}
		}
	}
	for _, w := range union {
		cpus += bits.OnesCount64(w)
	}
	n := float64(sharers) / float64(max(cpus, 1))
	if quota > 0 {
		n = max(n, float64(members)/quota)
	}
	return max(int(math.Ceil(n)), 1)
}

// shares reports whether two processes share a processor.
func shares(a, b []byte) bool {
	n := min(wordsOf(a), wordsOf(b))
	if n == 0 || string(a[:8]) != string(b[:8]) {
		return false
	}
	for i := range n {
		if wordAt(a, i)&wordAt(b, i) != 0 {
			return true
		}
	}
	return false
}

// maxWords is for as many processors as Linux can be built for (NR_CPUS).
const maxWords = 8192 / 64

func group(b []byte) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

func wordsOf(b []byte) int { return min(max(len(b)/8-2, 0), maxWords) }

func wordAt(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*(i+2):]) }
