package verbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// writeCounters makes a /sys/class/infiniband that has these counters of port 1 of rxe0.
func writeCounters(t *testing.T, texts map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for path, text := range texts {
		p := filepath.Join(root, "rxe0/ports/1", path)
		check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		check(t, os.WriteFile(p, []byte(text), 0o644))
	}
	return root
}

func TestPortCountersTolerateMissingFiles(t *testing.T) {
	root := writeCounters(t, map[string]string{
		"hw_counters/sent_pkts": "42\n", "hw_counters/lifespan": "10\n", "hw_counters/both": "2\n",
		"counters/both": "1\n", "counters/port_xmit_data": "18446744073709551615\n", "counters/unsupported": "N/A (no PMA)\n",
	})
	got, err := portCounters(root, "rxe0", 1)
	if err != nil || len(got) != 3 || got["sent_pkts"] != 42 || got["both"] != 2 || got["port_xmit_data"] != 1<<64-1 {
		t.Errorf("%v, %v", got, err)
	}
	check(t, os.RemoveAll(filepath.Join(root, "rxe0/ports/1/counters")))
	if got, err := portCounters(root, "rxe0", 1); err != nil || len(got) != 2 {
		t.Errorf("without counters: %v, %v", got, err)
	}
	for _, c := range []struct {
		dev  string
		port int
	}{{"rxe0", 2}, {"mlx5_0", 1}, {"", 1}, {"../rxe0", 1}} {
		if _, err := portCounters(root, c.dev, c.port); !errors.Is(err, ErrNoDevice) {
			t.Errorf("%q port %d: %v", c.dev, c.port, err)
		}
	}
	if _, err := portCounters(root, "rxe0", 2); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cause must be there: %v", err)
	}
}

func TestPortCounterReadsOneAndPrefersTheDrivers(t *testing.T) {
	root := writeCounters(t, map[string]string{"hw_counters/both": "2\n", "counters/both": "1\n", "counters/one": "3\n", "counters/bad": "N/A\n"})
	for name, want := range map[string]uint64{"both": 2, "one": 3} {
		if got, err := portCounter(root, "rxe0", 1, name); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, want)
		}
	}
	for _, c := range [][2]string{{"rxe0", "bad"}, {"rxe0", "missing"}, {"rxe0", ""}, {"rxe0", "../hw_counters/both"}, {"../rxe0", "both"}, {"", "both"}} {
		if got, err := portCounter(root, c[0], 1, c[1]); err == nil {
			t.Errorf("%q of %q: %d", c[1], c[0], got)
		}
	}
	if _, err := portCounter(root, "rxe0", 1, "missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cause must be there: %v", err)
	}
}
