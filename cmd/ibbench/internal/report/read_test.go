package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Results that an earlier version wrote, with what this one makes of them.
func TestEarlierResultsAreReadUnchanged(t *testing.T) {
	for _, name := range []string{"text", "csv"} {
		all, err := Read(filepath.Join("testdata", "earlier.ndjson"))
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "earlier."+name, []byte(formatOf(t, name, []float64{50, 99}, all...)))
	}
}

func TestEarlierResultsAreWrittenAgain(t *testing.T) {
	all, err := Read(filepath.Join("testdata", "earlier.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "again.ndjson")
	if err := os.WriteFile(path, []byte(formatOf(t, "ndjson", pct, all...)), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if err != nil || len(again) != len(all) {
		t.Fatalf("%d of %d results: %v", len(again), len(all), err)
	}
	for i, s := range again {
		if s.File = all[i].File; cmp.Diff(all[i], s) != "" {
			t.Error(cmp.Diff(all[i], s))
		}
	}
}

func TestAFieldOfAnotherTypeIsDamage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "earlier.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{
		`"registrar":`: `"registrar":1,"was":`, `"base":true`: `"base":"yes"`, `"overhead_ns":{`: `"overhead_ns":60,"was":{`,
		`"version":`: `"version":7,"was":`,
	} {
		path := filepath.Join(t.TempDir(), "r.ndjson")
		damaged := strings.ReplaceAll(string(text), old, changed)
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); damaged == string(text) || err == nil {
			t.Errorf("%s is read", changed)
		}
	}
}
