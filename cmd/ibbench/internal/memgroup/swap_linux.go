package memgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FreeSwap is how many bytes of swap space are free.
func FreeSwap() int64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return int64(uint64(s.Freeswap) * uint64(s.Unit))
}

// Swap is swap space in a file.
type Swap struct{ path string }

// The header of a swap area (include/linux/swap.h, union swap_header): after 1024 bytes for boot
// blocks the version and the last page, and a magic word at the end of the first page.
const (
	swapVersion = 1024
	swapLast    = 1028
	swapMagic   = "SWAPSPACE2"
)

// MakeSwap adds a file of so many bytes to the machine's swap space.
func MakeSwap(dir string, bytes int64) (*Swap, error) {
	f, err := os.CreateTemp(dir, "ibbench-swap-*")
	if err != nil {
		return nil, err
	}
	s := &Swap{f.Name()}
	page := int64(os.Getpagesize())
	head := make([]byte, page)
	binary.NativeEndian.PutUint32(head[swapVersion:], 1)
	binary.NativeEndian.PutUint32(head[swapLast:], uint32(bytes/page-1))
	copy(head[page-int64(len(swapMagic)):], swapMagic)
	// A file with holes is refused (swapon(2)).
	if err = unix.Fallocate(int(f.Fd()), 0, 0, bytes/page*page); err == nil {
		_, err = f.WriteAt(head, 0)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = s.call(unix.SYS_SWAPON)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("swap space of %d bytes in %s: %w; %s", bytes, s.path, err, Remedy), os.Remove(s.path))
	}
	return s, nil
}

func (s *Swap) call(nr uintptr) error {
	path, err := unix.BytePtrFromString(s.path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(nr, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// Remove takes the file out of the swap space and deletes it.
func (s *Swap) Remove() error {
	if err := s.call(unix.SYS_SWAPOFF); err != nil {
		return fmt.Errorf("swap space in %s: %w", s.path, err)
	}
	return os.Remove(s.path)
}
