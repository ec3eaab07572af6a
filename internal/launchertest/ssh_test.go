package launchertest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
)

// sshHosts are hosts a and b, which are this one: each has an sshd on loopback (testdata/sshd.sh).
type sshHosts struct {
	t      *testing.T
	dir    string
	ssh    string // command, with its configuration
	config string // of ssh
}

// requireSSH makes a test that cannot have an sshd fail.
const requireSSH = "IBCONDUIT_REQUIRE_SSH"

// sshRoot is where OpenSSH is unpacked, / where it is installed, or "".
func sshRoot() string {
	below, _ := filepath.Abs("../../build/ssh/root")
	for _, root := range []string{below, "/"} {
		if _, err := os.Stat(filepath.Join(root, "usr/sbin/sshd")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "usr/bin/ssh")); err == nil {
			return root
		}
	}
	return ""
}

// withSSH starts the hosts. ibrun is let in as the user who runs the test, by a key made for it.
func withSSH(t *testing.T) *sshHosts {
	t.Helper()
	lacking := func(format string, args ...any) {
		t.Helper()
		what := fmt.Sprintf(format, args...)
		if os.Getenv(requireSSH) == "1" {
			t.Fatalf("%s=1, but %s", requireSSH, what)
		}
		t.Skipf("%s; %s=1 makes this an error", what, requireSSH)
	}
	root := sshRoot()
	if root == "" {
		lacking("no sshd here (hack/setup.sh ssh)")
	}
	if os.Getuid() == 0 {
		if err := exec.Command("unshare", "-u", "-m", "true").Run(); err != nil {
			lacking("an sshd of root needs a user and a directory, and this root may not have mount namespaces for them: %v", err)
		}
	}
	h := &sshHosts{t: t, dir: t.TempDir()}
	libs, _ := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu*"))
	if root == "/" {
		libs = nil
	}
	h.config = filepath.Join(h.dir, "config")
	h.ssh = fmt.Sprintf("env LD_LIBRARY_PATH=%s %s/usr/bin/ssh -F %s", strings.Join(libs, ":"), strings.TrimSuffix(root, "/"), h.config)
	for _, key := range []string{"host", "user", "stranger"} {
		cmd := exec.Command(filepath.Join(root, "usr/bin/ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(h.dir, key))
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	ports := [2]string{}
	for i := range ports {
		_, ports[i], _ = net.SplitHostPort(proctest.HeldAddr(t))
	}
	h.configure(root, ports[:])
	script := exec.Command("sh", "testdata/sshd.sh", h.dir, root, strings.Join(libs, ":"), ports[0], ports[1])
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the tests
	script.Stderr = os.Stderr
	life, err := script.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := script.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = life.Close()
		_ = script.Wait()
		for _, name := range []string{"a", "b"} {
			if log, err := os.ReadFile(filepath.Join(h.dir, "log."+name)); err == nil && t.Failed() {
				t.Logf("sshd of %s:\n%s", name, log)
			}
		}
	})
	for _, port := range ports {
		h.until("sshd at port "+port, func() bool {
			c, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				return false
			}
			defer c.Close()
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			line, _ := bufio.NewReader(c).ReadString('\n')
			return strings.HasPrefix(line, "SSH-2.0-")
		})
	}
	return h
}

