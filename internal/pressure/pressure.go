package pressure

import (
	"fmt"
	"io/fs"
	"math"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/sysinfo"
)

// Reader reads all probes. Any goroutine may use it. A reading takes a few dozen small files, and
// blocks on nothing but the kernel.
type Reader struct {
	root sysinfo.Root
	heap func() Heap
	last atomic.Pointer[membership]
}

// membership is the groups of the process. To find them anew for each reading costs as much as all
// the rest: the mounts are read for each hierarchy.
type membership struct {
	text   string // of /proc/self/cgroup
	groups []sysinfo.Cgroup
}

// groups are the process's now; it may be moved.
func (r *Reader) groups() []sysinfo.Cgroup {
	text := r.root.Text("/proc/self/cgroup")
	m := r.last.Load()
	if m == nil || m.text != text {
		m = &membership{text, r.root.Cgroups("memory")}
		r.last.Store(m)
	}
	return m.groups
}

// Heap is the state of Go's heap, in bytes.
type Heap struct {
	Goal  int64 // at which it is collected
	Used  int64 // by objects, dead ones included
	Idle  int64 // mapped, and in no use
	Total int64 // mapped by the runtime, without what it has given back
	Limit int64 // GOMEMLIMIT; MaxInt64: none
}

// New reads this machine and process.
func New() *Reader { return &Reader{root: sysinfo.Host(), heap: ReadHeap} }

// NewAt reads a file system in the place of the root directory, and a heap.
func NewAt(root fs.FS, heap func() Heap) *Reader {
	return &Reader{root: sysinfo.Root{FS: root}, heap: heap}
}

// Source says of a probe whether it is there, and what it says.
type Source struct {
	Probe string
	Found bool
	Says  string // for a person; when it is not found, what that means
}

// Read reads all probes.
func (r *Reader) Read() flow.Reading {
	reading, _ := r.read()
	return reading
}

// Sources reads all probes, and lists their values, in their order.
func (r *Reader) Sources() []Source {
	_, sources := r.read()
	return sources
}

func (r *Reader) read() (flow.Reading, []Source) {
	reading := flow.Reading{MajorFaults: -1}
	sources := []Source{
		r.cgroups(true, &reading), r.cgroups(false, &reading), r.machineStalls(&reading), r.available(&reading),
		r.faults(&reading), r.goHeap(&reading), r.pinned(&reading),
	}
	return reading, sources
}

// cgroups reads the groups of one version of cgroups.
func (r *Reader) cgroups(v2 bool, to *flow.Reading) Source {
	s := Source{Probe: "cgroup v1"}
	if v2 {
		s.Probe = "cgroup v2"
	}
	var says []string
	for _, g := range r.groups() {
		if g.V2 != v2 {
			continue
		}
		var bound flow.MemoryBound
		var limited bool
		if v2 {
			bound, limited = r.boundV2(g, to)
			if r.stalls(g.Dir+"/memory.pressure", "memory.pressure of "+g.Path, to) {
				says = append(says, to.StalledBy)
			}
		} else {
			bound, limited = r.boundV1(g, to)
		}
		if limited {
			to.Bounds = append(to.Bounds, bound)
			says = append(says, fmt.Sprintf("%s: %d of %d MiB", bound.Source, bound.Used>>20, bound.Limit>>20))
		}
	}
	if s.Found = len(says) > 0; s.Found {
		s.Says = strings.Join(says, "; ")
	} else {
		s.Says = "no memory limit of a group" // and no stalls of one
	}
	return s
}

// boundV2 is the lower of memory.high, beyond which the group is throttled, and memory.max.
func (r *Reader) boundV2(g sysinfo.Cgroup, to *flow.Reading) (b flow.MemoryBound, ok bool) {
	b.Limit = math.MaxInt64
	for _, name := range []string{"memory.high", "memory.max"} {
		if n, set := r.root.Figure(g.Dir + "/" + name); set && n < 1<<62 && int64(n) < b.Limit {
			b.Limit, b.Source, ok = int64(n), name+" of "+g.Path, true
		}
	}
	events := r.keyed(g.Dir + "/memory.events")
	to.LimitHits += uint64(events["high"] + events["max"])
	b.Used = r.usedOf(g)
	return b, ok
}

func (r *Reader) boundV1(g sysinfo.Cgroup, to *flow.Reading) (b flow.MemoryBound, ok bool) {
	limit, set := r.root.Figure(g.Dir + "/memory.limit_in_bytes")
	hits, _ := r.root.Figure(g.Dir + "/memory.failcnt")
	to.LimitHits += hits
	if !set || limit >= 1<<62 { // "no limit" is the largest multiple of a page below 1<<63
		return b, false
	}
	b = flow.MemoryBound{Source: "memory.limit_in_bytes of " + g.Path, Limit: int64(limit)}
	b.Used = r.usedOf(g)
	return b, true
}

