//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/verbs"
)

// deviceMemory is memory of the network's own that the device reads and writes.
type deviceMemory struct {
	mem []byte
	mr  *verbs.MR
}

// open maps and registers so many bytes.
func (m *deviceMemory) open(pd *verbs.PD, n int) (err error) {
	m.mem, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mapping %d bytes for the device: %w", n, err)
	}
	m.mr, err = pd.Register(unsafe.Pointer(unsafe.SliceData(m.mem)), uint64(n), verbs.AccessLocalWrite)
	return err
}

// close gives back what there is.
func (m *deviceMemory) close() error {
	err := closed(m.mr)
	if m.mem != nil {
		err = errors.Join(err, unix.Munmap(m.mem))
	}
	*m = deviceMemory{}
	return err
}