// configure writes the configurations of both sides.
func (h *sshHosts) configure(root string, ports []string) {
	h.t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(h.dir, name))
		if err != nil {
			h.t.Fatal(err)
		}
		return string(b)
	}
	server := "ListenAddress 127.0.0.1\nHostKey DIR/host\nAuthorizedKeysFile DIR/user.pub\nPidFile none\nUsePAM no\nStrictModes no\n" +
		"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nUseDNS no\nPrintMotd no\nPrintLastLog no\n" +
		"LoginGraceTime 120\nMaxStartups 100\n"
	for option, name := range map[string]string{"SshdSessionPath": "sshd-session", "SshdAuthPath": "sshd-auth"} { // from 9.8, 10.0
		if path := filepath.Join(root, "usr/lib/openssh", name); exists(path) {
			server += option + " " + path + "\n"
		}
	}
	client := "Host *\n  HostName 127.0.0.1\n  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile DIR/known\n" +
		"  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
	known := ""
	for _, x := range []struct{ name, port, alias, key string }{
		{"a", ports[0], "a", "user"}, {"b", ports[1], "b", "user"}, {"unknown", ports[0], "unknown", "user"},
		{"stranger", ports[0], "a", "stranger"}, {"nobody", "1", "nobody", "user"},
	} {
		client += fmt.Sprintf("Host %s\n  Port %s\n  HostKeyAlias %s\n  IdentityFile DIR/%s\n", x.name, x.port, x.alias, x.key)
		if x.name == x.alias && x.name != "unknown" {
			known += x.name + " " + read("host.pub")
		}
	}
	for name, text := range map[string]string{"sshd_config": server, "config": client, "known": known} {
		h.write(name, strings.ReplaceAll(text, "DIR", h.dir))
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (h *sshHosts) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// first puts lines before ssh's configuration, where they win.
func (h *sshHosts) first(lines string) {
	h.t.Helper()
	text, err := os.ReadFile(h.config)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write("config", strings.ReplaceAll(lines, "DIR", h.dir)+string(text))
}

func (h *sshHosts) until(what string, is func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("no %s within 20 s", what)
		}
	}
}

func (h *sshHosts) env(role string) []string {
	return []string{"IBCONDUIT_SSH=" + h.ssh, roleVar + "=" + role}
}

// ibrun runs ibrun to its end.
func (h *sshHosts) ibrun(role string, args ...string) result {
	h.t.Helper()
	return run(h.t, h.env(role), append([]string{program(h.t, "ibrun")}, args...)...)
}

// begin starts an ibrun whose ranks, this binary in a role, say that they wait, and returns their
// processes.
func (h *sshHosts) begin(role string, ranks int, args ...string) (p *process, pids []int) {
	h.t.Helper()
	files := filepath.Join(h.dir, "output")
	p = start(h.t, h.env(role), append(append([]string{program(h.t, "ibrun"), "--output", files}, args...), self(h.t))...)
	for r := range ranks {
		h.until(fmt.Sprintf("rank %d that waits", r), func() bool {
			text := h.wrote(r)
			if i := strings.Index(text, "waits, process "); i >= 0 && strings.HasSuffix(text, "\n") {
				pid, err := strconv.Atoi(strings.TrimSpace(text[i+len("waits, process "):]))
				pids = append(pids, pid)
				return err == nil
			}
			return false
		})
	}
	return p, pids
}

// wrote is what a rank of begin has written.
func (h *sshHosts) wrote(rank int) string {
	text, _ := os.ReadFile(filepath.Join(h.dir, "output", fmt.Sprintf("rank-%d.out", rank)))
	return string(text)
}

// ended waits for an ibrun's end, and for that of its ranks.
func (h *sshHosts) ended(p *process, pids []int, code int, words ...string) {
	h.t.Helper()
	select {
	case <-p.end:
	case <-time.After(30 * time.Second):
		h.t.Fatalf("it does not end: %v", p)
	}
	proctest.Gone(h.t, pids...)
	result{out: p.out.String(), code: p.cmd.ProcessState.ExitCode()}.want(h.t, code, words...)
	if h.t.Failed() {
		h.t.Logf("ibrun wrote:\n%s", p.out.String())
	}
}

// connections are the processes of sshd that serve somebody on a host.
func (h *sshHosts) connections(host string) (pids []int) {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, "pid."+host))
	if err != nil {
		h.t.Fatal(err)
	}
	listener, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		h.t.Fatal(err)
	}
	for below := []int{listener}; len(below) > 0; below = below[1:] {
		for _, c := range childrenOf(below[0]) {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c)); strings.HasPrefix(string(name), "sshd") {
				below, pids = append(below, c), append(pids, c)
			}
		}
	}
	if len(pids) == 0 {
		h.t.Errorf("nobody is connected with %s", host)
	}
	return pids
}

