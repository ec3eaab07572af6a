package machine

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProcessorsAreDealtOutInEqualParts(t *testing.T) {
	for _, c := range []struct {
		cpus        []int
		rank, ranks int
		want        []int
	}{
		{nil, 0, 2, nil},
		{[]int{0, 1}, 1, 2, []int{1}},
		{[]int{0, 1, 4, 5}, 1, 2, []int{4, 5}},
		{[]int{3}, 5, 8, []int{3}},
		{[]int{0, 1, 2}, 1, 2, []int{1}},
	} {
		if got := Share(c.cpus, c.rank, c.ranks); !slices.Equal(got, c.want) {
			t.Errorf("Share(%v, %d, %d) = %v, want %v", c.cpus, c.rank, c.ranks, got, c.want)
		}
	}
}

// TestPinBindsEveryThread runs in a process of its own, which stays bound.
func TestPinBindsEveryThread(t *testing.T) {
	if os.Getenv("IBBENCH_TEST_PIN") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPinBindsEveryThread$", "-test.v")
		cmd.Env = append(os.Environ(), "IBBENCH_TEST_PIN=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	var now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &now); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !now.IsSet(cpu) {
		cpu++
	}
	if err := Pin([]int{cpu}); err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		if !strings.Contains(string(b), "Cpus_allowed:\t") {
			t.Fatalf("no mask in %s", b)
		}
		for line := range strings.Lines(string(b)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:\t"); ok && strings.TrimSpace(list) != strconv.Itoa(cpu) {
				t.Errorf("thread %s may run on %s, want %d", task.Name(), list, cpu)
			}
		}
	}
	if err := Pin([]int{1023}); err == nil {
		t.Error("a processor that does not exist was accepted")
	}
}

func TestLocalFactsAreThere(t *testing.T) {
	f := Local()
	if f.Host == "" || f.Kernel == "" || f.Go == "" || f.CPUs < 1 {
		t.Errorf("%+v", f)
	}
}

func TestSoftwareDevicesAreKnownByName(t *testing.T) {
	for name, want := range map[string]bool{"rxe0": true, "siw_eth0": true, "mlx5_0": false, "no-such-device": false} {
		if got := Software(name); got != want {
			t.Errorf("Software(%q) = %v", name, got)
		}
	}
}
