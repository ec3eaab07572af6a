//go:build linux && cgo

package doctor

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/verbs"
)

func askDevices() ([]device, error) {
	infos, err := verbs.Devices()
	var out []device
	for _, i := range infos {
		out = append(out, askDevice(i.Name))
	}
	return out, err
}

func askDevice(name string) (d device) {
	d.Name = name
	ctx, err := verbs.Open(name)
	if err != nil {
		d.Err = err
		return d
	}
	defer func() { d.Err = errors.Join(d.Err, ctx.Close()) }()
	d.Firmware = ctx.Attr().FirmwareVersion
	for n := 1; n <= ctx.Attr().Ports; n++ {
		p := port{}
		if p.Attr, p.Err = ctx.Port(n); p.Err == nil {
			p.GIDs, p.Err = ctx.GIDs(n)
		}
		p.Attr.Port = n
		d.Ports = append(d.Ports, p)
	}
	return d
}

// tryPin registers memory. When that is refused for want of a limit, the soft limit is raised to
// the hard one, as Join does, and put back at the end.
func tryPin(name string, bytes uint64) (raised bool, err error) {
	ctx, err := verbs.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	pd, err := ctx.AllocPD()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return false, err
	}
	defer unix.Munmap(mem)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		return false, err
	}
	err = register(pd, mem)
	if errors.Is(err, unix.ENOMEM) && before.Cur < before.Max &&
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: before.Max, Max: before.Max}) == nil {
		err = register(pd, mem)
		return true, errors.Join(err, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before))
	}
	return false, err
}

func register(pd *verbs.PD, mem []byte) error {
	mr, err := pd.Register(unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem)), verbs.AccessAll)
	if err != nil {
		return err
	}
	return mr.Close()
}
