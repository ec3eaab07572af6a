package softroce

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/ibconduit/conduit/hack/softroce/internal/image"
)

// MaxHosts bounds a cluster. Two cores carry three or four guests.
const MaxHosts = 16

// MTU of every link: room for a RoCE packet with 4096 bytes of payload.
const MTU = 4200

// maxSwapMB bounds the disk, whose file is in the build folder.
const maxSwapMB = 16 << 10

// Config of a cluster. The zero value is one guest with rxe0 on a veth pair.
type Config struct {
	Hosts     int           // guests, 1 to MaxHosts; default 1
	CPUs      int           // per guest, at most this host's; default 2 for one guest, 1 for more
	MemoryMB  int           // per guest, MiB, at least 256; default 2048 for one guest, 1024 for more
	NoRDMA    bool          // leave out the RDMA drivers and the device
	HugePages int           // 2 MiB pages reserved in each guest; default 0
	SwapMB    int           // swap space of each guest on a disk, MiB; default 0: none, and no disk
	Append    string        // further kernel parameters; not maxcpus: the guest starts all CPUs
	ReadWrite []string      // host directories that the guests may write to
	Timeout   time.Duration // for one boot of a guest, without waiting for others' VMs; default 2 minutes; see Start
	// Accel is "tcg", "kvm", or "" for KVM where it proves to boot and TCG elsewhere. The default
	// is IBCONDUIT_VM_ACCEL.
	Accel string
	// Slots is how many clusters of one Dir may run at once on this host, over all processes; a
	// further one waits. The default is IBCONDUIT_VM_SLOTS, or 1: VMs that share cores are slower
	// together than in turn.
	Slots int
	Dir   string    // build folder; default IBCONDUIT_VM_DIR, or build/softroce of the repository
	Log   io.Writer // progress of slow steps, reasons for waiting, boots that hung; default os.Stderr

	image    *image.Image // set by tests
	launched func(*Host)  // likewise
}

func (c *Config) populate() error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Hosts, 1)
	if c.Hosts < 1 || c.Hosts > MaxHosts {
		return fmt.Errorf("softroce: %d hosts; the range is 1 to %d", c.Hosts, MaxHosts)
	}
	cpus, mem := 2, 2048
	if c.Hosts > 1 {
		cpus, mem = 1, 1024
	}
	def(&c.CPUs, min(cpus, runtime.NumCPU()))
	def(&c.MemoryMB, mem)
	if c.CPUs < 1 || c.CPUs > runtime.NumCPU() {
		return fmt.Errorf("softroce: %d CPUs per guest; this host has %d, and more only slow a guest down", c.CPUs, runtime.NumCPU())
	}
	if c.MemoryMB < 256 {
		return fmt.Errorf("softroce: %d MiB are too few for a guest; the least is 256", c.MemoryMB)
	}
	if c.SwapMB < 0 || c.SwapMB > maxSwapMB {
		return fmt.Errorf("softroce: swap space of %d MiB; the range is 0 to %d", c.SwapMB, maxSwapMB)
	}
	if c.Accel == "" {
		c.Accel = os.Getenv("IBCONDUIT_VM_ACCEL")
	}
	if c.Accel != "" && c.Accel != "tcg" && c.Accel != "kvm" {
		return fmt.Errorf("softroce: accelerator %q; it is tcg, kvm or empty", c.Accel)
	}
	if c.Slots == 0 {
		c.Slots = 1
		if s := os.Getenv("IBCONDUIT_VM_SLOTS"); s != "" {
			var err error
			if c.Slots, err = strconv.Atoi(s); err != nil || c.Slots < 1 {
				return fmt.Errorf("softroce: IBCONDUIT_VM_SLOTS=%q is not a positive number", s)
			}
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.Log == nil {
		c.Log = os.Stderr
	}
	for i, d := range c.ReadWrite {
		abs, err := filepath.Abs(d)
		if err != nil {
			return err
		}
		if st, err := os.Stat(abs); err != nil || !st.IsDir() || abs == "/" {
			return fmt.Errorf("softroce: %s cannot be shared for writing: it is no directory of its own", d)
		}
		c.ReadWrite[i] = abs
	}
	if c.Dir == "" {
		d, err := image.Dir()
		if err != nil {
			return err
		}
		c.Dir = d
	}
	return nil
}
