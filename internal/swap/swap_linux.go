package swap

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The header of a swap area (include/linux/swap.h, union swap_header): after 1024 bytes for boot
// blocks the version and the last page, and a magic word at the end of the first page.
const (
	version = 1024
	last    = 1028
	magic   = "SWAPSPACE2"
)

// On writes a header to a file without holes, or to a block device, of so many bytes, and adds it
// to the machine's swap space.
func On(path string, bytes int64) error {
	page := int64(os.Getpagesize())
	head := make([]byte, page)
	binary.NativeEndian.PutUint32(head[version:], 1)
	binary.NativeEndian.PutUint32(head[last:], uint32(bytes/page-1))
	copy(head[page-int64(len(magic)):], magic)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.Write(head); err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return call("swapon", unix.SYS_SWAPON, path)
}

// Off takes it away again.
func Off(path string) error { return call("swapoff", unix.SYS_SWAPOFF, path) }

func call(name string, nr uintptr, path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), 0, 0); errno != 0 {
		return &os.PathError{Op: name, Path: path, Err: errno}
	}
	return nil
}

// Free is how many bytes of the machine's swap space are free.
func Free() int64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return int64(uint64(s.Freeswap) * uint64(s.Unit))
}
