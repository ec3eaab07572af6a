package pressure

import (
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ibconduit/conduit/flow"
)

func noHeap() Heap { return Heap{Limit: math.MaxInt64} }

func files(m map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range m {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

const (
	v2Mounts = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	psi      = "some avg10=1.50 avg60=0.20 avg300=0.00 total=1234567\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
	meminfo  = "MemTotal:       1048576 kB\nMemFree:  1 kB\nMemAvailable:    786432 kB\n"
)

// v2 is a machine with cgroup v2, a process in /a/b.
func v2() map[string]string {
	const a, b = "sys/fs/cgroup/a/", "sys/fs/cgroup/a/b/"
	return map[string]string{
		"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2Mounts, "proc/meminfo": meminfo, "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
		"proc/self/stat":          "12 (a b) c) S 1 12 12 0 -1 4194560 1000 0 77 0 1 2 0 0 20 0 1 0",
		"proc/thread-self/status": "VmLck:\t      16 kB\nVmPin:\t    1024 kB\nVmRSS:\t 5 kB\n",
		b + "memory.max":          "max", b + "memory.high": "209715200\n", b + "memory.current": "104857600\n",
		b + "memory.stat": "anon 5\ninactive_file 10485760\nactive_file 14680064\nfile_dirty 3145728\nfile_writeback 1048576\n", b + "memory.events": "low 0\nhigh 3\nmax 0\noom 0\noom_kill 0\n",
		b + "memory.pressure": psi,
		a + "memory.max":      "314572800\n", a + "memory.high": "max\n", a + "memory.current": "209715200\n",
		a + "memory.stat": "inactive_file 0\n", a + "memory.events": "high 0\nmax 4\n", a + "memory.pressure": "some avg10=9 avg60=9 avg300=9 total=9\n",
	}
}

func TestGroupsOfVersion2(t *testing.T) {
	r := NewAt(files(v2()), noHeap).Read()
	want := []flow.MemoryBound{
		{Source: "memory.high of /a/b", Limit: 200 << 20, Used: 80 << 20},
		{Source: "memory.max of /a", Limit: 300 << 20, Used: 200 << 20},
		{Source: "MemAvailable", Limit: 1 << 30, Used: 256 << 20},
	}
	if len(r.Bounds) != len(want) {
		t.Fatalf("%+v", r.Bounds)
	}
	for i := range want {
		if r.Bounds[i] != want[i] {
			t.Errorf("got %+v, want %+v", r.Bounds[i], want[i])
		}
	}
	if r.StalledBy != "memory.pressure of /a/b" || r.Stalled != 1234567*time.Microsecond {
		t.Errorf("stalled %v by %s", r.Stalled, r.StalledBy)
	}
	if r.LimitHits != 7 || r.MajorFaults != 77 || r.Pinned != 1040<<10 {
		t.Errorf("%+v", r)
	}
}

// Each probe that is missing has the next one tell, and says so.
func TestEachFallback(t *testing.T) {
	m := v2()
	steps := []struct {
		name   string
		remove string // files that begin so
		by     string
		bounds int
		faults int64
	}{
		{"all", "-", "memory.pressure of /a/b", 3, 77},
		{"stalls of the own group", "sys/fs/cgroup/a/b/memory.pressure", "memory.pressure of /a", 3, 77},
		{"own group", "sys/fs/cgroup/a/b/", "memory.pressure of /a", 2, 77},
		{"groups", "sys/", "/proc/pressure/memory", 1, 77},
		{"stalls", "proc/pressure", "", 1, 77},
		{"meminfo", "proc/meminfo", "", 0, 77},
		{"stat", "proc/self/stat", "", 0, -1},
		{"status", "proc/thread-self/status", "", 0, -1},
	}
	for _, s := range steps {
		for name := range m {
			if strings.HasPrefix(name, s.remove) {
				delete(m, name)
			}
		}
		reader := NewAt(files(m), noHeap)
		r := reader.Read()
		if r.StalledBy != s.by || len(r.Bounds) != s.bounds || r.MajorFaults != s.faults {
			t.Errorf("without %s: %+v", s.name, r)
		}
		for _, source := range reader.Sources() {
			if source.Says == "" {
				t.Errorf("without %s: %s says nothing", s.name, source.Probe)
			}
		}
	}
	found := 0
	for _, source := range NewAt(files(m), noHeap).Sources() {
		if source.Found {
			found++
		}
	}
	if found != 0 {
		t.Errorf("%d probes of nothing", found)
	}
}

func TestAProcessThatIsMovedIsFollowed(t *testing.T) {
	m := files(v2())
	r := NewAt(m, noHeap)
	r.Read()
	m["proc/self/cgroup"].Data = []byte("0::/a\n")
	if got := r.Read(); len(got.Bounds) != 2 || got.StalledBy != "memory.pressure of /a" {
		t.Errorf("%+v", got)
	}
}

func TestSourcesAreInTheOrderOfProbes(t *testing.T) {
	var names []string
	for _, s := range NewAt(files(v2()), noHeap).Sources() {
		names = append(names, s.Probe)
	}
	if got := strings.Join(names, ", "); got != "cgroup v2, cgroup v1, /proc/pressure, MemAvailable, major faults, Go's memory limit, pinned" {
		t.Error(got)
	}
}

func TestGarbageIsNotKnown(t *testing.T) {
	m := v2()
	for name := range m {
		if name != "proc/self/cgroup" && name != "proc/self/mountinfo" {
			m[name] = "some of total= \x00 -5 9999999999999999999999\n:::"
		}
	}
	r := NewAt(files(m), noHeap).Read()
	if len(r.Bounds) != 0 || r.StalledBy != "" || r.MajorFaults != -1 || r.LimitHits != 0 || r.Pinned != 0 {
		t.Errorf("%+v", r)
	}
}

func TestTheHeapGrowsToItsGoalWithinItsLimit(t *testing.T) {
	for _, c := range []struct {
		heap Heap
		want int64
	}{
		{Heap{Goal: 100, Used: 60, Idle: 10, Total: 80, Limit: math.MaxInt64}, 30},
		{Heap{Goal: 100, Used: 60, Idle: 10, Total: 80, Limit: 95}, 15},
		{Heap{Goal: 100, Used: 60, Idle: 50, Total: 120, Limit: math.MaxInt64}, 0},
		{Heap{Goal: 100, Used: 60, Idle: 10, Total: 120, Limit: 100}, 0},
		{Heap{Goal: math.MaxInt64, Used: 60, Idle: 10, Total: 120, Limit: 1000}, 880},
		{Heap{Goal: math.MaxInt64, Used: 60, Idle: 10, Total: 120, Limit: math.MaxInt64}, 0}, // GOGC=off
	} {
		if got := NewAt(files(nil), func() Heap { return c.heap }).Read().GoGrowth; got != c.want {
			t.Errorf("%+v: %d, want %d", c.heap, got, c.want)
		}
	}
}

// frame is what the files were at one time of a recorded trace.
type frame struct {
	at time.Duration
	fs fstest.MapFS
}

func trace(t *testing.T, name string) (frames []frame) {
	t.Helper()
	a, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	now := fstest.MapFS{}
	last := ""
	flush := func() {
		if last == "" {
			return
		}
		ms, err := strconv.Atoi(last)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame{time.Duration(ms) * time.Millisecond, maps.Clone(now)})
	}
	for _, f := range a.Files {
		dir, rest, _ := strings.Cut(path.Clean(f.Name), "/")
		if dir != last {
			flush()
			last = dir
		}
		now[rest] = &fstest.MapFile{Data: f.Data}
	}
	flush()
	return frames
}

// without hides files from a frame.
func (f frame) without(parts ...string) frame {
	left := fstest.MapFS{}
	for name, file := range f.fs {
		if !slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(name, p) }) {
			left[name] = file
		}
	}
	return frame{f.at, left}
}

