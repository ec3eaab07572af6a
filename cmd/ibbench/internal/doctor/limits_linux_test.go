package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/internal/sysinfo"
)

const envReport = "IBCONDUIT_TEST_DOCTOR_REPORT"

// The test binary is also a doctor that writes its report to a file, for a test that starts it
// under other limits.
func TestMain(m *testing.M) {
	report := os.Getenv(envReport)
	if report == "" {
		os.Exit(m.Run())
	}
	if err := reportTo(report); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func reportTo(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, runErr := Run(context.Background(), f, Options{Format: "json"})
	return errors.Join(runErr, f.Close())
}

func TestAMemlockOf64KiBIsReported(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := []string{"prlimit", "--memlock=65536:65536"}
	if sysinfo.Host().Capabilities().Has(capIPCLock) {
		// The bounding set takes the capability from root at exec; SYS_RESOURCE could raise the
		// limit.
		argv = append(argv, "setpriv", "--bounding-set=-ipc_lock,-sys_resource", "--inh-caps=-ipc_lock,-sys_resource")
	}
	argv = append(argv, exe)
	report := t.TempDir() + "/report.json"
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), envReport+"="+report)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	c, _ := line(r, "memlock")
	if c.Status != Warn || !strings.Contains(c.Detail, "RLIMIT_MEMLOCK is 64 KiB (hard limit 64 KiB)") || !strings.Contains(c.Remedy, "memlock") && !strings.Contains(c.Remedy, "MEMLOCK") {
		t.Errorf("%+v", c)
	}
	if r.Fabric != "shm" || r.Code != 0 {
		t.Errorf("fabric %q, code %d; want shm, 0", r.Fabric, r.Code)
	}
}

func TestADeviceIsExaminedAndMemoryRegisteredOnIt(t *testing.T) {
	dev := rdmatest.Device(t)
	r, text, code := run(t, Options{Format: "json", Fabric: "ibv", Device: dev})
	if code != 0 || r.Fabric != "ibv" {
		t.Fatalf("code %d:\n%s", code, text)
	}
	for name, part := range map[string]string{
		"device": dev, "port": "active", "gid": "chosen", "mtu": " of ", "memlock": "registered ",
	} {
		if c, _ := line(r, name); c.Status != OK || !strings.Contains(c.Detail, part) {
			t.Errorf("%s: want ok with %q: %+v", name, part, c)
		}
	}
	if !strings.HasPrefix(dev, "rxe") {
		return
	}
	if c, _ := line(r, "device"); !strings.Contains(c.Detail, "software") {
		t.Errorf("Soft-RoCE is not labelled as software: %+v", c)
	}
	if c, _ := line(r, "gid"); !strings.Contains(c.Detail, "RoCEv2: chosen: RoCEv2 over IPv4") {
		t.Errorf("the GID is not the one over IPv4: %+v", c)
	}
}
