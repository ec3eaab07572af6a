package launch

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/sysinfo"
	"golang.org/x/sys/unix"
)

// places are the processors of each rank of a host, in the order of the ranks; nil: those that this
// process may use.
type places []unix.CPUSet

// findPlaces divides the processors that this process may use, by the machine's topology.
func findPlaces(bind string, ranks int) (places, error) {
	var ours unix.CPUSet
	if bind == "" {
		return nil, nil
	}
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		return nil, fmt.Errorf("launch: sched_getaffinity: %w", err)
	}
	return divide(os.DirFS("/sys/devices/system"), bind, &ours, ranks)
}

// divide gives the first rank the first core, and so on, or spreads ranks over NUMA nodes in equal
// blocks. A rank has all hardware threads of its core, or processors of its node, that this process
// may use.
func divide(sys fs.FS, bind string, ours *unix.CPUSet, ranks int) (places, error) {
	var names []string
	switch bind {
	case "core":
		for cpu := range maxCPU(ours) {
			names = append(names, path.Join("cpu", "cpu"+strconv.Itoa(cpu), "topology", "thread_siblings_list"))
		}
	case "numa":
		found, _ := fs.Glob(sys, "node/node*/cpulist")
		slices.SortFunc(found, func(a, b string) int { return nodeNumber(a) - nodeNumber(b) })
		names = found
	default:
		return nil, fmt.Errorf("launch: bind to %q: want core or numa", bind)
	}
	var sets places
	left := *ours
	for _, name := range names {
		text, err := fs.ReadFile(sys, name)
		if err != nil {
			continue // this processor is offline
		}
		var set unix.CPUSet
		for _, cpu := range cpuList(string(text)) {
			if left.IsSet(cpu) {
				left.Clear(cpu)
				set.Set(cpu)
			}
		}
		if set.Count() > 0 {
			sets = append(sets, set)
		}
	}
	switch {
	case len(sets) == 0:
		return nil, fmt.Errorf("launch: bind to %s: /sys/devices/system tells of none that this process may use: "+
			"use --bind-to none", bind)
	case bind == "core" && len(sets) < ranks:
		return nil, fmt.Errorf("launch: bind to core: this process may use %s of %s for %d ranks: start fewer, "+
			"or use --bind-to none", errtext.Count(len(sets), "core"), hostName(), ranks)
	}
	all := make(places, ranks)
	for i := range all {
		if bind == "core" {
			all[i] = sets[i]
		} else {
			all[i] = sets[i*len(sets)/ranks]
		}
	}
	return all, nil
}

func nodeNumber(name string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(name)), "node"))
	return n
}

// maxCPU is one more than the highest number of a set.
func maxCPU(set *unix.CPUSet) (n int) {
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			n = cpu + 1
		}
	}
	return n
}

// cpuList reads a list as the kernel writes it: "0-3,8,10-11".
func cpuList(text string) (cpus []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, many := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		b := a
		if many {
			b, _ = strconv.Atoi(last)
		}
		for cpu := a; cpu <= b; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// cpuText is the reverse of cpuList.
func cpuText(set *unix.CPUSet) string {
	var parts []string
	for cpu, end := 0, maxCPU(set); cpu < end; cpu++ {
		first := cpu
		for set.IsSet(cpu) {
			cpu++
		}
		switch {
		case cpu == first+1:
			parts = append(parts, strconv.Itoa(first))
		case cpu > first:
			parts = append(parts, fmt.Sprintf("%d-%d", first, cpu-1))
		}
	}
	return strings.Join(parts, ",")
}

// take gives the calling thread the processors of a rank: what it starts inherits them.
func (p places) take(i int) error {
	if p == nil {
		return nil
	}
	if err := unix.SchedSetaffinity(0, &p[i]); err != nil {
		return fmt.Errorf("bind to processors %s: %w", cpuText(&p[i]), err)
	}
	return nil
}

// keepAffinity gives the calling thread back the processors that it has now.
func (p places) keepAffinity() (restore func()) {
	var now unix.CPUSet
	if p == nil || unix.SchedGetaffinity(0, &now) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &now) }
}

// affinity of a process, as "0-3".
func affinity(pid int) string {
	var set unix.CPUSet
	if unix.SchedGetaffinity(pid, &set) != nil {
		return "unknown"
	}
	text := cpuText(&set)
	if set.Count() == 1 {
		text += sysinfo.OneProcessor
	}
	return text
}
