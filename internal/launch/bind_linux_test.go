package launch

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestProcessorsAreDividedByTopology(t *testing.T) {
	sys := fstest.MapFS{}
	put := func(name, text string) { sys[name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	for cpu := range 8 { // 4 cores of two threads, two nodes, a third without processors
		put(fmt.Sprintf("cpu/cpu%d/topology/thread_siblings_list", cpu), fmt.Sprintf("%d,%d", cpu%4, cpu%4+4))
	}
	put("node/node0/cpulist", "0-1,4-5")
	put("node/node1/cpulist", "2-3,6-7")
	put("node/node2/cpulist", "")
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, try := range []struct {
		bind  string
		cpus  []int // that this process may use
		ranks int
		want  string
	}{
		{"core", all, 4, "0,4 1,5 2,6 3,7"},
		{"core", all, 2, "0,4 1,5"},
		{"core", []int{1, 4, 5, 6}, 3, "4 1,5 6"},
		{"core", all, 5, "error"},
		{"numa", all, 4, "0-1,4-5 0-1,4-5 2-3,6-7 2-3,6-7"},
		{"numa", all, 3, "0-1,4-5 0-1,4-5 2-3,6-7"},
		{"numa", []int{2, 3}, 2, "2-3 2-3"},
		{"numa", all, 1, "0-1,4-5"},
		{"socket", all, 1, "error"},
	} {
		var ours unix.CPUSet
		for _, cpu := range try.cpus {
			ours.Set(cpu)
		}
		sets, err := divide(sys, try.bind, &ours, try.ranks)
		var parts []string
		for i := range sets {
			parts = append(parts, cpuText(&sets[i]))
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = "error"
		}
		if got != try.want {
			t.Errorf("%s of %v for %d: %s, want %s; %v", try.bind, try.cpus, try.ranks, got, try.want, err)
		}
	}
	var one unix.CPUSet
	one.Set(3)
	if _, err := divide(sys, "core", &one, 2); err == nil || !strings.Contains(err.Error(), "may use 1 core of ") {
		t.Errorf("%v", err)
	}
	if _, err := divide(fstest.MapFS{}, "numa", new(unix.CPUSet), 1); err == nil || !strings.Contains(err.Error(), "--bind-to none") {
		t.Errorf("%v", err)
	}
}