// childrenOf reads /proc/PID/stat (proc(5)): pid (comm) state ppid ...
func childrenOf(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestIbrunStartsAJobThroughSSH(t *testing.T) {
	t.Parallel()
	h := withSSH(t)
	here := 4
	if os.Getuid() == 0 { // hosts have names of their own
		here = 2
	}
	r := h.ibrun("exchange", "-H", "a:2,b:2", self(t))
	for rank := range 4 {
		r.want(t, 0, fmt.Sprintf("[%s %d] rank %d: of 4 by launch (IBCONDUIT_RANK), %d here", []string{"a", "b"}[rank/2], rank, rank, here))
	}
	if n := strings.Count(r.out, "b: This host is watched."); n > 1 || strings.Contains(r.out, "Welcome") {
		t.Errorf("what a login says: %s", r.out)
	}
	r = h.ibrun("", "-H", "a:2,b:2", helloProgram(t))
	for rank := range 4 {
		r.want(t, 0, greeting(rank, 4))
	}
	r = h.ibrun("", "-H", "a,b", "-n", "1", "sh", "-c", `echo "first $1"`, "sh", "it's", ":", "-n", "2", "printf", `%s|`, "a  b", `"$HOME" *`, "\\")
	r.want(t, 0, "[a 0] first it's", `[b 1] a  b|"$HOME" *|\|`, `[a 2] a  b|"$HOME" *|\|`)
}

func TestCodesThroughSSH(t *testing.T) {
	t.Parallel()
	h := withSSH(t)
	for _, x := range []struct {
		host, script string
		code         int
		words        string
	}{
		{"b", "test $IBCONDUIT_RANK = 0 || exit 3; sleep 60", 3, " on b): exit status 3; ending the other rank"},
		{"b", "test $IBCONDUIT_RANK = 0 || kill -USR1 $$; sleep 60", 138, " on b): signal: user defined signal 1"},
		{"b", "test $IBCONDUIT_RANK = 0 || kill -9 $$; sleep 60", 137, " on b): signal: killed"},
		{"nobody", "echo started", 255, "host nobody: env: exit status 255 (no connection, or it was lost; passwords are not asked for: " + h.ssh + " -o BatchMode=yes nobody must work)"},
		{"unknown", "echo started", 255, "unknown: Host key verification failed."},
		{"stranger", "echo started", 255, "Permission denied (publickey)."},
	} {
		r := h.ibrun("", "-H", "a,"+x.host, "--grace", "500ms", "sh", "-c", x.script)
		r.want(t, x.code, x.words)
		if strings.Contains(r.out, "started") {
			t.Error("a rank ran")
		}
	}
	h.ibrun("", "-H", "a,b", "nosuch").want(t, 127, "ibrun: launch: host a: rank 0: nosuch: exec: ", "ibrun: launch: host b: rank 1: nosuch: exec: ")
	h.ibrun("barrier:2:3", "-H", "a:2,b:2", self(t)).want(t, 3, "[a 0] rank 0: Barrier: bootstrap: rank 2 (", "[b 3] rank 3: Barrier: bootstrap: rank 2 (")
}

func TestStandardInputThroughSSH(t *testing.T) {
	t.Parallel()
	h := withSSH(t)
	text := strings.Repeat("0123456789abcde\n", 1<<17) // more than all windows and pipes hold
	for _, reader := range []string{"cat", "true"} {
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		cmd := exec.CommandContext(ctx, "timeout", "-k", "2", "35", program(t, "ibrun"), "-H", "a,b", "--no-prefix", reader)
		cmd.Env = append(os.Environ(), h.env("")...)
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.Output()
		cancel()
		want := map[string]string{"cat": text, "true": ""}[reader]
		if err != nil || string(out) != want {
			t.Errorf("%s: %v: %d bytes of %d", reader, err, len(out), len(want))
		}
	}
}

func TestSignalsThroughSSH(t *testing.T) {
	t.Parallel()
	h := withSSH(t)
	p, pids := h.begin("wait", 3, "-H", "a,b:2", "--grace", "20s")
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	h.ended(p, pids, 0)
	for r := range 3 {
		if !strings.Contains(h.wrote(r), fmt.Sprintf("rank %d: terminated\n", r)) {
			t.Errorf("rank %d wrote %q", r, h.wrote(r))
		}
	}
	p, pids = h.begin("deaf", 3, "-H", "a,b:2", "--grace", "1s")
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	h.ended(p, pids, 130)
	p, pids = h.begin("deaf", 3, "-H", "a,b:2", "--grace", "1s")
	_ = p.cmd.Process.Kill()
	h.ended(p, pids, -1)
}

// Ranks that ignore SIGTERM end on both sides, whoever cuts the connection.
func TestTheEndOfAnSSHConnection(t *testing.T) {
	t.Parallel()
	h := withSSH(t)
	for side, cut := range map[string]func(ibrun int){
		"sshd": func(int) {
			for _, pid := range h.connections("b") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
		"ssh": func(ibrun int) {
			for _, pid := range clients(t, ibrun, "b") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
	} {
		t.Run(side, func(t *testing.T) {
			_ = os.RemoveAll(filepath.Join(h.dir, "output"))
			p, pids := h.begin("deaf", 3, "-H", "a,b:2", "--grace", "1s")
			cut(p.cmd.Process.Pid)
			h.ended(p, pids, 255)
			// Or ibrun did not know yet that these run.
			if text := p.out.String(); !strings.Contains(text, "ibrun: host b is lost, and ranks 1,2 with it: ") && !strings.Contains(text, "ibrun: launch: host b: ") {
				t.Errorf("%s", text)
			}
		})
	}
}

// clients are the processes of an ibrun that connect it with a host.
func clients(t *testing.T, ibrun int, host string) (pids []int) {
	t.Helper()
	for _, c := range childrenOf(ibrun) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c)); slices.Contains(strings.Split(string(line), "\x00"), host) {
			pids = append(pids, c)
		}
	}
	if len(pids) == 0 {
		t.Errorf("no connection of %d with %s", ibrun, host)
	}
	return pids
}

