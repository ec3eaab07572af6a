package doctor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/internal/sysinfo"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/segment"
)

// The limits that are asked for.
const (
	rlimitMemlock = unix.RLIMIT_MEMLOCK
	rlimitNofile  = unix.RLIMIT_NOFILE
)

func thisMachine() *machine {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail with a valid pointer, uname(2)
	return &machine{
		Root: sysinfo.Host(), lookup: os.LookupEnv, uid: os.Geteuid(),
		kernel: unix.ByteSliceToString(u.Release[:]), arch: unix.ByteSliceToString(u.Machine[:]), cpus: runtime.NumCPU(),
		rlimit: rlimit, open: openDevice, share: tryShare, mapping: tryMapping, clock: func() time.Duration { return time.Duration(measure.ClockCost()) },
		devices: askDevices, events: memevents.Status, pin: tryPin, locked: lockedMemory,
	}
}

func rlimit(resource int) (soft, hard uint64, err error) {
	var r unix.Rlimit
	err = unix.Getrlimit(resource, &r)
	return r.Cur, r.Max, err
}

func openDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func tryMapping(bytes int64) error {
	m, err := segment.Map(segment.Config{Size: bytes, Shared: true})
	if err == nil {
		err = m.Close()
	}
	return err
}

// tryShare does what two ranks of a host do: one hands a memfd to the other
// through an abstract socket, and sees there what the other writes.
func tryShare() error {
	name := fmt.Sprintf("@ibconduit-doctor-%d-%d", os.Getpid(), time.Now().UnixNano())
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("unix socket: %w", err)
	}
	defer unix.Close(l)
	if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: name}), unix.Listen(l, 1)); err != nil {
		return fmt.Errorf("abstract unix socket: %w", err)
	}
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("unix socket: %w", err)
	}
	defer unix.Close(c)
	if err := unix.Connect(c, &unix.SockaddrUnix{Name: name}); err != nil {
		return fmt.Errorf("connecting an abstract unix socket: %w", err)
	}
	s, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("accepting on an abstract unix socket: %w", err)
	}
	defer unix.Close(s)
	return passMemory(c, s)
}

// passMemory sends a memfd from c to s and maps it at both ends.
func passMemory(c, s int) error {
	mine, err := unix.MemfdCreate("ibconduit-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(mine)
	page := os.Getpagesize()
	if err := unix.Ftruncate(mine, int64(page)); err != nil {
		return fmt.Errorf("memfd of one page: %w", err)
	}
	if err := unix.Sendmsg(c, []byte{1}, unix.UnixRights(mine), nil, 0); err != nil {
		return fmt.Errorf("passing a descriptor: %w", err)
	}
	theirs, err := receive(s)
	if err != nil {
		return fmt.Errorf("receiving a descriptor: %w", err)
	}
	defer unix.Close(theirs)
	var ends [2][]byte
	for i, fd := range []int{mine, theirs} {
		if ends[i], err = unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return fmt.Errorf("mapping a memfd: %w", err)
		}
		defer unix.Munmap(ends[i])
	}
	ends[0][page-1] = 42
	if ends[1][page-1] != 42 {
		return errors.New("two mappings of one memfd differ")
	}
	return nil
}

func receive(s int) (int, error) {
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(s, data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	if len(msgs) != 1 {
		return -1, errors.New("it did not arrive")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(errors.New("it did not arrive"), err)
	}
	return fds[0], nil
}
