//go:build linux

package softroce_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/hack/softroce"
)

// vm returns the launcher as a command.
func vm(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a VM; not with -short")
	}
	path, err := filepath.Abs("vm")
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), path, args...)
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// children returns the qemu processes that descend from pid.
func children(pid int) (found []int) {
	list, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/children")
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		list = append(append(list, ' '), b...)
	}
	for _, f := range strings.Fields(string(list)) {
		child, _ := strconv.Atoi(f)
		comm, _ := os.ReadFile("/proc/" + f + "/comm")
		if strings.HasPrefix(string(comm), "qemu") {
			found = append(found, child)
		}
		found = append(found, children(child)...)
	}
	return found
}

// eventually waits for what other processes do, as long as the test has time: another process may
// hold the machine's one VM for minutes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end, bounded := t.Deadline()
	if !bounded {
		end = time.Now().Add(10 * time.Minute)
	}
	end = end.Add(-10 * time.Second) // for a report of its own, before the one of package testing
	for !ok() {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestVMReturnsTheCommandsCodeAndOutput(t *testing.T) {
	if !testing.Short() { // what it says while it builds is not the point here
		prepare, _, stderr := vm(t, "prepare")
		if err := prepare.Run(); err != nil {
			t.Fatal(err, stderr)
		}
	}
	cmd, stdout, stderr := vm(t, "run", "-e", "COLOUR=green", "--", "sh", "-c", "echo $COLOUR; echo $PWD; echo bad >&2; exit 42")
	cmd.Dir = t.TempDir()
	err := cmd.Run()
	// That it waits for another VM, or that a boot hung, depends on the machine, and is all it may
	// say.
	said := softroce.Reports.ReplaceAllString(stderr.String(), "")
	if exitCode(err) != 42 || stdout.String() != "green\n"+cmd.Dir+"\n" || said != "bad\n" {
		t.Fatal(err, stdout, stderr)
	}
}

func TestVMEndsItsGuestAtTheTimeLimit(t *testing.T) {
	cmd, _, stderr := vm(t, "run", "-timeout", "1s", "--", "sleep", "600")
	if err := cmd.Run(); exitCode(err) != 124 || !strings.Contains(stderr.String(), "time limit") {
		t.Fatal(err, stderr)
	}
}

func TestVMLeavesNoGuestBehind(t *testing.T) {
	for _, c := range []struct {
		sig  syscall.Signal
		code int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}, {syscall.SIGKILL, -1}} {
		cmd, _, stderr := vm(t, "run", "-timeout", "2m", "--", "sh", "-c", "echo up; exec sleep 600")
		cmd.Stdout = nil
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(make([]byte, 8)); err != nil {
			t.Fatal(err, stderr)
		}
		qemu := children(cmd.Process.Pid)
		if len(qemu) == 0 {
			t.Fatal("output without a guest")
		}
		if err := cmd.Process.Signal(c.sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); exitCode(err) != c.code {
			t.Errorf("%v: %v %s", c.sig, err, stderr)
		}
		eventually(t, "qemu ends", func() bool { return !exists(qemu[0]) })
	}
}

func TestVMEndsWhenItsParentDies(t *testing.T) {
	cmd, _, _ := vm(t)
	path := cmd.Path
	parent := exec.CommandContext(t.Context(), "sh", "-c", `"$1" run -timeout 2m -- sleep 600 & wait`, "sh", path)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var qemu []int
	eventually(t, "a guest starts", func() bool { qemu = children(parent.Process.Pid); return len(qemu) > 0 })
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	eventually(t, "qemu ends", func() bool { return !exists(qemu[0]) })
}

func TestGoTestExecBringsProfilesBack(t *testing.T) {
	tool, _, _ := vm(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.test/guest\n\ngo 1.24\n",
		"a.go":   "package guest\n\nfunc F() int { return 1 }\n",
		"a_test.go": `package guest

import (
	"os"
	"testing"
)

func TestF(t *testing.T) {
	name, _ := os.Hostname()
	if _, err := os.Stat("/sys/class/infiniband/rxe0"); err != nil || F() != 1 || name != "vm0" || os.Getenv("IBCONDUIT_REQUIRE_RDMA") != "1" {
		t.Fatal(err, name)
	}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-exec", tool.Path, "-coverprofile=c.out", "-cpuprofile=cpu.out", ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "coverage: 100.0%") {
		t.Fatal(err, string(out))
	}
	for _, name := range []string{"c.out", "cpu.out"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecondPreparationDoesNothing(t *testing.T) {
	for i := range 2 {
		cmd, _, stderr := vm(t, "prepare")
		if err := cmd.Run(); err != nil || i == 1 && stderr.Len() > 0 {
			t.Fatal(err, stderr)
		}
	}
}
