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

// planted are faults in package memevents, each of which a test of this package must notice: tests that pass
// whatever happens are worth nothing.
var planted = []struct {
	name, right, wrong string
	test               string // that must fail
}{
	{
		name:  "lookups skip the gate",
		right: "gate.Load()&1 != 0 || ", wrong: "",
		test: "TestTheGateHoldsBackLookups_14",
	},
	{
		name:  "registrations skip the windows",
		right: "from == 1 || (from && from < hi && load(m->window[i].hi) > lo)", wrong: "from == 2",
		test: "TestNothingIsCachedBetweenNoticeAndChange_08",
	},
	{
		name:  "mremap's fixed destination is forgotten",
		right: "take(p, huge_rounded(m, c->u.mremap.to, new_len));", wrong: ";",
		test: "TestModelOfCallsThroughTheLibc_24",
	},
}

func TestPlantedFaultsAreNoticed_24(t *testing.T) {
	gocmd, err := exec.LookPath("go")
	if err != nil || testing.Short() || verifying {
		t.Skip("no go command to build the faults with, or a build in which it would be for the second time")
	}
	if s := newCache(t, newFake()).Status(); s.Origins[Any].Mode != Cached {
		t.Skip("not cached here: ", s.Origins[Any].Why)
	}
	for _, x := range planted {
		t.Run(x.name, func(t *testing.T) {
			binary := buildWith(t, gocmd, x.right, x.wrong)
			out, err := exec.Command(binary, "-test.run", x.test, "-test.count=1", "-test.timeout=60s").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "stale") {
				t.Errorf("not noticed: %v\n%s", err, out)
			}
		})
	}
}

// buildWith builds the tests of this package with one line of package memevents replaced.
func buildWith(t *testing.T, gocmd, right, wrong string) string {
	t.Helper()
	path, text := fileWith(t, right)
	dir := t.TempDir()
	bad := filepath.Join(dir, filepath.Base(path))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: bad}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{bad: strings.Replace(text, right, wrong, 1), filepath.Join(dir, "overlay.json"): string(overlay)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "planted.test")
	if out, err := exec.Command(gocmd, "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput(); err != nil {
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
			if err != nil {
				t.Fatal(err)
			}
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
