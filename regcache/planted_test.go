//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// planted are faults in package memevents, each of which a test of this package must notice: tests
// that pass whatever happens are worth nothing.
var planted = []struct {
	name  string
	edits []edit
	test  string // that must fail
}{
	{
		name:  "lookups skip the gate",
		edits: []edit{{"gate.Load()&1 != 0 || ", ""}},
		test:  "TestTheGateHoldsBackLookups_14",
	},
	{
		name:  "registrations skip the windows",
		edits: []edit{{"from == 1 || (from && from < hi && load(m->window[i].hi) > lo)", "from == 2"}},
		test:  "TestNothingIsCachedBetweenNoticeAndChange_08",
	},
	{
		name: "mremap's fixed destination is forgotten",
		edits: []edit{
			// Not in the self-test, which notices it and leaves the work to userfaultfd.
			{"take(p, huge_rounded(m, c->u.mremap.to, new_len));", "if (load(m->test_tid)) take(p, huge_rounded(m, c->u.mremap.to, new_len));"},
			// Else a new place is reported afterwards
			{"if (fresh(p, r))", "if (0 && fresh(p, r))"},
		},
		test: "TestModelOfCallsThroughTheLibc_24",
	},
}

// edit replaces a line of package memevents.
type edit struct{ right, wrong string }

func TestPlantedFaultsAreNoticed_24(t *testing.T) {
	gocmd, err := exec.LookPath("go")
	if err != nil || testing.Short() || verifying || inVM() {
		t.Skip("short, no go command, or not the plain build on the host, which is the one that plants")
	}
	needCached(t, newCache(t, newFake()), Any)
	for _, x := range planted {
		t.Run(x.name, func(t *testing.T) {
			binary := buildWith(t, gocmd, x.edits)
			out, err := exec.Command(binary, "-test.run", x.test, "-test.count=1", "-test.timeout=5m").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "stale") {
				t.Errorf("not noticed: %v\n%s", err, out)
			}
		})
	}
}

// buildWith builds the tests of this package with lines of package memevents replaced.
func buildWith(t *testing.T, gocmd string, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for _, x := range edits {
		path, text := fileWith(t, x.right)
		if replace[path] != "" {
			t.Fatalf("two edits of %s", path)
		}
		replace[path] = filepath.Join(dir, filepath.Base(path))
		noError(t, os.WriteFile(replace[path], []byte(strings.Replace(text, x.right, x.wrong, 1)), 0o600))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	noError(t, err)
	overlay, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "planted.test")
	noError(t, os.WriteFile(overlay, text, 0o600))
	if out, err := exec.Command(gocmd, "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return binary
}

// fileWith finds the one file of package memevents that has the line, once.
func fileWith(t *testing.T, line string) (path, text string) {
	t.Helper()
	for _, pattern := range []string{"../memevents/*.c", "../memevents/*.go"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			b, err := os.ReadFile(name)
			noError(t, err)
			if strings.Count(string(b), line) == 1 && path == "" {
				if path, err = filepath.Abs(name); err != nil {
					t.Fatal(err)
				}
				text = string(b)
			} else if strings.Contains(string(b), line) {
				t.Fatalf("%s has %q too: plant the fault anew", name, line)
			}
		}
	}
	if path == "" {
		t.Fatalf("no file of memevents has %q: plant the fault anew", line)
	}
	return path, text
}
