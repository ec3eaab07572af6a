//go:build linux

package softroce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce"
)

// The test binary is also what runs in the guests.
func TestMain(m *testing.M) {
	switch os.Getenv("SOFTROCE_HELPER") {
	case "":
		os.Exit(m.Run())
	case "echo":
		helperEcho()
	case "ask":
		helperAsk()
	case "mlock":
		helperMlock()
	}
	os.Exit(9)
}

const echoPort = ":7007"

// helperEcho answers datagrams until the guest ends.
func helperEcho() {
	c, err := net.ListenPacket("udp", echoPort)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("listening")
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			os.Exit(1)
		}
		_, _ = c.WriteTo(buf[:n], from) // datagrams may be lost
	}
}

// helperAsk sends N datagrams in turn, each awaited for a moment, and prints how many came back.
func helperAsk() {
	n, _ := strconv.Atoi(os.Args[2])
	c, err := net.Dial("udp", os.Args[1]+echoPort)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buf, got := make([]byte, 2048), 0
	for i := range n {
		_, _ = fmt.Fprint(c, i)
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Read(buf); err == nil {
			got++
		}
	}
	fmt.Println(got)
	os.Exit(0)
}

// helperMlock locks 1 MiB.
func helperMlock() {
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Mlock(b)
	}
	fmt.Println(err)
	os.Exit(0)
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func helper(t *testing.T, h *softroce.Host, name string, args ...string) *softroce.Cmd {
	cmd := h.Command(append([]string{self(t)}, args...)...)
	cmd.Env = append(h.Environ(), "SOFTROCE_HELPER="+name)
	return cmd
}

func start(t *testing.T, cfg softroce.Config) *softroce.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a VM; not with -short")
	}
	c, err := softroce.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// guestTime bounds what a guest does: emulated, beside other programs, a script of some seconds
// takes most of a minute.
const guestTime = 8 * time.Minute

