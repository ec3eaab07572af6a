//go:build linux && cgo

package softverbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// reasons are the only ones: what the device does, it does right.
var reasons = []string{"VmPin", "pinned", "LD_PRELOAD", "network interface", "kernel device", "the machine's"}

// Every exception is a test that asks for a device, so that the VM runs it, and has a reason.
func TestEveryExceptionRunsInTheVM(t *testing.T) {
	all, err := Exceptions()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d exceptions, %v", len(all), err)
	}
	d, err := dir()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(filepath.Dir(d))
	asking := map[string]*regexp.Regexp{}
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.Test] {
			t.Errorf("%s stands there twice", e.Test)
		}
		seen[e.Test] = true
		if !hasReason(e.Reason) {
			t.Errorf("%s: %q is none of the reasons %q", e.Test, e.Reason, reasons)
		}
		if asking[e.Package] == nil {
			asking[e.Package] = devicesOf(t, root, e.Package)
		}
		if !asking[e.Package].MatchString(e.Test) {
			t.Errorf("%s: no test %s asks for a device", e.Package, e.Test)
		}
	}
}

func hasReason(text string) bool {
	for _, r := range reasons {
		if strings.Contains(text, r) {
			return true
		}
	}
	return false
}

// devicesOf matches the tests of a package that the VM runs.
func devicesOf(t *testing.T, root, pkg string) *regexp.Regexp {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", "./hack/rdmatests", "./"+pkg)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("rdmatests of %s: %v", pkg, err)
	}
	return regexp.MustCompile(strings.TrimSpace(string(out)))
}