// The machine of the trace has a memory controller of v1 and accounts for the stalls of a group of
// v2. A budget that adapts to it gives way as soon as the memory fills, and halves while it
// thrashes; so it does with less to go by.
func TestABudgetOnARecordedTrace(t *testing.T) {
	recorded := trace(t, "testdata/thrash.txtar")
	for _, c := range []struct {
		name          string
		hidden        []string
		room, halving flow.Cause // 0: none
		bound, stalls string
	}{
		{"all", nil, flow.CauseRoom, flow.CauseStalled, "memory.limit_in_bytes of /job", "memory.pressure of /job"},
		{"no stalls", []string{"pressure"}, flow.CauseRoom, flow.CauseFaults, "memory.limit_in_bytes of /job", ""},
		{"no groups", []string{"sys/fs", "pressure"}, 0, flow.CauseFaults, "MemAvailable", ""},
		{"no faults either", []string{"self/stat", "pressure"}, flow.CauseRoom, 0, "memory.limit_in_bytes of /job", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var frames []frame
			for _, f := range recorded {
				frames = append(frames, f.without(c.hidden...))
			}
			causes, least := replay(t, frames, c.bound, c.stalls)
			if c.room != 0 && causes[c.room] == 0 || c.halving != 0 && causes[c.halving] == 0 || causes[flow.CauseCalm] == 0 {
				t.Errorf("decisions by cause: %v", causes)
			}
			if c.room != 0 && least > 12<<20 {
				t.Errorf("the limit was at least %d MiB", least>>20)
			}
		})
	}
}

// replay has a budget observe the frames while there is always one who waits.
func replay(t *testing.T, frames []frame, bound, stalls string) (causes map[flow.Cause]int, least int64) {
	now := frames[0].at
	first := NewAt(frames[0].fs, noHeap).Read()
	if first.Bounds[0].Source != bound || first.StalledBy != stalls {
		t.Fatalf("%+v", first)
	}
	b, err := flow.NewBudget(flow.BudgetConfig{
		Adapt: &flow.AdaptConfig{Floor: 4 << 20, Window: time.Second}, Small: -1,
		Now: func() time.Duration { return now },
	}, flow.Surroundings{Memory: first})
	if err != nil {
		t.Fatal(err)
	}
	start := b.Stats().Limit
	for b.Room() > 0 {
		s := b.NewFetchSet()
		s.Fetch(sized(b.Largest()))
		p, err := s.Post()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Cancel()
	}
	causes, least = map[flow.Cause]int{}, start
	for _, f := range frames[1:] {
		now = f.at
		d, changed := b.Observe(NewAt(f.fs, noHeap).Read())
		if !changed {
			continue
		}
		t.Log(d.At, d)
		if causes[d.Cause]++; now < time.Second && d.To < 60<<20 {
			t.Error("the limit fell in quiet")
		}
		least = min(least, d.To)
	}
	return causes, least
}

// sized is a fetch that is never started.
type sized int64

func (sized) Rank() int         { return 0 }
func (s sized) Bytes() int64    { return int64(s) }
func (sized) Start(func(error)) {}
func (sized) Cancel()           {}
func (sized) Free()             {}