// usedOf is a group's memory without clean page cache.
func (r *Reader) usedOf(g sysinfo.Cgroup) int64 {
	used, clean := r.root.MemoryUse(g)
	return int64(used - clean)
}

// keyed reads lines "key value".
func (r *Reader) keyed(name string) map[string]int64 {
	out := map[string]int64{}
	for line := range strings.Lines(r.root.Text(name)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			out[k], _ = strconv.ParseInt(v, 10, 64)
		}
	}
	return out
}

// stalls reads the total of the line "some" of a file of stall information, in microseconds, unless
// a probe before has found one.
func (r *Reader) stalls(name, source string, to *flow.Reading) bool {
	if to.StalledBy != "" {
		return false
	}
	for line := range strings.Lines(r.root.Text(name)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "some" {
			continue
		}
		total, ok := strings.CutPrefix(f[len(f)-1], "total=")
		us, err := strconv.ParseInt(total, 10, 64)
		if ok && err == nil && us >= 0 && us < math.MaxInt64/1000 {
			to.Stalled, to.StalledBy = time.Duration(us)*time.Microsecond, source
			return true
		}
	}
	return false
}

func (r *Reader) machineStalls(to *flow.Reading) Source {
	const name = "/proc/pressure/memory"
	s := Source{Probe: "/proc/pressure", Says: "the kernel does not account for stalls: major faults tell of pressure"}
	by := to.StalledBy
	if r.stalls(name, name, to) {
		s.Found, s.Says = true, "stalls of the machine"
	} else if by != "" {
		s.Found, s.Says = r.root.Exists(name), "not used: a group's are narrower"
	}
	return s
}

// available is the kernel's own estimate of what can be had without swapping, clean page cache
// included and pinned memory not.
func (r *Reader) available(to *flow.Reading) Source {
	t := r.root.Table("/proc/meminfo")
	total, free := int64(sysinfo.KB(t["MemTotal"])), int64(sysinfo.KB(t["MemAvailable"]))
	if total <= 0 || t["MemAvailable"] == "" {
		return Source{Probe: "MemAvailable", Says: "no /proc/meminfo: nothing is known of the machine's memory"}
	}
	to.Bounds = append(to.Bounds, flow.MemoryBound{Source: "MemAvailable", Limit: total, Used: max(total-free, 0)})
	return Source{"MemAvailable", true, fmt.Sprintf("%d of %d MiB", free>>20, total>>20)}
}

// faults reads field 12 of the process's line, majflt; the name in field 2 may have any characters.
func (r *Reader) faults(to *flow.Reading) Source {
	text := r.root.Text("/proc/self/stat")
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) > 9 {
		if n, err := strconv.ParseInt(f[9], 10, 64); err == nil && n >= 0 {
			to.MajorFaults = n
			return Source{"major faults", true, fmt.Sprintf("%d so far", n)}
		}
	}
	return Source{Probe: "major faults", Says: "no /proc/self/stat"}
}

// goHeap is the heap's growth beyond the process's memory: up to its goal, within the limit.
// With GOGC=off the goal is no figure; without a limit too, the growth is not known.
func (r *Reader) goHeap(to *flow.Reading) Source {
	h := r.heap()
	if h.Goal == math.MaxInt64 && h.Limit == math.MaxInt64 {
		return Source{"Go's memory limit", false, "GOGC=off and GOMEMLIMIT is not set: nothing bounds the heap"}
	}
	to.GoGrowth = max(min(h.Goal-h.Used-h.Idle, h.Limit-h.Total), 0)
	if h.Limit == math.MaxInt64 {
		return Source{"Go's memory limit", false, "GOMEMLIMIT is not set: the heap grows to the collector's goal"}
	}
	return Source{"Go's memory limit", true, fmt.Sprintf("%d of %d MiB", h.Total>>20, h.Limit>>20)}
}

// ReadHeap reads the runtime's metrics.
func ReadHeap() Heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/goal:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/gomemlimit:bytes"},
	}
	metrics.Read(s)
	v := func(i int) int64 {
		if s[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return int64(min(s[i].Value.Uint64(), math.MaxInt64))
	}
	return Heap{Goal: v(0), Used: v(1), Idle: v(2) + v(3), Total: v(4) - v(5), Limit: v(6)}
}

// pinned reads VmPin, memory that devices have, and VmLck, memory that mlock has. Neither is
// swapped.
func (r *Reader) pinned(to *flow.Reading) Source {
	t := r.root.Table("/proc/thread-self/status")
	if t["VmPin"] == "" {
		return Source{Probe: "pinned", Says: "no VmPin in /proc/thread-self/status"}
	}
	pin, lck := int64(sysinfo.KB(t["VmPin"])), int64(sysinfo.KB(t["VmLck"]))
	to.Pinned = pin + lck
	return Source{"pinned", true, fmt.Sprintf("%d KiB by devices, %d KiB by mlock", pin>>10, lck>>10)}
}