func output(t *testing.T, h *softroce.Host, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guestTime)
	defer cancel()
	out, err := h.Command(argv...).CombinedOutput(ctx)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return out
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// One boot serves all facts about a single guest.
func TestGuest(t *testing.T) {
	rw := t.TempDir()
	c := start(t, softroce.Config{ReadWrite: []string{rw}, HugePages: 8, SwapMB: 64})
	h := c.Host(0)
	ctx, cancel := context.WithTimeout(t.Context(), guestTime)
	defer cancel()

	t.Run("has an RDMA device that verbs programs see", func(t *testing.T) {
		if out := output(t, h, "ibv_devinfo", "-d", "rxe0"); !strings.Contains(out, "PORT_ACTIVE") || !strings.Contains(out, "active_mtu:\t\t4096") {
			t.Fatal(out)
		}
	})
	t.Run("moves data through it", func(t *testing.T) {
		const pingpong = "ibv_rc_pingpong -d rxe0 -g 1 -n 50 >/dev/null & " +
			"for i in $(seq 100); do ibv_rc_pingpong -d rxe0 -g 1 -n 50 10.0.0.1 && break; sleep 0.3; done; wait $!"
		if out := output(t, h, "sh", "-c", pingpong); !strings.Contains(out, "50 iters") {
			t.Fatal(out)
		}
	})
	t.Run("passes on exit codes, signals and failures to start", func(t *testing.T) {
		for _, c := range []struct {
			argv []string
			want int
		}{{[]string{"sh", "-c", "exit 42"}, 42}, {[]string{"sh", "-c", "kill -9 $$"}, 137}, {[]string{"no-such-program"}, 127}, {[]string{"/etc/hostname"}, 126}} {
			err := h.Command(c.argv...).Run(ctx)
			var exit *softroce.ExitError
			if !errors.As(err, &exit) || exit.Code != c.want {
				t.Errorf("%q: %v, want code %d", c.argv, err, c.want)
			}
		}
	})
	t.Run("keeps stdout and stderr apart and passes stdin", func(t *testing.T) {
		var out, errs bytes.Buffer
		cmd := h.Command("sh", "-c", "cat; echo bad >&2")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("good"), &out, &errs
		if err := cmd.Run(ctx); err != nil || out.String() != "good" || errs.String() != "bad\n" {
			t.Fatal(err, out.String(), errs.String())
		}
	})
	t.Run("carries more than the window in both directions", func(t *testing.T) {
		in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		var out bytes.Buffer
		cmd := h.Command("cat")
		cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &out
		if err := cmd.Run(ctx); err != nil || !bytes.Equal(out.Bytes(), in) {
			t.Fatal(err, out.Len(), "of", len(in))
		}
	})
	t.Run("streams output while the command runs", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		cmd := h.Command("sh", "-c", "echo first; exec sleep 600")
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		if _, err := r.Read(b); err != nil || string(b) != "first\n" {
			t.Fatal(err, string(b))
		}
		if err := cmd.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		var exit *softroce.ExitError
		if err := cmd.Wait(ctx); !errors.As(err, &exit) || exit.Signal != syscall.SIGTERM {
			t.Fatal(err)
		}
	})
	t.Run("writes nothing to the host but below a directory given for it", func(t *testing.T) {
		outside := filepath.Join(t.TempDir(), "file")
		output(t, h, "sh", "-c", "mkdir -p "+filepath.Dir(outside)+"; echo x > "+outside+"; echo y > "+rw+"/file")
		if _, err := os.Stat(outside); err == nil {
			t.Error("a write outside reached the host")
		}
		if b, err := os.ReadFile(filepath.Join(rw, "file")); err != nil || string(b) != "y\n" {
			t.Error(err, string(b))
		}
		if err := h.Fetch(ctx, outside, "/no/such/file"); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(outside); err != nil || string(b) != "x\n" {
			t.Error("not fetched:", err, string(b))
		}
	})
	t.Run("limits locked memory when asked, root or not", func(t *testing.T) {
		for _, c := range []struct {
			limit int64
			want  string
		}{{0, "<nil>"}, {64 << 10, syscall.ENOMEM.Error()}} {
			cmd := helper(t, h, "mlock")
			cmd.Memlock = c.limit
			if out, err := cmd.CombinedOutput(ctx); err != nil || strings.TrimSpace(out) != c.want {
				t.Errorf("limit %d: %v %q, want %q", c.limit, err, out, c.want)
			}
		}
	})
	t.Run("has huge pages, shared memory and terminals", func(t *testing.T) {
		out := output(t, h, "sh", "-c", "cat /proc/sys/vm/nr_hugepages; grep -c -e ' /dev/hugepages hugetlbfs' -e ' /dev/shm tmpfs' -e ' /dev/pts devpts' -e ' /sys/fs/cgroup cgroup2' /proc/mounts")
		if strings.Join(strings.Fields(out), " ") != "8 4" {
			t.Fatal(out)
		}
	})
	t.Run("has swap space, and memory groups", func(t *testing.T) {
		out := output(t, h, "sh", "-c", "grep SwapTotal /proc/meminfo; grep -o memory /sys/fs/cgroup/cgroup.controllers")
		if strings.Join(strings.Fields(out), " ") != "SwapTotal: 65532 kB memory" {
			t.Fatal(out)
		}
	})
	t.Run("reaps orphans", func(t *testing.T) {
		out := output(t, h, "sh", "-c", `pid=$(sh -c 'sleep 0.2 >/dev/null & echo $!')
			for i in $(seq 200); do test -e /proc/$pid || exec echo reaped; sleep 0.1; done; cat /proc/$pid/stat`)
		if out != "reaped\n" {
			t.Fatal(out)
		}
	})
	t.Run("setup.sh makes a device and teardown.sh removes that one only", func(t *testing.T) {
		const script = `set -e
rdma link delete rxe0; ! ./status >/dev/null
./setup.sh veth0 >/dev/null; ./setup.sh veth0 >/dev/null; ./status >/dev/null
test "$(cat /run/ibconduit-softroce)" = "device rxe0"
rdma link add mine type rxe netdev veth1
./teardown.sh; ./teardown.sh
ls /sys/class/infiniband`
		if out := output(t, h, "sh", "-c", script); !strings.HasPrefix(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:], "mine") {
			t.Fatal(out)
		}
	})
	t.Run("has all its processors", func(t *testing.T) {
		if out, want := strings.TrimSpace(output(t, h, "nproc")), strconv.Itoa(min(2, runtime.NumCPU())); out != want {
			t.Fatalf("%s processors, want %s", out, want)
		}
	})
	t.Run("says what the console said when its kernel panics", func(t *testing.T) {
		err := h.Command("sh", "-c", "echo c > /proc/sysrq-trigger").Run(ctx)
		if !errors.Is(err, softroce.ErrGone) || !strings.Contains(err.Error(), "Kernel panic") {
			t.Fatal(err)
		}
	})
}

func TestGuestWithoutRDMAHasNoDevice(t *testing.T) {
	c := start(t, softroce.Config{NoRDMA: true})
	out := output(t, c.Host(0), "sh", "-c", "ls /sys/class/infiniband /dev/infiniband 2>&1; ibv_devices 2>&1; true")
	if strings.Contains(out, "rxe") {
		t.Fatal(out)
	}
	pid := c.Host(0).PID()
	if c.Close(); exists(pid) {
		t.Fatal("qemu runs after Close")
	}
}

