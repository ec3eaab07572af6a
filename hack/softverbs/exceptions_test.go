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

// Every exception is a test that the VM runs, and has a reason. What the VM runs asks for a device.
func TestEveryExceptionRunsInTheVM(t *testing.T) {
	exceptions, err := Exceptions()
	if err != nil || len(exceptions) == 0 {
		t.Fatalf("%d exceptions, %v", len(exceptions), err)
	}
	inVM, err := InVM()
	if err != nil {
		t.Fatal(err)
	}
	runs := map[[2]string]bool{}
	for _, e := range inVM {
		key := [2]string{e.Package, e.Test}
		if runs[key] {
			t.Errorf("%s: %s stands in the VM's table twice", e.Package, e.Test)
		}
		runs[key] = true
	}
	seen := map[string]bool{}
	for _, e := range exceptions {
		if seen[e.Test] {
			t.Errorf("%s stands there twice", e.Test)
		}
		seen[e.Test] = true
		if !hasReason(e.Reason) {
			t.Errorf("%s: %q is none of the reasons %q", e.Test, e.Reason, reasons)
		}
		if !runs[[2]string{e.Package, e.Test}] && !runs[[2]string{e.Package, "*"}] {
			t.Errorf("%s: %s is not in the VM's table", e.Package, e.Test)
		}
	}
	d, err := dir()
	if err != nil {
		t.Fatal(err)
	}
	asking := map[string]*regexp.Regexp{}
	for _, e := range append(exceptions, inVM...) {
		if asking[e.Package] == nil {
			asking[e.Package] = devicesOf(t, filepath.Dir(filepath.Dir(d)), e.Package)
		}
		if e.Test != "*" && !asking[e.Package].MatchString(e.Test) {
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

// devicesOf matches the tests of a package that ask for a device.
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
