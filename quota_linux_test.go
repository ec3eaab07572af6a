package conduit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/spin"
)

const quotaVar = "IBCONDUIT_TEST_QUOTA"

// A quota of processors makes ranks give way as if there were no more: files that say so are put in
// the place of those of this process's control group.
func TestAQuotaCountsAsProcessors(t *testing.T) {
	if want := os.Getenv(quotaVar); want != "" {
		inQuota(t, want)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unshare := []string{"unshare", "-m"}
	if os.Geteuid() != 0 {
		unshare = []string{"unshare", "-rm"}
	}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no mount namespace: %v: %s", err, out)
	}
	for version, c := range map[string]struct{ groups, mount, file, text string }{
		"v1": {"4:cpu,cpuacct:/a\n", "cgroup cgroup rw,cpu,cpuacct", "cpu.cfs_quota_us", "150000\n"},
		"v2": {"0::/a\n", "cgroup2 cgroup2 rw", "cpu.max", "150000 100000\n"},
	} {
		dir := t.TempDir()
		group := filepath.Join(dir, "cg/a")
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			dir + "/cgroup": c.groups, dir + "/mountinfo": fmt.Sprintf("30 20 0:26 / %s/cg rw - %s\n", dir, c.mount),
			group + "/" + c.file: c.text, group + "/cpu.cfs_period_us": "100000\n",
		} {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(unshare[0], append(unshare[1:], "sh", "-c",
			`mount --bind "$0/cgroup" /proc/$$/cgroup && mount --bind "$0/mountinfo" /proc/$$/mountinfo && exec "$@"`, dir,
			self, "-test.run", "^"+t.Name()+"$", "-test.v")...)
		cmd.Env = append(os.Environ(), quotaVar+"=1.5")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%s: %v\n%s", version, err, out)
		}
	}
}

func inQuota(t *testing.T, want string) {
	if q := fmt.Sprint(spin.Quota()); q != want {
		t.Errorf("quota %s, want %s", q, want)
	}
	for _, ranks := range []int{1, 2} {
		err := RunLocalConfig(t.Context(), ranks, Config{Fabric: FabricSHM, SegmentSize: 1 << 16}, func(j *Job) error {
			if crowded := ranks == 2; j.sharing.Crowded() != crowded {
				return fmt.Errorf("%d ranks with a quota of %s: crowded %t, want %t", ranks, want, j.sharing.Crowded(), crowded)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
