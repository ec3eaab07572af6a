// Package rdmatest finds the RDMA device that a test runs on.
package rdmatest

import (
	"os"
	"strings"
	"testing"
)

const (
	// EnvRequire makes a test that finds no device fail when it is "1", so that skipping cannot
	// hide rot.
	EnvRequire = "IBCONDUIT_REQUIRE_RDMA"
	// EnvDevice names the device to test on.
	EnvDevice = "IBCONDUIT_TEST_DEVICE"

	sysClass = "/sys/class/infiniband"
)

// Device returns the name of the device to test on: the one that IBCONDUIT_TEST_DEVICE names, else
// a software device (rxe, siw), else the first. Without a device the test is skipped, or fails when
// IBCONDUIT_REQUIRE_RDMA is 1. In a build without verbs it is skipped.
func Device(t testing.TB) string {
	t.Helper()
	if !verbsBuilt {
		t.Skip("this build has no verbs")
	}
	name, why := find(os.Getenv, names())
	if name != "" {
		return name
	}
	if os.Getenv(EnvRequire) == "1" {
		t.Fatalf("%s=1, but %s", EnvRequire, why)
	}
	t.Skip(why + "; hack/softverbs/run runs this test on a device in user space, hack/softroce/vm on Soft-RoCE")
	return ""
}

// Machine reports whether the machine is there for tests only, and they may change it: the VM.
func Machine() bool { return os.Getenv("IBCONDUIT_VM_INDEX") != "" }

// Lacks skips a test for what the device that Device returned cannot do. Soft-RoCE can do all that
// tests ask for: there it fails, so that an attribute that is read wrongly hides nothing. So can
// the device in user space, but for the tests of hack/softverbs/exceptions.txt, which make test
// leaves out.
func Lacks(t testing.TB, device, what string) {
	t.Helper()
	if strings.HasPrefix(device, "rxe") || strings.HasPrefix(device, "sv") && os.Getenv("IBCONDUIT_REQUIRE_SOFTVERBS") == "1" {
		t.Fatalf("%s has no %s, which tests ask for", device, what)
	}
	t.Skipf("%s has no %s", device, what)
}

func find(getenv func(string) string, devices []string) (name, why string) {
	if want := getenv(EnvDevice); want != "" {
		for _, d := range devices {
			if d == want {
				return d, ""
			}
		}
		return "", EnvDevice + " names " + want + ", which this host does not have"
	}
	for _, d := range devices {
		if strings.HasPrefix(d, "rxe") || strings.HasPrefix(d, "siw") {
			return d, ""
		}
	}
	if len(devices) > 0 {
		return devices[0], ""
	}
	return "", "this host has no RDMA device"
}

func names() []string {
	entries, err := os.ReadDir(sysClass)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
