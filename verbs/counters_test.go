package verbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestPortCountersTolerateMissingFiles(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		p := filepath.Join(root, "rxe0/ports/1", path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("hw_counters/sent_pkts", "42\n")
	write("hw_counters/lifespan", "10\n")
	write("hw_counters/both", "2\n")
	write("counters/both", "1\n")
	write("counters/port_xmit_data", "18446744073709551615\n")
	write("counters/unsupported", "N/A (no PMA)\n")
	got, err := portCounters(root, "rxe0", 1)
	if err != nil || len(got) != 3 || got["sent_pkts"] != 42 || got["both"] != 2 || got["port_xmit_data"] != 1<<64-1 {
		t.Errorf("%v, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Join(root, "rxe0/ports/1/counters")); err != nil {
		t.Fatal(err)
	}
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
	root := t.TempDir()
	for path, text := range map[string]string{"hw_counters/both": "2\n", "counters/both": "1\n", "counters/one": "3\n", "counters/bad": "N/A\n"} {
		p := filepath.Join(root, "rxe0/ports/1", path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
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
