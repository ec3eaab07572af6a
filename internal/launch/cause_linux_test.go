package launch

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// With version 2 a group may be without the controller, as a task's of a batch system; the one
// above counts for it.
func TestTheGroupThatCountsKillsIsWatched(t *testing.T) {
	files := fstest.MapFS{}
	put := func(name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }
	put("proc/self/cgroup", "0::/job/task\n")
	put("proc/self/mountinfo", "42 30 0:32 / /cg rw - cgroup2 cgroup2 rw\n")
	put("cg/job/task/cgroup.procs", "")
	put("cg/job/memory.events", "oom 3\noom_kill 2\n")
	put("cg/job/memory.max", "1048576\n")
	put("cg/job/memory.current", "1048576\n")
	m := watchMemoryKills(sysinfo.Root{FS: files})
	if text := m.text(); text != "" {
		t.Errorf("before a kill: %q", text)
	}
	put("cg/job/memory.events", "oom 4\noom_kill 3\n")
	if text := m.text(); !strings.Contains(text, "in memory group /job, whose limit is 1 MiB") {
		t.Errorf("after a kill: %q", text)
	}
}
