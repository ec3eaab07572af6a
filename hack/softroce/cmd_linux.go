package softroce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/ibconduit/conduit/hack/softroce/internal/remote"
	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// Cmd is a command for a guest, like os/exec.Cmd. Set the fields before Start or Run.
type Cmd struct {
	Argv   []string
	Env    []string // default: Environ of the guest
	Dir    string   // default: the caller's working directory
	Stdin  io.Reader
	Stdout io.Writer // gets output as it comes; nil discards
	Stderr io.Writer
	// Memlock is RLIMIT_MEMLOCK in bytes, with CAP_IPC_LOCK taken away; 0 is no limit.
	Memlock int64

	h    *Host
	call *remote.Call
}

// ExitError is a command that ended with a code other than 0. Code is 128+n after signal n.
type ExitError struct {
	Host   int
	Argv   []string
	Code   int
	Signal syscall.Signal // 0 unless a signal ended it
	Reason string         // why it could not be started, if so (codes 126 and 127)
}

func (e *ExitError) Error() string {
	switch {
	case e.Reason != "":
		return fmt.Sprintf("VM %d: %s", e.Host, e.Reason)
	case e.Signal != 0:
		return fmt.Sprintf("VM %d: %s: %v", e.Host, e.Argv[0], e.Signal)
	}
	return fmt.Sprintf("VM %d: %s: exit code %d", e.Host, e.Argv[0], e.Code)
}

// Command returns a command for the guest, not started.
func (h *Host) Command(argv ...string) *Cmd { return &Cmd{Argv: argv, h: h} }

// Environ returns the environment that commands get by default: of this process the user, the host
// and the paths, all of IBCONDUIT_ and Go's; the guest's place in the cluster; and
// IBCONDUIT_REQUIRE_RDMA=1, so that a test cannot skip.
func (h *Host) Environ() []string {
	env := []string{
		fmt.Sprintf("IBCONDUIT_VM_INDEX=%d", h.index), fmt.Sprintf("IBCONDUIT_VM_COUNT=%d", h.c.cfg.Hosts),
		"IBCONDUIT_REQUIRE_RDMA=1", "PATH=" + searchPath(os.Getenv("PATH")),
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH":
			env = append(env, kv)
		case "IBCONDUIT_VM_INDEX", "IBCONDUIT_VM_COUNT":
		default:
			if strings.HasPrefix(name, "IBCONDUIT_") || strings.HasPrefix(name, "GO") {
				env = append(env, kv)
			}
		}
	}
	return env
}

// searchPath adds the folders of administrators' tools, which users' paths may lack.
func searchPath(path string) string {
	for _, d := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !strings.Contains(":"+path+":", ":"+d+":") {
			path = strings.TrimPrefix(path+":"+d, ":")
		}
	}
	return path
}

// Start starts the command.
func (c *Cmd) Start() error {
	if c.call != nil {
		return errors.New("softroce: the command was started before")
	}
	if len(c.Argv) == 0 {
		return errors.New("softroce: no command")
	}
	if c.h.client == nil {
		return ErrGone
	}
	env, dir := c.Env, c.Dir
	if env == nil {
		env = c.h.Environ()
	}
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return err
		}
	}
	call, err := c.h.client.Start(wire.Request{Op: wire.OpExec, Argv: c.Argv, Env: env, Dir: dir, Memlock: c.Memlock},
		c.Stdin, c.Stdout, c.Stderr)
	if err != nil {
		return c.h.describe(err)
	}
	c.call = call
	return nil
}

// Signal sends a signal to the command and its children.
func (c *Cmd) Signal(sig syscall.Signal) error {
	c.call.Signal(int(sig))
	return nil
}

// Wait waits for the end of the command and of its output. It returns nil for exit code 0 and an
// *ExitError for others. When ctx ends first, the command is killed.
func (c *Cmd) Wait(ctx context.Context) error {
	select {
	case <-c.call.Done():
	case <-ctx.Done():
		// The guest may be hung, so its answer is not awaited.
		_ = c.Signal(syscall.SIGKILL)
		return fmt.Errorf("softroce: VM %d: %s: %w", c.h.index, c.Argv[0], context.Cause(ctx))
	}
	res, err := c.call.Wait()
	if err != nil {
		return c.h.describe(err)
	}
	if res.Code != 0 {
		return &ExitError{Host: c.h.index, Argv: c.Argv, Code: res.Code, Signal: syscall.Signal(res.Signal), Reason: res.Err}
	}
	return nil
}

// Run starts the command and waits for it.
func (c *Cmd) Run(ctx context.Context) error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait(ctx)
}

// CombinedOutput runs the command and returns what it wrote.
func (c *Cmd) CombinedOutput(ctx context.Context) (string, error) {
	var b lockedBuffer
	c.Stdout, c.Stderr = &b, &b
	err := c.Run(ctx)
	return b.String(), err
}