func TestCluster(t *testing.T) {
	c := start(t, softroce.Config{Hosts: 2})
	ctx, cancel := context.WithTimeout(t.Context(), guestTime)
	defer cancel()

	t.Run("RDMA crosses the network", func(t *testing.T) {
		server := c.Host(0).Command("ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "20")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		out := output(t, c.Host(1), "sh", "-c", "for i in $(seq 100); do ibv_rc_pingpong -d rxe0 -g 1 -n 20 vm0 && exit 0; sleep 0.3; done; exit 1")
		if !strings.Contains(out, "20 iters") {
			t.Error(out)
		}
		if err := server.Wait(ctx); err != nil {
			t.Error(err)
		}
	})

	echo := answering(t, c.Host(1))
	ask := func(n int) int { return answers(ctx, t, c.Host(0), "vm1", n) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	t.Run("a cut stops traffic and a restored link carries it again", func(t *testing.T) {
		if got := ask(10); got == 0 {
			t.Fatal("nothing came back before the cut")
		}
		must(c.Cut(0, 1))
		before := c.Link(0, 1)
		if got := ask(4); got != 0 {
			t.Errorf("%d answers through a cut", got)
		}
		if l := c.Link(0, 1); l.Sent != before.Sent || l.Lost == before.Lost {
			t.Errorf("counters %+v, before %+v", l, before)
		}
		must(c.Restore(0, 1))
		if got := ask(10); got == 0 {
			t.Error("nothing came back after the cut was restored")
		}
	})
	t.Run("a lossy link drops its share and counts it", func(t *testing.T) {
		must(c.Drop(0, 1, 0.5))
		before := c.Link(0, 1)
		got := ask(60)
		l := c.Link(0, 1)
		must(c.Restore(0, 1))
		dropped, sent := l.Lost-before.Lost, l.Sent-before.Sent
		// 60 draws of one half: outside 10 to 50 once in 10^7 runs.
		if dropped < 10 || sent < 10 || got == 0 || got > 55 {
			t.Errorf("%d dropped, %d sent, %d of 60 answered", dropped, sent, got)
		}
	})
	t.Run("a killed guest is gone, the other lives", func(t *testing.T) {
		pid := c.Host(1).PID()
		must(c.Kill(1))
		if exists(pid) || c.Host(1).Alive() {
			t.Error("qemu runs on")
		}
		if err := echo.Wait(ctx); !errors.Is(err, softroce.ErrKilled) || !errors.Is(err, softroce.ErrGone) {
			t.Error(err)
		}
		if out := output(t, c.Host(0), "hostname"); out != "vm0\n" {
			t.Error(out)
		}
	})
}

// answering has a guest answer datagrams.
func answering(t *testing.T, h *softroce.Host) *softroce.Cmd {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	echo := helper(t, h, "echo")
	echo.Stdout = w
	if err := echo.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	return echo
}

// answers sends n datagrams to a guest that answers, and returns how many came back.
func answers(ctx context.Context, t *testing.T, from *softroce.Host, to string, n int) int {
	t.Helper()
	out, err := helper(t, from, "ask", to, strconv.Itoa(n)).CombinedOutput(ctx)
	got, convErr := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || convErr != nil {
		t.Fatal(err, out)
	}
	return got
}

func TestACutLinkLeavesTheOthers(t *testing.T) {
	c := start(t, softroce.Config{Hosts: 3, MemoryMB: 512})
	ctx, cancel := context.WithTimeout(t.Context(), guestTime)
	defer cancel()
	for i := range c.Hosts() {
		answering(t, c.Host(i))
	}
	reach := func() (text string) {
		for i := range c.Hosts() {
			for j := range c.Hosts() {
				if i != j && answers(ctx, t, c.Host(i), fmt.Sprintf("vm%d", j), 5) > 0 {
					text += fmt.Sprintf("%d>%d ", i, j)
				}
			}
		}
		return text
	}
	for _, s := range []struct {
		name, want string
		change     func() error
	}{
		{"whole", "0>1 0>2 1>0 1>2 2>0 2>1 ", func() error { return nil }},
		{"0-1 cut", "0>2 1>2 2>0 2>1 ", func() error { return c.Cut(0, 1) }},
		{"0-1 restored, 1-2 cut", "0>1 0>2 1>0 2>0 ", func() error { return errors.Join(c.Restore(0, 1), c.Cut(2, 1)) }},
		{"1-2 restored, 0-2 too slow", "0>1 1>0 1>2 2>1 ", func() error { return errors.Join(c.Restore(1, 2), c.Delay(0, 2, time.Second)) }},
	} {
		if err := s.change(); err != nil {
			t.Fatal(err)
		}
		if got := reach(); got != s.want {
			t.Errorf("%s: %s, want %s", s.name, got, s.want)
		}
	}
	server := c.Host(2).Command("ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "20")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	out := output(t, c.Host(1), "sh", "-c", "for i in $(seq 100); do ibv_rc_pingpong -d rxe0 -g 1 -n 20 vm2 && exit 0; sleep 0.3; done; exit 1")
	if err := server.Wait(ctx); err != nil || !strings.Contains(out, "20 iters") {
		t.Error(err, out)
	}
}

func TestConfigOutOfRangeIsRefused(t *testing.T) {
	for _, cfg := range []softroce.Config{{Hosts: -1}, {Hosts: softroce.MaxHosts + 1}, {CPUs: 10000}, {MemoryMB: 1}, {SwapMB: -1}, {Accel: "warp"}, {ReadWrite: []string{"/"}}, {ReadWrite: []string{"/no/such"}}} {
		if c, err := softroce.Start(t.Context(), cfg); err == nil {
			c.Close()
			t.Errorf("%+v was accepted", cfg)
		}
	}
}
