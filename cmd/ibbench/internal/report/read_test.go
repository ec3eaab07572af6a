package report

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// words takes the blanks from a table, which are as wide as its columns.
func words(text string) (lines []string) {
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// Results that an earlier version wrote, with what it made of them.
func TestEarlierResultsAreReadUnchanged(t *testing.T) {
	for _, name := range []string{"text", "csv"} {
		all, err := Read(filepath.Join("testdata", "earlier.ndjson"))
		if err != nil {
			t.Fatal(err)
		}
		if name == "text" { // where flow has tables of its own
			all = slices.DeleteFunc(all, func(s *Series) bool { return s.Kind == plan.Flow })
		}
		want, err := os.ReadFile(filepath.Join("testdata", "earlier."+name))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(words(string(want)), words(formatOf(t, name, []float64{50, 99}, all...))); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
}

func TestEarlierResultsAreWrittenAgain(t *testing.T) {
	all, err := Read(filepath.Join("testdata", "earlier.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "again.ndjson")
	if err := os.WriteFile(path, []byte(format(t, "ndjson", all...)), 0o600); err != nil {
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
		`"in_use":`: `"in_use":"much","was":`, `"registrar":`: `"registrar":1,"was":`, `"base":true`: `"base":"yes"`, `"overhead_ns":{`: `"overhead_ns":60,"was":{`,
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
