package softroce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/hack/softroce/internal/image"
	"github.com/ibconduit/conduit/hack/softroce/internal/qemu"
	"github.com/ibconduit/conduit/hack/softroce/internal/remote"
	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// Host is one guest. Its methods are safe for concurrent use.
type Host struct {
	c       *Cluster
	index   int
	machine *qemu.Machine
	client  *remote.Client // nil until booted
	killed  atomic.Bool
}

// ErrGone is in the error of every call on a guest that has ended, ErrKilled too if Cluster.Kill or
// Close ended it.
var (
	ErrGone   = remote.ErrGone
	ErrKilled = errors.New("it was killed on request")
)

// errLate is in the error of a boot that Config.Timeout has ended.
var errLate = errors.New("not up in time")

// Address of host i of a cluster with several hosts, without prefix length.
func Address(i int) string { return fmt.Sprintf("10.0.1.%d", i+1) }

// launch starts the machine of guest i, with its ends of the links; its logs bear the name.
func (c *Cluster) launch(i int, name string, im *image.Image, accel string, cards []*os.File) (*Host, error) {
	s := qemu.Spec{Kernel: im.Kernel, Initrd: im.Initrd, Accel: accel, CPUs: c.cfg.CPUs, MemoryMB: c.cfg.MemoryMB,
		SwapMB: c.cfg.SwapMB, Append: c.cfg.Append, Shares: shares(c.cfg.ReadWrite), LogDir: c.logDir, Name: name,
		Cards: cards, Ports: ports(i, c.cfg.Hosts), MTU: MTU}
	m, err := qemu.Start(s)
	if err != nil {
		return nil, err
	}
	h := &Host{c: c, index: i, machine: m}
	if f := c.cfg.launched; f != nil {
		f(h)
	}
	return h, nil
}

func shares(dirs []string) (list []wire.Share) {
	for i, d := range dirs {
		list = append(list, wire.Share{Tag: fmt.Sprintf("rw%d", i), Path: d})
	}
	return list
}

// boot waits for the agent and has it build the guest's world.
func (h *Host) boot(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%w: %v have passed", errLate, cfg.Timeout))
	defer cancel()
	client, _, err := remote.Dial(ctx, h.machine.Port)
	if err == nil {
		h.client = client
		err = client.Do(ctx, wire.Request{Op: wire.OpSetup, Setup: h.setup(cfg)}, nil)
	}
	if err != nil {
		return fmt.Errorf("softroce: VM %d did not come up: %w\n%w", h.index, err, h.explain())
	}
	return nil
}

// hangs reports whether a guest whose boot ended with err runs and has said nothing in all its
// time, neither a greeting nor a word on its console.
func (h *Host) hangs(ctx context.Context, err error) bool {
	return errors.Is(err, errLate) && ctx.Err() == nil && h.client == nil && h.Alive() && h.machine.Tail("console", 1) == ""
}

func (h *Host) setup(cfg Config) *wire.Setup {
	s := &wire.Setup{Hostname: fmt.Sprintf("vm%d", h.index), RDMA: !cfg.NoRDMA, MTU: MTU, HugePages: cfg.HugePages, SwapMB: cfg.SwapMB,
		Shares: shares(cfg.ReadWrite), Hosts: []string{"127.0.0.1 localhost", "::1 localhost ip6-localhost"}}
	if cfg.Hosts == 1 {
		s.Hosts = append(s.Hosts, "10.0.0.1 vm0")
		return s
	}
	s.LAN, s.Ports = Address(h.index)+"/24", ports(h.index, cfg.Hosts)
	for i := range cfg.Hosts {
		s.Hosts = append(s.Hosts, fmt.Sprintf("%s vm%d", Address(i), i))
	}
	return s
}

// explain says what is known of a guest that failed. The console's last words follow qemu's end by
// a moment.
func (h *Host) explain() error {
	select {
	case <-h.machine.Done():
	case <-time.After(200 * time.Millisecond):
	}
	return h.machine.Explain()
}

// Alive says whether the guest runs.
func (h *Host) Alive() bool {
	select {
	case <-h.machine.Done():
		return false
	default:
		return true
	}
}

// PID of the guest's qemu.
func (h *Host) PID() int { return h.machine.PID() }

// KernelLog returns the guest's kernel log.
func (h *Host) KernelLog(ctx context.Context) (string, error) {
	if h.client == nil {
		return "", ErrGone
	}
	var b bytes.Buffer
	err := h.client.Do(ctx, wire.Request{Op: wire.OpDmesg}, &b)
	return b.String(), err
}

// end saves the kernel's log and kills the guest.
func (h *Host) end() {
	if h.Alive() && h.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if log, err := h.KernelLog(ctx); err == nil {
			// A log that cannot be written must not keep the VM alive.
			_ = os.WriteFile(filepath.Join(h.c.logDir, "dmesg-"+strconv.Itoa(h.index)+".log"), []byte(log), 0o644)
		}
	}
	// There is nothing in the guest to be saved: killing it is as good as an orderly end, and
	// sooner.
	h.kill()
}

func (h *Host) kill() {
	h.killed.Store(true)
	h.machine.Kill()
}

// Fetch copies files and directories of the guest to the same absolute paths on this host. Paths
// that do not exist in the guest are left out.
func (h *Host) Fetch(ctx context.Context, paths ...string) error {
	return h.FetchTo(ctx, "/", paths...)
}

// FetchTo is Fetch to the same paths below dir.
func (h *Host) FetchTo(ctx context.Context, dir string, paths ...string) error {
	for _, p := range paths {
		if !filepath.IsAbs(p) {
			return fmt.Errorf("softroce: fetch %s: not an absolute path", p)
		}
	}
	if h.client == nil {
		return ErrGone
	}
	var b bytes.Buffer
	if err := h.client.Do(ctx, wire.Request{Op: wire.OpFetch, Argv: paths}, &b); err != nil {
		return fmt.Errorf("softroce: fetch %s: %w", strings.Join(paths, " "), err)
	}
	return unpack(&b, dir, paths)
}

// describe adds what is known of the machine to an error that says it has gone.
func (h *Host) describe(err error) error {
	if errors.Is(err, ErrGone) {
		if h.killed.Load() {
			return fmt.Errorf("softroce: VM %d ended: %w: %w", h.index, ErrGone, ErrKilled)
		}
		return fmt.Errorf("softroce: VM %d ended: %w\n%w", h.index, err, h.explain())
	}
	return err
}
