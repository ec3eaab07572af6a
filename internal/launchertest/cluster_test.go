package launchertest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// cluster is the Slurm of testdata/slurm.sh: two nodes of this host.
type cluster struct {
	dir, root string
	life      io.Closer // its end ends the cluster
	script    *exec.Cmd
	port      net.Listener // held for as long as the cluster is there
	limited   string       // number of the job of limit
}

var theCluster struct {
	once sync.Once
	*cluster
	skip, failure string
}

// requireSlurm makes a test that cannot have a cluster fail.
const requireSlurm = "IBCONDUIT_REQUIRE_SLURM"

// slurm returns the cluster, which the first test starts. Without Slurm, or where this process is
// not root, the test is skipped; hack/setup.sh slurm unpacks it below build/.
func slurm(t *testing.T) *cluster {
	t.Helper()
	c := &theCluster
	c.once.Do(startCluster)
	switch {
	case c.failure != "":
		t.Fatal(c.failure)
	case c.skip != "" && os.Getenv(requireSlurm) == "1":
		t.Fatalf("%s=1, but %s", requireSlurm, c.skip)
	case c.skip != "":
		t.Skipf("%s; %s=1 makes this an error", c.skip, requireSlurm)
	}
	return c.cluster
}

func startCluster() {
	root := slurmRoot()
	switch {
	case root == "":
		theCluster.skip = "no Slurm here (hack/setup.sh slurm)"
		return
	case os.Getuid() != 0:
		theCluster.skip = "Slurm's daemons with nodes of one host need root"
		return
	case exec.Command("unshare", "-m", "true").Run() != nil:
		theCluster.skip = "this root may not have mount namespaces, which nodes of one host need"
		return
	}
	dir, err := os.MkdirTemp("", "slurm")
	if err != nil {
		theCluster.failure = err.Error()
		return
	}
	port, n, err := lockPorts()
	if err != nil {
		theCluster.failure = err.Error()
		return
	}
	c := &cluster{dir: dir, root: root, port: port, script: exec.Command("sh", "testdata/slurm.sh", dir, root, fmt.Sprint(n))}
	c.script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the tests
	c.script.Stderr = os.Stderr
	c.life, _ = c.script.StdinPipe()
	out, _ := c.script.StdoutPipe()
	if err := c.script.Start(); err != nil {
		theCluster.failure = err.Error()
		return
	}
	theCluster.cluster = c
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		c.life.Close()
		rest, _ := io.ReadAll(lines)
		theCluster.failure = fmt.Sprintf("the cluster does not come up: %s%s (%v)", line, rest, err)
	} else if err := c.limit(); err != nil {
		theCluster.failure = err.Error()
	}
}

// slurmRoot is where Slurm's packages are unpacked, / where they are installed, or "".
func slurmRoot() string {
	below, _ := filepath.Abs("../../build/slurm/root")
	for _, root := range []string{below, "/"} {
		for _, ctld := range []string{"usr/sbin/slurmctld-wlm", "usr/sbin/slurmctld"} {
			if _, err := os.Stat(filepath.Join(root, ctld)); err != nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, "usr/sbin/munged")); err == nil {
				return root
			}
		}
	}
	return ""
}

// lockPorts finds a hundred ports for one cluster: holding the last of them keeps other clusters
// away.
func lockPorts() (net.Listener, int, error) {
	var err error
	for n := 16800; n < 20000; n += 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n+99)); err == nil {
			return l, n, nil
		}
	}
	return nil, 0, err
}

func stopCluster() {
	if c := theCluster.cluster; c != nil {
		c.life.Close()
		_ = c.script.Wait()
		c.port.Close()
		os.RemoveAll(c.dir)
	}
	if built != "" {
		os.RemoveAll(built)
	}
}

// env is the environment of a user of the cluster.
func (c *cluster) env(more ...string) []string {
	lib, _ := filepath.Glob(filepath.Join(c.root, "usr/lib/*/slurm*/libslurmfull.so"))
	var dirs []string
	for _, l := range lib {
		dirs = append(dirs, filepath.Dir(l), filepath.Dir(filepath.Dir(l)))
	}
	return append([]string{"SLURM_CONF=" + c.dir + "/slurm.conf", "LD_LIBRARY_PATH=" + strings.Join(dirs, ":"),
		"PATH=" + c.dir + "/bin:" + c.root + "/usr/bin:" + os.Getenv("PATH")}, more...)
}

// srun runs ranks in a job of their own, with a role unless there is none. -O: a step that has just
// ended keeps its processors for a while.
func (c *cluster) srun(t *testing.T, role string, command ...string) result {
	t.Helper()
	return run(t, c.env(roleVar+"="+role), append([]string{filepath.Join(c.root, "usr/bin/srun"), "-O"}, command...)...)
}