// What users write into their configuration for sessions at a terminal is none of a job's.
func TestConfigurationsOfSSH(t *testing.T) {
	t.Parallel()
	h := withSSH(t)
	before, _ := os.ReadFile(h.config)
	port := strings.Fields(string(before[bytes.Index(before, []byte("Port ")):]))[1]
	for name, lines := range map[string]string{
		"a terminal":          "RequestTTY force",
		"a port that is used": "LocalForward 127.0.0.1:" + port + " 127.0.0.1:1\nExitOnForwardFailure yes",
		"a command":           "RemoteCommand tmux attach\nRequestTTY yes",
		"shared connections":  "ControlMaster auto\nControlPath DIR/%n\nControlPersist 60",
	} {
		t.Run(name, func(t *testing.T) {
			h.write("config", string(before))
			h.first("Host *\n" + lines + "\n")
			for range 2 { // the second finds the connections of the first
				r := h.ibrun("exchange", "-H", "a,b", self(t))
				r.want(t, 0, "[a 0] rank 0: of 2 by launch", "[b 1] rank 1: of 2 by launch")
				if strings.Contains(r.out, "forward") || strings.Contains(r.out, "terminal") {
					t.Error("ssh complains")
				}
			}
			if name != "shared connections" {
				return
			}
			for _, host := range []string{"a", "b"} { // ibrun waits for none of them
				out, err := exec.Command("sh", "-c", h.ssh+" -O exit "+host).CombinedOutput()
				if err != nil {
					t.Errorf("%s is no longer connected: %v: %s", host, err, out)
				}
			}
		})
	}
}
