package qemu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/guest"
	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// Program is the emulator.
const Program = "qemu-system-x86_64"

// Accelerators.
const (
	TCG = "tcg"
	KVM = "kvm"
)

// kernelArgs boot quickly and quietly, and end the machine on a panic (with -no-reboot).
const kernelArgs = "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests"

// tcgArgs: the emulated TSC is monotonic over all CPUs, but the kernel distrusts it and falls back
// to the HPET, which makes each reading of the clock a trap (one call from Python: 3.2 us with the
// HPET, 2.1 with the TSC). lpj presets the delay loop, whose calibration takes 0.6 s a CPU under
// emulation; no emulated device depends on its accuracy.
const tcgArgs = " tsc=reliable no_timer_check lpj=10000000"

// oneCPU has a guest of several processors boot on one; the agent starts the others when all is set
// up. A kernel rewrites its own code as it boots, through a breakpoint (static keys: text_poke_bp
// in arch/x86/kernel/alternative.c). Where another processor translates the place at that moment,
// QEMU 7.2 keeps the translation with the breakpoint, and the guest meets it for ever: it hangs,
// silent or with reports of RCU stalls. With six guests at once on two cores 2 boots of 111 did,
// both at the same place, and none of 319 that began so. What the kernel rewrites later stays
// exposed; that is little. noreplace-smp: else the kernel drops the lock prefixes and puts them
// back later.
const oneCPU = " maxcpus=1 noreplace-smp"

// Spec says what to start.
type Spec struct {
	Kernel, Initrd string
	Accel          string
	CPUs, MemoryMB int
	Shares         []wire.Share
	Cards          []*os.File  // datagram sockets that carry Ethernet frames
	Ports          []wire.Port // of the cards
	MTU            int
	SwapMB         int    // of a disk without content; 0: no disk
	Append         string // further kernel parameters
	LogDir         string // console-NAME.log and qemu-NAME.log go here
	Name           string
}

// Machine is a running VM.
type Machine struct {
	Port net.Conn // the agent's port
	spec Spec
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts a machine. The caller ends it with Kill, or lets the guest power off, and in either
// case waits for Done.
func Start(s Spec) (*Machine, error) {
	if _, err := exec.LookPath(Program); err != nil {
		return nil, fmt.Errorf("softroce: %w; install what the VM needs: hack/softroce/packages.sh install", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "port"), os.NewFile(uintptr(fds[1]), "port")
	defer theirs.Close()
	defer ours.Close() // FileConn duplicates
	port, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	out, err := os.Create(s.logFile("qemu"))
	if err != nil {
		port.Close()
		return nil, err
	}
	defer out.Close()
	m := &Machine{Port: port, spec: s, done: make(chan struct{})}
	m.cmd = exec.Command(Program, s.args()...)
	m.cmd.Stdout, m.cmd.Stderr = out, out
	m.cmd.ExtraFiles = []*os.File{theirs}
	if s.SwapMB > 0 {
		disk, err := s.disk()
		if err != nil {
			port.Close()
			return nil, err
		}
		defer disk.Close()
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, disk)
	}
	m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, s.Cards...)
	// Its own group: a terminal's interrupt is for this process, which then ends it. Pdeathsig: see
	// run.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go m.run(started)
	if err := <-started; err != nil {
		port.Close()
		return nil, fmt.Errorf("start %s: %w", Program, err)
	}
	return m, nil
}

// run starts qemu and waits for it on one thread, which stays this goroutine's until then: the
// kernel sends the parent death signal when the thread that forked ends (prctl(2)), not when the
// process does.
func (m *Machine) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := m.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	m.err = m.cmd.Wait()
	m.Port.Close()
	close(m.done)
}

// Done is closed when qemu has ended.
func (m *Machine) Done() <-chan struct{} { return m.done }

// PID of qemu.
func (m *Machine) PID() int { return m.cmd.Process.Pid }

// Kill ends the machine at once and waits for its end.
func (m *Machine) Kill() {
	// An error says that it has ended already.
	_ = m.cmd.Process.Kill()
	<-m.done
}

// Explain says how the machine ended, or where it stands, from qemu's messages and the console's
// last lines.
func (m *Machine) Explain() error {
	var b strings.Builder
	select {
	case <-m.done:
		if m.err != nil {
			fmt.Fprintf(&b, "qemu: %v\n", m.err)
		}
	default:
	}
	for _, what := range []string{"qemu", "console"} {
		if t := m.Tail(what, 40); t != "" {
			fmt.Fprintf(&b, "--- %s, last lines ---\n%s\n", what, t)
		}
	}
	fmt.Fprintf(&b, "logs: %s", m.spec.LogDir)
	return errors.New(b.String())
}

// Tail returns the last lines of the console or of qemu's messages, from the kernel's panic on if
// there was one.
func (m *Machine) Tail(what string, lines int) string {
	b, err := os.ReadFile(m.spec.logFile(what))
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(strings.ReplaceAll(string(b), "\r", ""))
	if i := strings.LastIndex(text, "Kernel panic"); i >= 0 {
		text = text[strings.LastIndex(text[:i], "\n")+1:]
		l := strings.Split(text, "\n")
		return strings.Join(l[:min(len(l), lines)], "\n")
	}
	l := strings.Split(text, "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}

// disk makes a file without a name, which goes with the machine.
func (s *Spec) disk() (*os.File, error) {
	f, err := os.CreateTemp(s.LogDir, "swap-*")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(int64(s.SwapMB)<<20), os.Remove(f.Name())); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *Spec) logFile(what string) string {
	return filepath.Join(s.LogDir, what+"-"+s.Name+".log")
}

func (s *Spec) args() []string {
	const port = 3 // the first of ExtraFiles is descriptor 3
	next := port + 1
	accel, cpu := "tcg,thread=multi", "max"
	if s.Accel == KVM {
		accel, cpu = "kvm", "host"
	}
	params := kernelArgs
	if s.Accel == TCG {
		params += tcgArgs + clockArgs()
		if s.CPUs > 1 {
			params += oneCPU
		}
	}
	a := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none",
		"-machine", "q35,usb=off,vmport=off,smm=off,i8042=off", "-accel", accel, "-cpu", cpu,
		"-smp", strconv.Itoa(s.CPUs), "-m", strconv.Itoa(s.MemoryMB),
		"-kernel", s.Kernel, "-initrd", s.Initrd,
		"-append", params + " " + s.Append,
		"-chardev", "file,id=console,path=" + escape(s.logFile("console")), "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", port),
		"-device", "virtserialport,chardev=agent,name=" + guest.PortName,
		"-device", "virtio-rng-pci",
		"-virtfs", "local,path=/,mount_tag=" + guest.RootTag + ",security_model=none,readonly=on,multidevs=remap",
	}
	for _, sh := range s.Shares {
		a = append(a, "-virtfs", fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,multidevs=remap", escape(sh.Path), sh.Tag))
	}
	if s.SwapMB > 0 {
		// The file has no other name.
		a = append(a, "-drive", fmt.Sprintf("file=/proc/self/fd/%d,if=none,id=swap,format=raw,cache=unsafe,file.locking=off", next),
			"-device", "virtio-blk-pci,drive=swap")
		next++
	}
	for i := range s.Cards {
		a = append(a,
			"-netdev", fmt.Sprintf("dgram,id=n%d,local.type=fd,local.str=%d", i, next+i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=%s,host_mtu=%d,romfile=", i, s.Ports[i].MAC, s.MTU))
	}
	return a
}

// escape doubles commas, which separate options.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }
