package guest

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

const (
	// PortName is the virtio-serial port that the host talks on.
	PortName = "softroce.agent"
	// ModuleDir holds the modules and two lists of them, in load order: Boot and RDMA.
	ModuleDir = "/modules"
	// BootList names the modules every guest loads, RDMAList those of the RDMA stack.
	BootList = "boot.list"
	RDMAList = "rdma.list"
	// ChildArg makes the agent's binary apply limits and become the command (see limits_linux.go).
	ChildArg = "softroce-child"
)

// Main never returns: the machine ends with it.
func Main() {
	if len(os.Args) > 1 && os.Args[0] == ChildArg {
		becomeCommand(os.Args[1:])
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: this program is the init of the Soft-RoCE VM; run hack/softroce/vm instead")
		os.Exit(2)
	}
	log.SetFlags(0)
	log.SetPrefix("agent: ")
	log.Print(serve())
	powerOff()
}

// serve returns the reason why the guest ends.
func serve() error {
	for _, m := range []mountPoint{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := loadModules(BootList); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	s := newServer(port)
	hello := wire.Greeting{Version: wire.Version, Kernel: unix.ByteSliceToString(uts.Release[:])}
	if err := wire.SendJSON(s.ch, wire.KindHello, 0, hello); err != nil {
		return err
	}
	go s.reap()
	s.ch.Begin(port)
	<-s.ch.Done()
	return fmt.Errorf("of the host: %w", s.ch.Cause())
}

// openPort finds the port by name and opens it blocking: the driver's poll reports a hang-up until
// the host's end is known to be open, which an event loop would take for the end.
func openPort() (*port, error) {
	deadline := time.Now().Add(10 * time.Second)
	for {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil || strings.TrimSpace(string(b)) != PortName {
				continue
			}
			dev := "/dev/" + filepath.Base(filepath.Dir(n))
			fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("open %s: %w", dev, err)
			}
			return &port{fd}, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no virtio-serial port named %s", PortName)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// port reads and writes the device with plain system calls. Nothing read means that the host has
// not connected yet.
type port struct{ fd int }

func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n > 0:
			return n, nil
		default:
			time.Sleep(2 * time.Millisecond)
		}
	}
}

func (p *port) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(p.fd, b[done:])
		if err != nil && err != unix.EINTR {
			return done, err
		}
		done += max(n, 0)
	}
	return done, nil
}

func powerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.Printf("power off: %v", err)
	}
	// Without ACPI the machine stays on; a restart ends it too, because qemu runs with -no-reboot.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}
