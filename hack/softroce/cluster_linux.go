package softroce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/ibconduit/conduit/hack/softroce/internal/image"
	"github.com/ibconduit/conduit/hack/softroce/internal/qemu"
)

// Cluster is a set of running guests.
type Cluster struct {
	cfg    Config
	logDir string
	hosts  []*Host
	unlock func()
	closed sync.Once

	mu    sync.Mutex
	links map[[2]int]Link // as last known, by sender and receiver
}

// Start boots the guests and returns when every one has its device. A single guest that runs for
// Config.Timeout and says nothing is started once more, so that a start may take twice as long. ctx
// bounds the start, waiting for other VMs included; it does not end the cluster, Close does. The
// end of this process ends the guests too.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg.ReadWrite = append([]string(nil), cfg.ReadWrite...)
	if err := cfg.populate(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, links: map[[2]int]Link{}}
	if err := c.start(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	im, err := c.findImage(ctx)
	if err != nil {
		return err
	}
	if err := c.takeSlot(ctx); err != nil {
		return err
	}
	if c.logDir, err = newLogDir(c.cfg.Dir); err != nil {
		return err
	}
	accel := c.cfg.Accel
	if accel == "" {
		accel = qemu.ChooseAccel(ctx, c.cfg.Dir, im.Kernel, im.Initrd, im.Release)
	}
	mesh, err := newMesh(c.cfg.Hosts)
	if err != nil {
		return err
	}
	defer closeMesh(mesh)
	for i := range c.cfg.Hosts {
		h, err := c.launch(i, strconv.Itoa(i), im, accel, mesh[i])
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
	}
	errs := make([]error, len(c.hosts))
	var all sync.WaitGroup
	for i, h := range c.hosts {
		all.Go(func() {
			errs[i] = h.boot(ctx, c.cfg)
			if !h.hangs(ctx, errs[i]) || c.cfg.Hosts > 1 { // the cards are the first machine's
				return
			}
			fmt.Fprintf(c.cfg.Log, "%v\nsoftroce: VM %d runs and has said nothing; it is started once more\n", errs[i], i)
			h.machine.Kill()
			if h, errs[i] = c.launch(i, fmt.Sprintf("%d-again", i), im, accel, nil); errs[i] == nil {
				c.hosts[i] = h
				errs[i] = h.boot(ctx, c.cfg)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) findImage(ctx context.Context) (*image.Image, error) {
	if c.cfg.image != nil {
		return c.cfg.image, nil
	}
	agent := filepath.Join(c.cfg.Dir, "bin", "agent")
	if os.Getenv("IBCONDUIT_SOFTROCE_LAUNCHED") == "" {
		// A test that imports this package: have the launcher bring agent and image up to date.
		root, err := image.Root()
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "softroce", "vm"), "prepare")
		cmd.Env = append(os.Environ(), "IBCONDUIT_VM_DIR="+c.cfg.Dir)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = c.cfg.Log, &out
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("softroce: %s prepare: %w\n%s", cmd.Path, err, out.Bytes())
		}
	}
	return image.Prepare(ctx, image.Options{Dir: c.cfg.Dir, Agent: agent, Log: c.cfg.Log})
}

func (c *Cluster) takeSlot(ctx context.Context) (err error) {
	var slots []string
	for i := range c.cfg.Slots {
		slots = append(slots, filepath.Join(c.cfg.Dir, fmt.Sprintf("slot.%d", i)))
	}
	var late *time.Timer
	c.unlock, err = image.LockOne(ctx, slots, func() {
		late = time.AfterFunc(10*time.Second, func() {
			fmt.Fprintf(c.cfg.Log, "softroce: waiting for another VM of the same build folder to end (IBCONDUIT_VM_SLOTS allows more than one)\n")
		})
	})
	if late != nil {
		late.Stop()
	}
	return err
}

// Hosts returns the number of guests.
func (c *Cluster) Hosts() int { return len(c.hosts) }

// Host returns guest i.
func (c *Cluster) Host(i int) *Host { return c.hosts[i] }

// LogDir returns the folder with each guest's console, kernel log and qemu's messages.
func (c *Cluster) LogDir() string { return c.logDir }

// Close saves the kernel logs and ends every guest. It may be called again.
func (c *Cluster) Close() error {
	c.closed.Do(func() {
		var all sync.WaitGroup
		for _, h := range c.hosts {
			all.Go(h.end)
		}
		all.Wait()
		if c.unlock != nil {
			c.unlock()
		}
	})
	return nil
}

// newLogDir makes the folder of a run and drops those of old ones.
func newLogDir(dir string) (string, error) {
	const keep = 20
	parent := filepath.Join(dir, "log")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	name := time.Now().UTC().Format("20060102-150405.000") + fmt.Sprintf("-%d", os.Getpid())
	old, _ := filepath.Glob(filepath.Join(parent, "*"))
	sort.Strings(old)
	for _, d := range old[:max(0, len(old)-keep)] {
		_ = os.RemoveAll(d)
	}
	logDir := filepath.Join(parent, name)
	return logDir, os.Mkdir(logDir, 0o755)
}
