package peer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing is wrapped when a tool is not installed.
var ErrMissing = errors.New("perftest is not installed: apt-get install perftest, or make setup")

// find returns the path of a tool.
func find(tool string, missing error) (string, error) {
	path, err := exec.LookPath(tool)
	if err != nil {
		return "", fmt.Errorf("%s: %w", tool, missing)
	}
	return path, nil
}

// Version is printed by the tool itself. Its exit code is 1 all the same.
func Version(ctx context.Context, path string) string {
	out, _ := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if v, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "Version:"); ok {
		return strings.TrimSpace(v)
	}
	return "(version unknown)"
}

// Pair is a server and a client of one tool on this machine, which meet over
// loopback and measure through the device.
type Pair struct {
	Path    string
	Args    []string      // of both
	Env     []string      // of both; empty: ours
	CPUs    [2][]int      // of server and client; empty: any
	Timeout time.Duration // for the whole of it
}

// startTime bounds how long the server may take until it listens; a cold page
// cache in an emulated machine makes that seconds.
const startTime = 20 * time.Second

// Text measures once, and returns the output of the client. Both processes have ended when it does.
func (p *Pair) Text(ctx context.Context) (string, error) {
	// The kernel kills a child when the thread that started it dies
	// (prctl(2), PR_SET_PDEATHSIG): this one lives until both have ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout,
		fmt.Errorf("not finished within %v, both processes were ended", p.Timeout))
	defer cancel()
	port, err := freePort()
	if err != nil {
		return "", err
	}
	args := append([]string{"-p", strconv.Itoa(port)}, p.Args...)
	server, err := p.start(ctx, args, p.CPUs[0])
	if err != nil {
		return "", err
	}
	defer server.end()
	if err := server.listens(ctx, port); err != nil {
		return "", err
	}
	client, err := p.start(ctx, append(args, "127.0.0.1"), p.CPUs[1])
	if err != nil {
		return "", err
	}
	defer client.end()
	if err := client.wait(ctx); err != nil {
		return "", err
	}
	if err := server.wait(ctx); err != nil {
		return "", err
	}
	return client.out.String(), nil
}

// process is one of the two.
type process struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	done     chan struct{}
	failed   error
}

func (p *Pair) start(ctx context.Context, args []string, cpus []int) (*process, error) {
	x := &process{cmd: exec.Command(p.Path, args...), done: make(chan struct{})}
	x.cmd.Stdout, x.cmd.Stderr, x.cmd.Env = &x.out, &x.err, p.Env
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	x.cmd.WaitDelay = time.Second
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := x.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Path, err)
	}
	go func() {
		x.failed = x.cmd.Wait()
		close(x.done)
	}()
	if len(cpus) > 0 {
		var set unix.CPUSet
		for _, c := range cpus {
			set.Set(c)
		}
		if err := unix.SchedSetaffinity(x.cmd.Process.Pid, &set); err != nil {
			x.end()
			return nil, fmt.Errorf("pin %s to processors %v: %w", p.Path, cpus, err)
		}
	}
	return x, nil
}

// end kills the process if it still runs, and waits for it.
func (x *process) end() {
	_ = x.cmd.Process.Kill()
	<-x.done
}

// wait returns when the process has ended.
func (x *process) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return x.explain(context.Cause(ctx))
	case <-x.done:
		if x.failed != nil {
			return x.explain(x.failed)
		}
		return nil
	}
}

// listens waits until the server does. Its socket is looked up, not dialled:
// it takes the first connection for its client.
func (x *process) listens(ctx context.Context, port int) error {
	limit := time.After(startTime)
	for {
		if listening("/proc/net/tcp", port) || listening("/proc/net/tcp6", port) {
			return nil
		}
		select {
		case <-ctx.Done():
			return x.explain(context.Cause(ctx))
		case <-limit:
			return x.explain(fmt.Errorf("did not listen on port %d within %v", port, startTime))
		case <-x.done:
			return x.explain(errors.Join(errors.New("ended before the client came"), x.failed))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// listening looks for a socket in state 0A, TCP_LISTEN (proc(5), and include/net/tcp_states.h).
func listening(table string, port int) bool {
	b, err := os.ReadFile(table)
	if err != nil {
		return false
	}
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// explain adds the command and what it said last.
func (x *process) explain(err error) error {
	said := ""
	select {
	case <-x.done:
		if t := cmp.Or(tail(x.err.String()), tail(x.out.String())); t != "" { // UCX's errors are on its standard output
			said = ": " + strings.Join(strings.Fields(t), " ")
		}
	default:
	}
	return fmt.Errorf("%s: %w%s", strings.Join(x.cmd.Args, " "), err, said)
}

// freePort finds a port on which no process listens. Another may take it before
// the server does; then the server says so and the round is repeated.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
