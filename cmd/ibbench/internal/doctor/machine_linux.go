package doctor

import (
	"context"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/sysinfo"
	"github.com/ibconduit/conduit/memevents"
)

// The limits that are looked at.
const (
	rlimitMemlock = unix.RLIMIT_MEMLOCK
)

func thisMachine() *machine {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail with a valid pointer, uname(2)
	return &machine{
		Root: sysinfo.Host(), lookup: os.LookupEnv, uid: os.Geteuid(),
		kernel: unix.ByteSliceToString(u.Release[:]), arch: unix.ByteSliceToString(u.Machine[:]), cpus: runtime.NumCPU(),
		rlimit: rlimit, open: openDevice, share: tryShare,
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

// tryShare has two ranks meet as ranks of a host do.
func tryShare() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	none := func(string) (string, bool) { return "", false }
	return conduit.RunLocalConfig(ctx, 2, conduit.Config{Fabric: conduit.FabricSHM, Getenv: none},
		func(j *conduit.Job) error {
			return j.Barrier(ctx)
		})
}
